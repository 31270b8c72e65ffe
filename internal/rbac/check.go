package rbac

import (
	"slices"

	"meridian/internal/resource"
)

// Decision is the answer to a Request.
type Decision struct {
	Allowed bool
	// By is the rule that grants the access: for an UPDATE, on the new content.
	// Nil when it is denied.
	By *Grant
	// ByOld is the rule that grants an UPDATE on the stored content. It may be
	// another one than By (§6.3).
	ByOld *Grant
	// Denial says what was missing; nil when the access is allowed.
	Denial *Denial
}

// Check decides. Allowed accesses that need no look at the content are decided
// without allocating.
func (s *Set) Check(r Request) Decision {
	switch r.Access {
	case resource.AccessCreate, resource.AccessRead:
		return s.checkOn(&r, sideNew)
	case resource.AccessDelete:
		return s.checkOn(&r, sideOld)
	case resource.AccessUpdate:
		return s.checkUpdate(&r)
	default:
		return s.checkToken(&r)
	}
}

// side says which content of a request is meant.
type side int

const (
	sideNew side = iota
	sideOld
)

func (r *Request) on(at side) Object {
	if at == sideOld {
		return r.Old
	}
	return r.New
}

func (s *Set) checkOn(r *Request, at side) Decision {
	if by := s.find(r.Subject, granting(r.Access, r.on(at).Key.Kind), r.on(at)); by != nil {
		return Decision{Allowed: true, By: by}
	}
	return Decision{Denial: s.deny(*r, at)}
}

// checkUpdate holds §6.4: the stored and the new content must both be
// granted, maybe by different rules.
func (s *Set) checkUpdate(r *Request) Decision {
	byOld := s.find(r.Subject, accessBit(r.Access), r.Old)
	if byOld == nil {
		return Decision{Denial: s.deny(*r, sideOld)}
	}
	by := s.find(r.Subject, accessBit(r.Access), r.New)
	if by == nil {
		return Decision{Denial: s.deny(*r, sideNew)}
	}
	return Decision{Allowed: true, By: by, ByOld: byOld}
}

func (s *Set) checkToken(r *Request) Decision {
	access := accessBit(r.Access)
	for h := range s.holdings(r.Subject) {
		for _, g := range h.tokens {
			if g.access&access != 0 && g.grantsToken(r.Access, r.Token) {
				return Decision{Allowed: true, By: g}
			}
		}
	}
	return Decision{Denial: s.deny(*r, sideNew)}
}

// find returns the first grant of an access on an object, nil if there is none:
// among the rules that name the object, then those about its kind, then those
// about every kind, then those about its tags; as a user, then by each group.
func (s *Set) find(subject Subject, access accessSet, o Object) *Grant {
	if o.absent() {
		return nil
	}
	if g := s.users[subject.Name].find(access, o); g != nil {
		return g
	}
	for _, group := range subject.Groups {
		if g := s.groups[group].find(access, o); g != nil {
			return g
		}
	}
	return nil
}

// CouldRead reports whether some rule of a subject is about reading resources of a
// kind in a mesh, whichever they are; an empty mesh stands for any.
func (s *Set) CouldRead(subject Subject, kind resource.Kind, mesh resource.MeshName) bool {
	access := granting(resource.AccessRead, kind)
	for h := range s.holdings(subject) {
		for _, g := range h.all {
			if g.access&access != 0 && g.hasType(kind) && (mesh == "" || g.hasMesh(mesh)) {
				return true
			}
		}
	}
	return false
}

// ReadsMesh reports whether a subject may read everything in a mesh but secret
// material: by one rule that is about the mesh and has no other restriction. For an
// empty mesh that is a rule without any.
func (s *Set) ReadsMesh(subject Subject, mesh resource.MeshName) bool {
	for h := range s.holdings(subject) {
		for _, g := range h.all {
			if g.access&onResources != 0 && len(g.types) == 0 && len(g.names) == 0 && len(g.when) == 0 && g.hasMesh(mesh) {
				return true
			}
		}
	}
	return false
}

