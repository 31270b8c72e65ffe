package overlay_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/resource"
	"meridian/internal/rollout/overlay"
)

var epoch = time.Date(2026, 1, 31, 20, 0, 0, 0, time.UTC)

func timeout(name string) resource.Key {
	return resource.Key{Kind: resource.KindTimeout, Mesh: "default", Name: name}
}

// put is a change of a resource of some version.
func put(key resource.Key, replaces uint64, text string) resource.RolloutChange {
	r := resource.New(resource.Meta{Key: key, Labels: map[string]string{"text": text}}, nil, []byte(text))
	return resource.RolloutChange{Put: resource.NewRolloutDocument(r), Replaces: replaces}
}

func remove(key resource.Key, replaces uint64) resource.RolloutChange {
	return resource.RolloutChange{Delete: &resource.RolloutKey{Type: key.Kind, Mesh: key.Mesh, Name: key.Name}, Replaces: replaces}
}

// rollout is one that a zone named east has, begun some minutes after the epoch and
// written last at some revision.
func rollout(name string, minutes int, revision resource.Revision, changes ...resource.RolloutChange) *resource.Resource {
	return resource.New(resource.Meta{
		Key: resource.Key{Kind: resource.KindRollout, Name: name}, Version: 1, Revision: revision,
		CreationTime: epoch.Add(time.Duration(minutes) * time.Minute), ModificationTime: epoch.Add(time.Hour),
	}, &resource.Rollout{
		Changes: changes,
		Status:  resource.RolloutStatus{Phase: resource.RolloutProgressing, Stage: 1, Zones: []resource.ZoneName{"east"}},
	}, []byte("{}"))
}

type bases map[resource.Key]overlay.Base

func (b bases) at(key resource.Key) overlay.Base { return b[key] }

// shown describes an overlay.
func shown(o *overlay.Overlay) map[string]string {
	out := map[string]string{}
	for key, r := range o.All() {
		out[key.Name] = "deleted"
		if r != nil {
			out[key.Name] = string(r.Canonical())
		}
	}
	return out
}

func of(zone resource.ZoneName, base bases, rollouts ...*resource.Resource) *overlay.Overlay {
	return overlay.Of(zone, slices.Values(rollouts), base.at, nil)
}

func TestOverlay(t *testing.T) {
	base := bases{timeout("a"): {Version: 3, Created: epoch}, timeout("b"): {Version: 1, Created: epoch}}
	r := rollout("r", 5, 9, put(timeout("a"), 3, "new"), remove(timeout("b"), 1), put(timeout("c"), 0, "made"))
	o := of("east", base, r)
	require.Equal(t, map[string]string{"a": "new", "b": "deleted", "c": "made"}, shown(o))
	for _, key := range []resource.Key{timeout("a"), timeout("b"), timeout("c"), r.Key()} {
		require.True(t, o.Follows(key), key)
	}
	require.False(t, o.Follows(timeout("d")))
	_, hidden := o.Get(timeout("d"))
	require.False(t, hidden)

	a, _ := o.Get(timeout("a"))
	require.Equal(t, resource.Meta{
		Key: timeout("a"), Labels: map[string]string{"text": "new"}, Version: 4, Revision: 9, Rollout: "r",
		CreationTime: epoch, ModificationTime: epoch.Add(5 * time.Minute),
	}, a.Meta(), "as old as what it replaces, modified when the rollout was begun")
	c, _ := o.Get(timeout("c"))
	require.Equal(t, resource.Meta{
		Key: timeout("c"), Labels: map[string]string{"text": "made"}, Version: 1, Revision: 9, Rollout: "r",
		CreationTime: epoch.Add(5 * time.Minute), ModificationTime: epoch.Add(5 * time.Minute),
	}, c.Meta())

	require.Empty(t, shown(of("west", base, r)), "a zone that has it not")
	require.False(t, of("west", base, r).Follows(timeout("a")))
	require.Empty(t, shown(&overlay.Overlay{}))
	require.False(t, (&overlay.Overlay{}).Follows(timeout("a")))
	require.True(t, (&overlay.Overlay{}).Follows(r.Key()), "a rollout that comes")

	for name, other := range map[string]bases{
		"written since":  {timeout("a"): {Version: 4}, timeout("b"): {Version: 1}},
		"gone":           {timeout("a"): {Version: 3}},
		"not to be here": {timeout("a"): {Version: 3}, timeout("b"): {Version: 1}, timeout("c"): {Version: 1}},
	} {
		require.Empty(t, shown(of("east", other, r)), "%s: all of it, or nothing", name)
		require.True(t, of("east", other, r).Follows(timeout("a")), "%s: it may come to hold", name)
	}
}

