package resource

import "slices"

// EnforcementLabel on a permission says with the value EnforcementShadow that it is not in
// effect and only tried: what it would deny is told, and nothing is denied.
const (
	EnforcementLabel  = "meridian.io/enforcement"
	EnforcementShadow = "shadow"
)

// Permissions are the kinds that say who may call.
func Permissions() []Kind { return []Kind{KindMeshTrafficPermission, KindTrafficPermission} }

// Permission reports whether a kind says who may call.
func Permission(kind Kind) bool { return slices.Contains(Permissions(), kind) }

// Shadowed reports whether the resource is a permission that is only tried.
func (r *Resource) Shadowed() bool {
	return r.meta.Labels[EnforcementLabel] == EnforcementShadow && Permission(r.meta.Key.Kind)
}
