package server

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAllowance(t *testing.T) {
	var told []int
	a := &allowance{percent: garbagePercent, set: func(percent int) int {
		told = append(told, percent)
		return 0
	}}
	now := time.Unix(1_800_000_000, 0)
	collections := func(every time.Duration, live ...uint64) []int {
		told = nil
		for _, l := range live {
			now = now.Add(every)
			a.adjust(l, now)
		}
		return told
	}
	const quiet, busy = time.Minute, busyInterval / 2
	require.Empty(t, collections(quiet, 1<<20, largeHeap-1, 1<<20))
	require.Equal(t, []int{garbagePercentLarge, garbagePercent}, collections(quiet, largeHeap, 1<<30, largeHeap, largeHeap-1, 1<<20), "it is set when it changes and not otherwise")
	require.Equal(t, []int{garbagePercentBusy}, collections(busy, 1<<20, 2<<20, 1<<20))
	require.Equal(t, []int{garbagePercentLarge, garbagePercentBusy}, collections(busy, largeHeap, 1<<30, largeHeap-1))
	require.Equal(t, []int{garbagePercent}, collections(quiet, 1<<20, 1<<20))
}

func TestAfterEveryCollection(t *testing.T) {
	var calls atomic.Int32
	afterCollection(func() { calls.Add(1) })
	for calls.Load() < 3 {
		runtime.GC()
	}
	require.Positive(t, liveHeap())
}
