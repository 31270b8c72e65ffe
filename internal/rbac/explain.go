package rbac

import (
	"fmt"
	"slices"
	"strings"

	"meridian/internal/resource"
)

// Denial says what was missing and which rule came nearest to granting it.
type Denial struct {
	Access resource.Access
	// Object is the resource that the access was missing on; it has no kind when
	// the access is to generate a token.
	Object resource.Key
	// Stored says that an UPDATE failed on the content as it is stored.
	Stored bool
	// Token is the dataplane token that was asked for.
	Token Token
	// Nearest is the rule that failed last, nil when the subject holds none.
	Nearest *Grant
	// Because says where it failed, empty without Nearest.
	Because string
}

// Missing names the access and the resource: `UPDATE on TrafficPermission "web"
// in mesh "default"`.
func (d *Denial) Missing() string {
	text := string(d.Access)
	switch {
	case OnResources(d.Access):
		text += " on " + describe(d.Object)
	case d.Access == resource.AccessGenerateDataplaneToken:
		text += fmt.Sprintf(" in mesh %q", d.Token.Mesh)
	}
	if d.Stored {
		text += ", as it is stored"
	}
	return text
}

// Rule describes the nearest rule and where it failed, or says that there is
// none.
func (d *Denial) Rule() string {
	if d.Nearest == nil {
		return "none: no role is bound to this user or its groups"
	}
	return d.Nearest.String() + ": " + d.Because
}

// String prints the grant as a person would look it up: the rule, its role, and
// the binding by which the holder has it.
func (g *Grant) String() string {
	return fmt.Sprintf("rules[%d] of AccessRole %q, through AccessRoleBinding %q to %s %q",
		g.Index, g.Role, g.Binding, strings.ToLower(string(g.Holder.Type)), g.Holder.Name)
}

func describe(key resource.Key) string {
	text := string(key.Kind)
	if key.Name != "" {
		text += fmt.Sprintf(" %q", key.Name)
	}
	if key.Mesh != "" {
		text += fmt.Sprintf(" in mesh %q", key.Mesh)
	}
	return text
}

// stage counts the tests of a rule, in order: the further one comes, the nearer
// it was.
type stage int

const (
	failedAccess stage = iota
	failedType
	failedMesh
	failedName
	failedWhen
)

// deny explains why nothing grants the request on one side. It goes through
// everything that the subject holds.
func (s *Set) deny(r Request, at side) *Denial {
	d := &Denial{Access: r.Access, Token: r.Token}
	if OnResources(r.Access) {
		d.Object = r.on(at).Key
		d.Stored = r.Access == resource.AccessUpdate && at == sideOld
	}
	best := stage(-1)
	for h := range s.holdings(r.Subject) {
		for _, g := range h.all {
			if reached := g.reach(&r, at); reached > best {
				best, d.Nearest = reached, g
			}
		}
	}
	if d.Nearest != nil {
		d.Because = d.Nearest.because(best, &r, at)
	}
	return d
}

// reach returns how far a rule gets with a request.
func (r *Rule) reach(q *Request, at side) stage {
	tokens := !OnResources(q.Access)
	key := q.on(at).Key
	if q.Access == resource.AccessGenerateDataplaneToken {
		key.Mesh = q.Token.Mesh
	}
	switch {
	case r.access&accessBit(q.Access) == 0:
		return failedAccess
	case !tokens && !r.hasType(key.Kind):
		return failedType
	case !r.hasMesh(key.Mesh):
		return failedMesh
	case !tokens && !r.hasName(key.Name):
		return failedName
	}
	return failedWhen
}

// because says why a rule that reaches a stage gets no further.
func (r *Rule) because(reached stage, q *Request, at side) string {
	o := q.on(at)
	mesh := o.Key.Mesh
	if q.Access == resource.AccessGenerateDataplaneToken {
		mesh = q.Token.Mesh
	}
	switch {
	case reached == failedAccess:
		return fmt.Sprintf("it grants %s, not %s", accessText(r.access), q.Access)
	case reached == failedType:
		return fmt.Sprintf("it is about %s, not %s", limited(r.types), o.Key.Kind)
	case reached == failedMesh && mesh == "" && OnResources(q.Access):
		return fmt.Sprintf("it is about resources in mesh %q; a %s lives in none", *r.mesh, o.Key.Kind)
	case reached == failedMesh:
		return fmt.Sprintf("it is about mesh %q, not %q", *r.mesh, mesh)
	case reached == failedName && o.Key.Name == "":
		return fmt.Sprintf("it is about the names %s only", limited(r.names))
	case reached == failedName:
		return fmt.Sprintf("it is about the names %s, not %q", limited(r.names), o.Key.Name)
	case OnResources(q.Access):
		return r.unmet(contentOf(o.Spec))
	}
	return r.unmet(contentOfToken(q.Access, q.Token))
}

