package history

import (
	"fmt"
	"sync"
	"time"

	"meridian/internal/resource"
)

// Recorder fills a History. Its methods may be called from any goroutine.
type Recorder struct {
	began time.Time
	now   func() time.Time

	// Echo, unless nil, is told each remark as it is made.
	Echo func(Note)

	mu sync.Mutex // guards what follows
	h  History
}

// NewRecorder begins a history now. synced says which kinds zones are sent.
func NewRecorder(now func() time.Time, synced func(resource.Kind) bool) *Recorder {
	return &Recorder{began: now(), now: now, h: History{Synced: synced}}
}

// Now is the time since the history began.
func (r *Recorder) Now() Time { return r.now().Sub(r.began) }

// Note adds a remark, such as the beginning of a fault.
func (r *Recorder) Note(format string, args ...any) {
	n := Note{At: r.Now(), Text: fmt.Sprintf(format, args...)}
	if r.Echo != nil {
		r.Echo(n)
	}
	add(r, &r.h.Notes, n)
}

// Call records that an operation begins. Until Return it counts as unknown.
func (r *Recorder) Call(op Op) *Op {
	op.Call, op.Return, op.Outcome = r.Now(), Never, Unknown
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Ops = append(r.h.Ops, &op)
	return &op
}

// Return records the answer to an operation; answer changes the fields of it
// that the answer is about. An operation that stays unknown does not end.
func (r *Recorder) Return(op *Op, answer func(*Op)) {
	at := r.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	answer(op)
	if op.Outcome != Unknown {
		op.Return = at
	}
}

// Commit records that a server showed a commit, and in it a state.
func (r *Recorder) Commit(server string, c *Commit) {
	at := r.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	c.Seen = at
	r.h.Source.Add(c)
	r.h.Observations = append(r.h.Observations, Observation{
		Server: server, At: at, Epoch: c.Epoch, Revision: c.Revision, All: c.All,
	})
}

// Observe records that a server held a state.
func (r *Recorder) Observe(o Observation) {
	o.At = r.Now()
	add(r, &r.h.Observations, o)
}

// Recall records what a server said of the past.
func (r *Recorder) Recall(c Recall) {
	c.At = r.Now()
	add(r, &r.h.Recalls, c)
}

// Lead records that a server began to lead.
func (r *Recorder) Lead(l Lead) {
	l.At = r.Now()
	add(r, &r.h.Leads, l)
}

// Deliver records a watcher's step.
func (r *Recorder) Deliver(d Delivery) {
	d.At = r.Now()
	add(r, &r.h.Deliveries, d)
}

// See records what a reader in a zone saw.
func (r *Recorder) See(s Sighting) {
	s.At = r.Now()
	add(r, &r.h.Sightings, s)
}

// Frame records a message of a zone's stream.
func (r *Recorder) Frame(f Frame) {
	f.At = r.Now()
	add(r, &r.h.Frames, f)
}

// Waited records how long something took.
func (r *Recorder) Waited(w Wait) {
	w.At = r.Now()
	add(r, &r.h.Waits, w)
}

func add[T any](r *Recorder, to *[]T, v T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*to = append(*to, v)
}

// Source lends the commits recorded so far to f.
func (r *Recorder) Source(f func(*Source)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.h.Source)
}

// Finish returns the history; complete is History.Complete. Nothing may be
// recorded after that.
func (r *Recorder) Finish(complete bool) *History {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Complete = complete
	return &r.h
}
