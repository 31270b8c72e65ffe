package server

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestALargeHeapAllowsASmallerPart(t *testing.T) {
	var told []int
	a := &allowance{percent: garbagePercent, set: func(percent int) int {
		told = append(told, percent)
		return 0
	}}
	for _, live := range []uint64{1 << 20, largeHeap - 1, largeHeap, 1 << 30, largeHeap, largeHeap - 1, 1 << 20} {
		a.adjust(live)
	}
	require.Equal(t, []int{garbagePercentLarge, garbagePercent}, told, "it is set when it changes and not otherwise")
}

func TestAfterEveryCollection(t *testing.T) {
	var calls atomic.Int32
	afterCollection(func() { calls.Add(1) })
	for calls.Load() < 3 {
		runtime.GC()
	}
	require.Positive(t, liveHeap())
}
