package plan

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/texttable"
)

// maxLines bounds what a page shows of each part of a plan.
const maxLines = 50

// Render prints a plan as people read it: access that would be lost and gained, then
// values, rules of routes and rights, and then what would take effect nowhere and what is
// not known.
func (p *Plan) Render(w io.Writer) error {
	var b strings.Builder
	if p.Nothing() {
		b.WriteString("Nothing would change.\n")
	}
	p.renderAccess(&b)
	p.renderFields(&b)
	p.renderRoutes(&b)
	p.renderRights(&b)
	if changes := p.resources(); len(changes) > 0 {
		section(&b, "Resources", changes, 0)
	}
	for _, mesh := range p.Emptied {
		fmt.Fprintf(&b, "Warning: mesh %s would be left without policies\n", mesh)
	}
	p.renderTests(&b)
	p.renderFindings(&b)
	for _, warning := range p.Warnings {
		fmt.Fprintf(&b, "Warning: %s\n", warning)
	}
	if p.Hidden {
		b.WriteString("Not certain: what the change does to resources that you may not read is not in this plan\n")
	}
	for _, absent := range p.Incomplete {
		fmt.Fprintf(&b, "Not certain: %s\n", absent)
	}
	_, err := io.WriteString(w, texttable.Escape(b.String()))
	return err
}

// renderTests prints the tests for which the change would be refused.
func (p *Plan) renderTests(b *strings.Builder) {
	for i := range p.BrokenTests {
		t := &p.BrokenTests[i]
		if t.GaveUp != "" {
			fmt.Fprintf(b, "Refused: mesh %s: %s\n", t.Mesh, t.GaveUp)
			continue
		}
		fmt.Fprintf(b, "Refused: it breaks %d of the %d tests that mesh %s carries\n", t.Count, t.Of, t.Mesh)
		for _, c := range t.Cases {
			fmt.Fprintf(b, "  %s: %s\n", strings.ReplaceAll(c.Name, "\n", " "), strings.ReplaceAll(c.Message, "\n", " "))
		}
	}
}

// section prints lines under a title; more counts those that are not among them.
func section(b *strings.Builder, title string, lines []string, more int) {
	if len(lines) == 0 && more == 0 {
		return
	}
	fmt.Fprintf(b, "%s\n", title)
	for i, line := range lines {
		if i == maxLines {
			more += len(lines) - maxLines
			break
		}
		fmt.Fprintf(b, "  %s\n", line)
	}
	if more > 0 {
		fmt.Fprintf(b, "  and %d more\n", more)
	}
	b.WriteByte('\n')
}

func (p *Plan) resources() []string {
	var lines []string
	for _, c := range p.Changes {
		if c.Outcome != Unchanged {
			lines = append(lines, fmt.Sprintf("%s/%s %s", c.Kind, c.Name, c.Outcome))
		}
	}
	return lines
}

// Access is what a plan does to connections, a line for each group; zones are put
// together.
func (p *Plan) Access() []string { return lines(p.Connections) }

func lines(groups []Connections) []string {
	type line struct {
		Connections
		zones []resource.ZoneName
	}
	var all []*line
	at := map[string]*line{}
	for _, c := range groups {
		id := strings.Join([]string{
			string(c.Mesh), strings.Join(c.From, "\x01"), strings.Join(c.To, "\x01"), word(c.Before), word(c.After), strings.Join(c.By, "\x01"),
		}, "\x00")
		if at[id] == nil {
			at[id] = &line{Connections: c}
			at[id].Count = 0
			all = append(all, at[id])
		}
		at[id].Count += c.Count
		if !slices.Contains(at[id].zones, c.Zone) {
			at[id].zones = append(at[id].zones, c.Zone)
		}
	}
	out := make([]string, len(all))
	for i, l := range all {
		out[i] = fmt.Sprintf("%s → %s: %s → %s%s, %s in %s", list(l.From), list(l.To), word(l.Before), word(l.After), l.reason(), plural(l.Count, "connection"), zones(l.zones))
		if l.Mesh != "default" {
			out[i] += " of mesh " + string(l.Mesh)
		}
	}
	return out
}

// reason says on whose word a connection is allowed or denied.
func (c *Connections) reason() string {
	switch {
	case c.After == nil: // there is no such connection any more
	case len(c.By) > 0:
		return " by " + list(c.By)
	case !*c.After:
		return ": no permission allows it"
	}
	return ""
}

func zones(all []resource.ZoneName) string {
	if len(all) == 1 {
		return "zone " + string(all[0])
	}
	return plural(len(all), "zone")
}

