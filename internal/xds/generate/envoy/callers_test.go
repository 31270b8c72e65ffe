package envoy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds/world"
)

func matchesAny(s resource.TagSelector, sets []resource.Tags) bool {
	return len(s) == 0 || slices.ContainsFunc(sets, s.Matches)
}

// drawnRule has steps of any operation for callers with some of three tags.
func drawnRule(r *rand.Rand, most int) *policy.Rule {
	rule := &policy.Rule{Target: policy.Target{Kind: resource.KindMeshRateLimit}, PerCaller: true, Units: policy.Units{EmptyIsNone: r.IntN(2) == 0}}
	for i := range r.IntN(most) {
		s := policy.Step{Op: policy.Op(r.IntN(4)), Origin: resource.Key{Kind: rule.Kind, Mesh: "m", Name: fmt.Sprint(i)}, Match: resource.TagSelector{}, Conf: policy.Tree{}}
		for range r.IntN(3) {
			s.Match[[]string{"a", "b", "kuma.io/service"}[r.IntN(3)]] = []string{"1", "2", resource.AnyValue}[r.IntN(3)]
		}
		for range r.IntN(3) {
			s.Conf[[]string{"x", "y", "z"}[r.IntN(3)]] = fmt.Sprint(i)
		}
		rule.Steps = append(rule.Steps, s)
	}
	return rule
}

// The first class that all of its selectors match has the configuration that a caller's
// own merge gives it, from the same policies, whatever the steps are.
func TestClassesAreTheMergesOfCallers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	configured := 0
	for range 1500 {
		rule := drawnRule(r, 7)
		classes, ok := classesOf(rule)
		if !ok {
			continue
		}
		for range 4 {
			var caller []resource.Tags
			for range 1 + r.IntN(2) {
				tags := resource.Tags{"kuma.io/service": []string{"1", "2"}[r.IntN(2)]}
				for _, tag := range []string{"a", "b"} {
					if r.IntN(2) == 0 {
						tags[tag] = []string{"1", "2"}[r.IntN(2)]
					}
				}
				caller = append(caller, tags)
			}
			want := rule.ForCaller(caller).Fold()
			i := slices.IndexFunc(classes, func(c class) bool {
				return !slices.ContainsFunc(c.match, func(s resource.TagSelector) bool { return !matchesAny(s, caller) })
			})
			got := policy.Tree{}
			if i >= 0 {
				if tree, ok := classes[i].conf.Get(""); ok {
					got = tree.(policy.Tree)
				}
			}
			require.Equal(t, want.Conf(), got, "%v %v", rule.Steps, caller)
			for field, source := range want.Fields() {
				require.Equal(t, source, classes[i].conf.Origin("", field)[0].Source, "%s", field)
				configured++
			}
		}
	}
	require.Greater(t, configured, 3000)
}

// A rule that tells too many callers apart has no effect at all, and is told of; so is
// what is for some callers where they are not known.
func TestTooManyClasses(t *testing.T) {
	rule := func(n int) *policy.Rule {
		rule := &policy.Rule{Target: policy.Target{Kind: resource.KindMeshHTTPFault}, PerCaller: true}
		for i := range n {
			rule.Steps = append(rule.Steps, policy.Step{
				Op: policy.Unless, Match: resource.TagSelector{"kuma.io/service": fmt.Sprint(i)}, Conf: policy.Tree{"http": []any{}},
				Origin: resource.Key{Kind: resource.KindMeshHTTPFault, Mesh: "m", Name: fmt.Sprint(i)},
			})
		}
		return rule
	}
	secure := world.Mesh{Exists: true, MTLS: true}
	classes, ok := classesOf(rule(maxClasses))
	require.True(t, ok)
	require.Len(t, classes, maxClasses)
	policies, _ := Unheeded(secure, rule(maxClasses))
	require.Empty(t, policies)
	_, ok = classesOf(rule(maxClasses + 1))
	require.False(t, ok)
	policies, why := Unheeded(secure, rule(maxClasses+1))
	require.Len(t, policies, maxClasses+1)
	require.Contains(t, why, "64")
	policies, why = Unheeded(world.Mesh{Exists: true}, rule(1))
	require.Len(t, policies, 1)
	require.Contains(t, why, "mutual TLS")
	// However long a list is, and however its steps overlap, it is given up in time.
	long := &policy.Rule{PerCaller: true}
	for i := range 1500 {
		long.Steps = append(long.Steps, policy.Step{Op: policy.Overlay, Match: resource.TagSelector{"a": fmt.Sprint(i)}, Conf: policy.Tree{"x": fmt.Sprint(i)}})
	}
	_, ok = classesOf(long)
	require.False(t, ok)
}
