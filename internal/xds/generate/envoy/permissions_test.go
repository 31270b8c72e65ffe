package envoy_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	matchingv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate/envoy"
	"meridian/internal/xds/world"
)

// callee is a world with the dataplane backend-1, with inbounds, in a mesh with a mode.
func callee(t require.TestingT, mode, inbounds string) policytest.World {
	w := policytest.NewWorld()
	w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, modes[mode])
	put(t, w, resource.KindDataplane, "backend-1", `{"networking":{"address":"10.0.0.1","inbound":[`+inbounds+`]}}`)
	return w
}

const (
	httpInbound = `{"port":80,"servicePort":8080,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east","kuma.io/protocol":"http"}}`
	tcpInbound  = `{"port":81,"servicePort":8081,"tags":{"kuma.io/service":"store","kuma.io/zone":"east"}}`
)

func listener(t require.TestingT, set *xds.Set, name string) *listenerv3.Listener {
	m, err := set.Get(xds.Ref{Type: xds.Listener, Name: name}).Message()
	require.NoError(t, err)
	return m.(*listenerv3.Listener)
}

func managerOf(t require.TestingT, chain *listenerv3.FilterChain) *httpv3.HttpConnectionManager {
	m := &httpv3.HttpConnectionManager{}
	require.NoError(t, chain.GetFilters()[len(chain.GetFilters())-1].GetTypedConfig().UnmarshalTo(m))
	return m
}

// decides are the lists of an inbound by which its routes decide.
func decides(t require.TestingT, set *xds.Set, name string) (lists []*matchingv3.Matcher) {
	m, err := set.Get(xds.Ref{Type: xds.Route, Name: name}).Message()
	require.NoError(t, err)
	for _, f := range managerOf(t, listener(t, set, name).GetFilterChains()[0]).GetHttpFilters() {
		var base httprbacv3.RBAC
		if f.GetTypedConfig().UnmarshalTo(&base) != nil || base.GetShadowRulesStatPrefix() != "" {
			continue
		}
		require.Nil(t, base.GetMatcher().GetMatcherType(), "only routes open")
		require.NotNil(t, base.GetMatcher().GetOnNoMatch())
		var own httprbacv3.RBACPerRoute
		require.NoError(t, m.(*routev3.RouteConfiguration).GetVirtualHosts()[0].GetTypedPerFilterConfig()[f.GetName()].UnmarshalTo(&own))
		lists = append(lists, own.GetRbac().GetMatcher())
	}
	return lists
}

// Every caller without a certificate is refused in a mesh whose mode is STRICT, and one with
// may call what the lists of all inbounds at the address allow.
func TestInboundsDemandCertificates(t *testing.T) {
	shared := strings.Replace(httpInbound, `"backend"`, `"admin"`, 1)
	set := generate(t, callee(t, "STRICT", httpInbound+","+shared+","+tcpInbound), "backend-1")
	for _, name := range []string{"in_80", "in_81"} {
		l := listener(t, set, name)
		require.Len(t, l.GetFilterChains(), 1)
		var server tlsv3.DownstreamTlsContext
		require.NoError(t, l.GetFilterChains()[0].GetTransportSocket().GetTypedConfig().UnmarshalTo(&server))
		require.True(t, server.GetRequireClientCertificate().GetValue())
		require.Len(t, server.GetCommonTlsContext().GetCombinedValidationContext().GetDefaultValidationContext().GetMatchTypedSubjectAltNames(), 1)
	}
	require.Len(t, decides(t, set, "in_80"), 2)
	set = generate(t, callee(t, "none", httpInbound), "backend-1")
	require.Nil(t, listener(t, set, "in_80").GetFilterChains()[0].GetTransportSocket())
	require.Empty(t, decides(t, set, "in_80"))
}

// A change of permissions changes no listener that speaks HTTP.
func TestPermissionsAreInRoutes(t *testing.T) {
	w := callee(t, "STRICT", httpInbound+","+tcpInbound)
	before := generate(t, w, "backend-1")
	put(t, w, resource.KindMeshTrafficPermission, "p", `{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"Mesh"},"default":{"action":"ALLOW"}}]}`)
	after := generate(t, w, "backend-1")
	version := func(set *xds.Set, kind xds.Type, name string) string {
		return set.Get(xds.Ref{Type: kind, Name: name}).Version
	}
	require.Equal(t, version(before, xds.Listener, "in_80"), version(after, xds.Listener, "in_80"))
	require.NotEqual(t, version(before, xds.Route, "in_80"), version(after, xds.Route, "in_80"))
	require.NotEqual(t, version(before, xds.Listener, "in_81"), version(after, xds.Listener, "in_81"))
}

