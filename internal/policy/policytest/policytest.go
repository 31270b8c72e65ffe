// Package policytest has what the random tests of engines share: a world of
// resources that changes, and what every matcher promises about it.
//
// It guarantees nothing about the content of a world, which each engine draws for
// itself. Non-goals: a store.
package policytest

import (
	"context"
	"encoding/json"
	"iter"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// World is a set of resources that a test changes.
type World struct {
	Resources map[resource.Key]*resource.Resource
}

// NewWorld returns an empty world.
func NewWorld() World { return World{map[resource.Key]*resource.Resource{}} }

// Put adds a resource with a spec in JSON, in place of one with its key.
func (w World) Put(t require.TestingT, meta resource.Meta, spec string) resource.Key {
	r, _, err := resource.Build(meta, []byte(spec))
	require.NoError(t, err, "%s", spec)
	w.Resources[meta.Key] = r
	return meta.Key
}

// View is the world as it is now.
func (w World) View() policy.View {
	return policy.NewSnapshot(slices.Collect(maps.Values(w.Resources))...)
}

// Lint is policy.Lint for a caller who stays.
func Lint(t require.TestingT, view policy.View, resources []*resource.Resource, surveyors ...policy.Surveyor) []policy.Advice {
	advice, err := policy.Lint(context.Background(), view, resources, surveyors...)
	require.NoError(t, err)
	return advice
}

// Keys are the keys of all resources, in order.
func (w World) Keys() []resource.Key {
	return slices.SortedFunc(maps.Keys(w.Resources), resource.Key.Compare)
}

// RequireUnchanged fails when matching wrote to a resource of the world.
func (w World) RequireUnchanged(t require.TestingT, matching func()) {
	before := map[*resource.Resource]string{}
	for _, r := range w.Resources {
		before[r] = Spell(t, r.Spec())
	}
	matching()
	for r, text := range before {
		require.Equal(t, text, Spell(t, r.Spec()), "%s", r.Key())
	}
}

// Backwards is a view that lists everything in the opposite order.
type Backwards struct{ policy.View }

// List implements policy.View.
func (b Backwards) List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource] {
	all := slices.Collect(b.View.List(kind, mesh))
	slices.Reverse(all)
	return slices.Values(all)
}

// Spell returns a value as JSON.
func Spell(t require.TestingT, v any) string {
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}

// RequireTouched fails unless an update named exactly the targets whose outcome
// differs. Outcomes are by dataplane, and by its attachment in JSON with the kind.
func RequireTouched(t require.TestingT, before, after map[resource.Key]map[string]string, touched []policy.Touch) {
	named := map[resource.Key]map[string]bool{}
	for _, touch := range touched {
		_, exists := after[touch.Dataplane]
		require.Equal(t, !exists, touch.Gone)
		named[touch.Dataplane] = map[string]bool{}
		for _, target := range touch.Targets {
			named[touch.Dataplane][Spell(t, target.Attachment)+string(target.Kind)] = true
		}
	}
	for key, targets := range after {
		changed := map[string]bool{}
		for at, outcome := range targets {
			if before[key][at] != outcome {
				changed[at] = true
			}
		}
		for at := range before[key] {
			if _, still := targets[at]; !still {
				changed[at] = true
			}
		}
		if len(changed) > 0 || named[key] != nil {
			require.Equal(t, changed, named[key], "%s", key)
		}
	}
}
