package auth

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

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
	// MaxTokenValidity bounds how long a token may be valid.
	MaxTokenValidity = 10 * 365 * 24 * time.Hour
)

// ScopeControlPlane lets a zone token connect a zone's control plane; other
// scopes are for a zone's ingress and egress.
const (
	ScopeControlPlane = "cp"
	ScopeIngress      = "ingress"
	ScopeEgress       = "egress"
)

// Why a token is refused. Each says what is wrong with it; a caller mends it by
// getting another token, except for ErrTokenNotYetValid, which time mends.
var (
	// ErrTokenMalformed means that it is not a token at all.
	ErrTokenMalformed = errors.New("the token is malformed")
	// ErrTokenAlgorithm means that it is not signed, or not with EdDSA.
	ErrTokenAlgorithm = errors.New("the token is not signed with " + algorithm)
	// ErrTokenNoKeyID means that it does not say which key signed it.
	ErrTokenNoKeyID = errors.New("the token names no signing key (kid)")
	// ErrTokenUnknownKey means that the key it names is not known here: it was
	// issued elsewhere, or its key was withdrawn.
	ErrTokenUnknownKey = errors.New("the token's signing key is not known here")
	// ErrTokenSignature means that it was altered, or signed by another key of
	// the same name.
	ErrTokenSignature = errors.New("the token's signature does not verify")
	// ErrTokenClaim means that a required claim is missing or empty.
	ErrTokenClaim = errors.New("the token lacks a required claim")
	// ErrTokenExpired means that its time is over.
	ErrTokenExpired = errors.New("the token has expired")
	// ErrTokenNotYetValid means that its time has not come.
	ErrTokenNotYetValid = errors.New("the token is not valid yet")
	// ErrTokenUse means that it is for another door, such as a zone token given
	// for a user.
	ErrTokenUse = errors.New("the token is of another use")
	// ErrTokenOtherZone means that a zone token is that of another zone.
	ErrTokenOtherZone = errors.New("the token is for another zone")
	// ErrTokenScope means that a zone token does not cover this.
	ErrTokenScope = errors.New("the token does not have the scope")
)

// Token is what a verified token says.
type Token struct {
	// ID is the `jti`, by which it can be revoked.
	ID string
	// Key is the `kid`; its use is the token's.
	Key                          KeyID
	IssuedAt, NotBefore, Expires time.Time

	// Name and Groups are a user's.
	Name   string
	Groups []string
	// Zone and Scope are a zone's.
	Zone  string
	Scope []string
}

// claims is the payload on the wire.
type claims struct {
	jwt.RegisteredClaims
	Name   string   `json:"name,omitempty"`
	Groups []string `json:"groups,omitempty"`
	Zone   string   `json:"zone,omitempty"`
	Scope  []string `json:"scope,omitempty"`
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

// User issues a token for a user of that name and groups. The group of the
// authenticated is not written in it; everyone who verifies adds it.
func (i *Issuer) User(name string, groups []string, validFor time.Duration) (string, Token, error) {
	if name == "" {
		return "", Token{}, errors.New("a user token needs a name")
	}
	return i.issue(UserToken, claims{Name: name, Groups: slices.Clone(groups)}, validFor)
}

// Zone issues a token for a zone.
func (i *Issuer) Zone(zone string, scope []string, validFor time.Duration) (string, Token, error) {
	if zone == "" || len(scope) == 0 {
		return "", Token{}, errors.New("a zone token needs a zone and a scope")
	}
	return i.issue(ZoneToken, claims{Zone: zone, Scope: slices.Clone(scope)}, validFor)
}

func (i *Issuer) issue(use Use, c claims, validFor time.Duration) (string, Token, error) {
	key, ok := i.keys[use]
	if !ok {
		return "", Token{}, fmt.Errorf("there is no key to sign a %s with", use)
	}
	if validFor < time.Second || validFor > MaxTokenValidity {
		return "", Token{}, fmt.Errorf("a token is valid for at least a second and at most %d days, not %s", MaxTokenValidity/(24*time.Hour), validFor)
	}
	now := i.now()
	c.RegisteredClaims = jwt.RegisteredClaims{
		ID:        rand.Text(),
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
	}
}
