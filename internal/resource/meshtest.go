package resource

import (
	"encoding/json"
	"fmt"
	"slices"

	"meridian/internal/doctree"
)

// Bounds of a MeshTest: all of it is worked out again for every write to its mesh.
const (
	maxTestDataplanes = 100
	maxTestInbounds   = 200
	maxTestCases      = 1000
	maxTestInvariants = 20
	// maxTestedPairs bounds the connections that all invariants look at together.
	maxTestedPairs = 20_000
)

// What an invariant can be over.
const (
	OverConnections = "connections"
	OverDataplanes  = "dataplanes"
	OverRoutes      = "routes"
)

// What a connection can be expected to be.
const (
	Allowed = "allowed"
	Denied  = "denied"
)

// MeshTest has the tests that a mesh carries: the servers that store its policies refuse
// a write after which a case fails. A mesh has at most one, of its own name.
type MeshTest struct {
	Dataplanes []TestDataplane `json:"dataplanes,omitzero" doc:"The dataplanes that the cases are about. They exist in these tests only, beside no others."`
	Cases      []TestCase      `json:"cases,omitzero" required:"true" doc:"What is expected once a write is made."`
}

// TestDataplane is a dataplane that exists in tests only.
type TestDataplane struct {
	Name string `json:"name,omitzero" required:"true" notEmpty:"true" doc:"The name by which cases refer to the dataplane."`
	Dataplane
}

// TestCase is one expectation. Exactly one of Connection, Dataplane and Invariant says
// what it is about.
type TestCase struct {
	Name string `json:"name,omitzero" required:"true" notEmpty:"true" doc:"By which a report names the case."`

	Connection *TestConnection `json:"connection,omitzero" doc:"A connection that is expected to be allowed or denied."`

	// Dataplane, Kind and Field ask for a setting: of the outbounds to the service To,
	// of what holds for calls from the dataplane From, or else of the dataplane and its
	// inbounds.
	Dataplane string `json:"dataplane,omitzero" doc:"The dataplane whose setting is expected."`
	Kind      Kind   `json:"kind,omitzero" doc:"The kind of policy that has the setting."`
	To        string `json:"to,omitzero" doc:"The service of the outbounds that have the setting."`
	From      string `json:"from,omitzero" doc:"The dataplane for whose calls the setting holds."`
	Field     string `json:"field,omitzero" doc:"The setting, such as http.requestTimeout."`

	Invariant string `json:"invariant,omitzero" doc:"A CEL expression that is true for everything that it is over."`
	Over      string `json:"over,omitzero" enum:"connections|dataplanes|routes" doc:"What the invariant is over."`

	// Expect is the expectation as JSON; nil if there is none.
	Expect json.RawMessage `json:"expect,omitzero" doc:"What is expected: allowed or denied, a value, or a comparison such as \"<= 30s\"."`
}

// TestConnection is a connection between dataplanes of a mesh.
type TestConnection struct {
	From     string            `json:"from,omitzero" doc:"The dataplane that calls."`
	FromTags map[string]string `json:"fromTags,omitzero" doc:"The tags of a caller that is none of the dataplanes."`
	To       string            `json:"to,omitzero" required:"true" notEmpty:"true" doc:"The dataplane that is called."`
	Port     uint32            `json:"port,omitzero" max:"65535" doc:"The port of the inbound, where there are several."`
}

// checkMeshTestName reports tests of a mesh that have another name than the mesh: it
// has one resource with its tests.
func checkMeshTestName(key Key, r *Report) {
	if key.Kind == KindMeshTest && key.Name != "" && key.Mesh != "" && key.Name != string(key.Mesh) {
		r.Errorf("name", "a mesh carries one MeshTest, of its own name: write %q", string(key.Mesh))
	}
}

