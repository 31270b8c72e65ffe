// Package livematch keeps a policy.Matcher in step with the stores whose
// resources it matches: a zone's replica and what the zone owns, or the
// global's state.
//
// Guarantee: an answer reflects everything that was applied when the query came,
// in complete batches, and names its revision (§7.2). The matcher follows the
// stores' feeds, and compares states where a feed no longer reaches back.
//
// Non-goals: matching itself, which is internal/policy's.
package livematch
