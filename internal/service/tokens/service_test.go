package tokens

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/commit/committest"
	"meridian/internal/grpctest"
	"meridian/internal/identity"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// fixture is a control plane's token service on a store.
type fixture struct {
	*Service
	t      *testing.T
	store  *store.Store
	writer *committest.Log
	ring   *token.Ring
	clock  time.Time
}

func newFixture(t *testing.T, change func(*token.RingConfig)) *fixture {
	t.Helper()
	return newFixtureOn(t, store.New(store.DefaultOptions()), change)
}

func newFixtureOn(t *testing.T, s *store.Store, change func(*token.RingConfig)) *fixture {
	t.Helper()
	f := &fixture{t: t, store: s, clock: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	f.writer = committest.New(f.store)
	now := func() time.Time { return f.clock }
	keys := token.RingConfig{Local: f.store.View, Now: now}
	if change != nil {
		change(&keys)
	}
	f.ring = token.NewRing(keys)
	uses := []token.Use{token.ForUser, token.ForDataplane, token.ForZone}
	rules := authz.Defaults{Restricted: true}
	require.NoError(t, rules.Ensure(t.Context(), f.store.View, f.writer, now))
	require.NoError(t, f.ring.Ensure(t.Context(), f.writer, uses...))
	f.put("Mesh", "default", "{}")
	f.Service = New(Config{
		Ring: f.ring, Writer: f.writer, Access: authz.New(f.store.View), Local: f.store.View,
		View: func() store.Reader { return f.store.View() }, Uses: uses, Now: now,
		Remembers: f.store.Remembers, Turns: turns.NewServer(),
	})
	return f
}

func (f *fixture) put(kind resource.Kind, name, spec string) {
	f.t.Helper()
	r := resourcetest.Build(f.t, kind, "", name, spec)
	result := f.store.Apply(f.store.Revision()+1, store.Txn{Time: f.clock, Ops: []store.Op{store.Put(r)}})
	require.NoError(f.t, result.Err)
}

// grant gives a user a role of one rule.
func (f *fixture) grant(user, rule string) {
	f.t.Helper()
	f.put("AccessRole", user, fmt.Sprintf(`{"rules": [%s]}`, rule))
	f.put("AccessRoleBinding", user, fmt.Sprintf(`{"subjects": [{"type": "User", "name": %q}], "roles": [%q]}`, user, user))
}

// as returns the context of a request by a user.
func as(t *testing.T, name string, groups ...string) context.Context {
	return authn.WithPrincipal(t.Context(), authn.UserPrincipal(name, groups))
}

func admin(t *testing.T) context.Context { return as(t, authn.AdminUser, authn.AdminGroup) }

func (f *fixture) verify(raw string) (token.Token, error) {
	f.t.Helper()
	return f.ring.Verifier().Verify(raw)
}

// collect is the stream of a list.
type collect = grpctest.Stream[meridianv1.ListTokensRequest, meridianv1.ListTokensResponse]

func (f *fixture) list(kind string) []*meridianv1.IssuedToken {
	f.t.Helper()
	stream := &collect{Ctx: as(f.t, "any-user")}
	require.NoError(f.t, f.ListTokens(&meridianv1.ListTokensRequest{Kind: kind}, stream))
	var all []*meridianv1.IssuedToken
	for _, m := range stream.Sent {
		all = append(all, m.GetTokens()...)
	}
	return all
}

const hour = int64(3600)

func TestIssuedTokensAreGoodAndListed(t *testing.T) {
	f := newFixture(t, nil)
	user, err := f.GenerateUserToken(admin(t), &meridianv1.GenerateUserTokenRequest{Name: "bob", Groups: []string{"team-a"}, ValidForSeconds: hour})
	require.NoError(t, err)
	got, err := f.verify(user.GetToken())
	require.NoError(t, err)
	require.Equal(t, "bob", got.Name)
	require.Equal(t, []string{"team-a"}, got.Groups)
	require.Equal(t, user.GetId(), got.ID)

	f.clock = f.clock.Add(time.Second)
	dataplane, err := f.GenerateDataplaneToken(admin(t), &meridianv1.GenerateDataplaneTokenRequest{
		Mesh: "default", Name: "web-1", ValidForSeconds: 2 * hour,
		Tags: []*meridianv1.TokenTagValues{{Name: "kuma.io/service", Values: []string{"web"}}, {Name: "kuma.io/service", Values: []string{"api", "web"}}},
	})
	require.NoError(t, err)
	got, err = f.verify(dataplane.GetToken())
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"kuma.io/service": {"web", "api"}}, got.Tags)

	f.clock = f.clock.Add(time.Second)
	zone := resourcetest.Build(t, "Zone", "", "east", "{}")
	raw, err := f.Zone(admin(t), zone, nil, hour)
	require.NoError(t, err)
	got, err = f.verify(raw)
	require.NoError(t, err)
	require.NoError(t, got.CheckZone("east", token.ScopeControlPlane))
	_, ok := f.store.View().Get(zone.Key())
	require.True(t, ok, "the zone is created with its first token")

	all := f.list("")
	require.Len(t, all, 4, "the bootstrap admin token is one of them")
	require.Equal(t, []string{"zone-token east active", "dataplane-token default/web-1 active", "user-token bob active", "user-token admin active"}, summaries(all))
	require.Equal(t, "admin", all[2].GetIssuer())
	require.Empty(t, all[3].GetIssuer(), "the server's own")
	require.Equal(t, uint64(1), all[1].GetKeySerial())
	require.Equal(t, f.clock.Add(-time.Second).Add(2*time.Hour), all[1].GetExpires().AsTime())
	for _, token := range all {
		require.NotContains(t, user.GetToken()+dataplane.GetToken(), token.String())
	}

	f.clock = f.clock.Add(90 * time.Minute)
	require.Equal(t, []string{"user-token bob expired", "user-token admin active"}, summaries(f.list("user-token")))
}