// Of two rollouts of one resource, which a global never has, the older is shown, and of
// two as old the first by name; a third that touches neither is shown with it.
func TestOverlappingRollouts(t *testing.T) {
	first := rollout("z", 1, 1, put(timeout("a"), 0, "first"), put(timeout("b"), 0, "first"))
	second := rollout("a", 2, 2, put(timeout("b"), 0, "second"), put(timeout("c"), 0, "second"))
	third := rollout("b", 2, 3, put(timeout("d"), 0, "third"), put(timeout("e"), 0, "third"))
	fourth := rollout("c", 2, 4, put(timeout("e"), 0, "fourth"))
	want := map[string]string{"a": "first", "b": "first", "d": "third", "e": "third"}
	all := []*resource.Resource{first, second, third, fourth}
	for range all {
		all = append(all[1:], all[0])
		require.Equal(t, want, shown(of("east", nil, all...)))
	}
}

// What stays the same stays the same resource, so that no reader is told of a change.
func TestOverlayKeepsWhatIsTheSame(t *testing.T) {
	base := bases{timeout("a"): {Version: 1, Created: epoch}}
	before := of("east", base, rollout("r", 1, 1, put(timeout("a"), 1, "x")))
	again := overlay.Of("east", slices.Values([]*resource.Resource{rollout("r", 1, 1, put(timeout("a"), 1, "x"))}), base.at, before)
	one, _ := before.Get(timeout("a"))
	two, _ := again.Get(timeout("a"))
	require.Same(t, one, two)
	for name, other := range map[string]*resource.Resource{
		"content": rollout("r", 1, 1, put(timeout("a"), 1, "y")), "times": rollout("r", 2, 1, put(timeout("a"), 1, "x")),
		"revision": rollout("r", 1, 2, put(timeout("a"), 1, "x")), "rollout": rollout("s", 1, 1, put(timeout("a"), 1, "x")),
	} {
		next := overlay.Of("east", slices.Values([]*resource.Resource{other}), base.at, before)
		two, _ := next.Get(timeout("a"))
		require.NotSame(t, one, two, name)
	}
}

// TestOverlayIsAFunction: whatever the order of rollouts and whatever was shown before,
// the overlay is the same, and of each rollout it has all or nothing.
func TestOverlayIsAFunction(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d", "e"}
		var before *overlay.Overlay
		for range rapid.IntRange(1, 4).Draw(t, "steps") {
			base := bases{}
			for _, name := range names {
				if v := rapid.Uint64Range(0, 1).Draw(t, "version"); v > 0 {
					base[timeout(name)] = overlay.Base{Version: v, Created: epoch}
				}
			}
			var all []*resource.Resource
			for i := range rapid.IntRange(0, 4).Draw(t, "rollouts") {
				var changes []resource.RolloutChange
				for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, 3, rapid.ID[string]).Draw(t, "keys") {
					v := rapid.Uint64Range(0, 1).Draw(t, "replaces")
					if v > 0 && rapid.Bool().Draw(t, "delete") {
						changes = append(changes, remove(timeout(name), v))
					} else {
						changes = append(changes, put(timeout(name), v, fmt.Sprint(i)))
					}
				}
				r := rollout(fmt.Sprintf("r-%d", i), rapid.IntRange(0, 2).Draw(t, "minutes"), 1, changes...)
				r.Spec().(*resource.Rollout).Status.Phase = rapid.SampledFrom([]resource.RolloutPhase{
					resource.RolloutProgressing, resource.RolloutHalted, resource.RolloutAborted, resource.RolloutCompleted,
				}).Draw(t, "phase")
				all = append(all, r)
			}
			want := shown(of("east", base, all...))
			next := overlay.Of("east", slices.Values(rapid.Permutation(all).Draw(t, "order")), base.at, before)
			require.Equal(t, want, shown(next))
			before = next
			for _, r := range all {
				spec := r.Spec().(*resource.Rollout)
				mine := 0
				holds := !spec.Status.Phase.Finished()
				for _, c := range spec.Changes {
					shown, ok := next.Get(c.Key())
					if ok && shown != nil && shown.Meta().Rollout == r.Key().Name {
						mine++
					}
					holds = holds && base[c.Key()].Version == c.Replaces
				}
				puts := len(slices.DeleteFunc(slices.Clone(spec.Changes), func(c resource.RolloutChange) bool { return c.Put == nil }))
				require.Contains(t, []int{0, puts}, mine, "half of %s", r.Key())
				require.True(t, holds || mine == 0)
			}
			require.LessOrEqual(t, len(maps.Collect(next.All())), len(names))
		}
	})
}
