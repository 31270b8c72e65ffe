package policy

import (
	"maps"
	"reflect"
	"slices"

	"meridian/internal/resource"
)

// Touch is a dataplane on which something changed.
type Touch struct {
	Dataplane resource.Key
	// Gone is true when the dataplane no longer exists; Targets is then nil.
	Gone bool
	// Targets are the attachments and kinds whose effective configuration is
	// not what it was, in order. Shared between dataplanes: do not modify.
	Targets []Target
}

// Update takes a later view in which only the given keys differ (more keys and
// duplicates do no harm) and returns, in key order, the dataplanes whose
// effective configuration changed. Only what the change can touch is worked out
// again: the attachments that a changed policy reached before or reaches now,
// those of changed dataplanes, and those of a mesh whose rules of matching
// changed.
func (m *Matcher) Update(view View, changed []resource.Key) []Touch {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.planLocked(view, changed)
	u.measure(func(o *outcome, rules []Rule) { o.before = rules })
	for key := range u.dataplanes {
		_, existed := m.dataplanes[key]
		u.dataplanes[key] = past{existed, u.rulesOf(key)}
	}
	u.run()
	u.measure(func(o *outcome, rules []Rule) { o.after = rules })
	touched := u.touched()
	for _, f := range m.followers {
		f.Update(view, changed)
	}
	return touched
}

// Replace is Update without finding out what it touches, and view may be any other in which
// only the given keys differ, also an earlier one. It takes time that is proportional to
// the number of keys.
func (m *Matcher) Replace(view View, changed []resource.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.changesLocked(view, changed)
	for _, ms := range m.meshes {
		for _, g := range ms.shapes.shapes {
			m.forget(g)
		}
	}
	u.run()
	for _, f := range m.followers {
		f.Update(view, changed)
	}
}

// update is one Update under way.
type update struct {
	m    *Matcher
	view View
	// policies maps each policy that may have changed to its new form; nil when
	// it is gone.
	policies map[resource.Key]*Policy
	// reaching are those of them that can take effect on a dataplane.
	reaching map[resource.Key]bool
	// meshes are the new settings of the meshes whose settings changed.
	meshes map[resource.MeshName]*Mesh
	// dataplanes are the changed ones, each as it was before the change.
	dataplanes map[resource.Key]past
	// areas is what has to be worked out again, each for every variant of its
	// group.
	areas    map[area][]outcome
	variants map[*group][]*variant
	scratch  []*Policy
}

// past is what a dataplane was before it changed.
type past struct {
	existed bool
	rules   []Rule
}

// area is one kind on one attachment of one shape.
type area struct {
	group      *group
	attachment int
	kind       resource.Kind
}

// outcome is the rules of an area for one variant of its group.
type outcome struct {
	before, after []Rule
}

// variant is dataplanes of one group that share an answer.
type variant struct {
	subject *Dataplane
	names   []string
	changed []Target
}

// variants splits a group into the dataplanes that policies name, each on its
// own, and all others together. more adds names to those already known.
func (ms *meshState) variants(g *group, more map[resource.Key]bool) []*variant {
	others := &variant{subject: &Dataplane{Shape: g.Shape}}
	var variants []*variant
	for name := range g.members {
		if ms.named[name] == 0 && !more[resource.Key{Mesh: g.Mesh, Name: name}] {
			others.names = append(others.names, name)
		} else {
			variants = append(variants, &variant{subject: &Dataplane{Name: name, Shape: g.Shape}, names: []string{name}})
		}
	}
	if len(others.names) > 0 {
		variants = append(variants, others)
	}
	return variants
}

// reachedBy returns the attachments, by index, that a policy can take effect
// on, per group.
func reachedBy(ms *meshState, p *Policy) map[*group][]int {
	found := map[*group][]int{}
	for i := range p.Reach {
		r := &p.Reach[i]
		ms.shapes.reached(r, func(g *group) {
			if !r.selectsGroup(g) {
				return
			}
			for j := range g.Attachments {
				if r.includes(&g.Attachments[j]) && !slices.Contains(found[g], j) {
					found[g] = append(found[g], j)
				}
			}
		})
	}
	return found
}

// selectsGroup reports whether a reach selects any member of a group.
func (r *Reach) selectsGroup(g *group) bool {
	if _, member := g.members[r.Name]; r.Name != "" && !member {
		return false
	}
	return r.selects(&Dataplane{Name: r.Name, Shape: g.Shape})
}

