package token

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"meridian/internal/resource"
)

// Use is what the tokens of a key are for (§6.8). A key signs tokens
// of one use only, so that a token for one service is never accepted by another.
type Use string

// The uses of tokens, spelt as in the resources that hold their keys.
const (
	ForUser      Use = "user-token"
	ForDataplane Use = "dataplane-token"
	ForZone      Use = "zone-token"
	// ForServer lets one new server join a global, once.
	ForServer Use = "server-token"
)

func (u Use) valid() bool {
	return u == ForUser || u == ForDataplane || u == ForZone || u == ForServer
}

// pemPrivateKey is the type of the PEM block that holds a private key.
const pemPrivateKey = "PRIVATE KEY"

// keyInfix stands between use and serial in the name of a key.
const keyInfix = "-signing-key-"

// KeyID names a signing key: the `kid` of its tokens and the name of the
// resources that hold its halves.
type KeyID struct {
	Use Use
	// Serial counts the keys of one use, from 1. The highest signs, all verify.
	Serial uint64
	// Issuer names the zone whose own key it is; empty for the global's. It keeps
	// a token of one control plane from being taken for another's.
	Issuer string
}

// String returns the id as it is written, such as "zone-token-signing-key-1",
// or "dataplane-token-signing-key-2.east" for a key of the zone east.
func (id KeyID) String() string {
	s := string(id.Use) + keyInfix + strconv.FormatUint(id.Serial, 10)
	if id.Issuer != "" {
		s += "." + id.Issuer
	}
	return s
}

// ParseKeyID reads what String prints, and nothing else.
func ParseKeyID(s string) (KeyID, error) {
	use, rest, found := strings.Cut(s, keyInfix)
	digits, issuer, _ := strings.Cut(rest, ".")
	serial, err := strconv.ParseUint(digits, 10, 64)
	id := KeyID{Use: Use(use), Serial: serial, Issuer: issuer}
	if !found || err != nil || serial == 0 || !id.Use.valid() || id.String() != s {
		return KeyID{}, fmt.Errorf("%q does not name a signing key", s)
	}
	return id, nil
}

// AuthorityName names the GlobalSecret that holds the certificate authority which
// is about to replace the one of this global.
const AuthorityName = "certificate-authority"

// AuthorityKey is where that is stored.
var AuthorityKey = resource.Key{Kind: resource.KindGlobalSecret, Name: AuthorityName}

// ServersName names the GlobalSecret in which the servers of a global keep what all
// of them must know about each other: who was removed, by which certificates they are
// known, and the keys of gossip.
const ServersName = "cluster-servers"

// ServersKey is where that is stored.
var ServersKey = resource.Key{Kind: resource.KindGlobalSecret, Name: ServersName}

// meshAuthorityPrefix begins the name of the GlobalSecret in which a zone keeps the
// certificate authority of a mesh, which follows.
const meshAuthorityPrefix = "mesh-certificate-authority."

// MeshAuthorityKey is where a zone stores the certificate authority of a mesh.
func MeshAuthorityKey(mesh resource.MeshName) resource.Key {
	return resource.Key{Kind: resource.KindGlobalSecret, Name: meshAuthorityPrefix + string(mesh)}
}

// OfServers reports whether a resource is about the servers of a global and their own
// files, which no restore changes.
func OfServers(key resource.Key) bool { return key == AuthorityKey || key == ServersKey }

// IsSigningKey reports whether a resource holds the private half of a signing key,
// of tokens, of servers' certificates or of those of dataplanes, or another secret of the
// servers' own.
func IsSigningKey(key resource.Key) bool {
	if key.Kind != resource.KindGlobalSecret {
		return false
	}
	_, err := ParseKeyID(key.Name)
	return err == nil || OfServers(key) || strings.HasPrefix(key.Name, meshAuthorityPrefix)
}

// LeavesInBackups reports whether a resource is a secret that leaves a control plane in
// backups only: what IsSigningKey is, and the authorities that operators provide.
func LeavesInBackups(key resource.Key) bool {
	return IsSigningKey(key) || resource.HoldsProvidedAuthority(key)
}

// withheld is the spec of a signing key in an answer.
var withheld = []byte(`{"withheld":true}`)

// Withheld returns a resource as answers to clients show it: a signing key
// and an authority without its data, anything else as it is. A client that reads a key can be every
// user, unnoticed, until it is deleted; so no access includes it (§6.1).
func Withheld(r *resource.Resource) *resource.Resource {
	if !LeavesInBackups(r.Key()) {
		return r
	}
	return resource.New(r.Meta(), &resource.Secret{Withheld: true}, withheld)
}

// SigningKey signs the tokens of one use with Ed25519. It is immutable and a
// secret: it does not print.
type SigningKey struct {
	id      KeyID
	private ed25519.PrivateKey
}

// GenerateSigningKey makes a new key.
func GenerateSigningKey(id KeyID) (SigningKey, error) {
	if !id.Use.valid() || id.Serial == 0 {
		return SigningKey{}, fmt.Errorf("%q does not name a signing key", id)
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return SigningKey{}, fmt.Errorf("generating %s: %w", id, err)
	}
	return SigningKey{id: id, private: private}, nil
}

// ParseSigningKey reads what PEM wrote: one PKCS #8 block with an Ed25519 key.
func ParseSigningKey(id KeyID, data []byte) (SigningKey, error) {
	block, rest := pem.Decode(data)
	if block == nil || block.Type != pemPrivateKey || strings.TrimSpace(string(rest)) != "" {
		return SigningKey{}, fmt.Errorf("reading %s: not a PEM file with one private key", id)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return SigningKey{}, fmt.Errorf("reading %s: %w", id, err)
	}
	private, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return SigningKey{}, fmt.Errorf("reading %s: the key is %T, not Ed25519", id, parsed)
	}
	return SigningKey{id: id, private: private}, nil
}

// ID returns the key's name.
func (k SigningKey) ID() KeyID { return k.id }

// PEM returns the private key, to be kept as a secret.
func (k SigningKey) PEM() ([]byte, error) {
	if k.private == nil {
		return nil, errors.New("encoding a signing key: there is none")
	}
	der, err := x509.MarshalPKCS8PrivateKey(k.private)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", k.id, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPrivateKey, Bytes: der}), nil
}

// Public returns the half that verifies.
func (k SigningKey) Public() PublicKey {
	public, _ := k.private.Public().(ed25519.PublicKey)
	return PublicKey{id: k.id, key: public}
}

// String keeps the key out of logs.
func (k SigningKey) String() string { return k.id.String() + " (private)" }

// GoString keeps the key out of logs.
func (k SigningKey) GoString() string { return k.String() }

// PublicKey verifies the tokens of one signing key. It is immutable.
type PublicKey struct {
	id  KeyID
	key ed25519.PublicKey
}

// ParsePublicKey reads what PKIX wrote.
func ParsePublicKey(id KeyID, der []byte) (PublicKey, error) {
	parsed, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return PublicKey{}, fmt.Errorf("reading the public half of %s: %w", id, err)
	}
	key, ok := parsed.(ed25519.PublicKey)
	if !ok {
		return PublicKey{}, fmt.Errorf("reading the public half of %s: the key is %T, not Ed25519", id, parsed)
	}
	return PublicKey{id: id, key: key}, nil
}

// ID returns the key's name.
func (k PublicKey) ID() KeyID { return k.id }

// PKIX returns the key in DER, as the resource of public halves holds it.
func (k PublicKey) PKIX() ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(k.key)
	if err != nil {
		return nil, fmt.Errorf("encoding the public half of %s: %w", k.id, err)
	}
	return der, nil
}