// unmet says why none of the conditions holds.
func (r *Rule) unmet(c *content) string {
	var reasons []string
	for i := range r.when[:min(maxReasons, len(r.when))] {
		reasons = append(reasons, fmt.Sprintf("when[%d].%s", i, r.when[i].unmet(c)))
	}
	if more := len(r.when) - len(reasons); more > 0 {
		reasons = append(reasons, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(reasons, "; ")
}

// maxReasons bounds what a denial lists.
const maxReasons = 4

// accessText lists accesses for people.
func accessText(s accessSet) string {
	if s == 0 {
		return "nothing"
	}
	return limitedTo(len(Accesses()), s.list())
}

func limited[T ~string](values []T) string { return limitedTo(maxReasons, values) }

func limitedTo[T ~string](most int, values []T) string {
	var parts []string
	for _, v := range values[:min(most, len(values))] {
		parts = append(parts, string(v))
	}
	text := strings.Join(parts, ", ")
	if more := len(values) - len(parts); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Scope describes in words what a rule covers, besides its accesses: the kinds,
// names, mesh and conditions.
func (r *Rule) Scope() string {
	var parts []string
	switch {
	case len(r.types) > 0:
		parts = append(parts, limited(r.types))
	case r.mesh != nil:
		parts = append(parts, "everything in a mesh")
	default:
		parts = append(parts, "everything")
	}
	if len(r.names) > 0 {
		parts = append(parts, "named "+limited(r.names))
	}
	switch {
	case r.mesh == nil:
	case *r.mesh == resource.AnyValue:
		parts = append(parts, "in any mesh")
	default:
		parts = append(parts, fmt.Sprintf("in mesh %s", *r.mesh))
	}
	if len(r.when) > 0 {
		parts = append(parts, "depending on the content")
	}
	return strings.Join(parts, " ")
}

// Conditional reports whether the rule looks at content.
func (r *Rule) Conditional() bool { return len(r.when) > 0 }

// Holder is a user or group and the rule by which it has an access.
type Holder struct {
	Subject resource.Subject
	Grant   *Grant
}

// WhoCan lists the users and groups that have an access on a resource of this
// identity, in order of type and name, each with the rule that grants most: one
// without conditions where there is one. An empty name asks for those who have
// it whatever the name. Accesses to tokens do not look at the key but for the
// mesh of a dataplane token, empty being any.
func (s *Set) WhoCan(access resource.Access, key resource.Key) []Holder {
	var found []Holder
	for _, kind := range []struct {
		typ     resource.SubjectType
		holders map[string]*holding
	}{{resource.SubjectGroup, s.groups}, {resource.SubjectUser, s.users}} {
		for name, h := range kind.holders {
			if g := h.best(access, key); g != nil {
				found = append(found, Holder{resource.Subject{Type: kind.typ, Name: name}, g})
			}
		}
	}
	slices.SortFunc(found, func(a, b Holder) int {
		if a.Subject.Type != b.Subject.Type {
			return strings.Compare(string(a.Subject.Type), string(b.Subject.Type))
		}
		return strings.Compare(a.Subject.Name, b.Subject.Name)
	})
	return found
}

func (h *holding) best(access resource.Access, key resource.Key) *Grant {
	var conditional *Grant
	for _, g := range h.all {
		switch {
		case g.access&accessBit(access) == 0:
		case OnResources(access) && !g.covers(key):
		case access == resource.AccessGenerateDataplaneToken && key.Mesh != "" && !g.hasMesh(key.Mesh):
		case !g.Conditional():
			return g
		case conditional == nil:
			conditional = g
		}
	}
	return conditional
}

// Holders lists the bindings that give a role, in order of their names, with
// the subjects of each.
func (s *Set) Holders(role string) []RoleHolder {
	var found []RoleHolder
	for _, b := range s.bindings {
		if slices.Contains(b.spec.Roles, role) {
			for _, subject := range b.spec.Subjects {
				found = append(found, RoleHolder{Binding: b.name, Subject: subject})
			}
		}
	}
	return found
}

// RoleHolder is a subject that a binding gives a role.
type RoleHolder struct {
	Binding string
	Subject resource.Subject
}
