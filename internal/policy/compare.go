package policy

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"meridian/internal/resource"
)

// Comparison is what a change would make of what is matched.
type Comparison struct {
	// Revision is that of the view before the change.
	Revision resource.Revision
	// Differences are the kinds on attachments for which something else would take
	// effect, in order.
	Differences []Difference
	// Inbounds are those for which who may call could be another matter: on which other
	// permissions would be in effect, or the same ones in a mesh with other settings, or
	// that callers reach which change. In order.
	Inbounds []InboundComparison
	// Meshes are those in which something changes, by name.
	Meshes map[resource.MeshName]*MeshComparison
	// Places are the changed policies that attach to dataplanes and would still be there,
	// with the dataplanes on which they would take effect.
	Places map[resource.Key]Places
}

// Difference is what a change would make of one kind on one attachment of equal
// dataplanes.
type Difference struct {
	// Shape is that of the dataplanes as they would be; as they are, of one that would be
	// gone.
	Shape *Shape
	// Names are those of the dataplanes, in order.
	Names []string
	Target
	// Before and After are what takes effect, and would; nil for nothing.
	Before, After *Rule
}

// InboundComparison is an inbound of equal dataplanes.
type InboundComparison struct {
	Shape      *Shape
	Names      []string
	Attachment Attachment
	// Existed and Exists are both true unless the dataplane itself changes.
	Existed, Exists bool
	// Before and After are the permissions in effect on it.
	Before, After []*Rule
}

// MeshComparison is what a change would make of the dataplanes of a mesh that call
// others.
type MeshComparison struct {
	Before, After *Mesh
	Callers       []CallerComparison
}

// CallerComparison is dataplanes that call with the same tags.
type CallerComparison struct {
	// Before and After are their tag sets; nil where they do not exist.
	Before, After []resource.Tags
	Names         []string
}

// Places counts the dataplanes of a policy.
type Places struct {
	// Used are those on which it would take effect, Superseded those on which its
	// successor would in its place (§4.11).
	Used, Superseded int
}

// Compare says what Update would change with a later view, in which only the given keys
// differ, and changes nothing; later makes that view of the one that the matcher has. Only
// what the change can touch is worked out. The matcher is held up only while what is
// indexed of the meshes of the change is copied. Followers do not take part. It fails only
// with the cause of ctx.
func (m *Matcher) Compare(ctx context.Context, later func(View) View, changed []resource.Key) (*Comparison, error) {
	return m.CompareLooking(ctx, later, changed, func(*Reading, resource.MeshName, map[resource.Kind]bool) error { return nil })
}

// CompareLooking is Compare that has look look at each mesh of the change, first at all of
// them before it and then at all of them after it. kinds are those that the change can
// touch, nil for every kind. The readings have these meshes only. An error of look ends it.
func (m *Matcher) CompareLooking(ctx context.Context, later func(View) View, changed []resource.Key, look func(r *Reading, mesh resource.MeshName, kinds map[resource.Kind]bool) error) (*Comparison, error) {
	fork := m.fork(false, changed)
	revision := fork.view.Revision()
	c := &comparing{update: fork.planLocked(later(fork.view), changed), ctx: ctx, compared: map[inboundOf][]InboundComparison{}}
	c.collect()
	if err := c.measure(func(o *outcome, rules []Rule) { o.before = rules }); err != nil {
		return nil, err
	}
	for key := range c.dataplanes {
		_, existed := c.m.dataplanes[key]
		c.dataplanes[key] = past{existed, c.rulesOf(key)}
	}
	if err := c.permissions(func(d *InboundComparison, rules []*Rule) { d.Before, d.Existed = rules, true }); err != nil {
		return nil, err
	}
	callers, shapes, meshes := c.callers(), c.shapes(), c.settings()
	if err := c.look(look); err != nil {
		return nil, err
	}
	c.run()
	if err := c.look(look); err != nil {
		return nil, err
	}
	if err := c.measure(func(o *outcome, rules []Rule) { o.after = rules }); err != nil {
		return nil, err
	}
	if err := c.permissions(func(d *InboundComparison, rules []*Rule) { d.After, d.Exists = rules, true }); err != nil {
		return nil, err
	}
	out := &Comparison{Revision: revision, Meshes: map[resource.MeshName]*MeshComparison{}}
	afterwards := c.callers()
	for name, now := range c.settings() {
		out.Meshes[name] = &MeshComparison{Before: meshes[name], After: now, Callers: joined(callers[name], afterwards[name])}
	}
	c.differences(out, shapes)
	c.inbounds(out, shapes)
	var err error
	out.Places, err = c.places()
	return out, err
}

