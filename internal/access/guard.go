package access

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"meridian/internal/auth"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// guard refuses a change of the access rules that would give anybody more than
// the caller holds, or that would leave nobody with the role admin. A member of
// mesh-system:admin can insist.
func guard(who auth.Principal, now, next *rbac.Set, force bool) error {
	if force && who.In(auth.AdminGroup) {
		return nil
	}
	if excess := now.Excess(SubjectOf(who), now.Granted(next)); excess != nil {
		return refusal(ReasonEscalation, who,
			fmt.Sprintf("it would grant rules[%d] of AccessRole %q: %s", excess.Index, excess.Role, grantText(excess)),
			"missing: a rule of yours that contains it; nobody can grant what they do not hold",
			insist(who))
	}
	if now.HasAdmin() && !next.HasAdmin() {
		return refusal(ReasonLastAdmin, who,
			fmt.Sprintf("nobody would have the role %q any more, and so nobody could give it back", rbac.AdminRole),
			insist(who))
	}
	return nil
}

// guardToken does the same for a token: who holds it is given nothing that the
// issuer lacks, membership of mesh-system:admin included.
func guardToken(who auth.Principal, excess *rbac.Rule, user auth.Principal, force bool) error {
	admin := who.In(auth.AdminGroup)
	switch {
	case force && admin:
		return nil
	case user.In(auth.AdminGroup) && !admin:
		return refusal(ReasonEscalation, who,
			fmt.Sprintf("missing: membership of group %s, which the token would give", auth.AdminGroup))
	case excess != nil:
		return refusal(ReasonEscalation, who,
			fmt.Sprintf("user %q would hold rules[%d] of AccessRole %q: %s", user, excess.Index, excess.Role, grantText(excess)),
			"missing: a rule of yours that contains it; nobody can grant what they do not hold",
			insist(who))
	}
	return nil
}

func insist(who auth.Principal) string {
	if who.In(auth.AdminGroup) {
		return "--force does it all the same"
	}
	return "only a member of " + auth.AdminGroup + " can do it all the same, with --force"
}

func grantText(r *rbac.Rule) string {
	accesses := make([]string, len(r.Spec.Access))
	for i, a := range r.Spec.Access {
		accesses[i] = string(a)
	}
	return strings.Join(accesses, ", ") + " on " + r.Scope()
}

// missingRoles warns about bindings to roles that do not exist (SEMANTICS
// §6.2).
func missingRoles(next *rbac.Set, ops []store.Op) []string {
	var warnings []string
	for _, op := range ops {
		if op.Resource == nil {
			continue
		}
		binding, ok := op.Resource.Spec().(*resource.AccessRoleBinding)
		if !ok {
			continue
		}
		for _, role := range binding.Roles {
			if _, exists := next.Rules(role); !exists {
				warnings = append(warnings, fmt.Sprintf("%s: there is no AccessRole %q: until there is, it grants nothing", op.Resource.Key(), role))
			}
		}
	}
	return warnings
}

// after is a view as a batch would leave it.
func after(view *store.View, ops []store.Op) rbac.View { return changed{view, ops} }

type changed struct {
	view *store.View
	ops  []store.Op
}

// List yields the resources of a kind in key order.
func (c changed) List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource] {
	touched := map[resource.Key]bool{}
	var all []*resource.Resource
	for _, op := range c.ops {
		key := op.Key
		if op.Resource != nil {
			if key = op.Resource.Key(); key.Kind == kind {
				all = append(all, op.Resource)
			}
		}
		touched[key] = true
	}
	for r := range c.view.List(kind, mesh) {
		if !touched[r.Key()] {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *resource.Resource) int { return a.Key().Compare(b.Key()) })
	return slices.Values(all)
}
