package resource

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxSpecDepth bounds how deeply a spec may nest: far above any honest
	// policy, far below what would exhaust a stack.
	maxSpecDepth = 100
	// maxDepth leaves room for what stands around a spec in a document.
	maxDepth = maxSpecDepth + 8
)

// shape is what a value of a document is.
type shape uint8

const (
	shapeNull shape = iota
	shapeBool
	shapeNumber
	shapeText
	shapeList
	shapeObject
)

// node is one value of a parsed document, from YAML or JSON alike. Every node
// has one parent (aliases are expanded) and is read-only after parsing, except
// for the absent mark.
type node struct {
	shape shape
	// text is a string's value, a number in normal form (see normalNumber), or
	// "true" or "false".
	text    string
	line    int // in the source, from 1
	members []member
	items   []*node
	// absent marks a null where a typed field stands: it means that the field is
	// not there, and leaves the canonical form.
	absent bool
}

// member is one entry of an object, in the order of the document.
type member struct {
	name  string
	line  int
	value *node
}

// get returns the member of that name, or nil.
func (n *node) get(name string) *node {
	for i := range n.members {
		if n.members[i].name == name {
			return n.members[i].value
		}
	}
	return nil
}

// deeper reports whether n nests more than levels deep.
func (n *node) deeper(levels int) bool {
	if levels < 0 {
		return true
	}
	for i := range n.members {
		if n.members[i].value.deeper(levels - 1) {
			return true
		}
	}
	for _, item := range n.items {
		if item.deeper(levels - 1) {
			return true
		}
	}
	return false
}

// describe names the value for a message: "the string "abc"", "a list".
func (n *node) describe() string {
	switch n.shape {
	case shapeNull:
		return "nothing"
	case shapeBool:
		return n.text
	case shapeNumber:
		return "the number " + clip(n.text)
	case shapeText:
		return fmt.Sprintf("the string %q", clip(n.text))
	case shapeList:
		return "a list"
	default:
		return "an object"
	}
}

// duplicateNames reports every name that an object below n has twice.
func duplicateNames(n *node, at Path, report *Report) {
	seen := make(map[string]int, len(n.members))
	for _, m := range n.members {
		path := memberPath(at, m.name)
		if line, again := seen[m.name]; again {
			report.Errorf(path, "written twice, first in line %d; keep one of them", line)
			continue
		}
		seen[m.name] = m.line
		duplicateNames(m.value, path, report)
	}
	for i, item := range n.items {
		duplicateNames(item, at.Index(i), report)
	}
}

// memberPath is the path of an object's member: `.name`, or `["name"]` when the
// name holds characters that would make the path ambiguous.
func memberPath(at Path, name string) Path {
	if name == "" || strings.ContainsAny(name, ".[]\"/\\ \t\r\n") {
		return at.Key(name)
	}
	return at.Field(name)
}

// canonical appends the canonical JSON of n to b: members sorted bytewise, no
// insignificant space, numbers in normal form, strings with the fewest escapes.
func (n *node) canonical(b []byte) []byte {
	switch n.shape {
	case shapeNull:
		return append(b, "null"...)
	case shapeBool, shapeNumber:
		return append(b, n.text...)
	case shapeText:
		return appendString(b, n.text)
	case shapeList:
		b = append(b, '[')
		for i, item := range n.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = item.canonical(b)
		}
		return append(b, ']')
	default:
		return canonicalObject(b, n.members)
	}
}

func canonicalObject(b []byte, members []member) []byte {
	byName := func(x, y member) int { return strings.Compare(x.name, y.name) }
	if !slices.IsSortedFunc(members, byName) {
		members = slices.Clone(members)
		slices.SortStableFunc(members, byName)
	}
	b = append(b, '{')
	first := true
	for _, m := range members {
		if m.value.absent {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = appendString(b, m.name)
		b = append(b, ':')
		b = m.value.canonical(b)
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

// lineAt finds the line in the source of the value at a path below n, or of the
// closest value above it that exists; 0 when nothing is known.
func lineAt(n *node, at Path) int {
	line, rest := n.line, string(at)
	for rest != "" && n != nil {
		name, index, tail, ok := firstStep(rest)
		if !ok {
			return line
		}
		rest = tail
		var next *node
		if index >= 0 {
			if n.shape == shapeList && index < len(n.items) {
				next = n.items[index]
				line = next.line
			}
		} else {
			for _, m := range n.members {
				if m.name == name { // the last one, so that duplicates point at the repetition
					next, line = m.value, m.line
				}
			}
		}
		n = next
	}
	return line
}

// firstStep splits the first step off a path: a member's name, or an index
// (which is -1 for a name).
func firstStep(path string) (name string, index int, rest string, ok bool) {
	path = strings.TrimPrefix(path, ".")
	if !strings.HasPrefix(path, "[") {
		end := strings.IndexAny(path, ".[")
		if end < 0 {
			end = len(path)
		}
		return path[:end], -1, path[end:], end > 0
	}
	if strings.HasPrefix(path, `["`) {
		quoted, err := strconv.QuotedPrefix(path[1:])
		if err != nil {
			return "", -1, "", false
		}
		name, err = strconv.Unquote(quoted)
		rest, closed := strings.CutPrefix(path[1+len(quoted):], "]")
		return name, -1, rest, err == nil && closed
	}
	end := strings.IndexByte(path, ']')
	if end < 0 {
		return "", -1, "", false
	}
	index = 0
	for _, c := range path[1:end] {
		if c < '0' || c > '9' || index > 1<<30 {
			return "", -1, "", false
		}
		index = index*10 + int(c-'0')
	}
	return "", index, path[end+1:], true
}
