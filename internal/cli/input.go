package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/policy"
	"meridian/internal/resource"
)

// maxProblemsListed bounds what is listed of an invalid input, such as -f with the
// wrong directory.
const maxProblemsListed = 50

// meshFlag is -m and whether the user gave it.
type meshFlag struct {
	name string
	cmd  *cobra.Command
}

func bindMesh(cmd *cobra.Command) *meshFlag {
	m := &meshFlag{cmd: cmd}
	cmd.Flags().StringVarP(&m.name, "mesh", "m", string(resource.DefaultMesh), "mesh")
	return m
}

func (m *meshFlag) explicit() bool { return m.cmd.Flags().Changed("mesh") }

// check refuses a name that no mesh can have, before it is sent anywhere.
func (m *meshFlag) check() error {
	if err := resource.CheckName(m.name); err != nil {
		return exit.Usagef("--mesh: %w", err)
	}
	return nil
}

// load reads all documents of a command. Every problem of every document is
// reported at once; the error is then a failure with exit code 2. Warnings are
// left to advise: a server that receives the documents returns them itself.
func (a *app) load(from *sources, mesh *meshFlag) ([]resource.Document, error) {
	if err := mesh.check(); err != nil {
		return nil, err
	}
	return a.loadDocuments(from, resource.DecodeOptions{
		Mesh: resource.MeshName(mesh.name), MeshExplicit: mesh.explicit(),
	})
}

func (a *app) loadDocuments(from *sources, options resource.DecodeOptions) ([]resource.Document, error) {
	documents, err := from.load(a.stdin, options)
	if err != nil {
		return nil, inputFailure(err)
	}
	return documents, nil
}

func resourcesOf(documents []resource.Document) []*resource.Resource {
	resources := make([]*resource.Resource, len(documents))
	for i, d := range documents {
		resources[i] = d.Resource
	}
	return resources
}

// inputFailure reports what is wrong with the input: a single problem on the
// first line, several below a line that counts them.
func inputFailure(err error) error {
	var documents resource.DocumentErrors
	if !errors.As(err, &documents) {
		return err
	}
	lines := exit.Lines(documents.Error())
	if len(lines) == 1 {
		return &exit.Failure{Code: exit.Usage, Err: err}
	}
	f := &exit.Failure{Code: exit.Usage, Err: &countedProblems{len(lines), err}}
	for i, line := range lines {
		if i == maxProblemsListed {
			f.Details = append(f.Details, fmt.Sprintf("  … and %d more", len(lines)-i))
			break
		}
		f.Details = append(f.Details, "  "+line)
	}
	return f
}

// countedProblems says how many problems the input has.
type countedProblems struct {
	n     int
	cause error
}

func (c *countedProblems) Error() string {
	return print.Plural(c.n, "problem") + " in the input; nothing was done"
}
func (c *countedProblems) Unwrap() error { return c.cause }

// remarksOf is what the decoder says of documents that it accepted.
func remarksOf(documents []resource.Document) []policy.Advice {
	var remarks []policy.Advice
	for i := range documents {
		d := &documents[i]
		for _, p := range d.Problems {
			remarks = append(remarks, policy.Advice{Source: d.Source, Key: d.Resource.Key(), Problem: p})
		}
	}
	return remarks
}

// advise writes warnings and notes, those of one cause in one line.
func (a *app) advise(advice []policy.Advice) (warned bool) {
	groups := policy.Groups(advice)
	for i := range groups {
		if groups[i].Severity == resource.Warning {
			warned = true
			a.Warn(groups[i].String())
		} else {
			a.Message("Note: %s", &groups[i])
		}
	}
	return warned
}
