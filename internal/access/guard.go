package access

import (
	"fmt"

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
	over := now.Guard(SubjectOf(who), next)
	if over == nil {
		return nil
	}
	reason := ReasonEscalation
	if over.Excess == nil {
		reason = ReasonLastAdmin
	}
	return refusal(reason, who, over.Reasons()...)
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
		lines := []string{fmt.Sprintf("user %q would hold %s", user, excess.Grants())}
		return refusal(ReasonEscalation, who, append(lines, rbac.NotHeld(SubjectOf(who))...)...)
	}
	return nil
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
func after(view *store.View, ops []store.Op) rbac.View {
	changes := make([]rbac.Change, len(ops))
	for i, op := range ops {
		changes[i] = rbac.Change{Key: op.Key, Resource: op.Resource}
		if op.Resource != nil {
			changes[i].Key = op.Resource.Key()
		}
	}
	return rbac.After(view, changes...)
}
