package policy_test

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// countingEngine counts how often a policy is compiled.
type countingEngine struct {
	toyEngine
	compiled *atomic.Int64
}

func (e countingEngine) Compile(view policy.View, r *resource.Resource) *policy.Policy {
	e.compiled.Add(1)
	return e.toyEngine.Compile(view, r)
}

// What was prepared, by many goroutines, is not compiled again by the Reset that it was
// prepared for, and by the next one is. What names a dataplane, or depends on another
// resource, is compiled by Reset.
func TestPreparedPoliciesAreCompiledOnce(t *testing.T) {
	w := toys{}
	w.put("Mesh", "", "m", &resource.Mesh{})
	anywhere := policy.Reach{On: policy.OnDataplane}
	for i := range 300 {
		w.put(toyKind, "m", fmt.Sprintf("p-%d", i), &toySpec{Reach: []policy.Reach{anywhere}, Conf: policy.Tree{"n": "1"}})
	}
	w.put(toyKind, "m", "named", &toySpec{Reach: []policy.Reach{{Name: "d1", On: policy.OnDataplane}}})
	w.put(toyKind, "m", "routed", &toySpec{Reach: []policy.Reach{anywhere}, Route: "r"})
	var compiled atomic.Int64
	m := policy.NewMatcher(countingEngine{compiled: &compiled})
	all := slices.Collect(maps.Values(w))
	m.Prepare(all[0])
	require.Zero(t, compiled.Load(), "no Reset is expected")
	m.Expect()
	var group sync.WaitGroup
	for some := range slices.Chunk(all, 50) {
		group.Go(func() {
			for _, r := range some {
				m.Prepare(r)
			}
		})
	}
	group.Wait()
	require.EqualValues(t, 302, compiled.Swap(0))
	m.Reset(w.view())
	require.EqualValues(t, 2, compiled.Swap(0))
	m.Prepare(all[0])
	require.Zero(t, compiled.Load(), "the Reset is over")
	m.Reset(w.view())
	require.EqualValues(t, 302, compiled.Load())
}

// It makes no difference to what is matched, nor to what follows, which policies were
// prepared, and in which edition.
func TestPreparedMatcherEqualsNaive(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := toys{}
		w.put("Mesh", "", "m", &resource.Mesh{})
		m := policy.NewMatcher(toyEngine{})
		m.Expect()
		for range rapid.IntRange(0, 8).Draw(rt, "resources") {
			w.drawChange(rt)
			for _, key := range slices.SortedFunc(maps.Keys(w), resource.Key.Compare) {
				if rapid.Bool().Draw(rt, "prepared") {
					m.Prepare(w[key])
				}
			}
		}
		m.Reset(w.view())
		require.Equal(rt, w.naive(rt), matched(rt, m))
		for range rapid.IntRange(1, 4).Draw(rt, "changes") {
			changed := []resource.Key{w.drawChange(rt)}
			m.Update(w.view(), changed)
			require.Equal(rt, w.naive(rt), matched(rt, m))
		}
	})
}

// What was prepared and is not in the view, or in another edition, has no effect.
func TestPreparedForAnotherViewHasNoEffect(t *testing.T) {
	policyOf := func(n string) *toySpec {
		return &toySpec{Reach: []policy.Reach{{On: policy.OnDataplane}}, Conf: policy.Tree{n: "1"}}
	}
	w := toys{}
	w.put("Mesh", "", "m", &resource.Mesh{})
	w.put("Dataplane", "m", "d1", &resource.Dataplane{Networking: resource.Networking{
		Inbound: []resource.Inbound{{Port: 1, Tags: resource.Tags{resource.ServiceTag: "a"}}},
	}})
	same, changed, gone := w.put(toyKind, "m", "same", policyOf("same")), w.put(toyKind, "m", "changed", policyOf("before")), w.put(toyKind, "m", "gone", policyOf("gone"))
	elsewhere := w.put(toyKind, "elsewhere", "gone", policyOf("gone"))
	m := policy.NewMatcher(toyEngine{})
	m.Expect()
	for _, key := range []resource.Key{same, changed, gone, elsewhere} {
		m.Prepare(w[key])
	}
	w.put(toyKind, "m", "changed", policyOf("after"))
	delete(w, gone)
	delete(w, elsewhere)
	m.Reset(w.view())
	require.Equal(t, w.naive(t), matched(t, m))
	delete(w, same)
	m.Update(w.view(), []resource.Key{same})
	require.Equal(t, w.naive(t), matched(t, m))
}
