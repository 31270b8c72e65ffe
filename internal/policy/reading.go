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

// Superseded returns, in order, the rules of a dataplane that those of another kind
// supersede (§4.11). It fails with ErrNoDataplane.
func (r *Reading) Superseded(key resource.Key) ([]Rule, error) {
	g := r.m.dataplanes[key]
	if g == nil {
		return nil, ErrNoDataplane
	}
	ms := r.m.meshes[key.Mesh]
	var kinds []resource.Kind
	for sibling, successor := range r.m.successors {
		if ms.kinds[sibling] != nil && ms.kinds[successor] != nil {
			kinds = append(kinds, sibling)
		}
	}
	slices.Sort(kinds)
	rules := r.m.rulesLocked(ms, ms.subject(g, key.Name), kinds, true)
	return slices.DeleteFunc(rules, func(rule Rule) bool { return rule.Superseded == nil }), nil
}

// Placement is one dataplane on which a policy takes effect, or would, and where on
// it.
type Placement struct {
	Dataplane   resource.Key
	Zone        resource.ZoneName
	Attachments []Attachment
	// Superseded is nil where the policy takes effect.
	Superseded *Superseded
}

// Placements returns where a policy is used and where it is only because of its
// successor that it is not (§4.11), in key order. It fails with ErrNoPolicy.
func (r *Reading) Placements(key resource.Key) ([]Placement, error) {
	p := r.m.policyLocked(key)
	if p == nil {
		return nil, ErrNoPolicy
	}
	ms := r.m.meshes[key.Mesh]
	var placed []Placement
	for g, attachments := range reachedBy(ms, p) {
		for _, v := range ms.variants(g, nil) {
			for _, p := range r.m.placedLocked(ms, v.subject, attachments, key) {
				p.Zone = g.Zone()
				for _, name := range v.names {
					p.Dataplane = DataplaneKey(key.Mesh, name)
					placed = append(placed, p)
				}
			}
		}
	}
	slices.SortStableFunc(placed, func(a, b Placement) int { return strings.Compare(a.Dataplane.Name, b.Dataplane.Name) })
	return placed, nil
}

// placedLocked lists the attachments on which a policy contributes, and those on
// which it would, by what supersedes it.
func (m *Matcher) placedLocked(ms *meshState, dp *Dataplane, attachments []int, key resource.Key) []Placement {
	var placed []Placement
	var scratch []*Policy
	for _, i := range attachments {
		for _, rule := range m.matchedAtLocked(ms, dp, i, key.Kind, &scratch) {
			if !slices.Contains(rule.Policies(), key) {
				continue
			}
			by := m.successorAtLocked(ms, dp, i, key.Kind, &scratch)
			at := slices.IndexFunc(placed, func(p Placement) bool { return p.Superseded.equal(by) })
			if at < 0 {
				at, placed = len(placed), append(placed, Placement{Superseded: by})
			}
			placed[at].Attachments = append(placed[at].Attachments, rule.Attachment)
		}
	}
	for i := range placed {
		slices.SortFunc(placed[i].Attachments, func(a, b Attachment) int { return a.Compare(&b) })
	}
	slices.SortFunc(placed, func(a, b Placement) int {
		return strings.Compare(a.Superseded.String(), b.Superseded.String())
	})
	return placed
}
