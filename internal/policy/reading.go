package policy

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"meridian/internal/resource"
)

// Reading is a consistent look at a matcher: nothing changes while it lasts.
type Reading struct {
	m *Matcher
}

// Read calls do with a consistent look at the matcher and returns its error. do
// must not keep the Reading, nor call the Matcher.
func (m *Matcher) Read(do func(*Reading) error) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return do(&Reading{m: m})
}

// View returns the resources that are matched.
func (r *Reading) View() View { return r.m.view }

// Mesh returns what matching knows of a mesh.
func (r *Reading) Mesh(name resource.MeshName) *Mesh {
	if ms := r.m.meshes[name]; ms != nil {
		return ms.mesh
	}
	return MeshOf(r.m.view, name)
}

// Matches reports whether policies of a kind attach to dataplanes.
func (r *Reading) Matches(kind resource.Kind) bool { return r.m.byKind[kind] != nil }

// Dataplane returns the shape of a dataplane. It fails with ErrNoDataplane.
func (r *Reading) Dataplane(key resource.Key) (*Shape, error) {
	g := r.m.dataplanes[key]
	if g == nil {
		return nil, ErrNoDataplane
	}
	return g.Shape, nil
}

// Dataplanes yields the dataplanes of a mesh (empty: every mesh) in key order.
func (r *Reading) Dataplanes(mesh resource.MeshName) iter.Seq2[resource.Key, *Shape] {
	return func(yield func(resource.Key, *Shape) bool) {
		for _, key := range slices.SortedFunc(maps.Keys(r.m.dataplanes), resource.Key.Compare) {
			if (mesh == "" || key.Mesh == mesh) && !yield(key, r.m.dataplanes[key].Shape) {
				return
			}
		}
	}
}

// Match works out what takes effect on a dataplane of the given kinds, in order,
// without the reasons. It fails with ErrNoDataplane.
func (r *Reading) Match(key resource.Key, kinds ...resource.Kind) ([]Rule, error) {
	g := r.m.dataplanes[key]
	if g == nil {
		return nil, ErrNoDataplane
	}
	ms := r.m.meshes[key.Mesh]
	return r.m.rulesLocked(ms, ms.subject(g, key.Name), kinds, false), nil
}

// Effective is Matcher.Effective.
func (r *Reading) Effective(key resource.Key) ([]Rule, error) { return r.m.effectiveLocked(key) }

// Selecting returns the policies of a kind that select a dataplane, by name,
// whether or not they take effect on it.
func (r *Reading) Selecting(key resource.Key, kind resource.Kind) []resource.Key {
	g := r.m.dataplanes[key]
	if g == nil || r.m.meshes[key.Mesh].kinds[kind] == nil {
		return []resource.Key{}
	}
	ms := r.m.meshes[key.Mesh]
	keys := []resource.Key{}
	for _, p := range ms.kinds[kind].selecting(ms.subject(g, key.Name)) {
		keys = append(keys, p.Key())
	}
	return keys
}

// Explain returns everything that takes effect on a dataplane of the given
// kinds (none: all), in order, with every policy that selects the dataplane
// accounted for. It fails with ErrNoDataplane.
func (r *Reading) Explain(key resource.Key, kinds ...resource.Kind) ([]Rule, error) {
	g := r.m.dataplanes[key]
	if g == nil {
		return nil, ErrNoDataplane
	}
	if len(kinds) == 0 {
		kinds = r.m.kinds
	}
	ms := r.m.meshes[key.Mesh]
	return r.m.rulesLocked(ms, ms.subject(g, key.Name), kinds, true), nil
}

// Warnings returns what the engines have to say about the rules of a dataplane,
// as Explain returned them for all kinds, without duplicates and in bytewise
// order.
func (r *Reading) Warnings(key resource.Key, rules []Rule) []string {
	g := r.m.dataplanes[key]
	if g == nil {
		return nil
	}
	var warnings []string
	for i := range rules {
		warnings = append(warnings, rules[i].Warnings...)
	}
	dp := r.m.meshes[key.Mesh].subject(g, key.Name)
	for _, e := range r.m.engines {
		if w, ok := e.(Warner); ok {
			warnings = append(warnings, w.Warnings(dp, rules)...)
		}
	}
	slices.Sort(warnings)
	return slices.Compact(warnings)
}

// Placement is one dataplane on which a policy takes effect, and where on it.
type Placement struct {
	Dataplane   resource.Key
	Zone        resource.ZoneName
	Attachments []Attachment
}

// Placements returns where a policy is used, in key order. It fails with
// ErrNoPolicy.
func (r *Reading) Placements(key resource.Key) ([]Placement, error) {
	p := r.m.policyLocked(key)
	if p == nil {
		return nil, ErrNoPolicy
	}
	ms := r.m.meshes[key.Mesh]
	var placed []Placement
	for g, attachments := range reachedBy(ms, p) {
		for _, v := range ms.variants(g, nil) {
			used := r.m.usedLocked(ms, v.subject, attachments, key)
			if len(used) == 0 {
				continue
			}
			for _, name := range v.names {
				placed = append(placed, Placement{
					Dataplane:   DataplaneKey(key.Mesh, name),
					Zone:        g.Zone(),
					Attachments: used,
				})
			}
		}
	}
	slices.SortFunc(placed, func(a, b Placement) int { return strings.Compare(a.Dataplane.Name, b.Dataplane.Name) })
	return placed, nil
}

// usedLocked lists, in order, the attachments on which a policy contributes.
func (m *Matcher) usedLocked(ms *meshState, dp *Dataplane, attachments []int, key resource.Key) []Attachment {
	var used []Attachment
	var scratch []*Policy
	for _, i := range attachments {
		for _, rule := range m.rulesAtLocked(ms, dp, i, key.Kind, &scratch) {
			if slices.Contains(rule.Policies(), key) {
				used = append(used, rule.Attachment)
			}
		}
	}
	slices.SortFunc(used, func(a, b Attachment) int { return a.Compare(&b) })
	return used
}
