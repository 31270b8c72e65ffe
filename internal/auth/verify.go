package auth

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Verifier tells good tokens from bad ones. It is immutable and safe for
// concurrent use; a rotation of keys makes a new one.
type Verifier struct {
	now    func() time.Time
	keys   map[string]PublicKey
	parser *jwt.Parser
}

// NewVerifier returns a verifier with a clock and the keys it knows.
func NewVerifier(now func() time.Time, keys ...PublicKey) *Verifier {
	v := &Verifier{
		now:  now,
		keys: make(map[string]PublicKey, len(keys)),
		// The claims are checked below, each with an error of its own.
		parser: jwt.NewParser(jwt.WithoutClaimsValidation(), jwt.WithStrictDecoding()),
	}
	for _, key := range keys {
		v.keys[key.id.String()] = key
	}
	return v
}

// Verify returns what a token of any use says, or the first reason to refuse
// it: one of the ErrToken errors.
func (v *Verifier) Verify(token string) (Token, error) {
	if len(token) > maxTokenBytes {
		return Token{}, fmt.Errorf("%w: it has %d bytes", ErrTokenMalformed, len(token))
	}
	var (
		c       claims
		key     PublicKey
		refused error
	)
	_, err := v.parser.ParseWithClaims(token, &c, func(t *jwt.Token) (any, error) {
		key, refused = v.keyOf(t)
		return key.key, refused
	})
	switch {
	case refused != nil:
		return Token{}, refused
	case err != nil:
		return Token{}, refusal(err)
	}
	if err := v.check(&c, key.id.Use); err != nil {
		return Token{}, err
	}
	return c.token(key.id), nil
}

// User verifies a user's token.
func (v *Verifier) User(token string) (Token, error) { return v.use(token, UserToken) }

// Zone verifies the token of a zone: its own, and of a scope that lets it do
// what it is about to do.
func (v *Verifier) Zone(token, zone, scope string) (Token, error) {
	t, err := v.use(token, ZoneToken)
	if err != nil {
		return Token{}, err
	}
	return t, t.CheckZone(zone, scope)
}

// CheckZone refuses a verified zone token that is not for the zone or lacks the
// scope.
func (t Token) CheckZone(zone, scope string) error {
	switch {
	case t.Key.Use != ZoneToken:
		return fmt.Errorf("%w: a %s where a %s is wanted", ErrTokenUse, t.Key.Use, ZoneToken)
	case t.Zone != zone:
		return fmt.Errorf("%w: it names %q, not %q", ErrTokenOtherZone, t.Zone, zone)
	case !slices.Contains(t.Scope, scope):
		return fmt.Errorf("%w %q: it has %q", ErrTokenScope, scope, t.Scope)
	}
	return nil
}

func (v *Verifier) use(token string, use Use) (Token, error) {
	t, err := v.Verify(token)
	if err != nil {
		return Token{}, err
	}
	if t.Key.Use != use {
		return Token{}, fmt.Errorf("%w: a %s where a %s is wanted", ErrTokenUse, t.Key.Use, use)
	}
	return t, nil
}

// keyOf picks the key by the token's `kid`, after its algorithm was found to be
// the only one there is.
func (v *Verifier) keyOf(t *jwt.Token) (PublicKey, error) {
	if t.Method.Alg() != algorithm {
		return PublicKey{}, fmt.Errorf("%w but with %q", ErrTokenAlgorithm, t.Method.Alg())
	}
	kid, _ := t.Header["kid"].(string)
	if kid == "" {
		return PublicKey{}, ErrTokenNoKeyID
	}
	key, ok := v.keys[kid]
	if !ok {
		return PublicKey{}, fmt.Errorf("%w: %.64q", ErrTokenUnknownKey, kid)
	}
	return key, nil
}

// check looks at the claims of a token whose signature holds.
func (v *Verifier) check(c *claims, use Use) error {
	for _, required := range []struct {
		claim   string
		missing bool
	}{
		{"jti", c.ID == ""},
		{"iat", c.IssuedAt == nil},
		{"nbf", c.NotBefore == nil},
		{"exp", c.ExpiresAt == nil},
		{"name", use == UserToken && c.Name == ""},
		{"zone", use == ZoneToken && c.Zone == ""},
		{"scope", use == ZoneToken && len(c.Scope) == 0},
	} {
		if required.missing {
			return fmt.Errorf("%w: %s", ErrTokenClaim, required.claim)
		}
	}
	now := v.now()
	switch {
	case !now.Before(c.ExpiresAt.Time):
		return fmt.Errorf("%w on %s", ErrTokenExpired, c.ExpiresAt.UTC().Format(time.RFC3339))
	case now.Before(c.NotBefore.Time):
		return fmt.Errorf("%w: it will be on %s", ErrTokenNotYetValid, c.NotBefore.UTC().Format(time.RFC3339))
	case now.Add(tokenSkew).Before(c.IssuedAt.Time):
		return fmt.Errorf("%w: it was issued on %s", ErrTokenNotYetValid, c.IssuedAt.UTC().Format(time.RFC3339))
	}
	return nil
}

// refusal translates what the parser found into the errors of this package.
func refusal(err error) error {
	switch {
	case errors.Is(err, jwt.ErrTokenMalformed):
		return ErrTokenMalformed
	case errors.Is(err, jwt.ErrTokenSignatureInvalid):
		return ErrTokenSignature
	case errors.Is(err, jwt.ErrTokenUnverifiable):
		// An algorithm that the library has not heard of.
		return ErrTokenAlgorithm
	}
	return fmt.Errorf("%w: %w", ErrTokenMalformed, err)
}
