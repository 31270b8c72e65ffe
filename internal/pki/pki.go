package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"meridian/internal/atomicfile"
	"meridian/internal/atrest"
)

// Files of a server's PKI below its data directory.
const (
	pkiDir        = "pki"
	caFile        = "ca.pem"
	caKeyFile     = "ca-key.pem"
	serverFile    = "server.pem"
	serverKeyFile = "server-key.pem"
	maxPEMBytes   = 1 << 20
)

// SecretFiles are the files of a data directory that hold private keys.
func SecretFiles(dataDir string) []string {
	dir := filepath.Join(dataDir, pkiDir)
	return []string{filepath.Join(dir, caKeyFile), filepath.Join(dir, serverKeyFile), filepath.Join(dir, rotationFile)}
}

// MaxSecretBytes is the size of the largest file of SecretFiles.
const MaxSecretBytes = maxPEMBytes

// ErrPartial means that a PKI directory holds a certificate without its key
// or the reverse. Nothing is overwritten: the operator restores the file, or
// removes the other to have both made anew.
var ErrPartial = errors.New("a certificate and its key must both be there")

// Config says where a server's certificate comes from.
type Config struct {
	// DataDir holds the generated files, under pki/.
	DataDir string
	// Name is the server's, for its certificate's subject.
	Name string
	// Identity tells the server from others that have its name, and had or will have
	// it. Empty: its certificate says nothing about that.
	Identity string
	// Hosts are the names and addresses the certificate must have (ServerHosts).
	Hosts []string
	// CertFile and KeyFile, given together, replace what would be generated.
	CertFile, KeyFile string
	// CAFile is the authority of CertFile, for clients; may be empty when those
	// trust it anyway.
	CAFile string
	// Encryption are the keys that private keys are encrypted with on disk; nil: they
	// are not. Files that were given are read as they are.
	Encryption *atrest.Keys
	// Now is the clock.
	Now func() time.Time
	// Log records certificates that are created and renewed.
	Log *slog.Logger
}

// PKI is a server's certificate, ready to serve and to be reloaded. Its methods
// are safe for concurrent use.
type PKI struct {
	config    Config
	current   atomic.Pointer[material]
	failure   atomic.Pointer[error] // of the last Reload
	following sync.Mutex            // held by Follow
	reloading sync.Mutex            // held by Reload
}

// material is one state of a PKI; immutable.
type material struct {
	ca       *CA // the one that signs; nil when the certificate was given
	base     *CA // the one that signs without a rotation
	rotation *Rotation
	caPEM    []byte // those that are trusted
	server   *tls.Certificate
}

// Open loads the server's certificate. Without files given it makes, once,
// an authority and a certificate in the data directory, and renews the
// certificate when it runs out within four months or lacks one of the hosts.
// It fails when files are given that do not fit together, with ErrPartial,
// and when the directory cannot be written.
func Open(config Config) (*PKI, error) {
	if (config.CertFile == "") != (config.KeyFile == "") {
		return nil, errors.New("a certificate file and a key file must be given together")
	}
	p := &PKI{config: config}
	return p, p.Reload()
}

// Reload reads everything again and renews what needs it. New connections use the
// result, established ones are not affected. After an error, which Failure returns
// until a Reload succeeds, the current certificate stays in use.
func (p *PKI) Reload() (err error) {
	p.reloading.Lock()
	defer p.reloading.Unlock()
	defer func() { p.failure.Store(&err) }()
	load := p.generated
	if p.config.CertFile != "" {
		load = p.given
	}
	m, err := load()
	if err != nil {
		return err
	}
	p.current.Store(m)
	return nil
}

// Failure is why the last Reload failed, nil if it did not.
func (p *PKI) Failure() error { return *p.failure.Load() }

// CAPEM returns the certificates of the authorities that clients must trust, more
// than one during a rotation; empty when a given certificate came without one.
func (p *PKI) CAPEM() []byte { return p.current.Load().caPEM }

// CA returns the authority that signs for this server, or nil when its
// certificate was given.
func (p *PKI) CA() *CA { return p.current.Load().ca }

// Expires returns when the certificate in use runs out.
func (p *PKI) Expires() time.Time { return p.current.Load().server.Leaf.NotAfter }