func summaries(all []*meridianv1.IssuedToken) []string {
	out := make([]string, len(all))
	for i, token := range all {
		out[i] = token.GetKind() + " " + token.GetSubject() + " " + token.GetState()
	}
	return out
}

// §6.8: which key signs, which only verify, and what deleting one would end, without
// any key.
func TestKeysAreListedWithoutKeys(t *testing.T) {
	f := newFixture(t, nil)
	for range 2 {
		_, err := f.GenerateUserToken(admin(t), &meridianv1.GenerateUserTokenRequest{Name: "bob", ValidForSeconds: hour})
		require.NoError(t, err)
	}
	_, err := f.RotateKey(admin(t), &meridianv1.RotateKeyRequest{Kind: "user-token", RequestId: "r1"})
	require.NoError(t, err)
	_, err = f.GenerateUserToken(admin(t), &meridianv1.GenerateUserTokenRequest{Name: "eve", ValidForSeconds: 2 * hour})
	require.NoError(t, err)

	list := func(kind string) (lines []string) {
		response, err := f.ListKeys(as(t, "bob"), &meridianv1.ListKeysRequest{Kind: kind})
		require.NoError(t, err)
		for _, k := range response.GetKeys() {
			require.Equal(t, fmt.Sprintf("%s-signing-key-%d", k.GetKind(), k.GetSerial()), k.GetId())
			require.False(t, k.GetCreated().AsTime().IsZero())
			lines = append(lines, fmt.Sprintf("%s %s %d", k.GetId(), k.GetState(), k.GetTokens()))
		}
		for secret := range f.store.View().List(resource.KindGlobalSecret, "") {
			require.NotContains(t, response.String(), string(secret.Spec().(*resource.Secret).Bytes()))
			require.NotContains(t, response.String(), secret.Spec().(*resource.Secret).Data)
		}
		return lines
	}
	require.Equal(t, []string{"user-token-signing-key-1 retired 3", "user-token-signing-key-2 active 1"}, list("user-token"), "the admin token is one of them")
	require.Greater(t, len(list("")), 2)

	f.clock = f.clock.Add(90 * time.Minute)
	require.Equal(t, []string{"user-token-signing-key-1 retired 1", "user-token-signing-key-2 active 1"}, list("user-token"))
	_, err = f.ListKeys(admin(t), &meridianv1.ListKeysRequest{Kind: "nonsense"})
	require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err))
}

