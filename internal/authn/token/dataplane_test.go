package token

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// §6.8: what a dataplane token lets register.
func TestDataplaneTokens(t *testing.T) {
	key := newKey(t, ForDataplane, 1)
	issuer, verifier := NewIssuer(at(noon), key), NewVerifier(at(noon), key.Public())
	tags := map[string][]string{"kuma.io/service": {"web", "web-admin"}, "team": {"a"}}
	raw, issued, err := issuer.Dataplane("default", "web-1", tags, time.Hour)
	require.NoError(t, err)
	require.Equal(t, "default/web-1", issued.Subject())
	anyName, _, err := issuer.Dataplane("default", "", tags, time.Hour)
	require.NoError(t, err)

	web := map[string]string{"kuma.io/service": "web", "team": "a", "other": "free"}
	webAdmin := map[string]string{"kuma.io/service": "web-admin"}
	for name, tc := range map[string]struct {
		token, mesh, name string
		sets              []map[string]string
		want              error
		message           string
	}{
		"as it says":                 {raw, "default", "web-1", []map[string]string{web}, nil, ""},
		"two inbounds":               {raw, "default", "web-1", []map[string]string{web, webAdmin}, nil, ""},
		"any name":                   {anyName, "default", "web-7", []map[string]string{web}, nil, ""},
		"other mesh":                 {raw, "demo", "web-1", []map[string]string{web}, ErrOtherMesh, `the token is for another mesh: it names "default", not "demo"`},
		"other name":                 {raw, "default", "web-2", []map[string]string{web}, ErrOtherDataplane, `the token is for another dataplane: it names "web-1", not "web-2"`},
		"tag on no inbound":          {raw, "default", "web-1", []map[string]string{webAdmin}, ErrTags, `the token does not cover the dataplane's tags: the dataplane has no tag team, and the token wants ["a"]`},
		"no inbound at all":          {raw, "default", "web-1", nil, ErrTags, `the token does not cover the dataplane's tags: the dataplane has no tag kuma.io/service, and the token wants ["web" "web-admin"]`},
		"one inbound of another one": {raw, "default", "web-1", []map[string]string{web, {"kuma.io/service": "billing"}}, ErrTags, `the token does not cover the dataplane's tags: kuma.io/service is "billing", and the token allows ["web" "web-admin"]`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := verifier.Dataplane(tc.token, tc.mesh, tc.name, tc.sets...)
			if tc.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, tc.want)
			require.EqualError(t, err, tc.message)
		})
	}

	userKey := newKey(t, ForUser, 1)
	user, _, err := NewIssuer(at(noon), userKey).User("web-1", nil, time.Hour)
	require.NoError(t, err)
	_, err = NewVerifier(at(noon), userKey.Public()).Dataplane(user, "default", "web-1", web)
	require.ErrorIs(t, err, ErrUse)
	_, err = verifier.User(raw)
	require.ErrorIs(t, err, ErrUse)
}

func TestDataplaneTokensThatAreForged(t *testing.T) {
	key := newKey(t, ForDataplane, 1)
	header := map[string]any{"alg": "EdDSA", "typ": "JWT", "kid": "dataplane-token-signing-key-1"}
	payload := map[string]any{
		"jti": "id-1", "mesh": "default", "type": "dataplane", "tags": map[string]any{"kuma.io/service": []string{"web"}},
		"iat": noon.Unix(), "nbf": noon.Unix(), "exp": noon.Add(time.Hour).Unix(),
	}
	with := func(claim string, value any) map[string]any {
		out := maps.Clone(payload)
		if out[claim] = value; value == nil {
			delete(out, claim)
		}
		return out
	}
	web := map[string]string{"kuma.io/service": "web"}
	verifier := NewVerifier(at(noon), key.Public())
	_, err := verifier.Dataplane(forge(t, key, header, payload), "default", "web-1", web)
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		payload map[string]any
		message string
	}{
		"no mesh":        {with("mesh", nil), "the token lacks a required claim: mesh"},
		"no type":        {with("type", nil), "the token lacks a required claim: type"},
		"other type":     {with("type", "ingress"), `the token is for a proxy of another type: "ingress", not "dataplane"`},
		"tags of no use": {with("tags", "web"), "the token is malformed"},
		"no jti":         {with("jti", nil), "the token lacks a required claim: jti"},
		"no exp":         {with("exp", nil), "the token lacks a required claim: exp"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := verifier.Dataplane(forge(t, key, header, tc.payload), "default", "web-1", web)
			require.EqualError(t, err, tc.message)
		})
	}
}

func TestDataplaneTokenNeedsMeshAndValues(t *testing.T) {
	issuer := NewIssuer(at(noon), newKey(t, ForDataplane, 1))
	_, _, err := issuer.Dataplane("", "web-1", nil, time.Hour)
	require.EqualError(t, err, "a dataplane token needs a mesh")
	for _, tags := range []map[string][]string{{"team": nil}, {"team": {""}}} {
		_, _, err = issuer.Dataplane("default", "", tags, time.Hour)
		require.EqualError(t, err, `a dataplane token needs a value for tag "team"`)
	}
}

