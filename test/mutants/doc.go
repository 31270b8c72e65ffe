// Package mutants shows that the tests notice the bugs they are there to find.
// Each planted bug (package internal/mutant) is switched on in turn, and the
// tests that guard the promise it breaks are run: they have to fail.
package mutants
