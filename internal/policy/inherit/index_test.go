package inherit

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// everything is all that an index says.
func everything(x *Index, resources map[resource.Key]*resource.Resource) string {
	text := ""
	for _, name := range []string{"r", "r2"} {
		state, ok := x.Route("default", name)
		text += fmt.Sprintf("%s %v %+v\n", name, ok, state)
	}
	for _, name := range []string{"g", "g2"} {
		state, ok := x.Gateway("default", name)
		text += fmt.Sprintf("%s %v %+v\n", name, ok, state)
	}
	snapshot := make([]*resource.Resource, 0, len(resources))
	for _, r := range resources {
		snapshot = append(snapshot, r)
	}
	view := policy.NewSnapshot(snapshot...)
	for _, d := range resource.Kinds() {
		for r := range view.List(d.Kind, "") {
			conditions, ok := x.Conditions(r.Key())
			reach, ids, _ := x.Reach(r.Key(), "")
			text += fmt.Sprintf("%s %v %+v %+v %v\n", r.Key(), ok, conditions, reach, ids)
		}
	}
	return text + fmt.Sprintf("%+v\n", x.Stats())
}

// drawResource draws a resource of a small world, most of which fits together.
func drawResource(t testing.TB, rt *rapid.T) *resource.Resource {
	pick := func(label string, options ...string) string { return rapid.SampledFrom(options).Draw(rt, label) }
	switch rapid.IntRange(0, 10).Draw(rt, "what") {
	case 10:
		return labelled(t, "default", map[string]string{"a": pick("label", "1", "2")})
	case 0:
		return build(t, "Gateway", pick("gateway", "g", "g2"), fmt.Sprintf(
			`{"listeners": [{"name": %q, "port": 80, "protocol": "HTTP"%s}, {"name": "tls", "port": 443, "protocol": "HTTPS"%s}]}`,
			pick("listener", "http", "web"), pick("host", "", `, "hostname": "*.a.example"`),
			pick("allowed", "", `, "allowedRoutes": {"namespaces": {"from": "Selector", "selector": {"matchLabels": {"a": "1"}}}}`)))
	case 1, 2:
		return build(t, resource.Kind(pick("kind", "HTTPRoute", "GRPCRoute")), pick("route", "r", "r2"), fmt.Sprintf(
			`{"parentRefs": [%s], "hostnames": [%s], "rules": [%s]}`,
			pick("parents", `{"name": "g"}`, `{"name": "g"}, {"name": "g2"}`, `{"name": "g2", "sectionName": "web"}`, `{"kind": "Service", "name": "g"}`),
			pick("hosts", "", `"x.a.example"`, `"b.example"`), pick("rules", "", `{}`, `{"name": "one"}, {}`)))
	case 3:
		return build(t, "Mesh", "default", fmt.Sprintf(`{"matching": {"unset": %q}}`, pick("unset", "Allowed", "Forbidden")))
	default:
		s := drawStack(rt)[:1]
		spec := s[0].spec()
		if rapid.IntRange(0, 4).Draw(rt, "broken") == 0 {
			spec = map[string]any{"targetRef": targetRef(s[0].name), "defaults": map[string]any{
				"when": "spec.", "rules": map[string]any{"patterns": map[string]any{"a": 1}},
			}}
		}
		spec["targetRef"] = map[string]any{"kind": "Gateway", "name": pick("target", "g", "g2", "g3")}
		if rapid.Bool().Draw(rt, "on route") {
			spec["targetRef"] = map[string]any{"kind": pick("kind", "HTTPRoute", "GRPCRoute"), "name": pick("target", "r", "r2")}
		}
		if rapid.Bool().Draw(rt, "on section") {
			spec["targetRef"].(map[string]any)["sectionName"] = pick("section", "http", "tls", "one", "rule-1", "rule-2")
		}
		return build(t, "AuthPolicy", pick("policy", "p1", "p2", "p3", "p4", "p5"), spec, s[0].age)
	}
}

