package authn

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Permissions of what is written: secrets for their owner alone, certificates
// for everyone.
const (
	secretPerm fs.FileMode = 0o600
	publicPerm fs.FileMode = 0o644
	dirPerm    fs.FileMode = 0o700
)

// writeFile replaces path with data so that a crash leaves the old content or
// the new, never a part: a synced temporary file beside it, renamed over it,
// and the directory synced. The file has exactly the permissions of perm.
func writeFile(path string, data []byte, perm fs.FileMode) error {
	dir := filepath.Dir(path)
	// CreateTemp makes it 0600, whatever the umask.
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	err = fill(tmp, data, perm)
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, errors.Join(err, os.Remove(tmp.Name())))
	}
	if err := syncDir(dir); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// fill writes, protects, syncs and closes a new file.
func fill(f *os.File, data []byte, perm fs.FileMode) error {
	_, err := f.Write(data)
	if err == nil {
		err = f.Chmod(perm)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// readBounded reads a file, or whatever else can be opened, of at most limit
// bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than the %d bytes that belong in such a file", path, limit)
	}
	return data, nil
}

// ReadAuthorities reads a file of PEM certificates, those of authorities whose
// clients are trusted.
func ReadAuthorities(path string) (*x509.CertPool, error) {
	text, err := readBounded(path, maxPEMBytes)
	if err != nil {
		return nil, fmt.Errorf("loading the authorities of clients: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("loading the authorities of clients: %s has no PEM certificate", path)
	}
	return pool, nil
}
