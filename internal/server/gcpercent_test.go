package server

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGCPercentFollowsLoad(t *testing.T) {
	now := time.Unix(0, 0)
	var set []int
	released := 0
	p := newGCPercent(func(percent int) { set = append(set, percent) }, func() { released++ }, now)
	cycles := uint64(0)
	// seconds passes time in which a heap of a size is collected so often a second.
	seconds := func(n int, live, collections uint64) {
		set, released = nil, 0
		for range n {
			now, cycles = now.Add(time.Second), cycles+collections
			p.observe(memoryState{live: live, cycles: cycles}, true, now)
		}
	}
	require.Equal(t, []int{percentBusy}, set, "a start is mostly allocation")
	seconds(10, 1<<20, 0)
	require.Equal(t, []int{percentIdle}, set, "it is set when it changes and not otherwise")
	require.Equal(t, 1, released, "what the start left is released once")
	seconds(10, 1<<20, 1)
	require.Empty(t, set, "one collection a second is not a burst")
	require.Zero(t, released)
	seconds(10, 1<<20, 2)
	require.Equal(t, []int{percentBusy}, set)
	require.Zero(t, released, "not while it is busy")
	seconds(10, 1<<20, 0)
	require.Equal(t, []int{percentIdle}, set)
	require.Equal(t, 1, released)
	seconds(10, largeHeap, 1)
	require.Equal(t, []int{percentLarge, percentMost}, set)
	require.Zero(t, released, "a large heap that is collected again and again is in use")
	for _, live := range []uint64{largeHeap + 1, 250 << 20, 350 << 20} {
		seconds(10, live, 1)
		require.LessOrEqual(t, live+live*uint64(p.percent)/100, uint64(maxMemory)) //nolint:gosec // not negative
		require.Greater(t, p.percent, percentLarge)
	}
	seconds(10, 470<<20, 1)
	require.Equal(t, []int{percentLarge}, set, "what is alive may take so much more")
	seconds(10, 1<<30, 1)
	require.Equal(t, []int{percentHuge}, set, "what cannot be bounded is not collected all the time")
	seconds(10, 300<<20, 1)
	require.Equal(t, []int{60}, set)
	seconds(10, 300<<20, 0)
	require.Equal(t, []int{percentLarge}, set)
	require.Equal(t, 1, released)
}

// A server with a large heap that starts is not idle, however far its collections are apart:
// it has as much garbage as a start may have, and what it has is not returned on the way.
func TestGCPercentOfASlowStart(t *testing.T) {
	now := time.Unix(0, 0)
	percent, released := 0, 0
	p := newGCPercent(func(set int) { percent = set }, func() { released++ }, now)
	for range 20 {
		now = now.Add(time.Second)
		p.observe(memoryState{live: 600 << 20, cycles: 7}, false, now)
		require.Equal(t, 85, percent)
	}
	require.Zero(t, released)
	for range 4 {
		now = now.Add(time.Second)
		p.observe(memoryState{live: 600 << 20, cycles: 7}, true, now)
	}
	require.Equal(t, percentLarge, percent)
	require.Equal(t, 1, released)
}

// A server with a large heap that allocates is busy, however far its collections are apart:
// a million resources may have 400 MiB of garbage. When it is idle, that is released while
// there may be as much: else the collection would have everything wait for it.
func TestGCPercentOfALargeHeapInUse(t *testing.T) {
	now := time.Unix(0, 0)
	var did []int
	const released = -1
	p := newGCPercent(func(set int) { did = append(did, set) }, func() { did = append(did, released) }, now)
	allocated := uint64(0)
	second := func(bytes uint64) {
		now, allocated = now.Add(time.Second), allocated+bytes
		p.observe(memoryState{live: 800 << 20, cycles: 7, allocated: allocated}, true, now)
	}
	for range 20 {
		second(busyBytes)
	}
	require.Equal(t, []int{percentBusy, percentHuge}, did)
	for range 20 {
		second(busyBytes / 4)
	}
	require.Equal(t, []int{percentBusy, percentHuge, released, percentLarge}, did)
}

// Single collections of a large heap are those of an idle server: they have no other one
// follow that releases memory.
func TestGCPercentOfALargeIdleHeap(t *testing.T) {
	now := time.Unix(0, 0)
	percent, released := 0, 0
	p := newGCPercent(func(to int) { percent = to }, func() { released++ }, now)
	cycles := uint64(0)
	seconds := func(n int, collections uint64) {
		for range n {
			now, cycles = now.Add(time.Second), cycles+collections
			p.observe(memoryState{live: 140 << 20, cycles: cycles}, true, now)
			collections = 0
		}
	}
	seconds(10, 3)
	require.Equal(t, percentLarge, percent)
	require.Equal(t, 1, released)
	for range 5 {
		seconds(int(apart/time.Second), 1)
		require.Equal(t, percentLarge, percent)
	}
	require.Equal(t, 1, released)
	seconds(int(apart/time.Second)-1, 1)
	seconds(1, 1)
	require.Greater(t, percent, percentLarge, "one that soon follows another")
	seconds(3, 0)
	require.Equal(t, percentLarge, percent)
	require.Equal(t, 2, released)
}

