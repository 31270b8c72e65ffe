package policy

import (
	"fmt"
	"strings"

	"meridian/internal/resource"
)

// maxNamed bounds how many resources of a group are named.
const maxNamed = 3

// Group is advice of one cause, for one resource or more.
type Group struct {
	// Advice is the first that was given. Where there are several resources, its
	// message is what is so of all of them.
	Advice
	// Keys are the resources, each once, in the order of the advice.
	Keys []resource.Key
}

// Groups puts advice together that has one cause: of one severity, in one mesh, about
// one field (whatever its place in a list), with one text. The groups are in the order
// of the first advice of each; what is said of one resource only is a group for each
// message.
func Groups(advice []Advice) []Group {
	type cause struct {
		severity    resource.Severity
		mesh        resource.MeshName
		field, text string
	}
	of := func(a *Advice) cause {
		text := a.Message
		if a.Cause != "" {
			text = a.Cause
		}
		return cause{a.Severity, a.Key.Mesh, withoutPlaces(a.Path), text}
	}
	keys := make(map[cause][]resource.Key, len(advice))
	known := map[cause]map[resource.Key]bool{}
	for i := range advice {
		c := of(&advice[i])
		if known[c] == nil {
			known[c] = map[resource.Key]bool{}
		}
		if key := advice[i].Key; !known[c][key] {
			known[c][key] = true
			keys[c] = append(keys[c], key)
		}
	}
	var groups []Group
	for i := range advice {
		a, c := advice[i], of(&advice[i])
		switch n := len(keys[c]); {
		case n == 0: // its group is there
		case n == 1:
			groups = append(groups, Group{a, keys[c]})
		default:
			a.Message = c.text
			groups = append(groups, Group{a, keys[c]})
			delete(keys, c)
		}
	}
	return groups
}

// String prints where the group is, and what it says, in one line.
func (g *Group) String() string {
	text := g.Problem.String()
	if where := g.Where(resource.Key.String); where != "" {
		text = where + ": " + text
	}
	if g.Source != "" && len(g.Keys) == 1 {
		text = g.Source + ": " + text
	}
	return text
}

// Where names the resource, or counts several and names the first: "60 documents
// (HTTPRoute/m/r1, r2, r3, …)". It is empty for advice about a whole request.
func (g *Group) Where(name func(resource.Key) string) string {
	if len(g.Keys) == 1 {
		if g.Key == (resource.Key{}) {
			return ""
		}
		return name(g.Key)
	}
	return Several(g.Keys)
}

// Several counts resources and names the first of them.
func Several(keys []resource.Key) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d documents (", len(keys))
	var last resource.Key
	for i, key := range keys[:min(maxNamed, len(keys))] {
		if i > 0 {
			b.WriteString(", ")
		}
		if key.Kind == last.Kind && key.Mesh == last.Mesh {
			b.WriteString(key.Name)
		} else {
			b.WriteString(key.String())
		}
		last = key
	}
	if len(keys) > maxNamed {
		b.WriteString(", …")
	}
	b.WriteByte(')')
	return b.String()
}

// withoutPlaces leaves the places in lists out of a path.
func withoutPlaces(p resource.Path) string {
	var b strings.Builder
	rest := string(p)
	for {
		before, after, found := strings.Cut(rest, "[")
		b.WriteString(before)
		_, beyond, closed := strings.Cut(after, "]")
		if !found || !closed {
			return b.String()
		}
		rest = beyond
	}
}
