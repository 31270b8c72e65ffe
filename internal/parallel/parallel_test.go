package parallel_test

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/parallel"
)

func TestEveryStepIsDoneOnce(t *testing.T) {
	for _, n := range []int{0, 1, 127, 128, 129, 1000, 12_345} {
		done := make([]atomic.Int32, n)
		parallel.For(n, func(from, to int) {
			for i := from; i < to; i++ {
				done[i].Add(1)
			}
		})
		for i := range done {
			require.EqualValues(t, 1, done[i].Load(), "step %d of %d", i, n)
		}
	}
}

// A loop over few elements begins no goroutine; one over many waits for calls that run at
// the same time.
func TestManyStepsAreDoneAtTheSameTime(t *testing.T) {
	calls := 0
	parallel.For(128, func(int, int) { calls++ })
	require.Equal(t, 1, calls)

	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	var running atomic.Int32
	both := make(chan struct{})
	parallel.For(256, func(int, int) {
		if running.Add(1) == 2 {
			close(both)
		}
		<-both // forever, were they one after the other
	})
}
