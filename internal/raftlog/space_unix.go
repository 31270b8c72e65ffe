//go:build linux || darwin || freebsd

package raftlog

import (
	"fmt"
	"syscall"
)

// Space asks the file system. Blocks that only the superuser may use do not
// count as free.
func (f *files) Space() (Space, error) {
	var fsys syscall.Statfs_t
	if err := syscall.Statfs(f.path, &fsys); err != nil {
		return Space{}, fmt.Errorf("free space of %s: %w", f.path, err)
	}
	block := uint64(fsys.Bsize)
	return Space{Free: uint64(fsys.Bavail) * block, Total: fsys.Blocks * block}, nil //nolint:unconvert // the types differ between systems
}
