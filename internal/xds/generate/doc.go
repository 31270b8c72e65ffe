// Package generate is what the resources for every kind of proxy are made with: what
// policies come to on an outbound (Conf), how its requests are routed (Entry), its
// clusters and endpoints. Packages grpc and envoy make the resources themselves.
//
// Guarantees. Names of routes and clusters do not depend on policies, so that a change
// of a policy changes resources in place. A route to what cannot be fails requests; it
// never sends them elsewhere.
//
// Non-goals: matching, and what a dialect cannot express.
package generate
