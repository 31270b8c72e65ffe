// Package kinds spells kinds out, for the test to find.
package kinds

const timeout = "Timeout"

var rules = []string{timeout, "AccessRole", "not a kind"}
