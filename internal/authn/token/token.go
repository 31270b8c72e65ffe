package token

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
)

// algorithm is the only one that tokens are signed with. A key fixes it: the
// `alg` of a token is compared with it, never followed.
const algorithm = "EdDSA"

const (
	// maxTokenBytes is well above any token issued here.
	maxTokenBytes = 16 << 10
	// tokenSkew backdates `nbf` for verifiers whose clocks run behind, and is
	// how far in the future an `iat` may lie.
	tokenSkew = time.Minute
	// MaxValidity bounds how long a token may be valid.
	MaxValidity = 10 * 365 * 24 * time.Hour
)

// ScopeControlPlane lets a zone token connect a zone's control plane; other
// scopes are for a zone's ingress and egress.
const (
	ScopeControlPlane = "cp"
	ScopeIngress      = "ingress"
	ScopeEgress       = "egress"
)

// Why a token is refused. Another token is needed, except after ErrNotYetValid,
// which may pass.
var (
	// ErrMalformed means that it is not a token at all.
	ErrMalformed = errors.New("the token is malformed")
	// ErrAlgorithm means that it is not signed, or not with EdDSA.
	ErrAlgorithm = errors.New("the token is not signed with " + algorithm)
	// ErrNoKeyID means that it does not say which key signed it.
	ErrNoKeyID = errors.New("the token names no signing key (kid)")
	// ErrUnknownKey means that the key it names is not known here: it was
	// issued elsewhere, or its key was withdrawn.
	ErrUnknownKey = errors.New("the token's signing key is not known here")
	// ErrSignature means that it was altered, or signed by another key of
	// the same name.
	ErrSignature = errors.New("the token's signature does not verify")
	// ErrClaim means that a required claim is missing or empty.
	ErrClaim = errors.New("the token lacks a required claim")
	// ErrExpired means that it has expired.
	ErrExpired = errors.New("the token has expired")
	// ErrNotYetValid means that its validity begins later.
	ErrNotYetValid = errors.New("the token is not valid yet")
	// ErrUse means that it is for another use, such as a zone token where a user
	// token is needed.
	ErrUse = errors.New("the token is of another use")
	// ErrOtherZone means that a zone token is that of another zone.
	ErrOtherZone = errors.New("the token is for another zone")
	// ErrScope means that a zone token does not cover this.
	ErrScope = errors.New("the token does not have the scope")
	// ErrRevoked means that it was revoked.
	ErrRevoked = errors.New("the token was revoked")
	// ErrOtherMesh means that a dataplane token is for another mesh.
	ErrOtherMesh = errors.New("the token is for another mesh")
	// ErrOtherDataplane means that a dataplane token is that of another one.
	ErrOtherDataplane = errors.New("the token is for another dataplane")
	// ErrTags means that a dataplane has tags that its token does not cover.
	ErrTags = errors.New("the token does not cover the dataplane's tags")
	// ErrType means that a dataplane token is for a proxy of another type.
	ErrType = errors.New("the token is for a proxy of another type")
)

// TypeDataplane is the type of the tokens by which dataplanes register.
const TypeDataplane = "dataplane"

// Token is what a verified token says.
type Token struct {
	// ID is the `jti`, by which it can be revoked.
	ID string
	// Key is the `kid`; its use is the token's.
	Key                          KeyID
	IssuedAt, NotBefore, Expires time.Time

	// Name is a user's, or the one dataplane that the token is for; empty in a
	// dataplane token for any that has its tags.
	Name string
	// Groups are a user's.
	Groups []string
	// Zone and Scope are a zone's.
	Zone  string
	Scope []string
	// Mesh, Tags and Type are a dataplane's: where it may register, the values
	// that it may have of each tag, and as what.
	Mesh string
	Tags map[string][]string
	Type string
}

// serverSubject is the subject of server tokens: a joining server has no name yet.
const serverSubject = "server"

// Subject returns the subject of the token in one line.
func (t Token) Subject() string {
	switch t.Key.Use {
	case ForZone:
		return t.Zone
	case ForDataplane:
		name := t.Name
		if name == "" {
			name = "*"
		}
		return t.Mesh + "/" + name
	case ForServer:
		return serverSubject
	default:
		return t.Name
	}
}

// CheckText says why a text cannot be a token of any issuer: one of the
// errors above. A client checks it before it sends the token.
func CheckText(text string) error {
	if len(text) > maxTokenBytes {
		return fmt.Errorf("%w: it has %d bytes", ErrMalformed, len(text))
	}
	other := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	}
	if i := strings.IndexFunc(text, other); i >= 0 {
		r, _ := utf8.DecodeRuneInString(text[i:])
		return fmt.Errorf("%w: it has a %q at position %d, and a token is one line of letters, digits, dots, dashes and underscores", ErrMalformed, r, i+1)
	}
	return nil
}

