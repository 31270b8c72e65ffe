// Package shadow tries permissions before they are in effect: a TrafficPermission
// or MeshTrafficPermission with the label meridian.io/enforcement: shadow is not in
// effect, and matched a second time as if it were.
//
// Guarantees. What is in effect is what it would be without the policies that have the
// label; what is tried is what would be in effect without the label. A mesh fleet without
// such policies costs nothing.
//
// Non-goals: what to do with callers that would be denied, which proxies and answers show.
package shadow

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Engines returns engines that leave out the policies that are only tried.
func Engines(engines ...policy.Engine) []policy.Engine {
	out := make([]policy.Engine, len(engines))
	for i, e := range engines {
		out[i] = without{e}
	}
	return out
}

// without is an engine for which what is only tried reaches nothing.
type without struct{ policy.Engine }

// Compile implements policy.Engine.
func (w without) Compile(view policy.View, r *resource.Resource) *policy.Policy {
	p := w.Engine.Compile(view, r)
	if r.Shadowed() {
		tried := *p
		tried.Reach = nil
		return &tried
	}
	return p
}

// Successors implements policy.Superseder.
func (w without) Successors() map[resource.Kind]resource.Kind {
	if s, ok := w.Engine.(policy.Superseder); ok {
		return s.Successors()
	}
	return nil
}

// permissions is an engine for nothing but permissions.
type permissions struct{ policy.Engine }

// Kinds implements policy.Engine.
func (p permissions) Kinds() []resource.Kind {
	return slices.DeleteFunc(slices.Clone(p.Engine.Kinds()), func(kind resource.Kind) bool { return !resource.Permission(kind) })
}

// Successors implements policy.Superseder.
func (p permissions) Successors() map[resource.Kind]resource.Kind {
	all := without(p).Successors()
	found := map[resource.Kind]resource.Kind{}
	for sibling, successor := range all {
		if resource.Permission(sibling) && resource.Permission(successor) {
			found[sibling] = successor
		}
	}
	return found
}

// Trial is a policy.Follower that knows what would be in effect without the label. It is
// safe for concurrent use.
type Trial struct {
	engines []policy.Engine

	mu    sync.RWMutex // guards everything below
	tried map[resource.Key]bool
	// matcher matches permissions as if none had the label; nil while none has.
	matcher *policy.Matcher
	// touch is told of dataplanes, if it is set.
	touch func([]resource.Key)
}

// New returns a trial of the permissions that some engines match: those that leave
// nothing out.
func New(engines ...policy.Engine) *Trial {
	t := &Trial{tried: map[resource.Key]bool{}}
	for _, e := range engines {
		t.engines = append(t.engines, permissions{e})
	}
	return t
}

// OnTouch has f called, update by update, with the dataplanes for which something else may
// be tried than before, each once. f is quick and calls nothing of the Trial. Called once,
// before the first Update; Reset touches nothing.
func (t *Trial) OnTouch(f func(dataplanes []resource.Key)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.touch = f
}

// Reset implements policy.Follower.
func (t *Trial) Reset(view policy.View) {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.tried)
	for _, kind := range resource.Permissions() {
		for r := range view.List(kind, "") {
			t.note(view, r.Key())
		}
	}
	t.matcher = nil
	t.begin(view)
}

// Update implements policy.Follower.
func (t *Trial) Update(view policy.View, changed []resource.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.meshes()
	for _, key := range changed {
		t.note(view, key)
	}
	after := t.meshes()
	var touched []policy.Touch
	switch {
	case len(t.tried) == 0:
		t.matcher = nil
	case t.matcher == nil:
		t.begin(view)
	default:
		touched = t.matcher.Update(view, changed)
	}
	if t.touch == nil {
		return
	}
	keys := map[resource.Key]bool{}
	for _, d := range touched {
		if after[d.Dataplane.Mesh] {
			keys[d.Dataplane] = true
		}
	}
	for _, meshes := range [2][2]map[resource.MeshName]bool{{before, after}, {after, before}} {
		for mesh := range meshes[0] {
			if meshes[1][mesh] {
				continue
			}
			for r := range view.List(resource.KindDataplane, mesh) {
				keys[r.Key()] = true
			}
		}
	}
	if len(keys) > 0 {
		t.touch(slices.SortedFunc(maps.Keys(keys), resource.Key.Compare))
	}
}

