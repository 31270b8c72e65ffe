// Package parallel runs a loop on all processors: what servers do once for each of very
// many resources when they start.
//
// Guarantee: the loop is done when For returns. Non-goals: errors, cancellation, order.
// A body writes what it found to a place of its own, such as the element of a slice.
package parallel

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// portion is how many steps a processor takes at a time: many against what it costs to
// take them, few against what another would wait for at the end.
const portion = 128

// For calls do with ranges that together are 0 to n, each number once: concurrently where
// there are many, else in one call. It returns when all calls have.
func For(n int, do func(from, to int)) {
	workers := min(runtime.GOMAXPROCS(0), (n+portion-1)/portion)
	if workers <= 1 {
		if n > 0 {
			do(0, n)
		}
		return
	}
	var next atomic.Int64
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for {
				to := int(next.Add(portion))
				if to-portion >= n {
					return
				}
				do(to-portion, min(to, n))
			}
		})
	}
	group.Wait()
}
