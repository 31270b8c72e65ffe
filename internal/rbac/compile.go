package rbac

import (
	"slices"

	"meridian/internal/resource"
)

// Rule is one rule of a role, ready to be asked. It is immutable.
type Rule struct {
	// Role names the role, Index counts its rules from 0.
	Role  string
	Index int
	// Spec is the rule as it was written.
	Spec *resource.AccessRule

	// assumed marks the rule that stands for a role that does not exist.
	assumed bool
	// access is what the rule can grant at all: a rule with a mesh grants no
	// token but that of a dataplane (§6.2).
	access accessSet
	// types is sorted, in canonical spelling; empty is every kind.
	types []resource.Kind
	names []string
	mesh  *resource.MeshName
	when  []condition
	// handles has, for each condition, a tag that it asks for, so that the rule
	// need not be looked at for content without it; nil if some condition asks
	// for none.
	handles []handle
}

// handle is a tag in one section of a policy; of a target that is compared by
// kind and name, these.
type handle struct {
	section    int // as in condition.tags, or sectionTargetRef and those after it
	tag, value string
}

// Grant is a rule together with how its holder came by it. It is immutable.
type Grant struct {
	*Rule
	// Binding names the binding, Holder its subject that the holder is or is in.
	Binding string
	Holder  resource.Subject
	// order is its place among those of its holder.
	order int
}

// holding is what one user or group was given.
type holding struct {
	// all has every grant in order of binding, role and rule, each rule once.
	all []*Grant
	// The same by what narrows it most: the resource's name, else a tag that each
	// of its conditions asks for, else its kind, else nothing.
	byName map[string][]*Grant
	byTag  map[handle][]*Grant
	// tagged has every grant of byTag once.
	tagged []*Grant
	// sections has those of byTag.
	sections [sections]bool
	byKind   map[resource.Kind][]*Grant
	wide     []*Grant
	// tokens has those that grant tokens: names and types do not restrict them.
	tokens []*Grant
	// seen has every rule in all: two bindings may give the same role.
	seen map[*Rule]bool
}

// Set is the compiled roles and bindings of one revision. It is immutable and
// safe for concurrent use.
type Set struct {
	roles    map[string][]*Rule
	users    map[string]*holding
	groups   map[string]*holding
	bindings []binding
}

// binding is an AccessRoleBinding as it was written.
type binding struct {
	name string
	spec *resource.AccessRoleBinding
}

// Compile returns the set of what a view holds.
func Compile(v View) *Set {
	s := &Set{roles: map[string][]*Rule{}, users: map[string]*holding{}, groups: map[string]*holding{}}
	for r := range v.List(resource.KindAccessRole, "") {
		spec, ok := r.Spec().(*resource.AccessRole)
		if !ok {
			continue // not a role, so it grants nothing
		}
		s.roles[r.Key().Name] = compileRole(r.Key().Name, spec)
	}
	for r := range v.List(resource.KindAccessRoleBinding, "") {
		if spec, ok := r.Spec().(*resource.AccessRoleBinding); ok {
			s.bind(binding{r.Key().Name, spec})
		}
	}
	return s
}

func (s *Set) bind(b binding) {
	s.bindings = append(s.bindings, b)
	for _, subject := range b.spec.Subjects {
		holders := s.users
		if subject.Type == resource.SubjectGroup {
			holders = s.groups
		}
		h := holders[subject.Name]
		if h == nil {
			h = newHolding()
			holders[subject.Name] = h
		}
		for _, role := range b.spec.Roles {
			for _, rule := range s.roles[role] { // a role that does not exist grants nothing
				h.add(&Grant{Rule: rule, Binding: b.name, Holder: subject})
			}
		}
	}
}

func newHolding() *holding {
	return &holding{
		byName: map[string][]*Grant{}, byTag: map[handle][]*Grant{}, byKind: map[resource.Kind][]*Grant{}, seen: map[*Rule]bool{},
	}
}

func (h *holding) add(g *Grant) {
	if h.seen[g.Rule] {
		return
	}
	h.seen[g.Rule] = true
	g.order = len(h.all)
	h.all = append(h.all, g)
	if g.access&onTokens != 0 {
		h.tokens = append(h.tokens, g)
	}
	switch {
	case g.access&onResources == 0:
	case len(g.names) > 0:
		for _, name := range g.names {
			h.byName[name] = append(h.byName[name], g)
		}
	case len(g.handles) > 0:
		h.tagged = append(h.tagged, g)
		for _, tag := range g.handles {
			h.byTag[tag] = append(h.byTag[tag], g)
			h.sections[tag.section] = true
		}
	case len(g.types) > 0:
		for _, kind := range g.types {
			h.byKind[kind] = append(h.byKind[kind], g)
		}
	default:
		h.wide = append(h.wide, g)
	}
}

func compileRole(name string, spec *resource.AccessRole) []*Rule {
	rules := make([]*Rule, len(spec.Rules))
	for i := range spec.Rules {
		rules[i] = compileRule(name, i, &spec.Rules[i])
	}
	return rules
}

func compileRule(role string, index int, spec *resource.AccessRule) *Rule {
	r := &Rule{Role: role, Index: index, Spec: spec, mesh: spec.Mesh}
	for _, a := range spec.Access {
		r.access |= accessBit(a)
	}
	if r.mesh != nil {
		r.access &^= outsideMeshes
	}
	for _, kind := range spec.Types {
		if d, ok := resource.Lookup(string(kind)); ok {
			kind = d.Kind
		}
		r.types = append(r.types, kind)
	}
	slices.Sort(r.types)
	r.types = slices.Compact(r.types)
	r.names = slices.Clone(spec.Names)
	slices.Sort(r.names)
	r.names = slices.Compact(r.names)
	for i := range spec.When {
		r.when = append(r.when, compileCondition(&spec.When[i]))
	}
	r.handles = handlesOf(r.when)
	return r
}

func handlesOf(when []condition) []handle {
	var handles []handle
	for i := range when {
		h, ok := when[i].handle()
		if !ok {
			return nil
		}
		if !slices.Contains(handles, h) {
			handles = append(handles, h)
		}
	}
	return handles
}

// holdings yields what a subject was given: as a user, then by each group.
func (s *Set) holdings(subject Subject) func(yield func(*holding) bool) {
	return func(yield func(*holding) bool) {
		if h := s.users[subject.Name]; h != nil && !yield(h) {
			return
		}
		for _, group := range subject.Groups {
			if h := s.groups[group]; h != nil && !yield(h) {
				return
			}
		}
	}
}

// Held returns every grant that a subject has, as a user first and then by each
// of its groups.
func (s *Set) Held(subject Subject) []*Grant {
	var all []*Grant
	for h := range s.holdings(subject) {
		all = append(all, h.all...)
	}
	return all
}

// Rules returns the rules of a role, and whether there is such a role.
func (s *Set) Rules(role string) ([]*Rule, bool) {
	rules, ok := s.roles[role]
	return rules, ok
}
