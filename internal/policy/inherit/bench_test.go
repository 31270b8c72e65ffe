package inherit

import (
	"fmt"
	"testing"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// fleetSize is how large a fleet is. Policies are spread over the gateways, one
// of each kind, and the routes.
type fleetSize struct{ gateways, routes, policies int }

// fleet returns gateways with routes and policies: on every gateway a merged
// default and a conditional override, on the routes bare rules of both kinds.
func fleet(t testing.TB, size fleetSize) []*resource.Resource {
	var all []*resource.Resource
	for i := range size.gateways {
		name := fmt.Sprintf("gateway-%d", i)
		all = append(all,
			build(t, "Gateway", name, `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}`),
			build(t, "AuthPolicy", "on-"+name, fmt.Sprintf(`{"targetRef": {"kind": "Gateway", "name": %q},
				"defaults": {"strategy": "merge", "rules": {"authentication": {"a": {"x": 1}, "b": {"x": 1}}}},
				"overrides": {"strategy": "merge", "when": "spec.rules.authentication.own.level > 50",
					"rules": {"authentication": {"own": {"level": 50}}}}}`, name)),
			build(t, "RateLimitPolicy", "on-"+name, fmt.Sprintf(`{"targetRef": {"kind": "Gateway", "name": %q},
				"defaults": {"strategy": "merge", "limits": {"global": {"rates": [{"limit": 100}]}}}}`, name)))
	}
	for i := range size.routes {
		all = append(all, build(t, "HTTPRoute", fmt.Sprintf("route-%d", i), fmt.Sprintf(
			`{"parentRefs": [{"name": "gateway-%d"}], "rules": [{}, {"name": "second"}]}`, i%size.gateways)))
	}
	for i := range (size.policies - 2*size.gateways) / 2 {
		route := i % size.routes
		all = append(all,
			build(t, "AuthPolicy", fmt.Sprintf("auth-%d", i), fmt.Sprintf(
				`{"targetRef": {"kind": "HTTPRoute", "name": "route-%d"}, "rules": {"authentication": {"own": {"level": %d}, "a": {}}}}`, route, i%100)),
			build(t, "RateLimitPolicy", fmt.Sprintf("limit-%d", i), fmt.Sprintf(
				`{"targetRef": {"kind": "HTTPRoute", "name": "route-%d"}, "limits": {"own": {"rates": [{"limit": %d}]}}}`, route, i)))
	}
	return all
}

var large = fleetSize{gateways: 10, routes: 1000, policies: 2000}

// askAll reads the effective policies of every route.
func askAll(b *testing.B, x *Index, routes int) {
	for i := range routes {
		if state, ok := x.Route("default", fmt.Sprintf("route-%d", i)); !ok || len(state.Paths) == 0 {
			b.Fatal("no paths")
		}
	}
}

// From nothing to the effective policies of 1,000 routes under 10 gateways with
// 2,000 policies: at most 500 ms.
func BenchmarkColdStart(b *testing.B) {
	view := policy.NewSnapshot(fleet(b, large)...)
	b.ReportAllocs()
	for b.Loop() {
		x := New(newCompiler(b))
		x.Reset(view)
		askAll(b, x, large.routes)
	}
}

// A policy of one route changes and the route is asked for.
func BenchmarkRoutePolicyChange(b *testing.B) {
	view := policy.NewSnapshot(fleet(b, large)...)
	x := New(newCompiler(b))
	x.Reset(view)
	askAll(b, x, large.routes)
	start := x.Computed()
	changed := []resource.Key{{Kind: "AuthPolicy", Mesh: "default", Name: "auth-7"}}
	b.ReportAllocs()
	for b.Loop() {
		x.Update(view, changed)
		x.Route("default", "route-7")
	}
	b.ReportMetric(float64(x.Computed()-start)/float64(b.N), "folds/op")
}

// Everything that a scrape of the metrics counts, after a change.
func BenchmarkStats(b *testing.B) {
	view := policy.NewSnapshot(fleet(b, large)...)
	x := New(newCompiler(b))
	x.Reset(view)
	x.Stats()
	changed := []resource.Key{{Kind: "AuthPolicy", Mesh: "default", Name: "auth-7"}}
	for b.Loop() {
		x.Update(view, changed)
		x.Stats()
	}
}
