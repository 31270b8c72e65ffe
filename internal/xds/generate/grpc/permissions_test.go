package grpc_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"meridian/internal/identity"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
	"meridian/internal/xds"
	xdsgenerate "meridian/internal/xds/generate"
	"meridian/internal/xds/generate/grpc"
	"meridian/internal/xds/world"
)

// secured is a mesh with mutual TLS; fields continue its spec.
func secured(t require.TestingT, w policytest.World, mesh, fields string) {
	w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: mesh}}, `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}`+fields+`}`)
}

// server is what a stock gRPC server decides about callers by: the filters of a listener,
// with what the routes put in their place. It reads them as gRFC A41 says.
type server struct {
	t       require.TestingT
	filters []*rbacv3.RBAC
	known   map[string]*regexp.Regexp
}

// serverOf is the server of a port.
func serverOf(t require.TestingT, set *xds.Set, port uint32) *server {
	l := message[*listenerv3.Listener](t, set, xds.Listener, fmt.Sprintf("in/0.0.0.0:%d", port))
	chain := l.GetDefaultFilterChain()
	var tls tlsv3.DownstreamTlsContext
	require.NoError(t, chain.GetTransportSocket().GetTypedConfig().UnmarshalTo(&tls))
	require.True(t, tls.GetRequireClientCertificate().GetValue())
	var manager httpv3.HttpConnectionManager
	require.NoError(t, chain.GetFilters()[0].GetTypedConfig().UnmarshalTo(&manager))
	routes := message[*routev3.RouteConfiguration](t, set, xds.Route, manager.GetRds().GetRouteConfigName())
	require.Len(t, routes.GetVirtualHosts(), 1)
	host := routes.GetVirtualHosts()[0]
	require.Len(t, host.GetRoutes(), 1)
	require.Empty(t, host.GetRoutes()[0].GetTypedPerFilterConfig())
	s := &server{t: t, known: map[string]*regexp.Regexp{}}
	for _, f := range manager.GetHttpFilters() {
		var own httprbacv3.RBAC
		if f.GetTypedConfig().UnmarshalTo(&own) != nil {
			continue
		}
		rules := own.GetRules()
		if other := host.GetTypedPerFilterConfig()[f.GetName()]; other != nil {
			var route httprbacv3.RBACPerRoute
			require.NoError(t, other.UnmarshalTo(&route))
			rules = route.GetRbac().GetRules()
		}
		require.NotNil(t, rules, "an RBAC filter without rules does nothing")
		s.filters = append(s.filters, rules)
	}
	require.Len(t, s.filters, 2)
	return s
}

// decide says whether the filter that allows lets a caller pass, and which policies deny
// it by name. A call is served if it passes and none denies it.
func (s *server) decide(uri string) (passes bool, by []string) {
	passes = true
	for _, f := range s.filters {
		matched := false
		for name, p := range f.GetPolicies() {
			require.True(s.t, len(p.GetPermissions()) == 1 && p.GetPermissions()[0].GetAny())
			if slices.ContainsFunc(p.GetPrincipals(), func(p *rbacv3.Principal) bool { return s.holds(p, uri) }) {
				matched = true
				if f.GetAction() == rbacv3.RBAC_DENY {
					by = append(by, name)
				}
			}
		}
		if f.GetAction() == rbacv3.RBAC_ALLOW {
			passes = passes && matched
		}
	}
	slices.Sort(by)
	return passes, by
}

func (s *server) holds(p *rbacv3.Principal, uri string) bool {
	within := func(p *rbacv3.Principal) bool { return s.holds(p, uri) }
	switch p := p.GetIdentifier().(type) {
	case *rbacv3.Principal_Any:
		return true
	case *rbacv3.Principal_NotId:
		return !within(p.NotId)
	case *rbacv3.Principal_OrIds:
		return slices.ContainsFunc(p.OrIds.GetIds(), within)
	case *rbacv3.Principal_AndIds:
		require.NotEmpty(s.t, p.AndIds.GetIds(), "an intersection of nothing is everyone")
		return !slices.ContainsFunc(p.AndIds.GetIds(), func(p *rbacv3.Principal) bool { return !within(p) })
	case *rbacv3.Principal_Authenticated_:
		text := p.Authenticated.GetPrincipalName().GetSafeRegex().GetRegex()
		if s.known[text] == nil {
			require.NotEmpty(s.t, text)
			s.known[text] = regexp.MustCompile("^(?:" + text + ")$")
		}
		return s.known[text].MatchString(uri)
	default:
		require.FailNow(s.t, "unknown principal", "%T", p)
		return false
	}
}

