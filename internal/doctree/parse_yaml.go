package doctree

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxAliased bounds the values that the aliases of one source may expand to, so
// that a few lines of nested aliases cannot fill the memory.
const maxAliased = 100_000

// Parse reads a source into one tree per document. JSON is tried where the text
// looks like it, since it is not in every detail YAML; everything else is YAML.
// Documents without content are left out. The error is a *SyntaxError; the
// documents before it are returned too.
func Parse(data []byte, wantJSON bool) (documents []*Node, repeats bool, err error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	head := bytes.TrimLeft(data, " \t\r\n")
	if wantJSON || bytes.HasPrefix(head, []byte("{")) || bytes.HasPrefix(head, []byte("[")) {
		documents, repeats, err = ParseJSON(data)
		if err == nil {
			return documents, repeats, nil
		}
		if syntax := (*SyntaxError)(nil); wantJSON && errors.As(err, &syntax) {
			return documents, repeats, &SyntaxError{syntax.Line, "not valid JSON: " + syntax.Message}
		}
	}
	return parseYAML(data)
}

func parseYAML(data []byte) (documents []*Node, repeats bool, err error) {
	stream := yaml.NewDecoder(bytes.NewReader(data))
	c := &yamlConverter{}
	for {
		var root yaml.Node
		switch err := stream.Decode(&root); {
		case errors.Is(err, io.EOF):
			return documents, c.repeats, nil
		case err != nil:
			return documents, c.repeats, yamlSyntaxError(err)
		}
		if len(root.Content) == 0 {
			continue
		}
		document, err := c.convert(root.Content[0], 1)
		if err != nil {
			return documents, c.repeats, err
		}
		if document.Shape != Null {
			documents = append(documents, document)
		}
	}
}

var yamlErrorLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// yamlSyntaxError takes the line out of the parser's message.
func yamlSyntaxError(err error) error {
	message := err.Error()
	found := yamlErrorLine.FindStringSubmatch(message)
	if found == nil {
		return &SyntaxError{Message: "not valid YAML: " + message}
	}
	line, _ := strconv.Atoi(found[1]) // absent: 0, an unknown line
	return &SyntaxError{Line: line, Message: "not valid YAML: " + message[len(found[0]):]}
}

// yamlConverter turns the YAML library's nodes into ours, with scalars read by
// the core schema of YAML 1.2.
type yamlConverter struct {
	repeats bool
	aliased int // values made from aliases so far
	inAlias int // depth of aliases around the current value
	alias   int // line of the outermost of them
}

func (c *yamlConverter) convert(y *yaml.Node, depth int) (*Node, error) {
	if depth > MaxDepth {
		return nil, &SyntaxError{y.Line, fmt.Sprintf("nested more than %d levels deep", MaxDepth)}
	}
	if c.inAlias > 0 {
		if c.aliased++; c.aliased > maxAliased {
			return nil, &SyntaxError{c.alias, fmt.Sprintf("the aliases expand to more than %d values", maxAliased)}
		}
	}
	switch y.Kind {
	case yaml.AliasNode:
		if c.inAlias == 0 {
			c.alias = y.Line
		}
		c.inAlias++
		defer func() { c.inAlias-- }()
		return c.convert(y.Alias, depth+1)
	case yaml.ScalarNode:
		return yamlScalar(y)
	case yaml.SequenceNode:
		n := &Node{Shape: List, Line: y.Line, Items: make([]*Node, 0, len(y.Content))}
		for _, item := range y.Content {
			value, err := c.convert(item, depth+1)
			if err != nil {
				return nil, err
			}
			n.Items = append(n.Items, value)
		}
		return n, nil
	case yaml.MappingNode:
		return c.mapping(y, depth)
	default:
		return nil, &SyntaxError{y.Line, "a value that is neither text, list nor object"}
	}
}

