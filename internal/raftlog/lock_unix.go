//go:build unix

package raftlog

import (
	"errors"
	"os"
	"syscall"
)

// errLocked means that another open file holds the lock.
var errLocked = errors.New("locked")

// acquireLock takes the advisory lock on a file, which the kernel drops when
// the process ends, however it ends. A holder that failed to start removes its
// file, so the lock counts only while the path still names the locked file.
func acquireLock(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			_ = f.Close()
			if errors.Is(err, syscall.EWOULDBLOCK) {
				return nil, errLocked
			}
			return nil, err
		}
		held, err := f.Stat()
		if err == nil {
			if named, statErr := os.Stat(path); statErr == nil && os.SameFile(held, named) {
				return f, nil
			}
		}
		_ = f.Close()
		if err != nil {
			return nil, err
		}
	}
}
