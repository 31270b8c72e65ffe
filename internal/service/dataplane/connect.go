package dataplane

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/aside"
	"meridian/internal/authn"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// connectStream is the zone's end of a call of Connect.
type connectStream = grpc.BidiStreamingServer[meridianv1.ConnectRequest, meridianv1.ConnectResponse]

// Connect implements the DataplaneService. See its description there.
//
// Its goroutine is the one that a proxy has, and lasts as long: it receives. The
// rest is done aside, by the workers, or by goroutines that end when it is done.
func (d *Service) Connect(stream connectStream) error {
	s, err := d.newSession(stream)
	if err != nil {
		return err
	}
	outcome := errInternal // of a panic
	defer func() { d.endSession(s, outcome) }()
	outcome = s.closeReason(d.serve(s))
	return outcome
}

// newSession makes the session of a stream, once the door is open.
func (d *Service) newSession(stream connectStream) (*session, error) {
	ctx := stream.Context()
	principal := authn.PrincipalFrom(ctx)
	if principal.Token == nil {
		return nil, rpcerr.New(rpcerr.Unauthenticated, authn.ReasonNoCredentials, "not authenticated: this is for proxies, which present a dataplane token")
	}
	// The stream's context ends with its token too, and says why.
	end, ok := authn.TerminationOf(ctx)
	if !ok {
		return nil, rpcerr.New(rpcerr.Internal, ReasonNotEndable, "the server cannot end streams, which this one has to")
	}
	s := &session{service: d, stream: stream, token: principal.Token, ctx: ctx, end: end, full: true}
	if !d.addSession(s) {
		return nil, errStopping
	}
	select {
	case <-d.running:
		return s, nil
	case <-ctx.Done():
		err := s.closeReason(nil)
		d.endSession(s, err)
		return nil, err
	}
}

// addSession notes a stream, unless the door has been closed.
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

// endSession takes leave of a stream that ends with err: nothing is sent on it from now
// on.
func (d *Service) endSession(s *session, err error) {
	d.removeSession(s)
	s.end(err) // a send that waits for the proxy returns
	s.sending.Wait()
	d.streams.Done()
}

// serve admits a proxy, registers its dataplane and takes its answers until the
// end.
func (d *Service) serve(s *session) error {
	hello, err := s.hello()
	if err != nil {
		return err
	}
	select {
	case d.registering <- struct{}{}:
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
	aside.Do(func() {
		defer func() { <-d.registering }()
		err = d.establish(s, hello)
	})
	if err != nil {
		return err
	}
	err = s.closeReason(s.receiveAcks())
	d.logger(s).Info("proxy gone", "reason", disconnectReason(err))
	return err
}

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
	described, err := d.parseSpec(*s.token, key, hello.GetSpec())
	if err != nil {
		return err
	}
	if _, err := d.decide(*s.token, key, described); err != nil {
		return err // before anyone is replaced for it
	}
	d.claim(s, key)
	r, err := d.register(s, key, described)
	if err != nil {
		return err
	}
	d.connected(s, r)
	d.logger(s).Info("proxy connected", "registered", byProxy(r))
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
	p.session, s.proxy = s, p
	p.changed++ // from nothing to something
	p.acked, p.lastError = 0, ""
	var gone chan struct{}
	if older != nil {
		gone = older.doneLocked()
	}
	d.mu.Unlock()
	if older != nil {
		older.end(rpcerr.New(rpcerr.Conflict, ReasonReplaced, "another connection of dataplane %q in mesh %q took the place of this one", key.Name, key.Mesh))
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

// connected makes a session hear of what happens to its dataplane, and catches up
// with what happened since it was registered.
func (d *Service) connected(s *session, r *resource.Resource) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.registered = true
	stored, ok := d.cfg.Local.View().Get(r.Key())
	if !ok {
		stored = nil
	}
	s.check(stored)
	s.markChangedLocked()
}

// removeSession takes a session out of the table and starts the grace period of what it
// registered.
func (d *Service) removeSession(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sessions, s)
	s.ended = true
	if s.done != nil {
		defer close(s.done)
	}
	p := s.proxy
	if p == nil || p.session != s {
		return // it never had a place, or a newer one has taken it
	}
	p.session = nil
	if r, ok := d.cfg.Local.View().Get(p.key); ok && byProxy(r) {
		d.startGraceLocked(p.key)
		return
	}
	delete(d.proxies, p.key)
}
