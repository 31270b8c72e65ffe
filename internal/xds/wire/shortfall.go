package wire

import (
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/support"
	"meridian/internal/xds/world"
)

// Shortfall is a part of a resource that proxies of a kind do not, or not quite, obey.
type Shortfall struct {
	// Path is the place in the spec, with everything in it; empty for the whole.
	Path resource.Path
	// Direction is "from" or "to" for what holds on inbounds or outbounds only; else
	// empty.
	Direction string
	Status    support.Status
	Note      string
	// Fields is how many fields are written there.
	Fields int
}

// leaf is a field that is written in a spec.
type leaf struct {
	at        []string // the names that lead to it; places in lists in brackets
	direction string
	support.Answer
}

// short reports whether proxies do something else than what the field says.
func (l *leaf) short() bool {
	return l.Status == support.Unsupported || l.Status == support.Approximated
}

func (l *leaf) alike(other *leaf) bool {
	return l.Answer == other.Answer && l.direction == other.direction
}

// Shortfalls returns what proxies of a kind do not, or not quite, obey of a resource as it
// is written, in bytewise order of places: the widest parts of which one thing is so.
// Fields that the zone decides about do not count.
func Shortfalls(dialect xds.Dialect, r *resource.Resource) ([]Shortfall, error) {
	tree, err := policy.ParseTree(r.Canonical())
	if err != nil {
		return nil, err
	}
	var leaves []leaf
	walk(tree, nil, "", func(field []string, at policy.Pointer) {
		got, direction, ok := support.Written(dialect, r.Key().Kind, field)
		if !ok || got.Status == support.Decided || at == "" {
			return
		}
		if got.Status == support.Enforced {
			got.Note = "" // it only says when
		}
		names := at.Names()
		for i := range names {
			if field[i] == "[]" {
				names[i] = "[" + names[i] + "]"
			}
		}
		leaves = append(leaves, leaf{names, direction, got})
	})
	return collapse(nil, leaves, 0), nil
}

// collapse appends the widest parts of some fields, which share their first depth names.
func collapse(list []Shortfall, leaves []leaf, depth int) []Shortfall {
	if !slices.ContainsFunc(leaves, func(l leaf) bool { return l.short() }) {
		return list
	}
	first := &leaves[0]
	if !slices.ContainsFunc(leaves, func(l leaf) bool { return !l.alike(first) }) {
		shared := len(first.at)
		for _, l := range leaves[1:] {
			n := 0
			for n < min(shared, len(l.at)) && l.at[n] == first.at[n] {
				n++
			}
			shared = n
		}
		return append(list, Shortfall{pathOf(first.at[:shared]), first.direction, first.Status, first.Note, len(leaves)})
	}
	for len(leaves) > 0 {
		end := 1
		for end < len(leaves) && leaves[end].at[depth] == leaves[0].at[depth] {
			end++
		}
		list, leaves = collapse(list, leaves[:end], depth+1), leaves[end:]
	}
	return list
}

// pathOf writes a place in a spec as messages do: to[0].default.
func pathOf(names []string) resource.Path {
	return resource.Path(strings.ReplaceAll(strings.Join(names, "."), ".[", "["))
}

// Permissions is what becomes of permissions on proxies of a kind in a mesh, and why:
// they are enforced where it is known of every caller who calls.
func Permissions(mesh world.Mesh, dialect xds.Dialect) support.Answer {
	switch {
	case mesh.Secure():
		return support.Answer{Status: support.Enforced}
	case dialect != xds.Envoy:
		return support.Answer{Status: support.Unsupported, Note: "who calls is known only in a mesh with mutual TLS whose mode is STRICT: every caller is accepted"}
	case mesh.Certified():
		return support.Answer{Status: support.Approximated, Note: "in mode PERMISSIVE they decide about callers with a certificate, and every caller with plaintext is accepted"}
	}
	return support.Answer{Status: support.Unsupported, Note: "who calls is known only in a mesh with mutual TLS and certificates: every caller is accepted"}
}
