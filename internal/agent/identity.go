package agent

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/atomicfile"
	"meridian/internal/xds"
)

const (
	// identitySuffix makes of the bootstrap file's path the directory of the identity.
	identitySuffix = ".identity"
	// current is the link in it to the directory with the files of one identity.
	current = "current"
	// The files of an identity.
	certificateFile, keyFile, rootsFile = "certificate.pem", "key.pem", "roots.pem"
	// refreshInterval is how often gRPC reads the files, and settle how long after they
	// were replaced every program has read them.
	refreshInterval = time.Second
	settle          = 3 * refreshInterval
	// A certificate is renewed when a random share of its time within these has passed.
	renewFrom, renewTo = 0.5, 0.7
	// minRenewal is the least time between two renewals: the zone takes one request a
	// second.
	minRenewal = 2 * time.Second
)

// certificates is the part of an agent that has its application known to others. Its
// methods are for one goroutine at a time.
type certificates struct {
	dir string
	// files are those of an identity, in the form in which its application reads them.
	files func(certificate, key, roots []byte) (map[string][]byte, error)
	// key is that of the last request; nil before it. It is for certificates on token.
	key   *ecdsa.PrivateKey
	token string
	// renewal is when the certificate is to be renewed; zero without one.
	renewal time.Time
	// begins and expires are from when and until when the certificate is valid; zero
	// without one.
	begins, expires time.Time
	now             func() time.Time
	// off: the last certificate was not valid by the clock of this machine.
	off bool
}

// openCertificates makes the directory of the identity of a gRPC application.
func openCertificates(bootstrap string) (*certificates, error) {
	c := &certificates{dir: bootstrap + identitySuffix, files: pemFiles, now: time.Now}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, err
	}
	return c, os.Chmod(c.dir, 0o700)
}

func pemFiles(certificate, key, roots []byte) (map[string][]byte, error) {
	return map[string][]byte{certificateFile: certificate, keyFile: key, rootsFile: roots}, nil
}

// openSecrets makes the directory of the identity of an Envoy that runs in a directory.
// Until there is a certificate its files have none: Envoy refuses what refers to files
// that do not exist, for good, and every connection while there is none.
func openSecrets(dir string) (*certificates, error) {
	c := &certificates{dir: filepath.Join(dir, xds.EnvoyIdentity), files: secretFiles, now: time.Now}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return nil, err
	}
	none, err := secretFiles(nil, nil, nil)
	if err != nil {
		return nil, err
	}
	return c, c.replace(none)
}

// secretFiles are the secrets of an identity; without a certificate, none.
func secretFiles(certificate, key, roots []byte) (map[string][]byte, error) {
	inline := func(data []byte) object { return object{"inline_string": string(data)} }
	files := map[string][]byte{}
	for path, secret := range map[string]object{
		xds.EnvoyCertificate: {"name": xds.CertificateSecret, "tls_certificate": object{"certificate_chain": inline(certificate), "private_key": inline(key)}},
		xds.EnvoyRoots:       {"name": xds.RootsSecret, "validation_context": object{"trusted_ca": inline(roots)}},
	} {
		secret["@type"] = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
		response := object{"resources": []object{}}
		if len(certificate) > 0 {
			response["resources"] = []object{secret}
		}
		data, err := json.Marshal(response)
		if err != nil {
			return nil, fmt.Errorf("encode a secret: %w", err)
		}
		files[filepath.Base(path)] = data
	}
	return files, nil
}

// on has the next certificate be one on a token. Another token gets another key: who has
// the key of before could use it with that certificate, which is no secret.
func (c *certificates) on(token string) {
	if c.token != token {
		c.token, c.key, c.renewal = token, nil, time.Time{}
	}
}