// list joins names for people.
func list(names []string) string {
	const most = 4
	switch {
	case len(names) == 0:
		return "none"
	case len(names) == 1:
		return names[0]
	case len(names) <= most:
		return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
	}
	more, last := len(names)-most+1, names[len(names)-1]
	var left int
	if _, err := fmt.Sscanf(last, "%d more", &left); err == nil { // firstOf
		more += left - 1
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most-1], ", "), more)
}

func (p *Plan) renderAccess(b *strings.Builder) {
	section(b, "Access", p.Access(), p.Left.Connections)
	if p.Left.Unexamined > 0 {
		fmt.Fprintf(b, "%s were not looked at: there are too many different ones\n\n", plural(p.Left.Unexamined, "connection"))
	}
}

func (p *Plan) renderFields(b *strings.Builder) {
	type line struct {
		Fields
		zones []resource.ZoneName
	}
	var all []*line
	at := map[string]*line{}
	for _, f := range p.Fields {
		id := strings.Join([]string{
			string(f.Mesh), string(f.Kind), f.Field, text(f.Before), text(f.After), f.By, f.Side,
			strings.Join(f.Services, "\x01"), strings.Join(f.From, "\x01"),
		}, "\x00")
		if at[id] == nil {
			at[id] = &line{Fields: f}
			at[id].Dataplanes = 0
			all = append(all, at[id])
		}
		at[id].Dataplanes += f.Dataplanes
		if !slices.Contains(at[id].zones, f.Zone) {
			at[id].zones = append(at[id].zones, f.Zone)
		}
	}
	lines := make([]string, len(all))
	for i, l := range all {
		what := string(l.Kind)
		if l.Field != "" {
			what += " " + l.Field
		}
		lines[i] = fmt.Sprintf("%s: %s → %s", what, value(l.Before), value(l.After))
		if l.By != "" {
			lines[i] += " by " + l.By
		}
		if len(l.Services) > 0 {
			lines[i] += fmt.Sprintf(", on %s %s", l.Side, list(l.Services))
		}
		lines[i] += fmt.Sprintf(" of %s in %s", plural(l.Dataplanes, "dataplane"), zones(l.zones))
		if len(l.From) > 0 {
			lines[i] += " for calls from " + list(l.From)
		}
		if l.Mesh != "default" {
			lines[i] += " of mesh " + string(l.Mesh)
		}
	}
	section(b, "Configuration", lines, p.Left.Fields)
}

// value is a value for people.
func value(v any) string {
	if v == nil {
		return "none"
	}
	const most = 200
	s := text(v)
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

func (p *Plan) renderRoutes(b *strings.Builder) {
	var lines []string
	for _, r := range p.Routes {
		line := fmt.Sprintf("%s %s on route %s, rule %s through gateway %s: %s → %s", r.Kind, r.Field, r.Route, r.Rule, r.Gateway, value(r.Before), value(r.After))
		if r.By != "" {
			line += " by " + r.By
		}
		lines = append(lines, line)
	}
	section(b, "Routes", lines, p.Left.Routes)
}

func (p *Plan) renderRights(b *strings.Builder) {
	var lines []string
	for i := range p.Rights {
		lines = append(lines, p.Rights[i].text())
	}
	section(b, "Rights", lines, p.Left.Rights)
}

func (p *Plan) renderFindings(b *strings.Builder) {
	warnings, notes := p.FindingLines()
	for _, line := range warnings {
		fmt.Fprintf(b, "Warning: %s\n", line)
	}
	for _, line := range notes {
		fmt.Fprintf(b, "Note: %s\n", line)
	}
}

// FindingLines are the findings as people read them, one line for each cause.
func (p *Plan) FindingLines() (warnings, notes []string) {
	var of [2][]policy.Advice
	for i := range p.Findings {
		f := &p.Findings[i]
		at := 0
		if f.Severity == answer.SeverityInfo {
			at = 1
		}
		of[at] = append(of[at], policy.Advice{Key: f.Key(), Problem: resource.Problem{
			Path: resource.Path(f.Field), Message: f.Message, Cause: f.Cause, Code: resource.Code(f.Code),
		}})
	}
	var lines [2][]string
	for i, advice := range of {
		groups := policy.Groups(advice)
		for j := range groups {
			if j == maxLines {
				lines[i] = append(lines[i], fmt.Sprintf("and %d more", len(groups)-j))
				break
			}
			lines[i] = append(lines[i], groups[j].String())
		}
	}
	return lines[0], lines[1]
}

// text says what a user or group gains or loses.
func (r *Right) text() string {
	verb := "gains"
	if r.Before && !r.After {
		verb = "loses"
	}
	line := fmt.Sprintf("%s %s %s", r.Subject, verb, r.Access)
	if r.By != "" {
		line += ", by " + r.By
	}
	return line
}
