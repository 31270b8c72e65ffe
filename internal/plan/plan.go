package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// A plan lists at most so many connections and as many fields, and has at most maxGroups
// groups of each.
const (
	maxRows   = 10_000
	maxGroups = 2_000
)

// Plan is what a change would do.
type Plan struct {
	// AsOf is the oldest revision that it holds at; 0 offline.
	AsOf resource.Revision `json:"asOf"`
	// Changes are what would become of each resource of the change.
	Changes []Change `json:"changes"`
	// Connections are those that would be allowed or denied otherwise, and Fields the
	// values that would be otherwise, in groups; lost access comes first.
	Connections []Connections `json:"connections"`
	Fields      []Fields      `json:"fields"`
	// Routes are the rules of inherited policies that would be otherwise.
	Routes []RouteRule `json:"routes"`
	// Rights are those that users and groups would gain and lose.
	Rights   []Right  `json:"rights"`
	Warnings []string `json:"warnings"`
	// Emptied are the meshes that would be left without the policies that they have.
	Emptied []resource.MeshName `json:"emptied,omitempty"`
	// BrokenTests are those that meshes carry and that would fail: the change would be
	// refused.
	BrokenTests []BrokenTests `json:"brokenTests,omitempty"`
	// Places are the changed policies that attach to dataplanes.
	Places []Place `json:"places,omitempty"`
	// Hidden: what the change does to resources that the caller may not read is not in it.
	Hidden bool `json:"hidden,omitempty"`
	// Findings are those of an analysis that hold with the change, and did not without it.
	Findings []answer.Finding `json:"findings,omitempty"`
	// Found is what the dataplanes of a zone show, for the global.
	Found *Sides `json:"found,omitempty"`
	// Incomplete are the zones that the plan lacks, or has as they were.
	Incomplete []answer.Absence `json:"incomplete"`
	// Left counts what is left out.
	Left Left `json:"left,omitzero"`

	parts []*Sides
}

// Left counts what does not fit into a plan.
type Left struct {
	// Connections and Fields are those of groups that are not in it.
	Connections int `json:"connections,omitempty"`
	Fields      int `json:"fields,omitempty"`
	// Routes and Rights are rows.
	Routes int `json:"routes,omitempty"`
	Rights int `json:"rights,omitempty"`
	// Findings are those that do not fit.
	Findings int `json:"findings,omitempty"`
	// Unexamined are connections that were not looked at, because there are too many
	// different ones.
	Unexamined int `json:"unexamined,omitempty"`
}

// BrokenTests are tests of a mesh that a change would break, Count of the Of that it
// carries.
type BrokenTests struct {
	Mesh  resource.MeshName `json:"mesh"`
	Count int               `json:"count"`
	Of    int               `json:"of"`
	// GaveUp is why the tests were not run to their end; empty if they were.
	GaveUp string `json:"gaveUp,omitempty"`
	// Cases are the first of them; none for a caller who may not read all of the mesh.
	Cases []BrokenTest `json:"cases,omitempty"`
}

// BrokenTest is a case that would fail.
type BrokenTest struct {
	Name    string `json:"name"`
	Message string `json:"message"`
}

// Change is what would become of a resource: created, updated, unchanged or deleted.
type Change struct {
	Kind    resource.Kind     `json:"kind"`
	Mesh    resource.MeshName `json:"mesh,omitempty"`
	Name    string            `json:"name"`
	Outcome string            `json:"outcome"`
	// Version and Revision are those of what is stored; 0 for nothing, and offline.
	Version  uint64 `json:"version,omitempty"`
	Revision uint64 `json:"revision,omitempty"`
}

// What becomes of a resource.
const (
	Created   = "created"
	Updated   = "updated"
	Unchanged = "unchanged"
	Deleted   = "deleted"
)

// Connections are connections of which one thing would become. They are all pairs of its
// callers and inbounds, but none of a dataplane with itself.
type Connections struct {
	Mesh resource.MeshName `json:"mesh"`
	// From and To are the services, in order.
	From []string `json:"from"`
	To   []string `json:"to"`
	// Before and After are whether they are allowed, nil where there is none.
	Before *bool `json:"before,omitempty"`
	After  *bool `json:"after,omitempty"`
	// By are the policies that decide: those of before, where there is none after.
	By []string `json:"by"`
	// Zone is that of the inbounds.
	Zone  resource.ZoneName `json:"zone"`
	Count int               `json:"count"`
	// Rows are the first of them.
	Rows []Pair `json:"rows,omitempty"`
}

// Pair is a connection.
type Pair struct {
	From     string            `json:"from"`
	FromZone resource.ZoneName `json:"fromZone,omitempty"`
	To       string            `json:"to"`
	Port     uint32            `json:"port"`
}

// Fields are values on attachments of dataplanes of which one thing would become.
type Fields struct {
	Mesh resource.MeshName `json:"mesh"`
	Zone resource.ZoneName `json:"zone"`
	Kind resource.Kind     `json:"kind"`
	// Field is a JSON pointer; empty for a policy that takes effect and sets none.
	Field string `json:"field"`
	// Before and After are the values, nil where there is none.
	Before any `json:"before,omitempty"`
	After  any `json:"after,omitempty"`
	// By is the policy that decides, empty where there is no value after.
	By string `json:"by"`
	// From are the services of callers, where it differs between callers.
	From []string `json:"from,omitempty"`
	// Side is the type of attachment, and Services are those of the attachments.
	Side     string   `json:"side"`
	Services []string `json:"services,omitempty"`
	// Count is how many values there are, on Dataplanes dataplanes.
	Count      int `json:"count"`
	Dataplanes int `json:"dataplanes"`
	// Rows are the first of them.
	Rows []At `json:"rows,omitempty"`
}

