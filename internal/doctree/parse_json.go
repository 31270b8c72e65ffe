package doctree

import (
	"encoding/json"
	"fmt"
	"strings"
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
// a number, and because the store rebuilds every resource through it.
type jsonParser struct {
	data  []byte
	pos   int
	line  int
	depth int
	// repeats is set when some object has a name twice.
	repeats bool
}

// ParseJSON returns the values of a stream and whether any object in them
// repeats a name.
func ParseJSON(data []byte) (values []*Node, repeats bool, err error) {
	p := &jsonParser{data: data, line: 1}
	for p.space(); p.pos < len(p.data); p.space() {
		value, err := p.value()
		if err != nil {
			return values, p.repeats, err
		}
		values = append(values, value)
	}
	return values, p.repeats, nil
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
		n := &Node{Shape: Text, Line: p.line}
		var err error
		n.Text, err = p.text()
		return n, err
	case c == '-' || (c >= '0' && c <= '9'):
		return p.number()
	}
	for _, word := range [...]Node{{Shape: Null, Text: "null"}, {Shape: Bool, Text: "true"}, {Shape: Bool, Text: "false"}} {
		if strings.HasPrefix(string(p.data[p.pos:min(len(p.data), p.pos+5)]), word.Text) {
			p.pos += len(word.Text)
			return &Node{Shape: word.Shape, Text: word.Text, Line: p.line}, nil
		}
	}
	return nil, p.errorf("expected a value, found %s", p.here())
}

func (p *jsonParser) object() (*Node, error) {
	n := &Node{Shape: Object, Line: p.line}
	p.pos++
	for p.space(); p.peek() != '}'; p.space() {
		if len(n.Members) > 0 {
			if err := p.expect(',', "a comma or }"); err != nil {
				return nil, err
			}
		}
		if p.peek() != '"' {
			return nil, p.errorf("expected a name in double quotes, found %s", p.here())
		}
		line := p.line
		name, err := p.text()
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
		n.Members = append(n.Members, Member{Name: name, Line: line, Value: value})
	}
	p.pos++
	p.repeats = p.repeats || repeatsName(n.Members)
	return n, nil
}

func (p *jsonParser) list() (*Node, error) {
	n := &Node{Shape: List, Line: p.line}
	p.pos++
	for p.space(); p.peek() != ']'; p.space() {
		if len(n.Items) > 0 {
			if err := p.expect(',', "a comma or ]"); err != nil {
				return nil, err
			}
		}
		item, err := p.value()
		if err != nil {
			return nil, err
		}
		n.Items = append(n.Items, item)
	}
	p.pos++
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

// text reads a string.
func (p *jsonParser) text() (string, error) {
	start, escaped := p.pos, false
	for p.pos++; ; p.pos++ {
		switch c := p.peek(); {
		case p.pos >= len(p.data):
			return "", p.errorf("a string is not closed")
		case c == '\\':
			escaped = true
			p.pos++
		case c < 0x20:
			return "", p.errorf("a string holds the control character %q; write it as an escape", c)
		case c == '"':
			p.pos++
			literal := p.data[start:p.pos]
			if !utf8.Valid(literal) {
				return "", p.errorf("a string is not valid UTF-8")
			}
			if !escaped {
				return string(literal[1 : len(literal)-1]), nil
			}
			var s string
			if err := json.Unmarshal(literal, &s); err != nil {
				return "", p.errorf("a string has an escape that JSON does not know: %s", Clip(string(literal)))
			}
			return s, nil
		}
	}
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
	return &Node{Shape: Number, Text: text, Line: p.line}, nil
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
