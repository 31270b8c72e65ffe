// Package inherit computes the effective rules of the policies that flow down a
// hierarchy (§5): AuthPolicy and RateLimitPolicy, over Gateway,
// listener, HTTPRoute or GRPCRoute, and route rule.
//
// An effective policy is a reduction along a path: the accepted policies of a
// path, from the most specific to the least, each with a block of defaults and
// one of overrides, are steps of the one fold in internal/policy. Everything
// that is told about the result, origins, losers, unset and skipped rules,
// conditions of policies and of their targets, is read off the effects of those
// same steps.
//
// Guarantees. The result depends on the set of resources only. A policy that is
// not accepted has no effect at all. A condition that cannot be decided never
// stops anything but its own block, on its own path. Index follows changes: what
// a change cannot touch is not computed again.
//
// It refuses to attach policies to dataplanes; that is what the engines of
// §3 and §4 do.
//
// Reading order: schema.go (the two kinds), compile.go (a policy), hierarchy.go
// (gateways, routes and how they meet), fold.go (one path), index.go (all of
// them), status.go and reach.go (what is told).
package inherit
