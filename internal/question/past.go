package question

import (
	"fmt"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// ReasonNotTold is the reason with which a zone refuses a question about an earlier state
// that is given by its name alone: it does not keep what it was told under that name.
const ReasonNotTold = "NOT_TOLD"

// HasPast reports whether a question can be asked about an earlier state: it is about
// policies, and not about what is connected now.
func HasPast(q Question) bool {
	switch q.(type) {
	case Dataplane, Connection, Policy, Route, Gateway, Why:
		return true
	}
	return false
}

// Absent says of a question about a policy that did not exist at a revision that it did
// not. Its error is answer.ErrNotFound.
func Absent(q Question, mesh resource.MeshName, then policy.View, revision resource.Revision) error {
	about, ok := q.(Policy)
	if !ok {
		return nil
	}
	if _, existed := then.Get(resource.Key{Kind: about.Kind, Mesh: mesh, Name: about.Name}); existed {
		return nil
	}
	return fmt.Errorf("%s %q in mesh %q: %w at revision %d: `meridian history %s %s` lists its writes", about.Kind, about.Name, mesh, answer.ErrNotFound, revision, about.Kind, about.Name)
}
