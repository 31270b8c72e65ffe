package specificity_test

import (
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/policy/policytest"
	"meridian/internal/policy/specificity"
	"meridian/internal/resource"
)

// What a policy ties with is found by its terms, all of it.
func TestTermsMissNoTie(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt)
		for range rapid.IntRange(0, 20).Draw(rt, "more") {
			w.drawPolicy(rt)
		}
		for _, key := range w.Keys() {
			if d, _ := resource.Describe(key.Kind); d.Class != resource.SourceDestination {
				continue
			}
			byTerms, byDefinition := specificity.Ties(w.View(), w.Resources[key])
			require.ElementsMatch(rt, byDefinition, byTerms, "%s", key)
		}
	})
}

// A policy with more pairs of selectors than there are terms for is compared with all,
// and all with it.
func TestTiesOfAPolicyWithManySelectors(t *testing.T) {
	w := newWorld()
	w.put(t, "Mesh", "", "m", `{}`, time.Time{})
	var sources, destinations []string
	for i := range 30 {
		sources = append(sources, fmt.Sprintf(`{"match":{"kuma.io/service":"s%d"}}`, i))
		destinations = append(destinations, fmt.Sprintf(`{"match":{"kuma.io/service":"d%d"}}`, i))
	}
	one := w.put(t, "Timeout", "m", "one", fmt.Sprintf(connection, "s29", "d3", 1), time.Unix(1, 0))
	many := w.put(t, "Timeout", "m", "many", fmt.Sprintf(`{"sources":[%s],"destinations":[%s],"conf":{"connectTimeout":"1s"}}`,
		strings.Join(sources, ","), strings.Join(destinations, ",")), time.Unix(2, 0))
	for of, want := range map[resource.Key]string{one: "has lower priority than many: ", many: "has priority over one: "} {
		advice := policytest.Lint(t, w.View(), []*resource.Resource{w.Resources[of]}, specificityEngine)
		require.Len(t, advice, 1)
		require.Contains(t, advice[0].Message, want)
	}
}

// looking counts the policies that are looked at in a view with terms.
type looking struct {
	policy.View
	terms *policy.Terms
	n     int
}

func (v *looking) List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource] {
	return v.count(v.View.List(kind, mesh))
}

func (v *looking) ListBy(kind resource.Kind, mesh resource.MeshName, prefix string) (iter.Seq[*resource.Resource], bool) {
	return v.count(v.terms.List(kind, mesh, prefix)), true
}

func (v *looking) count(list iter.Seq[*resource.Resource]) iter.Seq[*resource.Resource] {
	return func(yield func(*resource.Resource) bool) {
		for r := range list {
			if v.n++; !yield(r) {
				return
			}
		}
	}
}

// What a write costs does not grow with the policies that it has nothing to do with,
// nor without end with those that it ties with.
func TestTiesAreFoundAmongFew(t *testing.T) {
	for _, tc := range []struct {
		name    string
		others  func(i int) (source, destination string)
		written func() (source, destination string)
		most    int
	}{
		{"other services", func(i int) (string, string) { return fmt.Sprint("s", i), fmt.Sprint("d", i) }, func() (string, string) { return "s7", "d7" }, 20},
		{"another destination", func(i int) (string, string) { return "s", fmt.Sprint("d", i) }, func() (string, string) { return "s", "d7" }, 20},
		{"another source", func(i int) (string, string) { return fmt.Sprint("s", i), "d" }, func() (string, string) { return "s7", "d" }, 20},
		{"any destination", func(i int) (string, string) { return fmt.Sprint("s", i), "*" }, func() (string, string) { return "s7", "*" }, 60},
		{"any source", func(i int) (string, string) { return "*", fmt.Sprint("d", i) }, func() (string, string) { return "*", "d7" }, 20},
		{"the same", func(int) (string, string) { return "*", "*" }, func() (string, string) { return "*", "*" }, 1000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld()
			w.put(t, "Mesh", "", "m", `{}`, time.Time{})
			for i := range 2000 {
				source, destination := tc.others(i)
				w.put(t, "Timeout", "m", fmt.Sprint("t", i), fmt.Sprintf(connection, source, destination, 1), time.Unix(1, 0))
			}
			source, destination := tc.written()
			key := w.put(t, "Timeout", "m", "written", fmt.Sprintf(connection, source, destination, 1), time.Unix(2, 0))
			view := &looking{View: w.View(), terms: policy.NewTerms(w.View(), specificity.Terms)}
			advice := policytest.Lint(t, view, []*resource.Resource{w.Resources[key]}, specificityEngine)
			require.Len(t, advice, 1)
			require.LessOrEqual(t, view.n, tc.most)
			if tc.name == "the same" {
				require.Contains(t, advice[0].Message, "has priority over t0, t1, t10 and at least 253 more: ")
				require.Contains(t, advice[0].Cause, "more than 256 equally specific policies")
				return
			}
			require.Contains(t, advice[0].Message, "has priority over t7: ")
		})
	}
}
