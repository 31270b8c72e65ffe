package dataplane

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// helloTimeout is how long a stream may stay without a hello.
const helloTimeout = 10 * time.Second

// session is one proxy's stream.
type session struct {
	door   *Door
	stream connectStream
	token  *authn.Token
	// ctx ends with the reason for which the stream ends.
	ctx context.Context
	end func(error)
	// sending is work on a configuration that is under way.
	sending sync.WaitGroup

	// What follows is guarded by door.mu.

	// registered is true once the dataplane is stored.
	registered bool
	// over is true once the session has left the table: nothing is begun any more.
	over bool
	// gone is closed then; made by who waits for it.
	gone chan struct{}
	// proxy is the session's place in the table, set once by admit. Its key can be
	// read without the lock after that.
	proxy *proxy

	// woken: the configuration may have changed. scheduled: the session is in the
	// queue, or being worked on.
	woken, scheduled bool
	sequence         uint64
	have             []entry
	full             bool
	outstanding      *delivery
}

// delivery is a configuration that the proxy has not answered yet.
type delivery struct {
	sequence uint64
	revision resource.Revision
	changed  uint64 // proxy.changed when it was made
}

// leaving returns what is closed when the session has left the table. Called
// with the door locked.
func (s *session) leaving() chan struct{} {
	if s.gone == nil {
		s.gone = make(chan struct{})
	}
	return s.gone
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
	if err := permits(*s.token, r); err != nil {
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

// errHungUp means that the proxy closed its side: it goes in peace.
var errHungUp = errors.New("the proxy hung up")

// errNoHello ends a stream that stays silent.
var errNoHello = rpcerr.New(rpcerr.Timeout, ReasonNoHello, "no hello came within %s", helloTimeout)

// receive waits for what the proxy sends, or for the end of the session.
func (s *session) receive() (*meridianv1.ConnectRequest, error) {
	m, err := s.stream.Recv()
	if errors.Is(err, io.EOF) {
		err = errHungUp
	}
	return m, err
}

// hello waits for the first message.
func (s *session) hello() (*meridianv1.DataplaneHello, error) {
	patience := time.AfterFunc(helloTimeout, func() { s.end(errNoHello) })
	defer patience.Stop()
	m, err := s.receive()
	if err != nil {
		return nil, err
	}
	if hello := m.GetHello(); hello != nil {
		return hello, nil
	}
	return nil, rpcerr.New(rpcerr.Invalid, ReasonNoHello, "the first message of a proxy is its hello")
}

// follow takes the proxy's answers until the session ends.
func (s *session) follow() error {
	for {
		m, err := s.receive()
		if err != nil {
			return err
		}
		if err := s.answered(m.GetAck()); err != nil {
			return err
		}
	}
}

// answered takes the proxy's answer to the outstanding configuration.
func (s *session) answered(ack *meridianv1.DataplaneAck) error {
	if ack == nil {
		return rpcerr.New(rpcerr.Invalid, ReasonBadAnswer, "after its hello a proxy sends answers only")
	}
	if message := ack.GetError(); message != "" {
		defer s.door.refused(s.proxy, message)
	}
	s.door.mu.Lock()
	defer s.door.mu.Unlock()
	to := s.outstanding
	if to == nil || ack.GetSequence() != to.sequence {
		return rpcerr.New(rpcerr.Invalid, ReasonBadAnswer, "the answer is to configuration %d, which is not waiting for one", ack.GetSequence())
	}
	s.outstanding = nil
	if ack.GetError() != "" {
		// What the proxy holds is not what it was sent: the next one is full.
		s.full = true
	} else {
		s.proxy.settled, s.proxy.acked, s.proxy.lastError = to.changed, to.revision, ""
	}
	s.scheduleLocked()
	return nil
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
