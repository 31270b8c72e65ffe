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
func (d *Door) Connect(stream connectStream) error {
	s, err := d.begin(stream)
	if err != nil {
		return err
	}
	outcome := errBroken // of a panic
	defer func() { d.exit(s, outcome) }()
	outcome = s.reason(d.serve(s))
	return outcome
}

// begin makes the session of a stream, once the door is open.
func (d *Door) begin(stream connectStream) (*session, error) {
	ctx := stream.Context()
	principal := authn.PrincipalFrom(ctx)
	if principal.Token == nil {
		return nil, rpcerr.New(rpcerr.Unauthenticated, authn.ReasonNoCredentials, "not authenticated: this is for proxies, which present a dataplane token")
	}
	// The stream's context ends with its token too, and says why.
	end, ok := authn.EndOf(ctx)
	if !ok {
		return nil, rpcerr.New(rpcerr.Internal, ReasonNotEndable, "the server cannot end streams, which this one has to")
	}
	s := &session{door: d, stream: stream, token: principal.Token, ctx: ctx, end: end, full: true}
	if !d.enter(s) {
		return nil, errStopping
	}
	select {
	case <-d.running:
		return s, nil
	case <-ctx.Done():
		err := s.reason(nil)
		d.exit(s, err)
		return nil, err
	}
}

// enter notes a stream, unless the door has been closed.
func (d *Door) enter(s *session) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.sessions[s] = struct{}{}
	d.streams.Add(1)
	return true
}

// exit takes leave of a stream that ends with err: nothing is sent on it from now
// on.
func (d *Door) exit(s *session, err error) {
	d.leave(s)
	s.end(err) // a send that waits for the proxy returns
	s.sending.Wait()
	d.streams.Done()
}

// serve admits a proxy, registers its dataplane and takes its answers until the
// end.
func (d *Door) serve(s *session) error {
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
		err = d.open(s, hello)
	})
	if err != nil {
		return err
	}
	err = s.reason(s.follow())
	d.log(s).Info("proxy gone", "reason", parting(err))
	return err
}

// parting says in words why a proxy is gone.
func parting(err error) string {
	switch {
	case err == nil:
		return "it hung up"
	case errors.Is(err, context.Canceled):
		return "it broke off, or cannot be reached any more"
	}
	return err.Error()
}

// open registers a proxy's dataplane and makes it hear of its configuration.
func (d *Door) open(s *session, hello *meridianv1.DataplaneHello) error {
	key := resource.Key{Kind: kindDataplane, Mesh: resource.MeshName(hello.GetMesh()), Name: hello.GetName()}
	if err := permitsKey(*s.token, key); err != nil {
		return err
	}
	described, err := d.described(*s.token, key, hello.GetSpec())
	if err != nil {
		return err
	}
	if _, err := d.wanted(*s.token, key, described); err != nil {
		return err // before anyone is replaced for it
	}
	d.admit(s, key)
	r, err := d.register(s, key, described)
	if err != nil {
		return err
	}
	d.opened(s, r)
	d.log(s).Info("proxy connected", "registered", byProxy(r))
	return nil
}

// log is for lines about a session that is in the table.
func (d *Door) log(s *session) *slog.Logger {
	return d.cfg.Log.With("mesh", s.proxy.key.Mesh, "dataplane", s.proxy.key.Name, "token", s.token.ID)
}

// admit puts a session in the table in the place of an older one, and waits until
// that one, and a removal of the registration that is under way, is done.
func (d *Door) admit(s *session, key resource.Key) {
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
		gone = older.leaving()
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

// opened makes a session hear of what happens to its dataplane, and catches up
// with what happened since it was registered.
func (d *Door) opened(s *session, r *resource.Resource) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.registered = true
	stored, ok := d.cfg.Local.View().Get(r.Key())
	if !ok {
		stored = nil
	}
	s.look(stored)
	s.nudgeLocked()
}

// leave takes a session out of the table and starts the grace period of what it
// registered.
func (d *Door) leave(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sessions, s)
	s.over = true
	if s.gone != nil {
		defer close(s.gone)
	}
	p := s.proxy
	if p == nil || p.session != s {
		return // it never had a place, or a newer one has taken it
	}
	p.session = nil
	if r, ok := d.cfg.Local.View().Get(p.key); ok && byProxy(r) {
		d.departLocked(p.key)
		return
	}
	delete(d.proxies, p.key)
}
