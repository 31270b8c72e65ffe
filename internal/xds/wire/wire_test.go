package wire_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/support"
	"meridian/internal/xds/wire"
	"meridian/internal/xds/world"
)

func put(t *testing.T, w policytest.World, kind resource.Kind, name, spec string) {
	w.Put(t, resource.Meta{Key: resource.Key{Kind: kind, Mesh: "m", Name: name}}, spec)
}

// mesh is a world in which web-1 calls backend by a route.
func mesh(t *testing.T, spec string) policytest.World {
	w := policytest.NewWorld()
	w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, spec)
	put(t, w, resource.KindDataplane, "web-1", `{"networking":{"address":"10.0.0.9","inbound":[{"port":8080,"tags":{"kuma.io/service":"web"}}],
		"outbound":[{"port":4001,"tags":{"kuma.io/service":"backend"}}]}}`)
	put(t, w, resource.KindDataplane, "backend-1", `{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"backend"}}]}}`)
	put(t, w, resource.KindDataplane, "secret-1", `{"networking":{"address":"10.0.0.2","inbound":[{"port":80,"tags":{"kuma.io/service":"secret"}}]}}`)
	put(t, w, resource.KindGRPCRoute, "to-secret", `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[
		{"filters":[{"type":"RequestHeaderModifier","requestHeaderModifier":{"remove":["a"]}}],"backendRefs":[{"name":"secret"}]}]}`)
	put(t, w, resource.KindMeshUpstreamTimeout, "slow", `{"to":[{"targetRef":{"kind":"Mesh"},"default":{"connectTimeout":"1s","http":{"requestTimeout":"3s"}}}]}`)
	put(t, w, resource.KindTrafficPermission, "only-web", `{"sources":[{"match":{"kuma.io/service":"web"}}],"destinations":[{"match":{"kuma.io/service":"*"}}]}`)
	put(t, w, resource.KindMeshCircuitBreaker, "both", `{"to":[{"targetRef":{"kind":"Mesh"},"default":{"connectionLimits":{"maxRequests":7}}}],
		"from":[{"targetRef":{"kind":"Mesh"},"default":{"connectionLimits":{"maxRequests":8}}}]}`)
	return w
}

func ask(t *testing.T, w policytest.World, name, kind string) (*wire.Answer, error) {
	t.Helper()
	m := policy.NewMatcher(engines.All()...).Following(world.New("east"))
	m.Reset(w.View())
	return wire.Ask(m, "m", name, kind, "", "east", 7)
}

func TestWhatHasNoEffectIsListed(t *testing.T) {
	a, err := ask(t, mesh(t, "{}"), "web-1", "")
	require.NoError(t, err)
	var lines []string
	for _, g := range a.Gaps {
		lines = append(lines, strings.Join([]string{g.Attachment, string(g.Kind), g.Name, g.Field, string(g.Status)}, " | "))
		require.NotEmpty(t, g.Note)
	}
	require.Equal(t, []string{
		"inbound web:8080 | MeshCircuitBreaker | both | /connectionLimits/maxRequests | unsupported",
		"inbound web:8080 | TrafficPermission | only-web |  | unsupported",
		"outbound backend:4001 | MeshUpstreamTimeout | slow | /connectTimeout | unsupported",
		"outbound backend:4001 | MeshUpstreamTimeout | slow | /http/requestTimeout | approximated",
		"outbound backend:4001 | GRPCRoute | to-secret | /rules/0/filters/0/requestHeaderModifier/remove | unsupported",
		"outbound backend:4001 | GRPCRoute | to-secret | /rules/0/filters/0/type | unsupported",
	}, lines)
}

func TestTheAnswer(t *testing.T) {
	w := mesh(t, "{}")
	a, err := ask(t, w, "web-1", "RDS")
	require.NoError(t, err)
	require.Len(t, a.Resources, 2)
	first, err := answer.Marshal(a)
	require.NoError(t, err)
	again, err := ask(t, w, "web-1", "RDS")
	require.NoError(t, err)
	second, err := answer.Marshal(again)
	require.NoError(t, err)
	require.Equal(t, string(first), string(second), "the same bytes")
	require.Contains(t, string(first), `"maxStreamDuration": "3s"`)

	var page bytes.Buffer
	require.NoError(t, wire.Render(&page, a, answer.Form{Wide: true}))
	require.Contains(t, page.String(), "RDS   out_backend_4001")
	require.Contains(t, page.String(), "/virtualHosts/0/routes/0 is GRPCRoute to-secret /rules/0")

	_, err = ask(t, w, "web-9", "")
	require.ErrorIs(t, err, answer.ErrNotFound)
	_, err = ask(t, w, "web-1", "XDS")
	require.ErrorIs(t, err, answer.ErrInvalid)
	_, err = wire.Ask(policy.NewMatcher(engines.All()...), "m", "web-1", "", "", "", 0)
	require.ErrorIs(t, err, answer.ErrInvalid)
}

