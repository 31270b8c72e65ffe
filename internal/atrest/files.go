package atrest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"meridian/internal/atomicfile"
)

// secretPerm is the mode of every file that WriteFile makes.
const secretPerm fs.FileMode = 0o600

// ReadFile returns the content of a file of at most limit bytes, decrypted if it is
// encrypted. Errors: those of the file system, ErrNoKey, ErrDamaged, all with the
// path.
func (k *Keys) ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	most := limit + int64(HeaderLen) + (limit/partLen+1)*partOverhead
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if int64(len(data)) <= most {
		if data, err = k.Open(data); err != nil {
			return nil, fmt.Errorf("%s cannot be read: %w", path, err)
		}
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than the %d bytes that belong in such a file", path, limit)
	}
	return data, nil
}

// WriteFile replaces a file by one that only its owner may read (0600), encrypted
// with the first key.
func (k *Keys) WriteFile(path string, data []byte) error {
	sealed, err := k.Seal(data)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return atomicfile.Write(path, sealed, secretPerm)
}

// CheckFiles returns ErrNoKey, with the path, for the first of some files that is
// encrypted with a key that is not there. Files that are missing or damaged are for
// others to find. It changes nothing.
func (k *Keys) CheckFiles(paths ...string) error {
	for _, path := range paths {
		head, err := readHead(path)
		if err != nil {
			continue
		}
		if err := k.Fits(head); errors.Is(err, ErrNoKey) {
			return fmt.Errorf("%s cannot be read: %w; nothing was changed", path, err)
		}
	}
	return nil
}

// readHead returns the first bytes of a file, as many as Header needs.
func readHead(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
	head := make([]byte, HeaderLen)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	return head[:n], nil
}

// RewriteFiles writes those of some files again that would be written otherwise now,
// of at most limit bytes each: with another key, or without. Files that are missing
// are passed over. What a crash left of an earlier attempt to write one of them is
// removed, since it may not be encrypted.
func (k *Keys) RewriteFiles(limit int64, paths ...string) error {
	for _, path := range paths {
		if err := atomicfile.RemoveLeftovers(path); err != nil {
			return err
		}
		head, err := readHead(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && k.Current(head) {
			continue
		}
		data, err := k.ReadFile(path, limit)
		if err == nil {
			err = k.WriteFile(path, data)
		}
		if err != nil {
			return fmt.Errorf("encrypt %s with another key: %w", filepath.Base(path), err)
		}
	}
	return nil
}