// GetCertificate serves the current certificate to every handshake, as
// tls.Config wants it.
func (p *PKI) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return p.current.Load().server, nil
}

// ServerTLS returns a configuration that serves the current certificate over
// TLS 1.3 and follows Reload.
func (p *PKI) ServerTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: p.GetCertificate}
}

// CheckGiven reports what is wrong with the files that the operator named, if
// they are named. It writes nothing.
func CheckGiven(config Config) error {
	if config.CertFile == "" {
		return nil
	}
	_, err := (&PKI{config: config}).given()
	return err
}

// given loads the files that the operator named.
func (p *PKI) given() (*material, error) {
	certPEM, err := ReadFile(p.config.CertFile, maxPEMBytes)
	if err != nil {
		return nil, fmt.Errorf("loading the server's certificate: %w", err)
	}
	keyPEM, err := ReadFile(p.config.KeyFile, maxPEMBytes)
	if err != nil {
		return nil, fmt.Errorf("loading the key of the server's certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("loading the server's certificate from %s and %s: %w", p.config.CertFile, p.config.KeyFile, err)
	}
	if now := p.config.Now(); now.After(pair.Leaf.NotAfter) {
		return nil, fmt.Errorf("the server's certificate in %s expired on %s", p.config.CertFile, pair.Leaf.NotAfter.UTC().Format(time.DateTime))
	}
	m := &material{server: &pair}
	if p.config.CAFile == "" {
		return m, nil
	}
	if m.caPEM, err = ReadFile(p.config.CAFile, maxPEMBytes); err != nil {
		return nil, fmt.Errorf("loading the CA: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(m.caPEM) {
		return nil, fmt.Errorf("loading the CA: no certificate in %s", p.config.CAFile)
	}
	return m, nil
}

// generated loads, makes or renews the files of the data directory.
func (p *PKI) generated() (*material, error) {
	dir := filepath.Join(p.config.DataDir, pkiDir)
	if err := os.MkdirAll(dir, dirPerm); err != nil {
		return nil, fmt.Errorf("making the PKI directory: %w", err)
	}
	if err := atomicfile.SyncDir(p.config.DataDir); err != nil {
		return nil, fmt.Errorf("making the PKI directory: %w", err)
	}
	rotation, err := openRotation(dir, p.config.Encryption)
	if err != nil {
		return nil, err
	}
	base, err := p.openCA(dir)
	if err != nil {
		return nil, err
	}
	m := &material{ca: base, base: base, rotation: rotation, caPEM: base.CertificatePEM()}
	if rotation != nil {
		m.caPEM = rotation.Trusted()
	}
	if rotation != nil && rotation.Phase == PhaseSwitch {
		if m.ca, err = ParseCA([]byte(rotation.New), []byte(rotation.NewKey)); err != nil {
			return nil, err
		}
	}
	if m.server, err = p.openServer(dir, m.ca); err != nil {
		return nil, err
	}
	if m.ca != base {
		if cross, _ := pem.Decode([]byte(rotation.Cross)); cross != nil {
			m.server.Certificate = append(m.server.Certificate, cross.Bytes)
		}
	}
	return m, nil
}

func (p *PKI) openCA(dir string) (*CA, error) {
	certPath, keyPath := filepath.Join(dir, caFile), filepath.Join(dir, caKeyFile)
	certPEM, keyPEM, err := readPair(p.config.Encryption, certPath, keyPath)
	switch {
	case err == nil:
		ca, err := ParseCA(certPEM, keyPEM)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		return ca, nil
	case !errors.Is(err, fs.ErrNotExist) && !interrupted(dir):
		return nil, fmt.Errorf("loading the CA: %w", err)
	}
	ca, err := NewCA(p.config.Now())
	if err != nil {
		return nil, err
	}
	key, err := ca.KeyPEM()
	if err != nil {
		return nil, err
	}
	if err := writePair(p.config.Encryption, certPath, ca.CertificatePEM(), keyPath, key); err != nil {
		return nil, err
	}
	p.config.Log.Info("created a certificate authority", "file", certPath)
	return ca, nil
}

// ErrOtherCA means that the data directory has an authority of its own already,
// which may have signed something. Start with a new directory.
var ErrOtherCA = errors.New("there is another CA in the data directory")

// ImportCA puts an authority into a data directory that has none, as if it had
// been made there, its key encrypted with keys. Doing it again changes nothing.
// Errors: ErrOtherCA, and what is wrong with the authority.
func ImportCA(dataDir string, keys *atrest.Keys, certPEM, keyPEM []byte) error {
	ca, err := ParseCA(certPEM, keyPEM)
	if err != nil {
		return err
	}
	dir := filepath.Join(dataDir, pkiDir)
	if err := os.MkdirAll(dir, dirPerm); err != nil {
		return fmt.Errorf("making the PKI directory: %w", err)
	}
	if err := atomicfile.SyncDir(dataDir); err != nil {
		return fmt.Errorf("making the PKI directory: %w", err)
	}
	certPath, keyPath := filepath.Join(dir, caFile), filepath.Join(dir, caKeyFile)
	have, err := ReadFile(certPath, maxPEMBytes)
	switch {
	case err == nil && !bytes.Equal(have, ca.CertificatePEM()):
		return fmt.Errorf("%w: %s", ErrOtherCA, certPath)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("loading the CA: %w", err)
	}
	return writePair(keys, certPath, ca.CertificatePEM(), keyPath, keyPEM)
}

// interrupted reports whether the very first start was cut off after the CA's
// key was written and before all the rest: nothing can have been signed, so
// that key is made again.
func interrupted(dir string) bool {
	for _, name := range []string{caFile, serverKeyFile, serverFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

func (p *PKI) openServer(dir string, ca *CA) (*tls.Certificate, error) {
	certPath, keyPath := filepath.Join(dir, serverFile), filepath.Join(dir, serverKeyFile)
	reason := "there is none"
	// An unusable server certificate is replaced by a new one, unless it only takes
	// another key to read it.
	certPEM, keyPEM, err := readPair(p.config.Encryption, certPath, keyPath)
	if errors.Is(err, atrest.ErrNoKey) {
		return nil, err
	}
	if err == nil {
		pair, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			reason = err.Error()
		} else if reason = ca.needsRenewal(pair.Leaf, p.config.Identity, p.config.Hosts, p.config.Now()); reason == "" {
			return &pair, nil
		}
	}
	certPEM, keyPEM, err = ca.issue(p.config.Name, p.config.Identity, p.config.Hosts, p.config.Now())
	if err != nil {
		return nil, err
	}
	if err := writePair(p.config.Encryption, certPath, certPEM, keyPath, keyPEM); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("reading back the server's certificate: %w", err)
	}
	p.config.Log.Info("created a server certificate", "file", certPath, "reason", reason, "expires", pair.Leaf.NotAfter)
	return &pair, nil
}

// writePair writes the key first: a certificate whose key is lost is of no use,
// a key without its certificate is noticed by readPair.
func writePair(keys *atrest.Keys, certPath string, certPEM []byte, keyPath string, key []byte) error {
	if err := keys.WriteFile(keyPath, key); err != nil {
		return err
	}
	return atomicfile.Write(certPath, certPEM, publicPerm)
}

// readPair reads a certificate and its key. The error is fs.ErrNotExist when
// neither is there, ErrPartial when one is.
func readPair(keys *atrest.Keys, certPath, keyPath string) (certPEM, keyPEM []byte, err error) {
	certPEM, certErr := ReadFile(certPath, maxPEMBytes)
	keyPEM, keyErr := keys.ReadFile(keyPath, maxPEMBytes)
	noCert, noKey := errors.Is(certErr, fs.ErrNotExist), errors.Is(keyErr, fs.ErrNotExist)
	switch {
	case noCert && !noKey && keyErr == nil:
		return nil, nil, fmt.Errorf("%w: %s is missing beside %s", ErrPartial, certPath, keyPath)
	case noKey && !noCert && certErr == nil:
		return nil, nil, fmt.Errorf("%w: %s is missing beside %s", ErrPartial, keyPath, certPath)
	}
	return certPEM, keyPEM, errors.Join(certErr, keyErr)
}
