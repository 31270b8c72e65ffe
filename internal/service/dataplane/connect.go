package dataplane

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/batch"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/server/limits"
)

// connectStream is the zone's end of a call of Connect.
type connectStream = grpc.BidiStreamingServer[meridianv1.ConnectRequest, meridianv1.ConnectResponse]

// Connect implements the DataplaneService. See its description there.
//
// Its goroutine waits for the reason to end the session; another one receives.
// gRPC ends a Recv or a Send that waits for the proxy once the handler has
// returned: a handler that received itself could not end a silent proxy's stream.
func (d *Service) Connect(stream connectStream) error {
	s, err := d.newSession(stream)
	if err != nil {
		return err
	}
	d.start(s, d.register)
	<-s.ctx.Done()
	return d.finish(s)
}

// finish ends the session of a stream, and returns why it ended.
func (d *Service) finish(s *session) error {
	registered := d.removeSession(s)
	d.streams.Done()
	err := s.closeReason()
	if registered {
		d.lines.Info(d.cfg.Now(), d.logger(s), "proxy disconnected", "reason", disconnectReason(err))
	}
	return err
}

// newSession makes the session of a stream, once Run has begun.
func (d *Service) newSession(stream connectStream) (*session, error) {
	principal := authn.PrincipalFrom(stream.Context())
	if principal.Token == nil {
		return nil, rpcerr.New(rpcerr.Unauthenticated, authn.ReasonNoCredentials, "not authenticated: this is for proxies, which present a dataplane token")
	}
	s := &session{service: d, stream: stream, token: principal.Token, full: true}
	// The stream's context ends with its token too, and says why.
	s.ctx, s.end = context.WithCancelCause(stream.Context())
	if !d.addSession(s) {
		s.end(errStopping)
		return nil, errStopping
	}
	return s, nil
}

// addSession adds a session to the table, unless the service has stopped.
func (d *Service) addSession(s *session) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.sessions[s] = struct{}{}
	d.streams.Add(1)
	return true
}

// start runs a part of a session on a goroutine of its own, which Run waits for.
// An error of it, or a panic, ends the session. The session has to be in the
// table, or another part of it to be running.
func (d *Service) start(s *session, part func(*session) error) {
	d.streams.Add(1)
	go func() {
		defer d.streams.Done()
		defer func() {
			if value := recover(); value != nil {
				d.cfg.Log.Error("a proxy's stream failed", "token", s.token.ID, "panic", value, "stack", string(debug.Stack()))
				s.end(errInternal)
			}
		}()
		if err := part(s); err != nil {
			s.end(err)
		}
	}()
}

// register waits for a proxy's hello, registers its dataplane, and leaves its
// acknowledgements to another goroutine: this one's stack has grown to what a
// registration needs, and there are ten thousand that wait.
func (d *Service) register(s *session) error {
	select {
	case <-d.running:
	case <-s.ctx.Done():
		return nil
	}
	caller := s.token.ID // tokens without a name have the name of their caller in common
	held, err := d.hellos.Begin(caller, batch.MaxMessage, func() { s.end(d.busy(limits.ErrAborted)) })
	if err != nil {
		return d.busy(err)
	}
	defer held.Done()
	hello, err := s.hello()
	if err != nil {
		return err
	}
	if err := held.Received(int64(proto.Size(hello))); err != nil {
		return d.busy(err)
	}
	done, err := d.registering.Wait(s.ctx, caller)
	if err != nil {
		return nil // the session has ended
	}
	defer done()
	s.registrationOnly, s.answersLive = hello.GetRegistrationOnly(), hello.GetAnswersLive()
	if err := d.establish(s, hello); err != nil {
		return err
	}
	d.start(s, (*session).receiveAcks)
	return nil
}

// busy is the error of a proxy whose hello the zone cannot hold now.
func (d *Service) busy(err error) error {
	d.cfg.Refused(limitHellos)
	return rpcerr.New(rpcerr.TooLarge, ReasonLimit, "%w: connect again in a moment", err).WithMetadata("limit", limitHellos).WithRetry(time.Second)
}

// limitHellos is the limit on hellos that wait, as in metrics: on requests that are not
// answered.
const limitHellos = "request_bytes"

