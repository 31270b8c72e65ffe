//go:build race

package sim

// The race detector makes a virtual minute ten times as dear, and looks for what
// the first minutes show as well as the later ones.
const (
	defaultMinutes = 2
	shorter        = 6
)