// An index that has followed any changes says what a new one says.
func TestUpdateEqualsReset(t *testing.T) {
	compiler := newCompiler(t)
	rapid.Check(t, func(rt *rapid.T) {
		followed := New(compiler)
		stored := map[resource.Key]*resource.Resource{}
		view := func() policy.View {
			all := make([]*resource.Resource, 0, len(stored))
			for _, r := range stored {
				all = append(all, r)
			}
			return policy.NewSnapshot(all...)
		}
		for range rapid.IntRange(1, 12).Draw(rt, "batches") {
			var changed []resource.Key
			for range rapid.IntRange(1, 4).Draw(rt, "changes") {
				r := drawResource(t, rt)
				if rapid.IntRange(0, 3).Draw(rt, "delete") == 0 {
					delete(stored, r.Key())
				} else {
					stored[r.Key()] = r
				}
				changed = append(changed, r.Key())
			}
			followed.Update(view(), changed)
			fresh := New(compiler)
			fresh.Reset(view())
			require.Equal(rt, everything(fresh, stored), everything(followed, stored))
		}
	})
}

// A changed policy of a route computes that route's paths again and no others; a
// policy on a rule, only the rule's.
func TestOnlyTouchedPathsAreComputed(t *testing.T) {
	resources := fleet(t, fleetSize{gateways: 2, routes: 20, policies: 40})
	x := indexOf(t, resources...)
	ask := func() uint64 {
		before := x.Computed()
		x.Stats()
		for i := range 20 {
			_, ok := x.Route("default", fmt.Sprintf("route-%d", i))
			require.True(t, ok)
		}
		return x.Computed() - before
	}
	require.Positive(t, ask())
	require.Zero(t, ask(), "nothing changed")

	change := func(kind resource.Kind, name string) {
		key := resource.Key{Kind: kind, Mesh: "default", Name: name}
		x.Update(policy.NewSnapshot(resources...), []resource.Key{key})
	}
	change("AuthPolicy", "auth-3")
	require.Equal(t, uint64(1), ask(), "one listener, one kind, rules without policies of their own")
	change("AuthPolicy", "on-gateway-1")
	require.Equal(t, uint64(10), ask(), "every route of one of two gateways")
	change("HTTPRoute", "route-3")
	require.Equal(t, uint64(2), ask(), "both kinds")
	change("HealthCheck", "route-3")
	change("Dataplane", "route-3")
	require.Zero(t, ask())
}

// Several readers may ask at once while changes come.
func TestConcurrentUse(t *testing.T) {
	resources := fleet(t, fleetSize{gateways: 2, routes: 10, policies: 20})
	x := indexOf(t, resources...)
	done := make(chan struct{})
	for range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := range 50 {
				x.Route("default", fmt.Sprintf("route-%d", i%10))
				x.Conditions(resource.Key{Kind: "AuthPolicy", Mesh: "default", Name: "on-gateway-0"})
				x.Stats()
			}
		}()
	}
	for i := range 50 {
		x.Update(policy.NewSnapshot(resources...), []resource.Key{{Kind: "AuthPolicy", Mesh: "default", Name: fmt.Sprintf("auth-%d", i%10)}})
	}
	for range 4 {
		<-done
	}
}

// Ways with the same chain of policies share one computation, whatever route and
// listener they belong to, and a change of the chain is seen on all of them.
func TestEqualChainsAreComputedOnce(t *testing.T) {
	resources := []*resource.Resource{
		build(t, "Gateway", "g", `{"listeners": [{"name": "a", "port": 80, "protocol": "HTTP"}, {"name": "b", "port": 81, "protocol": "HTTP"}]}`),
		build(t, "AuthPolicy", "on-b", `{"targetRef": {"kind": "Gateway", "name": "g", "sectionName": "b"}, "rules": {"authentication": {"b": 1}}}`),
		onGateway(t, "g"),
	}
	const routes = 50
	for i := range routes {
		resources = append(resources, build(t, "HTTPRoute", fmt.Sprintf("r-%d", i), `{"parentRefs": [{"name": "g"}], "rules": [{}, {}]}`))
	}
	x := indexOf(t, resources...)
	computed := func() uint64 {
		before := x.Computed()
		for i := range routes {
			require.Len(t, paths(t, x, fmt.Sprintf("r-%d", i)), 4)
		}
		return x.Computed() - before
	}
	require.Equal(t, uint64(2), computed(), "one for each listener")
	require.Zero(t, computed())

	changed := build(t, "AuthPolicy", "on-g", `{"targetRef": {"kind": "Gateway", "name": "g"}, "overrides": {"rules": {"authentication": {"z": 1}}}}`)
	resources[2] = changed
	x.Update(policy.NewSnapshot(resources...), []resource.Key{changed.Key()})
	require.Equal(t, uint64(2), computed())
	state, _ := x.Route("default", "r-7")
	for _, p := range state.Paths {
		require.Equal(t, map[string]resource.Key{"authentication.z": changed.Key()}, p.Origins)
	}
}
