package rbac

import (
	"slices"
	"strings"

	"meridian/internal/resource"
)

// RightChange is what a user or group may do by one set of rules and may not by another,
// by a rule that grants it.
type RightChange struct {
	Subject resource.Subject
	// Gained is false where it may do so no longer.
	Gained   bool
	Accesses []resource.Access
	Grant    *Grant
}

// String says what may be done, and on what: "CREATE, UPDATE on TrafficPermission in mesh
// demo".
func (c *RightChange) String() string {
	text := limitedTo(len(Accesses()), c.Accesses)
	if slices.ContainsFunc(c.Accesses, OnResources) {
		text += " on " + c.Grant.Scope()
	} else if c.Grant.mesh != nil {
		text += " in mesh " + string(*c.Grant.mesh)
	}
	return text
}

// Changes compares what each user and each group is given, in order of type and name,
// what is lost first. It looks at how rules are written, one by one (Rule.Within): what
// two rules grant together counts as something else.
func (s *Set) Changes(later *Set) []RightChange {
	var all []RightChange
	for _, subject := range subjectsOf(s, later) {
		before, after := s.given(subject), later.given(subject)
		all = append(all, missing(subject, before, after, false)...)
		all = append(all, missing(subject, after, before, true)...)
	}
	return all
}

// subjectsOf are those that any of the sets gives something.
func subjectsOf(sets ...*Set) []resource.Subject {
	var all []resource.Subject
	for _, s := range sets {
		for name := range s.groups {
			all = append(all, resource.Subject{Type: resource.SubjectGroup, Name: name})
		}
		for name := range s.users {
			all = append(all, resource.Subject{Type: resource.SubjectUser, Name: name})
		}
	}
	slices.SortFunc(all, func(a, b resource.Subject) int {
		if a.Type != b.Type {
			return strings.Compare(string(a.Type), string(b.Type))
		}
		return strings.Compare(a.Name, b.Name)
	})
	return slices.Compact(all)
}

func (s *Set) given(to resource.Subject) []*Grant {
	holders := s.users
	if to.Type == resource.SubjectGroup {
		holders = s.groups
	}
	if h := holders[to.Name]; h != nil {
		return h.all
	}
	return nil
}

// missing returns what of some grants no other grant has.
func missing(subject resource.Subject, grants, others []*Grant, gained bool) []RightChange {
	var found []RightChange
	for _, g := range grants {
		var accesses []resource.Access
		for _, access := range g.access.list() {
			alone := *g.Rule
			alone.access = accessBit(access)
			if !slices.ContainsFunc(others, func(o *Grant) bool { return alone.Within(o.Rule) }) {
				accesses = append(accesses, access)
			}
		}
		// Accesses to resources and to tokens are about different things.
		for _, onResource := range []bool{true, false} {
			part := slices.DeleteFunc(slices.Clone(accesses), func(a resource.Access) bool { return OnResources(a) != onResource })
			if len(part) > 0 {
				found = append(found, RightChange{Subject: subject, Gained: gained, Accesses: part, Grant: g})
			}
		}
	}
	return found
}
