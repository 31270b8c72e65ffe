package turns

import (
	"container/list"
	"context"
	"runtime"
	"sync"

	"meridian/internal/authn"
	"meridian/internal/rpcerr"
)

// Reasons of the refusals, for programs.
const (
	// ReasonWaiting: the caller has as many requests waiting as it may.
	ReasonWaiting = "TOO_MANY_WAITING"
	// ReasonAllWaiting: all callers together have.
	ReasonAllWaiting = "SERVER_BUSY"
)

// Small is up to how many bytes a request counts as small.
const Small = 64 << 10

// Limits bound the pieces of work.
type Limits struct {
	// AtOnce is how many run at once; PerCaller how many of them are one caller's,
	// Unauthenticated how many are of callers without credentials together.
	AtOnce, PerCaller, Unauthenticated int
	// Large is how many of those of requests that are not Small run at once, and
	// LargeBytes bounds their requests together, in bytes. One runs whatever its
	// size.
	Large      int
	LargeBytes int64
	// Waiting is how many of one caller wait, AllWaiting how many in all.
	Waiting, AllWaiting int
}

// DefaultLimits are those of a server, by its processors: half of the pieces may
// be one caller's, a quarter of large requests.
func DefaultLimits() Limits {
	n := max(4, 2*runtime.GOMAXPROCS(0))
	return Limits{AtOnce: n, PerCaller: n / 2, Unauthenticated: n / 2, Large: n / 4, LargeBytes: 48 << 20, Waiting: 256, AllWaiting: 4096}
}

// Caller is whose work it is.
type Caller struct {
	// Name is the authenticated name or, without credentials, the address.
	Name string
	// Known says that the caller has proved who it is.
	Known bool
}

// Queue hands out turns. It is safe for concurrent use.
type Queue struct {
	limits Limits

	mu      sync.Mutex // guards all below
	callers map[Caller]*caller
	// waiting has the callers with a piece that waits, the one that was served
	// longest ago in front.
	waiting list.List // of *caller
	// queued is how many pieces wait, queuedLarge how many of large requests.
	queued, queuedLarge int
	running             usage
	// done and refused count pieces, for metrics.
	done, refused uint64
}

// usage is how much runs.
type usage struct {
	all, unauthenticated, large int
	largeBytes                  int64
}

// caller is what one caller has in a Queue, while it has anything.
type caller struct {
	Caller
	running int
	pieces  list.List     // of *piece, oldest first
	place   *list.Element // in Queue.waiting; nil while nothing waits
}

// piece is a piece of work that waits.
type piece struct {
	bytes int64
	turn  chan struct{} // closed when it is its turn; nil where it did not have to wait
	given bool
	place *list.Element // in caller.pieces, while it waits
}

// New returns a queue.
func New(limits Limits) *Queue {
	return &Queue{limits: limits, callers: map[Caller]*caller{}}
}

// CallerOf returns the caller of a request.
func CallerOf(ctx context.Context) Caller {
	name, known := authn.Caller(ctx)
	return Caller{Name: name, Known: known}
}

// Do runs work for the caller of ctx: see DoFor.
func (q *Queue) Do(ctx context.Context, bytes int64, work func() error) error {
	return q.DoFor(ctx, CallerOf(ctx), bytes, work)
}

// DoFor runs work, which is for a request of so many bytes, when it is its turn. Work
// must not wait for anything but its processor: not for another turn of the same
// queue, nor for disks and other servers.
//
// The error is that of work; else an *rpcerr.Error of code TooLarge that names
// the limit, or the context's, where the turn did not come.
func (q *Queue) DoFor(ctx context.Context, who Caller, bytes int64, work func() error) error {
	if err := q.wait(ctx, who, bytes); err != nil {
		return err
	}
	defer q.finish(who, bytes)
	if err := ctx.Err(); err != nil {
		return err
	}
	return work()
}

// beginLocked takes in a piece of a caller: it runs, or waits.
func (q *Queue) beginLocked(who Caller, bytes int64) (c *caller, p *piece, err error) {
	c = q.callers[who]
	if c == nil {
		c = &caller{Caller: who}
		q.callers[who] = c
	}
	p = &piece{bytes: bytes}
	if c.pieces.Len() == 0 && (bytes <= Small || q.queuedLarge == 0) && q.slotLocked(c) && q.spaceLocked(p) {
		q.startLocked(c, p)
		return c, p, nil
	}
	if err := q.refusalLocked(c); err != nil {
		q.refused++
		q.forgetLocked(c)
		return nil, nil, err
	}
	p.turn = make(chan struct{})
	p.place = c.pieces.PushBack(p)
	q.queueLocked(p, 1)
	if c.place == nil {
		c.place = q.waiting.PushBack(c)
	}
	return c, p, nil
}

