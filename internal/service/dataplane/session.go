package dataplane

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// helloTimeout is how long a stream may stay without a hello.
const helloTimeout = 10 * time.Second

// session is one proxy's stream.
type session struct {
	service *Service
	stream  connectStream
	token   *token.Token
	// ctx ends with the reason for which the stream ends.
	ctx context.Context
	end func(error)

	// registrationOnly: no configuration is sent. Set before the session is in its
	// proxy's place.
	registrationOnly bool

	// answersLive: its proxy can be asked what it runs. Set like registrationOnly.
	answersLive bool

	// What follows is guarded by service.mu.

	// registered is true once the dataplane is stored.
	registered bool
	// epoch is that of the store when it was.
	epoch store.Epoch
	// drains: the proxy asked for the label draining.
	drains bool
	// leaving: the proxy said that it leaves for good.
	leaving bool
	// ended is true once the session has left the table: nothing is begun any more.
	ended bool
	// done is closed then; made by the goroutine that waits for it.
	done chan struct{}
	// proxy is the session's place in the table, set once by claim. Its key can be
	// read without the lock after that.
	proxy *proxy

	// changed: the configuration may have changed. scheduled: the session is in the
	// queue, or being worked on.
	changed, scheduled bool
	sequence           uint64
	have               []entry
	full               bool
	unacked            *delivery

	identity identity
	live     liveRequest
	tried    toldTrials
}

// delivery is a configuration that the proxy has not answered yet.
type delivery struct {
	sequence uint64
	revision resource.Revision
	changed  uint64 // proxy.changed when it was made
}

// doneLocked returns what is closed when the session has left the table. Called
// with the service locked.
func (s *session) doneLocked() chan struct{} {
	if s.done == nil {
		s.done = make(chan struct{})
	}
	return s.done
}

var errDeleted = rpcerr.New(rpcerr.NotFound, ReasonDeleted, "the dataplane was deleted")

// check ends the session when the dataplane is gone or no longer one that the
// token covers. r is what is stored, nil when nothing is. Called with the service
// locked.
func (s *session) check(r *resource.Resource) {
	if r == nil {
		s.end(errDeleted)
		return
	}
	if err := checkToken(*s.token, r); err != nil {
		s.end(err)
		return
	}
	if at := registeredAt(r); byProxy(r) && at != s.service.cfg.Server {
		if s.service.cfg.Local.View().Epoch() != s.epoch {
			s.end(errRestored)
		} else {
			s.end(replaced(r.Key()))
		}
		return
	}
	s.renamedLocked(r)
}

// closeReason is why the session was ended; nil when the proxy closed its side.
func (s *session) closeReason() error {
	if err := context.Cause(s.ctx); !errors.Is(err, errClientClosed) {
		return err
	}
	return nil
}

// errClientClosed means that the proxy closed its side: it goes in peace.
var errClientClosed = errors.New("the proxy hung up")

// errNoHello ends a stream that stays silent.
var errNoHello = rpcerr.New(rpcerr.Timeout, ReasonNoHello, "no hello came within %s", helloTimeout)

// receive waits for what the proxy sends, or for the end of the session.
func (s *session) receive() (*meridianv1.ConnectRequest, error) {
	m, err := s.stream.Recv()
	if errors.Is(err, io.EOF) {
		err = errClientClosed
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

// receiveAcks takes the proxy's answers until the session ends.
func (s *session) receiveAcks() error {
	drained := false
	for {
		m, err := s.receive()
		if err != nil {
			return err
		}
		if m.GetLeave() != nil {
			s.service.mu.Lock()
			s.leaving = true
			s.service.mu.Unlock()
			return errClientClosed
		}
		if m.GetDrain() != nil && !drained {
			drained = true // a second one finds an answer out of turn
			if err := s.service.drain(s); err != nil {
				return err
			}
			continue
		}
		switch {
		case m.GetCertificateRequest() != nil:
			err = s.requestCertificate(m.GetCertificateRequest())
		case m.GetTrial() != nil:
			err = s.takeTrial(m.GetTrial())
		case m.GetIdentityAck() != nil:
			err = s.acknowledgeIdentity(m.GetIdentityAck().GetVersion())
		case m.GetLive() != nil:
			err = s.takeLive(m.GetLive())
		case m.GetPlaintext() != nil:
			s.takePlaintext(m.GetPlaintext())
		default:
			err = s.handleAck(m.GetAck())
		}
		if err != nil {
			return err
		}
	}
}

// handleAck takes the proxy's answer to the outstanding configuration.
func (s *session) handleAck(ack *meridianv1.DataplaneAck) error {
	if ack == nil {
		return rpcerr.New(rpcerr.Invalid, ReasonBadAnswer, "after its hello a proxy sends answers only")
	}
	message := ack.GetError()
	if len(message) > maxErrorBytes {
		message = strings.ToValidUTF8(message[:maxErrorBytes], "")
	}
	if message != "" {
		defer func() { s.service.logger(s).Warn("a proxy refused its configuration", "error", message) }()
	}
	s.service.mu.Lock()
	defer s.service.mu.Unlock()
	to := s.unacked
	if to == nil || ack.GetSequence() != to.sequence {
		return rpcerr.New(rpcerr.Invalid, ReasonBadAnswer, "the answer is to configuration %d, which is not waiting for one", ack.GetSequence())
	}
	s.unacked = nil
	if ack.GetError() != "" {
		// What the proxy holds is not what it was sent: the next one is full.
		s.full = true
		s.proxy.refused, s.proxy.lastError = to.changed, message
	} else {
		// A proxy that takes no configurations has settled what came since.
		s.proxy.settled = max(s.proxy.settled, to.changed)
		s.proxy.acked, s.proxy.lastError = to.revision, ""
	}
	s.service.changedLocked(s.proxy)
	s.scheduleLocked()
	return nil
}

// maxErrorBytes bounds what is kept of a proxy's refusal.
const maxErrorBytes = 1024
