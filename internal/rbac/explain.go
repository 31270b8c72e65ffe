package rbac

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
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
	// Unseen says that the caller may not know whether the resource exists: CREATE
	// stands for CREATE or UPDATE.
	Unseen bool
	// Token is the dataplane token that was asked for.
	Token Token
	// Nearest is the rule that failed the fewest tests, nil when the subject holds
	// none.
	Nearest *Grant
	// Because says which, empty without Nearest.
	Because string
}

// Missing names the access and the resource: `UPDATE on TrafficPermission "web"
// in mesh "default"`.
func (d *Denial) Missing() string {
	text := string(d.Access)
	if d.Unseen {
		text += " or " + string(resource.AccessUpdate)
	}
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
	// Every write has one in its record: formatted by fmt, it took six allocations.
	return "rules[" + strconv.Itoa(g.Index) + "] of AccessRole " + strconv.Quote(g.Role) + ", through AccessRoleBinding " + strconv.Quote(g.Binding) +
		" to " + strings.ToLower(string(g.Holder.Type)) + " " + strconv.Quote(g.Holder.Name)
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

// failures are the tests that a rule fails, one bit each in the order in which
// they are made.
type failures uint8

const (
	failsAccess failures = 1 << iota
	failsType
	failsMesh
	failsName
	failsWhen
)

// nearer reports whether a rule that fails f came nearer than one that fails
// other: by fewer failures, or, with as many, by a later first one.
func (f failures) nearer(other failures) bool {
	if n, m := bits.OnesCount8(uint8(f)), bits.OnesCount8(uint8(other)); n != m {
		return n < m
	}
	return bits.TrailingZeros8(uint8(f)) > bits.TrailingZeros8(uint8(other))
}

// deny explains why nothing grants the request on one side. It goes through
// everything that the subject holds. What no content would change is explained
// without it, as where it is not decoded.
func (s *Set) deny(r Request, at side) *Denial {
	if known := (Known{Key: r.on(at).Key}); OnResources(r.Access) && !s.Could(r.Subject, r.Access, known) {
		d := s.Refusal(r.Subject, r.Access, known)
		d.Stored = at == sideOld && r.New.Key != known.Key && r.Access == resource.AccessUpdate
		return d
	}
	d := &Denial{Access: r.Access, Token: r.Token}
	q := inquiry{access: r.Access}
	if OnResources(r.Access) {
		d.Object = r.on(at).Key
		d.Stored = r.Access == resource.AccessUpdate && at == sideOld
		q.key, q.content = d.Object, contentOf(r.on(at).spec())
	} else {
		q.content = contentOfToken(r.Access, r.Token)
		q.key.Mesh = q.content.token.Mesh
	}
	return s.nearest(r.Subject, d, q)
}

// nearest completes a denial with the rule that came nearest.
func (s *Set) nearest(subject Subject, d *Denial, q inquiry) *Denial {
	var fewest failures
	for h := range s.holdings(subject) {
		for _, g := range h.all {
			if failed := g.failures(&q); d.Nearest == nil || failed.nearer(fewest) {
				fewest, d.Nearest = failed, g
			}
		}
	}
	if d.Nearest != nil {
		d.Because = strings.Join(d.Nearest.because(fewest, &q), "; ")
	}
	return d
}

// inquiry is one side of a request, as a rule looks at it.
type inquiry struct {
	access  resource.Access
	key     resource.Key // of a token, its mesh
	content *content
	// early says that there is no content to judge yet, anyMesh that there is no
	// mesh either.
	early, anyMesh bool
}

// failures tries all tests of a rule.
func (r *Rule) failures(q *inquiry) failures {
	var f failures
	onResource, bit := OnResources(q.access), granting(q.access, q.key.Kind)
	switch {
	case r.access&bit != 0:
	case r.mesh != nil && slices.Contains(r.Spec.Access, q.access):
		f |= failsMesh // with its mesh, it grants no such token
	default:
		f |= failsAccess
	}
	if onResource && !r.hasType(q.key.Kind) {
		f |= failsType
	}
	if (onResource || bit&onMeshTokens != 0) && !q.anyMesh && !r.hasMesh(q.key.Mesh) {
		f |= failsMesh
	}
	if onResource && !r.hasName(q.key.Name) {
		f |= failsName
	}
	if !q.early && !r.holdsFor(q.content) {
		f |= failsWhen
	}
	return f
}

// because says what a rule fails by, test by test: all of it would have to be
// otherwise. What the conditions of a rule about other kinds want is not said.
func (r *Rule) because(f failures, q *inquiry) []string {
	var reasons []string
	say := func(test failures, format string, args ...any) {
		if f&test != 0 {
			reasons = append(reasons, fmt.Sprintf(format, args...))
		}
	}
	say(failsAccess, "it grants %s, not %s", accessText(r.access), q.access)
	say(failsType, "it is about %s, not %s", limited(r.types), q.key.Kind)
	if f&failsMesh != 0 {
		reasons = append(reasons, r.otherMesh(q))
	}
	if q.key.Name == "" {
		say(failsName, "it is about the names %s only", limited(r.names))
	} else {
		say(failsName, "it is about the names %s, not %q", limited(r.names), q.key.Name)
	}
	if f&failsWhen != 0 && f&failsType == 0 {
		reasons = append(reasons, r.unmet(q.content))
	}
	return reasons
}

func (r *Rule) otherMesh(q *inquiry) string {
	switch {
	case OnResources(q.access) && q.key.Mesh == "":
		return fmt.Sprintf("it is about resources in mesh %q; no %s lives in one", *r.mesh, q.key.Kind)
	case !OnResources(q.access) && q.access != resource.AccessGenerateDataplaneToken:
		return fmt.Sprintf("it is about mesh %q, and a rule about a mesh never grants %s", *r.mesh, q.access)
	}
	return fmt.Sprintf("it is about mesh %q, not %q", *r.mesh, q.key.Mesh)
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
		case g.access&granting(access, key.Kind) == 0:
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
