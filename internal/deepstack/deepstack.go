// Package deepstack runs what needs a deep stack on a goroutine of its own, for callers
// that then wait for days: the stack of a goroutine grows to the most that it ever had to
// hold, and shrinks only where less than a quarter of it is in use. Of ten thousand
// goroutines that wait, each has what its deepest call needed. For requests that are short
// and many, growing is what costs: Reserve has it done once.
//
// Guarantees: the function is over when Run returns, and what it wrote is visible to the
// caller. A panic is that of the caller.
//
// Non-goals: concurrency, cancellation.
package deepstack

import (
	"fmt"
	"runtime/debug"
)

// Run calls a function on another goroutine and waits for it. It passes on a panic, as an
// error that has the stack that it came from.
func Run(do func()) {
	ended := make(chan error)
	go func() {
		var panicked error
		defer func() { ended <- panicked }()
		defer func() {
			if value := recover(); value != nil {
				panicked = fmt.Errorf("%v\n\n%s", value, debug.Stack())
			}
		}()
		do()
	}()
	if panicked := <-ended; panicked != nil {
		panic(panicked)
	}
}

// Reserve has the stack of the calling goroutine grow to what a request needs, at once and
// while there is almost nothing on it. Grown as it is needed, it would be copied at each
// doubling, with all the calls that are on it by then. It is for goroutines that begin and
// end with a request.
//
//go:noinline
func Reserve() {
	var space [reserved]byte
	use(space[:])
}

// reserved is 16 KiB with what the runtime keeps free.
const reserved = 12 << 10

//go:noinline
func use(space []byte) { space[0] = 1 }
