// Package specificity is the engine of the source/destination policies
// (SEMANTICS §3): of all policies of a kind that match, the most specific one
// takes effect.
//
// A policy is ranked by how many tags it matches by, then by how many of those
// it wants with an exact value; a mesh chooses how ties are broken, and whether
// permissions add up (KongMesh or Kuma2020, SEMANTICS §1.4). Every policy that
// matches becomes a step, the most specific first; all steps are atomic
// defaults, so the first one decides.
//
// It refuses to merge two policies: whoever wants both combines them into one.
package specificity
