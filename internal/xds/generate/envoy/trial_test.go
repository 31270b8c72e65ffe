package envoy_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate/envoy"
	"meridian/internal/xds/world"
)

// try puts a policy that is only tried.
func try(t require.TestingT, w policytest.World, kind resource.Kind, name, spec string) {
	w.Put(t, resource.Meta{Key: resource.Key{Kind: kind, Mesh: "m", Name: name}, Labels: map[string]string{resource.EnforcementLabel: resource.EnforcementShadow}}, spec)
}

// trying is generate in a zone that knows what is tried.
func trying(t require.TestingT, w policytest.World, name string) *xds.Set {
	state := world.New("east")
	m := policy.NewMatcher(engines.All()...).Following(state).Following(engines.Trial())
	m.Reset(w.View())
	set, err := envoy.Proxy(m, state, policy.DataplaneKey("m", name), 1)
	require.NoError(t, err)
	return set
}

// untried takes out of a resource what tries something, after a look that it decides nothing.
func untried(t require.TestingT, r *xds.Resource) string {
	m, err := r.Message()
	require.NoError(t, err)
	switch m := m.(type) {
	case *routev3.RouteConfiguration:
		for _, host := range m.GetVirtualHosts() {
			for name, packed := range host.GetTypedPerFilterConfig() {
				if !strings.HasPrefix(name, "tried") {
					continue
				}
				var tried httprbacv3.RBACPerRoute
				require.NoError(t, packed.UnmarshalTo(&tried))
				require.True(t, tried.GetRbac().GetMatcher() == nil && tried.GetRbac().GetRules() == nil, "it decides")
				delete(host.GetTypedPerFilterConfig(), name)
			}
			for _, route := range host.GetRoutes() {
				route.Metadata = nil
			}
		}
	case *listenerv3.Listener:
		for _, chain := range m.GetFilterChains() {
			var rest []*listenerv3.Filter
			triedHere := false
			for _, f := range chain.GetFilters() {
				if strings.HasPrefix(f.GetName(), "tried") {
					var tried networkrbacv3.RBAC
					require.NoError(t, f.GetTypedConfig().UnmarshalTo(&tried))
					require.True(t, tried.GetMatcher() == nil && tried.GetRules() == nil, "it decides")
					triedHere = true
					continue
				}
				var proxy tcpv3.TcpProxy
				if triedHere && f.GetTypedConfig().UnmarshalTo(&proxy) == nil {
					proxy.AccessLog = proxy.GetAccessLog()[:len(proxy.GetAccessLog())-1] // that of trials
					f.ConfigType.(*listenerv3.Filter_TypedConfig).TypedConfig, err = xds.Pack(&proxy)
					require.NoError(t, err)
				}
				rest = append(rest, f)
			}
			chain.Filters = rest
		}
	}
	made, err := xds.New(m)
	require.NoError(t, err)
	return made.Version
}

