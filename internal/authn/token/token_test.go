package token

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// noon is the moment that most tests take place at.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

func newKey(tb testing.TB, use Use, serial uint64) SigningKey {
	tb.Helper()
	key, err := GenerateSigningKey(KeyID{Use: use, Serial: serial})
	require.NoError(tb, err)
	return key
}

func publicHalves(keys ...SigningKey) []PublicKey {
	var out []PublicKey
	for _, key := range keys {
		out = append(out, key.Public())
	}
	return out
}

func segment(tb testing.TB, v any) string {
	tb.Helper()
	data, err := json.Marshal(v)
	require.NoError(tb, err)
	return base64.RawURLEncoding.EncodeToString(data)
}

// forge signs any header and payload with a key, as an attacker with some other
// tool could.
func forge(tb testing.TB, key SigningKey, header, payload map[string]any) string {
	tb.Helper()
	signed := segment(tb, header) + "." + segment(tb, payload)
	return signed + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key.private, []byte(signed)))
}

func TestTokensAreVerifiedAsIssued(t *testing.T) {
	user, zone := newKey(t, ForUser, 1), newKey(t, ForZone, 1)
	issuer := NewIssuer(at(noon), user, zone)
	verifier := NewVerifier(at(noon), publicHalves(user, zone)...)

	raw, issued, err := issuer.User("bob", []string{"team-a", "team-b"}, time.Hour)
	require.NoError(t, err)
	got, err := verifier.User(raw)
	require.NoError(t, err)
	require.Equal(t, issued, got)
	require.Equal(t, "bob", got.Name)
	require.Equal(t, []string{"team-a", "team-b"}, got.Groups)
	require.Equal(t, noon.Add(time.Hour), got.Expires)
	require.Equal(t, KeyID{Use: ForUser, Serial: 1}, got.Key)

	raw, issued, err = issuer.Zone("east", []string{ScopeControlPlane}, time.Hour)
	require.NoError(t, err)
	got, err = verifier.Zone(raw, "east", ScopeControlPlane)
	require.NoError(t, err)
	require.Equal(t, issued, got)

	other, _, err := issuer.Zone("east", []string{ScopeControlPlane}, time.Hour)
	require.NoError(t, err)
	require.NotEqual(t, raw, other, "every token has an id of its own")
}

// §6.8: keys rotate by serial number, highest signs, all verify.
func TestTheHighestSerialSignsAndAllVerify(t *testing.T) {
	first, second := newKey(t, ForUser, 9), newKey(t, ForUser, 10)
	old, _, err := NewIssuer(at(noon), first).User("bob", nil, time.Hour)
	require.NoError(t, err)
	fresh, issued, err := NewIssuer(at(noon), second, first).User("bob", nil, time.Hour)
	require.NoError(t, err)
	require.Equal(t, uint64(10), issued.Key.Serial)

	verifier := NewVerifier(at(noon), publicHalves(first, second)...)
	for _, raw := range []string{old, fresh} {
		_, err := verifier.User(raw)
		require.NoError(t, err)
	}
	_, err = NewVerifier(at(noon), second.Public()).User(old)
	require.ErrorIs(t, err, ErrUnknownKey)
}

