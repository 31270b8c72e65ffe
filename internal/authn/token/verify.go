package token

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Verifier verifies tokens. It is safe for concurrent use. Its keys never change: a
// rotation makes a new Verifier, with an empty cache of verified signatures.
type Verifier struct {
	now     func() time.Time
	keys    map[string]PublicKey
	parser  *jwt.Parser
	revoked func(Use, string) bool
	seen    *tokenCache
}

// NewVerifier returns a verifier with a clock and the keys it knows.
func NewVerifier(now func() time.Time, keys ...PublicKey) *Verifier {
	v := &Verifier{
		now:  now,
		keys: make(map[string]PublicKey, len(keys)),
		// The claims are checked below, each with an error of its own.
		parser:  jwt.NewParser(jwt.WithoutClaimsValidation(), jwt.WithStrictDecoding()),
		revoked: func(Use, string) bool { return false },
		seen:    newTokenCache(cachedTokens),
	}
	for _, key := range keys {
		v.keys[key.id.String()] = key
	}
	return v
}

// Revoking returns a verifier with the same keys that also asks, every time,
// whether a token was revoked. revoked must be safe for concurrent use.
func (v *Verifier) Revoking(revoked func(use Use, id string) bool) *Verifier {
	out := *v
	out.revoked, out.seen = revoked, newTokenCache(cachedTokens)
	return &out
}

// Verify returns what a token of any use says, or the first reason to refuse
// it: one of the errors of this package, in a LapsedError where the token is only not
// valid at this time. A verified signature is cached; validity times and revocation
// are checked every time. The result is shared and must not be modified.
func (v *Verifier) Verify(token string) (Token, error) {
	if len(token) > maxTokenBytes {
		return Token{}, fmt.Errorf("%w: it has %d bytes", ErrMalformed, len(token))
	}
	digest := digestOf(token)
	t, known := v.seen.get(digest)
	if !known {
		var err error
		if t, err = v.parse(token); err != nil {
			return Token{}, err
		}
	}
	if err := v.current(t); err != nil {
		v.seen.drop(digest)
		return Token{}, err
	}
	if !known {
		v.seen.add(digest, t)
	}
	return t, nil
}

// Revoked reports whether a token was revoked.
func (v *Verifier) Revoked(use Use, id string) bool { return v.revoked(use, id) }

// TimeLeft returns how long it is until a token expires, by the clock of the
// verifier.
func (v *Verifier) TimeLeft(t Token) time.Duration { return t.Expires.Sub(v.now()) }

// Recheck verifies again that the key of a verified token is known, that it has
// not expired and that it was not revoked.
func (v *Verifier) Recheck(t Token) error {
	if _, ok := v.keys[t.Key.String()]; !ok {
		return fmt.Errorf("%w: %q", ErrUnknownKey, t.Key)
	}
	return v.current(t)
}

// parse verifies a token's signature and the claims that do not change with
// time.
func (v *Verifier) parse(token string) (Token, error) {
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
	if err := c.check(key.id.Use); err != nil {
		return Token{}, err
	}
	return c.token(key.id), nil
}

// User verifies a user's token.
func (v *Verifier) User(token string) (Token, error) { return v.use(token, ForUser) }

// Zone verifies the token of a zone with the scope of what the zone is about to
// do.
func (v *Verifier) Zone(token, zone, scope string) (Token, error) {
	t, err := v.use(token, ForZone)
	if err != nil {
		return Token{}, err
	}
	return t, t.CheckZone(zone, scope)
}

// CheckZone refuses a verified zone token that is not for the zone or lacks the
// scope.
func (t Token) CheckZone(zone, scope string) error {
	switch {
	case t.Key.Use != ForZone:
		return fmt.Errorf("%w: a %s where a %s is wanted", ErrUse, t.Key.Use, ForZone)
	case t.Zone != zone:
		return fmt.Errorf("%w: it names %q, not %q", ErrOtherZone, t.Zone, zone)
	case !slices.Contains(t.Scope, scope):
		return fmt.Errorf("%w %q: it has %q", ErrScope, scope, t.Scope)
	}
	return nil
}

// Dataplane verifies the token of a dataplane that wants to register with a
// name and its tags: those of each inbound, or of the gateway.
func (v *Verifier) Dataplane(token, mesh, name string, tags ...map[string]string) (Token, error) {
	t, err := v.use(token, ForDataplane)
	if err != nil {
		return Token{}, err
	}
	return t, t.CheckDataplane(mesh, name, tags...)
}

