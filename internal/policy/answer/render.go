package answer

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/texttable"
)

// RenderDataplane prints what takes effect on a dataplane as a table. wide adds
// the configuration and every policy that lost, with the reason.
func RenderDataplane(w io.Writer, a *DataplaneAnswer, form Form) error {
	p := newPrinter(w, form)
	p.line("%s  %s", a.Dataplane, place(a.Mesh, a.Zone, a.AsOf))
	if a.Proxy != nil {
		p.line("%s", a.Proxy)
	}
	p.line("")
	if len(a.Effective) == 0 {
		p.line("%s", a.nothing("No policy takes effect on it."))
	} else {
		header := []string{"ATTACHMENT", "KIND", "POLICY"}
		if a.Wire != nil {
			header = append(header, "WIRE")
		}
		t := texttable.New("", append(header, "WHY")...)
		attachments := make([]policy.Attachment, len(a.Effective))
		for i := range a.Effective {
			attachments[i] = a.Effective[i].Attachment
		}
		last := ""
		for i := range a.Effective {
			e := &a.Effective[i]
			at := label(&e.Attachment, attachments)
			shown := at
			if at == last {
				shown = ""
			}
			last = at
			why := firstReason(e.Considered)
			if e.SupersededBy != nil {
				why = supersededText(e.SupersededBy)
			}
			cells := []string{shown, string(e.Kind), commas(e.Policies)}
			if a.Wire != nil {
				cells = append(cells, a.Wire[WireKey{e.Attachment.String(), e.Kind}])
			}
			r := t.Add(append(cells, why)...)
			if form.Wide {
				explain(r, e)
			}
		}
		p.table(t)
	}
	warn(p, a.Warnings)
	return p.close()
}

// explain adds to a row everything that the narrow table leaves out.
func explain(r *texttable.Row, e *Effective) {
	if e.Rules == nil {
		r.Note("%s", compact(e.Conf))
	}
	noteRules(r, e.Rules)
	losers(r, e.Considered)
}

func noteRules(r *texttable.Row, rules []CallerRule) {
	for i, rule := range rules {
		line := fmt.Sprintf("%d. from %s", i+1, callers(rule.Match))
		if len(rule.Conf) > 0 {
			line += "  " + compact(rule.Conf)
		}
		line += "  " + rule.Policy
		if rule.ShadowedBy != "" {
			line += "  (shadowed by " + rule.ShadowedBy + ")"
		}
		r.Note("%s", line)
	}
}

func losers(r *texttable.Row, list []Considered) {
	for _, c := range list {
		if !c.Used {
			r.Note("not %s: %s (§%s)", c.Policy, c.Reason, c.Rule)
		}
	}
}

// Denying lists the policies that deny the caller in so many words, which only
// a MeshTrafficPermission can.
func (a *ConnectionAnswer) Denying() []string {
	var names []string
	for _, e := range a.Effective {
		if e.Kind == resource.KindMeshTrafficPermission && e.Conf["action"] == resource.ActionDeny {
			for _, name := range e.Policies {
				if !slices.Contains(names, name) { // one policy may deny several inbounds
					names = append(names, name)
				}
			}
		}
	}
	return names
}

