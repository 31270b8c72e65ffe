package policy

import (
	"meridian/internal/resource"
)

// Advice is something to tell the author of a resource that is accepted all the
// same.
type Advice struct {
	Key resource.Key
	resource.Problem
}

// Lint collects what surveyors have to say about resources as they are written,
// in the order of the resources. view is what they stand in once written.
func Lint(view View, resources []*resource.Resource, surveyors ...Surveyor) []Advice {
	advisers := make([]Adviser, len(surveyors))
	for i, s := range surveyors {
		advisers[i] = s.Survey(view)
	}
	var advice []Advice
	for _, r := range resources {
		for _, a := range advisers {
			for _, p := range a.Advise(view, r) {
				advice = append(advice, Advice{Key: r.Key(), Problem: p})
			}
		}
	}
	return advice
}
