package server

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// How much garbage a server lets stand before it collects, as a part of what is
// alive. A control plane's memory is mostly state that stays, and it writes
// seldom: less than half of the customary allowance saves up to a quarter of its
// memory and costs nothing that can be measured. While it is kept busy, though,
// by hundreds of writes a second, collecting that often would take a fifth of its
// time: it then has the customary allowance, and gives the memory back when there
// is less to do.
//
// A server that holds much, ten thousand proxies for one, allows a smaller part.
// It is not the allowance of all servers: a start is mostly allocation, and one
// of 10,000 policies would take half as much processor time again.
const (
	garbagePercent      = 40
	garbagePercentBusy  = 100
	garbagePercentLarge = 25
	// largeHeap is from where on a server holds much, in bytes that are alive.
	largeHeap = 128 << 20
	// busyInterval is how soon after another a collection means that a server is
	// busy, and stirInterval that one that holds much is: that collects seldom. A
	// heap that rests is collected every two minutes all the same.
	busyInterval = time.Second
	stirInterval = time.Minute
	// calmAfter is how long after the last such collection it is not any more.
	calmAfter = 3 * time.Second
)

// limitGarbage keeps to the allowance from now on, unless GOGC says otherwise.
func limitGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
		a := &allowance{percent: garbagePercent, set: debug.SetGCPercent, giveBack: debug.FreeOSMemory}
		afterCollection(func() { a.adjust(liveHeap(), time.Now()) })
	}
}

// afterCollection calls f after every garbage collection, one call at a time: an
// object that nobody holds is found by each.
func afterCollection(f func()) {
	type nobodys struct{ _ *byte }
	runtime.AddCleanup(&nobodys{}, func(f func()) {
		f()
		afterCollection(f)
	}, f)
}

// allowance follows the size of what is alive, and how often garbage is collected.
type allowance struct {
	set      func(percent int) int
	giveBack func()

	mu      sync.Mutex
	percent int
	last    time.Time   // when it was collected last
	calm    *time.Timer // ends being busy; nil before the first time
	own     bool        // the next collection is giveBack's
}

// adjust sets the allowance after a collection that left a heap of a size.
func (a *allowance) adjust(live uint64, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	busy := now.Sub(a.last) < busyInterval
	stirred := live >= largeHeap && now.Sub(a.last) < stirInterval && !a.own
	a.own = false
	if busy || stirred {
		if a.calm == nil {
			a.calm = time.AfterFunc(calmAfter, a.calmDown)
		}
		a.calm.Reset(calmAfter)
	}
	percent := garbagePercent
	switch {
	case live >= largeHeap:
		percent = garbagePercentLarge
	case busy:
		percent = garbagePercentBusy
	}
	a.last = now
	a.allow(percent)
}

// allow sets the allowance when it is another than before: everything stands
// still for a moment then.
func (a *allowance) allow(percent int) {
	if percent != a.percent {
		a.percent = percent
		a.set(percent)
	}
}

// calmDown ends being busy. Ten thousand proxies that have all come back at once
// leave half as much garbage again as is alive, and would leave it for good: with
// nothing more to do, nothing is collected.
func (a *allowance) calmDown() {
	a.mu.Lock()
	a.own = true
	if a.percent == garbagePercentBusy {
		a.allow(garbagePercent)
	}
	a.mu.Unlock()
	a.giveBack() // which collects, and so adjusts
}

// liveHeap is what the last collection found alive, in bytes.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
