package envoy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate/envoy"
	"meridian/internal/xds/world"
	"meridian/internal/xds/xdstest"
)

// mesh is a world with the dataplane web-1, which calls backend at port 4001, and two
// dataplanes of backend that speak a protocol.
func mesh(t require.TestingT, protocol string) policytest.World {
	w := policytest.NewWorld()
	w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, `{}`)
	put(t, w, resource.KindDataplane, "web-1", `{"networking":{"address":"10.0.0.9","inbound":[{"port":8080,"tags":{"kuma.io/service":"web","kuma.io/zone":"east","kuma.io/protocol":"`+protocol+`"}}],
		"outbound":[{"port":4001,"tags":{"kuma.io/service":"backend"}}]}}`)
	for i := 1; i <= 2; i++ {
		put(t, w, resource.KindDataplane, fmt.Sprintf("backend-%d", i), fmt.Sprintf(
			`{"networking":{"address":"10.0.0.%d","inbound":[{"port":80,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east","version":"v%d","kuma.io/protocol":%q}}]}}`, i, i, protocol))
	}
	return w
}

func put(t require.TestingT, w policytest.World, kind resource.Kind, name, spec string) {
	w.Put(t, resource.Meta{Key: resource.Key{Kind: kind, Mesh: "m", Name: name}}, spec)
}

// policyOn puts a policy on web, to backend.
func policyOn(t require.TestingT, w policytest.World, kind resource.Kind, conf string) {
	put(t, w, kind, "p", xdstest.Spec(kind, conf))
}

func generate(t require.TestingT, w policytest.World, name string) *xds.Set {
	state := world.New("east")
	m := policy.NewMatcher(engines.All()...).Following(state)
	m.Reset(w.View())
	set, err := envoy.Proxy(m, state, policy.DataplaneKey("m", name), 1)
	require.NoError(t, err)
	return set
}

// modes are the settings of mutual TLS of a mesh.
var modes = map[string]string{
	"none":       `{}`,
	"PERMISSIVE": `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin","mode":"PERMISSIVE"}]}}`,
	"STRICT":     `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`,
}

// What every field of every policy comes to is valid, refers to nothing that is not there,
// and is the same whenever it is made.
func TestResourcesAreValidAndDeterministic(t *testing.T) {
	for _, protocol := range []string{"http", "http2", "grpc", "tcp"} {
		for _, p := range append(xdstest.Policies(), xdstest.Routes()...) {
			for mode, settings := range modes {
				t.Run(protocol+" "+mode+" "+string(p.Kind), func(t *testing.T) {
					w := mesh(t, protocol)
					w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, settings)
					if d, _ := resource.Describe(p.Kind); d.Class == resource.TargetRef || d.Class == resource.SourceDestination {
						policyOn(t, w, p.Kind, p.Conf)
					} else {
						put(t, w, p.Kind, "r", p.Conf)
					}
					requireValid(t, generate(t, w, "web-1"), generate(t, w, "web-1"))
				})
			}
		}
	}
}

func requireValid(t require.TestingT, set, again *xds.Set) {
	require.Empty(t, set.Withheld)
	xdstest.RequireValid(t, set, again)
}

// Where nothing can be sent protected, nothing is, and that is said.
func TestNothingIsSentUnprotected(t *testing.T) {
	w := mesh(t, "http")
	for settings, why := range map[string]string{
		modes["none"]: "", modes["STRICT"]: "", modes["PERMISSIVE"]: "",
		`{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"vault"}]}}`: "types builtin and provided only",
	} {
		w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, settings)
		set := generate(t, w, "web-1")
		require.Equal(t, why == "", set.Len() > 0)
		require.Contains(t, set.Withheld, why)
	}
	w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, modes["STRICT"])
	put(t, w, resource.KindDataplane, "web-1", `{"networking":{"address":"10.0.0.9","inbound":[{"port":8080,"tags":{"kuma.io/service":"web"}}]}}`)
	require.Contains(t, generate(t, w, "web-1").Withheld, "the dataplane can have no certificate")
}

// An inbound or outbound for which Envoy cannot listen has no listener, and that is said.
func TestWhatHasNoListener(t *testing.T) {
	for spec, want := range map[string]string{
		`{"address":"127.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"a"}}]}`:                                                                                                   "connect to itself",
		`{"address":"a.test","inbound":[{"port":80,"tags":{"kuma.io/service":"a"}}]}`:                                                                                                      "host name",
		`{"address":"10.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"a"}},{"port":80,"tags":{"kuma.io/service":"b","kuma.io/protocol":"http"}}]}`:                               "another protocol",
		`{"address":"10.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"a"}}],"outbound":[{"port":81,"tags":{"kuma.io/service":"b"}},{"port":81,"tags":{"kuma.io/service":"c"}}]}`: "same address and port",
	} {
		w := mesh(t, "http")
		put(t, w, resource.KindDataplane, "x", `{"networking":`+spec+`}`)
		r, _ := w.View().Get(policy.DataplaneKey("m", "x"))
		unserved := envoy.NotServed(r.Spec().(*resource.Dataplane))
		require.Len(t, unserved, 1, spec)
		require.Contains(t, unserved[0].Why, want)
		set := generate(t, w, "x")
		require.LessOrEqual(t, len(set.Of(xds.Listener)), 2)
	}
}

// In a mesh with mutual TLS, inbounds log denials as package cli reads them.
func TestDenialsAreLogged(t *testing.T) {
	for _, protocol := range []string{"http", "tcp"} {
		w := mesh(t, protocol)
		r, _ := w.View().Get(policy.DataplaneKey("m", "backend-1"))
		for _, mtls := range []bool{true, false} {
			made, err := envoy.Inbounds(policy.DataplaneKey("m", "backend-1"), world.Mesh{Exists: true, MTLS: mtls, Backend: "ca", BackendType: world.BuiltinCA}, r.Spec().(*resource.Dataplane), nil, nil)
			require.NoError(t, err)
			logged := 0
			for _, r := range made {
				m, err := r.Message()
				require.NoError(t, err)
				xdstest.RequireRules(t, m)
				text, err := protojson.Marshal(m)
				require.NoError(t, err)
				logged += strings.Count(string(text), "StdoutAccessLog\"")
				if r.Type == xds.Listener && mtls {
					for _, want := range []string{`"%DOWNSTREAM_PEER_URI_SAN%"`, `"backend-1"`, `"%RESPONSE_CODE_DETAILS%"`, `"%CONNECTION_TERMINATION_DETAILS%"`} {
						require.Contains(t, string(text), want)
					}
				}
			}
			require.Equal(t, mtls, logged > 0)
		}
	}
}
