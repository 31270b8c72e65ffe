package raftlog

import (
	"sync"
	"time"
)

// stallWatch notices that writes to a file do not end. A write that waits for
// others is not stalled while those end.
type stallWatch struct {
	limit time.Duration
	// stalled is told once each time that nothing has ended for the limit while
	// something should have; nil: none.
	stalled func(since time.Duration)

	mu      sync.Mutex
	pending int
	// since is when the last write ended, or the first of those pending began.
	since time.Time
	timer *time.Timer
	told  bool
}

// begin is called before a write, what it returns after it.
func (w *stallWatch) begin() (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending++
	if w.pending == 1 {
		w.restartLocked()
	}
	return w.end
}

func (w *stallWatch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending--
	w.restartLocked()
}

func (w *stallWatch) restartLocked() {
	w.since, w.told = time.Now(), false
	switch {
	case w.stalled == nil:
	case w.pending == 0:
		w.timer.Stop()
	case w.timer == nil:
		w.timer = time.AfterFunc(w.limit, w.check)
	default:
		w.timer.Reset(w.limit)
	}
}

func (w *stallWatch) check() {
	w.mu.Lock()
	since := time.Since(w.since)
	stalled := w.pending > 0 && since >= w.limit && !w.told
	w.told = w.told || stalled
	w.mu.Unlock()
	if stalled {
		w.stalled(since)
	}
}

// stuck returns for how long nothing has ended that should have, 0 when nothing
// is under way.
func (w *stallWatch) stuck() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending == 0 {
		return 0
	}
	return time.Since(w.since)
}
