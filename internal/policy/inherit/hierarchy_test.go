package inherit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/resource"
)

// paths prints every path of a route that some policy of the gateway reaches:
// gateway/listener/route/rule.
func paths(t *testing.T, x *Index, route string) []string {
	t.Helper()
	state, ok := x.Route("default", route)
	require.True(t, ok)
	list := []string{}
	for i := range state.Paths {
		list = append(list, state.Paths[i].String())
	}
	return list
}

// onGateway is a policy on a gateway that makes its paths visible.
func onGateway(t *testing.T, gateway string) *resource.Resource {
	return build(t, "AuthPolicy", "on-"+gateway, fmt.Sprintf(
		`{"targetRef": {"kind": "Gateway", "name": %q}, "rules": {"authentication": {"a": 1}}}`, gateway))
}

// §5.1: which listeners a route attaches to.
func TestAttachment(t *testing.T) {
	gateway := `{"listeners": [
		{"name": "any", "port": 80, "protocol": "HTTP"},
		{"name": "shop", "port": 443, "protocol": "HTTPS", "hostname": "*.shop.example"},
		{"name": "exact", "port": 8443, "protocol": "HTTPS", "hostname": "www.other.example"},
		{"name": "raw", "port": 9000, "protocol": "TCP"},
		{"name": "grpc-only", "port": 81, "protocol": "HTTP", "allowedRoutes": {"kinds": [{"kind": "GRPCRoute"}]}},
		{"name": "closed", "port": 82, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "None"}}}]}`
	tests := []struct{ name, kind, route, want string }{
		{"no section, no host name", "HTTPRoute", `{"parentRefs": [{"name": "g"}]}`, "any shop exact"},
		{"a host name of one listener", "HTTPRoute", `{"parentRefs": [{"name": "g"}], "hostnames": ["a.shop.example"]}`, "any shop"},
		{"a host name at any depth", "HTTPRoute", `{"parentRefs": [{"name": "g"}], "hostnames": ["a.b.shop.example"]}`, "any shop"},
		{"not the domain itself", "HTTPRoute", `{"parentRefs": [{"name": "g"}], "hostnames": ["shop.example"]}`, "any"},
		{"a wider wildcard", "HTTPRoute", `{"parentRefs": [{"name": "g"}], "hostnames": ["*.example"]}`, "any shop exact"},
		{"a narrower wildcard", "HTTPRoute", `{"parentRefs": [{"name": "g"}], "hostnames": ["*.eu.shop.example"]}`, "any shop"},
		{"a disjoint wildcard", "HTTPRoute", `{"parentRefs": [{"name": "g"}], "hostnames": ["*.third.example"]}`, "any"},
		{"a wildcard that only looks alike", "HTTPRoute", `{"parentRefs": [{"name": "g"}], "hostnames": ["*.workshop.example"]}`, "any"},
		{"one of several host names", "HTTPRoute", `{"parentRefs": [{"name": "g"}], "hostnames": ["x.y", "WWW.Other.example"]}`, "any exact"},
		{"a section", "HTTPRoute", `{"parentRefs": [{"name": "g", "sectionName": "shop"}]}`, "shop"},
		{"a section whose host name is disjoint", "HTTPRoute", `{"parentRefs": [{"name": "g", "sectionName": "shop"}], "hostnames": ["x.y"]}`, ""},
		{"a section that is not there", "HTTPRoute", `{"parentRefs": [{"name": "g", "sectionName": "no"}]}`, ""},
		{"two sections", "HTTPRoute", `{"parentRefs": [{"name": "g", "sectionName": "exact"}, {"name": "g", "sectionName": "any"}]}`, "any exact"},
		{"a section and all: each once", "HTTPRoute", `{"parentRefs": [{"name": "g", "sectionName": "any"}, {"name": "g"}]}`, "any shop exact"},
		{"a port", "HTTPRoute", `{"parentRefs": [{"name": "g", "port": 443}]}`, "shop"},
		{"a kind that one listener is for", "GRPCRoute", `{"parentRefs": [{"name": "g"}]}`, "any shop exact grpc-only"},
		{"a gateway that is not there", "HTTPRoute", `{"parentRefs": [{"name": "h"}]}`, ""},
		{"a service", "HTTPRoute", `{"parentRefs": [{"kind": "Service", "name": "g"}]}`, ""},
		{"a mesh gateway", "HTTPRoute", `{"parentRefs": [{"kind": "MeshGateway", "name": "g"}]}`, ""},
		{"a service and a gateway", "HTTPRoute", `{"parentRefs": [{"kind": "Service", "name": "x"}, {"name": "g", "sectionName": "any"}]}`, "any"},
		{"nothing", "HTTPRoute", `{}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := indexOf(t, build(t, "Gateway", "g", gateway), build(t, resource.Kind(tt.kind), "r", tt.route), onGateway(t, "g"))
			var listeners []string
			for _, p := range paths(t, x, "r") {
				require.Equal(t, "rule-1", p[strings.LastIndex(p, "/")+1:], "a route without rules has one")
				listeners = append(listeners, strings.Split(p, "/")[1])
			}
			require.Equal(t, tt.want, strings.Join(listeners, " "))
		})
	}
}

// Two host names meet or not, whichever side they are on.
func TestHostsMeetIsSymmetric(t *testing.T) {
	name := rapid.StringMatching(`(\*\.)?[ab](\.[ab]){0,3}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		require.Equal(t, hostsMeet(a, b), hostsMeet(b, a))
		require.True(t, hostsMeet(a, a))
	})
}