// drawnMesh draws dataplanes and permissions of both generations, with tags that look
// like parts of names and expressions.
type drawnMesh struct {
	t *rapid.T
	w policytest.World
}

func (d drawnMesh) pick(label string, of ...string) string {
	return rapid.SampledFrom(of).Draw(d.t, label)
}

func (d drawnMesh) number(label string, least, most int) int {
	return rapid.IntRange(least, most).Draw(d.t, label)
}

func (d drawnMesh) service() string { return d.pick("service", "web", "web", "backend", "_", "a/_/b") }

func (d drawnMesh) tag() string { return d.pick("tag", "version", "version", "_", "..", "a/b", "é") }

func (d drawnMesh) value() string {
	return d.pick("value", "v1", "v1", "v2", "_", "__", ".", ".+", "a/_/b", "_2F", "%2F", "é")
}

// tags are those of a dataplane.
func (d drawnMesh) tags(zone string) map[string]string {
	tags := map[string]string{resource.ServiceTag: d.service(), resource.ZoneTag: zone}
	for range d.number("tags", 0, 3) {
		if tags[d.tag()] = d.value(); d.number("with a space", 0, 9) == 0 {
			tags["a tag"] = "v .*"
		}
	}
	return tags
}

// narrow are tags that narrow a selector.
func (d drawnMesh) narrow() map[string]string {
	tags := map[string]string{}
	for range d.number("narrow", 1, 2) {
		if tags[d.tag()] = d.value(); d.number("any", 0, 3) == 0 {
			tags[d.tag()] = resource.AnyValue
		}
	}
	if d.number("by zone", 0, 5) == 0 {
		tags[resource.ZoneTag] = d.pick("zone", "east", "west", "*", "x.east")
	}
	return tags
}

// written selects in a policy.
func (d drawnMesh) written() map[string]string {
	s := map[string]string{}
	if d.number("narrowed", 0, 2) > 0 {
		s = d.narrow()
	}
	if len(s) == 0 || d.number("by service", 0, 2) > 0 {
		s[resource.ServiceTag] = d.pick("of", d.service(), d.service(), resource.AnyValue)
	}
	return s
}

func (d drawnMesh) selectors() (list []any) {
	for range d.number("selectors", 1, 2) {
		list = append(list, map[string]any{"match": d.written()})
	}
	return list
}

func (d drawnMesh) target() map[string]any {
	switch kind := d.pick("kind", "Mesh", "MeshSubset", "Service", "ServiceSubset"); kind {
	case "Mesh":
		return map[string]any{"kind": kind}
	case "MeshSubset":
		return map[string]any{"kind": kind, "tags": d.narrow()}
	case "Service":
		return map[string]any{"kind": kind, "name": d.service()}
	default:
		return map[string]any{"kind": kind, "name": d.service(), "tags": d.narrow()}
	}
}

func (d drawnMesh) put(kind resource.Kind, name string, spec any) {
	text, err := json.Marshal(spec)
	require.NoError(d.t, err)
	put(d.t, d.w, kind, name, string(text))
}

