package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"meridian/internal/xds"
	"meridian/internal/xds/support"
)

// Bounds of the width of a page that explains a kind, in columns. A narrower
// terminal wraps its lines itself.
const (
	minPage = 60
	maxPage = 100
)

// fieldNode is a field with those inside it.
type fieldNode struct {
	fieldView
	// name is the field's name in its object.
	name   string
	inside []*fieldNode
}

// fieldTree puts fields, each listed before those inside it, under a root.
func fieldTree(fields []fieldView) *fieldNode {
	root := &fieldNode{}
	open := []*fieldNode{root}
	for _, f := range fields {
		for len(open) > 1 && !isInside(f.Path, open[len(open)-1].Path) {
			open = open[:len(open)-1]
		}
		parent := open[len(open)-1]
		n := &fieldNode{fieldView: f, name: f.Path}
		if parent != root {
			_, n.name, _ = strings.Cut(strings.TrimPrefix(f.Path, parent.Path), ".")
			n.name = strings.TrimPrefix(n.name, "*.") // of a map's values
		}
		parent.inside = append(parent.inside, n)
		open = append(open, n)
	}
	return root
}

// isInside reports whether a field stands in an object, a list or a map.
func isInside(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "[]"))
}

// shape is what distinguishes the fields inside one field from those inside
// another.
func (n *fieldNode) shape() string {
	var b strings.Builder
	for _, f := range n.inside {
		b.WriteString(f.signature())
	}
	return b.String()
}

func (n *fieldNode) signature() string {
	return fmt.Sprintf("%q%q%t%q%q%v{%s}", n.name, n.Type, n.Required, n.Enum, n.Doc, n.Support, n.shape())
}

// names lists the fields inside a field.
func (n *fieldNode) names() string {
	names := make([]string, len(n.inside))
	for i, f := range n.inside {
		names[i] = f.name
	}
	return strings.Join(names, ", ")
}

// fieldWriter writes fields as a page. Fields that are the same in several places
// are described in the first.
type fieldWriter struct {
	*strings.Builder
	width int
	// shown are the fields inside a field, by their shape, and where they are.
	shown map[string]string
}

func (w *fieldWriter) all(outer *fieldNode, indent string) {
	beside := map[string]bool{}
	for _, f := range outer.inside {
		beside[f.signature()] = true
	}
	for _, f := range outer.inside {
		w.WriteString(indent + f.name + "  " + f.Type)
		if f.Required {
			w.WriteString(", required")
		}
		w.WriteByte('\n')
		doc := f.Doc
		if len(f.Enum) > 0 {
			doc += " One of " + strings.Join(f.Enum, ", ") + "."
		}
		doc += " " + supportText(f.Support)
		known := w.known(f, beside)
		w.wrapped(strings.TrimSpace(doc+" "+known), indent+"    ")
		if known == "" {
			w.all(f, indent+"  ")
		}
	}
}

// supportText says what each kind of proxy does with a field.
func supportText(of map[xds.Dialect]support.Answer) string {
	var sentences []string
	for _, dialect := range slices.Sorted(maps.Keys(of)) {
		text := "On " + string(dialect) + " proxies: " + string(of[dialect].Status)
		if note := of[dialect].Note; note != "" {
			text += " (" + note + ")"
		}
		sentences = append(sentences, text+".")
	}
	return strings.Join(sentences, " ")
}

// liftSupport takes what proxies do with each of several fields out of them where it
// is one thing for all, and returns it.
func liftSupport(fields []fieldView) string {
	var common string
	several := 0
	for _, f := range fields {
		text := supportText(f.Support)
		if text == "" {
			continue
		}
		if several++; several > 1 && text != common {
			return ""
		}
		common = text
	}
	if several < 2 {
		return ""
	}
	for i := range fields {
		fields[i].Support = nil
	}
	return common
}

// known says where the fields inside a field have been described, if they have.
func (w *fieldWriter) known(f *fieldNode, beside map[string]bool) string {
	if len(f.inside) == 0 {
		return ""
	}
	repeated := true
	for _, inner := range f.inside {
		repeated = repeated && beside[inner.signature()]
	}
	if repeated {
		return "Its fields are those beside it: " + f.names() + "."
	}
	shape := f.shape()
	if at, ok := w.shown[shape]; ok {
		return "Its fields are those of " + at + ": " + f.names() + "."
	}
	w.shown[shape] = f.Path
	return ""
}

// wrapped writes text in lines that fit.
func (w *fieldWriter) wrapped(text, indent string) {
	column := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
			w.WriteString(indent)
			column = len(indent)
		case column+1+n > w.width:
			w.WriteString("\n" + indent)
			column = len(indent)
		default:
			w.WriteByte(' ')
			column++
		}
		w.WriteString(word)
		column += n
	}
	if column > 0 {
		w.WriteByte('\n')
	}
}
