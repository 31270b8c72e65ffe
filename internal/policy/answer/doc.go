// Package answer builds the documents of docs/contract.md that inspect, why and
// eval return: the effective policies of a dataplane, whether a connection is
// allowed, where a policy takes effect, and why.
//
// Guarantees: a zone, the global that forwards a query, and offline evaluation
// give the same bytes for the same resources, since only this package builds and
// encodes the documents. Every verdict and every reason comes from the steps that
// matching used. Text is rendered from the same document as JSON.
//
// Non-goals: deciding anything; reading anything but the given matcher.
package answer
