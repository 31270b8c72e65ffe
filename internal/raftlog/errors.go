package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// ErrDataDirInUse means that another process holds the data directory. Stop it
// or choose another directory.
var ErrDataDirInUse = errors.New("data directory is in use by another process")

// ErrDataDirReadOnly means that the data directory cannot be written to. Change
// its permissions or choose another directory.
var ErrDataDirReadOnly = errors.New("data directory is not writable")

// ErrForeignDataDir means that the data directory belongs to another cluster,
// node or role. Choose the right directory, or a new one to start anew.
var ErrForeignDataDir = errors.New("data directory belongs to something else")

// ErrCorrupt means that files in the data directory are damaged: what they hold
// is not what was written. Nothing is served from them. Restore the directory
// from a backup or, in a cluster, start the server with a new one.
var ErrCorrupt = errors.New("data is corrupt")

// ErrDiskFull means that the disk is full or nearly so: nothing was written.
// Free some space; writes continue by themselves.
var ErrDiskFull = errors.New("the disk is nearly full")

// dataDirError adds ErrDataDirReadOnly to an error of the file system that says
// so.
func dataDirError(dir string, err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w: %s: %w", ErrDataDirReadOnly, dir, err)
	}
	return fmt.Errorf("data directory %s: %w", dir, err)
}

// Corruptf is an ErrCorrupt that says what is damaged.
func Corruptf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCorrupt, fmt.Errorf(format, args...))
}