func (c *yamlConverter) mapping(y *yaml.Node, depth int) (*Node, error) {
	n := &Node{Shape: Object, Line: y.Line, Members: make([]Member, 0, len(y.Content)/2)}
	var merged []*Node
	for i := 0; i+1 < len(y.Content); i += 2 {
		key := y.Content[i]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			return nil, &SyntaxError{y.Content[i].Line, "a list or an object cannot be the name of a field"}
		}
		value, err := c.convert(y.Content[i+1], depth+1)
		if err != nil {
			return nil, err
		}
		if key.Value == "<<" && key.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) == 0 {
			merged = append(merged, value)
			continue
		}
		n.Members = append(n.Members, Member{Name: key.Value, Line: y.Content[i].Line, Value: value})
	}
	c.repeats = c.repeats || repeatsName(n.Members)
	for _, value := range merged {
		if err := n.merge(value); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// merge adds the members of a merge key's value that n does not have itself.
func (n *Node) merge(value *Node) error {
	have := make(map[string]bool, len(n.Members))
	for _, m := range n.Members {
		have[m.Name] = true
	}
	sources := []*Node{value}
	if value.Shape == List {
		sources = value.Items
	}
	for _, source := range sources {
		if source.Shape != Object {
			return &SyntaxError{value.Line, "the merge key << takes an object or a list of objects"}
		}
		for _, m := range source.Members {
			if !have[m.Name] {
				have[m.Name] = true
				n.Members = append(n.Members, m)
			}
		}
	}
	return nil
}

func yamlScalar(y *yaml.Node) (*Node, error) {
	n := &Node{Shape: Text, Text: y.Value, Line: y.Line}
	quoted := y.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
	if y.Style&yaml.TaggedStyle != 0 {
		switch y.ShortTag() {
		case "!!str":
			return n, nil
		case "!!int", "!!float", "!!bool", "!!null":
			quoted = false
		default:
			return nil, &SyntaxError{y.Line, fmt.Sprintf("the tag %s is not supported; write the value as plain text", Clip(y.Tag))}
		}
	}
	if quoted {
		return n, nil
	}
	shape, text, err := plainScalar(y.Value)
	if err != nil {
		return nil, &SyntaxError{y.Line, err.Error()}
	}
	n.Shape, n.Text = shape, text
	return n, nil
}

var (
	yamlDecimal = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)
	yamlRadix   = regexp.MustCompile(`^(0o[0-7]+|0x[0-9a-fA-F]+)$`)
	yamlOctal   = regexp.MustCompile(`^[-+]?0[0-9]+$`)
	yamlNoValue = regexp.MustCompile(`^([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$`)
)

// plainScalar reads an unquoted scalar by the core schema of YAML 1.2: yes, no,
// on and off are text, 0o17 is octal. A number with a leading zero means one
// thing to YAML 1.1 and another to 1.2, so it is refused rather than guessed.
func plainScalar(text string) (Shape, string, error) {
	switch text {
	case "", "~", "null", "Null", "NULL":
		return Null, "", nil
	case "true", "True", "TRUE":
		return Bool, "true", nil
	case "false", "False", "FALSE":
		return Bool, "false", nil
	}
	if !strings.ContainsAny(text[:1], "0123456789+-.") {
		return Text, text, nil
	}
	var normal string
	var ok bool
	switch {
	case yamlOctal.MatchString(text):
		return 0, "", fmt.Errorf("%s is ambiguous: put it in quotes if it is text, write it without the leading zero if it is a number", Clip(text))
	case yamlNoValue.MatchString(text):
		return 0, "", fmt.Errorf("%s is no number that can be used here; put it in quotes if it is text", text)
	case yamlRadix.MatchString(text):
		normal, ok = radixNumber(text)
	case yamlDecimal.MatchString(text):
		normal, ok = normalNumber(text)
	default:
		return Text, text, nil
	}
	if !ok {
		return 0, "", fmt.Errorf("the number %s is out of range; put it in quotes if it is text", Clip(text))
	}
	return Number, normal, nil
}
