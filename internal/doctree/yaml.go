package doctree

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// WriteYAML writes an object as block-style YAML. It keeps to the part of the
// language that every parser of YAML 1.1 and 1.2 reads alike.
func WriteYAML(b *bytes.Buffer, n *Node, indent int) {
	if len(n.Members) == 0 {
		b.WriteString("{}\n")
		return
	}
	for i, m := range n.Members {
		if i > 0 || indent == 0 {
			pad(b, indent)
		}
		writeKey(b, m.Name, indent)
		writeValue(b, m.Value, indent)
	}
}

// maxSimpleKey is below the length at which YAML wants a key to be marked.
const maxSimpleKey = 500

func writeKey(b *bytes.Buffer, name string, indent int) {
	key := yamlText(name)
	if len(key) > maxSimpleKey {
		b.WriteString("? " + key + "\n")
		pad(b, indent)
		b.WriteByte(':')
		return
	}
	b.WriteString(key + ":")
}

// writeValue writes what follows a key's colon or a list's dash, with the line
// break.
func writeValue(b *bytes.Buffer, n *Node, indent int) {
	switch {
	case n.Shape == Object && len(n.Members) > 0:
		b.WriteByte('\n')
		pad(b, indent+2)
		WriteYAML(b, n, indent+2)
	case n.Shape == List && len(n.Items) > 0:
		b.WriteByte('\n')
		for _, item := range n.Items {
			pad(b, indent)
			writeItem(b, item, indent)
		}
	case n.Shape == Object:
		b.WriteString(" {}\n")
	case n.Shape == List:
		b.WriteString(" []\n")
	case n.Shape == Text && blockText(n.Text):
		writeBlock(b, n.Text, indent+2)
	case n.Shape == Text:
		b.WriteString(" " + yamlText(n.Text) + "\n")
	default:
		b.WriteByte(' ')
		b.Write(n.Canonical(nil))
		b.WriteByte('\n')
	}
}

func writeItem(b *bytes.Buffer, item *Node, indent int) {
	b.WriteByte('-')
	if item.Shape == Object && len(item.Members) > 0 {
		b.WriteByte(' ')
		WriteYAML(b, item, indent+2)
		return
	}
	if item.Shape == List && len(item.Items) > 0 { // a list in a list
		b.WriteByte('\n')
		for _, inner := range item.Items {
			pad(b, indent+2)
			writeItem(b, inner, indent+2)
		}
		return
	}
	writeValue(b, item, indent)
}

func pad(b *bytes.Buffer, indent int) {
	for range indent {
		b.WriteByte(' ')
	}
}

// yamlText writes a string on one line: bare where no parser could take it for
// anything else, in double quotes otherwise.
func yamlText(s string) string {
	if bareText(s) {
		return s
	}
	return string(yamlQuote(s))
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

// yamlQuote writes a double-quoted YAML string. JSON's escapes are YAML's too;
// what is beyond them is what YAML does not consider printable.
func yamlQuote(s string) []byte {
	b := make([]byte, 0, len(s)+2)
	rest := appendString(nil, s)
	for _, r := range string(rest) {
		if r == 0x7F || (r >= 0x80 && r < 0xA0) || r == 0x2028 || r == 0x2029 || r == 0xFEFF || r == 0xFFFE || r == 0xFFFF {
			b = fmt.Appendf(b, `\u%04x`, r)
			continue
		}
		b = append(b, string(r)...)
	}
	return b
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

func writeBlock(b *bytes.Buffer, s string, indent int) {
	b.WriteString(" |")
	if !strings.HasSuffix(s, "\n") {
		b.WriteByte('-')
	}
	b.WriteByte('\n')
	for line := range strings.SplitSeq(strings.TrimSuffix(s, "\n"), "\n") {
		if line != "" {
			pad(b, indent)
			b.WriteString(line)
		}
		b.WriteByte('\n')
	}
}
