package plan

import (
	"fmt"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/rbac"
	"meridian/internal/resource"
)

// maxOthers bounds the rules of routes, and the rights, that a plan lists.
const maxOthers = 1_000

// RightsOf adds what users and groups would gain and lose, where access rules are among
// what changes.
func (p *Plan) RightsOf(before policy.View, change *Batch) {
	if !slices.ContainsFunc(change.Keys(), func(key resource.Key) bool {
		return key.Kind == resource.KindAccessRole || key.Kind == resource.KindAccessRoleBinding
	}) {
		return
	}
	for _, c := range rbac.Compile(before).Changes(rbac.Compile(change.On(before))) {
		if len(p.Rights) == maxOthers {
			p.Left.Rights++
			continue
		}
		p.Rights = append(p.Rights, Right{
			Subject: strings.ToLower(string(c.Subject.Type)) + " " + c.Subject.Name, Access: c.String(),
			Before: !c.Gained, After: c.Gained,
			By: fmt.Sprintf("rules[%d] of AccessRole %s, through AccessRoleBinding %s", c.Grant.Index, c.Grant.Role, c.Grant.Binding),
		})
	}
	// What is lost comes first.
	slices.SortStableFunc(p.Rights, func(a, b Right) int {
		switch {
		case a.Before == b.Before:
			return 0
		case a.Before:
			return -1
		}
		return 1
	})
}
