package answer

import (
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// permission is whether a caller may talk to an inbound, and by whose word.
type permission struct {
	allowed             bool
	allowedBy, deniedBy []string
}

// permitted decides whether a caller may talk to an inbound, from the rules of
// that inbound. A MeshTrafficPermission supersedes TrafficPermission
// (§4.7); where neither decides, mutual TLS denies and its absence allows (§3.6).
func permitted(mesh *policy.Mesh, rules []*policy.Rule, caller []resource.Tags) permission {
	undecided := permission{allowed: !mesh.MTLS, allowedBy: []string{}, deniedBy: []string{}}
	if rule := ofKind(rules, resource.KindMeshTrafficPermission); rule != nil {
		fold := rule.ForCaller(caller).Fold()
		action, ok := fold.Conf()["action"].(string)
		if !ok {
			return undecided
		}
		by := []string{fold.Fields()["/action"].Name}
		if !strings.EqualFold(action, resource.ActionAllow) {
			return permission{allowedBy: []string{}, deniedBy: by}
		}
		return permission{allowed: true, allowedBy: by, deniedBy: []string{}}
	}
	if rule := ofKind(rules, resource.KindTrafficPermission); rule != nil {
		if by := origins(rule.ForCaller(caller).Steps); len(by) > 0 {
			return permission{allowed: true, allowedBy: by, deniedBy: []string{}}
		}
		return permission{allowedBy: []string{}, deniedBy: origins(rule.Steps)}
	}
	return undecided
}

func ofKind(rules []*policy.Rule, kind resource.Kind) *policy.Rule {
	if i := slices.IndexFunc(rules, func(r *policy.Rule) bool { return r.Kind == kind }); i >= 0 {
		return rules[i]
	}
	return nil
}
