package door

import (
	"context"

	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/auth"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// connectStream is the zone's end of a call of Connect.
type connectStream = grpc.BidiStreamingServer[meridianv1.ConnectRequest, meridianv1.ConnectResponse]

// Connect implements the DataplaneService. See its description there.
func (d *Door) Connect(stream connectStream) error {
	principal := auth.PrincipalFrom(stream.Context())
	if principal.Token == nil {
		return rpcerr.New(rpcerr.Unauthenticated, auth.ReasonNoCredentials, "not authenticated: this is for proxies, which present a dataplane token")
	}
	// The stream's context ends with its token, and says why.
	ctx, end := context.WithCancelCause(stream.Context())
	defer end(nil)
	s := &session{
		door: d, stream: stream, token: *principal.Token, ctx: ctx, end: end, full: true,
		inbox: make(chan *meridianv1.ConnectRequest), wake: make(chan struct{}, 1), sent: make(chan error, 1), gone: make(chan struct{}),
	}
	if !d.enter(s) {
		return errStopping
	}
	defer d.exit(s)
	d.streams.Go(s.receive)
	select {
	case <-d.running:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	hello, err := s.hello()
	if err != nil {
		return s.reason(err)
	}
	return d.serve(s, hello)
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

func (d *Door) exit(s *session) {
	d.mu.Lock()
	delete(d.sessions, s)
	d.mu.Unlock()
	d.streams.Done()
}

// serve admits a proxy, registers its dataplane and serves it until the end.
func (d *Door) serve(s *session, hello *meridianv1.DataplaneHello) error {
	key := resource.Key{Kind: kindDataplane, Mesh: resource.MeshName(hello.GetMesh()), Name: hello.GetName()}
	if err := permitsKey(s.token, key); err != nil {
		return err
	}
	if _, err := d.wanted(s.token, key, hello.GetSpec()); err != nil {
		return err // before anyone is replaced for it
	}
	d.admit(s, key)
	defer d.leave(s)
	r, err := d.register(s, key, hello.GetSpec())
	if err != nil {
		return s.reason(err)
	}
	d.opened(s, r)
	log := d.cfg.Log.With("mesh", key.Mesh, "dataplane", key.Name, "token", s.token.ID)
	log.Info("proxy connected", "registered", byProxy(r))
	err = s.reason(s.run())
	log.Info("proxy gone", "reason", err)
	return err
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
	d.mu.Unlock()
	if older != nil {
		older.end(rpcerr.New(rpcerr.Conflict, ReasonReplaced, "another connection of dataplane %q in mesh %q took the place of this one", key.Name, key.Mesh))
		select {
		case <-older.gone:
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
	s.nudge()
}

// leave takes a session out of the table and starts the grace period of what it
// registered.
func (d *Door) leave(s *session) {
	defer close(s.gone)
	d.mu.Lock()
	defer d.mu.Unlock()
	p := s.proxy
	if p.session != s {
		return // a newer one has taken the place
	}
	p.session = nil
	if r, ok := d.cfg.Local.View().Get(p.key); ok && byProxy(r) {
		d.departLocked(p.key)
		return
	}
	delete(d.proxies, p.key)
}
