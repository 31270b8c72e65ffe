//go:build !linux

package raftlog

import "os"

// syncData returns once the content of a file is on disk.
func syncData(f *os.File) error { return f.Sync() }
