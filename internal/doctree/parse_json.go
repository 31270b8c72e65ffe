package doctree

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"
	"unicode/utf8"
)

// SyntaxError is why a source is neither YAML nor JSON.
type SyntaxError struct {
	Line    int
	Message string
}

func (e *SyntaxError) Error() string { return e.Message }

// jsonParser reads a stream of JSON values (RFC 8259). It exists beside
// encoding/json because it keeps positions, duplicate names and every digit of
// a number, and because the store rebuilds every resource through it: a server
// that starts with a million of them parses each, so that what it allocates for
// one counts. It allocates the nodes of a tree, which live as long as its root,
// several at a time.
type jsonParser struct {
	data  []byte
	pos   int
	line  int
	depth int
	// repeats is set when some object has a name twice.
	repeats bool

	// What the values consist of, allocated in chunks.
	chunk  int
	nodes  slab[Node]
	listed slab[*Node]
	held   slab[Member]

	// What is kept for the next source: the items and members of the values that
	// are being read, as stacks, the values, and names that were read.
	items   []*Node
	members []Member
	values  []*Node
	names   map[string]string
}

const (
	// maxChunk is how many nodes, items or members are allocated at a time: about as
	// many as a policy has. Sources with fewer bytes than shortValue for each of them
	// have fewer.
	maxChunk   = 32
	shortValue = 12
	// knownNames bounds how many names a parser remembers, and knownName how long
	// one of them is, in bytes.
	knownNames = 256
	knownName  = 64
	// kept is how many elements a parser keeps for the next source at most, of each type.
	kept = 1024
)

// parsers are kept between sources, for what they have allocated.
var parsers = sync.Pool{New: func() any { return &jsonParser{names: map[string]string{}} }}

// ParseJSON returns the values of a stream and whether any object in them
// repeats a name.
func ParseJSON(data []byte) (values []*Node, repeats bool, err error) {
	p := parsers.Get().(*jsonParser)
	defer p.release()
	values, err = p.parse(data, nil)
	p.nodes, p.listed, p.held = slab[Node]{}, slab[*Node]{}, slab[Member]{}
	return values, p.repeats, err
}

// ReadJSON calls read with what ParseJSON would return. The values are valid during the
// call: a server that starts with a million resources allocates no tree for each.
func ReadJSON(data []byte, read func(values []*Node, repeats bool, err error)) {
	p := parsers.Get().(*jsonParser)
	defer p.release()
	var err error
	p.values, err = p.parse(data, p.values)
	read(p.values, p.repeats, err)
}

// parse appends the values of a stream.
func (p *jsonParser) parse(data []byte, values []*Node) ([]*Node, error) {
	p.data, p.pos, p.line, p.depth, p.repeats = data, 0, 1, 0, false
	p.chunk = min(maxChunk, len(p.data)/shortValue+1)
	for p.space(); p.pos < len(p.data); p.space() {
		value, err := p.value()
		if err != nil {
			return values, err
		}
		values = append(values, value)
	}
	return values, nil
}

// release keeps the parser for the next source, without anything of this one.
func (p *jsonParser) release() {
	p.data = nil
	p.nodes.reset()
	p.listed.reset()
	p.held.reset()
	p.items, p.members, p.values = emptied(p.items), emptied(p.members), emptied(p.values)
	if len(p.names) > knownNames {
		clear(p.names)
	}
	parsers.Put(p)
}

// emptied returns a slice without elements, in the same memory unless that is large.
func emptied[T any](s []T) []T {
	if cap(s) > kept {
		return nil
	}
	clear(s[:cap(s)])
	return s[:0]
}

// slab is memory from which elements are taken that live equally long.
type slab[T any] struct {
	memory []T
	used   int
}

// take returns n elements. Where those that are left do not suffice, size are allocated.
func (s *slab[T]) take(n, size int) []T {
	if n > len(s.memory)-s.used {
		s.memory, s.used = make([]T, max(n, size)), 0
	}
	s.used += n
	return s.memory[s.used-n : s.used : s.used]
}

// reset takes all elements back.
func (s *slab[T]) reset() {
	if len(s.memory) > kept {
		s.memory = nil
	}
	clear(s.memory[:min(s.used, len(s.memory))])
	s.used = 0
}

// popped returns a copy of what is on a stack.
func popped[T any](stack []T, into *slab[T], size int) []T {
	if len(stack) == 0 {
		return nil
	}
	out := into.take(len(stack), size)
	copy(out, stack)
	return out
}

// node returns a new node.
func (p *jsonParser) node(shape Shape, text string) *Node {
	n := &p.nodes.take(1, p.chunk)[0]
	n.Shape, n.Text, n.Line = shape, text, p.line
	return n
}

func (p *jsonParser) errorf(format string, args ...any) error {
	return &SyntaxError{Line: p.line, Message: fmt.Sprintf(format, args...)}
}

// space skips white space and counts lines.
func (p *jsonParser) space() {
	for p.pos < len(p.data) {
		switch p.data[p.pos] {
		case '\n':
			p.line++
		case ' ', '\t', '\r':
		default:
			return
		}
		p.pos++
	}
}

// peek returns the next byte, 0 at the end.
func (p *jsonParser) peek() byte {
	if p.pos < len(p.data) {
		return p.data[p.pos]
	}
	return 0
}

// here names what stands at the position, for a message.
func (p *jsonParser) here() string {
	if p.pos >= len(p.data) {
		return "the end of the text"
	}
	r, _ := utf8.DecodeRune(p.data[p.pos:])
	return fmt.Sprintf("%q", r)
}

