package feed

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/internal/xds"
)

// What is tried touches the Envoys on which something else would be decided, when it comes,
// changes and goes; it touches no gRPC proxy, and leaves those of other meshes alone.
func TestWhatIsTriedTouches(t *testing.T) {
	z := newZone(t)
	const mutual = `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`
	z.apply(z.put(resource.KindMesh, "", "m", mutual), z.put(resource.KindMesh, "", "n", mutual))
	serves := func(service string) string {
		return `{"networking":{"address":"10.0.1.1","inbound":[{"port":80,"servicePort":81,"tags":{"kuma.io/service":"` + service + `","kuma.io/zone":"east","kuma.io/protocol":"http"}}]}}`
	}
	z.apply(z.put(resource.KindDataplane, "m", "backend-1", serves("backend")), z.put(resource.KindDataplane, "m", "orders-1", serves("orders")), z.put(resource.KindDataplane, "n", "other-1", serves("backend")))
	set := func(name string) *xds.Set {
		z.follow(name)
		s, err := z.feed.Resources(policy.DataplaneKey("m", name), xds.Envoy)
		require.NoError(t, err)
		return s
	}
	deny := func(service, caller string, labels map[string]string) store.Op {
		op := z.put(resource.KindMeshTrafficPermission, "m", "deny", `{"targetRef":{"kind":"MeshService","name":"`+service+`"},"from":[{"targetRef":{"kind":"MeshService","name":"`+caller+`"},"default":{"action":"ALLOW"}}]}`)
		meta := op.Resource.Meta()
		meta.Labels = labels
		return store.Put(op.Resource.WithMeta(meta))
	}
	label := map[string]string{resource.EnforcementLabel: resource.EnforcementShadow}
	changes := func(ops ...store.Op) map[string][]string {
		before := map[string]*xds.Set{"backend-1": set("backend-1"), "orders-1": set("orders-1")}
		touched := z.apply(ops...)
		require.False(t, touched[policy.DataplaneKey("n", "other-1")])
		found := map[string][]string{}
		for name, b := range before {
			if refs := changed(b, set(name)); len(refs) > 0 {
				require.True(t, touched[policy.DataplaneKey("m", name)])
				found[name] = refs
			}
		}
		return found
	}
	backend, orders := map[string][]string{"backend-1": {"RDS in_80"}}, map[string][]string{"orders-1": {"RDS in_80"}}
	require.Equal(t, backend, changes(deny("backend", "web", label)))
	require.Equal(t, backend, changes(deny("backend", "api", label)))
	require.Equal(t, map[string][]string{"backend-1": backend["backend-1"], "orders-1": orders["orders-1"]}, changes(deny("orders", "api", label)))
	require.Equal(t, orders, changes(deny("orders", "api", nil)), "it is in effect now")
	require.Equal(t, orders, changes(deny("orders", "api", label)))
	require.Equal(t, orders, changes(store.Delete(resource.Key{Kind: resource.KindMeshTrafficPermission, Mesh: "m", Name: "deny"})))
	require.Empty(t, changes(z.put(resource.KindTimeout, "m", "t", timeout("backend", "1s"))))
}