// Permissions are enforced where every caller has a certificate. In a PERMISSIVE mesh Envoys
// have them decide about callers that have one, and gRPC has none.
func TestPermissionsByMode(t *testing.T) {
	of := func(kind, mode string) string {
		return `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"` + kind + `","mode":"` + mode + `"}]}}`
	}
	for name, c := range map[string]struct {
		mesh        string
		envoy, grpc support.Status
	}{
		"STRICT":                        {of("builtin", "STRICT"), support.Enforced, support.Enforced},
		"PERMISSIVE":                    {of("builtin", "PERMISSIVE"), support.Approximated, support.Unsupported},
		"PERMISSIVE, no certificates":   {of("vault", "PERMISSIVE"), support.Unsupported, support.Unsupported},
		"a mesh without any mutual TLS": {"{}", support.Unsupported, support.Unsupported},
	} {
		zone := world.New("east")
		zone.Reset(mesh(t, c.mesh).View())
		for dialect, want := range map[xds.Dialect]support.Status{xds.Envoy: c.envoy, xds.GRPC: c.grpc} {
			got := wire.Permissions(zone.Mesh("m"), dialect)
			require.Equal(t, want, got.Status, "%s %s", name, dialect)
			require.Equal(t, want == support.Enforced, got.Note == "", "%s %s", name, dialect)
		}
	}
}

// In a mesh whose certificates zones cannot issue nothing is sent, and the page says so.
func TestWhatIsWithheld(t *testing.T) {
	a, err := ask(t, mesh(t, `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"vault"}]}}`), "web-1", "")
	require.NoError(t, err)
	require.Empty(t, a.Resources)
	var page bytes.Buffer
	require.NoError(t, wire.Render(&page, a, answer.Form{}))
	require.Contains(t, page.String(), "Nothing is sent: mesh m has mutual TLS enabled")

	reason := a.Withheld
	for _, read := range []bool{true, false} {
		a.Withheld = reason
		proxies := answer.ProxiesAnswer{Items: []answer.ProxyStatus{{Mesh: "m", Name: "web-1", Streams: []answer.ProxyStream{{Withheld: reason}}}}}
		may := func(key resource.Key) (bool, bool) { return read || key.Kind != resource.KindMesh, true }
		a.Restrict(may)
		proxies.Restrict(may)
		for _, got := range []string{a.Withheld, proxies.Items[0].Streams[0].Withheld} {
			require.NotEmpty(t, got)
			require.Equal(t, read, strings.Contains(got, "vault"), "what the mesh has is for who may read it: %s", got)
		}
	}
}

// §6.1: what a reader may not read is neither in a resource nor in the name of one.
func TestARestrictedAnswer(t *testing.T) {
	whole, err := ask(t, mesh(t, "{}"), "web-1", "")
	require.NoError(t, err)
	text, err := answer.Marshal(whole)
	require.NoError(t, err)
	require.Contains(t, string(text), "secret")
	for name, hidden := range map[string]func(resource.Key) bool{
		"the route":     func(key resource.Key) bool { return key.Kind == resource.KindGRPCRoute },
		"the dataplane": func(key resource.Key) bool { return key.Name == "secret-1" },
	} {
		t.Run(name, func(t *testing.T) {
			a, err := ask(t, mesh(t, "{}"), "web-1", "")
			require.NoError(t, err)
			a.Restrict(func(key resource.Key) (read, known bool) { return !hidden(key), true })
			require.True(t, a.Partial.Partial)
			text, err := answer.Marshal(a)
			require.NoError(t, err)
			require.NotContains(t, string(text), "10.0.0.2")
			if name == "the route" {
				require.NotContains(t, string(text), "secret")
			}
			require.Contains(t, string(text), "in_8080")
		})
	}
}