// wait returns when it is the turn of a piece.
func (q *Queue) wait(ctx context.Context, who Caller, bytes int64) error {
	q.mu.Lock()
	c, p, err := q.beginLocked(who, bytes)
	q.mu.Unlock()
	if err != nil || p.turn == nil {
		return err
	}
	select {
	case <-p.turn:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if p.given { // at the same moment
		q.finishLocked(c, bytes)
		return ctx.Err()
	}
	c.pieces.Remove(p.place)
	q.queueLocked(p, -1)
	q.leaveLocked(c)
	q.forgetLocked(c)
	return ctx.Err()
}

func (q *Queue) refusalLocked(c *caller) error {
	switch {
	case c.pieces.Len() >= q.limits.Waiting:
		return rpcerr.New(rpcerr.TooLarge, ReasonWaiting,
			"%d requests of this caller wait for their turn, the limit for one caller: wait for their answers before sending more", q.limits.Waiting)
	case q.queued >= q.limits.AllWaiting:
		return rpcerr.New(rpcerr.TooLarge, ReasonAllWaiting,
			"%d requests wait for their turn, the limit of this server: retry later, or at another server", q.limits.AllWaiting)
	}
	return nil
}

// slotLocked reports whether a caller may have one more piece run, spaceLocked
// whether the large requests leave space for it.
func (q *Queue) slotLocked(c *caller) bool {
	l, r := &q.limits, &q.running
	return r.all < l.AtOnce && c.running < l.PerCaller && (c.Known || r.unauthenticated < l.Unauthenticated)
}

func (q *Queue) spaceLocked(p *piece) bool {
	l, r := &q.limits, &q.running
	return p.bytes <= Small || r.large == 0 || r.large < l.Large && r.largeBytes+p.bytes <= l.LargeBytes
}

func (q *Queue) startLocked(c *caller, p *piece) {
	p.given = true
	if p.turn != nil {
		close(p.turn)
	}
	c.running++
	q.countLocked(c, p.bytes, 1)
}

func (q *Queue) countLocked(c *caller, bytes int64, n int) {
	q.running.all += n
	if !c.Known {
		q.running.unauthenticated += n
	}
	if bytes > Small {
		q.running.large += n
		q.running.largeBytes += int64(n) * bytes
	}
}

func (q *Queue) finish(who Caller, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.finishLocked(q.callers[who], bytes)
}

// finishLocked ends a piece and gives turns to those that fit now, one to each
// caller in order.
func (q *Queue) finishLocked(c *caller, bytes int64) {
	c.running--
	q.done++
	q.countLocked(c, bytes, -1)
	q.forgetLocked(c)
	passed := true // no large piece is left that could run but for its size
	for e := q.waiting.Front(); e != nil && q.running.all < q.limits.AtOnce; {
		c, next := e.Value.(*caller), e.Next()
		first := c.pieces.Front()
		p := first.Value.(*piece)
		switch {
		case !q.slotLocked(c):
		case p.bytes > Small && !(passed && q.spaceLocked(p)):
			passed = false
		default:
			c.pieces.Remove(first)
			q.queueLocked(p, -1)
			q.startLocked(c, p)
			q.waiting.Remove(e)
			c.place = nil
			if c.pieces.Len() > 0 {
				c.place = q.waiting.PushBack(c)
				if next == nil {
					next = c.place
				}
			}
		}
		e = next
	}
}

func (q *Queue) queueLocked(p *piece, n int) {
	q.queued += n
	if p.bytes > Small {
		q.queuedLarge += n
	}
}

// leaveLocked takes a caller with nothing left to wait for out of the queue.
func (q *Queue) leaveLocked(c *caller) {
	if c.place != nil && c.pieces.Len() == 0 {
		q.waiting.Remove(c.place)
		c.place = nil
	}
}

// forgetLocked drops a caller that has nothing here.
func (q *Queue) forgetLocked(c *caller) {
	if c.running == 0 && c.pieces.Len() == 0 {
		delete(q.callers, c.Caller)
	}
}

// Stats says what a queue has done and has to do.
type Stats struct {
	Running, Waiting int
	Done, Refused    uint64
}

// Stats returns the numbers of the moment.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return Stats{Running: q.running.all, Waiting: q.queued, Done: q.done, Refused: q.refused}
}
