// Package atomicfile replaces files so that a reader, and a restart after a
// power cut, finds the old content or the new, never a part of it.
//
// Guarantees. After Write or Commit returns without an error, the content and the
// name are on disk: the temporary file is synced before it is renamed, and the
// directory after that. The file has exactly the requested permissions, whatever
// the umask, and never wider ones while it is written.
//
// A large file reaches the disk while it is written: one sync of all of it at the end would
// delay every other sync on that disk for as long, such as those of a log.
//
// Non-goals. It takes no locks, so of two writers of one path the last one wins,
// and it does not preserve the owner of the file that it replaces.
//
// The libraries for this purpose (google/renameio, natefinch/atomic) do not sync
// the directory: after a power cut the old file may be back, although the caller
// was told that the new one is there.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// File is a temporary file that takes the place of another one on Commit.
type File struct {
	*os.File
	path string
	perm fs.FileMode
	// unsynced is how many bytes were written since sync, which tests replace.
	unsynced int
	sync     func() error
}

// SyncEvery is after how many bytes what was written of a large file is synced.
const SyncEvery = 4 << 20

// Write appends bytes.
func (f *File) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	if f.unsynced += n; err == nil && f.unsynced >= SyncEvery {
		f.unsynced = 0
		err = f.sync()
	}
	return n, err
}

// WriteString appends a string.
func (f *File) WriteString(s string) (int, error) { return f.Write([]byte(s)) }

// ReadFrom appends what a reader has.
func (f *File) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{f}, r) // by Write
}

// Create makes the temporary file, beside path and readable by its owner only.
// Either Commit, CommitNew or Discard must follow.
func Create(path string, perm fs.FileMode) (*File, error) {
	f, err := os.CreateTemp(filepath.Dir(path), leftoverPrefix(path)+"*")
	if err != nil {
		// The name of the temporary file means nothing to the caller.
		if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return &File{File: f, path: path, perm: perm, sync: f.Sync}, nil
}

// Commit puts the file in its place and returns once it is on disk. After an
// error the temporary file is gone.
func (f *File) Commit() error { return f.commit(os.Rename) }

// CommitNew is Commit for a path that must not exist yet.
//
// Errors: fs.ErrExist, the path exists and is as it was.
func (f *File) CommitNew() error {
	// A link, unlike a rename, never replaces a file.
	return f.commit(func(temporary, path string) error {
		return errors.Join(os.Link(temporary, path), os.Remove(temporary))
	})
}

func (f *File) commit(place func(temporary, path string) error) error {
	err := f.Chmod(f.perm)
	if err == nil {
		err = f.sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = place(f.Name(), f.path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", f.path, err)
	}
	if err := SyncDir(filepath.Dir(f.path)); err != nil {
		return fmt.Errorf("write %s: %w", f.path, err)
	}
	return nil
}

// Discard removes the temporary file. After a commit it does nothing.
func (f *File) Discard() {
	_ = f.Close()
	_ = os.Remove(f.Name())
}

// Write replaces the content of path.
func Write(path string, data []byte, perm fs.FileMode) error {
	f, err := Create(path, perm)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		f.Discard()
		return fmt.Errorf("write %s: %w", path, err)
	}
	return f.Commit()
}

// RemoveLeftovers removes the temporary files of writes of path that a crash
// interrupted. No such write may be under way.
func RemoveLeftovers(path string) error {
	dir, prefix := filepath.Dir(path), leftoverPrefix(path)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for what was left of %s: %w", path, err)
	}
	for _, entry := range entries {
		digits, ok := strings.CutPrefix(entry.Name(), prefix)
		if !ok || digits == "" || strings.Trim(digits, "0123456789") != "" {
			continue
		}
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove what was left of %s: %w", path, err)
		}
	}
	return nil
}

// leftoverPrefix is how the names of the temporary files for path begin; digits
// follow.
func leftoverPrefix(path string) string { return "." + filepath.Base(path) + "." }

// SyncDir puts the names in a directory on disk.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