func (h *holding) find(access accessSet, o Object) *Grant {
	if h == nil {
		return nil
	}
	var c *content // made once, when the first rule looks at it
	for _, candidates := range [...][]*Grant{h.byName[o.Key.Name], h.byKind[o.Key.Kind], h.wide} {
		for _, g := range candidates {
			if g.access&access == 0 || !g.covers(o.Key) {
				continue
			}
			if len(g.when) > 0 && c == nil {
				c = contentOf(o.spec())
			}
			if g.holdsFor(c) {
				return g
			}
		}
	}
	if len(h.byTag) == 0 || o.of == nil {
		return nil
	}
	if c == nil {
		c = contentOf(o.spec())
	}
	return h.findByTag(access, o.Key, c)
}

// findByTag looks at the rules whose conditions ask for a tag that the content
// has. A qualifier asks it of every selector, so the first one has it. Tags come
// in no order: of several grants it is the first that was given.
func (h *holding) findByTag(access accessSet, key resource.Key, c *content) *Grant {
	var first *Grant
	try := func(section int, tag, value string) {
		for _, g := range h.byTag[handle{section, tag, value}] {
			if g.access&access != 0 && (first == nil || g.order < first.order) && g.covers(key) && g.holdsFor(c) {
				first = g
			}
		}
	}
	for section, selectors := range c.selectors() {
		if len(selectors) == 0 {
			continue
		}
		for tag, value := range selectors[0] {
			try(section, tag, value)
		}
	}
	for section := sectionTargetRef; section < sections; section++ {
		if !h.sections[section] {
			continue
		}
		t := c.first(section)
		switch {
		case t == nil:
			continue
		case !t.tagged:
			try(section, string(t.kind), t.name)
			continue
		case t.service != "":
			try(section, resource.ServiceTag, t.service)
		}
		for tag, value := range t.tags {
			try(section, tag, value)
		}
	}
	return first
}

// first returns the policy's target, or that of its first item in `to` or
// `from`; nil when it has none.
func (c *content) first(section int) *target {
	if section == sectionTargetRef {
		return c.target()
	}
	if items := c.targets()[section-sectionTo]; len(items) > 0 {
		return &items[0]
	}
	return nil
}

// covers reports whether the rule is about a resource of this identity.
func (r *Rule) covers(key resource.Key) bool {
	return r.hasType(key.Kind) && r.hasMesh(key.Mesh) && r.hasName(key.Name)
}

func (r *Rule) hasType(kind resource.Kind) bool {
	return len(r.types) == 0 || slices.Contains(r.types, kind)
}

func (r *Rule) hasName(name string) bool {
	if len(r.names) == 0 {
		return true
	}
	_, ok := slices.BinarySearch(r.names, name)
	return ok
}

// hasMesh holds §6.1 and §6.2: a rule with a mesh covers what lives in
// it, and so never a global-scoped resource, the Mesh of that name included.
func (r *Rule) hasMesh(mesh resource.MeshName) bool {
	switch {
	case r.mesh == nil:
		return true
	case mesh == "":
		return false
	}
	return *r.mesh == resource.AnyValue || *r.mesh == mesh
}

// holdsFor reports whether one of the conditions holds, or there is none.
func (r *Rule) holdsFor(c *content) bool {
	for i := range r.when {
		if r.when[i].unmet(c).none() {
			return true
		}
	}
	return len(r.when) == 0
}

// grantsToken reports whether the rule, which has the access, grants it for this
// token. Types and names do not matter (§6.2).
func (r *Rule) grantsToken(access resource.Access, t Token) bool {
	if access == resource.AccessGenerateDataplaneToken && !r.hasMesh(t.Mesh) {
		return false
	}
	return len(r.when) == 0 || r.holdsFor(contentOfToken(access, t))
}