// §5.1: paths of a route on two gateways, of named and unnamed rules,
// in order.
func TestPathsAreListedInOrder(t *testing.T) {
	x := indexOf(t,
		build(t, "Gateway", "g2", `{"listeners": [{"name": "z", "port": 80, "protocol": "HTTP"}, {"name": "a", "port": 81, "protocol": "HTTP"}]}`),
		build(t, "Gateway", "g1", `{"listeners": [{"name": "only", "port": 80, "protocol": "HTTP"}]}`),
		build(t, "Gateway", "bare", `{"listeners": [{"name": "only", "port": 80, "protocol": "HTTP"}]}`),
		build(t, "HTTPRoute", "r", `{"parentRefs": [{"name": "g2"}, {"name": "g1"}, {"name": "bare"}], "rules": [{"name": "one"}, {}]}`),
		build(t, "GRPCRoute", "r", `{"parentRefs": [{"name": "g1"}], "rules": [{}]}`),
		onGateway(t, "g1"), onGateway(t, "g2"))
	require.Equal(t, []string{
		"g1/only/r/one", "g1/only/r/rule-2", "g1/only/r/rule-1",
		"g2/z/r/one", "g2/z/r/rule-2", "g2/a/r/one", "g2/a/r/rule-2",
	}, paths(t, x, "r"), "no policy reaches gateway bare")
	_, ok := x.Route("default", "other")
	require.False(t, ok)
	_, ok = x.Route("other", "r")
	require.False(t, ok)
}

// §5.1: rules that no policy targets get what flows from above, as one
// virtual route; a policy on one rule is about that rule only.
func TestVirtualRoute(t *testing.T) {
	x := indexOf(t, parseStack(t, "G D(a,b); U =(a)").resources(t)...)
	require.Equal(t, "a:U b:G | lost a:U", short(pathOf(t, x, "rule-1")))
	require.Equal(t, "a:G b:G", short(pathOf(t, x, "rule-2")))

	x = indexOf(t, parseStack(t, "U =(a)").resources(t)...)
	require.Equal(t, "a:U", short(pathOf(t, x, "rule-1")))
	require.Nil(t, pathOf(t, x, "rule-2"), "there is no answer where no policy targets")
}

