package specificity_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

const connection = `{"sources":[{"match":{"kuma.io/service":%q}}],"destinations":[{"match":{"kuma.io/service":%q}}],"conf":{"connectTimeout":"%ds"}}`

// putDataplane adds a dataplane of a service with outbounds to ten services,
// its own tags distinct from all others' when unique is set.
func (w *world) putDataplane(t testing.TB, i, service int, unique bool) resource.Key {
	t.Helper()
	tags := fmt.Sprintf(`"kuma.io/service":"s%d"`, service)
	if unique {
		tags += fmt.Sprintf(`,"instance":"i%d"`, i)
	}
	outbounds := ""
	for j := range 10 {
		outbounds += fmt.Sprintf(`,{"port":%d,"tags":{"kuma.io/service":"s%d"}}`, 10000+j, (service+1+j)%1000)
	}
	spec := fmt.Sprintf(`{"networking":{"address":"10.0.0.1","inbound":[{"port":9000,"tags":{%s}}],"outbound":[%s]}}`, tags, outbounds[1:])
	return w.put(t, "Dataplane", "default", fmt.Sprintf("dp-%d", i), spec, time.Time{})
}

// benchmarkMatch reports the time of one dataplane with 10 outbounds against 10,000
// Timeouts of which 10 select it.
func benchmarkMatch(b *testing.B, spec func(i int) string) {
	w := newWorld()
	w.put(b, "Mesh", "", "default", `{}`, time.Time{})
	dp := w.putDataplane(b, 0, 0, false)
	for i := range 10_000 {
		w.put(b, "Timeout", "default", fmt.Sprintf("t%d", i), spec(i), time.Time{})
	}
	m := matcher(w.View())
	require.NoError(b, m.Read(func(r *policy.Reading) error {
		b.ReportAllocs()
		b.ResetTimer()
		for b.Loop() {
			rules, err := r.Match(dp, "Timeout")
			if err != nil || len(rules) != 10 {
				b.Fatalf("%d rules, error %v", len(rules), err)
			}
		}
		return nil
	}))
}

func BenchmarkMatchBySource(b *testing.B) {
	benchmarkMatch(b, func(i int) string {
		if i < 10 {
			return fmt.Sprintf(connection, "s0", fmt.Sprintf("s%d", i+1), i+1)
		}
		return fmt.Sprintf(connection, fmt.Sprintf("x%d", i), "*", i+1)
	})
}

func BenchmarkMatchAllOnEveryOutbound(b *testing.B) {
	benchmarkMatch(b, func(i int) string {
		if i < 10 {
			return fmt.Sprintf(connection, "s0", "*", i+1)
		}
		return fmt.Sprintf(connection, fmt.Sprintf("x%d", i), "*", i+1)
	})
}

func BenchmarkMatchByDestination(b *testing.B) {
	benchmarkMatch(b, func(i int) string {
		if i < 10 {
			return fmt.Sprintf(connection, "*", fmt.Sprintf("s%d", i+1), i+1)
		}
		return fmt.Sprintf(connection, "*", fmt.Sprintf("x%d", i), i+1)
	})
}

// large is a mesh of 10,000 policies and 10,000 dataplanes in 1,000 services.
func large(b *testing.B, unique bool) *world {
	w := newWorld()
	w.put(b, "Mesh", "", "default", `{}`, time.Time{})
	for i := range 10_000 {
		w.putDataplane(b, i, i%1000, unique)
		w.put(b, "Timeout", "default", fmt.Sprintf("t%d", i),
			fmt.Sprintf(connection, fmt.Sprintf("s%d", i%1000), fmt.Sprintf("s%d", (i/1000%5+i+1)%1000), 1+i%50), time.Time{})
	}
	return w
}

// overlay is a view in which one resource differs, as the store's next view is
// one that shares all else.
type overlay struct {
	policy.View
	changed *resource.Resource
}

func (o overlay) Get(key resource.Key) (*resource.Resource, bool) {
	if o.changed.Key() == key {
		return o.changed, true
	}
	return o.View.Get(key)
}

// benchmarkUpdate changes one policy back and forth.
func benchmarkUpdate(b *testing.B, unique bool, source, destination string) {
	w := large(b, unique)
	base := w.View()
	m := matcher(base)
	var views [2]policy.View
	var key resource.Key
	for i := range views {
		key = w.put(b, "Timeout", "default", "changing", fmt.Sprintf(connection, source, destination, 100+i), time.Unix(9, 0))
		views[i] = overlay{base, w.Resources[key]}
	}
	m.Update(views[1], []resource.Key{key})
	computed, touched := m.Computed(), 0
	b.ReportAllocs()
	b.ResetTimer()
	n := 0
	for b.Loop() {
		touched = len(m.Update(views[n%2], []resource.Key{key}))
		n++
	}
	b.ReportMetric(float64(m.Computed()-computed)/float64(n), "computed/op")
	b.ReportMetric(float64(touched), "dataplanes/op")
}

func BenchmarkUpdateNamingSource(b *testing.B)       { benchmarkUpdate(b, true, "s7", "*") }
func BenchmarkUpdateNamingDestination(b *testing.B)  { benchmarkUpdate(b, true, "*", "s7") }
func BenchmarkUpdateSharedShapes(b *testing.B)       { benchmarkUpdate(b, false, "s7", "*") }
func BenchmarkUpdateOfEverything(b *testing.B)       { benchmarkUpdate(b, true, "*", "*") }
func BenchmarkUpdateOfEverythingShared(b *testing.B) { benchmarkUpdate(b, false, "*", "*") }

// BenchmarkReset indexes 10,000 policies and 10,000 dataplanes from scratch and
// matches every dataplane once.
func BenchmarkReset(b *testing.B) {
	view := large(b, false).View()
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		m := matcher(view)
		for r := range view.List("Dataplane", "") {
			if _, err := m.Effective(r.Key()); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkEffectiveShared is what a second dataplane of a known shape costs.
func BenchmarkEffectiveShared(b *testing.B) {
	w := large(b, false)
	m := matcher(w.View())
	key := policy.DataplaneKey("default", "dp-1007")
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		if _, err := m.Effective(key); err != nil {
			b.Fatal(err)
		}
	}
}
