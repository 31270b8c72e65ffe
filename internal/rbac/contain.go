package rbac

import (
	"cmp"
	"slices"

	"meridian/internal/resource"
)

// Within reports whether everything that r grants is granted by other alone:
// a subject with other gains nothing by r. It looks at how the rules are
// written, and says no where it cannot tell.
func (r *Rule) Within(other *Rule) bool {
	if r.access&^other.access.implied() != 0 {
		return false
	}
	if r.access&onResources != 0 && !r.resourcesWithin(other) {
		return false
	}
	if r.access&onMeshTokens != 0 && !meshWithin(r.mesh, other.mesh) {
		return false
	}
	return r.whenWithin(other)
}

func (r *Rule) resourcesWithin(other *Rule) bool {
	types, mesh := r.types, r.mesh
	if mesh != nil && len(types) > 0 {
		// A mesh takes the kinds out that live in none (§6.1).
		types = slices.DeleteFunc(slices.Clone(types), func(k resource.Kind) bool { return !inMesh(k) })
		if len(types) == 0 {
			return true // it covers nothing
		}
	}
	if mesh == nil && len(types) > 0 && !slices.ContainsFunc(types, func(k resource.Kind) bool { return !inMesh(k) }) {
		mesh = anyMesh() // which is all that a mesh could be absent for
	}
	return meshWithin(mesh, other.mesh) && listWithin(types, other.types) && listWithin(r.names, other.names)
}

func inMesh(kind resource.Kind) bool {
	d, ok := resource.Describe(kind)
	return ok && d.Scope == resource.MeshScoped
}

func anyMesh() *resource.MeshName {
	mesh := resource.MeshName(resource.AnyValue)
	return &mesh
}

// meshWithin compares the meshes of two rules; absent is no restriction.
func meshWithin(mesh, other *resource.MeshName) bool {
	switch {
	case other == nil:
		return true
	case mesh == nil:
		return false
	}
	return *other == resource.AnyValue || *mesh == *other
}

// listWithin compares sorted lists of which an empty one means everything.
func listWithin[T cmp.Ordered](list, other []T) bool {
	if len(other) == 0 {
		return true
	}
	return len(list) > 0 && !slices.ContainsFunc(list, func(v T) bool {
		_, found := slices.BinarySearch(other, v)
		return !found
	})
}

// whenWithin reports whether whatever fulfils a condition of r fulfils one of
// other's.
func (r *Rule) whenWithin(other *Rule) bool {
	if len(other.when) == 0 {
		return true
	}
	if len(r.when) == 0 {
		return false
	}
	for i := range r.when {
		if !slices.ContainsFunc(other.when, func(w condition) bool { return r.when[i].within(&w) }) {
			return false
		}
	}
	return true
}

// within reports whether what fulfils w fulfils other: every qualifier of other
// is asked by one of w that asks no less.
func (w *condition) within(other *condition) bool {
	for i := range w.tags {
		if !qualifierWithin(w.tags[i], other.tags[i]) {
			return false
		}
	}
	return targetWithin(w.targetRef, other.targetRef) &&
		targetWithin(w.to, other.to) &&
		targetWithin(w.from, other.from) &&
		tokenWithin(w.token, other.token)
}

func tokenWithin(q, other *resource.TokenQualifier) bool {
	if other == nil || q == nil {
		return other == nil
	}
	return q.NamesWithin(other) && !slices.ContainsFunc(other.Tags, func(t resource.TokenTag) bool { return !slices.Contains(q.Tags, t) })
}

func qualifierWithin(q, other tagSet) bool {
	if other == nil || q == nil {
		return other == nil
	}
	_, missing := uncovered(other, q.asMap())
	return !missing
}

func targetWithin(t, other *target) bool {
	return other == nil || t != nil && other.covers(t)
}
