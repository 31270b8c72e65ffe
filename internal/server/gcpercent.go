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
// when it is busy one by which its heap and its stacks are bounded (docs/adr/0063 and
// 0078), once it is ready (docs/adr/0074). A small heap that is collected often has a
// higher one (docs/adr/0073).
const (
	percentBusy = 100
	percentIdle = 40
	// percentLarge is that of a large heap with nothing beside it, percentLeast of one with as
	// many stacks as proxies have (docs/adr/0078).
	percentLarge = 25
	percentLeast = 15
	// percentMost is the most that a busy server with a large heap has.
	percentMost = 150
	// percentHuge is that of a busy server with more than maxMemory alive, which cannot be
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
	// maxMemory bounds the memory of a busy server with a large heap when it is collected, in
	// bytes, as far as the least value allows: what is alive, garbage, and one and a half times
	// what the runtime has beside the heap, which is mostly stacks. Where these grow, more of
	// them come until the collection is over, and what garbage has taken of the heap is not
	// all of use to them (docs/adr/0078).
	maxMemory = 480 << 20
	// smallGarbage is the garbage in bytes that a busy server with a small heap may have, at
	// most percentSmall of what is alive: marking the same few megabytes many times a second
	// takes more of the processors than the memory is worth (docs/adr/0073).
	smallGarbage = 96 << 20
	percentSmall = 400
	// often is how many collections a second at percentBusy are many.
	often = 2
	// busyBytes is how much a server with a large heap allocates in a second, in bytes, that
	// is busy: with 25 % of garbage one of 200 MiB then collects every three seconds.
	busyBytes = 16 << 20
	// apart is how far apart the collections of a large heap are, at least, where they are no
	// sign of work: what a server allocates while it is idle has it collect, too.
	apart = 10 * time.Second
	// idleAfter is how long after its last burst of work a server is idle.
	idleAfter = 3 * time.Second
	// adjustInterval is how often the value of a busy server with a large heap is adjusted to
	// the memory that it has by then.
	adjustInterval = 200 * time.Millisecond
)

// AdjustGC sets GOGC once a second until ctx ends, unless the environment sets it. started
// reports whether the server is ready, or was: before, it may have more garbage.
func AdjustGC(ctx context.Context, started func() bool) {
	if os.Getenv("GOGC") != "" {
		return
	}
	p := newGCPercent(func(percent int) { debug.SetGCPercent(percent) }, debug.FreeOSMemory, time.Now())
	memory := newMemoryReader()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	between := time.NewTimer(0)
	defer between.Stop()
	for {
		select {
		case now := <-tick.C:
			p.observe(memory.read(), started(), now)
		case <-between.C:
			p.adjust(memory.read(), started())
		case <-ctx.Done():
			return
		}
		if p.follows() {
			between.Reset(adjustInterval)
		}
	}
}

// memoryState is what GOGC depends on. Sizes are in bytes.
type memoryState struct {
	// live is what the last collection found alive on the heap, scanned what it looked at
	// besides: GOGC is a part of both.
	live, scanned uint64
	// beside is what the runtime has beside the heap: stacks, and what it needs itself.
	beside uint64
	// cycles is how many collections there have been, allocated how much was allocated.
	cycles, allocated uint64
}

// memoryReader reads a memoryState.
type memoryReader struct{ samples []metrics.Sample }

func newMemoryReader() memoryReader {
	var r memoryReader
	for _, name := range []string{
		"/gc/heap/live:bytes", "/gc/cycles/automatic:gc-cycles", "/gc/scan/stack:bytes", "/gc/scan/globals:bytes",
		"/memory/classes/total:bytes", "/memory/classes/heap/objects:bytes", "/memory/classes/heap/unused:bytes",
		"/memory/classes/heap/free:bytes", "/memory/classes/heap/released:bytes", "/gc/heap/allocs:bytes",
	} {
		r.samples = append(r.samples, metrics.Sample{Name: name})
	}
	return r
}

