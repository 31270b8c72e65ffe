package store

import (
	"time"

	"meridian/internal/resource"
)

// request is a batch that was applied under an id.
type request struct {
	id       string
	revision resource.Revision
	// time is the log's when it was applied, clock that of the window.
	time    time.Time
	clock   time.Duration
	results []OpResult
}

// What a request takes in memory, in bytes, beside its id.
const (
	requestOverhead = 160
	resultOverhead  = 96
)

func (r *request) size() int {
	return requestOverhead + len(r.id) + resultOverhead*len(r.results)
}

// requests is the bounded window of ids that were applied (§7.1: the
// outcome of a write whose leader fell is unknown to its caller, who retries).
// What it holds depends on the batches before it and on nothing else: time is
// the log's, which never goes back.
type requests struct {
	bounds Requests
	window window[*request]
	byID   map[string]*request
	bytes  int
	// now is the time of the newest request, forgotten that of the newest one that
	// was dropped. They are in the window and in its snapshots, so that servers
	// agree.
	now, forgotten time.Time
	// clock is the time by which requests grow old. It advances with the log's, from
	// one request to the next by a third of MaxAge at most: the log's is that of the
	// leaders' clocks, and one that jumps ahead would have everything forgotten at
	// once. Only differences within the window count, so that servers that start from
	// a snapshot agree.
	clock time.Duration
}

func (w *requests) find(id string) (*request, bool) {
	r, ok := w.byID[id]
	return r, ok
}

func (w *requests) add(r *request) {
	if w.byID == nil {
		w.byID = make(map[string]*request)
	}
	if r.time = r.time.Round(0).UTC(); r.time.Before(w.now) {
		r.time = w.now // as the log's time (§1.1), it does not go back
	}
	w.clock += min(r.time.Sub(w.now), w.bounds.MaxAge/3)
	w.now, r.clock = r.time, w.clock
	w.window.push(r)
	w.byID[r.id] = r
	w.bytes += r.size()
	for len(w.window.items) > 1 && w.excess(w.window.items[0]) {
		oldest := w.window.items[0]
		delete(w.byID, oldest.id)
		w.bytes -= oldest.size()
		w.window.pop()
		if oldest.time.After(w.forgotten) {
			w.forgotten = oldest.time
		}
	}
}

// excess reports whether the oldest request is to be dropped.
func (w *requests) excess(oldest *request) bool {
	return w.bytes > w.bounds.MaxBytes || len(w.window.items) > w.bounds.Min && w.clock-oldest.clock > w.bounds.MaxAge
}

// Applied returns what became of the batch that was applied under a request id,
// as long as it is remembered. A caller who retries is answered with it, also
// where the batch could not be decided again on the state that it left. One that
// had no operations is not answered: a batch that changes nothing is applied
// without them, and has to be compared again.
func (s *Store) Applied(requestID string) (Result, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.requests.find(requestID)
	if !ok || requestID == "" || len(r.results) == 0 {
		return Result{}, false
	}
	return Result{Revision: r.revision, Results: r.results, Duplicate: true}, true
}

// Remembers reports whether a request id is known to have been applied, or surely
// was not within an age: all that were are remembered. now is the caller's clock. The
// times of requests are those of the leaders' clocks, so where theirs is behind the
// age counts back from the newest request.
func (s *Store) Remembers(requestID string, now time.Time, age time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.requests
	if _, ok := w.find(requestID); ok || w.forgotten.IsZero() {
		return true
	}
	if w.now.Before(now) {
		now = w.now
	}
	return w.forgotten.Before(now.Add(-age))
}
