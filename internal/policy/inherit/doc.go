// Package inherit computes the effective rules of the policies that are inherited
// along a hierarchy (§5): AuthPolicy and RateLimitPolicy, over Gateway,
// listener, HTTPRoute or GRPCRoute, and route rule.
//
// An effective policy is a reduction along a path: the accepted policies of a
// path, from the most specific to the least, each with a block of defaults and
// one of overrides, are steps of the one fold in internal/policy. Origins, losers,
// unset and skipped rules, and the conditions of policies and of their targets are
// derived from the effects of those same steps.
//
// Guarantees. The result depends on the set of resources only. A policy that is
// not accepted has no effect at all. A condition that cannot be evaluated
// affects only its own block, on its own path. Index follows changes: what
// a change cannot affect is not computed again.
//
// Non-goals: attaching policies to dataplanes; the engines of §3 and §4 do that.
//
// Reading order: schema.go (the two kinds), compile.go (a policy), hierarchy.go
// (gateways, routes and how they meet), fold.go (one path), index.go (all of
// them), status.go and reach.go (what is reported).
package inherit
