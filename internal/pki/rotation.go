package pki

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"meridian/internal/atomicfile"
	"meridian/internal/atrest"
)

// Phase is how far the replacement of an authority has come.
type Phase string

// The phases of a rotation, in order.
const (
	// PhaseTrust: servers and clients come to trust the new authority beside the old
	// one, which still signs.
	PhaseTrust Phase = "trust"
	// PhaseSwitch: the new authority signs. Servers show its certificate by the old
	// one, too, so that a client that knows the old one only still trusts them.
	PhaseSwitch Phase = "switch"
	// PhaseFinish: the old authority is trusted no more, and its key is deleted.
	PhaseFinish Phase = "finish"
)

var phases = []Phase{PhaseTrust, PhaseSwitch, PhaseFinish}

// after reports whether a phase comes after another; every one comes after none.
func (p Phase) after(other Phase) bool {
	return slices.Index(phases, p) > slices.Index(phases, other)
}

// Rotation is the replacement of one authority by another. It holds a secret, the
// new authority's key.
type Rotation struct {
	FormatVersion int       `json:"formatVersion"`
	Phase         Phase     `json:"phase"`
	Started       time.Time `json:"started"`
	// Old and New are the certificates of the two authorities in PEM, Cross the new
	// one's as the old one signed it.
	Old   string `json:"old"`
	New   string `json:"new"`
	Cross string `json:"cross,omitempty"`
	// NewKey is the new authority's private key in PEM; empty once it is finished.
	NewKey string `json:"newKey,omitempty"`
}

const (
	rotationFormat = 1
	rotationFile   = "rotation.json"
)

// Why a server does not follow a rotation.
var (
	// ErrOtherRotation means that a rotation is not of this server's authority, or
	// that another one has not finished here.
	ErrOtherRotation = errors.New("the rotation is of another certificate authority than this server's")
	// ErrNotRotatable means that this server's certificate was given.
	ErrNotRotatable = errors.New("the server's certificate was given, not generated")
)

// NewRotation makes the authority that is to replace one, cross-signed by it.
func NewRotation(old *CA, now time.Time) (Rotation, error) {
	next, err := NewCA(now)
	if err != nil {
		return Rotation{}, err
	}
	serial, err := newSerial()
	if err != nil {
		return Rotation{}, err
	}
	cross, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: next.certificate.Subject.Organization, CommonName: next.certificate.Subject.CommonName},
		NotBefore: next.certificate.NotBefore, NotAfter: earlier(next.certificate.NotAfter, old.certificate.NotAfter),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: next.certificate.KeyUsage,
	}, old.certificate, next.key.Public(), old.key)
	if err != nil {
		return Rotation{}, fmt.Errorf("signing the new CA's certificate by the old one: %w", err)
	}
	key, err := next.KeyPEM()
	if err != nil {
		return Rotation{}, err
	}
	return Rotation{
		FormatVersion: rotationFormat, Phase: PhaseTrust, Started: now.UTC(),
		Old: string(old.CertificatePEM()), New: string(next.CertificatePEM()), NewKey: string(key),
		Cross: string(pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: cross})),
	}, nil
}

// DecodeRotation reads what Encode writes.
func DecodeRotation(data []byte) (Rotation, error) {
	var r Rotation
	if err := json.Unmarshal(data, &r); err != nil {
		return Rotation{}, fmt.Errorf("reading the rotation of the CA: %w", err)
	}
	switch {
	case r.FormatVersion != rotationFormat:
		return Rotation{}, fmt.Errorf("reading the rotation of the CA: it has format %d, this release reads %d", r.FormatVersion, rotationFormat)
	case !slices.Contains(phases, r.Phase):
		return Rotation{}, fmt.Errorf("reading the rotation of the CA: %q is no phase of it", r.Phase)
	case r.Phase != PhaseFinish:
		if _, err := ParseCA([]byte(r.New), []byte(r.NewKey)); err != nil {
			return Rotation{}, fmt.Errorf("reading the rotation of the CA: %w", err)
		}
	}
	return r, nil
}

// Encode writes the rotation. The result is a secret until it is finished.
func (r Rotation) Encode() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding the rotation of the CA: %w", err)
	}
	return append(data, '\n'), nil
}

// Next returns the rotation in the phase that follows, without the key at its end.
func (r Rotation) Next() Rotation {
	switch r.Phase {
	case PhaseTrust:
		r.Phase = PhaseSwitch
	case PhaseSwitch:
		r.Phase, r.NewKey, r.Cross = PhaseFinish, "", ""
	}
	return r
}

