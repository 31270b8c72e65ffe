// Package aside does deep work beside a goroutine that will wait for long.
//
// A goroutine's stack grows to what its deepest call needs and shrinks only once
// less than a quarter of it is in use, which is never for one that waits inside
// a dozen frames. One that verifies a signature and then serves a proxy for days
// holds 16 KiB for the sake of a millisecond; ten thousand of them hold 160 MB.
// What is done aside grows a stack that is gone when the work is done.
//
// It is no way to do two things at once: the caller waits.
package aside

import (
	"fmt"
	"runtime/debug"
)

// Panic is what Do panics with when the work did: what it said and where.
type Panic struct {
	Value any
	Stack []byte
}

// Error implements error.
func (p *Panic) Error() string { return fmt.Sprintf("%v\n\n%s", p.Value, p.Stack) }

// Do calls work on a goroutine of its own and returns when it has returned. If
// work panics, Do does, with a *Panic, so that it can be recovered from where
// the work is waited for.
func Do(work func()) {
	done := make(chan *Panic)
	go func() {
		var failed *Panic
		defer func() { done <- failed }()
		defer func() {
			if value := recover(); value != nil {
				failed = &Panic{Value: value, Stack: debug.Stack()}
			}
		}()
		work()
	}()
	if failed := <-done; failed != nil {
		panic(failed)
	}
}
