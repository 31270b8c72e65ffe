package policy

import (
	"context"
	"iter"
	"slices"

	"meridian/internal/resource"
)

// Advice is something to tell the author of a resource that is accepted all the
// same.
type Advice struct {
	// Source is where the resource is written, such as a file and line; empty when
	// unknown.
	Source string
	// Key is the resource; empty where the advice is about a whole request.
	Key resource.Key
	resource.Problem
}

// Lint collects what surveyors have to say about resources as they are written,
// in the order of the resources. view is what they stand in once written. It looks
// at no further resource once ctx has ended, and returns the error of ctx then.
func Lint(ctx context.Context, view View, resources []*resource.Resource, surveyors ...Surveyor) ([]Advice, error) {
	advisers := make([]Adviser, len(surveyors))
	for i, s := range surveyors {
		advisers[i] = s.Survey(view)
	}
	var advice []Advice
	for _, r := range resources {
		for _, a := range advisers {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			for _, p := range a.Advise(view, r) {
				advice = append(advice, Advice{Key: r.Key(), Problem: p})
			}
		}
	}
	return advice, nil
}

// Standing is what an author would be warned of if a stored resource were written now:
// what its spec alone shows, what surveyors say of it, and its conditions that only they
// know. Notes are left out. Fleet are the warnings that rest on the dataplanes of the
// view.
func Standing(view View, r *resource.Resource, surveyors ...Surveyor) (always, fleet []resource.Problem, conditions []Condition) {
	_, problems, err := resource.Build(r.Meta(), r.Canonical())
	if err != nil {
		return nil, nil, nil // this release cannot read it: its answers say so
	}
	warns := func(p resource.Problem) bool { return p.Severity == resource.Warning }
	always = filter(problems, warns)
	for _, s := range surveyors {
		always = append(always, filter(warningsOf(s.Survey(withoutDataplanes{view}), view, r), warns)...)
	}
	for _, s := range surveyors {
		adviser := s.Survey(view)
		fleet = append(fleet, filter(warningsOf(adviser, view, r), func(p resource.Problem) bool { return warns(p) && !slices.Contains(always, p) })...)
		if judge, ok := adviser.(Judge); ok {
			conditions = append(conditions, judge.Conditions(r)...)
		}
	}
	return always, fleet, conditions
}

// warningsOf is what an adviser says of a resource, without notes where it can leave them
// out.
func warningsOf(a Adviser, view View, r *resource.Resource) []resource.Problem {
	if w, ok := a.(Warner); ok {
		return w.Warnings(view, r)
	}
	return a.Advise(view, r)
}

func filter(all []resource.Problem, keep func(resource.Problem) bool) []resource.Problem {
	return slices.DeleteFunc(all, func(p resource.Problem) bool { return !keep(p) })
}

// withoutDataplanes is a view in which no dataplane is known, as on a global.
type withoutDataplanes struct{ View }

// Get implements View.
func (v withoutDataplanes) Get(key resource.Key) (*resource.Resource, bool) {
	if key.Kind == resource.KindDataplane {
		return nil, false
	}
	return v.View.Get(key)
}

// List implements View.
func (v withoutDataplanes) List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource] {
	if kind == resource.KindDataplane {
		return func(func(*resource.Resource) bool) {}
	}
	return v.View.List(kind, mesh)
}

// ListBy implements TermLister.
func (v withoutDataplanes) ListBy(kind resource.Kind, mesh resource.MeshName, prefix string) (iter.Seq[*resource.Resource], bool) {
	if lister, ok := v.View.(TermLister); ok && kind != resource.KindDataplane {
		return lister.ListBy(kind, mesh, prefix)
	}
	return nil, false
}
