package plan

import (
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// Document is a plan as JSON, row by row (docs/contract.md).
type Document struct {
	AsOf        resource.Revision `json:"asOf"`
	Changes     []Change          `json:"changes"`
	Connections []ConnectionRow   `json:"connections"`
	// Truncated counts the connections that are left out, TruncatedFields the values.
	Truncated       int                 `json:"truncated,omitempty"`
	Fields          []FieldRow          `json:"fields"`
	TruncatedFields int                 `json:"truncatedFields,omitempty"`
	Routes          []RouteRule         `json:"routes"`
	TruncatedRoutes int                 `json:"truncatedRoutes,omitempty"`
	Rights          []Right             `json:"rights"`
	TruncatedRights int                 `json:"truncatedRights,omitempty"`
	Warnings        []string            `json:"warnings"`
	Emptied         []resource.MeshName `json:"emptied,omitempty"`
	BrokenTests     []BrokenTests       `json:"brokenTests,omitempty"`
	// Findings are those that the change causes, as of an analysis.
	Findings          []answer.Finding `json:"findings"`
	TruncatedFindings int              `json:"truncatedFindings,omitempty"`
	Hidden            bool             `json:"hidden,omitempty"`
	Incomplete        []answer.Absence `json:"incomplete"`
}

// ConnectionRow is a connection that would be allowed or denied otherwise.
type ConnectionRow struct {
	Mesh   resource.MeshName `json:"mesh"`
	From   string            `json:"from"`
	To     string            `json:"to"`
	Zone   resource.ZoneName `json:"zone"`
	Port   uint32            `json:"port"`
	Before *bool             `json:"before,omitempty"`
	After  *bool             `json:"after,omitempty"`
	By     []string          `json:"by"`
	// FromZone is the caller's zone; empty where that is not known.
	FromZone resource.ZoneName `json:"fromZone,omitempty"`
}

// FieldRow is a value that would be otherwise.
type FieldRow struct {
	Mesh       resource.MeshName `json:"mesh"`
	Dataplane  string            `json:"dataplane"`
	Zone       resource.ZoneName `json:"zone"`
	Attachment policy.Attachment `json:"attachment"`
	From       string            `json:"from,omitempty"`
	Kind       resource.Kind     `json:"kind"`
	Field      string            `json:"field"`
	Before     any               `json:"before,omitempty"`
	After      any               `json:"after,omitempty"`
	By         string            `json:"by"`
	// FromZone is the caller's zone, if From is set.
	FromZone resource.ZoneName `json:"fromZone,omitempty"`
}

// Document returns the plan row by row.
func (p *Plan) Document() *Document {
	d := &Document{
		AsOf: p.AsOf, Changes: p.Changes, Connections: []ConnectionRow{}, Fields: []FieldRow{},
		Routes: p.Routes, Rights: p.Rights, Warnings: append([]string{}, p.Warnings...), Emptied: p.Emptied, BrokenTests: p.BrokenTests, Findings: append([]answer.Finding{}, p.Findings...), TruncatedFindings: p.Left.Findings, Hidden: p.Hidden, Incomplete: p.Incomplete,
		TruncatedRoutes: p.Left.Routes, TruncatedRights: p.Left.Rights,
		Truncated: p.Left.Connections + p.Left.Unexamined, TruncatedFields: p.Left.Fields,
	}
	for i := range p.Connections {
		c := &p.Connections[i]
		for _, r := range c.Rows {
			d.Connections = append(d.Connections, ConnectionRow{c.Mesh, r.From, r.To, c.Zone, r.Port, c.Before, c.After, c.By, r.FromZone})
		}
		d.Truncated += c.Count - len(c.Rows)
	}
	for i := range p.Fields {
		f := &p.Fields[i]
		for _, r := range f.Rows {
			d.Fields = append(d.Fields, FieldRow{f.Mesh, r.Dataplane, f.Zone, r.Attachment, r.From, f.Kind, f.Field, f.Before, f.After, f.By, r.FromZone})
		}
		d.TruncatedFields += f.Count - len(f.Rows)
	}
	return d
}
