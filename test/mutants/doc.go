// Package mutants shows that the tests detect the bugs that they are there to
// find. Each mutant is the product with one deliberate bug, put in by `go test
// -overlay`: the product's own files hold none. The tests that guard the
// invariant it breaks are run on it, and have to fail.
//
// Non-goals: mutating code at random, and measuring coverage.
package mutants
