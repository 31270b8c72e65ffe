// Package policy decides which policies take effect where, and says why.
//
// A zone, the global and offline evaluation all run it and get the same bytes.
// Three generations of policies exist (§3, §4, §5), each with its own
// subpackage; an Engine only selects policies and orders them, as Steps. One Fold
// merges steps into a configuration that records, for every field, the policy that
// set it. The steps are also the explanation: there is no second code path that
// could disagree with the first (§2.2).
//
// Guarantees. The result depends on the set of resources only: not on their
// order, nor on map order, clock or locale (§2.3). Nothing is ever
// written to an input. A Matcher is safe for concurrent use; the cost of an
// update grows with what the change can touch, not with what exists. A policy that
// concerns no dataplane takes a place in an index, and is compiled when one needs it.
//
// Non-goals: the source of resources. The package imports neither the store nor
// any transport, and reads through the small View below.
//
// Reading order: tree.go and fold.go (what a step does), rule.go (steps and
// their reasons), engine.go (what an engine is asked), subject.go (what
// policies attach to), index.go, matcher.go and update.go (speed), reading.go
// (what answers are made from).
package policy
