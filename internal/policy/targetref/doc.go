// Package targetref is the engine of the targetRef policies (§4): all
// policies that select a dataplane are ordered and merged field by field.
//
// A policy's top-level target decides which dataplanes it selects and its
// priority; its `to` and `from` items name outbounds and callers. Every item that
// selects an attachment becomes a step,
// the highest priority first; all steps are merged defaults, so the first step
// that has a field sets it. Overrides stand above all defaults and so come first
// (§4.10). What holds for callers stays an ordered list: nothing here
// enumerates combinations of callers, whose number is exponential in their tags.
//
// Reading order: engine.go (the order of policies), compile.go (a policy made
// ready), scope.go (which dataplanes and attachments), walk.go (from the order
// of policies to the order of steps), condition.go (when), precedence.go (the
// reasons), warnings.go (both generations at once), advise.go and survey.go
// (what an author should know).
//
// Guarantees: a target that does not exist selects nothing; when a condition
// cannot be evaluated, its block's onError decides. Non-goals: inherited policies
// (§5).
package targetref
