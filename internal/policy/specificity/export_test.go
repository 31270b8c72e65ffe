package specificity

import (
	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Ties returns the policies that tie with one: among those that its terms lead to, and
// by the definition, among all of its kind.
func Ties(view policy.View, r *resource.Resource) (byTerms, byDefinition []resource.Key) {
	matching := policy.MeshOf(view, r.Key().Mesh).Matching.SourceDestination
	s := Engine{}.Survey(view).(*survey)
	s.left = 1 << 30
	for other := range s.mayTie(r, matching) {
		if s.equal(s.policy(r), s.policy(other), matching) {
			byTerms = append(byTerms, other.Key())
		}
	}
	for other := range view.List(r.Key().Kind, r.Key().Mesh) {
		if s.equal(s.policy(r), s.policy(other), matching) {
			byDefinition = append(byDefinition, other.Key())
		}
	}
	return byTerms, byDefinition
}

// Decoded returns how many policies are decoded at most for the advice on a batch, and how
// many are for that on this one.
func Decoded(view policy.View, batch []*resource.Resource) (most, decoded int) {
	s := Engine{}.Survey(view).(*survey)
	for _, r := range batch {
		s.Advise(view, r)
	}
	return maxComparisons/decoding + 1, len(s.compiled)
}