// RenderConnection prints a connection.
func RenderConnection(w io.Writer, a *ConnectionAnswer, form Form) error {
	p := newPrinter(w, form)
	from := a.From
	if from == "" {
		from = "(tags)"
	}
	p.line("%s -> %s  %s", from, a.To, place(a.Mesh, "", a.AsOf))
	switch {
	case !a.Allowed && slices.ContainsFunc(a.Inbounds, func(in InboundAccess) bool { return in.Allowed }):
		p.line("denied on some inbounds")
	case !a.Allowed && len(a.Denying()) > 0:
		p.line("denied by %s", listed(a.Denying()))
	case a.Partial.Partial && !a.Allowed:
		p.line("denied") // why may be withheld
	case a.Partial.Partial && len(a.AllowedBy) == 0:
		p.line("allowed")
	case !a.Allowed:
		p.line("denied: no permission allows this caller")
	case len(a.AllowedBy) == 0:
		p.line("allowed: no permission is required")
	default:
		p.line("allowed by %s", listed(a.AllowedBy))
	}
	if a.Shadow != nil {
		p.line("%s", a.Shadow.text())
	}
	if len(a.Inbounds) > 0 {
		p.line("")
		t := texttable.New("", "INBOUND", "ALLOWED", "BY")
		for _, in := range a.Inbounds {
			t.Add(in.Service+":"+strconv.FormatUint(uint64(in.Port), 10), yes(in.Allowed), commas(slices.Concat(in.AllowedBy, in.DeniedBy)))
		}
		p.table(t)
	}
	if len(a.Effective) > 0 {
		p.line("")
		t := texttable.New("", "SIDE", "PORT", "KIND", "POLICY", "CONF")
		for _, e := range a.Effective {
			side := string(e.Side)
			if e.Route != "" {
				side += " route " + e.Route
			}
			t.Add(side, strconv.FormatUint(uint64(e.Port), 10), string(e.Kind), commas(e.Policies), compact(e.Conf))
		}
		p.table(t)
	}
	if len(a.Superseded) > 0 {
		p.line("")
	}
	for _, s := range a.Superseded {
		p.line("%s %d: %s %s is %s", s.Side, s.Port, s.Kind, commas(s.Policies), supersededText(s.By))
	}
	lacking(p, a.Incomplete)
	return p.close()
}

// supersededText says what holds in place of a kind.
func supersededText(by *Successor) string { return because("superseded by "+by.String(), "4.11") }

// RenderPolicy prints where a policy takes effect.
func RenderPolicy(w io.Writer, a *PolicyAnswer, form Form) error {
	p := newPrinter(w, form)
	p.line("%s %s  %s", a.Kind, a.Name, place(a.Mesh, "", a.AsOf))
	p.line("")
	if len(a.Conditions) > 0 {
		t := texttable.New("", "CONDITION", "STATUS", "REASON", "MESSAGE")
		for _, c := range a.Conditions {
			t.Add(c.Type, c.Status, c.Reason, c.Message)
		}
		p.table(t)
		p.line("")
	}
	for _, w := range a.WarningLines() {
		p.line("Warning: %s", w)
	}
	if len(a.Warnings) > 0 {
		p.line("")
	}
	if d, ok := resource.Describe(a.Kind); ok && d.Class == resource.Inherited {
		p.line("--rule '*' shows where each of its rules reaches.")
		return p.close()
	}
	if len(a.Dataplanes) == 0 {
		p.line("%s", a.nothing("It takes effect on no dataplane."))
	} else {
		p.table(dataplaneGroups(a.Dataplanes, form.Wide))
	}
	a.renderSuperseded(p, form.Wide)
	lacking(p, a.Incomplete)
	return p.close()
}

// renderSuperseded prints where the successor holds in place of the policy: a table
// for each.
func (a *PolicyAnswer) renderSuperseded(p *printer, wide bool) {
	var order []string
	groups := map[string][]PolicyDataplane{}
	for _, d := range a.Superseded {
		by := supersededText(d.By)
		if groups[by] == nil {
			order = append(order, by)
		}
		groups[by] = append(groups[by], d.PolicyDataplane)
	}
	for _, by := range order {
		p.line("")
		p.line("Without effect: %s", by)
		p.table(dataplaneGroups(groups[by], wide))
	}
}

// namesShown is how many dataplanes of a group are named; wide names all.
const namesShown = 3