// A small heap that is collected many times a second, and not for a moment only, may have
// more garbage until the server is idle, however seldom it is collected then.
func TestGCPercentOfASmallBusyHeap(t *testing.T) {
	now := time.Unix(0, 0)
	percent, released := 0, 0
	p := newGCPercent(func(to int) { percent = to }, func() { released++ }, now)
	cycles := uint64(0)
	second := func(live, collections uint64) {
		now, cycles = now.Add(time.Second), cycles+collections
		p.observe(memoryState{live: live, cycles: cycles}, true, now)
	}
	second(32<<20, 6)
	require.Equal(t, percentBusy, percent, "a burst")
	second(32<<20, 1)
	second(32<<20, 6)
	require.Equal(t, percentBusy, percent, "another")
	second(32<<20, 6)
	require.Equal(t, 300, percent)
	for range 20 {
		second(32<<20, 1) // as many as three at 100 %
		second(32<<20, 0)
	}
	require.Equal(t, 300, percent, "fewer collections are what it is for")
	require.Zero(t, released)
	second(4<<20, 1)
	require.Equal(t, percentSmall, percent)
	second(127<<20, 1)
	require.Equal(t, percentBusy, percent, "what is alive may take so much again in any case")
	for range 3 {
		second(32<<20, 0)
	}
	require.Equal(t, percentIdle, percent)
	require.Equal(t, 1, released)
	second(32<<20, 6)
	require.Equal(t, percentBusy, percent, "it begins anew")
}

// A server may have more garbage until it is ready: it allocates much more than it keeps.
func TestGCPercentOfAStart(t *testing.T) {
	for _, c := range []struct {
		live            uint64
		starting, after int
	}{
		{largeHeap - 1, percentBusy, percentBusy},
		{largeHeap, percentMost, percentMost},
		{400 << 20, 125, percentLarge},
		{600 << 20, 85, percentHuge},
		{800 << 20, 60, percentHuge},
		{2 << 30, percentHuge, percentHuge},
	} {
		now := time.Unix(0, 0)
		p := newGCPercent(func(int) {}, func() {}, now)
		cycles := uint64(0)
		busy := func(started bool) {
			now, cycles = now.Add(time.Second), cycles+2
			p.observe(memoryState{live: c.live, cycles: cycles}, started, now)
		}
		busy(false)
		require.Equal(t, c.starting, p.percent, "%d bytes", c.live)
		busy(true)
		require.Equal(t, c.after, p.percent, "%d bytes", c.live)
	}
}

// What the runtime has beside the heap counts, as do the stacks that GOGC is a part of: a
// zone with thousands of proxies has half as much of it as alive on the heap.
func TestGCPercentOfManyStacks(t *testing.T) {
	for _, c := range []struct {
		rule    string
		memory  memoryState
		percent int
	}{
		{"the heap alone", memoryState{live: 256 << 20}, 85},
		{"stacks count half as much again", memoryState{live: 256 << 20, beside: 64 << 20}, 50},
		{"a part of heap and stacks", memoryState{live: 256 << 20, scanned: 64 << 20, beside: 64 << 20}, 40},
		{"a heap that fills it", memoryState{live: 440 << 20, beside: 10 << 20}, 20},
		{"stacks fill it", memoryState{live: 250 << 20, scanned: 80 << 20, beside: 200 << 20}, percentLeast},
		{"a start reads", memoryState{live: 200 << 20, beside: 100 << 20}, percentMost},
	} {
		p := newGCPercent(func(int) {}, func() {}, time.Unix(0, 0))
		c.memory.cycles = 1
		p.observe(c.memory, c.rule != "a start reads", time.Unix(1, 0))
		require.Equal(t, c.percent, p.percent, c.rule)
		p.observe(c.memory, true, time.Unix(10, 0))
		require.Equal(t, leastOf(c.memory), p.percent, "%s: idle", c.rule)
	}
}

// While a large heap is busy the value follows its memory several times a second, without
// counting collections twice.
func TestGCPercentBetweenSeconds(t *testing.T) {
	now := time.Unix(0, 0)
	var set []int
	p := newGCPercent(func(percent int) { set = append(set, percent) }, func() {}, now)
	require.False(t, p.follows(), "a start")
	p.observe(memoryState{live: 100 << 20, cycles: 3}, true, now.Add(time.Second))
	require.False(t, p.follows(), "a small heap")
	p.observe(memoryState{live: 150 << 20, cycles: 4}, true, now.Add(2*time.Second))
	require.True(t, p.follows())
	set = nil
	p.adjust(memoryState{live: 256 << 20, beside: 32 << 20, cycles: 5}, true)
	p.adjust(memoryState{live: 256 << 20, beside: 32 << 20, cycles: 5}, true)
	p.adjust(memoryState{live: 256 << 20, beside: 64 << 20, cycles: 5}, true)
	require.Equal(t, []int{65, 50}, set)
	for i := range 3 { // the collection since counts once, for the next second
		p.observe(memoryState{live: 200 << 20, cycles: 5}, true, now.Add(time.Duration(3+i)*time.Second))
		require.True(t, p.follows())
	}
	p.observe(memoryState{live: 200 << 20, cycles: 5}, true, now.Add(6*time.Second))
	require.Equal(t, percentLarge, p.percent)
	require.False(t, p.follows(), "idle")
}

// Stacks are beside the heap, and are scanned with it.
func TestMemoryReader(t *testing.T) {
	reader := newMemoryReader()
	const n = 4000
	end := make(chan struct{})
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer close(end)
	for range n {
		waiting.Go(func() { <-end })
	}
	runtime.GC()
	m := reader.read()
	require.NotZero(t, m.live)
	require.GreaterOrEqual(t, m.beside, uint64(n*2048), "the smallest stack is 2 KiB")
	require.Less(t, m.beside, uint64(n*16<<10))
	require.Greater(t, m.scanned, uint64(n*64))
}
