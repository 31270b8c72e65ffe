package discovery

import (
	"errors"
	"time"

	"meridian/internal/rpcerr"
	"meridian/internal/server/limits"
	"meridian/internal/xds"
	"meridian/internal/xds/serve"
)

const (
	// streamBytes is what a stream is charged for beside what is counted: goroutines, what
	// gRPC keeps, and a first request.
	streamBytes = limits.XDSStreamBytes
	// memoryBytes is what a memory of rejections is charged for when it is empty.
	memoryBytes = 1 << 10
	// copies is how often a response is there until the client has read it: as it is made,
	// and encoded.
	copies = 2
	// retryUnsent is after how long a response is tried again for which there was no space,
	// maxUnsent for how long.
	retryUnsent, maxUnsent = 500 * time.Millisecond, 2 * limits.XDSPatience
)

// memory is what one instance of a proxy has rejected, and what its token is charged for
// that.
type memory struct {
	*serve.Memory
	held    *limits.Request
	streams int // those that have it; guarded by Service.mu
}

// newMemory returns an empty memory, for which a token is charged.
func (d *Service) newMemory(owner string) (*memory, error) {
	held, err := d.cfg.Budget.Begin(owner, memoryBytes, func() {})
	if err == nil {
		err = held.Received(memoryBytes)
	}
	if err != nil {
		return nil, d.refuse(err)
	}
	return &memory{Memory: &serve.Memory{}, held: held}, nil
}

// refuse is the error of a stream that exceeds the budget, which it counts.
func (d *Service) refuse(err error) error {
	limit, says := limits.LimitXDS, "the limit on what the zone holds for all xDS streams is reached"
	switch {
	case errors.Is(err, limits.ErrShare):
		limit, says = limits.LimitXDSToken, "the limit on what the zone holds for the xDS streams of one token is reached"
	case errors.Is(err, limits.ErrAborted):
		says = "no answer came for more than " + limits.XDSPatience.String() + ", and the zone needed the memory for others"
	}
	d.cfg.Refused(limit)
	return rpcerr.New(rpcerr.TooLarge, ReasonLimit, "%s: connect again in a moment", says).WithMetadata("limit", limit).WithRetry(time.Second)
}

// charge charges the stream for what it holds. s.mu is held.
func (s *stream) charge() error {
	if s.forgotten {
		return nil
	}
	err := s.held.Received(streamBytes + s.machine.Bytes())
	if err == nil {
		err = s.memory.held.Received(memoryBytes + s.memory.Bytes())
	}
	if s.ctx.Err() != nil {
		return nil // it has ended, and some of what it was charged for is given back
	}
	if err != nil {
		return s.service.refuse(err)
	}
	return nil
}

// reserve charges the stream for a response until it is answered. s.mu is held.
func (s *stream) reserve(r serve.Response) error {
	if s.forgotten {
		return nil // it has ended
	}
	held, err := s.service.cfg.Budget.Begin(s.token.ID, copies*int64(r.Bytes()), func() { s.end(s.service.refuse(limits.ErrAborted)) })
	if err != nil {
		return err
	}
	s.unanswered[r.Type] = held
	return nil
}

// answered gives back what an answered response was charged for. s.mu is held.
func (s *stream) answered(typ xds.Type) {
	if held := s.unanswered[typ]; held != nil {
		held.Done()
		s.unanswered[typ] = nil
	}
}

// forget gives back everything that the stream was charged for.
func (s *stream) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgotten = true
	s.held.Done()
	for _, typ := range xds.Types {
		s.answered(typ)
	}
}

// queue are the streams with something to do: those of one token in order, and tokens in
// turn, so that the streams of one delay another's by one piece of work.
type queue struct {
	tokens  []string // those with streams, the next one first
	streams map[string][]*stream
}

func (q *queue) push(s *stream) {
	id := s.token.ID
	if len(q.streams[id]) == 0 {
		q.tokens = append(q.tokens, id)
	}
	q.streams[id] = append(q.streams[id], s)
}

// pop takes the next stream; nil when there is none.
func (q *queue) pop() *stream {
	if len(q.tokens) == 0 {
		return nil
	}
	id := q.tokens[0]
	q.tokens = q.tokens[1:]
	streams := q.streams[id]
	next := streams[0]
	streams[0] = nil
	if streams = streams[1:]; len(streams) == 0 {
		delete(q.streams, id)
	} else {
		q.streams[id] = streams
		q.tokens = append(q.tokens, id)
	}
	return next
}

func (q *queue) empty() bool { return len(q.tokens) == 0 }
