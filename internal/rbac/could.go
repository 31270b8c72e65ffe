package rbac

import "meridian/internal/resource"

// Known is what is known of a resource before its content is decoded.
type Known struct {
	// Key: without a kind or a name, it may be of any.
	Key resource.Key
	// AnyMesh says that the mesh is not known yet.
	AnyMesh bool
}

// Could reports whether any rule of a subject could grant an access on a resource
// of which so much is known, whatever its content. It grants nothing: it is true
// wherever Check may allow the access, and false only where Check denies it for
// every content. With an access to generate a token, only the mesh counts, where
// one is given.
func (s *Set) Could(subject Subject, access resource.Access, known Known) bool {
	bit := granting(access, known.Key.Kind)
	for h := range s.holdings(subject) {
		if h.could(bit, known) {
			return true
		}
	}
	return false
}

func (h *holding) could(access accessSet, known Known) bool {
	some := func(grants []*Grant) bool {
		for _, g := range grants {
			if g.access&access != 0 && g.concerns(access, known) {
				return true
			}
		}
		return false
	}
	switch {
	case access&onResources == 0:
		return some(h.tokens)
	case known.Key.Kind == "" || known.Key.Name == "":
		return some(h.all)
	}
	return some(h.wide) || some(h.byKind[known.Key.Kind]) || some(h.byName[known.Key.Name]) || some(h.tagged)
}

// concerns reports whether the rule, which has the access, is about what is known.
func (r *Rule) concerns(access accessSet, known Known) bool {
	key := known.Key
	switch {
	case access&onResources == 0:
		return access&onMeshTokens == 0 || key.Mesh == "" || r.hasMesh(key.Mesh)
	case key.Kind == "":
		return true
	}
	return r.hasType(key.Kind) && (known.AnyMesh || r.hasMesh(key.Mesh)) && (key.Name == "" || r.hasName(key.Name))
}

// Refusal explains why Could reports false of an access on a resource: what is
// missing, and the nearest rule by all but its conditions.
func (s *Set) Refusal(subject Subject, access resource.Access, known Known) *Denial {
	return s.nearest(subject, &Denial{Access: access, Object: known.Key}, inquiry{access: access, key: known.Key, early: true, anyMesh: known.AnyMesh})
}