// request makes a request for a certificate, with the key of before unless the
// certificate for it is due to be renewed.
func (c *certificates) request() (*meridianv1.ConnectRequest, error) {
	if c.key == nil || c.due() {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("generate a key: %w", err)
		}
		c.key, c.renewal = key, time.Time{}
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, c.key)
	if err != nil {
		return nil, fmt.Errorf("make a request for a certificate: %w", err)
	}
	return &meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_CertificateRequest{
		CertificateRequest: &meridianv1.DataplaneCertificateRequest{Csr: csr},
	}}, nil
}

func (c *certificates) due() bool { return !c.renewal.IsZero() && !c.now().Before(c.renewal) }

// store puts an identity in the place of the last one and reports whether it has a
// certificate. What it replaces stays when it has none: others decide whether they
// accept that.
func (c *certificates) store(identity *meridianv1.DataplaneIdentity) (bool, error) {
	if len(identity.GetCertificate()) == 0 {
		c.renewal, c.expires = time.Time{}, time.Time{}
		return false, nil
	}
	block, _ := pem.Decode(identity.GetCertificate())
	if block == nil {
		return false, errors.New("the zone sent a certificate that is not PEM")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return false, fmt.Errorf("the zone sent a certificate that cannot be read: %w", err)
	}
	if !c.key.PublicKey.Equal(leaf.PublicKey) {
		return false, errOtherKey
	}
	der, err := x509.MarshalPKCS8PrivateKey(c.key)
	if err != nil {
		return false, fmt.Errorf("encode the key: %w", err)
	}
	files, err := c.files(identity.GetCertificate(), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), identity.GetRoots())
	if err == nil {
		err = c.replace(files)
	}
	if err != nil {
		return false, err
	}
	now := c.now()
	c.begins, c.expires = leaf.NotBefore, leaf.NotAfter
	share := renewFrom + (renewTo-renewFrom)*mathrand.Float64()
	c.renewal = now.Add(max(minRenewal, time.Duration(share*float64(leaf.NotAfter.Sub(now)))))
	return true, nil
}

// clock reports whether it has just been found that the certificate, which is fresh, is not
// valid by the clock of this machine: others may accept it, and what runs here accepts
// none of theirs. It is said once until the clock is right.
func (c *certificates) clock() (wrong bool) {
	was, now := c.off, c.now()
	c.off = now.Before(c.begins) || !now.Before(c.expires)
	return c.off && !was
}

// errOtherKey means that an identity is for a key of before: that for the latest follows.
var errOtherKey = errors.New("the certificate is for another key")

// replace puts files in the place of those of before, all at once.
func (c *certificates) replace(files map[string][]byte) error {
	link := filepath.Join(c.dir, current)
	if same(link, files) {
		return nil
	}
	next, err := os.MkdirTemp(c.dir, "identity-") // 0700
	if err != nil {
		return err
	}
	for name, data := range files {
		if err := atomicfile.Write(filepath.Join(next, name), data, 0o600); err != nil {
			return errors.Join(err, os.RemoveAll(next))
		}
	}
	if err := errors.Join(point(link, filepath.Base(next)), atomicfile.SyncDir(c.dir)); err != nil {
		return errors.Join(err, os.RemoveAll(next))
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "identity-") && e.Name() != filepath.Base(next) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(c.dir, e.Name())))
		}
	}
	return err
}

// same reports whether the files are what they are to be.
func same(dir string, files map[string][]byte) bool {
	for name, data := range files {
		if old, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(old, data) {
			return false
		}
	}
	return true
}

// point makes a link point to a name beside it, in one step.
func point(link, name string) error {
	temporary := link + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(name, temporary); err != nil {
		return err
	}
	return os.Rename(temporary, link)
}

// provider is how gRPC is told of the files.
func (c *certificates) provider() map[string]bootstrapProvider {
	at := func(name string) string { return filepath.Join(c.dir, current, name) }
	return map[string]bootstrapProvider{xds.CertificateProvider: {PluginName: "file_watcher", Config: bootstrapFiles{
		Certificate: at(certificateFile), Key: at(keyFile), Roots: at(rootsFile), RefreshInterval: fmt.Sprintf("%gs", refreshInterval.Seconds()),
	}}}
}
