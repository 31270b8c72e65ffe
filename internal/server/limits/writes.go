package limits

import (
	"fmt"
	"sync"
	"time"
)

// WriteConfig bounds how often and how much callers write. Every number must be
// positive.
type WriteConfig struct {
	// Requests and Bytes are what one caller writes each second in the long run.
	Requests, Bytes float64
	// All is how many times as much all callers write together who are not
	// administrators.
	All float64
	// LargestRequest is the largest request, in bytes: it must be possible.
	LargestRequest float64
}

// The names of the limits on writes, as in metrics.
const (
	LimitWriteRequests    = "write_requests"
	LimitWriteBytes       = "write_bytes"
	LimitAllWriteRequests = "all_write_requests"
	LimitAllWriteBytes    = "all_write_bytes"
)

// writeSeconds is for how many seconds' worth a caller that was silent may write at
// once.
const writeSeconds = 2

// Writes bounds what callers write. Administrators have the limits of a caller,
// and are not held up by what all others write together. It is safe for concurrent
// use.
type Writes struct {
	cfg WriteConfig
	now func() time.Time
	// ownRequests to allBytes say what is exceeded.
	ownRequests, ownBytes, allRequests, allBytes Exceeded

	mu       sync.Mutex // guards all below
	all      quota
	callers  map[string]*quota
	forgetAt int
}

// quota is one budget of requests and bytes.
type quota struct{ requests, bytes Bucket }

func newQuota(cfg WriteConfig, times float64) quota {
	return quota{
		requests: NewBucket(cfg.Requests*times, cfg.Requests*times*writeSeconds),
		bytes:    NewBucket(cfg.Bytes*times, max(cfg.Bytes*writeSeconds, 2*cfg.LargestRequest)*times),
	}
}

// NewWrites returns limits that nothing has been taken from.
func NewWrites(cfg WriteConfig, now func() time.Time) *Writes {
	return &Writes{
		cfg: cfg, now: now, all: newQuota(cfg, cfg.All), callers: map[string]*quota{}, forgetAt: forgetAbove,
		ownRequests: Exceeded{Limit: LimitWriteRequests, What: fmt.Sprintf("write requests of one caller (%g a second)", cfg.Requests)},
		ownBytes:    Exceeded{Limit: LimitWriteBytes, What: fmt.Sprintf("bytes written by one caller (%g MiB a second)", cfg.Bytes/(1<<20))},
		allRequests: Exceeded{Limit: LimitAllWriteRequests, What: "write requests of all callers but administrators"},
		allBytes:    Exceeded{Limit: LimitAllWriteBytes, What: "bytes written by all callers but administrators"},
	}
}

// Request counts one request of a caller. The error is *Exceeded.
func (w *Writes) Request(caller string, admin bool) error { return w.take(caller, admin, 1, 0) }

// Bytes counts the size of a request of a caller. The error is *Exceeded.
func (w *Writes) Bytes(caller string, admin bool, n int64) error {
	return w.take(caller, admin, 0, float64(n))
}

func (w *Writes) take(caller string, admin bool, requests, bytes float64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	own := w.callerLocked(caller, now)
	if err := own.check(now, requests, bytes, &w.ownRequests, &w.ownBytes); err != nil {
		return err
	}
	if !admin {
		if err := w.all.check(now, requests, bytes, &w.allRequests, &w.allBytes); err != nil {
			return err
		}
		w.all.requests.Take(now, requests)
		w.all.bytes.Take(now, bytes)
	}
	own.requests.Take(now, requests)
	own.bytes.Take(now, bytes)
	return nil
}

// check returns what a request would exceed: a copy of tooMany or tooMuch.
func (q *quota) check(now time.Time, requests, bytes float64, tooMany, tooMuch *Exceeded) error {
	if after := q.requests.Wait(now, requests); after > 0 {
		return tooMany.until(after)
	}
	if after := q.bytes.Wait(now, bytes); after > 0 {
		return tooMuch.until(after)
	}
	return nil
}

// until returns a copy that says when to try again.
func (e Exceeded) until(after time.Duration) *Exceeded {
	e.Retry = after
	return &e
}

// callerLocked returns the budget of a caller. Callers of whom nothing is known are
// forgotten.
func (w *Writes) callerLocked(name string, now time.Time) *quota {
	if q := w.callers[name]; q != nil {
		return q
	}
	if len(w.callers) >= w.forgetAt {
		for other, q := range w.callers {
			if q.requests.Full(now) && q.bytes.Full(now) {
				delete(w.callers, other)
			}
		}
		w.forgetAt = max(forgetAbove, 2*len(w.callers))
	}
	q := newQuota(w.cfg, 1)
	w.callers[name] = &q
	return &q
}

// Slots bounds how many of something there are, for each owner and in all. It is
// safe for concurrent use.
type Slots struct {
	limit, what string
	each, all   int
	// spare is how many more there are for owners who have none.
	spare int

	mu     sync.Mutex // guards all below
	total  int
	owners map[string]int
}

// The limits on calls that last, as in metrics.
const (
	// LimitWatches is the one on watches.
	LimitWatches = "unauthenticated_watches"
	// LimitZoneWaits is the one on waits for zones.
	LimitZoneWaits = "zone_waits"
)

// NewSlots returns free slots. limit is their name as in metrics, what in words.
func NewSlots(limit, what string, each, all int) *Slots {
	return &Slots{limit: limit, what: what, each: each, all: all, owners: map[string]int{}}
}

// WithSpare has n slots more for owners who have none, so that a few owners cannot take
// all that there are. It returns s.
func (s *Slots) WithSpare(n int) *Slots {
	s.spare = n
	return s
}

// Take takes a slot for an owner; done gives it back, once. The error is *Exceeded.
func (s *Slots) Take(owner string) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	if s.owners[owner] == 0 {
		all += s.spare
	}
	if s.owners[owner] >= s.each || s.total >= all {
		return nil, &Exceeded{Limit: s.limit, What: fmt.Sprintf("%s (%d of one client, %d in all)", s.what, s.each, s.all)}
	}
	s.owners[owner]++
	s.total++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.total--
		if s.owners[owner]--; s.owners[owner] == 0 {
			delete(s.owners, owner)
		}
	}, nil
}
