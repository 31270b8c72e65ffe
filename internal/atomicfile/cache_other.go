//go:build !linux

package atomicfile

import (
	"errors"
	"os"
)

// DropCache syncs a file. Unlike Linux, the other systems keep pages dirty that
// could not be written.
func DropCache(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
