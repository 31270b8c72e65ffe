package server

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The garbage collector's GOGC, in percent. No single value keeps both promises of
// docs/figures.md: see docs/adr/0022. A server that starts, or that collects more
// than once a second, has the customary value; one that is idle a lower one, since
// most of its memory stays; one with a large heap the lowest when it is idle, and
// when it is busy one by which its heap is bounded (docs/adr/0063), once it is ready
// (docs/adr/0074). A small heap that is collected often has a higher one (docs/adr/0073).
const (
	percentBusy  = 100
	percentIdle  = 40
	percentLarge = 25
	// percentMost is the most that a busy server with a large heap has.
	percentMost = 150
	// percentHuge is that of a busy server with more than maxHeap alive, which cannot be
	// bounded by it: to collect a large heap more often takes more time than it is worth.
	percentHuge = 50
	// startGarbage is how much garbage a server with a large heap may have while it starts,
	// in bytes, as far as percentMost allows: to read a million resources takes many times
	// their memory, and each collection on the way marks all that were read so far.
	startGarbage = 512 << 20
	// percentStep is by how much the value changes at least: setting it stops the world.
	percentStep = 5
	// largeHeap is a large heap, in live bytes.
	largeHeap = 128 << 20
	// maxHeap bounds the heap of a busy server when it is collected, live and garbage, in
	// bytes, as far as percentLarge allows.
	maxHeap = 512 << 20
	// smallGarbage is the garbage in bytes that a busy server with a small heap may have, at
	// most percentSmall of what is alive: marking the same few megabytes many times a second
	// takes more of the processors than the memory is worth (docs/adr/0073).
	smallGarbage = 96 << 20
	percentSmall = 400
	// often is how many collections a second at percentBusy are many.
	often = 2
	// idleAfter is how long after its last burst of work a server is idle.
	idleAfter = 3 * time.Second
)

// AdjustGC sets GOGC once a second until ctx ends, unless the environment sets it. started
// reports whether the server is ready, or was: before, it may have more garbage.
func AdjustGC(ctx context.Context, started func() bool) {
	if os.Getenv("GOGC") != "" {
		return
	}
	p := newGCPercent(func(percent int) { debug.SetGCPercent(percent) }, debug.FreeOSMemory, time.Now())
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/cycles/automatic:gc-cycles"}}
			metrics.Read(sample)
			p.observe(sample[0].Value.Uint64(), sample[1].Value.Uint64(), started(), now)
		case <-ctx.Done():
			return
		}
	}
}

// gcPercent chooses GOGC from the size of the live heap and how often it is
// collected.
type gcPercent struct {
	set     func(percent int)
	release func()

	percent int
	cycles  uint64
	busy    time.Time // when the server was last busy
	garbage bool      // it was busy, and its memory has not been released since
	// frequent is for how many seconds in turn it collected often, until it is idle.
	frequent int
}

// lasting is after how many seconds of frequent collections a small heap may have more
// garbage: a start and the return of a thousand zones are over sooner.
const lasting = 2

func newGCPercent(set func(int), release func(), now time.Time) *gcPercent {
	p := &gcPercent{set: set, release: release, percent: percentBusy, busy: now, garbage: true}
	set(p.percent)
	return p
}

// observe takes the live heap, in bytes, the automatic collections so far, and whether the
// start is over. It is called once a second.
func (p *gcPercent) observe(live, cycles uint64, started bool, now time.Time) {
	collected := cycles - p.cycles
	p.cycles = cycles
	large := live >= largeHeap
	// With more garbage allowed there are fewer collections for the same work.
	atBusy := collected * uint64(max(p.percent, percentBusy)) / percentBusy //nolint:gosec // not negative
	if atBusy > 1 || large && collected > 0 {
		p.busy, p.garbage = now, true
	}
	idle := now.Sub(p.busy) >= idleAfter
	switch {
	case idle:
		p.frequent = 0
	case atBusy > often:
		p.frequent++
	case p.frequent < lasting:
		p.frequent = 0
	}
	percent := percentBusy
	switch {
	case large && idle:
		percent = percentLarge
	case large && !started:
		percent = max(percentOf(startGarbage, live, percentMost), percentHuge)
	case live >= maxHeap:
		percent = percentHuge
	case large:
		percent = max(percentOf(maxHeap-min(live, maxHeap), live, percentMost), percentLarge)
	case idle:
		percent = percentIdle
	case p.frequent >= lasting && live > 0:
		percent = max(percentOf(smallGarbage, live, percentSmall), percentBusy)
	}
	if percent != p.percent { // setting it stops the world
		p.percent = percent
		p.set(percent)
	}
	if idle && p.garbage {
		// What a burst leaves behind would stay: an idle server allocates nothing
		// that would start a collection.
		p.garbage = false
		p.release()
	}
}

// percentOf is as much garbage, in percent of what is alive, at most so much.
func percentOf(garbage, live uint64, most int) int {
	return min(int(garbage*100/live)/percentStep*percentStep, most) //nolint:gosec // at most 9.6e9
}
