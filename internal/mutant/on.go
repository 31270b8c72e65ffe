//go:build mutants

package mutant

import "os"

// active is the one bug of this run.
var active = Name(os.Getenv("MERIDIAN_MUTANT"))

// On reports whether a bug is planted.
func On(name Name) bool { return name == active }