// §6.8: a token is revoked by its id; the revocation is a resource.
func TestRevoke(t *testing.T) {
	f := newFixture(t, nil)
	user, err := f.GenerateUserToken(admin(t), &meridianv1.GenerateUserTokenRequest{Name: "bob", ValidForSeconds: hour})
	require.NoError(t, err)
	_, err = f.verify(user.GetToken())
	require.NoError(t, err)

	_, err = f.RevokeToken(as(t, "bob"), &meridianv1.RevokeTokenRequest{Id: user.GetId(), RequestId: "r0"})
	require.Equal(t, rpcerr.Denied, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, `Access Denied (user "bob/mesh-system:authenticated" cannot access the resource)`)

	r, err := f.RevokeToken(admin(t), &meridianv1.RevokeTokenRequest{Id: strings.ToUpper(user.GetId()), Reason: "lost", RequestId: "r1"})
	require.NoError(t, err)
	require.Equal(t, "bob", r.GetToken().GetSubject())
	require.False(t, r.GetAlreadyRevoked())
	_, err = f.verify(user.GetToken())
	require.ErrorIs(t, err, token.ErrRevoked)
	stored, ok := f.store.View().Get(resource.Key{Kind: "TokenRevocation", Name: user.GetId()})
	require.True(t, ok)
	require.Equal(t, "lost", stored.Spec().(*resource.TokenRevocation).Reason)
	require.Contains(t, summaries(f.list("user-token")), "user-token bob revoked")

	revision := f.store.Revision()
	r, err = f.RevokeToken(admin(t), &meridianv1.RevokeTokenRequest{Id: user.GetId(), RequestId: "r2"})
	require.NoError(t, err)
	require.True(t, r.GetAlreadyRevoked())
	require.Equal(t, revision, f.store.Revision())

	_, err = f.RevokeToken(admin(t), &meridianv1.RevokeTokenRequest{Id: "nope", RequestId: "r3"})
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, `no token with the id "nope" was issued here`)
}

// Who revokes a token of dataplanes hears that servers accept certificates of others.
func TestRevokeTellsOfCertificatesThatAreAccepted(t *testing.T) {
	f := newFixture(t, nil)
	issue := func(mesh string) string {
		issued, err := f.GenerateDataplaneToken(admin(t), &meridianv1.GenerateDataplaneTokenRequest{Mesh: mesh, Name: "web-1", ValidForSeconds: 2 * hour})
		require.NoError(t, err)
		return issued.GetId()
	}
	f.put("Mesh", "other", "{}")
	first, second, elsewhere := issue("default"), issue("default"), issue("other")
	for i := range identity.MaxDenied {
		spec := fmt.Appendf(nil, `{"use":"dataplane-token","id":"t%d"}`, i)
		r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindTokenRevocation, Name: fmt.Sprint("t", i)}, Labels: map[string]string{resource.TokenMeshLabel: "default"}}, spec)
		require.NoError(t, err)
		require.NoError(t, f.store.Apply(f.store.Revision()+1, store.Txn{Time: f.clock, Ops: []store.Op{store.Put(r)}}).Err)
	}
	for i, c := range []struct {
		id   string
		left uint64
	}{{first, 1}, {second, 2}, {second, 2}, {elsewhere, 0}} {
		f.clock = f.clock.Add(time.Second)
		r, err := f.RevokeToken(admin(t), &meridianv1.RevokeTokenRequest{Id: c.id, RequestId: fmt.Sprint("r", i)})
		require.NoError(t, err)
		require.Equal(t, c.left, r.GetAccepted())
		require.EqualValues(t, identity.MaxDenied, r.GetDeniedAtMost())
	}
}

// A zone of a global marks its own record instead (§1.3).
func TestRevokeInAZoneOfAGlobal(t *testing.T) {
	global := store.New(store.DefaultOptions())
	f := newFixture(t, func(c *token.RingConfig) { c.Zone, c.Global = "east", global.View })
	user, err := f.GenerateUserToken(admin(t), &meridianv1.GenerateUserTokenRequest{Name: "bob", ValidForSeconds: hour})
	require.NoError(t, err)
	_, err = f.RevokeToken(admin(t), &meridianv1.RevokeTokenRequest{Id: user.GetId(), RequestId: "r1"})
	require.NoError(t, err)
	_, err = f.verify(user.GetToken())
	require.ErrorIs(t, err, token.ErrRevoked)
	require.Zero(t, f.store.View().Count("TokenRevocation"))
}

