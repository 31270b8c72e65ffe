package atomicfile

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// DropCache syncs a file and has the kernel forget its content, so that the next
// reader gets what is on the disk. After a sync that failed, Linux holds pages
// that it counts as written although the disk never got them. No other process
// may have the file open or mapped.
func DropCache(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	if err == nil {
		err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read %s from the disk: %w", path, err)
	}
	return nil
}