// At is a value of a dataplane; From is the caller for which it holds, if it differs
// between callers.
type At struct {
	Dataplane  string            `json:"dataplane"`
	Attachment policy.Attachment `json:"attachment"`
	From       string            `json:"from,omitempty"`
	FromZone   resource.ZoneName `json:"fromZone,omitempty"`
}

// RouteRule is a rule of inherited policies on a path.
type RouteRule struct {
	Mesh     resource.MeshName `json:"mesh"`
	Route    string            `json:"route"`
	Gateway  string            `json:"gateway"`
	Listener string            `json:"listener"`
	Rule     string            `json:"rule"`
	Kind     resource.Kind     `json:"kind"`
	// Field names the rule of the policy, as `unset` names it.
	Field  string `json:"field"`
	Before any    `json:"before,omitempty"`
	After  any    `json:"after,omitempty"`
	By     string `json:"by"`
}

// Right is something that a user or group may do, or no longer.
type Right struct {
	Subject string `json:"subject"`
	// Access is what it may do, and on what.
	Access string `json:"access"`
	Before bool   `json:"before"`
	After  bool   `json:"after"`
	By     string `json:"by"`
}

// Place says on how many dataplanes a changed policy would take effect.
type Place struct {
	Kind       resource.Kind     `json:"kind"`
	Mesh       resource.MeshName `json:"mesh"`
	Name       string            `json:"name"`
	Used       int               `json:"used"`
	Superseded int               `json:"superseded"`
}

// New returns an empty plan.
func New() *Plan {
	return &Plan{
		Changes: []Change{}, Connections: []Connections{}, Fields: []Fields{}, Routes: []RouteRule{}, Rights: []Right{},
		Warnings: []string{}, Incomplete: []answer.Absence{},
	}
}

// Nothing reports whether nothing would change.
func (p *Plan) Nothing() bool {
	return len(p.Connections)+len(p.Fields)+len(p.Routes)+len(p.Rights) == 0 && p.Left == Left{} &&
		!slices.ContainsFunc(p.Changes, func(c Change) bool { return c.Outcome != Unchanged })
}

// Lost are the groups of connections that are allowed and would not be, or would be gone.
func (p *Plan) Lost() []Connections {
	var lost []Connections
	for _, c := range p.Connections {
		if c.lost() {
			lost = append(lost, c)
		}
	}
	return lost
}

// Losses are what a change takes away, a line each: connections that would be denied,
// rights that would be lost, and all policies of a mesh.
func (p *Plan) Losses() []string {
	losses := lines(p.Lost())
	for i := range p.Rights {
		if r := &p.Rights[i]; r.Before && !r.After {
			losses = append(losses, r.text())
		}
	}
	for _, mesh := range p.Emptied {
		losses = append(losses, fmt.Sprintf("all policies of mesh %s", mesh))
	}
	for i := range p.Changes {
		if c := &p.Changes[i]; c.Kind == resource.KindMeshTest && c.Outcome == Deleted {
			losses = append(losses, fmt.Sprintf("the tests that mesh %s carries", c.Mesh))
		}
	}
	if len(losses) > maxLines {
		more := len(losses) - maxLines
		losses = append(losses[:maxLines], fmt.Sprintf("and %d more", more))
	}
	return losses
}

// EmptiedBy notes the meshes that a batch would leave without policies.
func (p *Plan) EmptiedBy(before policy.View, batch *Batch) {
	meshes := map[resource.MeshName]bool{}
	for _, key := range batch.Deleted {
		if isPolicy(key.Kind) {
			meshes[key.Mesh] = true
		}
	}
	after := batch.On(before)
	for _, mesh := range slices.Sorted(maps.Keys(meshes)) {
		if !hasPolicies(after, mesh) {
			p.Emptied = append(p.Emptied, mesh)
		}
	}
}

func isPolicy(kind resource.Kind) bool {
	d, ok := resource.Describe(kind)
	return ok && (d.Class == resource.SourceDestination || d.Class == resource.TargetRef || d.Class == resource.Inherited)
}

func hasPolicies(view policy.View, mesh resource.MeshName) bool {
	for _, d := range resource.Kinds() {
		if isPolicy(d.Kind) {
			for range view.List(d.Kind, mesh) {
				return true
			}
		}
	}
	return false
}

func (c *Connections) lost() bool {
	return c.Before != nil && *c.Before && c.After != nil && !*c.After
}

func (c *Connections) gained() bool {
	return c.After != nil && *c.After && (c.Before == nil || !*c.Before)
}

// Digest is equal for plans of equal effect, whatever their revisions and what is known of
// zones.
func (p *Plan) Digest() (string, error) {
	effect := *p
	effect.AsOf, effect.Warnings, effect.Findings, effect.Incomplete, effect.Left.Findings = 0, nil, nil, nil, 0
	data, err := json.Marshal(&effect)
	if err != nil {
		return "", fmt.Errorf("encode a plan: %w", err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}
