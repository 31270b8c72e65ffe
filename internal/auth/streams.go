package auth

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"meridian/internal/rpcerr"
)

// openStreams are the streams that live on a token. The zero value is empty; it
// is safe for concurrent use.
type openStreams struct {
	mu  sync.Mutex
	all map[*openStream]struct{} // guarded by mu
}

// openStream is one of them.
type openStream struct {
	token Token
	end   context.CancelCauseFunc
}

func (o *openStreams) add(s *openStream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[*openStream]struct{}{}
	}
	o.all[s] = struct{}{}
}

func (o *openStreams) remove(s *openStream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, s)
}

func (o *openStreams) list() []*openStream {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]*openStream, 0, len(o.all))
	for s := range o.all {
		out = append(out, s)
	}
	return out
}

// Recheck ends every open stream whose token no longer holds (SEMANTICS §6.8).
// Call it when keys or revocations have changed.
func (a *Authenticator) Recheck() {
	streams := a.open.list()
	if len(streams) == 0 {
		return
	}
	verifier := a.Verifier()
	for _, s := range streams {
		if err := verifier.Recheck(s.token); err != nil {
			s.end(ended(err))
		}
	}
}

// ended is why a stream ends before its time.
func ended(err error) error {
	return rpcerr.New(rpcerr.Unauthenticated, ReasonBadToken, "not authenticated any more: %w", err)
}

// guarded runs a stream that ends with its token.
func (a *Authenticator) guarded(ctx context.Context, srv any, stream grpc.ServerStream, method string, handler grpc.StreamHandler) error {
	p := PrincipalFrom(ctx)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	entry := &openStream{token: *p.Token, end: end}
	a.open.add(entry)
	defer a.open.remove(entry)
	err := a.serveWhileValid(ctx, srv, stream, *p.Token, end, handler)
	if cause := context.Cause(ctx); rpcerr.HasReason(cause, ReasonBadToken) {
		a.refused(stream.Context(), p, method, cause)
		return rpcerr.ToStatus(cause).Err()
	}
	return err
}

func (a *Authenticator) serveWhileValid(ctx context.Context, srv any, stream grpc.ServerStream, token Token, end context.CancelCauseFunc, handler grpc.StreamHandler) error {
	verifier := a.Verifier()
	// What was revoked between the first look and now has not seen the stream.
	if err := verifier.Recheck(token); err != nil {
		end(ended(err))
		return err
	}
	timer := time.AfterFunc(token.Expires.Sub(verifier.now()), func() {
		end(ended(fmt.Errorf("%w on %s", ErrTokenExpired, token.Expires.Format(time.RFC3339))))
	})
	defer timer.Stop()
	return handler(srv, &serverStream{ServerStream: stream, ctx: ctx})
}

// serverStream is a stream whose context knows the principal. Once that context
// has ended for want of a token, nothing passes any more.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the stream's context with the principal.
func (s *serverStream) Context() context.Context { return s.ctx }

// SendMsg implements grpc.ServerStream.
func (s *serverStream) SendMsg(m any) error {
	if err := s.over(); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}

// RecvMsg implements grpc.ServerStream.
func (s *serverStream) RecvMsg(m any) error {
	if err := s.over(); err != nil {
		return err
	}
	return s.ServerStream.RecvMsg(m)
}

func (s *serverStream) over() error {
	if cause := context.Cause(s.ctx); rpcerr.HasReason(cause, ReasonBadToken) {
		return rpcerr.ToStatus(cause).Err()
	}
	return nil
}
