package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	// envoyDir begins the name of the directory in which an Envoy runs, and which has the
	// key of its certificate.
	envoyDir = "meridian-envoy-"
	// lockFile is in it and locked while the agent runs: the kernel drops the lock when the
	// agent ends, however it ends.
	lockFile = "lock"
)

// lockDir makes the lock of a directory. It gets its name once it is held: a lock that is
// not held is that of an agent that has ended.
func lockDir(dir string) (*os.File, error) {
	begun := filepath.Join(dir, lockFile+".new")
	f, err := os.OpenFile(begun, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), os.Rename(begun, filepath.Join(dir, lockFile))); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// removeAbandoned removes the directories of this user's agents that have ended without
// doing so, because they were killed.
func removeAbandoned(parent string) error {
	entries, err := os.ReadDir(parent)
	var problems []error
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), envoyDir) {
			problems = append(problems, removeIfAbandoned(filepath.Join(parent, e.Name())))
		}
	}
	return errors.Join(append(problems, err)...)
}

// removeIfAbandoned removes a directory of this user whose lock is not held.
func removeIfAbandoned(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return ignoreMissing(err)
	}
	if of, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(of.Uid) != os.Geteuid() {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return ignoreMissing(err)
	}
	defer func() { _ = f.Close() }()
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil // it is in use
	case err != nil:
		return err
	}
	return os.RemoveAll(dir)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