// planLocked finds out what a change can touch, before anything is changed.
func (m *Matcher) planLocked(view View, changed []resource.Key) *update {
	u := m.changesLocked(view, changed)
	u.spread()
	return u
}

// changesLocked prepares what changes itself.
func (m *Matcher) changesLocked(view View, changed []resource.Key) *update {
	u := &update{
		m: m, view: view,
		policies:   map[resource.Key]*Policy{},
		reaching:   map[resource.Key]bool{},
		meshes:     map[resource.MeshName]*Mesh{},
		dataplanes: map[resource.Key]past{},
		areas:      map[area][]outcome{},
		variants:   map[*group][]*variant{},
	}
	for _, key := range changed {
		switch {
		case key.Kind == resource.KindMesh:
			name := resource.MeshName(key.Name)
			if ms, after := m.meshes[name], MeshOf(view, name); ms != nil && *ms.mesh != *after {
				u.meshes[name] = after
			}
		case key.Kind == resource.KindDataplane:
			u.dataplanes[key] = past{}
		case m.byKind[key.Kind] != nil:
			u.compile(key)
		}
		for dependent := range m.dependents[key] {
			u.compile(dependent)
		}
	}
	return u
}

func (u *update) compile(key resource.Key) {
	if _, done := u.policies[key]; done {
		return
	}
	u.policies[key] = nil
	if r, ok := u.view.Get(key); ok {
		u.policies[key] = u.m.byKind[key.Kind].Compile(u.view, r)
	}
}

// spread lists the areas of the changed policies and meshes.
func (u *update) spread() {
	named := map[resource.Key]bool{}
	for key, p := range u.policies {
		if p != nil {
			for _, name := range namesIn(p) {
				named[resource.Key{Mesh: key.Mesh, Name: name}] = true
			}
		}
	}
	for key, after := range u.policies {
		ms := u.m.meshes[key.Mesh]
		if ms == nil {
			continue
		}
		for _, p := range []*Policy{u.m.policyLocked(key), after} {
			if p == nil {
				continue
			}
			reached := reachedBy(ms, p)
			u.reaching[key] = p == after && len(reached) > 0
			for g, attachments := range reached {
				for _, i := range attachments {
					u.area(ms, area{g, i, key.Kind}, named)
					if sibling, ok := u.m.siblings[key.Kind]; ok && ms.kinds[sibling] != nil {
						u.area(ms, area{g, i, sibling}, named)
					}
				}
			}
		}
	}
	for name := range u.meshes {
		ms := u.m.meshes[name]
		for kind := range ms.kinds {
			for _, g := range ms.shapes.shapes {
				for i := range g.Attachments {
					u.area(ms, area{g, i, kind}, named)
				}
			}
		}
	}
}

func (u *update) area(ms *meshState, a area, named map[resource.Key]bool) {
	if _, known := u.variants[a.group]; !known {
		u.variants[a.group] = ms.variants(a.group, named)
	}
	if _, known := u.areas[a]; !known {
		u.areas[a] = make([]outcome, len(u.variants[a.group]))
	}
}

// measure works out every area as the matcher now stands.
func (u *update) measure(keep func(*outcome, []Rule)) {
	for a, outcomes := range u.areas {
		ms := u.m.meshes[a.group.Mesh]
		if ms == nil {
			continue
		}
		for i, v := range u.variants[a.group] {
			keep(&outcomes[i], u.m.rulesAtLocked(ms, v.subject, a.attachment, a.kind, &u.scratch))
		}
	}
}

// rulesOf works out everything on one dataplane; nil when there is none.
func (u *update) rulesOf(key resource.Key) []Rule {
	g := u.m.dataplanes[key]
	if g == nil {
		return nil
	}
	ms := u.m.meshes[key.Mesh]
	return u.m.rulesLocked(ms, ms.subject(g, key.Name), u.m.kinds, false)
}

// run brings the matcher to the new view.
func (u *update) run() {
	m := u.m
	m.view = u.view
	for name, mesh := range u.meshes {
		m.meshes[name].mesh = mesh
	}
	for key, after := range u.policies {
		if before := m.policyLocked(key); before != nil {
			m.removePolicyLocked(before)
		}
		if after != nil {
			m.addPolicyLocked(after, u.reaching[key])
		}
	}
	for a := range u.areas {
		m.forget(a.group)
	}
	for key := range u.dataplanes {
		m.removeDataplaneLocked(key)
		if r, ok := m.view.Get(key); ok {
			m.addDataplaneLocked(r)
		}
	}
}