// Fork returns a matcher that begins with what this one has and goes its own way: both
// share what is immutable. followers, which must not follow another matcher, are reset to
// its view.
func (m *Matcher) Fork(followers ...Follower) *Matcher {
	f := m.fork(true, nil)
	f.followers = followers
	for _, follower := range followers {
		follower.Reset(f.view)
	}
	return f
}

// fork returns a matcher of all meshes, or of those in which keys are, without followers,
// that shares what is immutable.
func (m *Matcher) fork(all bool, changed []resource.Key) *Matcher {
	f := &Matcher{
		engines: m.engines, byKind: m.byKind, kinds: m.kinds, successors: m.successors, siblings: m.siblings,
		meshes: map[resource.MeshName]*meshState{}, dataplanes: map[resource.Key]*group{},
		dependents: map[resource.Key]map[resource.Key]struct{}{},
	}
	type copied struct {
		policies map[resource.Kind][]*filed
		groups   []*group
	}
	copies := map[resource.MeshName]*copied{}
	m.mu.RLock()
	f.view = m.view
	take := func(name resource.MeshName) {
		if _, done := f.meshes[name]; done || name == "" {
			return
		}
		ms := m.meshes[name]
		if ms == nil {
			f.meshLocked(name)
			return
		}
		f.meshes[name] = &meshState{mesh: ms.mesh, kinds: map[resource.Kind]*kindIndex{}, shapes: newShapeIndex(), named: maps.Clone(ms.named)}
		meshCopy := &copied{policies: make(map[resource.Kind][]*filed, len(ms.kinds)), groups: make([]*group, 0, len(ms.shapes.shapes))}
		for kind, x := range ms.kinds {
			meshCopy.policies[kind] = slices.Collect(maps.Values(x.byName))
		}
		for _, g := range ms.shapes.shapes {
			meshCopy.groups = append(meshCopy.groups, &group{Shape: g.Shape, members: maps.Clone(g.members)})
		}
		copies[name] = meshCopy
	}
	for _, key := range changed {
		if key.Kind == resource.KindMesh {
			take(resource.MeshName(key.Name))
		}
		take(key.Mesh)
		for dependent := range m.dependents[key] {
			take(dependent.Mesh)
		}
	}
	if all {
		for name := range m.meshes {
			take(name)
		}
	}
	for key, dependents := range m.dependents {
		f.dependents[key] = maps.Clone(dependents)
	}
	m.mu.RUnlock()
	for name, meshCopy := range copies {
		ms := f.meshes[name]
		for kind, policies := range meshCopy.policies {
			x := newKindIndex()
			for _, p := range policies {
				x.insert(p)
			}
			ms.kinds[kind] = x
		}
		for _, g := range meshCopy.groups {
			ms.shapes.add(g)
			for member := range g.members {
				f.dataplanes[DataplaneKey(name, member)] = g
			}
		}
	}
	return f
}

// comparing is one Compare under way, on a fork.
type comparing struct {
	*update
	ctx context.Context
	// compared are the inbounds to compare the permissions of, each for every variant of its
	// group.
	compared map[inboundOf][]InboundComparison
}

// inboundOf is an inbound of a shape.
type inboundOf struct {
	group      *group
	attachment int
}

