package rbac

import (
	"slices"

	"meridian/internal/resource"
)

// Question asks whether a subject has an access, on a resource of which possibly
// only the identity is given.
type Question struct {
	Access resource.Access
	// Key is the resource's identity when there is no content. Without a name
	// the question is whether the access is granted whatever the name.
	Key resource.Key
	// New is the content to store, or to delete; Old is what an UPDATE replaces.
	New, Old *resource.Resource
	// Stored looks a resource up that no content was given for; nil when nothing
	// is stored anywhere.
	Stored func(key resource.Key) (*resource.Resource, bool)
	// Hidden reports whether the answer is not to show what is stored under the key, nor
	// whether anything is: it is judged by its identity then. stored is nil where nothing
	// is. nil hides nothing.
	Hidden func(key resource.Key, stored *resource.Resource) bool
	// Rules is what the set was compiled from: what a change would give to others
	// is judged by it.
	Rules View
	Token Token
}

// Answer is the decision in words.
type Answer struct {
	Allowed bool
	// Reasons are lines: the rules that grant it, or what is missing and the
	// rule that came nearest.
	Reasons []string
}

// No is the answer that a denial is.
func No(d *Denial) Answer {
	return Answer{Reasons: []string{"missing: " + d.Missing(), "nearest rule: " + d.Rule()}}
}

// Ask decides a question, by Check. An identity stands for what is stored under
// it; an UPDATE of what is not stored anywhere is judged by the new content
// alone, unless that would tell that it is not stored (Hidden). Who has the access is told no all the same where the change would give
// more than they hold (Guard).
func (s *Set) Ask(subject Subject, q Question) Answer {
	d := s.Check(q.request(subject))
	if !d.Allowed {
		return No(d.Denial)
	}
	if change, ok := q.change(); ok && q.Rules != nil && Guarded(change.Key) {
		if over := s.Guard(subject, q.Rules, change); over != nil {
			return Answer{Reasons: over.Reasons()}
		}
	}
	reasons := []string{d.By.String()}
	if d.ByOld != nil && d.ByOld.Rule != d.By.Rule {
		reasons = append(reasons, "on what is stored: "+d.ByOld.String())
	}
	return Answer{Allowed: true, Reasons: reasons}
}

func (q *Question) key() resource.Key {
	if q.New != nil {
		return q.New.Key()
	}
	return q.Key
}

// change returns the change that is asked about, if so much is known of it.
func (q *Question) change() (Change, bool) {
	c := Change{Key: q.key(), Resource: q.New}
	switch {
	case !OnResources(q.Access) || q.Access == resource.AccessRead || c.Key.Name == "":
		return c, false
	case q.Access == resource.AccessDelete:
		c.Resource = nil
		return c, true
	}
	return c, c.Resource != nil
}

func (q *Question) request(subject Subject) Request {
	r := Request{Subject: subject, Access: q.Access, Token: q.Token}
	if !OnResources(q.Access) {
		return r
	}
	key := q.key()
	stored, judged := Object{Key: key}, false // whether New is judged against what is stored
	if q.Stored != nil && key.Name != "" {
		o, exists := q.Stored(key)
		hidden := q.Hidden != nil && q.Hidden(key, o)
		if exists && !hidden {
			stored = ObjectOf(o)
		}
		judged = exists || hidden
	}
	r.New, r.Old = stored, stored
	if q.New != nil {
		r.New = ObjectOf(q.New)
		// A deletion is judged by what is stored, wherever something is.
		if !judged {
			r.Old = r.New
		}
	}
	if q.Old != nil {
		r.Old = ObjectOf(q.Old)
	}
	return r
}

// HeldRole is a role that a subject has, and how it came by it.
type HeldRole struct {
	Role, Binding string
	Subject       resource.Subject
	// Missing says that there is no such role.
	Missing bool
}

// RolesOf lists the roles that bindings give a subject, in order of the
// bindings' names.
func (s *Set) RolesOf(subject Subject) []HeldRole {
	var held []HeldRole
	for _, b := range s.bindings {
		for _, to := range b.spec.Subjects {
			is := to.Type == resource.SubjectUser && to.Name == subject.Name ||
				to.Type == resource.SubjectGroup && slices.Contains(subject.Groups, to.Name)
			if !is {
				continue
			}
			for _, role := range b.spec.Roles {
				_, exists := s.roles[role]
				held = append(held, HeldRole{Role: role, Binding: b.name, Subject: to, Missing: !exists})
			}
		}
	}
	return held
}
