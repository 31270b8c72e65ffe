package resource

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Format is a way to write resources (§1.2). Decode reads them all.
type Format int

const (
	// FormatYAML is the universal form, a YAML document per resource.
	FormatYAML Format = iota
	// FormatJSON is the universal form as one indented JSON object, for exactly
	// one resource.
	FormatJSON
	// FormatJSONList is {"items": […]} with universal forms.
	FormatJSONList
	// FormatKubernetesYAML is the Kubernetes form, a YAML document per resource.
	FormatKubernetesYAML
)

// APIVersion is the apiVersion of the Kubernetes form.
const APIVersion = "kuma.io/v1alpha1"

// Encode writes resources so that Decode gives back the same identity, envelope
// and canonical specs. Nothing is written unless everything can be.
func Encode(w io.Writer, format Format, resources ...*Resource) error {
	var b bytes.Buffer
	switch format {
	case FormatYAML, FormatKubernetesYAML:
		for i, r := range resources {
			if i > 0 {
				b.WriteString("---\n")
			}
			document, err := documentOf(r, format)
			if err != nil {
				return err
			}
			writeYAML(&b, document, 0)
		}
	case FormatJSON:
		if len(resources) != 1 {
			return fmt.Errorf("encode: a JSON object holds one resource, not %d", len(resources))
		}
		document, err := documentOf(resources[0], format)
		if err != nil {
			return err
		}
		if err := json.Indent(&b, document.ordered(nil), "", "  "); err != nil {
			return fmt.Errorf("encode %s: %w", resources[0].Key(), err)
		}
		b.WriteByte('\n')
	case FormatJSONList:
		list := &node{shape: shapeList}
		for _, r := range resources {
			document, err := documentOf(r, format)
			if err != nil {
				return err
			}
			list.items = append(list.items, document)
		}
		whole := object(member{name: "items", value: list})
		if err := json.Indent(&b, whole.ordered(nil), "", "  "); err != nil {
			return fmt.Errorf("encode list: %w", err)
		}
		b.WriteByte('\n')
	default:
		return fmt.Errorf("encode: unknown format %d", format)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return nil
}

// documentOf builds the tree of a resource's document.
func documentOf(r *Resource, format Format) (*node, error) {
	values, _, err := parseJSON(r.canonical)
	if err != nil || len(values) != 1 || values[0].shape != shapeObject {
		return nil, fmt.Errorf("encode %s: its spec is not a JSON object", r.Key())
	}
	if format == FormatKubernetesYAML {
		return kubernetesDocument(r.meta, values[0]), nil
	}
	return universalDocument(r.meta, values[0]), nil
}

func universalDocument(meta Meta, spec *node) *node {
	n := object(textMember("type", string(meta.Kind)))
	if meta.Mesh != "" {
		n.members = append(n.members, textMember("mesh", string(meta.Mesh)))
	}
	n.members = append(n.members, textMember("name", meta.Name))
	n.members = append(n.members, stamps(meta)...)
	if len(meta.Labels) > 0 {
		n.members = append(n.members, member{name: "labels", value: labelObject(meta.Labels)})
	}
	for _, m := range spec.members {
		if slices.Contains(universalFields, m.name) {
			// The spec has a field that would be taken for the envelope's.
			n.members = append(n.members, member{name: "spec", value: spec})
			return n
		}
	}
	n.members = append(n.members, spec.members...)
	return n
}

func kubernetesDocument(meta Meta, spec *node) *node {
	labels := maps.Clone(meta.Labels)
	metadata := object(textMember("name", meta.Name))
	if namespace := labels[LabelNamespace]; namespace != "" {
		metadata.members = append(metadata.members, textMember("namespace", namespace))
		delete(labels, LabelNamespace)
	}
	if len(labels) > 0 {
		metadata.members = append(metadata.members, member{name: "labels", value: labelObject(labels)})
	}
	n := object(textMember("apiVersion", APIVersion), textMember("kind", string(meta.Kind)))
	if meta.Mesh != "" {
		n.members = append(n.members, textMember("mesh", string(meta.Mesh)))
	}
	n.members = append(n.members, member{name: "metadata", value: metadata})
	n.members = append(n.members, stamps(meta)...)
	n.members = append(n.members, member{name: "spec", value: spec})
	return n
}

// stamps are the members that a server has assigned.
func stamps(meta Meta) []member {
	var members []member
	if !meta.CreationTime.IsZero() {
		members = append(members, textMember("creationTime", meta.CreationTime.UTC().Format(time.RFC3339Nano)))
	}
	if !meta.ModificationTime.IsZero() {
		members = append(members, textMember("modificationTime", meta.ModificationTime.UTC().Format(time.RFC3339Nano)))
	}
	if meta.Version != 0 {
		members = append(members, numberMember("version", meta.Version))
	}
	if meta.Revision != 0 {
		members = append(members, numberMember("revision", uint64(meta.Revision)))
	}
	return members
}

func labelObject(labels map[string]string) *node {
	n := object()
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		n.members = append(n.members, textMember(name, labels[name]))
	}
	return n
}

func object(members ...member) *node { return &node{shape: shapeObject, members: members} }

func textMember(name, text string) member {
	return member{name: name, value: &node{shape: shapeText, text: text}}
}

func numberMember(name string, value uint64) member {
	return member{name: name, value: &node{shape: shapeNumber, text: strconv.FormatUint(value, 10)}}
}

// ordered appends n as JSON with members in their order, not sorted.
func (n *node) ordered(b []byte) []byte {
	switch n.shape {
	case shapeObject:
		b = append(b, '{')
		for i, m := range n.members {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, m.name)
			b = append(b, ':')
			b = m.value.ordered(b)
		}
		return append(b, '}')
	case shapeList:
		b = append(b, '[')
		for i, item := range n.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = item.ordered(b)
		}
		return append(b, ']')
	default:
		return n.canonical(b)
	}
}

// writeYAML writes an object as block-style YAML. It keeps to the part of the
// language that every parser of YAML 1.1 and 1.2 reads alike.
func writeYAML(b *bytes.Buffer, n *node, indent int) {
	if len(n.members) == 0 {
		b.WriteString("{}\n")
		return
	}
	for i, m := range n.members {
		if i > 0 || indent == 0 {
			pad(b, indent)
		}
		writeKey(b, m.name, indent)
		writeValue(b, m.value, indent)
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
func writeValue(b *bytes.Buffer, n *node, indent int) {
	switch {
	case n.shape == shapeObject && len(n.members) > 0:
		b.WriteByte('\n')
		pad(b, indent+2)
		writeYAML(b, n, indent+2)
	case n.shape == shapeList && len(n.items) > 0:
		b.WriteByte('\n')
		for _, item := range n.items {
			pad(b, indent)
			writeItem(b, item, indent)
		}
	case n.shape == shapeObject:
		b.WriteString(" {}\n")
	case n.shape == shapeList:
		b.WriteString(" []\n")
	case n.shape == shapeText && blockText(n.text):
		writeBlock(b, n.text, indent+2)
	case n.shape == shapeText:
		b.WriteString(" " + yamlText(n.text) + "\n")
	default:
		b.WriteByte(' ')
		b.Write(n.canonical(nil))
		b.WriteByte('\n')
	}
}

func writeItem(b *bytes.Buffer, item *node, indent int) {
	b.WriteByte('-')
	if item.shape == shapeObject && len(item.members) > 0 {
		b.WriteByte(' ')
		writeYAML(b, item, indent+2)
		return
	}
	if item.shape == shapeList && len(item.items) > 0 { // a list in a list
		b.WriteByte('\n')
		for _, inner := range item.items {
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