func (p *jsonParser) value() (*Node, error) {
	switch c := p.peek(); {
	case c == '{' || c == '[':
		if p.depth++; p.depth > MaxDepth {
			return nil, p.errorf("nested more than %d levels deep", MaxDepth)
		}
		defer func() { p.depth-- }()
		if c == '{' {
			return p.object()
		}
		return p.list()
	case c == '"':
		n := p.node(Text, "")
		literal, escaped, err := p.literal()
		if err == nil {
			n.Text, err = p.unquote(literal, escaped)
		}
		return n, err
	case c == '-' || (c >= '0' && c <= '9'):
		return p.number()
	}
	for _, word := range [...]struct {
		shape Shape
		text  string
	}{{Null, "null"}, {Bool, "true"}, {Bool, "false"}} {
		if bytes.HasPrefix(p.data[p.pos:], []byte(word.text)) {
			p.pos += len(word.text)
			return p.node(word.shape, word.text), nil
		}
	}
	return nil, p.errorf("expected a value, found %s", p.here())
}

func (p *jsonParser) object() (*Node, error) {
	n := p.node(Object, "")
	start := len(p.members)
	p.pos++
	for p.space(); p.peek() != '}'; p.space() {
		if len(p.members) > start {
			if err := p.expect(',', "a comma or }"); err != nil {
				return nil, err
			}
		}
		if p.peek() != '"' {
			return nil, p.errorf("expected a name in double quotes, found %s", p.here())
		}
		line := p.line
		name, err := p.name()
		if err != nil {
			return nil, err
		}
		p.space()
		if err := p.expect(':', "a colon"); err != nil {
			return nil, err
		}
		value, err := p.value()
		if err != nil {
			return nil, err
		}
		p.members = append(p.members, Member{Name: name, Line: line, Value: value})
	}
	p.pos++
	n.Members = popped(p.members[start:], &p.held, p.chunk)
	p.members = p.members[:start]
	p.repeats = p.repeats || repeatsName(n.Members)
	return n, nil
}

func (p *jsonParser) list() (*Node, error) {
	n := p.node(List, "")
	start := len(p.items)
	p.pos++
	for p.space(); p.peek() != ']'; p.space() {
		if len(p.items) > start {
			if err := p.expect(',', "a comma or ]"); err != nil {
				return nil, err
			}
		}
		item, err := p.value()
		if err != nil {
			return nil, err
		}
		p.items = append(p.items, item)
	}
	p.pos++
	n.Items = popped(p.items[start:], &p.listed, p.chunk)
	p.items = p.items[:start]
	return n, nil
}

// expect consumes one byte and the space behind it.
func (p *jsonParser) expect(c byte, what string) error {
	if p.peek() != c {
		return p.errorf("expected %s, found %s", what, p.here())
	}
	p.pos++
	p.space()
	return nil
}

// literal consumes a string and returns it with its quotes, and whether it has
// escapes.
func (p *jsonParser) literal() (literal []byte, escaped bool, err error) {
	start := p.pos
	for p.pos++; ; p.pos++ {
		switch c := p.peek(); {
		case p.pos >= len(p.data):
			return nil, false, p.errorf("a string is not closed")
		case c == '\\':
			escaped = true
			p.pos++
		case c < 0x20:
			return nil, false, p.errorf("a string holds the control character %q; write it as an escape", c)
		case c == '"':
			p.pos++
			literal := p.data[start:p.pos]
			if !utf8.Valid(literal) {
				return nil, false, p.errorf("a string is not valid UTF-8")
			}
			return literal, escaped, nil
		}
	}
}

// unquote returns the text that a literal stands for.
func (p *jsonParser) unquote(literal []byte, escaped bool) (string, error) {
	if !escaped {
		return string(literal[1 : len(literal)-1]), nil
	}
	var s string
	if err := json.Unmarshal(literal, &s); err != nil {
		return "", p.errorf("a string has an escape that JSON does not know: %s", Clip(string(literal)))
	}
	return s, nil
}

// name reads the name of a member. Those of specs are few.
func (p *jsonParser) name() (string, error) {
	literal, escaped, err := p.literal()
	if err != nil {
		return "", err
	}
	known := !escaped && len(literal) <= knownName
	if known {
		if name, ok := p.names[string(literal[1:len(literal)-1])]; ok {
			return name, nil
		}
	}
	name, err := p.unquote(literal, escaped)
	if known && err == nil && len(p.names) <= knownNames {
		p.names[name] = name
	}
	return name, err
}

func (p *jsonParser) number() (*Node, error) {
	start := p.pos
	if p.peek() == '-' {
		p.pos++
	}
	whole := p.digits()
	leadingZero := whole > 1 && p.data[p.pos-whole] == '0'
	valid := whole > 0 && !leadingZero
	if p.peek() == '.' {
		p.pos++
		valid = p.digits() > 0 && valid
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.pos++
		if c := p.peek(); c == '+' || c == '-' {
			p.pos++
		}
		valid = p.digits() > 0 && valid
	}
	literal := string(p.data[start:p.pos])
	if !valid {
		return nil, p.errorf("%q is not a number", Clip(literal))
	}
	text, ok := normalNumber(literal)
	if !ok {
		return nil, p.errorf("the number %s is out of range", Clip(literal))
	}
	return p.node(Number, text), nil
}

// digits consumes digits and returns how many there were.
func (p *jsonParser) digits() int {
	start := p.pos
	for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
		p.pos++
	}
	return p.pos - start
}

// repeatsName reports whether two members have one name.
func repeatsName(members []Member) bool {
	const few = 12
	if len(members) <= few {
		for i := range members {
			for j := range i {
				if members[i].Name == members[j].Name {
					return true
				}
			}
		}
		return false
	}
	seen := make(map[string]bool, len(members))
	for _, m := range members {
		if seen[m.Name] {
			return true
		}
		seen[m.Name] = true
	}
	return false
}
