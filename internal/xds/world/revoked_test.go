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
	require.Equal(t, []string{identity.Credential("a")}, w.Mesh("open").Revoked.Credentials, "b is of another mesh")

	for _, gone := range []resource.Meta{of(resource.KindIssuedToken, "b"), of(resource.KindTokenRevocation, "a"), of(resource.KindTokenRevocation, "again")} {
		delete(view.Resources, gone.Key)
		update(gone)
	}
	require.Nil(t, w.Mesh("m").Revoked)
}

// A mesh is told of its own tokens only, of those that could be of any mesh, and of none
// whose certificates have ended when it is told of another one.
func TestWhatIsRevokedByMesh(t *testing.T) {
	view := policytest.NewWorld()
	began := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	day := 24 * time.Hour
	put := func(id, mesh string, at, expires time.Duration) resource.Key {
		meta := resource.Meta{Key: resource.Key{Kind: resource.KindTokenRevocation, Name: id}, CreationTime: began.Add(at)}
		if mesh != "" {
			meta.Labels = map[string]string{resource.TokenMeshLabel: mesh}
		}
		view.Put(t, meta, fmt.Sprintf(`{"use":"dataplane-token","id":%q,"expires":%q}`, id, began.Add(expires).Format(time.RFC3339)))
		return meta.Key
	}
	for _, mesh := range []string{"m", "n"} {
		view.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: mesh}}, secureMesh)
	}
	w := New("east")
	w.Reset(view.View())
	denied := func(mesh resource.MeshName) (ids []string) {
		fresh := New("east")
		fresh.Reset(view.View())
		require.Equal(t, fresh.Mesh(mesh).Revoked, w.Mesh(mesh).Revoked)
		if w.Mesh(mesh).Revoked == nil {
			return nil
		}
		for r := range view.View().List(resource.KindTokenRevocation, "") {
			if id := r.Key().Name; slices.Contains(w.Mesh(mesh).Revoked.Credentials, identity.Credential(id)) {
				ids = append(ids, id)
			}
		}
		return ids
	}
	steps := []struct {
		id, mesh    string
		at, expires time.Duration
		m, n        []string
		changed     []resource.MeshName
	}{
		{"a", "m", 0, day, []string{"a"}, nil, []resource.MeshName{"m"}},
		{"b", "m", 2 * day, 1000 * day, []string{"a", "b"}, nil, []resource.MeshName{"m"}},
		{"c", "n", 3 * day, 4 * day, []string{"a", "b"}, []string{"c"}, []resource.MeshName{"n"}},
		{"d", "", 4 * day, 1000 * day, []string{"b", "d"}, []string{"c", "d"}, []resource.MeshName{"m", "n"}},
		{"e", "m", 2*day + identity.MaxLifetime, 1000 * day, []string{"b", "d", "e"}, []string{"c", "d"}, []resource.MeshName{"m"}},
		{"f", "m", 3*day + identity.MaxLifetime, 1000 * day, []string{"d", "e", "f"}, []string{"c", "d"}, []resource.MeshName{"m"}},
	}
	for _, step := range steps {
		t.Run(step.id, func(t *testing.T) {
			key := put(step.id, step.mesh, step.at, step.expires)
			w.Update(view.View(), []resource.Key{key})
			changes := w.Drain()
			require.Equal(t, step.changed, changes.Meshes)
			require.Equal(t, step.m, denied("m"))
			require.Equal(t, step.n, denied("n"))
		})
	}

	// What makes no difference any more may be removed.
	before := w.Mesh("m")
	var all []*resource.Resource
	for r := range view.View().List(resource.KindTokenRevocation, "") {
		all = append(all, r)
	}
	revocations := identity.RevocationsIn(slices.Values(all))
	var over []string
	for _, r := range all {
		if revocation, ok := identity.RevocationOf(r); ok && revocations.Over(revocation) {
			over = append(over, r.Key().Name)
			delete(view.Resources, r.Key())
			w.Update(view.View(), []resource.Key{r.Key()})
		}
	}
	require.Equal(t, []string{"a", "b"}, over)
	require.Empty(t, w.Drain().Meshes)
	require.Equal(t, before, w.Mesh("m"))
}

// Of more revocations than are denied, the last ones are.
func TestRevocationsAreBounded(t *testing.T) {
	view := policytest.NewWorld()
	for _, mesh := range []string{"m", "n"} {
		view.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: mesh}}, secureMesh)
	}
	began := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	const all = identity.MaxDenied + 3
	for i := range all {
		meta := resource.Meta{Key: resource.Key{Kind: resource.KindTokenRevocation, Name: fmt.Sprint("t", i)}, CreationTime: began.Add(time.Duration(i) * time.Second), Labels: map[string]string{resource.TokenMeshLabel: "m"}}
		view.Put(t, meta, fmt.Sprintf(`{"use":"dataplane-token","id":"t%d"}`, i))
	}
	w := New("east")
	w.Reset(view.View())
	got := w.Revoked()["m"]
	require.Len(t, got.Credentials, identity.MaxDenied)
	require.Equal(t, 3, got.Left)
	require.NotContains(t, got.Credentials, identity.Credential("t2"))
	require.Contains(t, got.Credentials, identity.Credential("t3"))
	require.Contains(t, got.Credentials, identity.Credential(fmt.Sprint("t", all-1)))
	require.Nil(t, w.Revoked()["n"])
}
