package server

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAllowance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan int, 10)
		a := &allowance{percent: garbagePercent, set: func(percent int) int {
			told <- percent
			return 0
		}, giveBack: func() { told <- 0 }}
		collections := func(every time.Duration, live ...uint64) (all []int) {
			for _, l := range live {
				<-time.After(every)
				a.adjust(l, time.Now())
			}
			for len(told) > 0 {
				all = append(all, <-told)
			}
			return all
		}
		const quiet, busy = time.Minute, busyInterval / 2
		require.Empty(t, collections(quiet, 1<<20, largeHeap-1, 1<<20))
		require.Equal(t, []int{garbagePercentLarge, garbagePercent}, collections(quiet, largeHeap, 1<<30, largeHeap, largeHeap-1, 1<<20), "it is set when it changes and not otherwise")
		require.Equal(t, []int{garbagePercentBusy}, collections(busy, 1<<20, 2<<20, 1<<20))
		require.Equal(t, []int{garbagePercentLarge, garbagePercentBusy}, collections(busy, largeHeap, 1<<30, largeHeap-1))
		require.Equal(t, []int{garbagePercent, 0}, collections(quiet, 1<<20, 1<<20), "memory is given back once, when it is calm")
		require.Equal(t, []int{garbagePercentBusy, garbagePercentLarge}, collections(busy, 1<<20, 2<<20, largeHeap))
		require.Equal(t, []int{0}, collections(quiet, largeHeap, largeHeap), "also after a start that ends with a large heap")
	})
}

func TestAfterEveryCollection(t *testing.T) {
	var calls atomic.Int32
	afterCollection(func() { calls.Add(1) })
	for calls.Load() < 3 {
		runtime.GC()
	}
	require.Positive(t, liveHeap())
}
