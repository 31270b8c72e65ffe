package audit

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"meridian/internal/atomicfile"
	"meridian/internal/pki"
)

// Mark is the end of a chain: a record that is on disk.
type Mark struct {
	Seq  uint64    `json:"seq"`
	Hash string    `json:"hash"`
	Time time.Time `json:"time"`
	// First is the oldest record that is kept; 0 where that is not known.
	First uint64 `json:"first,omitempty"`
}

// Head is the checkpoint of a log: the ends of its chains, signed by its server.
// With a copy of it Verify can check that the log still leads up to them.
type Head struct {
	// Mark is the end of the writes.
	Mark
	// Refusals are the ends of the other chains, by name.
	Refusals map[string]Mark `json:"refusals,omitempty"`
	// Certificate is the certificate of the server in PEM, with those between it and
	// its CA, and Signature the signature by its key: of the checkpoint as JSON
	// without these two fields.
	Certificate string `json:"certificate,omitempty"`
	Signature   []byte `json:"signature,omitempty"`
}

// of returns the end of a chain.
func (h *Head) of(name string) Mark {
	if name == "" {
		return h.Mark
	}
	return h.Refusals[name]
}

// signed returns what the signature is of.
func (h Head) signed() ([]byte, error) {
	h.Certificate, h.Signature = "", nil
	return json.Marshal(h)
}

// AnyTime returns the checkpoint for logs that may be newer, whose oldest files may
// have been removed since.
func (h Head) AnyTime() Head {
	refusals := map[string]Mark{}
	for name, m := range h.Refusals {
		m.First = 0
		refusals[name] = m
	}
	h.First, h.Refusals = 0, refusals
	return h
}

// newest is when the last record was written.
func (h *Head) newest() time.Time {
	at := h.Time
	for _, m := range h.Refusals {
		if m.Time.After(at) {
			at = m.Time
		}
	}
	return at
}

// CheckSignature returns the name in the certificate that a checkpoint was signed
// with. Roots, unless nil, must have issued the certificate. Errors: ErrUnsigned, or
// what is wrong with the signature.
func (h *Head) CheckSignature(roots *x509.CertPool) (signer string, err error) {
	if len(h.Signature) == 0 {
		return "", ErrUnsigned
	}
	message, err := h.signed()
	if err != nil {
		return "", fmt.Errorf("encode the checkpoint: %w", err)
	}
	chain, err := certificates([]byte(h.Certificate))
	if err != nil {
		return "", err
	}
	if err := pki.CheckSignature(chain[0], message, h.Signature); err != nil {
		return "", errors.New("its signature is not by the key of its certificate: it was altered")
	}
	signer = chain[0].Subject.CommonName
	if roots == nil {
		return signer, nil
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	// It was valid when it signed, and need not be now.
	_, err = chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: h.newest(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return "", fmt.Errorf("its certificate is not one of the CA: %w", err)
	}
	return signer, nil
}

// ErrUnsigned means that a checkpoint has no signature.
var ErrUnsigned = errors.New("it is not signed")

func certificates(data []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("its certificate cannot be read: %w", err)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, errors.New("it has a signature and no certificate")
	}
	return out, nil
}

// ReadHead reads a checkpoint.
func ReadHead(path string) (Head, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Head{}, err
	}
	var h Head
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&h); err != nil || len(h.Hash) != hashText && (h.Hash != "" || len(h.Refusals) == 0) {
		return Head{}, fmt.Errorf("%s is not a checkpoint", path)
	}
	return h, nil
}

// checkpoint is the file with the Head of a log. It is safe for concurrent use.
type checkpoint struct {
	path string
	// sign returns a signature and the certificate for it; nil signs nothing.
	sign Signer

	mu      sync.Mutex // guards all below
	head    Head
	changed bool // since it was saved
}

// Signer signs for a server. It returns the certificate of its key in PEM, with those
// between it and its CA. *pki.PKI has one.
type Signer func(message []byte) (certificatePEM, signature []byte, err error)

// openCheckpoint reads the checkpoint of a directory. The note says what is wrong
// with it.
func openCheckpoint(dir string, sign Signer, roots *x509.CertPool) (c *checkpoint, note string) {
	c = &checkpoint{path: filepath.Join(dir, HeadFile), sign: sign}
	head, err := ReadHead(c.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if used(dir) {
			note = "the checkpoint is missing"
		}
	case err != nil:
		return c, "the checkpoint cannot be read: " + err.Error()
	case sign != nil:
		if _, err := head.CheckSignature(roots); err != nil {
			note = "the checkpoint: " + err.Error()
		}
	}
	c.head = head
	return c, note
}

// used reports whether there are records in a directory.
func used(dir string) bool {
	for _, name := range chainNames {
		if info, err := os.Stat(filepath.Join(dir, baseOf(name)+fileSuffix)); err == nil && info.Size() > 0 {
			return true
		}
	}
	return false
}

func (c *checkpoint) of(name string) Mark {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.head.of(name)
}

// set replaces the end of a chain. It is on disk after save.
func (c *checkpoint) set(name string, m Mark) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.head.of(name) == m:
		return
	case name == "":
		c.head.Mark = m
	default:
		if c.head.Refusals == nil {
			c.head.Refusals = map[string]Mark{}
		}
		c.head.Refusals[name] = m
	}
	c.changed = true
}

// save signs the checkpoint and replaces the file atomically, if anything has changed.
func (c *checkpoint) save() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.changed {
		return nil
	}
	c.head.Certificate, c.head.Signature = "", nil
	if c.sign != nil {
		message, err := c.head.signed()
		if err != nil {
			return fmt.Errorf("encode the checkpoint of the audit log: %w", err)
		}
		certificate, signature, err := c.sign(message)
		if err != nil {
			return fmt.Errorf("sign the checkpoint of the audit log: %w", err)
		}
		c.head.Certificate, c.head.Signature = string(certificate), signature
	}
	data, err := json.Marshal(c.head)
	if err != nil {
		return fmt.Errorf("encode the checkpoint of the audit log: %w", err)
	}
	if err := atomicfile.Write(c.path, append(data, '\n'), filePerm); err != nil {
		return fmt.Errorf("write the checkpoint of the audit log: %w", err)
	}
	c.changed = false
	return nil
}
