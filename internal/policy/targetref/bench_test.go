package targetref_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/policytest"
	"meridian/internal/policy/targetref"
	"meridian/internal/resource"
)

// oneDataplane is a world of one dataplane with 10 outbounds, s0 to s9.
func oneDataplane(t require.TestingT) *world {
	w := newWorld()
	w.put(t, "Mesh", "", mesh, `{}`, 0)
	var out []string
	for i := range 10 {
		out = append(out, fmt.Sprintf(`{"port":%d,"tags":{"kuma.io/service":"s%d"}}`, 1000+i, i))
	}
	w.put(t, "Dataplane", mesh, "d1", `{"networking":{"address":"10.0.0.1",
		"inbound":[{"port":80,"tags":{"kuma.io/service":"web","version":"v1"}}],"outbound":[`+strings.Join(out, ",")+`]}}`, 0)
	return w
}

// permissions adds mesh-wide permissions with distinct callers.
func permissions(t require.TestingT, w *world, n int) {
	for i := range n {
		w.put(t, "MeshTrafficPermission", mesh, fmt.Sprintf("p%05d", i),
			fmt.Sprintf(`{"conf":{"from":[{"targetRef":{"kind":"Service","name":"c%d"},"action":"ALLOW"}]}}`, i), 0)
	}
}

// timeouts adds mesh-wide timeouts for distinct services.
func timeouts(t require.TestingT, w *world, n int) {
	for i := range n {
		w.put(t, "MeshUpstreamTimeout", mesh, fmt.Sprintf("p%05d", i),
			fmt.Sprintf(`{"conf":{"to":[{"targetRef":{"kind":"Service","name":"s%d"},"connectTimeout":"1s"}]}}`, i), 0)
	}
}

// cold works out everything on the one dataplane again and again: no result is
// kept, because a policy names the dataplane.
func cold(b *testing.B, w *world) {
	w.put(b, "MeshMetrics", mesh, "names-it", `{"targetRef":{"kind":"Proxy","name":"d1"},"conf":{}}`, 0)
	m := matcher(w.View())
	key := policy.DataplaneKey(mesh, "d1")
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		if _, err := m.Effective(key); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPermissions is one dataplane selected by 2,000 mesh-wide permissions
// with distinct callers: under 5 ms and 10 MB. Cost per policy is constant.
func BenchmarkPermissions(b *testing.B) {
	for _, n := range []int{500, 1000, 2000, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := oneDataplane(b)
			permissions(b, w, n)
			cold(b, w)
		})
	}
}

// BenchmarkPermissionsExplained is the same with every reason told.
func BenchmarkPermissionsExplained(b *testing.B) {
	w := oneDataplane(b)
	permissions(b, w, 2000)
	m := matcher(w.View())
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		require.NoError(b, m.Read(func(r *policy.Reading) error {
			rules, err := r.Explain(policy.DataplaneKey(mesh, "d1"))
			for i := range rules {
				rules[i].Verdicts()
			}
			return err
		}))
	}
}

// BenchmarkPermissionsFromFiles is the whole way from compiled documents: index,
// match, decide about one caller.
func BenchmarkPermissionsFromFiles(b *testing.B) {
	w := oneDataplane(b)
	permissions(b, w, 2000)
	view := w.View()
	caller := []resource.Tags{{resource.ServiceTag: "c7"}}
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		rules := effective(b, matcher(view), policy.DataplaneKey(mesh, "d1"))
		if got := rules[0].ForCaller(caller).Fold().Conf()["action"]; got != "ALLOW" {
			b.Fatal(got)
		}
	}
}

// hundredFrom is a policy of 100 from items with 5 distinct tag keys.
func hundredFrom(t require.TestingT) *world {
	w := oneDataplane(t)
	var items []string
	for i := range 100 {
		items = append(items, fmt.Sprintf(`{"targetRef":{"kind":"MeshSubset","tags":{"k%d":"v%d","k%d":"*"}},"action":"ALLOW"}`, i%5, i, (i+1)%5))
	}
	w.put(t, "MeshTrafficPermission", mesh, "many", `{"conf":{"from":[`+strings.Join(items, ",")+`]}}`, 0)
	return w
}

// BenchmarkHundredFromItems is 100 items over 5 tag keys: under 100 µs.
func BenchmarkHundredFromItems(b *testing.B) { cold(b, hundredFrom(b)) }

// BenchmarkHundredFromItemsForCaller adds the decision about one caller.
func BenchmarkHundredFromItemsForCaller(b *testing.B) {
	m := matcher(hundredFrom(b).View())
	rules := effective(b, m, policy.DataplaneKey(mesh, "d1"))
	caller := []resource.Tags{{"k1": "v96", "k2": "x", "k3": "y"}}
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		rules[0].ForCaller(caller).Fold()
	}
}

// BenchmarkTimeouts is 1,000 mesh-wide timeouts for distinct services on a
// dataplane with 10 outbounds: under 1 ms, whatever their number.
func BenchmarkTimeouts(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := oneDataplane(b)
			timeouts(b, w, n)
			cold(b, w)
		})
	}
}

// BenchmarkColdStart is 10,000 dataplanes in 200 services and 1,000 policies,
// indexed from scratch, every dataplane matched once: under 2 s and 200 MB.
func BenchmarkColdStart(b *testing.B) {
	w := newWorld()
	w.put(b, "Mesh", "", mesh, `{}`, 0)
	for i := range 10000 {
		w.put(b, "Dataplane", mesh, fmt.Sprintf("d%05d", i), fmt.Sprintf(
			`{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"s%d","instance":"i%d"}}],
			"outbound":[{"port":1,"tags":{"kuma.io/service":"s%d"}},{"port":2,"tags":{"kuma.io/service":"s%d"}}]}}`,
			i%200, i, (i+1)%200, (i+2)%200), 0)
	}
	for i := range 500 {
		w.put(b, "MeshTrafficPermission", mesh, fmt.Sprintf("p%05d", i), fmt.Sprintf(
			`{"targetRef":{"kind":"Service","name":"s%d"},"conf":{"from":[{"targetRef":{"kind":"Service","name":"s%d"},"action":"ALLOW"}]}}`, i%200, i%190), 0)
	}
	timeouts(b, w, 500)
	view := w.View()
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		m := matcher(view)
		for r := range view.List("Dataplane", mesh) {
			if _, err := m.Effective(r.Key()); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkAdvice is what advice adds to writing one policy next to 10,000 of
// its kind, as the global does it, and next to 10,000 dataplanes, as a zone that
// stands alone does.
func BenchmarkAdvice(b *testing.B) {
	alone := newWorld()
	alone.put(b, "Mesh", "", mesh, `{}`, 0)
	timeouts(b, alone, 10000)
	many := newWorld()
	many.put(b, "Mesh", "", mesh, `{}`, 0)
	timeouts(b, many, 1)
	for i := range 10000 {
		many.put(b, "Dataplane", mesh, fmt.Sprintf("d%05d", i), fmt.Sprintf(
			`{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"s%d"}}],"outbound":[{"port":1,"tags":{"kuma.io/service":"s0"}}]}}`, i%200), 0)
	}
	for name, w := range map[string]*world{"policies": alone, "dataplanes": many} {
		b.Run(name, func(b *testing.B) {
			view := w.View()
			r, _ := view.Get(resource.Key{Kind: "MeshUpstreamTimeout", Mesh: mesh, Name: "p00000"})
			engine := targetref.New()
			b.ReportAllocs()
			for b.Loop() {
				policytest.Lint(b, view, []*resource.Resource{r}, engine)
			}
		})
	}
}