// look has the meshes of the change looked at, as the fork now stands.
func (c *comparing) look(do func(*Reading, resource.MeshName, map[resource.Kind]bool) error) error {
	all := map[resource.MeshName]bool{} // with every kind
	for name := range c.meshes {
		all[name] = true
	}
	for key := range c.dataplanes {
		all[key.Mesh] = true
	}
	kinds := map[resource.MeshName]map[resource.Kind]bool{}
	for key := range c.policies {
		if kinds[key.Mesh] == nil {
			kinds[key.Mesh] = map[resource.Kind]bool{}
		}
		kinds[key.Mesh][key.Kind] = true
		if sibling, ok := c.m.siblings[key.Kind]; ok {
			kinds[key.Mesh][sibling] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.affected())) {
		of := kinds[name]
		if all[name] {
			of = nil
		}
		if err := do(&Reading{m: c.m}, name, of); err != nil {
			return err
		}
	}
	return nil
}

// collect finds the inbounds whose permissions are compared.
func (c *comparing) collect() {
	for a := range c.areas {
		if resource.Permission(a.kind) && a.group.Attachments[a.attachment].Type == OnInbound {
			c.compare(a.group, a.attachment)
		}
	}
	whole := map[resource.MeshName]bool{}
	for name := range c.meshes {
		whole[name] = true
	}
	for key := range c.dataplanes {
		whole[key.Mesh] = true
	}
	for name := range whole {
		ms := c.m.meshes[name]
		if ms == nil {
			continue
		}
		for _, g := range ms.shapes.shapes {
			for i := range g.Attachments {
				if g.Attachments[i].Type == OnInbound {
					if _, known := c.variants[g]; !known {
						c.variants[g] = ms.variants(g, c.named())
					}
					c.compare(g, i)
				}
			}
		}
	}
}

func (c *comparing) compare(g *group, i int) {
	d := inboundOf{g, i}
	if _, known := c.compared[d]; !known {
		c.compared[d] = make([]InboundComparison, len(c.variants[g]))
	}
}

// named are the dataplanes that policies of the change name.
func (c *comparing) named() map[resource.Key]bool {
	names := map[resource.Key]bool{}
	for key, p := range c.policies {
		if p != nil {
			for _, name := range namesIn(p) {
				names[resource.Key{Mesh: key.Mesh, Name: name}] = true
			}
		}
	}
	return names
}

// measure works out every area as the fork now stands.
func (c *comparing) measure(keep func(*outcome, []Rule)) error {
	for a, outcomes := range c.areas {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		ms := c.m.meshes[a.group.Mesh]
		if ms == nil {
			continue
		}
		for i, v := range c.variants[a.group] {
			keep(&outcomes[i], c.m.rulesAtLocked(ms, v.subject, a.attachment, a.kind, &c.scratch))
		}
	}
	return nil
}

// permissions works out those of every inbound to compare, as the fork now stands.
func (c *comparing) permissions(keep func(*InboundComparison, []*Rule)) error {
	for d, variants := range c.compared {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		ms := c.m.meshes[d.group.Mesh]
		for i, v := range c.variants[d.group] {
			var rules []*Rule
			if ms != nil {
				rules = c.m.permissionsAtLocked(ms, v.subject, d.attachment, &c.scratch)
			}
			keep(&variants[i], rules)
		}
	}
	return nil
}

// permissionsAtLocked returns the permissions in effect on an attachment.
func (m *Matcher) permissionsAtLocked(ms *meshState, dp *Dataplane, i int, scratch *[]*Policy) []*Rule {
	var found []*Rule
	for _, kind := range resource.Permissions() {
		rules := m.rulesAtLocked(ms, dp, i, kind, scratch)
		for j := range rules {
			found = append(found, &rules[j])
		}
	}
	return found
}

// settings are those of the meshes of the change.
func (c *comparing) settings() map[resource.MeshName]*Mesh {
	all := map[resource.MeshName]*Mesh{}
	for name := range c.affected() {
		all[name] = MeshOf(c.m.view, name)
	}
	return all
}

// affected are the meshes of the change.
func (c *comparing) affected() map[resource.MeshName]bool {
	all := map[resource.MeshName]bool{}
	for name := range c.meshes {
		all[name] = true
	}
	for key := range c.policies {
		all[key.Mesh] = true
	}
	for key := range c.dataplanes {
		all[key.Mesh] = true
	}
	return all
}

