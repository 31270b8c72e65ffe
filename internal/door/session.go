package door

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/auth"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// helloTimeout is how long a stream may stay without a hello.
const helloTimeout = 10 * time.Second

// session is one proxy's stream.
type session struct {
	door   *Door
	stream connectStream
	token  auth.Token
	// ctx ends with the reason for which the stream ends.
	ctx context.Context
	end context.CancelCauseFunc

	inbox chan *meridianv1.ConnectRequest
	wake  chan struct{} // capacity 1: the configuration may have changed
	sent  chan error    // the outcome of a send
	gone  chan struct{} // closed when the session has left the table

	// registered is true once the dataplane is stored; guarded by door.mu.
	registered bool
	// proxy is the session's place in the table, set once by admit. What it holds
	// is guarded by door.mu, save its key.
	proxy *proxy

	// What follows belongs to the goroutine that serves the stream.
	sequence    uint64
	have        []entry
	full        bool
	sending     bool
	outstanding *delivery
}

// delivery is a configuration that the proxy has not answered yet.
type delivery struct {
	sequence uint64
	revision resource.Revision
	changed  uint64 // proxy.changed when it was made
}

// nudge makes the session look at its configuration again.
func (s *session) nudge() {
	select {
	case s.wake <- struct{}{}:
	default: // it will, already
	}
}

var errDeleted = rpcerr.New(rpcerr.NotFound, ReasonDeleted, "the dataplane was deleted")

// look ends the session when the dataplane is gone or no longer one that the
// token covers. r is what is stored, nil when nothing is. Called with the door
// locked.
func (s *session) look(r *resource.Resource) {
	if r == nil {
		s.end(errDeleted)
		return
	}
	if err := permits(s.token, r); err != nil {
		s.end(err)
	}
}

// reason prefers why the session was ended to what that made fail; nil when the
// proxy left.
func (s *session) reason(err error) error {
	if s.ctx.Err() != nil {
		err = context.Cause(s.ctx)
	}
	if errors.Is(err, errHungUp) {
		return nil
	}
	return err
}

// receive passes on what the proxy sends until the stream ends.
func (s *session) receive() {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errHungUp
			}
			s.end(err)
			return
		}
		select {
		case s.inbox <- m:
		case <-s.ctx.Done():
			return
		}
	}
}

// errHungUp means that the proxy closed its side: it goes in peace.
var errHungUp = errors.New("the proxy hung up")

// hello waits for the first message.
func (s *session) hello() (*meridianv1.DataplaneHello, error) {
	patience := time.NewTimer(helloTimeout)
	defer patience.Stop()
	select {
	case m := <-s.inbox:
		if hello := m.GetHello(); hello != nil {
			return hello, nil
		}
		return nil, rpcerr.New(rpcerr.Invalid, ReasonNoHello, "the first message of a proxy is its hello")
	case <-patience.C:
		return nil, rpcerr.New(rpcerr.Timeout, ReasonNoHello, "no hello came within %s", helloTimeout)
	case <-s.ctx.Done():
		return nil, context.Cause(s.ctx)
	}
}

// run keeps the proxy at its configuration until the session ends.
func (s *session) run() error {
	for {
		wake := s.wake
		if s.sending || s.outstanding != nil {
			wake = nil // one at a time: what comes next is the state of then
		}
		select {
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		case <-wake:
			if err := s.deliver(); err != nil {
				return err
			}
		case err := <-s.sent:
			if s.sending = false; err != nil {
				return err
			}
		case m := <-s.inbox:
			if err := s.answered(m.GetAck()); err != nil {
				return err
			}
		}
	}
}

// deliver sends what is new since the last configuration, if anything is.
func (s *session) deliver() error {
	d := s.door
	d.mu.Lock()
	changed := s.proxy.changed
	d.mu.Unlock()
	read := d.cfg.Matching.Standing
	if s.sequence == 0 {
		read = d.cfg.Matching.Read // the registration itself may not be in yet
	}
	now, revision, err := d.builder.effective(read, s.proxy.key)
	switch {
	case errors.Is(err, policy.ErrNoDataplane):
		return errDeleted
	case err != nil:
		return fmt.Errorf("door: match %s: %w", s.proxy.key, err)
	}
	response := &meridianv1.ConnectResponse{Revision: uint64(revision), Full: s.full}
	if s.full {
		response.Set = now.messages
	} else if response.Set, response.Removed = now.since(s.have); len(response.Set)+len(response.Removed) == 0 {
		s.settle(&delivery{changed: changed})
		return nil
	}
	s.sequence++
	response.Sequence = s.sequence
	s.outstanding = &delivery{sequence: s.sequence, revision: revision, changed: changed}
	s.have, s.full, s.sending = now.entries, false, true
	d.sent.Add(1)
	d.streams.Go(func() { s.sent <- s.stream.Send(response) })
	return nil
}

// answered takes the proxy's answer to the outstanding configuration.
func (s *session) answered(ack *meridianv1.DataplaneAck) error {
	switch {
	case ack == nil:
		return rpcerr.New(rpcerr.Invalid, ReasonBadAnswer, "after its hello a proxy sends answers only")
	case s.outstanding == nil || ack.GetSequence() != s.outstanding.sequence:
		return rpcerr.New(rpcerr.Invalid, ReasonBadAnswer, "the answer is to configuration %d, which is not waiting for one", ack.GetSequence())
	}
	answered := s.outstanding
	s.outstanding = nil
	if ack.GetError() != "" {
		// What the proxy holds is not what it was sent: the next one is full.
		s.full = true
		s.door.refused(s.proxy, ack.GetError())
		return nil
	}
	s.settle(answered)
	return nil
}

// settle notes what the proxy has; a delivery without a number was none, since
// the changes came to nothing.
func (s *session) settle(to *delivery) {
	s.door.mu.Lock()
	defer s.door.mu.Unlock()
	s.proxy.settled = to.changed
	if to.sequence != 0 {
		s.proxy.acked, s.proxy.lastError = to.revision, ""
	}
}

// maxErrorBytes bounds what is kept of a proxy's refusal.
const maxErrorBytes = 1024

func (d *Door) refused(p *proxy, message string) {
	if len(message) > maxErrorBytes {
		message = strings.ToValidUTF8(message[:maxErrorBytes], "")
	}
	d.mu.Lock()
	p.lastError = message
	d.mu.Unlock()
	d.cfg.Log.Warn("a proxy refused its configuration", "mesh", p.key.Mesh, "dataplane", p.key.Name, "error", message)
}
