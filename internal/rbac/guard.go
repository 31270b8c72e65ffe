package rbac

import (
	"bytes"
	"fmt"
	"iter"
	"slices"
	"strings"

	"meridian/internal/resource"
)

// The role that every control plane is given at its start, and the group whose
// members may insist on what the guard refuses (§6.5).
const (
	AdminRole  = "admin"
	AdminGroup = "mesh-system:admin"
)

// Overreach says why a subject may not make changes that it has the accesses to.
type Overreach struct {
	// Excess is a rule that the changes would grant and that none of the subject's
	// rules contains; nil when they would leave no subject with the role admin.
	Excess *Rule
	// Key names the signing key by which Excess would be given, if it is by one.
	Key resource.Key
	// TooMany is how many grants there would be, when there would be more than
	// MaxGrants; this cannot be skipped.
	TooMany int

	subject Subject
}

// Guarded reports whether the guard looks at changes of a resource: those of the
// rules themselves, and of keys.
func Guarded(key resource.Key) bool { return OfRules(key) || len(signs(key)) > 0 }

// OfRules reports whether a resource is a role or a binding.
func OfRules(key resource.Key) bool {
	return key.Kind == resource.KindAccessRole || key.Kind == resource.KindAccessRoleBinding
}

// Guard looks at changes of the view that the set was compiled from, which the
// subject has the accesses to make; nil means that they are allowed. Its
// cost is bounded, since any caller can cause it.
// A subject cannot grant rights beyond its own, by a rule or by a key that it
// knows, and cannot remove the last admin.
func (s *Set) Guard(subject Subject, view View, changes ...Change) *Overreach {
	for _, c := range changes {
		gives := signs(c.Key)
		if len(gives) == 0 || c.Resource == nil || holds(view, c.Resource) {
			continue
		}
		rule := compileRule("", 0, &resource.AccessRule{Access: gives})
		if s.Excess(subject, []*Rule{rule}) != nil {
			return &Overreach{Excess: rule, Key: c.Key, subject: subject}
		}
	}
	if !slices.ContainsFunc(changes, func(c Change) bool { return OfRules(c.Key) }) {
		return nil
	}
	after := After(view, changes...)
	if n := size(after); n > MaxGrants && n > size(view) {
		return &Overreach{TooMany: n, subject: subject}
	}
	next := Compile(after)
	if excess := s.Excess(subject, s.Granted(next)); excess != nil {
		return &Overreach{Excess: excess, subject: subject}
	}
	if s.HasAdmin() && !next.HasAdmin() {
		return &Overreach{subject: subject}
	}
	return nil
}

// MaxGrants bounds the grants that a control plane keeps: each rule of each role
// once for each subject that a binding gives it to, some 200 bytes of memory.
const MaxGrants = 250_000

// size counts the grants of a view, those of a role that is not there as one.
func size(view View) int {
	rules := map[string]int{}
	for r := range view.List(resource.KindAccessRole, "") {
		if spec, ok := r.Spec().(*resource.AccessRole); ok {
			rules[r.Key().Name] = len(spec.Rules)
		}
	}
	n := 0
	for r := range view.List(resource.KindAccessRoleBinding, "") {
		if spec, ok := r.Spec().(*resource.AccessRoleBinding); ok {
			given := 0
			for _, role := range spec.Roles {
				given += max(1, rules[role])
			}
			n += given * len(spec.Subjects)
		}
	}
	return n
}

// The kinds that hold keys, and the names of keys: a use, such as user-token,
// then this, then a number.
const (
	keyInfix = "-signing-key-"
	// authorityName is token.AuthorityName.
	authorityName = "certificate-authority"
	// serversName is token.ServersName.
	serversName = "cluster-servers"
	// meshAuthority begins the names of token.MeshAuthorityKey.
	meshAuthority = "mesh-certificate-authority."
)