// §6.8: the highest serial signs, all verify.
func TestRotate(t *testing.T) {
	f := newFixture(t, nil)
	old, err := f.GenerateUserToken(admin(t), &meridianv1.GenerateUserTokenRequest{Name: "bob", ValidForSeconds: hour})
	require.NoError(t, err)
	_, err = f.RotateKey(as(t, "bob"), &meridianv1.RotateKeyRequest{Kind: "user-token", RequestId: "r0"})
	require.Equal(t, rpcerr.Denied, rpcerr.CodeOf(err))
	r, err := f.RotateKey(admin(t), &meridianv1.RotateKeyRequest{Kind: "user-token", RequestId: "r1"})
	require.NoError(t, err)
	require.Equal(t, "user-token-signing-key-2", r.GetKey())
	again, err := f.RotateKey(admin(t), &meridianv1.RotateKeyRequest{Kind: "user-token", RequestId: "r1"})
	require.NoError(t, err)
	require.Equal(t, r.GetKey(), again.GetKey(), "a retry makes no other key")
	fresh, err := f.GenerateUserToken(admin(t), &meridianv1.GenerateUserTokenRequest{Name: "bob", ValidForSeconds: hour})
	require.NoError(t, err)
	for raw, serial := range map[string]uint64{old.GetToken(): 1, fresh.GetToken(): 2} {
		token, err := f.verify(raw)
		require.NoError(t, err)
		require.Equal(t, serial, token.Key.Serial)
	}
	_, err = f.RotateKey(admin(t), &meridianv1.RotateKeyRequest{Kind: "zone", RequestId: "r2"})
	require.EqualError(t, err, `this control plane issues no "zone"; it issues user-token, dataplane-token, zone-token`)
	_, err = f.RotateKey(admin(t), &meridianv1.RotateKeyRequest{Kind: "user-token"})
	require.ErrorContains(t, err, "request_id is required")
}

// §6.2: what each token takes.
// A token whose key was deleted is refused, and the list says why. The next key has
// another number, so that the token is not taken for one of that key.
func TestTokensOfADeletedKeyAreListedAsSuch(t *testing.T) {
	for _, zone := range []string{"", "east"} {
		t.Run("of "+zone, func(t *testing.T) {
			f := newFixture(t, func(c *token.RingConfig) { c.Zone = zone })
			remove := func(kind resource.Kind, name string) {
				txn := store.Txn{Time: f.clock, Ops: []store.Op{store.Delete(resource.Key{Kind: kind, Name: name})}}
				require.NoError(t, f.store.Apply(f.store.Revision()+1, txn).Err)
			}
			key := token.KeyID{Use: token.ForDataplane, Serial: 1, Issuer: zone}.String()
			issue := func(name string) *meridianv1.GenerateDataplaneTokenResponse {
				f.clock = f.clock.Add(time.Second)
				issued, err := f.GenerateDataplaneToken(admin(t), &meridianv1.GenerateDataplaneTokenRequest{Mesh: "default", Name: name, ValidForSeconds: hour})
				require.NoError(t, err)
				return issued
			}
			old, revoked := issue("old"), issue("revoked")
			_, err := f.RevokeToken(admin(t), &meridianv1.RevokeTokenRequest{Id: revoked.GetId(), RequestId: "r1"})
			require.NoError(t, err)

			remove(resource.KindGlobalSecret, key)
			if zone == "" {
				require.Contains(t, summaries(f.list("dataplane-token")), "dataplane-token default/old active", "zones verify it with the public key")
				remove(resource.KindSigningKey, key)
			}
			_, err = f.verify(old.GetToken())
			require.ErrorIs(t, err, token.ErrUnknownKey)
			gone := []string{"dataplane-token default/revoked revoked", "dataplane-token default/old key deleted"}
			require.Equal(t, gone, summaries(f.list("dataplane-token")))

			rotated, err := f.RotateKey(admin(t), &meridianv1.RotateKeyRequest{Kind: "dataplane-token", RequestId: "r2"})
			require.NoError(t, err)
			require.Equal(t, uint64(2), rotated.GetSerial())
			issue("new")
			require.Equal(t, append([]string{"dataplane-token default/new active"}, gone...), summaries(f.list("dataplane-token")))
			require.Contains(t, summaries(f.list("")), "user-token admin active", "keys of other kinds do not count")

			f.clock = f.clock.Add(90 * time.Minute)
			require.Contains(t, summaries(f.list("dataplane-token")), "dataplane-token default/old expired")
		})
	}
}

