// Package livematch keeps a policy.Matcher in step with the stores whose
// resources it matches: a zone's replica and what the zone owns, or the
// global's state.
//
// An answer reflects everything that was applied when the question came, in
// whole batches, and says the revision it holds for (§7.2). The
// matcher follows the stores' feeds, and compares states where a feed no longer
// reaches back.
//
// It refuses to decide anything: what matches is internal/policy's.
package livematch