// draw puts everything, and returns the names of the dataplanes that only call.
func (d drawnMesh) draw() (callers []string) {
	secured(d.t, d.w, "m", fmt.Sprintf(`,"matching":{"sourceDestination":%q,"targetRef":%q}`, d.pick("rule set", resource.KongMesh, resource.Kuma2020), d.pick("items", resource.FirstWins, resource.LastWins)))
	var inbound []any
	for i := range d.number("inbounds", 2, 4) {
		port := 80
		if i > 0 && d.number("own port", 0, 1) == 0 {
			port = 81
		}
		inbound = append(inbound, map[string]any{"port": port, "address": fmt.Sprintf("10.0.0.%d", i+1), "tags": d.tags("east")})
	}
	d.put(resource.KindDataplane, "backend-1", map[string]any{"networking": map[string]any{"address": "10.0.0.1", "inbound": inbound}})
	for i := range d.number("callers", 1, 4) {
		name := fmt.Sprintf("web-%d", i)
		callers = append(callers, name)
		networking := map[string]any{"address": "10.0.1.1"}
		if d.number("gateway", 0, 3) == 0 {
			networking["gateway"] = map[string]any{"tags": d.tags("east")}
		} else {
			var inbound []any
			for j := range d.number("inbounds of a caller", 1, 3) {
				inbound = append(inbound, map[string]any{"port": j + 1, "tags": d.tags("east")})
			}
			networking["inbound"] = inbound
		}
		d.put(resource.KindDataplane, name, map[string]any{"networking": networking})
	}
	generation := d.number("generation", 0, 3)
	if generation != 1 {
		for i := range d.number("older permissions", 0, 5) {
			d.put(resource.KindTrafficPermission, fmt.Sprintf("older-%d", i), map[string]any{"sources": d.selectors(), "destinations": d.selectors()})
		}
	}
	if generation != 0 {
		for i := range d.number("permissions", 0, 4) {
			var from []any
			for range d.number("items of from", 1, 4) {
				from = append(from, map[string]any{"targetRef": d.target(), "default": rapid.SampledFrom([]map[string]any{
					{"action": "ALLOW"}, {"action": "DENY"}, {"action": "Allow"}, {"action": "Deny"},
				}).Draw(d.t, "action")})
			}
			d.put(resource.KindMeshTrafficPermission, fmt.Sprintf("newer-%d", i), map[string]any{"targetRef": d.target(), "from": from})
		}
	}
	return callers
}

// named is how a server's error names the policies on whose word an inbound denies.
func named(policies []string) string {
	switch {
	case len(policies) == 0:
		return xdsgenerate.NoPolicy
	case strings.HasPrefix(policies[0], "newer"):
		return "MeshTrafficPermission " + policies[0]
	case len(policies) > 3:
		return fmt.Sprintf("TrafficPermission %s, and %d more", strings.Join(policies[:3], ", "), len(policies)-3)
	default:
		return "TrafficPermission " + strings.Join(policies, ", ")
	}
}

// Whatever the permissions of a mesh are, what a stock gRPC server is sent decides about
// every caller as the answer about the connection says, and on the word of the same
// policies.
func TestServersDecideAsTheAnswerSays(t *testing.T) {
	counts := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		d := drawnMesh{t, policytest.NewWorld()}
		callers := d.draw()
		state := world.New("east")
		m := policy.NewMatcher(engines.All()...).Following(state)
		m.Reset(d.w.View())
		set, err := grpc.Proxy(m, state, policy.DataplaneKey("m", "backend-1"), 1)
		require.NoError(t, err)
		require.Empty(t, set.Withheld)
		servers := map[uint32]*server{}
		check := func(uri string, q answer.ConnectionQuestion) {
			q.Mesh, q.To = "m", "backend-1"
			a, err := answer.Connection(m, q, 1)
			require.NoError(t, err)
			if len(a.Inbounds) == 0 { // all are equal, and count as one: such an answer lists no inbounds
				return
			}
			allowed, by := map[uint32]bool{}, map[uint32][]string{}
			for _, in := range a.Inbounds {
				if _, known := allowed[in.Port]; !known {
					allowed[in.Port] = true
				}
				if !in.Allowed {
					allowed[in.Port] = false
					by[in.Port] = append(by[in.Port], named(in.DeniedBy))
				}
			}
			for port, want := range allowed {
				if servers[port] == nil {
					servers[port] = serverOf(t, set, port)
				}
				got, names := servers[port].decide(uri) // each filter alone, since one would hide the other's mistake
				require.Equal(t, want, got, "port %d, caller %s", port, uri)
				slices.Sort(by[port])
				require.Equal(t, slices.Compact(by[port]), names, "port %d, caller %s", port, uri)
				counts[fmt.Sprintf("allowed %t", got)]++
				for _, name := range names {
					counts[strings.TrimRight(name, "0123456789,- ")]++
				}
			}
		}
		for _, caller := range append(callers, "backend-1") {
			r := d.w.Resources[policy.DataplaneKey("m", caller)]
			uri, err := identity.Of("east", "m", caller, r.Spec().(*resource.Dataplane).TagSets())
			require.NoError(t, err)
			check(uri, answer.ConnectionQuestion{From: caller})
			for port, s := range servers {
				for _, forged := range []string{
					strings.Replace(uri, "east.m/", "east.n/", 1), strings.Replace(uri, "east.m/", "east.mm/", 1), strings.Replace(uri, "east.m/", "eastxm/", 1),
					strings.Replace(uri, "spiffe:", "https:", 1), "x" + uri, uri + "/x?", uri + "\n", strings.Replace(uri, "/dp/", "/", 1), "",
				} {
					passes, _ := s.decide(forged)
					require.False(t, passes, "port %d, %q", port, forged)
				}
			}
		}
		far := resource.Tags(d.tags("west"))
		uri, err := identity.Of("west", "m", "far", []resource.Tags{far})
		require.NoError(t, err)
		check(uri, answer.ConnectionQuestion{FromTags: far})
	})
	for _, name := range []string{"allowed true", "allowed false", xdsgenerate.NoPolicy, "TrafficPermission older", "MeshTrafficPermission newer"} {
		require.Greater(t, counts[name], 20, "%s: too few for the test to say anything: %v", name, counts)
	}
}

