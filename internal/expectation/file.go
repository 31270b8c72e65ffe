package expectation

import (
	"fmt"

	"meridian/internal/doctree"
	"meridian/internal/resource"
)

// What a connection or an access can be expected to be.
const (
	Allowed = resource.Allowed
	Denied  = resource.Denied
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

// Case is one expectation: that of a resource.TestCase, or of Access.
type Case struct {
	resource.TestCase

	Access *AccessCase `json:"access,omitempty"`

	// line is where the case begins in its source, from 1.
	line int
}

// ConnectionCase is a connection between dataplanes of the file's mesh.
type ConnectionCase = resource.TestConnection

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
	if err := c.Check("`connection`, `dataplane`, `invariant` and `access`", c.Access != nil); err != nil || c.Access == nil {
		return err
	}
	return c.OneOf(Yes, No)
}