// The application behind an inbound without HTTP is connected to once it is known that the
// caller may call it.
func TestConnectionsWaitForTheDecision(t *testing.T) {
	from := func(entries ...string) string {
		var all []string
		for i, action := range entries {
			all = append(all, fmt.Sprintf(`{"targetRef":{"kind":"Service","name":"s%d"},"default":{"action":%q}}`, i, action))
		}
		return `{"targetRef":{"kind":"Mesh"},"from":[` + strings.Join(all, ",") + `]}`
	}
	for spec, names := range map[string]int{"": 1, from("ALLOW"): 1, from("ALLOW", "ALLOW"): 2, from("DENY", "ALLOW"): 0} {
		w := callee(t, "STRICT", tcpInbound)
		if spec != "" {
			put(t, w, resource.KindMeshTrafficPermission, "p", spec)
		}
		chain := listener(t, generate(t, w, "backend-1"), "in_81").GetFilterChains()[0]
		require.Len(t, chain.GetFilters(), 2)
		var proxy tcpv3.TcpProxy
		require.NoError(t, chain.GetFilters()[1].GetTypedConfig().UnmarshalTo(&proxy))
		var server tlsv3.DownstreamTlsContext
		require.NoError(t, chain.GetTransportSocket().GetTypedConfig().UnmarshalTo(&server))
		got := server.GetCommonTlsContext().GetCombinedValidationContext().GetDefaultValidationContext().GetMatchTypedSubjectAltNames()
		if names > 0 {
			require.Len(t, got, names, spec)
			require.Equal(t, tcpv3.UpstreamConnectMode_ON_DOWNSTREAM_TLS_HANDSHAKE, proxy.GetUpstreamConnectMode())
			continue
		}
		require.Len(t, got, 1)
		require.Equal(t, tcpv3.UpstreamConnectMode_ON_DOWNSTREAM_DATA, proxy.GetUpstreamConnectMode())
	}
}

// More permissions than a proxy takes deny every caller.
func TestPermissionsAreBounded(t *testing.T) {
	for policies, open := range map[int]bool{1: true, 41: false} {
		w := callee(t, "STRICT", httpInbound+","+tcpInbound)
		for p := range policies {
			var from []string
			for i := range 500 {
				from = append(from, fmt.Sprintf(`{"targetRef":{"kind":"MeshService","name":"s%d-%d"},"default":{"action":%q}}`, p, i, [2]string{"ALLOW", "DENY"}[i%2]))
			}
			put(t, w, resource.KindMeshTrafficPermission, fmt.Sprintf("p%d", p), `{"targetRef":{"kind":"Mesh"},"from":[`+strings.Join(from, ",")+`]}`)
		}
		set := generate(t, w, "backend-1")
		list := decides(t, set, "in_80")[0]
		require.Equal(t, open, list.GetMatcherList() != nil)
		require.Equal(t, !open, strings.Contains(string(list.GetOnNoMatch().GetAction().GetTypedConfig().GetValue()), "too-many-permissions"))
		for r := range set.All() {
			require.Less(t, len(r.Body), 4<<20)
		}
	}
}

