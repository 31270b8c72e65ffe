package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/support"
)

func newExplainCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain [KIND [FIELD] | §RULE]",
		Short: "Describe a kind, its fields, or a rule such as §3.3",
		Example: `  meridian explain
  meridian explain traffic-route
  meridian explain Retry conf.http
  meridian explain §3.3
  meridian explain §`,
		Args:              between(0, "KIND", "FIELD"),
		ValidArgsFunction: completeKinds(nil),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML, print.FormatName)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return a.explainKinds(output.Value)
		}
		if isRule(args[0]) {
			if len(args) > 1 {
				return exit.Usagef("unexpected argument %q after the rule %s", args[1], args[0])
			}
			return a.explainRule(output.Value, args[0])
		}
		if len(args) == 1 { // also KIND.FIELD
			if kind, field, ok := strings.Cut(args[0], "."); ok {
				args = []string{kind, field}
			}
		}
		kind, err := lookupKind(args[0])
		if err != nil {
			return err
		}
		view := viewKind(kind)
		if len(args) == 2 {
			if view.Fields, err = fieldsAt(kind, view.Fields, args[1]); err != nil {
				return err
			}
		}
		return a.explainKind(output.Value, kind, view, len(args) == 2)
	}
	return cmd
}

// kindView is a kind as JSON.
type kindView struct {
	Kind      string      `json:"kind"`
	Plural    string      `json:"plural"`
	Spellings []string    `json:"spellings,omitempty"`
	Summary   string      `json:"summary"`
	Scope     string      `json:"scope"`
	Owner     string      `json:"owner"`
	Synced    bool        `json:"synced"`
	Class     string      `json:"class"`
	Direction []string    `json:"direction"`
	Fields    []fieldView `json:"fields,omitempty"`
}

type fieldView struct {
	Path     string   `json:"path"`
	Type     string   `json:"type"`
	Required bool     `json:"required"`
	Enum     []string `json:"enum,omitempty"`
	Doc      string   `json:"doc"`
	// Support is what proxies do with a field that holds no others, by their dialect.
	Support map[xds.Dialect]support.Answer `json:"support,omitempty"`
}

func viewKind(d *resource.Descriptor) kindView {
	view := kindView{
		Kind: string(d.Kind), Plural: d.Plural, Summary: d.Summary, Synced: d.Synced,
		Scope: "mesh", Owner: "global", Class: className(d.Class), Direction: directions(d.Direction),
	}
	for _, s := range d.Spellings {
		view.Spellings = append(view.Spellings, string(s))
	}
	if d.Scope == resource.GlobalScoped {
		view.Scope = "global"
	}
	switch d.Owner {
	case resource.OwnedByZone:
		view.Owner = "zone"
	case resource.OwnedByEach:
		view.Owner = "each"
	}
	for _, f := range resource.Fields(d.Kind) {
		view.Fields = append(view.Fields, fieldView{Path: f.Path, Type: f.Type, Required: f.Required, Enum: f.Enum, Doc: f.Doc})
	}
	for i := range view.Fields {
		f := &view.Fields[i]
		if i+1 < len(view.Fields) && isInside(view.Fields[i+1].Path, f.Path) {
			continue
		}
		for _, dialect := range support.Dialects() {
			if answer, ok := support.Field(dialect, d.Kind, f.Path); ok && answer.Status != support.Decided {
				if f.Support == nil {
					f.Support = map[xds.Dialect]support.Answer{}
				}
				f.Support[dialect] = answer
			}
		}
	}
	return view
}

func className(c resource.Class) string {
	switch c {
	case resource.SourceDestination:
		return "source/destination policy"
	case resource.TargetRef:
		return "targetRef policy"
	case resource.Inherited:
		return "inherited policy"
	case resource.AccessControl:
		return "access control"
	default:
		return "infrastructure"
	}
}

func directions(d resource.Direction) []string {
	names := []string{}
	for _, each := range []struct {
		bit  resource.Direction
		name string
	}{
		{resource.OnInbound, "inbound"},
		{resource.OnOutbound, "outbound"},
		{resource.OnDataplane, "dataplane"},
		{resource.OnRoute, "route"},
	} {
		if d&each.bit != 0 {
			names = append(names, each.name)
		}
	}
	return names
}

// kindNature is a kind's class and direction in words.
func kindNature(d *resource.Descriptor) string {
	text := className(d.Class)
	if on := directions(d.Direction); len(on) > 0 {
		text += ", " + strings.Join(on, " and ")
	}
	switch d.Class {
	case resource.SourceDestination, resource.TargetRef:
		text += ", direct"
	case resource.Inherited:
		text += ", inherited"
	}
	return text
}