func TestWhatIssuingTakes(t *testing.T) {
	f := newFixture(t, nil)
	f.grant("minter", `{"access": ["GENERATE_DATAPLANE_TOKEN"], "mesh": "default", "when": [{"dpToken": {"tags": [{"name": "kuma.io/service", "value": "web"}]}}]}`)
	f.grant("namer", `{"access": ["GENERATE_DATAPLANE_TOKEN"], "when": [{"dpToken": {"names": ["web-*"]}}]}`)
	f.grant("zoner", `{"access": ["GENERATE_ZONE_CP_TOKEN"]}`)
	f.grant("ingress", `{"access": ["GENERATE_ZONE_TOKEN"]}`)
	f.grant("hr", `{"access": ["GENERATE_USER_TOKEN"]}`)
	zone := resourcetest.Build(t, "Zone", "", "west", "{}")
	dataplane := func(user, service string) error {
		_, err := f.GenerateDataplaneToken(as(t, user), &meridianv1.GenerateDataplaneTokenRequest{
			Mesh: "default", ValidForSeconds: hour, Tags: []*meridianv1.TokenTagValues{{Name: "kuma.io/service", Values: []string{service}}},
		})
		return err
	}
	named := func(user, name string) error {
		_, err := f.GenerateDataplaneToken(as(t, user), &meridianv1.GenerateDataplaneTokenRequest{Mesh: "default", Name: name, ValidForSeconds: hour})
		return err
	}
	zoneToken := func(user string, scope ...string) error {
		_, err := f.Zone(as(t, user), zone, scope, hour)
		return err
	}
	userToken := func(user string, groups ...string) error {
		_, err := f.GenerateUserToken(as(t, user), &meridianv1.GenerateUserTokenRequest{Name: "new", Groups: groups, ValidForSeconds: hour})
		return err
	}
	for name, tc := range map[string]struct {
		err     error
		allowed bool
	}{
		"dataplane of the service":            {dataplane("minter", "web"), true},
		"dataplane of another":                {dataplane("minter", "billing"), false},
		"dataplane without a role":            {dataplane("bob", "web"), false},
		"dataplane of the name":               {named("namer", "web-1"), true},
		"dataplane of another name":           {named("namer", "db"), false},
		"dataplane of any name":               {named("namer", ""), false},
		"zone":                                {zoneToken("zoner"), true},
		"zone, ingress, without that":         {zoneToken("zoner", "ingress"), false},
		"ingress":                             {zoneToken("ingress", "ingress", "egress"), true},
		"ingress and control plane":           {zoneToken("ingress", "ingress", "cp"), false},
		"user without rights":                 {userToken("hr", "unbound"), true},
		"user with all rights":                {userToken("hr", authn.AdminGroup), false},
		"user by one who may issue no tokens": {userToken("zoner"), false},
	} {
		if tc.allowed {
			require.NoError(t, tc.err, name)
			continue
		}
		require.Equal(t, rpcerr.Denied, rpcerr.CodeOf(tc.err), name)
	}
}

// The decision still holds when the record is written (§6.4).
func TestAccessLostMeanwhileIssuesNothing(t *testing.T) {
	f := newFixture(t, nil)
	f.grant("hr", `{"access": ["GENERATE_USER_TOKEN"]}`)
	f.writer.Once(func() { f.grant("hr", `{"access": ["CREATE"]}`) })
	_, err := f.GenerateUserToken(as(t, "hr"), &meridianv1.GenerateUserTokenRequest{Name: "new", ValidForSeconds: hour})
	require.Equal(t, rpcerr.Denied, rpcerr.CodeOf(err))
	require.Len(t, f.list(""), 1)
}

