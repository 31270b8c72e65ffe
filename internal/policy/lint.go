package policy

import (
	"context"

	"meridian/internal/resource"
)

// Advice is something to tell the author of a resource that is accepted all the
// same.
type Advice struct {
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