// caller is a group of dataplanes that call with the same tags.
type caller struct {
	members []resource.Tags
	names   map[string]struct{}
}

// callers are the dataplanes of the meshes of the change, by the tags that they call with.
func (c *comparing) callers() map[resource.MeshName]map[string]*caller {
	all := map[resource.MeshName]map[string]*caller{}
	for name := range c.affected() {
		ms := c.m.meshes[name]
		if ms == nil {
			continue
		}
		all[name] = map[string]*caller{}
		for _, g := range ms.shapes.shapes {
			key := TagSetsKey(g.Members)
			if all[name][key] == nil {
				all[name][key] = &caller{g.Members, map[string]struct{}{}}
			}
			maps.Copy(all[name][key].names, g.members)
		}
	}
	return all
}

// TagSetsKey spells tag sets so that equal ones, whatever their order, have equal
// strings.
func TagSetsKey(sets []resource.Tags) string {
	keys := make([]string, len(sets))
	for i, tags := range sets {
		keys[i] = string(appendTags(nil, tags))
	}
	slices.Sort(keys)
	return strings.Join(slices.Compact(keys), "")
}

// joined puts the callers of before and after together: those that do not change are one
// entry.
func joined(before, after map[string]*caller) []CallerComparison {
	var all []CallerComparison
	type change struct{ before, after []resource.Tags }
	changes := map[string]*change{}
	note := func(name string) *change {
		if changes[name] == nil {
			changes[name] = &change{}
		}
		return changes[name]
	}
	for key, a := range before {
		var same []string
		for name := range a.names {
			if b := after[key]; b != nil {
				if _, still := b.names[name]; still {
					same = append(same, name)
					continue
				}
			}
			note(name).before = a.members
		}
		if len(same) > 0 {
			slices.Sort(same)
			all = append(all, CallerComparison{a.members, a.members, same})
		}
	}
	for key, b := range after {
		for name := range b.names {
			if a := before[key]; a != nil {
				if _, was := a.names[name]; was {
					continue
				}
			}
			note(name).after = b.members
		}
	}
	for name, c := range changes {
		all = append(all, CallerComparison{c.before, c.after, []string{name}})
	}
	slices.SortFunc(all, func(a, b CallerComparison) int { return strings.Compare(a.Names[0], b.Names[0]) })
	return all
}

// shapes are those of the changed dataplanes.
func (c *comparing) shapes() map[resource.Key]*Shape {
	shapes := map[resource.Key]*Shape{}
	for key := range c.dataplanes {
		if g := c.m.dataplanes[key]; g != nil {
			shapes[key] = g.Shape
		}
	}
	return shapes
}