// §6.8: every reason to refuse a token has an error of its own.
func TestRefusedTokens(t *testing.T) {
	key, zoneKey, foreign := newKey(t, ForUser, 1), newKey(t, ForZone, 1), newKey(t, ForUser, 1)
	header := map[string]any{"alg": "EdDSA", "typ": "JWT", "kid": "user-token-signing-key-1"}
	payload := map[string]any{
		"jti": "id-1", "name": "bob",
		"iat": noon.Unix(), "nbf": noon.Unix(), "exp": noon.Add(time.Hour).Unix(),
	}
	with := func(m map[string]any, key string, value any) map[string]any {
		out := maps.Clone(m)
		if value == nil {
			delete(out, key)
		} else {
			out[key] = value
		}
		return out
	}
	signed := func(header, payload map[string]any) string { return forge(t, key, header, payload) }
	good := signed(header, payload)
	goodParts := strings.Split(good, ".")
	unsigned := segment(t, with(header, "alg", "none")) + "." + goodParts[1] + "."
	confused := segment(t, with(header, "alg", "HS256")) + "." + goodParts[1]
	public, err := key.Public().PKIX()
	require.NoError(t, err)
	mac := hmac.New(sha256.New, public)
	mac.Write([]byte(confused))
	confused += "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	zoneHeader := with(header, "kid", "zone-token-signing-key-1")

	for name, tc := range map[string]struct {
		token   string
		want    error
		message string
	}{
		"empty":               {"", ErrMalformed, "the token is malformed"},
		"not a token":         {"hunter2", ErrMalformed, "the token is malformed"},
		"truncated":           {good[:len(good)-42], ErrSignature, "the token's signature does not verify"},
		"two segments":        {goodParts[0] + "." + goodParts[1], ErrMalformed, "the token is malformed"},
		"huge":                {strings.Repeat("a", maxTokenBytes+1), ErrMalformed, "the token is malformed: it has 16385 bytes"},
		"padded base64":       {good + "==", ErrMalformed, "the token is malformed"},
		"no algorithm":        {unsigned, ErrAlgorithm, `the token is not signed with EdDSA but with "none"`},
		"algorithm confusion": {confused, ErrAlgorithm, `the token is not signed with EdDSA but with "HS256"`},
		"unheard-of algorithm": {
			signed(with(header, "alg", "XS1"), payload), ErrAlgorithm, "the token is not signed with EdDSA",
		},
		"missing alg": {signed(with(header, "alg", nil), payload), ErrAlgorithm, "the token is not signed with EdDSA"},
		"missing kid": {signed(with(header, "kid", nil), payload), ErrNoKeyID, "the token names no signing key (kid)"},
		"kid not text": {
			signed(with(header, "kid", 1), payload), ErrNoKeyID, "the token names no signing key (kid)",
		},
		"unknown kid": {
			signed(with(header, "kid", "user-token-signing-key-7"), payload), ErrUnknownKey,
			`the token's signing key is not known here: "user-token-signing-key-7"`,
		},
		"other key of that name": {forge(t, foreign, header, payload), ErrSignature, "the token's signature does not verify"},
		"key of another use":     {signed(zoneHeader, payload), ErrSignature, "the token's signature does not verify"},
		"altered payload": {
			goodParts[0] + "." + segment(t, with(payload, "name", "admin")) + "." + goodParts[2],
			ErrSignature, "the token's signature does not verify",
		},
		"missing jti":     {signed(header, with(payload, "jti", nil)), ErrClaim, "the token lacks a required claim: jti"},
		"missing iat":     {signed(header, with(payload, "iat", nil)), ErrClaim, "the token lacks a required claim: iat"},
		"missing nbf":     {signed(header, with(payload, "nbf", nil)), ErrClaim, "the token lacks a required claim: nbf"},
		"missing exp":     {signed(header, with(payload, "exp", nil)), ErrClaim, "the token lacks a required claim: exp"},
		"missing name":    {signed(header, with(payload, "name", nil)), ErrClaim, "the token lacks a required claim: name"},
		"exp of no shape": {signed(header, with(payload, "exp", "soon")), ErrMalformed, "the token is malformed"},
		"expired": {
			signed(header, with(payload, "exp", noon.Unix())), ErrExpired, "the token has expired on 2026-03-01T12:00:00Z",
		},
		"not yet valid": {
			signed(header, with(payload, "nbf", noon.Add(time.Second).Unix())), ErrNotYetValid,
			"the token is not valid yet: it will be on 2026-03-01T12:00:01Z",
		},
		"issued in the future": {
			signed(header, with(payload, "iat", noon.Add(time.Hour).Unix())), ErrNotYetValid,
			"the token is not valid yet: it was issued on 2026-03-01T13:00:00Z",
		},
		"zone token for a user": {
			forge(t, zoneKey, zoneHeader, map[string]any{
				"jti": "id-2", "zone": "east", "scope": []string{"cp"},
				"iat": noon.Unix(), "nbf": noon.Unix(), "exp": noon.Add(time.Hour).Unix(),
			}),
			ErrUse, "the token is of another use: a zone-token where a user-token is wanted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewVerifier(at(noon), publicHalves(key, zoneKey)...).User(tc.token)
			require.ErrorIs(t, err, tc.want)
			require.EqualError(t, err, tc.message)
		})
	}

	_, err = NewVerifier(at(noon), key.Public()).User(good)
	require.NoError(t, err, "the token that all the others were made from")
}

// §7.7: a zone connects with a token that names it.
func TestZoneTokensOpenTheirOwnZone(t *testing.T) {
	key, userKey := newKey(t, ForZone, 1), newKey(t, ForUser, 1)
	issuer := NewIssuer(at(noon), key, userKey)
	verifier := NewVerifier(at(noon), publicHalves(key, userKey)...)
	raw, _, err := issuer.Zone("east", []string{ScopeIngress}, time.Hour)
	require.NoError(t, err)

	_, err = verifier.Zone(raw, "west", ScopeIngress)
	require.ErrorIs(t, err, ErrOtherZone)
	require.EqualError(t, err, `the token is for another zone: it names "east", not "west"`)
	_, err = verifier.Zone(raw, "east", ScopeControlPlane)
	require.ErrorIs(t, err, ErrScope)
	require.EqualError(t, err, `the token does not have the scope "cp": it has ["ingress"]`)

	user, _, err := issuer.User("east", nil, time.Hour)
	require.NoError(t, err)
	_, err = verifier.Zone(user, "east", ScopeControlPlane)
	require.ErrorIs(t, err, ErrUse)
}

func TestIssuerRefuses(t *testing.T) {
	issuer := NewIssuer(at(noon), newKey(t, ForUser, 1))
	for name, validFor := range map[string]time.Duration{"nothing": 0, "the past": -time.Hour, "for ever": MaxValidity + 1} {
		_, _, err := issuer.User("bob", nil, validFor)
		require.ErrorContains(t, err, "a token is valid for", name)
	}
	_, _, err := issuer.User("", nil, time.Hour)
	require.EqualError(t, err, "a user token needs a name")
	_, _, err = issuer.Zone("east", nil, time.Hour)
	require.EqualError(t, err, "a zone token needs a zone and a scope")
	_, _, err = issuer.Zone("east", []string{ScopeControlPlane}, time.Hour)
	require.EqualError(t, err, "there is no key to sign a zone-token with")
}

func FuzzVerify(f *testing.F) {
	key, err := GenerateSigningKey(KeyID{Use: ForUser, Serial: 1})
	require.NoError(f, err)
	good, _, err := NewIssuer(at(noon), key).User("bob", []string{"team"}, time.Hour)
	require.NoError(f, err)
	f.Add(good)
	f.Add("..")
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Add(forge(f, key, map[string]any{"alg": "EdDSA", "kid": "user-token-signing-key-1"}, map[string]any{}))
	verifier := NewVerifier(at(noon), key.Public())
	f.Fuzz(func(t *testing.T, raw string) {
		if _, err := verifier.Verify(raw); err == nil {
			require.Equal(t, good, raw, "accepted a token that was never issued")
		}
	})
}