// Trusted returns the authorities that are trusted in the phase, in PEM.
func (r Rotation) Trusted() []byte {
	switch r.Phase {
	case PhaseTrust:
		return []byte(r.Old + r.New)
	case PhaseSwitch:
		return []byte(r.New + r.Old)
	}
	return []byte(r.New)
}

// Signer returns the authority that signs in the phase, in PEM.
func (r Rotation) Signer() []byte {
	if r.Phase == PhaseTrust {
		return []byte(r.Old)
	}
	return []byte(r.New)
}

// Digest identifies a set of authorities, whatever their order: the SHA-256 of
// their sorted certificates, in hexadecimal; "" when there is none.
func Digest(authorities []byte) string {
	var certificates [][]byte
	for {
		var block *pem.Block
		if block, authorities = pem.Decode(authorities); block == nil {
			break
		}
		if block.Type == pemCertificate {
			certificates = append(certificates, block.Bytes)
		}
	}
	if len(certificates) == 0 {
		return ""
	}
	slices.SortFunc(certificates, bytes.Compare)
	sum := sha256.Sum256(bytes.Join(certificates, nil))
	return hex.EncodeToString(sum[:])
}

// Rotation returns the rotation that this server takes part in, with the new
// authority's key; nil when there is none, or none that has not finished.
func (p *PKI) Rotation() *Rotation { return p.current.Load().rotation }

// Base returns the authority that signed before a rotation, which is CA when there
// is none; nil when the server's certificate was given.
func (p *PKI) Base() *CA { return p.current.Load().base }

// Follow takes the server to the phase of a rotation, and reports whether that
// changed anything. It continues from wherever a crash left it. A phase that the
// server has passed changes nothing. Errors: ErrOtherRotation, ErrNotRotatable,
// those of the disk.
func (p *PKI) Follow(r Rotation) (changed bool, err error) {
	p.following.Lock()
	defer p.following.Unlock()
	m := p.current.Load()
	if m.base == nil {
		return false, ErrNotRotatable
	}
	base := string(m.base.CertificatePEM())
	switch {
	case base == r.New:
		return false, nil // it has finished here
	case base != r.Old, m.rotation != nil && m.rotation.New != r.New, m.rotation == nil && r.Phase == PhaseFinish:
		return false, fmt.Errorf("%w: this one's is %s, and it replaces %s", ErrOtherRotation, Digest([]byte(base)), Digest([]byte(r.Old)))
	case m.rotation != nil && !r.Phase.after(m.rotation.Phase):
		return false, nil
	case r.Phase == PhaseFinish:
		r.NewKey = m.rotation.NewKey
	}
	if err := writeRotation(filepath.Join(p.config.DataDir, pkiDir), p.config.Encryption, r); err != nil {
		return false, err
	}
	return true, p.Reload()
}

// ImportRotation has a data directory without a rotation take part in one, in the
// form that Encode writes. It is encrypted with keys.
func ImportRotation(dataDir string, keys *atrest.Keys, data []byte) error {
	r, err := DecodeRotation(data)
	if err != nil {
		return err
	}
	return writeRotation(filepath.Join(dataDir, pkiDir), keys, r)
}

func writeRotation(dir string, keys *atrest.Keys, r Rotation) error {
	data, err := r.Encode()
	if err != nil {
		return err
	}
	return keys.WriteFile(filepath.Join(dir, rotationFile), data)
}

// openRotation returns the rotation that the directory takes part in. One that has
// finished is completed: its authority takes the place of the old one, and then
// the file is removed, so that a crash in between leaves it to be done again.
func openRotation(dir string, keys *atrest.Keys) (*Rotation, error) {
	path := filepath.Join(dir, rotationFile)
	data, err := keys.ReadFile(path, maxPEMBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("loading the rotation of the CA: %w", err)
	}
	r, err := DecodeRotation(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if r.Phase != PhaseFinish {
		return &r, nil
	}
	if _, err := ParseCA([]byte(r.New), []byte(r.NewKey)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := writePair(keys, filepath.Join(dir, caFile), []byte(r.New), filepath.Join(dir, caKeyFile), []byte(r.NewKey)); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil {
		return nil, fmt.Errorf("finishing the rotation of the CA: %w", err)
	}
	return nil, atomicfile.SyncDir(dir)
}

// MayCross reports whether clients that know the authority only accept servers
// that show the new one's certificate by it: the authorities of early releases do
// not allow that.
func (ca *CA) MayCross() bool { return !ca.certificate.MaxPathLenZero }