// CheckDataplane refuses a verified token that does not let a dataplane register
// (§6.8): mesh and name agree, each tag of the token is present on at
// least one of the sets, and every value of it anywhere is in the token's list.
func (t Token) CheckDataplane(mesh, name string, sets ...map[string]string) error {
	switch {
	case t.Key.Use != ForDataplane:
		return fmt.Errorf("%w: a %s where a %s is wanted", ErrUse, t.Key.Use, ForDataplane)
	case t.Type != TypeDataplane:
		return fmt.Errorf("%w: %q, not %q", ErrType, t.Type, TypeDataplane)
	case t.Mesh != mesh:
		return fmt.Errorf("%w: it names %q, not %q", ErrOtherMesh, t.Mesh, mesh)
	case t.Name != "" && t.Name != name:
		return fmt.Errorf("%w: it names %q, not %q", ErrOtherDataplane, t.Name, name)
	}
	for _, tag := range slices.Sorted(maps.Keys(t.Tags)) {
		present := false
		for _, set := range sets {
			value, ok := set[tag]
			present = present || ok
			if ok && !slices.Contains(t.Tags[tag], value) {
				return fmt.Errorf("%w: %s is %q, and the token allows %q", ErrTags, tag, value, t.Tags[tag])
			}
		}
		if !present {
			return fmt.Errorf("%w: the dataplane has no tag %s, and the token wants %q", ErrTags, tag, t.Tags[tag])
		}
	}
	return nil
}

func (v *Verifier) use(token string, use Use) (Token, error) {
	t, err := v.Verify(token)
	if err != nil {
		return Token{}, err
	}
	if t.Key.Use != use {
		return Token{}, fmt.Errorf("%w: a %s where a %s is wanted", ErrUse, t.Key.Use, use)
	}
	return t, nil
}

// keyOf picks the key by the token's `kid`, after its algorithm was found to be
// the only one there is.
func (v *Verifier) keyOf(t *jwt.Token) (PublicKey, error) {
	if t.Method.Alg() != algorithm {
		return PublicKey{}, fmt.Errorf("%w but with %q", ErrAlgorithm, t.Method.Alg())
	}
	kid, _ := t.Header["kid"].(string)
	if kid == "" {
		return PublicKey{}, ErrNoKeyID
	}
	key, ok := v.keys[kid]
	if !ok {
		return PublicKey{}, fmt.Errorf("%w: %.64q", ErrUnknownKey, kid)
	}
	return key, nil
}

// check requires the claims of a use.
func (c *claims) check(use Use) error {
	for _, required := range []struct {
		claim   string
		missing bool
	}{
		{"jti", c.ID == ""},
		{"iat", c.IssuedAt == nil},
		{"nbf", c.NotBefore == nil},
		{"exp", c.ExpiresAt == nil},
		{"name", use == ForUser && c.Name == ""},
		{"zone", use == ForZone && c.Zone == ""},
		{"scope", use == ForZone && len(c.Scope) == 0},
		{"mesh", use == ForDataplane && c.Mesh == ""},
		{"type", use == ForDataplane && c.Type == ""},
	} {
		if required.missing {
			return fmt.Errorf("%w: %s", ErrClaim, required.claim)
		}
	}
	return nil
}

// LapsedError refuses a token that was issued by a known key and is not valid now: it
// has expired, is not valid yet, or was revoked.
type LapsedError struct {
	// Token is what the token says. It proves nothing about who sends it.
	Token Token
	cause error
}

func (e *LapsedError) Error() string { return e.cause.Error() }

// Unwrap returns ErrExpired, ErrNotYetValid or ErrRevoked, with particulars.
func (e *LapsedError) Unwrap() error { return e.cause }

// current checks what changes with time: the clock and revocations.
func (v *Verifier) current(t Token) error {
	if cause := v.lapse(t); cause != nil {
		return &LapsedError{Token: t, cause: cause}
	}
	return nil
}

func (v *Verifier) lapse(t Token) error {
	now := v.now()
	switch {
	case !now.Before(t.Expires):
		return fmt.Errorf("%w on %s", ErrExpired, t.Expires.Format(time.RFC3339))
	case now.Before(t.NotBefore):
		return fmt.Errorf("%w: it will be on %s", ErrNotYetValid, t.NotBefore.Format(time.RFC3339))
	case now.Add(tokenSkew).Before(t.IssuedAt):
		return fmt.Errorf("%w: it was issued on %s", ErrNotYetValid, t.IssuedAt.Format(time.RFC3339))
	case v.revoked(t.Key.Use, t.ID):
		return fmt.Errorf("%w: %.64q", ErrRevoked, t.ID)
	}
	return nil
}

// refusal translates the errors of the parser into those of this package.
func refusal(err error) error {
	switch {
	case errors.Is(err, jwt.ErrTokenMalformed):
		return ErrMalformed
	case errors.Is(err, jwt.ErrTokenSignatureInvalid):
		return ErrSignature
	case errors.Is(err, jwt.ErrTokenUnverifiable):
		// An algorithm that the library does not support.
		return ErrAlgorithm
	}
	return fmt.Errorf("%w: %w", ErrMalformed, err)
}
