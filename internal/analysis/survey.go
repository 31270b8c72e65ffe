package analysis

import (
	"maps"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// surveyor advises on what is stored, or read together: what it says is no news to an
// author who has just begun.
type surveyor struct{}

// Survey implements policy.Surveyor.
func (surveyor) Survey(view policy.View) policy.Adviser {
	a := &adviser{roles: map[string]bool{}, bound: map[string]bool{}}
	for r := range view.List(resource.KindAccessRole, "") {
		a.roles[r.Key().Name] = true
	}
	for r := range view.List(resource.KindAccessRoleBinding, "") {
		for _, role := range r.Spec().(*resource.AccessRoleBinding).Roles {
			a.bound[role] = true
		}
	}
	return a
}

// adviser has the roles that there are and those that are bound.
type adviser struct {
	roles, bound map[string]bool
	guesses      int
}

// maxGuesses bounds for how many names a misspelling is looked for.
const maxGuesses = 100

// Advise implements policy.Adviser.
func (a *adviser) Advise(_ policy.View, r *resource.Resource) []resource.Problem {
	report := &resource.Report{}
	switch spec := r.Spec().(type) {
	case *resource.Mesh:
		if !spec.MTLSEnabled() {
			report.Findf(resource.CodeNoMTLS, resource.Path("mtls").Field("enabledBackend"),
				"is not set: connections are not encrypted, and callers have no identity that permissions can rely on")
		}
	case *resource.AccessRole:
		a.role(report, r.Key().Name, spec)
	case *resource.AccessRoleBinding:
		a.binding(report, spec)
	case *resource.TrafficPermission:
		for i, source := range spec.SourceSelectors() {
			if source.Exact() == 0 {
				report.Findf(resource.CodeUnqualifiedFrom, resource.Path("sources").Index(i).Field("match"),
					"has only values '*': every caller that has the tags is allowed")
			}
		}
	case *resource.MeshTrafficPermission:
		items := spec.FromItems()
		for _, b := range []*resource.TargetBlock{spec.Defaults(), spec.Overrides()} {
			if b != nil {
				items = append(items, b.From...)
			}
		}
		for _, it := range items {
			exact := it.Kind == resource.TargetService || it.Kind == resource.TargetServiceSubset ||
				it.Kind == resource.TargetMeshSubset && it.Tags.Exact() > 0
			if !exact && it.Conf["action"] == resource.ActionAllow {
				report.Findf(resource.CodeUnqualifiedFrom, it.Path.Field("targetRef"),
					"names no service and no value of a tag: every caller is allowed that no rule above it denies")
			}
		}
	}
	return report.Problems
}

// binding reports roles that do not exist.
func (a *adviser) binding(report *resource.Report, spec *resource.AccessRoleBinding) {
	for i, role := range spec.Roles {
		if a.roles[role] || role == defaultRole {
			continue
		}
		hint := ""
		if a.guesses++; a.guesses <= maxGuesses {
			if near, ok := resource.Nearest(role, slices.Collect(maps.Keys(a.roles))); ok {
				hint = "; did you mean " + near + "?"
			}
		}
		report.Findf(resource.CodeTargetNotFound, resource.Path("roles").Index(i), "there is no AccessRole %s%s", role, hint)
	}
}

// defaultRole is the role that every server creates (§6.5), and may grant everything.
const defaultRole = "admin"

func (a *adviser) role(report *resource.Report, name string, spec *resource.AccessRole) {
	for i := range spec.Rules {
		rule, at := &spec.Rules[i], resource.Path("rules").Index(i)
		if name != defaultRole && grantsAll(rule) {
			report.Findf(resource.CodeRoleGrantsAll, at, "lets its subjects write every resource, the access rules among them: as the role %s", defaultRole)
		}
	}
	if !a.bound[name] && name != defaultRole {
		report.Findf(resource.CodeRoleUnbound, resource.Root, "no AccessRoleBinding names the role: it has no subjects")
	}
}

// grantsAll reports whether a rule lets its subjects write every resource.
func grantsAll(rule *resource.AccessRule) bool {
	if len(rule.Types)+len(rule.Names)+len(rule.When) > 0 || rule.Mesh != nil {
		return false
	}
	for _, access := range []resource.Access{resource.AccessCreate, resource.AccessUpdate, resource.AccessDelete} {
		if !slices.Contains(rule.Access, access) {
			return false
		}
	}
	return true
}
