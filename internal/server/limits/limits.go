// Package limits bounds what a server holds of requests that it has not
// answered, its connections, and what clients do on them.
//
// A request is charged for what it makes the server keep, as that grows, and
// until it is done. Where a limit is reached, the requests that have been
// arriving for longest are aborted for the one that needs the bytes, those of
// the same owner first: a slow sender delays no other, and exhausting the limit
// takes as many bytes as the limit has. A request that has arrived is never
// aborted, since it is being worked on; where only such requests are left, the
// new one is refused.
//
// It guarantees that what is charged never exceeds the limit, nor what is
// charged to one owner its share. Non-goals: protocols. The reader of a request
// says how to stop reading it.
package limits

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
	"time"
)

var (
	// ErrFull means that the limit is reached, and no request could be aborted. The
	// same request may be accepted a moment later.
	ErrFull = errors.New("the server holds as many bytes of requests as it may at the moment")
	// ErrShare is ErrFull where it is the owner's share that is reached.
	ErrShare = fmt.Errorf("of this caller, %w", ErrFull)
	// ErrAborted means that a request was arriving for long while others needed its
	// bytes.
	ErrAborted = errors.New("the request took long to arrive, and the server needed the memory for others")
)

// Pool is a limit that requests share. It is safe for concurrent use.
type Pool struct {
	share    int64
	patience time.Duration
	now      func() time.Time // nil without patience

	mu   sync.Mutex // guards all below
	free int64
	// owners are those with requests, by name.
	owners map[string]*owner
	// arriving are the requests that have not arrived, oldest first.
	arriving list.List
}

// owner is what one caller or address is charged for.
type owner struct {
	held     int64
	requests int
	arriving list.List // its own, oldest first
}

// New returns a pool of so many bytes, of which one owner has at most share.
func New(limit, share int64) *Pool {
	return &Pool{free: limit, share: share, owners: map[string]*owner{}}
}

// NewPatient is New for a pool in which a request is aborted for another only once it
// has been arriving for so long; until then the other one is refused.
func NewPatient(limit, share int64, patience time.Duration, now func() time.Time) *Pool {
	p := New(limit, share)
	p.patience, p.now = patience, now
	return p
}

// Request is one request in a Pool. Its methods are for the one goroutine that
// serves it.
type Request struct {
	pool *Pool
	name string
	stop func()
	// The following are guarded by pool.mu.
	owner *owner
	held  int64
	since time.Time // when it began, in a patient pool
	// place and ownPlace are its elements in the lists of those that arrive; nil
	// once it has arrived, was aborted or is done.
	place, ownPlace *list.Element
	aborted, done   bool
}

// Begin takes in a request of an owner that holds n bytes from the beginning.
// stop makes the reader of the request stop: it is called at most once, when the
// request is aborted, on another's goroutine, and must not block. The error is
// ErrFull, or ErrShare.
func (p *Pool) Begin(name string, n int64, stop func()) (*Request, error) {
	r := &Request{pool: p, name: name, stop: stop}
	if p.now != nil {
		r.since = p.now()
	}
	p.mu.Lock()
	if r.owner = p.owners[name]; r.owner == nil {
		r.owner = &owner{}
		p.owners[name] = r.owner
	}
	r.owner.requests++
	r.place, r.ownPlace = p.arriving.PushBack(r), r.owner.arriving.PushBack(r)
	aborted, err := p.take(r, n)
	if err != nil {
		r.endLocked()
	}
	p.mu.Unlock()
	stopAll(aborted)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Grow charges a request for n bytes more. The error is ErrFull, ErrShare or
// ErrAborted; end the request then.
func (r *Request) Grow(n int64) error {
	r.pool.mu.Lock()
	aborted, err := r.pool.take(r, n)
	r.pool.mu.Unlock()
	stopAll(aborted)
	return err
}

// Received says that the request has arrived and holds n bytes from now on: it is
// not aborted any more. It may be called again when that changes. The error is ErrFull,
// ErrShare or ErrAborted.
func (r *Request) Received(n int64) error {
	r.pool.mu.Lock()
	aborted, err := r.pool.take(r, n-r.held)
	r.leaveLocked()
	r.pool.mu.Unlock()
	stopAll(aborted)
	return err
}

// Aborted reports whether the request was aborted.
func (r *Request) Aborted() bool {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	return r.aborted
}

// Done ends a request and gives back its bytes. It may be called again.
func (r *Request) Done() {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.endLocked()
}

// take charges a request for n bytes, and aborts others for that if it must. The
// caller holds the lock, and stops those aborted once it has released it. It
// cannot be known how soon they give up their bytes: as soon as they hear of it,
// having nothing else to do.
func (p *Pool) take(r *Request, n int64) (aborted []*Request, err error) {
	if r.aborted || r.done {
		return nil, ErrAborted
	}
	var now time.Time
	if p.now != nil {
		now = p.now()
	}
	abort := func(from *list.List, enough func() bool) {
		for e := from.Front(); !enough() && e != nil; {
			oldest := e.Value.(*Request)
			if now.Sub(oldest.since) < p.patience {
				return // and so are those that began after it
			}
			e = e.Next()
			if oldest == r {
				continue
			}
			oldest.leaveLocked()
			oldest.aborted = true
			oldest.giveBackLocked()
			aborted = append(aborted, oldest)
		}
	}
	abort(&r.owner.arriving, func() bool { return r.owner.held+n <= p.share })
	if r.owner.held+n > p.share {
		return aborted, ErrShare
	}
	abort(&p.arriving, func() bool { return n <= p.free })
	if p.free < n {
		return aborted, ErrFull
	}
	p.free -= n
	r.held += n
	r.owner.held += n
	return aborted, nil
}

// leaveLocked takes a request off the lists of those that arrive.
func (r *Request) leaveLocked() {
	if r.place != nil {
		r.pool.arriving.Remove(r.place)
		r.owner.arriving.Remove(r.ownPlace)
		r.place, r.ownPlace = nil, nil
	}
}

// giveBackLocked gives back the bytes of a request.
func (r *Request) giveBackLocked() {
	r.pool.free += r.held
	r.owner.held -= r.held
	r.held = 0
}

// endLocked ends a request.
func (r *Request) endLocked() {
	if r.done {
		return
	}
	r.done = true
	r.leaveLocked()
	r.giveBackLocked()
	if r.owner.requests--; r.owner.requests == 0 {
		delete(r.pool.owners, r.name)
	}
}

func stopAll(aborted []*Request) {
	for _, r := range aborted {
		r.stop()
	}
}
