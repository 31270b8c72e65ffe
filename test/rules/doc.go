// Package rules checks the citations of rules and invariants.
//
// Guarantees: a rule that code, a test, a page or an answer cites exists in
// docs/semantics, and an invariant in docs/replication.md; every rule is cited
// by a test; every scenario, test and page that the pages name exists.
//
// Non-goals: whether a test is a good one.
package rules
