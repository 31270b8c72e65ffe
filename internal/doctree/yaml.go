package doctree

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// WriteYAML writes objects as the documents of a stream, in block style. It
// keeps to the part of the language that every parser of YAML 1.1 and 1.2 reads
// alike.
func WriteYAML(w io.Writer, documents ...*Node) error {
	if len(documents) == 0 {
		return nil // the library cannot write an empty stream
	}
	stream := yaml.NewEncoder(w)
	stream.SetIndent(2)
	stream.CompactSeqIndent()
	for _, document := range documents {
		if err := stream.Encode(document.yaml()); err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
	}
	if err := stream.Close(); err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	return nil
}

// yaml is the library's node for n.
func (n *Node) yaml() *yaml.Node {
	switch n.Shape {
	case Object:
		y := &yaml.Node{Kind: yaml.MappingNode}
		for i := range n.Members {
			y.Content = append(y.Content, yamlText(n.Members[i].Name, false), n.Members[i].Value.yaml())
		}
		return y
	case List:
		y := &yaml.Node{Kind: yaml.SequenceNode}
		for _, item := range n.Items {
			y.Content = append(y.Content, item.yaml())
		}
		return y
	case Text:
		return yamlText(n.Text, blockText(n.Text))
	default:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: string(n.Canonical(nil))}
	}
}

// yamlText is a string: bare where no parser could take it for anything else, as
// a block where that reads best, in double quotes otherwise.
func yamlText(s string, block bool) *yaml.Node {
	y := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	switch {
	case block:
		y.Style = yaml.LiteralStyle
	case !bareText(s):
		y.Style = yaml.DoubleQuotedStyle
	}
	return y
}

// bareText is deliberately narrow; quotes are always right.
func bareText(s string) bool {
	if s == "" || len(s) > 200 || strings.HasSuffix(s, ":") {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		letter := (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
		switch {
		case letter, c == '/':
		case i > 0 && strings.IndexByte("0123456789-_.:", c) >= 0:
		case i == 0 && c >= '0' && c <= '9' && bareDigits(s):
		default:
			return false
		}
	}
	switch strings.ToLower(s) {
	case "null", "true", "false", "yes", "no", "on", "off", "y", "n":
		return false
	}
	return true
}

// bareDigits reports whether s, which begins with a digit, is nevertheless not
// taken for a number by any parser: a duration like 1h30m or an IPv4 address.
func bareDigits(s string) bool {
	if ip, err := netip.ParseAddr(s); err == nil && ip.Is4() {
		return true
	}
	_, err := time.ParseDuration(s)
	return err == nil && s != "0"
}

// blockText reports whether s is several lines of plain text, which read best
// as a block.
func blockText(s string) bool {
	if !strings.Contains(s, "\n") || strings.HasSuffix(s, "\n\n") {
		return false
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(s, "\n"), "\n") {
		if line == "" {
			continue
		}
		if last := line[len(line)-1]; last == ' ' || last == '\t' || line[0] == '\t' {
			return false
		}
		for _, r := range line {
			if r != '\t' && (r < 0x20 || r > 0x7E) {
				return false
			}
		}
	}
	return s[0] != ' ' && s[0] != '\n'
}
