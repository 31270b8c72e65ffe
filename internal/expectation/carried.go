package expectation

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
)

const (
	// carriedTime bounds the tests of all meshes that a batch touches, and carriedCost one evaluation
	// of an invariant, in units of CEL's cost.
	carriedTime = 5 * time.Second
	carriedCost = 5_000
	// carriedZone is the zone of dataplanes of a MeshTest that name none.
	carriedZone = "default"
)

// ErrTestTime is why tests of a mesh are given up.
var ErrTestTime = fmt.Errorf("the tests of the meshes of a batch take longer than %s: have fewer invariants and dataplanes in its MeshTest, or write fewer meshes at once", carriedTime)

// WithTestTime returns a context for the tests of all meshes that a batch touches, that ends with ErrTestTime.
func WithTestTime(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, carriedTime, ErrTestTime)
}

// Carried runs the tests that meshes carry. It is safe for concurrent use.
type Carried struct {
	conditions, invariants *condition.Compiler
}

// NewCarried returns what runs the tests that meshes carry.
func NewCarried() (*Carried, error) {
	conditions, err := condition.NewCompiler(condition.DefaultOptions())
	if err != nil {
		return nil, err
	}
	options := condition.DefaultOptions()
	options.Variables, options.CostLimit = []string{"c", "d"}, carriedCost
	invariants, err := condition.NewCompiler(options)
	return &Carried{conditions, invariants}, err
}

// Run runs the tests of a MeshTest, as RunAt, for a server.
func (c *Carried) Run(ctx context.Context, view policy.View, tests *resource.Resource) (*Report, error) {
	return c.RunAt(ctx, view, tests, tests.Key().String(), nil)
}

// RunAt runs the tests of a MeshTest on what there is of its mesh in a view: its policies,
// and in place of its dataplanes those of the tests. It fails with the cause of ctx.
// source and the lines of the cases are for the report.
func (c *Carried) RunAt(ctx context.Context, view policy.View, tests *resource.Resource, source string, lines []int) (*Report, error) {
	spec, ok := tests.Spec().(*resource.MeshTest)
	if !ok {
		return nil, fmt.Errorf("%s is no MeshTest", tests.Key())
	}
	mesh := tests.Key().Mesh
	resources, err := dataplanesOf(mesh, spec)
	if err != nil {
		return nil, err
	}
	if m, ok := view.Get(resource.Key{Kind: resource.KindMesh, Name: string(mesh)}); ok {
		resources = append(resources, m)
	}
	for _, d := range resource.Kinds() {
		if !TestedBy(d) {
			continue
		}
		for r := range view.List(d.Kind, mesh) {
			resources = append(resources, r)
		}
	}
	offline, err := policy.Offline(resources, carriedZone, false)
	if err != nil {
		return nil, err
	}
	matcher := engines.NewMatcher(c.conditions)
	matcher.Reset(offline)
	file := &File{Source: source, Mesh: mesh}
	for i := range spec.Cases {
		made := Case{TestCase: spec.Cases[i]}
		if i < len(lines) {
			made.line = lines[i]
		}
		file.Cases = append(file.Cases, made)
	}
	return newRunner(&Offline{Matcher: matcher, Zone: carriedZone}, c.invariants).Run(ctx, []*File{file})
}

// TestedBy reports whether resources of a mesh of some kind, beside the Mesh itself,
// decide about the tests that the mesh carries.
func TestedBy(d *resource.Descriptor) bool {
	return d.Scope == resource.MeshScoped && d.Owner == resource.OwnedByGlobal && !d.Sensitive && d.Kind != resource.KindMeshTest
}

// dataplanesOf are the dataplanes of a MeshTest as resources.
func dataplanesOf(mesh resource.MeshName, spec *resource.MeshTest) ([]*resource.Resource, error) {
	var all []*resource.Resource
	for i := range spec.Dataplanes {
		d := &spec.Dataplanes[i]
		data, err := json.Marshal(&d.Dataplane)
		if err != nil {
			return nil, fmt.Errorf("dataplane %s: %w", d.Name, err)
		}
		r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindDataplane, Mesh: mesh, Name: d.Name}}, data)
		if err != nil {
			return nil, fmt.Errorf("dataplane %s: %w", d.Name, err)
		}
		all = append(all, r)
	}
	return all, nil
}