// signs returns what the author of a resource can grant with it: a signing key
// makes tokens, those of users for any user.
func signs(key resource.Key) []resource.Access {
	if resource.HoldsProvidedAuthority(key) {
		return Accesses() // it speaks for every dataplane of the mesh
	}
	if key.Kind != resource.KindGlobalSecret && key.Kind != resource.KindSigningKey {
		return nil
	}
	use, _, named := strings.Cut(key.Name, keyInfix)
	switch {
	case key.Kind == resource.KindGlobalSecret && (key.Name == authorityName || key.Name == serversName):
		return Accesses() // a server's certificate lets it write everything
	case key.Kind == resource.KindGlobalSecret && strings.HasPrefix(key.Name, meshAuthority):
		return Accesses() // it speaks for every dataplane of the mesh
	case !named:
		return nil
	case use == "dataplane-token":
		return []resource.Access{resource.AccessGenerateDataplaneToken}
	case use == "zone-token":
		return []resource.Access{resource.AccessGenerateZoneCPToken, resource.AccessGenerateZoneToken}
	case use == "user-token" || use == "server-token":
		return Accesses()
	}
	return nil // not a signing key of a control plane
}

// holds reports whether a view has a resource as it is.
func holds(view View, r *resource.Resource) bool {
	for stored := range view.List(r.Key().Kind, r.Key().Mesh) {
		if stored.Key() == r.Key() {
			return bytes.Equal(stored.Canonical(), r.Canonical())
		}
	}
	return false
}

// Reasons says it in lines.
func (o *Overreach) Reasons() []string {
	switch {
	case o.TooMany > 0:
		return []string{fmt.Sprintf("there would be %d grants, one for each rule and subject that it is given to: at most %d are kept; bind groups in place of users", o.TooMany, MaxGrants)}
	case o.Excess == nil:
		return []string{
			fmt.Sprintf("no subject would have the role %q with every access any more, so no user could grant it again", AdminRole),
			Insist(o.subject),
		}
	case o.Key.Name != "":
		return append([]string{fmt.Sprintf("who writes %s %q can sign with it: %s", o.Key.Kind, o.Key.Name, o.Excess.what())}, NotHeld(o.subject)...)
	}
	return append([]string{"it would grant " + o.Excess.Grants()}, NotHeld(o.subject)...)
}

// NotHeld explains, below a rule that would be given, why it cannot be.
func NotHeld(subject Subject) []string {
	return []string{"missing: a rule of yours that contains it; users cannot grant rights beyond their own", Insist(subject)}
}

// Insist says who can do what the guard refuses.
func Insist(subject Subject) string {
	if slices.Contains(subject.Groups, AdminGroup) {
		return "--force does it all the same"
	}
	return "only a member of " + AdminGroup + " can do it all the same, with --force"
}

// Grants names the rule and says in words what it grants.
func (r *Rule) Grants() string {
	if r.assumed {
		return fmt.Sprintf("AccessRole %q, which does not exist and may come to grant every access", r.Role)
	}
	return fmt.Sprintf("rules[%d] of AccessRole %q: %s", r.Index, r.Role, r.what())
}

func (r *Rule) what() string {
	accesses := make([]string, len(r.Spec.Access))
	for i, a := range r.Spec.Access {
		accesses[i] = string(a)
	}
	text := strings.Join(accesses, ", ")
	if r.access&onResources != 0 {
		text += " on " + r.Scope()
	}
	return text
}

// Excess returns the first of the rules that is contained in none of those that
// the subject holds, nil when the subject holds them all.
func (s *Set) Excess(subject Subject, rules []*Rule) *Rule {
	held := s.Held(subject)
	for _, r := range rules {
		if !slices.ContainsFunc(held, func(g *Grant) bool { return r.Within(g.Rule) }) {
			return r
		}
	}
	return nil
}

// Granted returns the rules that next grants to subjects that do not have them in
// s: rules of roles that are not contained in one of the role's own former rules,
// and the rules of roles that a binding gives to a subject anew. A role that does
// not exist counts as every access (§6.2).
func (s *Set) Granted(next *Set) []*Rule {
	var rules []*Rule
	grown := func(name string, now []*Rule) {
		former := s.roles[name]
		for i, r := range now {
			if i < len(former) && r.Within(former[i]) {
				continue // as it was, most of the time
			}
			if !slices.ContainsFunc(former, func(f *Rule) bool { return r.Within(f) }) {
				rules = append(rules, r)
			}
		}
	}
	for _, name := range sortedKeys(next.roles) {
		grown(name, next.roles[name])
	}
	if _, there := s.roles[AdminRole]; there && len(next.Holders(AdminRole)) > 0 {
		grown(AdminRole, next.later(AdminRole)) // it is taken away, and will be back
	}
	given := map[pair]bool{}
	for p := range s.pairs {
		given[p] = true
	}
	for p := range next.pairs {
		if given[p] {
			continue
		}
		given[p] = true
		rules = append(rules, next.roles[p.role]...)
		if _, exists := next.roles[p.role]; !exists {
			rules = append(rules, everything(p.role)) // what the role may become (§6.2)
		}
	}
	return rules
}

