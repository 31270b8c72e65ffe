package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/commit/committest"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/store"
)

type applier struct{ *committest.Log }

func (a applier) put(t *testing.T, kind resource.Kind, mesh resource.MeshName, name, spec string) {
	t.Helper()
	_, err := a.Propose(t.Context(), store.Txn{Ops: []store.Op{store.Put(resourcetest.Build(t, kind, mesh, name, spec))}})
	require.NoError(t, err)
}

// A global is untouched as long as only its servers have written: then it takes
// over the identity of a backup, and its zones with it.
func TestUntouched(t *testing.T) {
	now := func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }
	fresh := func() applier {
		a := applier{committest.New(store.New(store.DefaultOptions()))}
		require.True(t, untouched(a.View()), "empty")
		_, err := a.Propose(t.Context(), store.Txn{SetEpoch: &store.Epoch{ClusterID: "c", Incarnation: 1}})
		require.NoError(t, err)
		a.put(t, "Mesh", "", "default", `{}`)
		require.NoError(t, authz.Defaults{}.Ensure(t.Context(), a.View, a, now))
		ring := token.NewRing(token.RingConfig{Local: a.View, Now: now})
		require.NoError(t, ring.Ensure(t.Context(), a, uses...))
		// A server that joined leaves the record of its token.
		_, issued, err := ring.Issuer().User("bob", nil, time.Hour)
		require.NoError(t, err)
		record, err := token.Record(issued, "admin")
		require.NoError(t, err)
		_, err = a.Propose(t.Context(), store.Txn{Ops: []store.Op{store.Put(record)}})
		require.NoError(t, err)
		// What servers register of each other.
		batch, err := register{Removed: []string{"b"}}.batch(nil, now())
		require.NoError(t, err)
		_, err = a.Propose(t.Context(), batch.Txn)
		require.NoError(t, err)
		return a
	}
	require.True(t, untouched(fresh().View()))
	for name, touch := range map[string]func(applier){
		"a mesh":           func(a applier) { a.put(t, "Mesh", "", "other", `{}`) },
		"the default mesh": func(a applier) { a.put(t, "Mesh", "", "default", `{"mtls": {"enabledBackend": ""}}`) },
		"a zone":           func(a applier) { a.put(t, "Zone", "", "east", `{}`) },
		"a policy": func(a applier) {
			a.put(t, "TrafficPermission", "default", "p", `{"sources": [{"match": {"kuma.io/service": "*"}}], "destinations": [{"match": {"kuma.io/service": "*"}}]}`)
		},
		"a role":         func(a applier) { a.put(t, "AccessRole", "", "r", `{"rules": [{"access": ["CREATE"]}]}`) },
		"the role admin": func(a applier) { a.put(t, "AccessRole", "", "admin", `{"rules": [{"access": ["CREATE"]}]}`) },
		"the binding": func(a applier) {
			a.put(t, "AccessRoleBinding", "", "default", `{"subjects": [{"type": "User", "name": "bob"}], "roles": ["admin"]}`)
		},
		"a secret":         func(a applier) { a.put(t, resource.KindGlobalSecret, "", "mine", `{"data": "eA=="}`) },
		"a restore before": func(a applier) { next(t, a) },
	} {
		t.Run(name, func(t *testing.T) {
			a := fresh()
			touch(a)
			require.False(t, untouched(a.View()))
		})
	}
}

// next begins another incarnation.
func next(t *testing.T, a applier) {
	_, err := a.Propose(t.Context(), store.Txn{SetEpoch: &store.Epoch{ClusterID: "c", Incarnation: 2}})
	require.NoError(t, err)
}