// explainKinds lists every kind.
func (a *app) explainKinds(f print.Format) error {
	kinds := slices.Clone(resource.Kinds())
	slices.SortStableFunc(kinds, func(x, y *resource.Descriptor) int { return int(x.Class) - int(y.Class) })
	switch {
	case f.Structured():
		views := make([]kindView, len(kinds))
		for i, d := range kinds {
			views[i] = viewKind(d)
			views[i].Fields = nil
		}
		return a.WriteValue(f, map[string]any{"items": views})
	case f == print.FormatName:
		return a.Println(strings.Join(kindNames(kinds), "\n"))
	}
	t := &print.Table{Header: []string{"KIND", "PLURAL", "CLASS", "ON", "WRITTEN ON", "FOR"}}
	for _, d := range kinds {
		t.Add(string(d.Kind), d.Plural, className(d.Class), strings.Join(directions(d.Direction), ","), writtenWhere(d), d.Summary)
	}
	return a.Table(t)
}

func writtenWhere(d *resource.Descriptor) string {
	switch d.Owner {
	case resource.OwnedByZone:
		return "zone"
	case resource.OwnedByEach:
		return "global, zone"
	default:
		return "global"
	}
}

// explainKind prints a kind's page, or only the fields asked for.
func (a *app) explainKind(f print.Format, d *resource.Descriptor, view kindView, fieldsOnly bool) error {
	switch {
	case f.Structured():
		return a.WriteValue(f, view)
	case f == print.FormatName:
		var b strings.Builder
		for _, field := range view.Fields {
			b.WriteString(field.Path + "\n")
		}
		return a.Output([]byte(b.String()))
	}
	var b strings.Builder
	width := maxPage
	if columns := a.Columns(); columns >= minPage {
		width = min(columns, maxPage)
	}
	w := &fieldWriter{Builder: &b, width: width, shown: map[string]string{}}
	if !fieldsOnly {
		for i := range view.Fields {
			view.Fields[i].Support = nil // the page of a field has it
		}
		fmt.Fprintf(&b, "%s (%s)\n\n", d.Kind, d.Plural)
		w.wrapped(d.Summary, "  ")
		b.WriteByte('\n')
		fmt.Fprintf(&b, "Class:       %s\n", kindNature(d))
		b.WriteString("Matching:\n")
		w.wrapped(matchingRules(d), "  ")
		fmt.Fprintf(&b, "Scope:       %s\n", map[bool]string{true: "a mesh", false: "no mesh"}[d.Scope == resource.MeshScoped])
		written := writtenWhere(d)
		if d.Synced {
			written += ", and received by every zone"
		}
		fmt.Fprintf(&b, "Written on:  %s\n", written)
		if len(view.Spellings) > 0 {
			fmt.Fprintf(&b, "Also:        %s\n", strings.Join(view.Spellings, ", "))
		}
		b.WriteByte('\n')
	}
	if common := liftSupport(view.Fields); common != "" {
		w.wrapped(common, "")
		w.WriteByte('\n')
	}
	w.WriteString("FIELDS\n")
	w.all(fieldTree(view.Fields), "  ")
	return a.Output([]byte(b.String()))
}

// matchingRules says in a sentence how policies of the kind are chosen.
func matchingRules(d *resource.Descriptor) string {
	switch {
	case d.Class == resource.SourceDestination && d.Direction == resource.OnDataplane:
		return "the most specific `selectors` that match the dataplane win (§3.3)"
	case d.Class == resource.SourceDestination && d.Direction == resource.OnInbound:
		return "the most specific `destinations` that match the inbound win; `sources` say for which callers (§3.3)"
	case d.Class == resource.SourceDestination:
		return "`sources` match the dataplane and `destinations` the outbound; the most specific pair wins (§3.3)"
	case d.Class == resource.TargetRef:
		return "policies whose targetRef selects the dataplane merge, field by field (§4.3 to §4.5)"
	case d.Class == resource.Inherited:
		return "flows from gateway to listener to route to rule, by defaults and overrides (§5.4)"
	default:
		return "none; it is not a policy"
	}
}

// fieldsAt returns the field at a path and everything inside it. The marks of
// lists and maps may be left out: sources.match finds sources[].match.
func fieldsAt(d *resource.Descriptor, fields []fieldView, path string) ([]fieldView, error) {
	want := plainPath(path)
	var found []fieldView
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = plainPath(f.Path)
		if names[i] == want || strings.HasPrefix(names[i], want+".") {
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		return nil, exit.Usagef("%s has no field %q%s", d.Kind, path, exit.DidYouMean(want, names))
	}
	return found, nil
}

func plainPath(path string) string {
	path = strings.TrimPrefix(strings.TrimPrefix(path, "spec."), "/")
	return strings.ReplaceAll(strings.NewReplacer("[]", "", ".*", "").Replace(path), "/", ".")
}
