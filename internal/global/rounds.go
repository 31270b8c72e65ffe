package global

import (
	"context"
	"sync"
	"time"

	"meridian/internal/resource"
)

// roundSpacing is how far apart rounds begin on average: with waits for many revisions,
// each has fewer of them.
const roundSpacing = 25 * time.Millisecond

// rounds ask zones or servers how far they have come, for all waits for a revision
// together: as many waits as there may be ask as often as one does. The zero value with
// pauses is ready to use; it is safe for concurrent use.
//
// A round is asked by one of the waits that need it: nothing runs, and nothing is kept,
// once they have ended.
type rounds[V any] struct {
	// first and last are the pauses after the first round of a revision and after later
	// ones, which double from one to the next.
	first, last time.Duration

	mu sync.Mutex // guards all below, those of revisions too
	of map[resource.Revision]*roundsOf[V]
}

// roundsOf are the rounds of one revision.
type roundsOf[V any] struct {
	waits int
	ended int // how many
	value V   // of the one that ended last
	// running is closed when the round that runs has ended; nil while none does.
	running chan struct{}
	pause   time.Duration
	next    time.Time // when the next one may begin
}

// roundsWait is one wait that takes part in rounds.
type roundsWait[V any] struct {
	all      *rounds[V]
	revision resource.Revision
	of       *roundsOf[V]
	seen     int // of roundsOf.ended
}

// join takes part in the rounds of a revision, until leave.
func (r *rounds[V]) join(revision resource.Revision) *roundsWait[V] {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[resource.Revision]*roundsOf[V]{}
	}
	of := r.of[revision]
	if of == nil {
		of = &roundsOf[V]{pause: r.first}
		r.of[revision] = of
	}
	of.waits++
	return &roundsWait[V]{all: r, revision: revision, of: of}
}

// leave ends the part of a wait, once.
func (w *roundsWait[V]) leave() {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	if w.of.waits--; w.of.waits == 0 {
		delete(w.all.of, w.revision)
	}
}

// next returns what came of the newest round, once there is one that the wait has not
// seen. ask runs a round. The error is the cause of ctx; with it comes what this wait asked
// when ctx ended, or the zero value.
func (w *roundsWait[V]) next(ctx context.Context, ask func(context.Context) V) (value V, err error) {
	for {
		last, until, pause, mine := w.look()
		switch {
		case until != nil:
			select {
			case <-until:
			case <-ctx.Done():
			}
		case pause > 0:
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
			}
		case mine:
			value = w.run(ctx, ask)
		default:
			return last, nil
		}
		if ctx.Err() != nil {
			return value, context.Cause(ctx)
		}
	}
}

// look returns the value of a round that has not been seen, or what there is to wait for;
// mine: the next round is to be run by this wait.
func (w *roundsWait[V]) look() (value V, until chan struct{}, pause time.Duration, mine bool) {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	of := w.of
	if w.seen < of.ended {
		w.seen = of.ended
		return of.value, nil, 0, false
	}
	if of.running != nil {
		return value, of.running, 0, false
	}
	if pause = time.Until(of.next); pause > 0 {
		return value, nil, pause, false
	}
	of.running = make(chan struct{})
	return value, nil, 0, true
}

// run runs a round for all waits for its revision. One that ctx ended is no round: another
// wait runs it.
func (w *roundsWait[V]) run(ctx context.Context, ask func(context.Context) V) (value V) {
	of, asked := w.of, false
	defer func() {
		w.all.mu.Lock()
		defer w.all.mu.Unlock()
		if asked && ctx.Err() == nil {
			of.ended++
			of.value = value
			of.next = time.Now().Add(max(of.pause, time.Duration(len(w.all.of))*roundSpacing))
			of.pause = min(2*of.pause, w.all.last)
		}
		close(of.running)
		of.running = nil
	}()
	value = ask(ctx)
	asked = true
	return value
}
