package world

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/identity"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

const secureMesh = `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`

// The credentials of tokens of dataplanes that were revoked, by either kind of resource,
// are in the settings of the meshes with mutual TLS, and other changes leave them alone.
func TestWhatIsRevoked(t *testing.T) {
	view := policytest.NewWorld()
	mesh := func(name string) resource.Meta {
		return resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: name}}
	}
	of := func(kind resource.Kind, name string) resource.Meta {
		return resource.Meta{Key: resource.Key{Kind: kind, Name: name}}
	}
	const issued = `{"use":%q,"id":%q,"subject":"m/d","serial":1,"issued":"2026-01-01T00:00:00Z","expires":"2027-01-01T00:00:00Z","revoked":%v}`
	view.Put(t, mesh("m"), secureMesh)
	view.Put(t, mesh("open"), `{}`)
	view.Put(t, of(resource.KindTokenRevocation, "user"), `{"use":"user-token","id":"user"}`)
	view.Put(t, of(resource.KindIssuedToken, "b"), fmt.Sprintf(issued, "dataplane-token", "b", false))
	w := New("east")
	w.Reset(view.View())
	require.Nil(t, w.Mesh("m").Revoked)
	update := func(metas ...resource.Meta) (meshes []resource.MeshName) {
		var keys []resource.Key
		for _, m := range metas {
			keys = append(keys, m.Key)
		}
		w.Update(view.View(), keys)
		fresh := New("east")
		fresh.Reset(view.View())
		require.Equal(t, fresh.Mesh("m").Revoked, w.Mesh("m").Revoked)
		changes := w.Drain()
		return changes.Meshes
	}

	view.Put(t, of(resource.KindTokenRevocation, "a"), `{"use":"dataplane-token","id":"a"}`)
	require.Equal(t, []resource.MeshName{"m"}, update(of(resource.KindTokenRevocation, "a")))
	require.Equal(t, []string{identity.Credential("a")}, w.Mesh("m").Revoked.Credentials)
	require.Nil(t, w.Mesh("open").Revoked)

	before := w.Mesh("m")
	view.Put(t, of(resource.KindIssuedToken, "c"), fmt.Sprintf(issued, "dataplane-token", "c", false))
	view.Put(t, of(resource.KindTokenRevocation, "again"), `{"use":"dataplane-token","id":"a"}`)
	require.Empty(t, update(of(resource.KindIssuedToken, "c"), of(resource.KindTokenRevocation, "again")))
	require.Equal(t, before, w.Mesh("m"))

	view.Put(t, of(resource.KindIssuedToken, "b"), fmt.Sprintf(issued, "dataplane-token", "b", true))
	require.Equal(t, []resource.MeshName{"m"}, update(of(resource.KindIssuedToken, "b")))
	want := []string{identity.Credential("a"), identity.Credential("b")}
	slices.Sort(want)
	require.Equal(t, want, w.Mesh("m").Revoked.Credentials)
	require.NotEqual(t, before.Revoked.Stamp(), w.Mesh("m").Revoked.Stamp())

	view.Put(t, mesh("open"), secureMesh)
	require.Equal(t, []resource.MeshName{"open"}, update(mesh("open")))
	require.Same(t, w.Mesh("m").Revoked, w.Mesh("open").Revoked)

	for _, gone := range []resource.Meta{of(resource.KindIssuedToken, "b"), of(resource.KindTokenRevocation, "a"), of(resource.KindTokenRevocation, "again")} {
		delete(view.Resources, gone.Key)
		update(gone)
	}
	require.Nil(t, w.Mesh("m").Revoked)
}

// Of more revocations than are denied, the last ones are.
func TestRevocationsAreBounded(t *testing.T) {
	view := policytest.NewWorld()
	view.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, secureMesh)
	began := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	const all = maxRevoked + 3
	for i := range all {
		meta := resource.Meta{Key: resource.Key{Kind: resource.KindTokenRevocation, Name: fmt.Sprint("t", i)}, CreationTime: began.Add(time.Duration(i) * time.Second)}
		view.Put(t, meta, fmt.Sprintf(`{"use":"dataplane-token","id":"t%d"}`, i))
	}
	w := New("east")
	w.Reset(view.View())
	got := w.Revoked()
	require.Len(t, got.Credentials, maxRevoked)
	require.Equal(t, 3, got.Left)
	require.NotContains(t, got.Credentials, identity.Credential("t2"))
	require.Contains(t, got.Credentials, identity.Credential("t3"))
	require.Contains(t, got.Credentials, identity.Credential(fmt.Sprint("t", all-1)))
}
