package doctree

import (
	"strconv"
	"strings"
)

// Path is the place of a value in a document, as users read it:
// `conf.to[0].targetRef.kind`. Root is the spec itself.
type Path string

// Root is the path of the spec.
const Root Path = ""

// Field returns the path of a member of an object.
func (p Path) Field(name string) Path {
	if p == "" {
		return Path(name)
	}
	return p + "." + Path(name)
}

// Key returns the path of a map entry whose key may hold dots or slashes.
func (p Path) Key(name string) Path { return p + Path("["+strconv.Quote(name)+"]") }

// Index returns the path of an element of a list, counted from zero.
func (p Path) Index(i int) Path { return p + Path("["+strconv.Itoa(i)+"]") }

// MemberPath is the path of an object's member: `.name`, or `["name"]` when the
// name holds characters that would make the path ambiguous.
func MemberPath(at Path, name string) Path {
	if name == "" || strings.ContainsAny(name, ".[]\"/\\ \t\r\n") {
		return at.Key(name)
	}
	return at.Field(name)
}

// Within reports whether inner is outer or below it.
func Within(inner, outer Path) bool {
	rest, ok := strings.CutPrefix(string(inner), string(outer))
	return ok && (rest == "" || outer == Root || rest[0] == '.' || rest[0] == '[')
}

// LineAt finds the line in the source of the value at a path below n, or of the
// closest value above it that exists; 0 when nothing is known.
func LineAt(n *Node, at Path) int {
	line, rest := n.Line, string(at)
	for rest != "" && n != nil {
		name, index, tail, ok := FirstStep(rest)
		if !ok {
			return line
		}
		rest = tail
		var next *Node
		if index >= 0 {
			if n.Shape == List && index < len(n.Items) {
				next = n.Items[index]
				line = next.Line
			}
		} else {
			for _, m := range n.Members {
				if m.Name == name { // the last one, so that duplicates point at the repetition
					next, line = m.Value, m.Line
				}
			}
		}
		n = next
	}
	return line
}

// FirstStep splits the first step off a path: a member's name, or an index
// (which is -1 for a name).
func FirstStep(path string) (name string, index int, rest string, ok bool) {
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