// One computation serves all rules without policies of their own.
func TestVirtualRouteIsComputedOnce(t *testing.T) {
	rules := strings.TrimSuffix(strings.Repeat("{},", 50), ",")
	x := indexOf(t,
		build(t, "Gateway", "g", `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}`),
		build(t, "HTTPRoute", "r", `{"parentRefs": [{"name": "g"}], "rules": [`+rules+`]}`), onGateway(t, "g"))
	require.Len(t, paths(t, x, "r"), 50)
	require.Equal(t, uint64(1), x.Computed())
}

// §5.1: a policy on a listener is about the paths through it.
func TestListenerPolicies(t *testing.T) {
	x := indexOf(t,
		build(t, "Gateway", "g", `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}, {"name": "https", "port": 443, "protocol": "HTTPS"}]}`),
		build(t, "HTTPRoute", "r", `{"parentRefs": [{"name": "g"}], "rules": [{}]}`),
		build(t, "RateLimitPolicy", "all", `{"targetRef": {"kind": "Gateway", "name": "g"}, "defaults": {"strategy": "merge", "limits": {"a.b": 1, "c": 1}}}`),
		build(t, "RateLimitPolicy", "one", `{"targetRef": {"kind": "Gateway", "name": "g", "sectionName": "https"}, "limits": {"c": 2}, "unset": ["limits[\"a.b\"]"]}`))
	state, ok := x.Route("default", "r")
	require.True(t, ok)
	require.Len(t, state.Paths, 2)
	plain, tls := state.Paths[0], state.Paths[1]
	require.Equal(t, "http", plain.Listener)
	require.Len(t, plain.Rules, 2)
	require.Equal(t, "all", plain.Origins["a.b"].Name)
	require.Equal(t, "https", tls.Listener)
	require.Len(t, tls.Rules, 1)
	require.Equal(t, "one", tls.Origins["c"].Name)
	require.Equal(t, "one", tls.Unset["a.b"].Name)
	require.Equal(t, "one", tls.Overridden["c"].Name)
}

// §5.1: the two kinds have effective policies of their own.
func TestKindsDoNotMix(t *testing.T) {
	x := indexOf(t, append(parseStack(t, "R =(a)").resources(t),
		build(t, "RateLimitPolicy", "limit", `{"targetRef": {"kind": "Gateway", "name": "g"}, "limits": {"a": 1}}`))...)
	state, _ := x.Route("default", "r")
	require.Len(t, state.Paths, 4)
	for i, kind := range []resource.Kind{"AuthPolicy", "RateLimitPolicy", "AuthPolicy", "RateLimitPolicy"} {
		require.Equal(t, kind, state.Paths[i].Kind)
		require.Len(t, state.Paths[i].Origins, 1)
	}
}

// §5.3: the names of rules that hold dots are quoted.
func TestRuleIdentity(t *testing.T) {
	x := indexOf(t, append(world(t), build(t, "AuthPolicy", "p", `{"targetRef": {"kind": "HTTPRoute", "name": "r"},
		"rules": {"response": {"a.b": 1, "plain": {"deep": {"x": 1}}}}}`))...)
	p := pathOf(t, x, "rule-1")
	require.Contains(t, p.Origins, `response["a.b"]`)
	require.Contains(t, p.Origins, "response.plain")
	require.Len(t, p.Origins, 2, "a body is one value")
}

// The sections of a schema are those that the kind has.
func TestSchemasMatchTheKinds(t *testing.T) {
	for i := range schemas {
		s := &schemas[i]
		require.Equal(t, i, schemaOf(s.kind))
		for _, name := range s.sections {
			_, _, err := resource.ParseUnset(s.root + "." + name + ".x")
			require.NoError(t, err)
		}
	}
	sections := 0
	for _, f := range resource.Fields("AuthPolicy") {
		if rest, ok := strings.CutPrefix(f.Path, "rules."); ok && !strings.Contains(rest, ".") {
			require.Contains(t, schemas[0].sections, rest)
			sections++
		}
	}
	require.Len(t, schemas[0].sections, sections)
	for _, d := range resource.Kinds() {
		require.Equal(t, d.Class == resource.Inherited, schemaOf(d.Kind) >= 0, d.Kind)
	}
}