// What is written about keys and tokens is written as it was decided, too.
func TestAccessLostMeanwhileWritesNothing(t *testing.T) {
	f := newFixture(t, nil)
	issued, err := f.GenerateUserToken(admin(t), &meridianv1.GenerateUserTokenRequest{Name: "bob", ValidForSeconds: hour})
	require.NoError(t, err)
	lose := func() {
		f.grant("hr", `{"access": ["CREATE"]}`)
		f.writer.Once(func() { f.grant("hr", `{"access": ["DELETE"]}`) })
	}
	lose()
	_, err = f.RevokeToken(as(t, "hr"), &meridianv1.RevokeTokenRequest{Id: issued.GetId(), RequestId: "r1"})
	require.Equal(t, rpcerr.Denied, rpcerr.CodeOf(err))
	_, err = f.verify(issued.GetToken())
	require.NoError(t, err)
	f.writer.Before(nil)
	lose()
	_, err = f.RotateKey(as(t, "hr"), &meridianv1.RotateKeyRequest{Kind: "user-token", RequestId: "r2"})
	require.Equal(t, rpcerr.Denied, rpcerr.CodeOf(err))
	f.writer.Before(nil)

	// Write access to the resources rotates keys.
	f.grant("hr", `{"access": ["CREATE"]}`)
	_, err = f.RotateKey(as(t, "hr"), &meridianv1.RotateKeyRequest{Kind: "user-token", RequestId: "r3"})
	require.NoError(t, err)
}

func TestRequestsThatAreRefused(t *testing.T) {
	f := newFixture(t, nil)
	long := strings.Repeat("x", 254)
	for want, req := range map[string]*meridianv1.GenerateUserTokenRequest{
		"the name of the user is required":                                 {ValidForSeconds: hour},
		"the name of the user has 254 bytes":                               {Name: long, ValidForSeconds: hour},
		"the name of the user has characters that do not print":            {Name: "a\nb", ValidForSeconds: hour},
		"users have no names that begin with mesh-system:":                 {Name: "mesh-system:anonymous", ValidForSeconds: hour},
		"a group is required":                                              {Name: "bob", Groups: []string{""}, ValidForSeconds: hour},
		"mesh-system:unauthenticated is for clients without a token":       {Name: "bob", Groups: []string{authn.UnauthenticatedGroup}, ValidForSeconds: hour},
		"a token carries at most 64 groups, not 65":                        {Name: "bob", Groups: make([]string, 65), ValidForSeconds: hour},
		"a token is valid for at least a second and at most 3650 days":     {Name: "bob"},
		"a token is valid for at least a second and at most 3650 days ":    {Name: "bob", ValidForSeconds: -1},
		"a token is valid for at least a second and at most 3650 days  ":   {Name: "bob", ValidForSeconds: 1 << 62},
		"a token is valid for at least a second and at most 3650 days    ": {Name: "bob", ValidForSeconds: hour * 24 * 3651},
	} {
		_, err := f.GenerateUserToken(admin(t), req)
		require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err), want)
		require.ErrorContains(t, err, strings.TrimSpace(want))
	}
	tag := func(name string, values ...string) []*meridianv1.TokenTagValues {
		return []*meridianv1.TokenTagValues{{Name: name, Values: values}}
	}
	for want, req := range map[string]*meridianv1.GenerateDataplaneTokenRequest{
		"the mesh is required":                   {ValidForSeconds: hour},
		`mesh "nope" does not exist`:             {Mesh: "nope", ValidForSeconds: hour},
		"the name of the dataplane":              {Mesh: "default", Name: "No!", ValidForSeconds: hour},
		"the name of a tag is required":          {Mesh: "default", Tags: tag("", "x"), ValidForSeconds: hour},
		"tag team has no value":                  {Mesh: "default", Tags: tag("team"), ValidForSeconds: hour},
		"a value of tag team is required":        {Mesh: "default", Tags: tag("team", ""), ValidForSeconds: hour},
		"leave the tag out to allow any":         {Mesh: "default", Tags: tag("team", "*"), ValidForSeconds: hour},
		"a token is valid for at least a second": {Mesh: "default"},
	} {
		_, err := f.GenerateDataplaneToken(admin(t), req)
		require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err), want)
		require.ErrorContains(t, err, want)
	}
	zone := resourcetest.Build(t, "Zone", "", "west", "{}")
	_, err := f.Zone(admin(t), zone, []string{"all"}, hour)
	require.EqualError(t, err, `scope "all": the scopes are cp, ingress and egress`)
	require.Len(t, f.list(""), 1)
}