// claims is the payload on the wire.
type claims struct {
	jwt.RegisteredClaims
	Name   string   `json:"name,omitempty"`
	Groups []string `json:"groups,omitempty"`
	Zone   string   `json:"zone,omitempty"`
	Scope  []string `json:"scope,omitempty"`
	Mesh   string   `json:"mesh,omitempty"`
	Type   string   `json:"type,omitempty"`

	Tags map[string][]string `json:"tags,omitempty"`
}

// Issuer signs tokens, for each use with the key of the highest serial. It is
// immutable and safe for concurrent use.
type Issuer struct {
	now  func() time.Time
	keys map[Use]SigningKey
}

// NewIssuer returns an issuer with a clock and keys.
func NewIssuer(now func() time.Time, keys ...SigningKey) *Issuer {
	i := &Issuer{now: now, keys: make(map[Use]SigningKey, len(keys))}
	for _, key := range keys {
		if key.id.Serial > i.keys[key.id.Use].id.Serial {
			i.keys[key.id.Use] = key
		}
	}
	return i
}

// User issues a token for a user of that name and groups. AuthenticatedGroup is
// not part of it; verifiers add it.
func (i *Issuer) User(name string, groups []string, validFor time.Duration) (string, Token, error) {
	if name == "" {
		return "", Token{}, errors.New("a user token needs a name")
	}
	return i.issue(ForUser, claims{Name: name, Groups: slices.Clone(groups)}, validFor)
}

// Zone issues a token for a zone.
func (i *Issuer) Zone(zone string, scope []string, validFor time.Duration) (string, Token, error) {
	if zone == "" || len(scope) == 0 {
		return "", Token{}, errors.New("a zone token needs a zone and a scope")
	}
	return i.issue(ForZone, claims{Zone: zone, Scope: slices.Clone(scope)}, validFor)
}

// Dataplane issues a token for the dataplanes of a mesh that have the name, if
// one is given, and no other values of the given tags.
func (i *Issuer) Dataplane(mesh, name string, tags map[string][]string, validFor time.Duration) (string, Token, error) {
	if mesh == "" {
		return "", Token{}, errors.New("a dataplane token needs a mesh")
	}
	for tag, values := range tags {
		if tag == "" || len(values) == 0 || slices.Contains(values, "") {
			return "", Token{}, fmt.Errorf("a dataplane token needs a value for tag %q", tag)
		}
	}
	return i.issue(ForDataplane, claims{Mesh: mesh, Name: name, Tags: maps.Clone(tags), Type: TypeDataplane}, validFor)
}

// Server issues a token by which one new server may join.
func (i *Issuer) Server(validFor time.Duration) (string, Token, error) {
	return i.issue(ForServer, claims{}, validFor)
}

func (i *Issuer) issue(use Use, c claims, validFor time.Duration) (string, Token, error) {
	key, ok := i.keys[use]
	if !ok {
		return "", Token{}, fmt.Errorf("there is no key to sign a %s with", use)
	}
	if validFor < time.Second || validFor > MaxValidity {
		return "", Token{}, fmt.Errorf("a token is valid for at least a second and at most %d days, not %s", MaxValidity/(24*time.Hour), validFor)
	}
	now := i.now()
	c.RegisteredClaims = jwt.RegisteredClaims{
		// Lower case lets the id name a resource.
		ID:        strings.ToLower(rand.Text()),
		IssuedAt:  jwt.NewNumericDate(now),
		NotBefore: jwt.NewNumericDate(now.Add(-tokenSkew)),
		ExpiresAt: jwt.NewNumericDate(now.Add(validFor)),
	}
	unsigned := jwt.NewWithClaims(jwt.SigningMethodEdDSA, c)
	unsigned.Header["kid"] = key.id.String()
	signed, err := unsigned.SignedString(key.private)
	if err != nil {
		return "", Token{}, fmt.Errorf("signing a %s: %w", use, err)
	}
	return signed, c.token(key.id), nil
}

func (c *claims) token(key KeyID) Token {
	return Token{
		ID: c.ID, Key: key,
		IssuedAt: c.IssuedAt.UTC(), NotBefore: c.NotBefore.UTC(), Expires: c.ExpiresAt.UTC(),
		Name: c.Name, Groups: c.Groups, Zone: c.Zone, Scope: c.Scope,
		Mesh: c.Mesh, Tags: c.Tags, Type: c.Type,
	}
}