// §5.6: what a condition sees.
func TestConditionInputs(t *testing.T) {
	tests := map[string]bool{
		`self.kind == "AuthPolicy"`: true,
		`self.metadata.name == "own" && self.metadata.namespace == "team-a"`:   true,
		`self.metadata.labels["tier"] == "gold"`:                               true,
		`self.spec == spec`:                                                    true,
		`spec.rules.authorization.size() == 0 && size(spec.rules) == 6`:        true,
		`target.kind == "Gateway" && target.metadata.name == "g"`:              true,
		`target.spec.listeners.exists(l, l.name == "http" && l.port < 100)`:    true,
		`has(target.sectionName)`:                                              false,
		`spec.rules.authentication.a.level + 1 == 8`:                           true,
		`has(spec.limits)`:                                                     false,
		`spec.rules.authentication.a.level > 7.5`:                              false,
		`spec.rules.authentication.all(name, name.startsWith("a"))`:            true,
		`self.metadata.name in ["exempt"]`:                                     false,
		`spec.rules.authentication.a.names.map(n, n.upperAscii())[0] == "X"`:   true,
		`spec.rules.authentication.exists(n, spec.rules.authentication[n].ok)`: true,
	}
	own := build(t, "AuthPolicy", "own", `{"targetRef": {"kind": "HTTPRoute", "name": "r"},
		"rules": {"authentication": {"a": {"level": 7, "names": ["x"], "ok": true}}}}`)
	meta := own.Meta()
	meta.Labels = map[string]string{resource.LabelNamespace: "team-a", "tier": "gold"}
	own = own.WithMeta(meta)
	for expression, want := range tests {
		t.Run(expression, func(t *testing.T) {
			x := indexOf(t, append(world(t), own, build(t, "AuthPolicy", "gw", map[string]any{
				"targetRef": targetRef("G"),
				"overrides": map[string]any{"strategy": "merge", "when": expression, "rules": map[string]any{"patterns": map[string]any{"p": 1}}},
			}))...)
			decided := pathOf(t, x, "rule-1").Decided
			require.Len(t, decided, 1)
			require.Equal(t, want, decided[0].Used, decided[0].Reason)
			require.False(t, decided[0].Failed)
			require.Equal(t, expression, decided[0].Expression)
		})
	}
}

// §5.1: a listener takes routes of its gateway's namespace, unless allowedRoutes
// says otherwise; what cannot be judged is not taken.
func TestAllowedNamespaces(t *testing.T) {
	in := func(namespace string, r *resource.Resource) *resource.Resource {
		meta := r.Meta()
		if namespace != "" {
			meta.Labels = map[string]string{resource.LabelNamespace: namespace}
		}
		return r.WithMeta(meta)
	}
	const gateway = `{"listeners": [
		{"name": "absent", "port": 80, "protocol": "HTTP"},
		{"name": "same", "port": 81, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "Same"}}},
		{"name": "all", "port": 82, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "All"}}},
		{"name": "selector", "port": 83, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "Selector", "selector": {"matchLabels": {"a": "b"}}}}},
		{"name": "none", "port": 84, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "None"}}}]}`
	for _, tt := range []struct{ gateway, route, want string }{
		{"", "", "absent same all"},
		{"", "default", "absent same all"},
		{"shop", "shop", "absent same all"},
		{"shop", "", "all"},
		{"", "shop", "all"},
		{"shop", "bank", "all"},
	} {
		x := indexOf(t, in(tt.gateway, build(t, "Gateway", "g", gateway)),
			in(tt.route, build(t, "HTTPRoute", "r", `{"parentRefs": [{"name": "g"}]}`)), onGateway(t, "g"))
		var listeners []string
		for _, p := range paths(t, x, "r") {
			listeners = append(listeners, strings.Split(p, "/")[1])
		}
		require.Equal(t, tt.want, strings.Join(listeners, " "), "gateway in %q, route in %q", tt.gateway, tt.route)
	}
}
