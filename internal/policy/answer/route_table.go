package answer

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/texttable"
)

// RenderRoute prints the effective rules of every path through a route. wide
// adds the rules' bodies, and every rule and block that lost.
func RenderRoute(w io.Writer, a *RouteAnswer, form Form) error {
	p := newPrinter(w, form)
	p.line("route %s  %s", a.Route, place(a.Mesh, "", a.AsOf))
	p.line("")
	renderConditions(p, a.Conditions)
	if len(a.Paths) == 0 {
		p.line("%s", a.nothing("No policy reaches it."))
		return p.close()
	}
	t := texttable.New("", "GATEWAY", "LISTENER", "RULE", "KIND", "EFFECTIVE", "FROM")
	for i := range a.Paths {
		path := &a.Paths[i]
		kind := string(path.Kind)
		if path.RouteKind != "" {
			kind += " (" + string(path.RouteKind) + ")"
		}
		path.rows(t, form.Wide, path.Gateway, path.Listener, path.Rule, kind)
	}
	p.table(t)
	return p.close()
}

// RenderGateway prints the effective rules of every path through a gateway, as
// RenderRoute does of those to a route.
func RenderGateway(w io.Writer, a *GatewayAnswer, form Form) error {
	p := newPrinter(w, form)
	p.line("gateway %s  %s", a.Gateway, place(a.Mesh, "", a.AsOf))
	p.line("")
	renderConditions(p, a.Conditions)
	if len(a.Paths) == 0 {
		p.line("%s", a.nothing("No policy reaches a route through it."))
	} else {
		t := texttable.New("", "LISTENER", "ROUTE", "RULE", "KIND", "EFFECTIVE", "FROM")
		for i := range a.Paths {
			path := &a.Paths[i]
			path.rows(t, form.Wide, path.Listener, string(path.RouteKind)+"/"+path.Route, path.Rule, string(path.Kind))
		}
		p.table(t)
	}
	if len(a.Rejected) > 0 {
		p.line("")
		t := texttable.New("", "NOT ATTACHED", "LISTENER", "REASON", "MESSAGE")
		for _, r := range a.Rejected {
			listener := r.SectionName
			if r.Port != 0 {
				listener += fmt.Sprintf(":%d", r.Port)
			}
			t.Add(string(r.RouteKind)+"/"+r.Route, listener, r.Reason, r.Message)
		}
		p.table(t)
	}
	return p.close()
}

// rows adds a path to a table: a line per effective rule, the first with the path in
// front, then what did not get there.
func (path *RoutePath) rows(t *texttable.Table, wide bool, head ...string) {
	ids := slices.Sorted(maps.Keys(path.Origins))
	if len(ids) == 0 {
		ids = []string{"no rules"}
	}
	var last *texttable.Row
	for i, id := range ids {
		if i > 0 {
			head = make([]string, len(head))
		}
		shown := id
		if body, ok := path.body(id); wide && ok {
			shown += " " + compact(body)
		}
		last = t.Add(append(head, shown, path.Origins[id])...)
	}
	notes := func(by map[string]string, of map[string][]string, format string) {
		for _, id := range slices.Sorted(maps.Keys(by)) {
			losers := "another policy" // an earlier release does not name them
			if len(of[id]) > 0 {
				losers = listed(of[id])
			}
			last.Note(format, id, losers, by[id])
		}
	}
	notes(path.Overridden, path.OverriddenOf, "%s of %s is overridden by %s")
	notes(path.Unset, path.UnsetOf, "%s, a default of %s, is unset by %s")
	for _, v := range path.When {
		if wide || !v.Applied {
			last.Note("%s", v.sentence())
		}
	}
}

// body finds a rule by its identity.
func (path *RoutePath) body(id string) (any, bool) {
	if body, ok := path.Rules[id]; ok {
		return body, true
	}
	section, _, found := strings.Cut(id, ".")
	if !found {
		section, _, _ = strings.Cut(id, "[")
	}
	rules, ok := path.Rules[section].(policy.Tree)
	if !ok {
		return nil, false
	}
	for name, body := range rules {
		if id == section+"."+name || id == fmt.Sprintf("%s[%q]", section, name) {
			return body, true
		}
	}
	return nil, false
}

// sentence says what a condition came to.
func (v *WhenVerdict) sentence() string {
	s := fmt.Sprintf("%s of %s ", v.Block, v.Policy)
	if v.Applied {
		s += "applied"
	} else {
		s += "skipped"
	}
	s += ": when " + v.Expression
	if v.Value == "error" {
		return s + " failed: " + v.Reason
	}
	s += " is " + v.Value
	if v.Reason != "" {
		s += ": " + v.Reason
	}
	return s
}

// RenderRules prints where the rules of a policy reach.
func RenderRules(w io.Writer, a *RuleAnswer, form Form) error {
	p := newPrinter(w, form)
	p.line("%s %s  %s", a.Kind, a.Name, place(a.Mesh, "", a.AsOf))
	p.line("")
	renderConditions(p, a.Conditions)
	if len(a.Rules) == 0 {
		p.line("%s", a.nothing("Its rules reach no route."))
		return p.close()
	}
	t := texttable.New("", "POLICY RULE", "BLOCK", "GATEWAY", "LISTENER", "ROUTE", "RULE", "STATE", "BY", "WHY")
	for _, r := range a.Rules {
		t.Add(r.ID, r.Block, r.Gateway, r.Listener, r.Route, r.Rule, string(r.State), r.By, because(r.Reason, r.DecidedBy))
	}
	p.table(t)
	return p.close()
}

// renderConditions prints conditions as a table with an empty line below it.
func renderConditions(p *printer, conditions []policy.Condition) {
	if len(conditions) == 0 {
		return
	}
	t := texttable.New("", "CONDITION", "STATUS", "REASON", "MESSAGE")
	for _, c := range conditions {
		of := c.Type
		if c.RouteKind != "" {
			of += " of the " + string(c.RouteKind)
		}
		if c.ParentRef.Name != "" {
			of += " by " + c.ParentRef.String()
		}
		t.Add(of, c.Status, c.Reason, c.Message)
	}
	p.table(t)
	p.line("")
}