// touched compares before with after.
func (u *update) touched() []Touch {
	for a, outcomes := range u.areas {
		for i, o := range outcomes {
			v := u.variants[a.group][i]
			v.changed = append(v.changed, differences(o.before, o.after)...)
		}
	}
	var touched []Touch
	for g, variants := range u.variants {
		for _, v := range variants {
			slices.SortFunc(v.changed, func(a, b Target) int { return a.Compare(&b) })
			for _, name := range v.names {
				key := DataplaneKey(g.Mesh, name)
				if _, own := u.dataplanes[key]; !own && len(v.changed) > 0 {
					touched = append(touched, Touch{Dataplane: key, Targets: v.changed})
				}
			}
		}
	}
	for key, before := range u.dataplanes {
		if _, exists := u.m.dataplanes[key]; exists {
			if targets := differences(before.rules, u.rulesOf(key)); len(targets) > 0 {
				touched = append(touched, Touch{Dataplane: key, Targets: targets})
			}
		} else if before.existed {
			touched = append(touched, Touch{Dataplane: key, Gone: true})
		}
	}
	slices.SortFunc(touched, func(a, b Touch) int { return a.Dataplane.Compare(b.Dataplane) })
	return touched
}

// differences returns the targets for which two ordered lists of rules do not
// come to the same.
func differences(before, after []Rule) []Target {
	var targets []Target
	for len(before) > 0 || len(after) > 0 {
		switch c := compareHeads(before, after); {
		case c < 0:
			targets = append(targets, before[0].Target)
			before = before[1:]
		case c > 0:
			targets = append(targets, after[0].Target)
			after = after[1:]
		default:
			if !sameOutcome(&before[0], &after[0]) {
				targets = append(targets, after[0].Target)
			}
			before, after = before[1:], after[1:]
		}
	}
	return targets
}

// compareHeads orders the first rules of two lists; an empty list comes last.
func compareHeads(a, b []Rule) int {
	switch {
	case len(b) == 0:
		return -1
	case len(a) == 0:
		return 1
	default:
		return a[0].Target.Compare(&b[0].Target)
	}
}

// sameOutcome reports whether two rules for one target give the same
// configuration from the same policies.
func sameOutcome(a, b *Rule) bool {
	x, y := a.decisive(), b.decisive()
	if slices.EqualFunc(x, y, sameStep) {
		return true
	}
	if a.PerCaller || b.PerCaller {
		return a.PerCaller == b.PerCaller && slices.EqualFunc(x, y, equalStep)
	}
	if len(x) == 1 && len(y) == 1 {
		return x[0].Origin == y[0].Origin && reflect.DeepEqual(x[0].Conf, y[0].Conf)
	}
	f, g := a.Fold(), b.Fold()
	return maps.Equal(f.Fields(), g.Fields()) && reflect.DeepEqual(f.Conf(), g.Conf()) &&
		slices.Equal(a.Policies(), b.Policies())
}

// decisive returns the steps without the atomic defaults that come too late.
func (r *Rule) decisive() []Step {
	if r.PerCaller || r.Units.EmptyIsNone || len(r.Steps) == 0 {
		return r.Steps
	}
	late := func(s Step) bool { return s.Op == Unless }
	if !slices.ContainsFunc(r.Steps[1:], late) {
		return r.Steps
	}
	if i := slices.IndexFunc(r.Steps[1:], func(s Step) bool { return !late(s) }); i < 0 {
		return r.Steps[:1]
	}
	return append(slices.Clone(r.Steps[:1]), slices.DeleteFunc(slices.Clone(r.Steps[1:]), late)...)
}

// sameStep reports whether two steps are one and the same, without looking into
// them.
func sameStep(a, b Step) bool {
	return a.Op == b.Op && a.Origin == b.Origin && maps.Equal(a.Match, b.Match) &&
		reflect.ValueOf(a.Conf).Pointer() == reflect.ValueOf(b.Conf).Pointer()
}

// equalStep reports whether two steps do the same.
func equalStep(a, b Step) bool {
	return a.Op == b.Op && a.Origin == b.Origin && maps.Equal(a.Match, b.Match) &&
		reflect.DeepEqual(a.Conf, b.Conf)
}