// Who cannot have a name that a certificate can hold is sent nothing, and so can neither
// call nor serve.
func TestWhoHasNoNameIsSentNothing(t *testing.T) {
	long := strings.Repeat("v", 250)
	many := ""
	for i := range 9 {
		many += fmt.Sprintf(`,"t%d":%q`, i, long)
	}
	for _, c := range []struct{ name, mesh, zone, tags, reason string }{
		{"tags too long for a name", "m", "east", `"kuma.io/zone":"east"` + many, "at most 2048"},
		{"the tag of another zone", "m", "east", `"kuma.io/zone":"west"`, `is "west" in zone "east"`},
		{"without the zone's tag", "m", "east", `"version":"v1"`, `is "" in zone "east"`},
		{"a mesh with a dot", "m.n", "east", `"kuma.io/zone":"east"`, `mesh "m.n"`},
		{"a zone with a dot", "m", "e.ast", `"kuma.io/zone":"e.ast"`, `zone "e.ast"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := policytest.NewWorld()
			secured(t, w, c.mesh, "")
			key := policy.DataplaneKey(resource.MeshName(c.mesh), "d")
			w.Put(t, resource.Meta{Key: key}, `{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"web",`+c.tags+`}}],"outbound":[{"port":81,"tags":{"kuma.io/service":"web"}}]}}`)
			state := world.New(resource.ZoneName(c.zone))
			m := policy.NewMatcher(engines.All()...).Following(state)
			m.Reset(w.View())
			set, err := grpc.Proxy(m, state, key, 1)
			require.NoError(t, err)
			require.Zero(t, set.Len())
			require.Contains(t, set.Withheld, c.reason)
		})
	}
}

// An action that no edition of the permissions has is refused where it is written, so
// that no proxy has to guess.
func TestActionsThatAreUnknownAreRefused(t *testing.T) {
	for _, action := range []string{"AllowWithShadowDeny", "ALLOW_WITH_SHADOW_DENY", "deny", ""} {
		_, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindMeshTrafficPermission, Mesh: "m", Name: "p"}},
			fmt.Appendf(nil, `{"from":[{"targetRef":{"kind":"Mesh"},"default":{"action":%q}}]}`, action))
		require.Error(t, err, action)
	}
}

// many puts n items that allow and deny callers in turn, turn after turn items, in as
// many policies as it takes.
func many(t require.TestingT, w policytest.World, n, turn int, tags func(int) map[string]string) {
	const most = 600
	for start := 0; start < n; start += most {
		var from []any
		for i := start; i < min(n, start+most); i++ {
			action := resource.ActionAllow
			if i/turn%2 == 1 {
				action = resource.ActionDeny
			}
			from = append(from, map[string]any{
				"targetRef": map[string]any{"kind": "MeshSubset", "tags": tags(i)}, "default": map[string]any{"action": action},
			})
		}
		text, err := json.Marshal(map[string]any{"targetRef": map[string]any{"kind": "Mesh"}, "from": from})
		require.NoError(t, err)
		put(t, w, resource.KindMeshTrafficPermission, fmt.Sprintf("long-%d", start), string(text))
	}
}

// A port with more permissions than a server can take refuses every call, and one with
// just as many decides as ever. Beyond a number of comparisons, or bytes, denials have no
// name, and are denials all the same.
func TestBoundsOfPermissions(t *testing.T) {
	zones := func(i int) map[string]string { return map[string]string{resource.ZoneTag: fmt.Sprintf("z%d", i)} }
	long := func(i int) map[string]string {
		return map[string]string{resource.ZoneTag: fmt.Sprintf("z%d", i), "version": strings.Repeat("v", 250)}
	}
	longer := func(i int) map[string]string {
		tags := long(i)
		for j := range 4 {
			tags[fmt.Sprintf("t%d", j)] = tags["version"]
		}
		return tags
	}
	const all, none = "all", "none"
	for _, c := range []struct {
		name    string
		n, turn int
		tags    func(int) map[string]string
		refused bool
		named   string // which denials have a name
	}{
		{name: "turns", n: 41, turn: 1, tags: zones, named: all},
		{name: "a turn too many", n: 42, turn: 1, tags: zones, refused: true},
		{name: "comparisons", n: 1999, turn: 1999, tags: zones, named: all},
		{name: "a comparison too many", n: 2000, turn: 2000, tags: zones, named: none},
		{name: "entries", n: 20_000, turn: 20_000, tags: zones, named: none},
		{name: "an entry too many", n: 20_001, turn: 20_001, tags: zones, refused: true},
		{name: "more bytes than a client takes", n: 12_000, turn: 12_000, tags: long, refused: true},
		{name: "more bytes with names than a client takes", n: 1800, turn: 1800, tags: longer, named: none},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := policytest.NewWorld()
			secured(t, w, "m", "")
			put(t, w, resource.KindDataplane, "backend-1", `{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east"}}]}}`)
			many(t, w, c.n, c.turn, c.tags)
			set := generate(t, w, "backend-1")
			require.Less(t, proto.Size(message[*routev3.RouteConfiguration](t, set, xds.Route, "in_80")), 4<<20-1<<16, "gRPC takes messages of 4 MiB")
			s := serverOf(t, set, 80)
			denied := func(tags map[string]string, named bool, by string) {
				t.Helper()
				got := s.calledBy(tags)
				require.False(t, got.passes)
				switch {
				case c.refused:
					require.Equal(t, []string{"too-many-permissions"}, got.by)
				case named:
					require.Equal(t, []string{by}, got.by)
				default:
					require.Empty(t, got.by)
				}
			}
			for _, i := range []int{0, 1, 2, c.n / 2, c.n - 2, c.n - 1} {
				if c.refused || i/c.turn%2 == 1 {
					denied(c.tags(i), c.named == all, "MeshTrafficPermission long-0")
				} else {
					require.Equal(t, decision{passes: true}, s.calledBy(c.tags(i)), "entry %d", i)
				}
			}
			denied(map[string]string{resource.ZoneTag: "other"}, c.named == all, xdsgenerate.NoPolicy)
		})
	}
}

// decision is what a server decides.
type decision struct {
	passes bool
	by     []string
}

// calledBy decides about a caller with tags.
func (s *server) calledBy(tags map[string]string) decision {
	uri, err := identity.Of(resource.ZoneName(tags[resource.ZoneTag]), "m", "web-1", []resource.Tags{tags})
	require.NoError(s.t, err)
	passes, by := s.decide(uri)
	return decision{passes, by}
}
