package raftlog

import (
	"errors"
	"os"
	"syscall"
)

// syncData returns once the content of a file is on disk. Its times may not be.
func syncData(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		for {
			if failed = syscall.Fdatasync(int(fd)); !errors.Is(failed, syscall.EINTR) { //nolint:gosec // a descriptor
				return
			}
		}
	})
	if failed != nil {
		failed = &os.PathError{Op: "sync", Path: f.Name(), Err: failed}
	}
	return errors.Join(failed, err)
}
