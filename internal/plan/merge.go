package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// Add adds what a zone says about its dataplanes.
func (p *Plan) Add(zone resource.ZoneName, part *Plan) {
	for i := range part.Connections {
		part.Connections[i].Zone = zone
	}
	for i := range part.Fields {
		part.Fields[i].Zone = zone
	}
	if part.Found != nil {
		part.Found.zone = zone
	}
	p.parts = append(p.parts, part.Found)
	p.AsOf = min(p.AsOf, part.AsOf)
	p.Connections = append(p.Connections, part.Connections...)
	p.Fields = append(p.Fields, part.Fields...)
	for _, place := range part.Places {
		at := slices.IndexFunc(p.Places, func(q Place) bool { return q.Kind == place.Kind && q.Mesh == place.Mesh && q.Name == place.Name })
		if at < 0 {
			p.Places = append(p.Places, place)
			continue
		}
		p.Places[at].Used += place.Used
		p.Places[at].Superseded += place.Superseded
	}
	p.Left.Connections += part.Left.Connections
	p.Left.Fields += part.Left.Fields
	p.Left.Unexamined += part.Left.Unexamined
	p.sort()
}

// Miss notes a zone that the plan lacks, or has as it was.
func (p *Plan) Miss(absent ...answer.Absence) { p.Incomplete = append(p.Incomplete, absent...) }

// HideZones replaces the names of zones, and leaves out why one is not certain, for a
// reader who may not read them.
func (p *Plan) HideZones(name resource.ZoneName) {
	for i := range p.Connections {
		p.Connections[i].Zone = name
	}
	for i := range p.Fields {
		p.Fields[i].Zone = name
	}
	for i := range p.Incomplete {
		p.Incomplete[i] = answer.Absence{Zone: name, Reason: "not certain"}
	}
}

// Finish says which changed policies would take effect nowhere, and settles the findings.
func (p *Plan) Finish() {
	if p.Found != nil { // of one zone
		p.Found.zone = "here"
		p.parts, p.Found = append(p.parts, p.Found), nil
	}
	p.settle()
	p.order()
	for _, place := range p.Places {
		if place.Used > 0 || p.finding(place) {
			continue
		}
		where := "on no dataplane"
		if place.Superseded > 0 {
			where = fmt.Sprintf("on no dataplane: on %s the kind that supersedes it does", plural(place.Superseded, "dataplane"))
		}
		if len(p.Incomplete) > 0 {
			where += ", as far as is known"
		}
		p.Warnings = append(p.Warnings, fmt.Sprintf("%s %s in mesh %s would take effect %s", place.Kind, place.Name, place.Mesh, where))
	}
}

// finding reports whether a finding says that a policy takes effect nowhere.
func (p *Plan) finding(place Place) bool {
	return slices.ContainsFunc(p.Findings, func(f answer.Finding) bool {
		if f.Key() != (resource.Key{Kind: place.Kind, Mesh: place.Mesh, Name: place.Name}) {
			return false
		}
		switch resource.Code(f.Code) {
		case resource.CodeDeadPolicy, resource.CodeOverridden, resource.CodeSuperseded:
			return true
		}
		return false
	})
}

func plural(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

// sort puts everything in order, and leaves out what does not fit.
func (p *Plan) sort() {
	slices.SortFunc(p.Connections, compareConnections)
	slices.SortFunc(p.Fields, compareFields)
	slices.SortFunc(p.Places, func(a, b Place) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Mesh, b.Mesh), strings.Compare(a.Name, b.Name))
	})
	for len(p.Connections) > maxGroups {
		last := len(p.Connections) - 1
		p.Left.Connections += p.Connections[last].Count
		p.Connections = p.Connections[:last]
	}
	for len(p.Fields) > maxGroups {
		last := len(p.Fields) - 1
		p.Left.Fields += p.Fields[last].Count
		p.Fields = p.Fields[:last]
	}
	rows := maxRows
	for i := range p.Connections {
		c := &p.Connections[i]
		c.From, c.To = firstOf(c.From), firstOf(c.To)
		c.Rows = c.Rows[:min(len(c.Rows), rows)]
		rows -= len(c.Rows)
	}
	rows = maxRows
	for i := range p.Fields {
		f := &p.Fields[i]
		f.From, f.Services = firstOf(f.From), firstOf(f.Services)
		f.Rows = f.Rows[:min(len(f.Rows), rows)]
		rows -= len(f.Rows)
	}
}

// maxServices bounds the services that a group names, and so many more are counted.
const maxServices = 20

// firstOf returns the first of many services, and then in one text how many more there
// are.
func firstOf(services []string) []string {
	if len(services) <= maxServices+1 {
		return services
	}
	kept := slices.Clone(services[:maxServices])
	return append(kept, fmt.Sprintf("%d more", len(services)-maxServices))
}

// compareConnections puts lost access before gained access, and the larger group first.
func compareConnections(a, b Connections) int {
	return cmp.Or(
		cmp.Compare(a.rank(), b.rank()), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Mesh, b.Mesh),
		slices.Compare(a.From, b.From), slices.Compare(a.To, b.To), cmp.Compare(a.Zone, b.Zone),
		strings.Compare(word(a.Before), word(b.Before)), strings.Compare(word(a.After), word(b.After)), slices.Compare(a.By, b.By),
	)
}

// rank orders what would become of connections: lost, gained, otherwise gone, new.
func (c *Connections) rank() int {
	switch {
	case c.lost():
		return 0
	case c.gained():
		return 1
	case c.After == nil:
		return 2
	}
	return 3
}

func compareFields(a, b Fields) int {
	return cmp.Or(
		cmp.Compare(a.Mesh, b.Mesh), cmp.Compare(a.Kind, b.Kind), strings.Compare(a.Field, b.Field),
		strings.Compare(a.Side, b.Side), slices.Compare(a.Services, b.Services), slices.Compare(a.From, b.From), cmp.Compare(a.Zone, b.Zone),
		strings.Compare(text(a.Before), text(b.Before)), strings.Compare(text(a.After), text(b.After)), strings.Compare(a.By, b.By),
	)
}

// word is whether a connection is allowed, for people.
func word(allowed *bool) string {
	switch {
	case allowed == nil:
		return "none"
	case *allowed:
		return "allowed"
	}
	return "denied"
}
