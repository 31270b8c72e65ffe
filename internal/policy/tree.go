package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Tree is a JSON object as encoding/json decodes it: map[string]any, []any,
// string, bool, nil and json.Number (never float64, so that a number is printed
// as it was written). A tree is shared and never modified once it is part of a
// Step.
type Tree = map[string]any

// ParseTree decodes a JSON object. Empty input and null are an empty object.
func ParseTree(data []byte) (Tree, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return Tree{}, nil
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var t Tree
	if err := dec.Decode(&t); err != nil {
		return nil, fmt.Errorf("decode configuration: %w", err)
	}
	if t == nil {
		t = Tree{}
	}
	return t, nil
}

// Pointer is a JSON pointer (RFC 6901), such as "/http/requestTimeout". The
// empty pointer is the whole tree.
type Pointer string

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

var pointerUnescapes = strings.NewReplacer("~1", "/", "~0", "~")

// Field returns the pointer of a member of the object at p.
func (p Pointer) Field(name string) Pointer {
	if strings.ContainsAny(name, "~/") {
		name = pointerEscapes.Replace(name)
	}
	return p + "/" + Pointer(name)
}

// Names splits the pointer into the member names it passes through.
func (p Pointer) Names() []string {
	if p == "" {
		return nil
	}
	names := strings.Split(string(p[1:]), "/")
	for i, n := range names {
		names[i] = pointerUnescapes.Replace(n)
	}
	return names
}

// Covers reports whether other is p or lies below it.
func (p Pointer) Covers(other Pointer) bool {
	return strings.HasPrefix(string(other), string(p)) &&
		(len(other) == len(p) || other[len(p)] == '/')
}

// At returns the value a pointer points to, or false. Only objects are walked:
// lists are single values (§4.5).
func At(t Tree, p Pointer) (any, bool) {
	var v any = t
	for _, name := range p.Names() {
		object, ok := v.(Tree)
		if !ok {
			return nil, false
		}
		if v, ok = object[name]; !ok {
			return nil, false
		}
	}
	return v, true
}

// Leaves returns the pointers of the leaf fields of t in bytewise order.
// Objects are walked down to depth levels (0: all); a list, a scalar, an empty
// object, and whatever lies deeper is one leaf.
func Leaves(t Tree, depth int) []Pointer {
	leaves := appendLeaves(nil, t, "", depth)
	slices.Sort(leaves)
	return leaves
}

// appendLeaves appends the leaves below the object at p. depth is the number of
// levels left; 0 is unlimited, and a value reached at level 1 is opaque.
func appendLeaves(leaves []Pointer, t Tree, p Pointer, depth int) []Pointer {
	for name, v := range t {
		if object, ok := objectAt(v, depth); ok && len(object) > 0 {
			leaves = appendLeaves(leaves, object, p.Field(name), deeper(depth))
		} else {
			leaves = append(leaves, p.Field(name))
		}
	}
	return leaves
}

// objectAt returns v as an object whose members are fields of their own, which
// it is not at the last level.
func objectAt(v any, depth int) (Tree, bool) {
	if depth == 1 {
		return nil, false
	}
	object, ok := v.(Tree)
	return object, ok
}

func deeper(depth int) int {
	if depth == 0 {
		return 0
	}
	return depth - 1
}

// clone copies the objects of v that a fold may write to. Lists, scalars and
// opaque values are shared: nothing writes to them.
func clone(v any, depth int) any {
	object, ok := objectAt(v, depth)
	if !ok {
		return v
	}
	c := make(Tree, len(object))
	for name, member := range object {
		c[name] = clone(member, deeper(depth))
	}
	return c
}

// Without returns t without the fields that the pointers cover, and the
// pointers of the leaves that were left out, in bytewise order. An object that
// is emptied this way is left out too. t is not modified, and is returned
// itself when nothing is left out.
func Without(t Tree, unset []Pointer, depth int) (Tree, []Pointer) {
	var removed []Pointer
	for _, leaf := range Leaves(t, depth) {
		if slices.ContainsFunc(unset, func(p Pointer) bool { return p.Covers(leaf) }) {
			removed = append(removed, leaf)
		}
	}
	if len(removed) == 0 {
		return t, nil
	}
	rest := t
	for _, leaf := range removed {
		rest = without(rest, leaf.Names())
	}
	return rest, removed
}

// without returns a copy of t that lacks one field.
func without(t Tree, names []string) Tree {
	c := maps.Clone(t)
	if len(names) == 1 {
		delete(c, names[0])
		return c
	}
	inner := without(c[names[0]].(Tree), names[1:])
	if len(inner) == 0 {
		delete(c, names[0])
	} else {
		c[names[0]] = inner
	}
	return c
}
