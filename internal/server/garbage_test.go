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
		var a *allowance
		var last atomic.Uint64
		a = &allowance{percent: garbagePercent, set: func(percent int) int {
			told <- percent
			return 0
		}, giveBack: func() {
			told <- 0
			a.adjust(last.Load(), time.Now()) // it collects
		}}
		collections := func(every time.Duration, live ...uint64) (all []int) {
			for _, l := range live {
				<-time.After(every)
				last.Store(l)
				a.adjust(l, time.Now())
			}
			for len(told) > 0 {
				all = append(all, <-told)
			}
			return all
		}
		const quiet, busy = 2 * time.Minute, busyInterval / 2
		require.Empty(t, collections(quiet, 1<<20, largeHeap-1, 1<<20))
		require.Equal(t, []int{garbagePercentLarge, garbagePercent}, collections(quiet, largeHeap, 1<<30, largeHeap, largeHeap-1, 1<<20), "it is set when it changes and not otherwise")
		require.Equal(t, []int{garbagePercentBusy}, collections(busy, 1<<20, 2<<20, 1<<20))
		require.Equal(t, []int{garbagePercentLarge, garbagePercentBusy}, collections(busy, largeHeap, 1<<30, largeHeap-1))
		require.Equal(t, []int{garbagePercent, 0}, collections(quiet, 1<<20, 1<<20), "memory is given back once, when it is calm")
		require.Equal(t, []int{garbagePercentBusy, garbagePercentLarge}, collections(busy, 1<<20, 2<<20, largeHeap))
		require.Equal(t, []int{0}, collections(quiet, largeHeap, largeHeap), "also after a start that ends with a large heap")
		require.Empty(t, collections(quiet, largeHeap, largeHeap), "nothing stirs")
		require.Equal(t, []int{0, garbagePercent}, collections(stirInterval/2, largeHeap, largeHeap-1), "also after a large heap was collected seldom")
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