func TestExpiredRecordsGoWithTheNextToken(t *testing.T) {
	f := newFixture(t, nil)
	for range 3 {
		_, err := f.GenerateUserToken(admin(t), &meridianv1.GenerateUserTokenRequest{Name: "bob", ValidForSeconds: 1})
		require.NoError(t, err)
	}
	require.Len(t, f.list(""), 4)
	f.clock = f.clock.Add(48 * time.Hour)
	_, err := f.GenerateUserToken(admin(t), &meridianv1.GenerateUserTokenRequest{Name: "eve", ValidForSeconds: hour})
	require.NoError(t, err)
	require.Equal(t, []string{"user-token eve active", "user-token admin active"}, summaries(f.list("")))
}

// The admin token is replaced by an admin only, and the one before ends with it.
func TestTheAdminTokenIsReissued(t *testing.T) {
	f := newFixture(t, nil)
	before := f.ring.AdminToken()
	_, err := f.verify(before)
	require.NoError(t, err)
	f.grant("writer", `{"access": ["CREATE", "UPDATE", "DELETE", "GENERATE_USER_TOKEN"]}`)
	_, err = f.ReissueAdminToken(as(t, "writer"), &meridianv1.ReissueAdminTokenRequest{RequestId: "1"})
	require.Equal(t, rpcerr.Denied, rpcerr.CodeOf(err), "%v", err)
	require.Equal(t, before, f.ring.AdminToken())

	response, err := f.ReissueAdminToken(admin(t), &meridianv1.ReissueAdminTokenRequest{RequestId: "1"})
	require.NoError(t, err)
	require.Equal(t, f.ring.AdminToken(), response.GetToken())
	issued, err := f.verify(response.GetToken())
	require.NoError(t, err)
	require.Equal(t, response.GetId(), issued.ID)
	require.Equal(t, []string{authn.AdminGroup}, issued.Groups)
	_, err = f.verify(before)
	require.ErrorContains(t, err, "revoked")

	again, err := f.ReissueAdminToken(admin(t), &meridianv1.ReissueAdminTokenRequest{RequestId: "1"})
	require.NoError(t, err)
	require.Equal(t, response.GetToken(), again.GetToken(), "a retry makes no further token")
	second, err := f.ReissueAdminToken(admin(t), &meridianv1.ReissueAdminTokenRequest{RequestId: "2"})
	require.NoError(t, err)
	_, err = f.verify(response.GetToken())
	require.ErrorContains(t, err, "revoked")

	// With local access, and no valid token left.
	_, err = f.RevokeToken(admin(t), &meridianv1.RevokeTokenRequest{Id: second.GetId(), RequestId: "3"})
	require.NoError(t, err)
	require.NoError(t, f.ring.ReissueAdmin(t.Context(), f.writer))
	_, err = f.verify(f.ring.AdminToken())
	require.NoError(t, err)
	_, err = f.verify(second.GetToken())
	require.ErrorContains(t, err, "revoked")
}

// In a zone of a global, the record says that the token before is revoked.
func TestTheAdminTokenOfAZoneIsReissued(t *testing.T) {
	global := store.New(store.DefaultOptions())
	f := newFixture(t, func(c *token.RingConfig) { c.Zone, c.Global = "east", global.View })
	before := f.ring.AdminToken()
	response, err := f.ReissueAdminToken(admin(t), &meridianv1.ReissueAdminTokenRequest{RequestId: "1"})
	require.NoError(t, err)
	_, err = f.verify(response.GetToken())
	require.NoError(t, err)
	_, err = f.verify(before)
	require.ErrorContains(t, err, "revoked")
}
