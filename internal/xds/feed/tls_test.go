package feed

import (
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/internal/xds"
)

// In a mesh whose mode is PERMISSIVE an Envoy with a certificate uses TLS to the endpoints
// whose proxies have a certificate and listeners with TLS, and to no other. In STRICT
// everyone uses it, and without mutual TLS none does, but inbounds accept it for as long as
// their proxies have a certificate.
func TestTLSToWhoAcceptsIt(t *testing.T) {
	z := newZone(t)
	mode := func(mode string) store.Op {
		if mode == "" {
			return z.put(resource.KindMesh, "", "m", "{}")
		}
		return z.put(resource.KindMesh, "", "m", `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin","mode":"`+mode+`"}]}}`)
	}
	const served = `{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"servicePort":8080,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east"}}]}}`
	web, backend := policy.DataplaneKey("m", "web"), policy.DataplaneKey("m", "backend")
	z.apply(mode("PERMISSIVE"), z.put(resource.KindDataplane, "m", "backend", served), z.put(resource.KindDataplane, "m", "web",
		`{"networking":{"address":"10.0.0.2","inbound":[{"port":80,"servicePort":8080,"tags":{"kuma.io/service":"web","kuma.io/zone":"east"}}],"outbound":[{"port":81,"tags":{"kuma.io/service":"backend"}}]}}`))
	z.follow("web")
	z.follow("backend")
	mixed := false // there is an endpoint without TLS after those
	is := func(cluster, endpoint, listener string) {
		t.Helper()
		var found [3]string
		read := func(name string, typ xds.Type) {
			set, err := z.feed.Resources(policy.DataplaneKey("m", name), xds.Envoy)
			require.NoError(t, err)
			for _, r := range set.Of(typ) {
				m, err := r.Message()
				require.NoError(t, err)
				switch m := m.(type) {
				case *clusterv3.Cluster:
					switch {
					case m.GetEdsClusterConfig() == nil:
					case m.GetTransportSocket() != nil:
						found[0] = "TLS"
					case len(m.GetTransportSocketMatches()) > 0:
						found[0] = "both"
					default:
						found[0] = "plaintext"
					}
				case *endpointv3.ClusterLoadAssignment:
					found[1] = "plaintext"
					if m.GetEndpoints()[0].GetLbEndpoints()[0].GetMetadata() != nil {
						found[1] = "TLS"
					}
				case *listenerv3.Listener:
					chains := m.GetFilterChains()
					found[2] = map[bool]string{true: "TLS", false: "plaintext"}[chains[0].GetTransportSocket() != nil]
					require.Equal(t, found[2] == "TLS", r.Secure)
					if len(chains) > 1 {
						found[2] = "both"
					}
				}
			}
		}
		read("web", xds.Cluster)
		read("web", xds.Endpoints)
		read("backend", xds.Listener)
		require.Equal(t, [3]string{cluster, endpoint, listener}, found)
		// A gRPC client has one way to call all endpoints.
		set, err := z.feed.Resources(web, xds.GRPC)
		require.NoError(t, err)
		secure := 0
		for _, r := range set.Of(xds.Cluster) {
			m, err := r.Message()
			require.NoError(t, err)
			require.Empty(t, m.(*clusterv3.Cluster).GetTransportSocketMatches(), "gRPC rejects them")
			if m.(*clusterv3.Cluster).GetTransportSocket() != nil {
				secure++
			}
		}
		require.Equal(t, cluster == "TLS" || cluster == "both" && endpoint == "TLS" && !mixed, secure == 1)
	}
	is("plaintext", "plaintext", "both")
	z.feed.Certified(backend, true)
	is("plaintext", "plaintext", "both")
	clear(z.touched)
	z.feed.Listening(backend, true, true)
	require.True(t, z.touched[web], "its callers are sent it")
	is("plaintext", "TLS", "both")
	clear(z.touched)
	z.feed.Listening(backend, true, true)
	require.Empty(t, z.touched, "nothing is new")
	z.feed.Certified(web, true)
	is("both", "TLS", "both")
	z.feed.Listening(backend, true, false)
	is("both", "plaintext", "both")
	z.feed.Listening(backend, true, true)
	z.apply(mode("STRICT"))
	is("TLS", "TLS", "TLS")
	z.feed.Listening(backend, true, false)
	is("TLS", "TLS", "TLS")
	z.feed.Listening(backend, true, true)
	z.apply(mode(""))
	is("plaintext", "plaintext", "both")
	z.feed.Certified(backend, false)
	is("plaintext", "plaintext", "plaintext")
	z.feed.Certified(backend, true)
	z.apply(mode("PERMISSIVE"))
	is("both", "TLS", "both")
	other := policy.DataplaneKey("m", "later") // after backend in lists of endpoints
	z.apply(z.put(resource.KindDataplane, "m", "later", strings.Replace(served, "10.0.0.1", "10.0.0.9", 1)))
	mixed = true
	is("both", "TLS", "both")
	z.feed.Certified(other, true)
	z.feed.Listening(other, true, true)
	mixed = false
	is("both", "TLS", "both")
	z.apply(store.Delete(other))
	// An inbound without a listener is the application itself, without TLS.
	z.apply(z.put(resource.KindDataplane, "m", "backend", `{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"servicePort":8080,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east"}},
		{"port":82,"serviceAddress":"10.0.0.1","tags":{"kuma.io/service":"other","kuma.io/zone":"east"}}]}}`))
	z.feed.Listening(backend, true, true)
	is("both", "plaintext", "both")
	// What is registered anew begins without.
	z.apply(store.Delete(backend))
	z.apply(z.put(resource.KindDataplane, "m", "backend", served))
	is("both", "plaintext", "both")
	z.feed.Listening(backend, true, true)
	is("both", "plaintext", "both")
	z.feed.Certified(backend, true)
	is("both", "TLS", "both")
}
