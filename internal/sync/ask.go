package zonesync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// ErrZoneOffline means that no instance of the zone is connected, or that the
// one asked went away. Ask again when the zone is back.
var ErrZoneOffline = errors.New("the zone is not connected")

// ErrZoneBusy means that too many questions wait for the zone. Ask again later.
var ErrZoneBusy = errors.New("too many questions wait for the zone")

// ErrZoneSilent means that nothing was received from the zone for a while, since the
// question was put to it or before: it is frozen, or cut off. The questions after it
// wait less, until the zone sends something again.
var ErrZoneSilent = errors.New("the zone is connected and does not answer")

const (
	// silentAfter is after how long without a word an instance counts as silent: it
	// says something every heartbeatEvery.
	silentAfter = staleAfter
	// askedGrace is how long a question waits for the zone to send anything: while one
	// waits it says something every second.
	askedGrace = 3 * time.Second
	// firstGrace is how long a question waits for a silent instance, and laterGrace
	// when it has left one without an answer since it last sent something.
	firstGrace = time.Second
	laterGrace = 100 * time.Millisecond

	maxPendingAsks = 64
	// maxAnswer bounds the answers of a zone that are arriving, together, in bytes.
	maxAnswer = 64 << 20
)

// Ask puts a question to a zone and returns its answer; both are opaque to this
// package. Of several instances the most advanced one is asked, of those that are not
// silent. The answer may take as long as the context lasts, while the zone sends
// anything at all.
//
// Errors: ErrZoneOffline; ErrZoneBusy; ErrZoneSilent; the context's; a gRPC status
// error that the zone's answerer returned.
func (s *Server) Ask(ctx context.Context, zone resource.ZoneName, request []byte) ([]byte, error) {
	return s.ask(ctx, zone, &syncv1.Ask{Request: request})
}

// AskAudit is Ask for a question about the zone's audit log.
func (s *Server) AskAudit(ctx context.Context, zone resource.ZoneName, request []byte) ([]byte, error) {
	return s.ask(ctx, zone, &syncv1.Ask{Audit: request})
}

func (s *Server) ask(ctx context.Context, zone resource.ZoneName, ask *syncv1.Ask) ([]byte, error) {
	asked := time.Now()
	c := s.registry.best(zone, s.feed.position().epoch, asked)
	if c == nil {
		return nil, fmt.Errorf("%w: %s", ErrZoneOffline, zone)
	}
	if until, ok := ctx.Deadline(); ok {
		ask.TimeoutMs = uint64(max(time.Until(until).Milliseconds(), 1))
	}
	p, err := c.ask(ask)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, zone)
	}
	silence := time.NewTimer(c.patience(asked))
	defer silence.Stop()
	for {
		select {
		case <-p.done:
			return p.answer, p.err
		case <-ctx.Done():
			c.forget(ask.Id)
			return nil, context.Cause(ctx)
		case <-silence.C:
			left := c.patience(asked)
			if left <= 0 {
				c.ignores(ask.Id)
				return nil, fmt.Errorf("%w: %s", ErrZoneSilent, zone)
			}
			silence.Reset(left)
		}
	}
}

// patience is how much longer a question that was asked at a time waits for the zone to
// send anything.
func (c *conn) patience(asked time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	grace := askedGrace
	switch {
	case c.ignored:
		grace = laterGrace
	case asked.Sub(c.heard) >= silentAfter:
		grace = firstGrace
	}
	return max(time.Until(asked.Add(grace)), time.Until(c.heard.Add(askedGrace)))
}

// pendingAsk is a question on its way. answer and err may be read when done is
// closed.
type pendingAsk struct {
	done   chan struct{}
	answer []byte
	err    error
}

// askQueue holds a stream's questions. Its owner locks.
type askQueue struct {
	last    uint64
	unsent  []*syncv1.Ask
	pending map[uint64]*pendingAsk
	held    int   // bytes of answers in pending
	gone    error // set when the stream has ended
}

func (c *conn) ask(a *syncv1.Ask) (*pendingAsk, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := &c.asks
	if q.gone != nil {
		return nil, q.gone
	}
	if len(q.pending) >= maxPendingAsks {
		return nil, ErrZoneBusy
	}
	q.last++
	a.Id = q.last
	p := &pendingAsk{done: make(chan struct{})}
	if q.pending == nil {
		q.pending = map[uint64]*pendingAsk{}
	}
	q.pending[a.Id] = p
	q.unsent = append(q.unsent, a)
	c.wake()
	return p, nil
}

// forget drops a question whose caller stopped waiting.
func (c *conn) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asks.drop(id)
}

// ignores drops a question that a silent zone has left without an answer.
func (c *conn) ignores(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ignored = true
	c.asks.drop(id)
}

// drop takes a question out of those that wait, sent or not: a zone that does not read may
// be asked many before its stream ends.
func (q *askQueue) drop(id uint64) {
	if p := q.pending[id]; p != nil {
		q.held -= len(p.answer)
		delete(q.pending, id)
		q.unsent = slices.DeleteFunc(q.unsent, func(a *syncv1.Ask) bool { return a.Id == id })
	}
}

// next takes the next question, or nil.
func (q *askQueue) next() *syncv1.Ask {
	if len(q.unsent) == 0 {
		return nil
	}
	a := q.unsent[0]
	q.unsent = slices.Delete(q.unsent, 0, 1)
	return a
}

// answer takes a part of an answer.
func (q *askQueue) answer(a *syncv1.Answer) {
	p := q.pending[a.Id]
	if p == nil {
		return // forgotten
	}
	if q.held+len(a.Part) > maxAnswer {
		q.finish(a.Id, nil, status.Errorf(codes.ResourceExhausted, "the zone's answers are larger than %d bytes together: ask for less at once", maxAnswer))
		return
	}
	p.answer = append(p.answer, a.Part...)
	q.held += len(a.Part)
	switch {
	case !a.Last:
	case a.Error != "" || a.Code != 0:
		code := codes.Code(a.Code)
		if code == codes.OK || code > codes.Unauthenticated {
			code = codes.Unknown
		}
		err := status.Error(code, claim(a.Error, maxClaim))
		switch {
		case a.Reason != "":
			err = ownError(err, claim(a.Reason, maxClaim))
		case code == codes.DeadlineExceeded:
			// The zone's clock ran out first: it had been given the caller's time.
			err = context.DeadlineExceeded
		}
		q.finish(a.Id, nil, err)
	default:
		q.finish(a.Id, p.answer, nil)
	}
}

// ownError is an error of the zone's own.
func ownError(err error, reason string) error {
	err = rpcerr.FromStatus(err)
	if own := (*rpcerr.Error)(nil); errors.As(err, &own) {
		own.Reason = reason
	}
	return err
}

// finish answers a question that waits.
func (q *askQueue) finish(id uint64, answer []byte, err error) {
	p := q.pending[id]
	q.drop(id)
	p.answer, p.err = answer, err
	close(p.done)
}

// fail answers everything that waits.
func (q *askQueue) fail(err error) {
	q.gone, q.unsent = err, nil
	for id := range q.pending {
		q.finish(id, nil, err)
	}
}