// A key says whose it is, so that a token of one zone is not even looked at by
// another.
func TestTokensOfAnotherZoneNameAnUnknownKey(t *testing.T) {
	east, err := GenerateSigningKey(KeyID{Use: ForDataplane, Serial: 1, Issuer: "east.eu"})
	require.NoError(t, err)
	require.Equal(t, "dataplane-token-signing-key-1.east.eu", east.ID().String())
	id, err := ParseKeyID(east.ID().String())
	require.NoError(t, err)
	require.Equal(t, east.ID(), id)
	west, err := GenerateSigningKey(KeyID{Use: ForDataplane, Serial: 1, Issuer: "west"})
	require.NoError(t, err)
	raw, _, err := NewIssuer(at(noon), east).Dataplane("default", "web-1", nil, time.Hour)
	require.NoError(t, err)
	_, err = NewVerifier(at(noon), west.Public()).Dataplane(raw, "default", "web-1")
	require.EqualError(t, err, `the token's signing key is not known here: "dataplane-token-signing-key-1.east.eu"`)
}

// §6.8: a token that was revoked is refused, also one whose signature
// is remembered.
func TestRevokedTokens(t *testing.T) {
	key := newKey(t, ForUser, 1)
	revoked := map[string]bool{}
	verifier := NewVerifier(at(noon), key.Public()).Revoking(func(use Use, id string) bool {
		return use == ForUser && revoked[id]
	})
	raw, token, err := NewIssuer(at(noon), key).User("bob", nil, time.Hour)
	require.NoError(t, err)
	for range 2 {
		_, err = verifier.User(raw)
		require.NoError(t, err)
		require.NoError(t, verifier.Recheck(token))
	}
	revoked[token.ID] = true
	_, err = verifier.User(raw)
	require.ErrorIs(t, err, ErrRevoked)
	require.ErrorIs(t, verifier.Recheck(token), ErrRevoked)
	require.ErrorIs(t, NewVerifier(at(noon)).Recheck(token), ErrUnknownKey)
}

// A token whose signature is remembered still expires, and is then forgotten.
func TestRememberedTokensExpire(t *testing.T) {
	key, clock := newKey(t, ForUser, 1), noon
	verifier := NewVerifier(func() time.Time { return clock }, key.Public())
	raw, _, err := NewIssuer(at(noon), key).User("bob", nil, time.Hour)
	require.NoError(t, err)
	_, err = verifier.User(raw)
	require.NoError(t, err)
	require.Equal(t, 1, verifier.seen.len())
	_, err = verifier.User(raw[:len(raw)-1] + strings.Map(func(r rune) rune { return r ^ 1 }, raw[len(raw)-1:]))
	require.Error(t, err, "what is remembered is the whole token")
	require.Equal(t, 1, verifier.seen.len(), "only genuine tokens are")
	clock = noon.Add(time.Hour)
	_, err = verifier.User(raw)
	require.ErrorIs(t, err, ErrExpired)
	require.Zero(t, verifier.seen.len())
}

func TestTokenCacheIsBounded(t *testing.T) {
	c := newTokenCache(4)
	kept := digestOf("kept")
	c.add(kept, Token{ID: "kept"})
	for i := range 100 {
		c.add(digestOf(strings.Repeat("x", i)), Token{})
		got, ok := c.get(kept)
		require.True(t, ok, "what is asked for stays")
		require.Equal(t, "kept", got.ID)
		require.LessOrEqual(t, c.len(), 8)
	}
	_, ok := c.get(digestOf(""))
	require.False(t, ok)
}

func FuzzVerifyDataplane(f *testing.F) {
	key := newKey(f, ForDataplane, 1)
	good, issued, err := NewIssuer(at(noon), key).Dataplane("default", "web-1", map[string][]string{"kuma.io/service": {"web"}}, time.Hour)
	require.NoError(f, err)
	f.Add(good, "default", "web-1", "web")
	f.Add(good, "demo", "web-1", "*")
	f.Add("..", "", "", "")
	f.Add(forge(f, key, map[string]any{"alg": "EdDSA", "kid": "dataplane-token-signing-key-1"}, map[string]any{"tags": []string{}}), "default", "", "web")
	verifier := NewVerifier(at(noon), key.Public())
	f.Fuzz(func(t *testing.T, raw, mesh, name, service string) {
		got, err := verifier.Dataplane(raw, mesh, name, map[string]string{"kuma.io/service": service})
		if err != nil {
			return
		}
		require.Equal(t, good, raw, "accepted a token that was never issued")
		require.Equal(t, issued, got)
		require.Equal(t, []string{"default", "web-1", "web"}, []string{mesh, name, service})
	})
}

func BenchmarkVerify(b *testing.B) {
	key := newKey(b, ForDataplane, 1)
	raw, _, err := NewIssuer(at(noon), key).Dataplane("default", "web-1", map[string][]string{"kuma.io/service": {"web"}}, time.Hour)
	require.NoError(b, err)
	b.Run("first", func(b *testing.B) {
		v := NewVerifier(at(noon), key.Public())
		for b.Loop() {
			if _, err := v.parse(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("remembered", func(b *testing.B) {
		v := NewVerifier(at(noon), key.Public())
		for b.Loop() {
			if _, err := v.Verify(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("remembered, parallel", func(b *testing.B) {
		v := NewVerifier(at(noon), key.Public())
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := v.Verify(raw); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}