// Validate implements Spec.
func (t *MeshTest) Validate(at Path, r *Report) {
	inbounds, invariants, pairs := 0, 0, 0
	names := map[string]bool{}
	for i := range t.Dataplanes {
		d, at := &t.Dataplanes[i], at.Field("dataplanes").Index(i)
		d.Validate(at, r)
		if err := CheckName(d.Name); err != nil && d.Name != "" { // that it is missing is reported already
			r.Errorf(at.Field("name"), "%s", err)
		}
		inbounds += len(d.Networking.Inbound)
		if names[d.Name] {
			r.Errorf(at.Field("name"), "the name %q is taken by a dataplane before", doctree.Clip(d.Name))
		}
		names[d.Name] = true
	}
	seen := map[string]bool{}
	for i := range t.Cases {
		c, at := &t.Cases[i], at.Field("cases").Index(i)
		if err := c.Check("`connection`, `dataplane` and `invariant`", false); err != nil {
			r.Errorf(at, "%q: %s", doctree.Clip(c.Name), err)
		}
		if c.Over == OverRoutes {
			r.Errorf(at.Field("over"), "a mesh carries no tests over routes: write %s or %s", OverConnections, OverDataplanes)
		}
		if seen[c.Name] {
			r.Errorf(at.Field("name"), "the name %q is taken by a case before: a report names cases by it", doctree.Clip(c.Name))
		}
		seen[c.Name] = true
		if c.Invariant != "" {
			invariants++
		}
		if c.Over == OverConnections {
			pairs += inbounds * (len(t.Dataplanes) - 1)
		}
	}
	for _, bound := range []struct {
		field      string
		have, most int
		what       string
	}{
		{"dataplanes", len(t.Dataplanes), maxTestDataplanes, "dataplanes"},
		{"dataplanes", inbounds, maxTestInbounds, "inbounds"},
		{"cases", len(t.Cases), maxTestCases, "cases"},
		{"cases", invariants, maxTestInvariants, "invariants"},
		{"cases", pairs, maxTestedPairs, "connections that invariants are over"},
	} {
		if bound.have > bound.most {
			r.Errorf(at.Field(bound.field), "there are %d %s, at most %d are allowed: every write to the mesh runs these tests", bound.have, bound.what, bound.most)
		}
	}
}

// Check reports a case that asks for nothing, or for several things. subjects names what
// it can be about; elsewhere says that it is about something that is none of its own
// fields.
func (c *TestCase) Check(subjects string, elsewhere bool) error {
	n := 0
	for _, is := range []bool{c.Connection != nil, c.Dataplane != "", c.Invariant != "", elsewhere} {
		if is {
			n++
		}
	}
	if n != 1 {
		return fmt.Errorf("write one of %s; there are %d", subjects, n)
	}
	if c.Dataplane == "" && (c.Kind != "" || c.To != "" || c.From != "" || c.Field != "") {
		return fmt.Errorf("`kind`, `to`, `from` and `field` go with `dataplane`")
	}
	if c.Invariant == "" && c.Over != "" {
		return fmt.Errorf("`over` goes with `invariant`")
	}
	switch {
	case elsewhere:
		return nil
	case c.Connection != nil:
		if (c.Connection.From == "") == (len(c.Connection.FromTags) == 0) {
			return fmt.Errorf("write either `connection.from`, a dataplane, or `connection.fromTags`")
		}
		return c.OneOf(Allowed, Denied)
	case c.Invariant != "":
		if c.Over == "" {
			return fmt.Errorf("`over` is required: %s, %s or %s", OverConnections, OverDataplanes, OverRoutes)
		}
		if c.Expect != nil {
			return fmt.Errorf("an invariant is expected to be true everywhere: leave `expect` out")
		}
		return nil
	}
	d, known := Describe(c.Kind)
	switch {
	case c.Kind == "" || c.Field == "":
		return fmt.Errorf("`kind` and `field` are required: the setting that is expected")
	case !known || d.Class != SourceDestination && d.Class != TargetRef:
		return fmt.Errorf("`kind`: %q is no kind of policy for dataplanes", doctree.Clip(string(c.Kind)))
	case c.To != "" && c.From != "":
		return fmt.Errorf("write `to` for an outbound, or `from` for a caller, not both")
	case c.Expect == nil:
		return fmt.Errorf("`expect` is required: a value, a comparison such as \"<= 30s\", or null where nothing is to be set")
	}
	return nil
}

// OneOf demands that the expectation is one of two words.
func (c *TestCase) OneOf(words ...string) error {
	if !slices.Contains(words, c.Word()) {
		return fmt.Errorf("`expect` is required: %s or %s", words[0], words[1])
	}
	return nil
}

// Word returns the expectation if it is a string.
func (c *TestCase) Word() string {
	var word string
	if json.Unmarshal(c.Expect, &word) != nil {
		return ""
	}
	return word
}