// disconnectReason says in words why a proxy is gone.
func disconnectReason(err error) string {
	switch {
	case err == nil:
		return "it hung up"
	case errors.Is(err, context.Canceled):
		return "it broke off, or cannot be reached any more"
	}
	return err.Error()
}

// establish registers a proxy's dataplane and makes it hear of its configuration.
func (d *Service) establish(s *session, hello *meridianv1.DataplaneHello) error {
	key := resource.Key{Kind: resource.KindDataplane, Mesh: resource.MeshName(hello.GetMesh()), Name: hello.GetName()}
	if err := checkTokenForKey(*s.token, key); err != nil {
		return err
	}
	if err := d.refusesProxies(); err != nil {
		return err
	}
	var described *resource.Resource
	err := d.cfg.Turns.Work(s.ctx, int64(len(hello.GetSpec())), func() (err error) {
		if described, err = d.parseSpec(*s.token, key, hello.GetSpec()); err != nil {
			return err
		}
		_, err = d.decide(*s.token, key, described, hello.GetDraining())
		return err // before anyone is replaced for it
	})
	if err != nil {
		return err
	}
	d.claim(s, key)
	r, err := d.store(s, key, described, hello.GetDraining())
	if err != nil {
		return err
	}
	d.connected(s, r, hello.GetDraining())
	d.lines.Info(d.cfg.Now(), d.logger(s), "proxy connected", "registered", byProxy(r))
	return nil
}

// logger is for lines about a session that is in the table.
func (d *Service) logger(s *session) *slog.Logger {
	return d.cfg.Log.With("mesh", s.proxy.key.Mesh, "dataplane", s.proxy.key.Name, "token", s.token.ID)
}

// claim puts a session in the table in the place of an older one, and waits until
// that one, and a removal of the registration that is under way, is done.
func (d *Service) claim(s *session, key resource.Key) {
	d.mu.Lock()
	p := d.proxies[key]
	if p == nil {
		p = &proxy{key: key}
		d.proxies[key] = p
	}
	older, removing := p.session, p.removing
	p.session, s.proxy, p.leaving = s, p, false
	p.changed++ // from nothing to something
	p.acked, p.lastError = 0, ""
	d.changedLocked(p)
	var gone chan struct{}
	if older != nil {
		gone = older.doneLocked()
	}
	d.mu.Unlock()
	if older != nil {
		older.end(replaced(key))
		select {
		case <-gone:
		case <-s.ctx.Done():
		}
	}
	if removing != nil {
		select {
		case <-removing:
		case <-s.ctx.Done():
		}
	}
}

// replaced ends the older one of two connections of a dataplane.
func replaced(key resource.Key) error {
	return rpcerr.New(rpcerr.Conflict, ReasonReplaced, "another connection of dataplane %q in mesh %q took the place of this one", key.Name, key.Mesh)
}

// connected makes a session hear of what happens to its dataplane, and catches up
// with what happened since it was registered.
func (d *Service) connected(s *session, r *resource.Resource, drains bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.registered, s.drains, s.epoch = true, drains, d.cfg.Local.View().Epoch()
	d.changedLocked(s.proxy)
	if d.draining {
		s.end(errDraining)
		return
	}
	if d.suspended {
		s.end(errCutOff)
		return
	}
	stored, ok := d.cfg.Local.View().Get(r.Key())
	if !ok {
		stored = nil
	} else if s.withdrawn(stored) {
		s.end(errDrained) // the zone drained meanwhile, and no longer does
		return
	}
	s.check(stored)
	s.markChangedLocked()
}

// removeSession takes a session out of the table and starts the grace period of what it
// registered.
func (d *Service) removeSession(s *session) (registered bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sessions, s)
	s.ended = true
	if s.done != nil {
		defer close(s.done)
	}
	p := s.proxy
	if p == nil || p.session != s {
		return s.registered // it never had a place, or a newer one has taken it
	}
	p.session, p.leaving = nil, s.leaving
	d.changedLocked(p)
	if p.kept() {
		return s.registered
	}
	d.leftLocked(p)
	return s.registered
}

// leftLocked starts the grace period of a proxy that nothing holds any more.
func (d *Service) leftLocked(p *proxy) {
	if r, ok := d.cfg.Local.View().Get(p.key); ok && d.looksAfter(r) {
		d.startGraceLocked(p.key)
	} else {
		delete(d.proxies, p.key)
	}
}