// An Envoy of the same dataplane has other resources, other gaps, and inbounds and
// outbounds that it cannot serve.
// Routes that are larger than clients receive fail the requests of their outbound, and of no
// other, and the answer names what they are from.
func TestRoutesThatAreTooLarge(t *testing.T) {
	for _, dialect := range []xds.Dialect{xds.GRPC, xds.Envoy} {
		t.Run(string(dialect), func(t *testing.T) {
			w := mesh(t, "{}")
			put(t, w, resource.KindDataplane, "web-1", `{"networking":{"address":"10.0.0.9","inbound":[{"port":8080,"tags":{"kuma.io/service":"web"}}],
				"outbound":[{"port":4001,"tags":{"kuma.io/service":"backend"}},{"port":4002,"tags":{"kuma.io/service":"secret"}}]}}`)
			put(t, w, resource.KindDataplane, "backend-1", `{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"backend","kuma.io/protocol":"grpc"}}]}}`)
			put(t, w, resource.KindDataplane, "secret-1", `{"networking":{"address":"10.0.0.2","inbound":[{"port":80,"tags":{"kuma.io/service":"secret","kuma.io/protocol":"grpc"}}]}}`)
			m := policy.NewMatcher(engines.All()...).Following(world.New("east"))
			m.Reset(w.View())
			before, err := wire.Ask(m, "m", "web-1", "", dialect, "east", 7)
			require.NoError(t, err)

			match := func(i, j int) string {
				return fmt.Sprintf(`{"headers":[{"name":"a","value":"%d-%d-%s"}]}`, i, j, strings.Repeat("v", 1000))
			}
			for i := range 50 {
				var rules []string
				for range 8 {
					var matches []string
					for j := range 8 {
						matches = append(matches, match(i, j))
					}
					rules = append(rules, `{"matches":[`+strings.Join(matches, ",")+`],"backendRefs":[{"name":"backend"}]}`)
				}
				put(t, w, resource.KindGRPCRoute, fmt.Sprintf("large-%02d", i), `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[`+strings.Join(rules, ",")+`]}`)
			}
			m.Reset(w.View())
			a, err := wire.Ask(m, "m", "web-1", "", dialect, "east", 8)
			require.NoError(t, err)
			require.Empty(t, a.Withheld)
			routes := map[string]string{}
			for _, r := range a.Resources {
				require.Less(t, len(r.Resource), 3<<20)
				require.NotContains(t, r.Name, "cl_backend", "a cluster that nothing leads to")
				routes[r.Type+r.Name] = string(r.Resource)
			}
			require.NotContains(t, routes["RDSout_backend_4001"], `"cluster"`, "every request fails")
			for _, r := range before.Resources {
				if r.Name == "out_secret_4002" {
					require.JSONEq(t, string(r.Resource), routes[r.Type+r.Name], "the other outbound is as before")
				}
			}
			require.NotEmpty(t, routes["RDSout_secret_4002"])
			named := map[string]bool{}
			for _, g := range a.Gaps {
				if strings.Contains(g.Note, "every request of this outbound fails: RDS out_backend_4001 has ") {
					require.Equal(t, "outbound backend:4001", g.Attachment)
					named[g.Name] = true
				}
			}
			require.True(t, named["large-00"] && named["large-39"], named)
		})
	}
}

func TestAnEnvoyIsAskedFor(t *testing.T) {
	w := mesh(t, "{}")
	put(t, w, resource.KindDataplane, "web-1", `{"networking":{"address":"127.0.0.1","inbound":[{"port":8080,"tags":{"kuma.io/service":"web"}}],
		"outbound":[{"port":4001,"tags":{"kuma.io/service":"backend"}}]}}`)
	m := policy.NewMatcher(engines.All()...).Following(world.New("east"))
	m.Reset(w.View())
	a, err := wire.Ask(m, "m", "web-1", "LDS", xds.Envoy, "east", 7)
	require.NoError(t, err)
	require.Equal(t, xds.Envoy, a.Dialect)
	require.Len(t, a.Resources, 1)
	require.Equal(t, "out_backend_4001", a.Resources[0].Name)
	require.Equal(t, "/networking/inbound/0", a.Gaps[0].Field)
	require.Contains(t, a.Gaps[0].Note, "connect to itself")
	for _, g := range a.Gaps {
		require.NotEqual(t, "/connectTimeout", g.Field, "Envoy has it")
	}
	_, err = wire.Ask(m, "m", "web-1", "", "other", "east", 7)
	require.ErrorIs(t, err, answer.ErrInvalid)
}