// dataplaneGroups is a row for each zone and set of attachments, in the order of
// the first dataplane that has them.
func dataplaneGroups(dataplanes []PolicyDataplane, wide bool) *texttable.Table {
	type group struct {
		zone, attachments string
	}
	var order []group
	names := map[group][]string{}
	for _, d := range dataplanes {
		var at []string
		for i := range d.Attachments {
			at = append(at, label(&d.Attachments[i], d.Attachments))
		}
		g := group{string(d.Zone), commas(at)}
		if names[g] == nil {
			order = append(order, g)
		}
		names[g] = append(names[g], d.Name)
	}
	t := texttable.New("", "DATAPLANE", "ZONE", "ATTACHMENTS")
	for _, g := range order {
		shown := names[g]
		if more := len(shown) - namesShown; more > 0 && !wide {
			shown = append(slices.Clone(shown[:namesShown]), fmt.Sprintf("and %d more", more))
		}
		t.Add(commas(shown), g.zone, g.attachments)
	}
	return t
}

// RenderWhy prints who decided each field. wide adds every policy considered.
func RenderWhy(w io.Writer, a *WhyAnswer, form Form) error {
	p := newPrinter(w, form)
	p.line("%s on %s  %s", a.Kind, a.Dataplane, place(a.Mesh, a.Zone, a.AsOf))
	if len(a.Entries) == 0 {
		p.line("")
		p.line("%s", a.nothing("No policy of this kind takes effect there."))
	}
	attachments := make([]policy.Attachment, len(a.Entries))
	for i := range a.Entries {
		attachments[i] = a.Entries[i].Attachment
	}
	for i := range a.Entries {
		e := &a.Entries[i]
		p.line("")
		p.line("%s", label(&e.Attachment, attachments))
		e.render(p, form.Wide)
	}
	if len(a.Shadow) > 0 {
		p.line("")
		p.line("With the policies that are only tried (shadow):")
	}
	for i := range a.Shadow {
		e := &a.Shadow[i]
		p.line("")
		p.line("%s", label(&e.Attachment, attachments))
		e.render(p, form.Wide)
	}
	if len(a.Elsewhere) > 0 {
		p.line("")
		p.line("Not reaching this, though selecting the dataplane: %s.", commas(a.Elsewhere))
	}
	return p.close()
}

func (e *WhyEntry) render(p *printer, wide bool) {
	if len(e.Fields) > 0 {
		t := texttable.New("  ", "FIELD", "VALUE", "POLICY", "WHY")
		for _, f := range e.Fields {
			r := t.Add(string(f.Field), compact(f.Value), f.Policy, because(f.Reason, f.Rule))
			for _, l := range f.Losers {
				bid := l.Policy
				if l.Value != nil {
					bid = compact(l.Value) + " of " + l.Policy
				}
				r.Note("not %s: %s (§%s)", bid, l.Reason, l.Rule)
			}
		}
		p.table(t)
	}
	if len(e.Rules) > 0 {
		t := texttable.New("  ", "#", "FROM", "POLICY", "CONF", "")
		for i, rule := range e.Rules {
			shadow := ""
			if rule.ShadowedBy != "" {
				shadow = "shadowed by " + rule.ShadowedBy
			}
			t.Add(strconv.Itoa(i+1), callers(rule.Match), rule.Policy, compact(rule.Conf), shadow)
		}
		p.table(t)
	}
	if wide || len(e.Fields) == 0 {
		t := texttable.New("  ", "POLICY", "USED", "WHY")
		for _, c := range e.Considered {
			t.Add(c.Policy, yes(c.Used), because(c.Reason, c.Rule))
		}
		p.table(t)
		return
	}
	for _, c := range e.leftOut() {
		p.line("  not %s: %s (§%s)", c.Policy, c.Reason, c.Rule)
	}
}

// leftOut are the policies that would have had a say, had their own condition or
// another policy not kept them out altogether (§4.10).
func (e *WhyEntry) leftOut() []Considered {
	var out []Considered
	for _, c := range e.Considered {
		lost := slices.ContainsFunc(e.Fields, func(f WhyField) bool {
			return slices.ContainsFunc(f.Losers, func(l WhyLoser) bool { return l.Policy == c.Policy })
		})
		if !c.Used && !lost && c.Rule == "4.10" {
			out = append(out, c)
		}
	}
	return out
}

