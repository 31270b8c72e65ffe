package token_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/authn/token"
	"meridian/internal/commit/committest"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/store"
)

// A restore into the cluster that the backup is of makes nothing valid again that
// was ended since, and ends nothing that was issued since.
func TestTrustSurvivesARestore(t *testing.T) {
	now := func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }
	s := store.New(store.DefaultOptions())
	log := committest.New(s)
	ring := token.NewRing(token.RingConfig{Local: s.View, Now: now})
	write := func(ops ...store.Op) {
		t.Helper()
		require.NoError(t, s.Apply(s.Revision()+1, store.Txn{Time: now(), Ops: ops}).Err)
	}
	puts := func(made []*resource.Resource, err error) {
		t.Helper()
		require.NoError(t, err)
		for _, r := range made {
			write(store.Put(r))
		}
	}
	issue := func(name string) (string, token.Token) {
		t.Helper()
		raw, issued, err := ring.Issuer().User(name, nil, time.Hour)
		require.NoError(t, err)
		record, err := token.Record(issued, "admin")
		puts([]*resource.Resource{record}, err)
		return raw, issued
	}
	rotate := func(use token.Use) {
		t.Helper()
		_, made, err := ring.Rotation(use)
		puts(made, err)
	}
	require.NoError(t, ring.Ensure(t.Context(), log, token.ForUser, token.ForZone, token.ForServer))
	kept, _ := issue("kept")
	stolen, stolenToken := issue("stolen")
	zoneOld, _, err := ring.Issuer().Zone("east", []string{token.ScopeControlPlane}, time.Hour)
	require.NoError(t, err)
	adminOld := ring.AdminToken()
	saved := slices.Collect(s.View().All())

	_, record, ok := ring.Find(stolenToken.ID)
	require.True(t, ok)
	revocation, err := ring.Revocation(record, "stolen")
	puts([]*resource.Resource{revocation}, err)
	puts(ring.AdminReissue("admin"))
	adminNew := ring.AdminToken()
	rotate(token.ForUser)
	late, _ := issue("late")
	rotate(token.ForZone)
	for _, kind := range []resource.Kind{resource.KindGlobalSecret, resource.KindSigningKey} {
		write(store.Delete(resource.Key{Kind: kind, Name: "zone-token-signing-key-1"}))
	}
	for _, kind := range []resource.Kind{resource.KindGlobalSecret, resource.KindSigningKey} { // lost, and nothing replaces it
		write(store.Delete(resource.Key{Kind: kind, Name: "server-token-signing-key-1"}))
	}
	extra, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindGlobalSecret, Name: "content"}}, []byte(`{"data":"AA=="}`))
	puts([]*resource.Resource{extra}, err)

	merged, carried := token.Carry(s.View(), saved)
	require.Equal(t, token.Carried{Revocations: 2, Keys: 2, Tokens: 2, DeletedKeys: 1}, carried)
	restored := store.New(store.DefaultOptions())
	var ops []store.Op
	for _, r := range merged {
		ops = append(ops, store.Put(r))
	}
	require.NoError(t, restored.Apply(1, store.Txn{Time: now(), Ops: ops}).Err)
	after := token.NewRing(token.RingConfig{Local: restored.View, Now: now})
	for name, tc := range map[string]struct {
		raw   string
		valid bool
	}{
		"issued before": {kept, true}, "issued since": {late, true}, "the admin token": {adminNew, true},
		"revoked since": {stolen, false}, "the admin token before": {adminOld, false}, "of a key deleted since": {zoneOld, false},
	} {
		_, err := after.Verifier().Verify(tc.raw)
		require.Equal(t, tc.valid, err == nil, "%s: %v", name, err)
	}
	require.Equal(t, adminNew, after.AdminToken())
	require.True(t, after.Has(token.ForServer), "a key without a successor comes back")
	_, there := restored.View().Get(extra.Key())
	require.False(t, there, "what is not trust is the backup's")

	same, nothing := token.Carry(restored.View(), merged)
	require.Zero(t, nothing)
	require.Len(t, same, len(merged))
}

// A restore leaves the rotation of the certificate authority as it is, whatever the
// backup holds of one: the servers' files are of the running one.
func TestTheRotationSurvivesARestore(t *testing.T) {
	mesh := resourcetest.Build(t, "Mesh", "", "default", `{}`)
	rotation := func(data string) *resource.Resource {
		return resourcetest.Build(t, resource.KindGlobalSecret, "", token.AuthorityName, `{"data": "`+data+`"}`)
	}
	older, newer := rotation("AA=="), rotation("AQ==")
	for name, tc := range map[string]struct{ running, saved, want []*resource.Resource }{
		"begun since":             {[]*resource.Resource{newer}, []*resource.Resource{mesh}, []*resource.Resource{mesh, newer}},
		"continued since":         {[]*resource.Resource{newer}, []*resource.Resource{older, mesh}, []*resource.Resource{mesh, newer}},
		"of the backup only":      {nil, []*resource.Resource{older, mesh}, []*resource.Resource{mesh}},
		"in neither of the two":   {nil, []*resource.Resource{mesh}, []*resource.Resource{mesh}},
		"as it was at the backup": {[]*resource.Resource{older}, []*resource.Resource{mesh, older}, []*resource.Resource{mesh, older}},
	} {
		t.Run(name, func(t *testing.T) {
			s := store.New(store.DefaultOptions())
			for _, r := range tc.running {
				require.NoError(t, s.Apply(s.Revision()+1, store.Txn{Ops: []store.Op{store.Put(r)}}).Err)
			}
			contents := func(all []*resource.Resource) (out []string) {
				for _, r := range all {
					out = append(out, string(r.Canonical()))
				}
				return out
			}
			require.Equal(t, contents(tc.want), contents(token.CarryOwn(s.View(), tc.saved)))
		})
	}
}

// The authority of a mesh is that of now: proxies have certificates of it. One that is not
// there any more comes back, and another secret is content.
func TestTheAuthoritiesOfMeshesSurviveARestore(t *testing.T) {
	secret := func(name, data string) *resource.Resource {
		return resourcetest.Build(t, "GlobalSecret", "", name, `{"data": "`+data+`"}`)
	}
	at := func(mesh string) string { return token.MeshAuthorityKey(resource.MeshName(mesh)).Name }
	s := store.New(store.DefaultOptions())
	require.NoError(t, s.Apply(1, store.Txn{Ops: []store.Op{store.Put(secret(at("default"), "bm93")), store.Put(secret("s", "bm93"))}}).Err)
	merged, _ := token.Carry(s.View(), []*resource.Resource{secret(at("default"), "dGhlbg=="), secret(at("other"), "dGhlbg=="), secret("s", "dGhlbg==")})
	data := map[string]string{}
	for _, r := range merged {
		data[r.Key().Name] = string(r.Spec().(*resource.Secret).Bytes())
	}
	require.Equal(t, map[string]string{at("default"): "now", at("other"): "then", "s": "then"}, data)
}
