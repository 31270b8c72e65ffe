package zone

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"

	"meridian/internal/atomicfile"
	"meridian/internal/pki"
)

const (
	// authoritiesFile keeps the authorities that the global has named, below the
	// data directory.
	authoritiesFile = "global-ca.json"
	// maxAuthorities bounds them, in bytes.
	maxAuthorities = 64 << 10
)

// learnedAuthorities is what the file holds.
type learnedAuthorities struct {
	FormatVersion int `json:"formatVersion"`
	// Configured identifies the authorities that the zone was given when it learned
	// (pki.Digest). A zone that is given others trusts those.
	Configured string `json:"configured"`
	// Learned are the authorities in PEM.
	Learned string `json:"learned"`
}

// authorities are those by which the zone verifies the servers of its global: the
// given ones, until the global names others. It is safe for concurrent use.
type authorities struct {
	dir, configured, source string
	log                     *slog.Logger

	mu      sync.Mutex
	learned string // guarded by mu; "" while there are none
}

// openAuthorities returns the given authorities, or those that were learned while
// the zone was given the same ones.
func openAuthorities(dir, configured, source string, log *slog.Logger) *authorities {
	a := &authorities{dir: dir, configured: configured, source: source, log: log}
	path := filepath.Join(dir, authoritiesFile)
	data, err := pki.ReadFile(path, 2*maxAuthorities)
	if errors.Is(err, fs.ErrNotExist) {
		return a
	}
	var have learnedAuthorities
	if err == nil {
		err = json.Unmarshal(data, &have)
	}
	if err == nil && have.FormatVersion != 1 {
		err = fmt.Errorf("format %d is not known", have.FormatVersion)
	}
	switch {
	case err != nil:
		log.Warn("the learned authorities of the global cannot be read: the zone uses those that it was given", "file", path, "error", err)
	case have.Configured == pki.Digest([]byte(configured)) && pki.Digest([]byte(have.Learned)) != "":
		a.learned = have.Learned
	}
	return a
}

// tls says how to verify a server now.
func (a *authorities) tls() pki.ClientTLSConfig {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.learned == "" {
		return pki.ClientTLSConfig{CAPEM: []byte(a.configured), Source: a.source}
	}
	return pki.ClientTLSConfig{CAPEM: []byte(a.learned), Source: filepath.Join(a.dir, authoritiesFile)}
}

// digest identifies the authorities in use.
func (a *authorities) digest() string { return pki.Digest(a.tls().CAPEM) }

// trust keeps the authorities that the global names, and uses them from the next
// connection on.
func (a *authorities) trust(named []byte) error {
	digest := pki.Digest(named)
	switch {
	case len(named) > maxAuthorities:
		return fmt.Errorf("they have %d bytes, and at most %d are accepted", len(named), maxAuthorities)
	case digest == "":
		return errors.New("they hold no certificate in PEM")
	case digest == a.digest():
		return nil
	}
	if _, err := pki.ClientTLS(pki.ClientTLSConfig{CAPEM: named, Source: "what the global named"}); err != nil {
		return err
	}
	data, err := json.MarshalIndent(learnedAuthorities{FormatVersion: 1, Configured: pki.Digest([]byte(a.configured)), Learned: string(named)}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", authoritiesFile, err)
	}
	if err := atomicfile.Write(filepath.Join(a.dir, authoritiesFile), append(data, '\n'), 0o644); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.learned = string(named)
	a.log.Info("the global named the authorities by which its servers are verified from now on", "authorities", digest)
	return nil
}
