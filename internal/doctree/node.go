package doctree

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// MaxDepth bounds how deeply a document may nest: far above any real policy,
// far below what would exhaust a stack.
const MaxDepth = 108

// Shape is what a value of a document is.
type Shape uint8

// The shapes that JSON knows.
const (
	Null Shape = iota
	Bool
	Number
	Text
	List
	Object
)

// Node is one value of a parsed document, from YAML or JSON alike. Every node
// has one parent (aliases are expanded) and is read-only after parsing, except
// for the absent mark.
type Node struct {
	Shape Shape
	// Text is a string's value, a number in normal form (see number.go), or
	// "true" or "false".
	Text    string
	Line    int // in the source, from 1
	Members []Member
	Items   []*Node
	// Absent marks a null where a typed field stands: it means that the field is
	// not there, and leaves the canonical form.
	Absent bool
}

// Member is one entry of an object, in the order of the document.
type Member struct {
	Name  string
	Line  int
	Value *Node
}

// Get returns the member of that name, or nil.
func (n *Node) Get(name string) *Node {
	for i := range n.Members {
		if n.Members[i].Name == name {
			return n.Members[i].Value
		}
	}
	return nil
}

// Deeper reports whether n nests more than levels deep.
func (n *Node) Deeper(levels int) bool {
	if levels < 0 {
		return true
	}
	for i := range n.Members {
		if n.Members[i].Value.Deeper(levels - 1) {
			return true
		}
	}
	for _, item := range n.Items {
		if item.Deeper(levels - 1) {
			return true
		}
	}
	return false
}

// Describe names the value for a message: "the string "abc"", "a list".
func (n *Node) Describe() string {
	switch n.Shape {
	case Null:
		return "nothing"
	case Bool:
		return n.Text
	case Number:
		return "the number " + Clip(n.Text)
	case Text:
		return fmt.Sprintf("the string %q", Clip(n.Text))
	case List:
		return "a list"
	default:
		return "an object"
	}
}

// Clip shortens text for a message.
func Clip(text string) string {
	const most = 60
	if len(text) <= most {
		return text
	}
	cut := most
	for cut > 0 && text[cut]&0xC0 == 0x80 { // not in the middle of a character
		cut--
	}
	return text[:cut] + "…"
}

// Duplicates calls report with the path of every name that an object below n
// repeats, and with the line where it was first written.
func Duplicates(n *Node, at Path, report func(at Path, first int)) {
	seen := make(map[string]int, len(n.Members))
	for _, m := range n.Members {
		path := MemberPath(at, m.Name)
		if line, again := seen[m.Name]; again {
			report(path, line)
			continue
		}
		seen[m.Name] = m.Line
		Duplicates(m.Value, path, report)
	}
	for i, item := range n.Items {
		Duplicates(item, at.Index(i), report)
	}
}

// Canonical appends the canonical JSON of n to b: members sorted bytewise, no
// insignificant space, numbers in normal form, strings with the fewest escapes.
func (n *Node) Canonical(b []byte) []byte {
	switch n.Shape {
	case Null:
		return append(b, "null"...)
	case Bool, Number:
		return append(b, n.Text...)
	case Text:
		return appendString(b, n.Text)
	case List:
		b = append(b, '[')
		for i, item := range n.Items {
			if i > 0 {
				b = append(b, ',')
			}
			b = item.Canonical(b)
		}
		return append(b, ']')
	default:
		return canonicalObject(b, n.Members)
	}
}

func canonicalObject(b []byte, members []Member) []byte {
	byName := func(x, y Member) int { return strings.Compare(x.Name, y.Name) }
	if !slices.IsSortedFunc(members, byName) {
		members = slices.Clone(members)
		slices.SortStableFunc(members, byName)
	}
	b = append(b, '{')
	first := true
	for _, m := range members {
		if m.Value.Absent {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = appendString(b, m.Name)
		b = append(b, ':')
		b = m.Value.Canonical(b)
	}
	return append(b, '}')
}

// appendString appends s as a JSON string. Only what JSON demands is escaped,
// so that the result is the same everywhere.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\t':
			b = append(b, '\\', 't')
		case '\r':
			b = append(b, '\\', 'r')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xF])
		}
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

// Plain is the value as encoding/json with UseNumber would produce it.
func (n *Node) Plain() any {
	switch n.Shape {
	case Null:
		return nil
	case Bool:
		return n.Text == "true"
	case Number:
		return json.Number(n.Text)
	case Text:
		return n.Text
	case List:
		list := make([]any, len(n.Items))
		for i, item := range n.Items {
			list[i] = item.Plain()
		}
		return list
	default:
		object := make(map[string]any, len(n.Members))
		for _, m := range n.Members {
			object[m.Name] = m.Value.Plain()
		}
		return object
	}
}

// NewObject makes a node of members that no source has written.
func NewObject(members ...Member) *Node { return &Node{Shape: Object, Members: members} }

// Ordered appends n as JSON with members in their order, not sorted.
func (n *Node) Ordered(b []byte) []byte {
	switch n.Shape {
	case Object:
		b = append(b, '{')
		for i, m := range n.Members {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, m.Name)
			b = append(b, ':')
			b = m.Value.Ordered(b)
		}
		return append(b, '}')
	case List:
		b = append(b, '[')
		for i, item := range n.Items {
			if i > 0 {
				b = append(b, ',')
			}
			b = item.Ordered(b)
		}
		return append(b, ']')
	default:
		return n.Canonical(b)
	}
}
