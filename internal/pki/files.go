package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Permissions of certificates, which are for everyone, and of their directory.
const (
	publicPerm fs.FileMode = 0o644
	dirPerm    fs.FileMode = 0o700
)

// ReadFile reads a file, or whatever else can be opened, of at most limit
// bytes.
func ReadFile(path string, limit int64) ([]byte, error) {
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
	text, err := ReadFile(path, maxPEMBytes)
	if err != nil {
		return nil, fmt.Errorf("loading the authorities of clients: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("loading the authorities of clients: %s has no PEM certificate", path)
	}
	return pool, nil
}