// The names for the handshake count: where they and the permissions are more than a
// listener takes, callers of that inbound are denied, and the others are served.
func TestNamesForTheHandshakeAreBounded(t *testing.T) {
	for policies, open := range map[int]bool{7: true, 8: false} {
		w := callee(t, "STRICT", httpInbound+","+tcpInbound)
		for p := range policies {
			var from []string
			for i := range 1000 {
				from = append(from, fmt.Sprintf(`{"targetRef":{"kind":"MeshService","name":"s%d-%d"},"default":{"action":"ALLOW"}}`, p, i))
			}
			put(t, w, resource.KindMeshTrafficPermission, fmt.Sprintf("p%d", p), `{"targetRef":{"kind":"Mesh"},"from":[`+strings.Join(from, ",")+`]}`)
		}
		set := generate(t, w, "backend-1")
		require.Empty(t, set.Withheld)
		require.NotNil(t, decides(t, set, "in_80")[0].GetMatcherList(), "requests have no names for the handshake")
		chain := listener(t, set, "in_81").GetFilterChains()[0]
		var rbac networkrbacv3.RBAC
		require.NoError(t, chain.GetFilters()[0].GetTypedConfig().UnmarshalTo(&rbac))
		require.Equal(t, open, rbac.GetMatcher().GetMatcherList() != nil)
		require.Equal(t, !open, strings.Contains(string(rbac.GetMatcher().GetOnNoMatch().GetAction().GetTypedConfig().GetValue()), "too-many-permissions"))
		var proxy tcpv3.TcpProxy
		require.NoError(t, chain.GetFilters()[1].GetTypedConfig().UnmarshalTo(&proxy))
		require.Equal(t, open, proxy.GetUpstreamConnectMode() == tcpv3.UpstreamConnectMode_ON_DOWNSTREAM_TLS_HANDSHAKE, "nothing of the application is heard by who is denied")
	}
}

// A mesh of whose name no names in certificates can be made has plaintext only where that is
// accepted, and nothing where it is not.
func TestMeshWithoutNamesInCertificates(t *testing.T) {
	for _, mesh := range []string{"m.n", strings.Repeat("m", 64)} {
		for mode, served := range map[string]bool{"PERMISSIVE": true, "STRICT": false} {
			w := policytest.NewWorld()
			w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: mesh}}, modes[mode])
			key := policy.DataplaneKey(resource.MeshName(mesh), "backend-1")
			w.Put(t, resource.Meta{Key: key}, `{"networking":{"address":"10.0.0.1","inbound":[`+httpInbound+`,`+tcpInbound+`],"outbound":[{"port":90,"tags":{"kuma.io/service":"backend"}}]}}`)
			state := world.New("east")
			m := policy.NewMatcher(engines.All()...).Following(state)
			m.Reset(w.View())
			set, err := envoy.Proxy(m, state, key, 1)
			require.NoError(t, err)
			if !served {
				require.Contains(t, set.Withheld, "names in certificates cannot be made of it")
				continue
			}
			require.Empty(t, set.Withheld)
			requireValid(t, set, set)
			for _, name := range []string{"in_80", "in_81"} {
				chains := listener(t, set, name).GetFilterChains()
				require.Len(t, chains, 1)
				require.Nil(t, chains[0].GetTransportSocket())
			}
		}
	}
}

// What random permissions on random inbounds come to is valid, whatever the mode.
func TestRandomPermissionsAreValid(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	for range 60 {
		var inbounds []string
		for range 1 + r.IntN(4) {
			inbounds = append(inbounds, fmt.Sprintf(`{"port":%d,"servicePort":%d,"address":%q,"tags":{"kuma.io/service":%q,"kuma.io/zone":"east","kuma.io/protocol":%q}}`,
				80+r.IntN(2), 8080+r.IntN(2), pick("10.0.0.1", "10.0.0.2"), pick("a", "b"), pick("http", "tcp", "grpc")))
		}
		w := callee(t, pick("none", "STRICT", "PERMISSIVE"), strings.Join(inbounds, ","))
		for i := range r.IntN(4) {
			put(t, w, resource.KindTrafficPermission, fmt.Sprintf("o%d", i), fmt.Sprintf(`{"sources":[{"match":{"kuma.io/service":%q,"v":%q}}],"destinations":[{"match":{"kuma.io/service":%q}}]}`, pick("x", "y", "*"), pick("1", ".+", "é", "*"), pick("a", "b", "*")))
		}
		for i := range r.IntN(3) {
			put(t, w, resource.KindMeshTrafficPermission, fmt.Sprintf("n%d", i), fmt.Sprintf(`{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"MeshSubset","tags":{"v":%q}},"default":{"action":%q}},{"targetRef":{"kind":"Mesh"},"default":{"action":%q}}]}`,
				pick("1", "2", "*"), pick("ALLOW", "DENY"), pick("ALLOW", "DENY")))
		}
		requireValid(t, generate(t, w, "backend-1"), generate(t, w, "backend-1"))
	}
}
