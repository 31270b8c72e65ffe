package generate_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate/envoy"
	"meridian/internal/xds/generate/grpc"
	"meridian/internal/xds/world"
	"meridian/internal/xds/xdstest"
)

// callee are permissions and what else concerns an inbound.
var callee = []xdstest.Policy{
	{Kind: resource.KindTrafficPermission, Conf: `{"sources":[{"match":{"kuma.io/service":"web","version":"*"}}],"destinations":[{"match":{"kuma.io/service":"backend"}}]}`},
	{Kind: resource.KindMeshTrafficPermission, Conf: `{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"MeshSubset","tags":{"version":"v1"}},"default":{"action":"DENY"}},{"targetRef":{"kind":"Service","name":"web"},"default":{"action":"ALLOW"}}]}`},
	{Kind: resource.KindMeshHTTPFault, Conf: `{"targetRef":{"kind":"Service","name":"backend"},"from":[{"targetRef":{"kind":"Mesh"},"default":{"http":[{"abort":{"percentage":1,"httpStatus":503}}]}}]}`},
	{Kind: resource.KindFaultInjection, Conf: `{"sources":[{"match":{"kuma.io/service":"web"}}],"destinations":[{"match":{"kuma.io/service":"backend"}}],"conf":{"delay":{"percentage":50,"value":"1s"}}}`},
	{Kind: resource.KindRateLimit, Conf: `{"sources":[{"match":{"kuma.io/service":"web"}}],"destinations":[{"match":{"kuma.io/service":"backend"}}],"conf":{"http":{"requests":5,"interval":"1s"}}}`},
}

// Whatever the decoder of documents takes, every resource that a proxy of either kind
// comes to obeys the rules of its definition and refers to nothing that is not sent, for
// callers and callees, of each protocol.
func FuzzPolicies(f *testing.F) {
	seen := map[resource.Kind]bool{}
	for _, p := range append(xdstest.Policies(), xdstest.Routes()...) {
		seen[p.Kind] = true
	}
	for _, p := range callee {
		seen[p.Kind] = true
	}
	kinds := slices.Sorted(maps.Keys(seen))
	seed := func(kind resource.Kind, spec string) {
		i, _ := slices.BinarySearch(kinds, kind)
		for protocol := range protocols {
			f.Add(uint8(i), uint8(protocol), []byte(spec))
		}
	}
	for _, p := range xdstest.Policies() {
		seed(p.Kind, xdstest.Spec(p.Kind, p.Conf))
	}
	for _, p := range append(xdstest.Routes(), callee...) {
		seed(p.Kind, p.Conf)
	}
	meshes := make([][]*resource.Resource, len(protocols))
	for i, protocol := range protocols {
		w := policytest.NewWorld()
		w.Put(f, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`)
		for name, spec := range map[string]string{
			"web-1": `{"networking":{"address":"10.0.0.9","inbound":[{"port":8080,"servicePort":8081,"tags":{"kuma.io/service":"web","kuma.io/zone":"east","kuma.io/protocol":"` + protocol + `"}}],
				"outbound":[{"port":4001,"tags":{"kuma.io/service":"backend"}}]}}`,
			"backend-1": `{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"servicePort":81,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east","version":"v1","kuma.io/protocol":"` + protocol + `"}}]}}`,
		} {
			w.Put(f, resource.Meta{Key: resource.Key{Kind: resource.KindDataplane, Mesh: "m", Name: name}}, spec)
		}
		for _, kind := range []resource.Kind{resource.KindMesh, resource.KindDataplane} {
			meshes[i] = append(meshes[i], slices.Collect(w.View().List(kind, ""))...)
		}
	}
	f.Fuzz(func(t *testing.T, kind, protocol uint8, spec []byte) {
		key := resource.Key{Kind: kinds[int(kind)%len(kinds)], Mesh: "m", Name: "p"}
		r, _, err := resource.Build(resource.Meta{Key: key}, spec)
		if err != nil {
			return
		}
		state := world.New("east")
		m := policy.NewMatcher(engines.All()...).Following(state)
		m.Reset(policy.NewSnapshot(append(slices.Clone(meshes[int(protocol)%len(protocols)]), r)...))
		for _, name := range []string{"web-1", "backend-1"} {
			for _, made := range []func(*policy.Matcher, *world.World, resource.Key, resource.Revision) (*xds.Set, error){envoy.Proxy, grpc.Proxy} {
				set, err := made(m, state, policy.DataplaneKey("m", name), 1)
				require.NoError(t, err)
				again, err := made(m, state, policy.DataplaneKey("m", name), 1)
				require.NoError(t, err)
				require.Equal(t, set.Withheld, again.Withheld)
				xdstest.RequireValid(t, set, again)
			}
		}
	})
}

var protocols = []string{"http", "http2", "grpc", "tcp"}