// unchanged are the dataplanes of a variant that do not change themselves, in order.
func (c *comparing) unchanged(g *group, v *variant) []string {
	var names []string
	for _, name := range v.names {
		if _, own := c.dataplanes[DataplaneKey(g.Mesh, name)]; !own {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// differences adds what takes effect otherwise.
func (c *comparing) differences(out *Comparison, before map[resource.Key]*Shape) {
	for a, outcomes := range c.areas {
		for i, o := range outcomes {
			names := c.unchanged(a.group, c.variants[a.group][i])
			if len(names) > 0 {
				out.Differences = appendDifferences(out.Differences, a.group.Shape, names, o.before, o.after)
			}
		}
	}
	now := c.shapes()
	for key, was := range c.dataplanes {
		shape := now[key]
		if shape == nil {
			shape = before[key]
		}
		if shape != nil {
			out.Differences = appendDifferences(out.Differences, shape, []string{key.Name}, was.rules, c.rulesOf(key))
		}
	}
	slices.SortFunc(out.Differences, func(a, b Difference) int {
		if d := strings.Compare(string(a.Shape.Mesh), string(b.Shape.Mesh)); d != 0 {
			return d
		}
		if d := strings.Compare(a.Names[0], b.Names[0]); d != 0 {
			return d
		}
		return a.Compare(&b.Target)
	})
}

// appendDifferences compares two ordered lists of rules.
func appendDifferences(found []Difference, shape *Shape, names []string, before, after []Rule) []Difference {
	for len(before) > 0 || len(after) > 0 {
		d := Difference{Shape: shape, Names: names}
		order := compareHeads(before, after)
		if order <= 0 {
			d.Before, d.Target, before = &before[0], before[0].Target, before[1:]
		}
		if order >= 0 {
			d.After, d.Target, after = &after[0], after[0].Target, after[1:]
		}
		if d.Before == nil || d.After == nil || !sameOutcome(d.Before, d.After) {
			found = append(found, d)
		}
	}
	return found
}

// inbounds adds the inbounds to compare.
func (c *comparing) inbounds(out *Comparison, before map[resource.Key]*Shape) {
	for d, variants := range c.compared {
		for i := range variants {
			in := variants[i]
			in.Shape, in.Attachment = d.group.Shape, d.group.Attachments[d.attachment]
			if in.Names = c.unchanged(d.group, c.variants[d.group][i]); len(in.Names) > 0 {
				out.Inbounds = append(out.Inbounds, in)
			}
		}
	}
	now := c.shapes()
	for key, was := range c.dataplanes {
		out.Inbounds = appendInbounds(out.Inbounds, key, before[key], now[key], was.rules, c.rulesOf(key))
	}
	slices.SortFunc(out.Inbounds, func(a, b InboundComparison) int {
		if d := strings.Compare(string(a.Shape.Mesh), string(b.Shape.Mesh)); d != 0 {
			return d
		}
		if d := strings.Compare(a.Names[0], b.Names[0]); d != 0 {
			return d
		}
		return a.Attachment.Compare(&b.Attachment)
	})
}

// appendInbounds compares the inbounds of a dataplane that changes itself.
func appendInbounds(found []InboundComparison, key resource.Key, before, after *Shape, rulesBefore, rulesAfter []Rule) []InboundComparison {
	mine := map[string]*InboundComparison{}
	var order []string
	each := func(s *Shape, keep func(*InboundComparison, *Attachment)) {
		if s == nil {
			return
		}
		for i := range s.Attachments {
			at := &s.Attachments[i]
			if at.Type != OnInbound {
				continue
			}
			id := strconv.FormatUint(uint64(at.Port), 10) + string(appendTags(nil, at.Tags))
			if mine[id] == nil {
				mine[id] = &InboundComparison{Names: []string{key.Name}, Attachment: *at}
				order = append(order, id)
			}
			mine[id].Shape = s
			keep(mine[id], at)
		}
	}
	each(before, func(in *InboundComparison, at *Attachment) {
		in.Existed, in.Before = true, permissionsOf(rulesBefore, at)
	})
	each(after, func(in *InboundComparison, at *Attachment) { in.Exists, in.After = true, permissionsOf(rulesAfter, at) })
	for _, id := range order {
		found = append(found, *mine[id])
	}
	return found
}

// permissionsOf are the permissions on an attachment among the rules of a dataplane.
func permissionsOf(rules []Rule, at *Attachment) []*Rule {
	var found []*Rule
	for i := range rules {
		if resource.Permission(rules[i].Kind) && rules[i].Attachment.Compare(at) == 0 {
			found = append(found, &rules[i])
		}
	}
	return found
}

// places counts where the changed policies would take effect.
func (c *comparing) places() (map[resource.Key]Places, error) {
	places := map[resource.Key]Places{}
	reading := &Reading{m: c.m}
	for key, p := range c.policies {
		if c.ctx.Err() != nil {
			return nil, context.Cause(c.ctx)
		}
		if p == nil {
			continue
		}
		placed, err := reading.Placements(key)
		if err != nil {
			return nil, err
		}
		var n Places
		for i := range placed {
			if placed[i].Superseded == nil {
				n.Used++
			} else {
				n.Superseded++
			}
		}
		places[key] = n
	}
	return places, nil
}