// meshes are those in which something is tried.
func (t *Trial) meshes() map[resource.MeshName]bool {
	if len(t.tried) == 0 {
		return nil
	}
	meshes := map[resource.MeshName]bool{}
	for key := range t.tried {
		meshes[key.Mesh] = true
	}
	return meshes
}

// note learns whether a policy is tried.
func (t *Trial) note(view policy.View, key resource.Key) {
	if !resource.Permission(key.Kind) {
		return
	}
	delete(t.tried, key)
	if r, ok := view.Get(key); ok && r.Shadowed() {
		t.tried[key] = true
	}
}

// begin matches from a view, if anything is tried.
func (t *Trial) begin(view policy.View) {
	if len(t.tried) == 0 {
		return
	}
	t.matcher = policy.NewMatcher(t.engines...)
	t.matcher.Reset(view)
}

// Rules returns the permissions on a dataplane as if those that are tried were in effect;
// false where none of the mesh is tried, so that they are those that are. The rules are
// shared and must not be modified. It fails with policy.ErrNoDataplane.
func (t *Trial) Rules(dataplane resource.Key) (rules []policy.Rule, tried bool, err error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.in(dataplane.Mesh) {
		return nil, false, nil
	}
	rules, err = t.matcher.Effective(dataplane)
	return rules, true, err
}

// Explain is Rules with every policy accounted for, of one kind.
func (t *Trial) Explain(dataplane resource.Key, kind resource.Kind) (rules []policy.Rule, tried bool, err error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.in(dataplane.Mesh) {
		return nil, false, nil
	}
	err = t.matcher.Read(func(r *policy.Reading) (err error) {
		rules, err = r.Explain(dataplane, kind)
		return err
	})
	return rules, true, err
}

func (t *Trial) in(mesh resource.MeshName) bool {
	for key := range t.tried {
		if key.Mesh == mesh {
			return true
		}
	}
	return false
}

// Tried reports whether a policy is tried, and not in effect.
func (t *Trial) Tried(key resource.Key) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.tried[key]
}

// Placements returns where a policy that is tried would take effect.
func (t *Trial) Placements(key resource.Key) (placed []policy.Placement, err error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.tried[key] {
		return nil, fmt.Errorf("%s is not tried: %w", key, policy.ErrNoPolicy)
	}
	err = t.matcher.Read(func(r *policy.Reading) (err error) {
		placed, err = r.Placements(key)
		return err
	})
	return placed, err
}

// Surveyor advises on the label where it does nothing.
type Surveyor struct{}

// Survey implements policy.Surveyor.
func (Surveyor) Survey(policy.View) policy.Adviser { return adviser{} }

type adviser struct{}

// Advise implements policy.Adviser.
func (adviser) Advise(_ policy.View, r *resource.Resource) []resource.Problem {
	meta := r.Meta()
	value, ok := meta.Labels[resource.EnforcementLabel]
	var why string
	switch {
	case !ok:
		return nil
	case !resource.Permission(r.Key().Kind):
		why = "only permissions can be tried"
	case value != resource.EnforcementShadow:
		why = fmt.Sprintf("the only value is %s", resource.EnforcementShadow)
	default:
		return nil
	}
	return []resource.Problem{{
		Path: "labels", Severity: resource.Warning, Code: resource.CodeNoEffect,
		Message: fmt.Sprintf("the label %s: %s has no effect, and this is in effect: %s", resource.EnforcementLabel, value, why),
	}}
}