// Entitled returns every rule that a subject holds, and those that it will hold
// by itself once the role admin exists again.
func (s *Set) Entitled(subject Subject) []*Rule {
	var rules []*Rule
	for _, g := range s.Held(subject) {
		rules = append(rules, g.Rule)
	}
	if slices.ContainsFunc(s.RolesOf(subject), func(h HeldRole) bool { return h.Role == AdminRole }) {
		rules = append(rules, s.later(AdminRole)...)
	}
	return rules
}

// later returns the rules that a role will have although there is no such role:
// a control plane that starts without the role admin creates it
// (§6.5). A subject bound to it has nothing until then, and everything after.
func (s *Set) later(role string) []*Rule {
	if _, exists := s.roles[AdminRole]; exists || role != AdminRole {
		return nil
	}
	return []*Rule{everything(AdminRole)}
}

// everything is the rule that stands for a role that does not exist.
func everything(role string) *Rule {
	r := compileRule(role, 0, &resource.AccessRule{Access: Accesses()})
	r.assumed = role != AdminRole // which the next start creates with this rule
	return r
}

// pair is a subject and a role that a binding joins.
type pair struct {
	subject resource.Subject
	role    string
}

// pairs yields every pair that the bindings join.
func (s *Set) pairs(yield func(pair) bool) {
	for _, b := range s.bindings {
		for _, subject := range b.spec.Subjects {
			for _, role := range b.spec.Roles {
				if !yield(pair{subject, role}) {
					return
				}
			}
		}
	}
}

// HasAdmin reports whether some binding grants the role admin, and the role grants
// everything.
func (s *Set) HasAdmin() bool {
	var granted accessSet
	for _, r := range s.roles[AdminRole] {
		if r.unrestricted() {
			granted |= r.access
		}
	}
	return granted.implied() == everyAccess && len(s.Holders(AdminRole)) > 0
}

// WritesEverything reports whether a subject may create, update and delete every
// resource, by rules without any restriction, or will be able to once the role
// admin exists again.
func (s *Set) WritesEverything(subject Subject) bool {
	return s.entitled(subject, (*Rule).unrestricted)&onWrites == onWrites
}

// WritesRoles reports whether a subject may create and update every AccessRole.
func (s *Set) WritesRoles(subject Subject) bool {
	write := accessBit(resource.AccessCreate) | accessBit(resource.AccessUpdate)
	return write&^s.entitled(subject, func(r *Rule) bool {
		return r.hasType(resource.KindAccessRole) && len(r.names) == 0 && r.mesh == nil && len(r.when) == 0
	}) == 0
}

// entitled returns the accesses of the rules that a subject is entitled to.
func (s *Set) entitled(subject Subject, which func(*Rule) bool) (granted accessSet) {
	for _, r := range s.Entitled(subject) {
		if which(r) {
			granted |= r.access
		}
	}
	return granted
}

// unrestricted reports whether the rule is about every resource.
func (r *Rule) unrestricted() bool {
	return len(r.types) == 0 && len(r.names) == 0 && r.mesh == nil && len(r.when) == 0
}

// Change puts a resource under a key, or, being nil, removes what is there.
type Change struct {
	Key      resource.Key
	Resource *resource.Resource
}

// After is a view as changes would leave it.
func After(view View, changes ...Change) View { return changed{view, changes} }

type changed struct {
	view    View
	changes []Change
}

// List yields the resources of a kind in key order.
func (c changed) List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource] {
	touched := map[resource.Key]bool{}
	var all []*resource.Resource
	for _, change := range c.changes {
		touched[change.Key] = true
		if change.Resource != nil && change.Key.Kind == kind && (mesh == "" || change.Key.Mesh == mesh) {
			all = append(all, change.Resource)
		}
	}
	for r := range c.view.List(kind, mesh) {
		if !touched[r.Key()] {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *resource.Resource) int { return a.Key().Compare(b.Key()) })
	return slices.Values(all)
}
