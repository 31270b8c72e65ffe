// Package analysis finds what is accepted and probably not meant: policies and parts of
// policies that take effect nowhere, orders that names or times alone decide, targets
// that select nothing, roles that grant nothing or everything, meshes without mutual TLS.
//
// Guarantees. A finding has the same code, words and severity in `meridian lint`,
// `meridian analyze`, on `apply` and in the metrics of a zone, because there is one
// analysis. A policy with the code dead-policy, and a part of one with shadowed-rule, may be removed
// without a change of any answer about the dataplanes that were given. The work grows
// with the policies and dataplanes, and not with their product: what lies beyond a fixed
// amount of it is left out, and the report says so.
//
// Non-goals: reading files, deciding anything about requests.
package analysis
