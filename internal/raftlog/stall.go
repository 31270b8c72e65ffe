package raftlog

import (
	"sync"
	"time"
)

const (
	// stallTicks is how many ticks the limit of a stallWatch has.
	stallTicks = 20
	// slowestDisk is how many bytes a disk writes in a second at least, for it not
	// to be taken for one that hangs. What bbolt writes again beside an entry counts.
	slowestDisk = 16 << 20
)

// stallWatch notices that writes to a file do not end. A write that waits for
// others is not stalled while those end, and a large one may take longer.
//
// Time in which the process, or the whole machine, does not run is no time in
// which the disk hangs. The watch counts its own ticks: what lies between
// two of them counts as two ticks at most.
type stallWatch struct {
	limit time.Duration
	// stalled is told once each time that nothing has ended for the limit while
	// something should have; nil: none.
	stalled func(since time.Duration)

	mu      sync.Mutex
	pending int
	// bytes is the size of what is pending.
	bytes uint64
	// waited is the time that counts since the last write ended, or the first of
	// those pending began, up to the tick at last.
	waited time.Duration
	last   time.Time
	timer  *time.Timer
	told   bool
	// slowest is the longest that a small write has taken that waited for no other.
	slowest time.Duration
}

const (
	// smallWrite is up to how many bytes a write takes as long as a sync.
	smallWrite = 64 << 10
	// slowWrite is how long a small write takes at most on a disk that is slow; one
	// that takes longer hangs, and says nothing about the next.
	slowWrite = 1500 * time.Millisecond
)

// operation is what is done to the file.
type operation bool

const (
	// writes: entries or a value are written, as in an election. How long that takes counts
	// when it is small and nothing else was pending, for which it might wait.
	writes operation = true
	// removes: entries are removed.
	removes operation = false
)

// begin is called before an operation that writes so many bytes, what it returns after it.
func (w *stallWatch) begin(op operation, bytes uint64) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	began := time.Now()
	timed := op == writes && bytes <= smallWrite && w.pending == 0
	w.pending++
	w.bytes += bytes
	if w.pending == 1 {
		w.restartLocked()
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if took := time.Since(began); timed && took <= slowWrite {
			w.slowest = max(w.slowest, took)
		}
		w.pending--
		w.bytes -= bytes
		w.restartLocked()
	}
}

func (w *stallWatch) restartLocked() {
	w.waited, w.last, w.told = 0, time.Now(), false
	switch {
	case w.stalled == nil:
	case w.pending == 0:
		w.timer.Stop()
	case w.timer == nil:
		w.timer = time.AfterFunc(w.tick(), w.check)
	default:
		w.timer.Reset(w.tick())
	}
}

func (w *stallWatch) tick() time.Duration { return w.limit / stallTicks }

// countLocked adds the time since the last tick.
func (w *stallWatch) countLocked() {
	now := time.Now()
	w.waited += min(now.Sub(w.last), 2*w.tick())
	w.last = now
}

// allowedLocked is how long what is pending may take.
func (w *stallWatch) allowedLocked() time.Duration {
	return w.limit + time.Duration(w.bytes*uint64(time.Second)/slowestDisk) //nolint:gosec // seconds
}

// check is a tick.
func (w *stallWatch) check() {
	w.mu.Lock()
	if w.pending == 0 {
		w.mu.Unlock()
		return
	}
	w.countLocked()
	waited := w.waited
	stalled := waited >= w.allowedLocked() && !w.told
	w.told = w.told || stalled
	w.timer.Reset(w.tick())
	w.mu.Unlock()
	if stalled {
		w.stalled(waited)
	}
}

// stuck returns for how long nothing has ended that should have by now, 0 when
// nothing is overdue.
func (w *stallWatch) stuck() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending == 0 || w.waited < w.allowedLocked() {
		return 0
	}
	return w.waited
}

// takeSlowest returns the longest that a small write has taken since the last
// call.
func (w *stallWatch) takeSlowest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	slowest := w.slowest
	w.slowest = 0
	return slowest
}