func (r memoryReader) read() memoryState {
	metrics.Read(r.samples)
	value := func(i int) uint64 { return r.samples[i].Value.Uint64() }
	return memoryState{
		live: value(0), cycles: value(1), scanned: value(2) + value(3),
		beside: value(4) - value(5) - value(6) - value(7) - value(8), allocated: value(9),
	}
}

// gcPercent chooses GOGC from the size of the live heap and how often it is
// collected.
type gcPercent struct {
	set     func(percent int)
	release func()

	percent int
	// cycles and allocated are those of the second before.
	cycles, allocated uint64
	busy              time.Time // when the server was last busy
	collected         time.Time // when a collection was last seen
	idle              bool      // it is not
	large             bool      // its heap is
	garbage           bool      // it was busy, and its memory has not been released since
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

// observe takes the state of the memory, and whether the start is over. It is called once a
// second.
func (p *gcPercent) observe(m memoryState, started bool, now time.Time) {
	collected, more := m.cycles-p.cycles, m.allocated-p.allocated
	p.cycles, p.allocated = m.cycles, m.allocated
	// With more garbage allowed there are fewer collections for the same work.
	atBusy := collected * uint64(max(p.percent, percentBusy)) / percentBusy //nolint:gosec // not negative
	// The larger a heap, the further apart are its collections, however busy the server is.
	soon := collected > 1 || collected > 0 && now.Sub(p.collected) < apart
	if atBusy > 1 || m.live >= largeHeap && (soon || more >= busyBytes || !started) {
		p.busy, p.garbage = now, true
	}
	if collected > 0 {
		p.collected = now
	}
	p.idle = now.Sub(p.busy) >= idleAfter
	switch {
	case p.idle:
		p.frequent = 0
	case atBusy > often:
		p.frequent++
	case p.frequent < lasting:
		p.frequent = 0
	}
	if p.idle && p.garbage {
		// What a burst leaves behind would stay: an idle server allocates nothing
		// that would start a collection. It is released before there may be less
		// garbage: with more than there may be, whatever allocates would wait until all
		// that is alive is marked.
		p.garbage = false
		p.release()
	}
	p.adjust(m, started)
}

// adjust sets the value for the memory of now.
func (p *gcPercent) adjust(m memoryState, started bool) {
	p.large = m.live >= largeHeap
	percent := p.choose(m, started)
	if percent != p.percent { // setting it stops the world
		p.percent = percent
		p.set(percent)
	}
}

// choose returns the value for the memory of now.
func (p *gcPercent) choose(m memoryState, started bool) int {
	switch {
	case p.large && p.idle:
		return leastOf(m)
	case p.large && !started:
		return max(percentOf(startGarbage, m.live, percentMost), percentHuge)
	case m.live >= maxMemory:
		return percentHuge
	case p.large:
		return max(percentOf(maxMemory-min(m.live+m.beside*3/2, maxMemory), m.live+m.scanned, percentMost), leastOf(m))
	case p.idle:
		return percentIdle
	case p.frequent >= lasting && m.live > 0:
		return max(percentOf(smallGarbage, m.live, percentSmall), percentBusy)
	}
	return percentBusy
}

// leastOf is the least value of a large heap: the more there is beside it, the less garbage
// fits into the same memory.
func leastOf(m memoryState) int {
	return max(percentOf((m.live-min(m.beside, m.live))/(100/percentLarge), m.live, percentLarge), percentLeast)
}

// follows reports whether adjust is to be called between seconds. The memory of a zone whose
// proxies return grows by more than a hundred megabytes in one.
func (p *gcPercent) follows() bool { return p.large && !p.idle }

// percentOf is as much garbage, in percent of what is alive, at most so much.
func percentOf(garbage, live uint64, most int) int {
	return min(int(garbage*100/live)/percentStep*percentStep, most) //nolint:gosec // at most 9.6e9
}