// RenderDataplanes prints a list of dataplanes.
func RenderDataplanes(w io.Writer, a *DataplanesAnswer, form Form) error {
	p := newPrinter(w, form)
	header := []string{"MESH", "NAME", "ZONE", "SERVICES", "POLICIES"}
	proxies := slices.ContainsFunc(a.Items, func(d DataplaneSummary) bool { return d.ProxyState != nil })
	if proxies {
		header = append(header, "STATE", "ACKED", "LAG")
	}
	if form.Wide {
		header = append(header, "OUTBOUNDS")
	}
	t := texttable.New("", header...)
	for _, d := range a.Items {
		services := commas(d.Services)
		if d.Gateway {
			services += " (gateway)"
		}
		cells := []string{string(d.Mesh), d.Name, string(d.Zone), services, countText(d.Policies)}
		if proxies {
			cells = append(cells, d.ProxyState.cells()...)
		}
		if form.Wide {
			cells = append(cells, commas(d.Outbounds))
		}
		r := t.Add(cells...)
		if d.Unmatched != "" {
			r.Note("unmatched: %s", d.Unmatched)
		}
		if d.ProxyState != nil && d.LastError != "" {
			r.Note("refused: %s", d.LastError)
		}
	}
	if len(a.Items) == 0 {
		p.line("There are no dataplanes.")
	} else {
		p.table(t)
	}
	lacking(p, a.Incomplete)
	return p.close()
}

// lacking ends a page with what the answer lacks.
func lacking(p *printer, incomplete []Absence) {
	if len(incomplete) == 0 {
		return
	}
	list := make([]string, len(incomplete))
	for i, a := range incomplete {
		list[i] = a.String()
	}
	p.line("")
	p.line("Incomplete: %s.", strings.Join(list, "; "))
}

// place says where and as of when an answer holds.
func place(mesh resource.MeshName, zone resource.ZoneName, asOf resource.Revision) string {
	s := "mesh " + string(mesh)
	if zone != "" {
		s += ", zone " + string(zone)
	}
	if asOf != 0 {
		s += ", revision " + strconv.FormatUint(uint64(asOf), 10)
	}
	return s
}

// label names an attachment, with all its tags where its name alone could mean
// another one of the list.
func label(a *policy.Attachment, among []policy.Attachment) string {
	name := a.String()
	ambiguous := func(b policy.Attachment) bool { return b.String() == name && !maps.Equal(a.Tags, b.Tags) }
	if !slices.ContainsFunc(among, ambiguous) {
		return name
	}
	return name + " " + tagList(a.Tags)
}

// callers names the callers a selector matches.
func callers(match resource.TagSelector) string {
	if len(match) == 0 {
		return "any caller"
	}
	return tagList(match)
}

func tagList[M ~map[string]string](tags M) string {
	var list []string
	for _, tag := range slices.Sorted(maps.Keys(tags)) {
		list = append(list, tag+"="+tags[tag])
	}
	return strings.Join(list, ",")
}

// firstReason is why the highest-ranking policy in use won.
func firstReason(list []Considered) string {
	for _, c := range list {
		if c.Used {
			return because(c.Reason, c.Rule)
		}
	}
	return ""
}

func because(reason, rule string) string { return reason + " (§" + rule + ")" }

func commas(words []string) string { return strings.Join(words, ", ") }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// compact spells a value on one line.
func compact(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Sprint(v) // not a JSON value: nothing Unmarshal returns
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func warn(p *printer, warnings []string) {
	if len(warnings) > 0 {
		p.line("")
	}
	for _, warning := range warnings {
		p.line("warning: %s", warning)
	}
}

// countText prints a count, or that it is not known.
func countText(n *int) string {
	if n == nil {
		return "-"
	}
	return strconv.Itoa(*n)
}
