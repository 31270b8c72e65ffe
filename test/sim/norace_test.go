//go:build !race

package sim

const (
	// defaultMinutes is how long each fault profile lasts.
	defaultMinutes = 10
	// shorter divides how long a schedule repeats itself.
	shorter = 1
)
