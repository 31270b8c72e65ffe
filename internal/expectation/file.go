package expectation

import (
	"encoding/json"
	"fmt"
	"slices"

	"meridian/internal/doctree"
	"meridian/internal/resource"
)

// What an invariant can be over.
const (
	OverConnections = "connections"
	OverDataplanes  = "dataplanes"
	OverRoutes      = "routes"
)

// What a connection or an access can be expected to be.
const (
	Allowed = "allowed"
	Denied  = "denied"
	Yes     = "yes"
	No      = "no"
)

// File is a document of kind PolicyTest.
type File struct {
	// Source is the name of the file.
	Source string            `json:"-"`
	Kind   string            `json:"kind,omitempty"`
	Type   string            `json:"type,omitempty"`
	Name   string            `json:"name,omitempty"`
	Mesh   resource.MeshName `json:"mesh,omitempty"`
	Cases  []Case            `json:"cases" required:"true"`
}

// Case is one expectation. Exactly one of Connection, Dataplane, Invariant and Access
// says what it is about.
type Case struct {
	Name string `json:"name" required:"true" notEmpty:"true"`

	Connection *ConnectionCase `json:"connection,omitempty"`

	// Dataplane, Kind and Field ask for a setting: of the outbounds to the service To,
	// of what holds for calls from the dataplane From, or else of the dataplane and its
	// inbounds.
	Dataplane string        `json:"dataplane,omitempty"`
	Kind      resource.Kind `json:"kind,omitempty"`
	To        string        `json:"to,omitempty"`
	From      string        `json:"from,omitempty"`
	Field     string        `json:"field,omitempty"`

	Invariant string `json:"invariant,omitempty"`
	Over      string `json:"over,omitempty" enum:"connections|dataplanes|routes"`

	Access *AccessCase `json:"access,omitempty"`

	// Expect is the expectation as JSON; nil if there is none.
	Expect json.RawMessage `json:"expect,omitempty"`

	// line is where the case begins in its source, from 1.
	line int
}

// ConnectionCase is a connection between dataplanes of the file's mesh.
type ConnectionCase struct {
	From     string            `json:"from,omitempty"`
	FromTags map[string]string `json:"fromTags,omitempty"`
	To       string            `json:"to" required:"true" notEmpty:"true"`
	Port     uint32            `json:"port,omitempty" max:"65535"`
}

// AccessCase is a request of a user.
type AccessCase struct {
	As     string   `json:"as" required:"true" notEmpty:"true"`
	Groups []string `json:"groups,omitempty"`
	Verb   string   `json:"verb" required:"true" notEmpty:"true"`
	// File has the resources that the request is about. It is relative to the test.
	File string `json:"file,omitempty"`
}

// Parse reads a document of kind PolicyTest, and returns everything that is wrong with
// it.
func Parse(source string, document *doctree.Node) (*File, []resource.Problem) {
	f := &File{Source: source}
	problems := resource.DecodeInto(f, document)
	if len(problems) > 0 {
		return nil, problems
	}
	if f.Mesh == "" {
		f.Mesh = resource.DefaultMesh
	}
	seen := map[string]bool{}
	for i := range f.Cases {
		at := resource.Path("cases").Index(i)
		c := &f.Cases[i]
		c.line = doctree.LineAt(document, at)
		if err := c.check(); err != nil {
			problems = append(problems, resource.Problem{Path: at, Message: fmt.Sprintf("%q: %s", doctree.Clip(c.Name), err), Line: c.line})
		}
		if seen[c.Name] {
			problems = append(problems, resource.Problem{Path: at, Message: fmt.Sprintf("the name %q is taken by a case before: a report names cases by it", doctree.Clip(c.Name)), Line: c.line})
		}
		seen[c.Name] = true
	}
	return f, problems
}

// check reports a case that asks for nothing, or for several things.
func (c *Case) check() error {
	subjects := 0
	for _, is := range []bool{c.Connection != nil, c.Dataplane != "", c.Invariant != "", c.Access != nil} {
		if is {
			subjects++
		}
	}
	if subjects != 1 {
		return fmt.Errorf("write one of `connection`, `dataplane`, `invariant` and `access`; there are %d", subjects)
	}
	if c.Dataplane == "" && (c.Kind != "" || c.To != "" || c.From != "" || c.Field != "") {
		return fmt.Errorf("`kind`, `to`, `from` and `field` go with `dataplane`")
	}
	if c.Invariant == "" && c.Over != "" {
		return fmt.Errorf("`over` goes with `invariant`")
	}
	switch {
	case c.Connection != nil:
		if (c.Connection.From == "") == (len(c.Connection.FromTags) == 0) {
			return fmt.Errorf("write either `connection.from`, a dataplane, or `connection.fromTags`")
		}
		return c.oneOf(Allowed, Denied)
	case c.Access != nil:
		return c.oneOf(Yes, No)
	case c.Invariant != "":
		if c.Over == "" {
			return fmt.Errorf("`over` is required: %s, %s or %s", OverConnections, OverDataplanes, OverRoutes)
		}
		if c.Expect != nil {
			return fmt.Errorf("an invariant is expected to be true everywhere: leave `expect` out")
		}
		return nil
	}
	d, known := resource.Describe(c.Kind)
	switch {
	case c.Kind == "" || c.Field == "":
		return fmt.Errorf("`kind` and `field` are required: the setting that is expected")
	case !known || d.Class != resource.SourceDestination && d.Class != resource.TargetRef:
		return fmt.Errorf("`kind`: %q is no kind of policy for dataplanes", doctree.Clip(string(c.Kind)))
	case c.To != "" && c.From != "":
		return fmt.Errorf("write `to` for an outbound, or `from` for a caller, not both")
	case c.Expect == nil:
		return fmt.Errorf("`expect` is required: a value, a comparison such as \"<= 30s\", or null where nothing is to be set")
	}
	return nil
}

// oneOf demands that the expectation is one of two words.
func (c *Case) oneOf(words ...string) error {
	if !slices.Contains(words, c.word()) {
		return fmt.Errorf("`expect` is required: %s or %s", words[0], words[1])
	}
	return nil
}

// word returns the expectation if it is a string.
func (c *Case) word() string {
	var word string
	if json.Unmarshal(c.Expect, &word) != nil {
		return ""
	}
	return word
}