// A permission that is only tried changes no decision: without what tries it, and what only
// tries, an Envoy is sent what it is sent without the permission.
func TestWhatIsTriedDecidesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	differed := 0
	for range 60 {
		var inbounds []string
		for range 1 + r.IntN(3) {
			inbounds = append(inbounds, fmt.Sprintf(`{"port":%d,"servicePort":8080,"tags":{"kuma.io/service":%q,"kuma.io/zone":"east","kuma.io/protocol":%q}}`, 80+r.IntN(2), pick("a", "b"), pick("http", "tcp")))
		}
		mode := pick("none", "STRICT", "PERMISSIVE")
		with, without := callee(t, mode, strings.Join(inbounds, ",")), callee(t, mode, strings.Join(inbounds, ","))
		for i := range 1 + r.IntN(4) {
			kind, spec := resource.KindTrafficPermission, fmt.Sprintf(`{"sources":[{"match":{"kuma.io/service":%q}}],"destinations":[{"match":{"kuma.io/service":%q}}]}`, pick("x", "y", "*"), pick("a", "b", "*"))
			if r.IntN(2) == 0 {
				kind, spec = resource.KindMeshTrafficPermission, fmt.Sprintf(`{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"MeshSubset","tags":{"v":%q}},"default":{"action":%q}},{"targetRef":{"kind":"Mesh"},"default":{"action":%q}}]}`,
					pick("1", "2"), pick("ALLOW", "DENY"), pick("ALLOW", "DENY"))
			}
			if r.IntN(2) == 0 {
				try(t, with, kind, fmt.Sprintf("p%d", i), spec)
				continue
			}
			put(t, with, kind, fmt.Sprintf("p%d", i), spec)
			put(t, without, kind, fmt.Sprintf("p%d", i), spec)
		}
		set, held := trying(t, with, "backend-1"), generate(t, without, "backend-1")
		requireValid(t, set, trying(t, with, "backend-1"))
		require.Equal(t, held.Len(), set.Len())
		for r := range held.All() {
			got := set.Get(r.Ref())
			require.NotNil(t, got)
			if got.Version == r.Version {
				continue
			}
			differed++
			require.NotEqual(t, "none", mode, "who calls is not known")
			require.Equal(t, untried(t, r), untried(t, got), r.Ref())
		}
	}
	require.Greater(t, differed, 10)
}

// What is tried changes no listener of HTTP, so that no connection is closed; and there is
// nothing for inbounds on which nothing else would be decided.
func TestWhatIsTriedIsInRoutes(t *testing.T) {
	w := callee(t, "STRICT", httpInbound)
	put(t, w, resource.KindMeshTrafficPermission, "all", `{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"Mesh"},"default":{"action":"ALLOW"}}]}`)
	before := trying(t, w, "backend-1")
	try(t, w, resource.KindMeshTrafficPermission, "no-web", `{"targetRef":{"kind":"MeshService","name":"backend"},"from":[{"targetRef":{"kind":"MeshService","name":"web"},"default":{"action":"DENY"}}]}`)
	after := trying(t, w, "backend-1")
	var changed []string
	for r := range after.All() {
		if before.Get(r.Ref()).Version != r.Version {
			changed = append(changed, r.Ref().String())
		}
	}
	require.Equal(t, []string{"RDS in_80"}, changed)
	named := false
	for _, o := range after.Get(xds.Ref{Type: xds.Route, Name: "in_80"}).Origins {
		named = named || o.Source.Name == "no-web"
	}
	require.True(t, named, "who may not read the policy is not shown what tries it")
	require.Empty(t, func() []string {
		var changed []string
		for r := range generate(t, w, "backend-1").All() {
			if before.Get(r.Ref()).Version != r.Version {
				changed = append(changed, r.Ref().String())
			}
		}
		return changed
	}())
}

// Permissions that are tried take nothing of what those in effect may come to.
func TestWhatIsTriedIsBounded(t *testing.T) {
	for policies, tried := range map[int]bool{6: true, 16: false} {
		w := callee(t, "STRICT", httpInbound)
		for p := range policies {
			var from []string
			for i := range 500 {
				from = append(from, fmt.Sprintf(`{"targetRef":{"kind":"MeshService","name":"s%d-%d"},"default":{"action":%q}}`, p, i, [2]string{"ALLOW", "DENY"}[i%2]))
			}
			put(t, w, resource.KindMeshTrafficPermission, fmt.Sprintf("p%d", p), `{"targetRef":{"kind":"Mesh"},"from":[`+strings.Join(from, ",")+`]}`)
		}
		try(t, w, resource.KindMeshTrafficPermission, "z", `{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"MeshService","name":"z"},"default":{"action":"ALLOW"}}]}`)
		set := trying(t, w, "backend-1")
		require.Empty(t, set.Withheld)
		require.NotNil(t, decides(t, set, "in_80")[0].GetMatcherList(), "those in effect are there")
		m, err := set.Get(xds.Ref{Type: xds.Route, Name: "in_80"}).Message()
		require.NoError(t, err)
		require.Equal(t, tried, m.(*routev3.RouteConfiguration).GetVirtualHosts()[0].GetTypedPerFilterConfig()["tried"] != nil)
	}
}
