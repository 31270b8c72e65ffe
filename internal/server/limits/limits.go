// Package limits bounds what a server holds of requests that it has not
// answered.
//
// A request is charged for what it makes the server keep, as that grows, and
// until it is done. Where the room is used up, the requests that have been on
// their way for longest are given up for the one that needs it: whoever sends
// slowly, or not at all, holds up nobody, and filling the room takes as many
// bytes as the room has. What has been received is never given up, since it is
// being worked on; where only that is left, the newcomer is refused.
//
// It guarantees that what is charged never exceeds the limit. It knows nothing
// of protocols: whoever reads a request says how to stop reading it.
package limits

import (
	"container/list"
	"errors"
	"sync"
)

var (
	// ErrFull means that there is no room, and nobody to be given up for it. The
	// same request may find room a moment later.
	ErrFull = errors.New("the server has no room for another request at the moment")
	// ErrGivenUp means that a request took long while others needed its room.
	ErrGivenUp = errors.New("the request took long to arrive, and the server needed the room for others")
)

// Intake is the room for requests. It is safe for concurrent use.
type Intake struct {
	mu   sync.Mutex
	free int64
	// arriving are the requests that have not been received, oldest first.
	arriving list.List
}

// New returns a room of so many bytes.
func New(limit int64) *Intake { return &Intake{free: limit} }

// Request is one request in an Intake. Its methods are for the one goroutine
// that serves it.
type Request struct {
	in *Intake
	// The following are guarded by in.mu.
	held  int64
	place *list.Element // nil once received, given up or done
	given bool
	stop  func()
}

// Begin takes in a request that holds n bytes from the beginning. stop makes
// whoever reads the request stop: it is called at most once, when the request is
// given up, on another's goroutine, and must not block. The error is ErrFull.
func (i *Intake) Begin(n int64, stop func()) (*Request, error) {
	r := &Request{in: i, stop: stop}
	i.mu.Lock()
	r.place = i.arriving.PushBack(r)
	given, err := i.take(r, n)
	if err != nil {
		r.leave()
	}
	i.mu.Unlock()
	end(given)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Grow charges a request for n bytes more. The error is ErrFull or ErrGivenUp;
// end the request then.
func (r *Request) Grow(n int64) error {
	r.in.mu.Lock()
	given, err := r.in.take(r, n)
	r.in.mu.Unlock()
	end(given)
	return err
}

// Received says that the request has arrived whole and holds n bytes from now
// on. The error is ErrFull or ErrGivenUp.
func (r *Request) Received(n int64) error {
	r.in.mu.Lock()
	given, err := r.in.take(r, n-r.held)
	r.leave()
	r.in.mu.Unlock()
	end(given)
	return err
}

// GivenUp reports whether the request was given up.
func (r *Request) GivenUp() bool {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	return r.given
}

// Done ends a request and gives back its room. It may be called again.
func (r *Request) Done() {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	r.leave()
	r.in.free += r.held
	r.held = 0
}

// take moves n bytes, perhaps less than none, from the room to a request, and
// gives up others for that if it must. The caller holds the lock, and ends those
// given up once it has let go of it. It cannot be known how soon they let go of
// their bytes: as soon as they hear of it, having nothing else to do.
func (i *Intake) take(r *Request, n int64) (given []*Request, err error) {
	if r.given {
		return nil, ErrGivenUp
	}
	for e := i.arriving.Front(); i.free < n && e != nil; {
		oldest := e.Value.(*Request)
		e = e.Next()
		if oldest == r {
			continue
		}
		oldest.leave()
		oldest.given = true
		i.free += oldest.held
		oldest.held = 0
		given = append(given, oldest)
	}
	if i.free < n {
		return given, ErrFull
	}
	i.free -= n
	r.held += n
	return given, nil
}

// leave takes a request off the list of those that arrive. The caller holds the
// lock.
func (r *Request) leave() {
	if r.place != nil {
		r.in.arriving.Remove(r.place)
		r.place = nil
	}
}

func end(given []*Request) {
	for _, r := range given {
		r.stop()
	}
}
