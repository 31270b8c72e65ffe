// Package specificity is the engine of the source/destination policies
// (§3): of all policies of a kind that match, the most specific one
// takes effect.
//
// A policy is ranked by how many tags it matches by, then by how many of those
// it requires with an exact value; a mesh chooses how ties are broken, and whether
// permissions add up (KongMesh or Kuma2020, §1.4). Every policy that
// matches becomes a step, the most specific first, and an atomic default, so
// that the first one decides. Inbounds hold one step per source instead: the
// callers are not known yet. Permissions, which have nothing to set, are merged
// defaults: where several match they add up.
//
// Non-goals: merging policies. An author who needs both combines them into one.
package specificity
