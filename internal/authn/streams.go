package authn

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"meridian/internal/authn/token"
	"meridian/internal/deepstack"
	"meridian/internal/rpcerr"
)

// openStreams are the streams that were authenticated by a token. The zero value is empty; it
// is safe for concurrent use.
type openStreams struct {
	mu  sync.Mutex
	all map[*serverStream]struct{} // guarded by mu
}

func (o *openStreams) add(s *serverStream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[*serverStream]struct{}{}
	}
	o.all[s] = struct{}{}
}

func (o *openStreams) remove(s *serverStream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, s)
}

func (o *openStreams) list() []*serverStream {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]*serverStream, 0, len(o.all))
	for s := range o.all {
		out = append(out, s)
	}
	return out
}

// Recheck ends every open stream whose token no longer holds (§6.8).
// Call it when keys or revocations have changed.
func (a *Authenticator) Recheck() {
	streams := a.streams.list()
	if len(streams) == 0 {
		return
	}
	verifier := a.Verifier()
	for _, s := range streams {
		if err := verifier.Recheck(*s.token); err != nil {
			s.end(ended(err))
		}
	}
}

// ended is the error of a stream that is terminated.
func ended(err error) error {
	return rpcerr.New(rpcerr.Unauthenticated, ReasonBadToken, "no longer authenticated: %w", err)
}

// Stream is the server interceptor for streaming methods. A stream ends with its
// token: when that expires, or when it is refused by Recheck. The streams of zones are
// left to those who serve them, who authorize them again.
//
// A handler that waits for its caller in Recv or Send is not interrupted: one whose
// caller may stay silent for long waits for the stream's context beside it.
func (a *Authenticator) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	register := a.register
	if info.IsServerStream {
		register = a.registerDeep
	}
	s, err := register(stream, info.FullMethod)
	if err != nil {
		return err
	}
	defer a.unregister(s)
	return a.outcome(s, info.FullMethod, handler(srv, s))
}

// registerDeep registers a stream that may last: verifying a signature needs a deep stack.
func (a *Authenticator) registerDeep(stream grpc.ServerStream, method string) (s *serverStream, err error) {
	deepstack.Run(func() { s, err = a.register(stream, method) })
	return s, err
}

// register authenticates and authorizes a stream, and from then on watches its
// token. Refusals leave it as statuses.
func (a *Authenticator) register(stream grpc.ServerStream, method string) (*serverStream, error) {
	ctx, err := a.enter(stream.Context(), method)
	if err != nil {
		return nil, rpcerr.ToStatus(err).Err()
	}
	s := &serverStream{ServerStream: stream, ctx: ctx}
	p := PrincipalFrom(ctx)
	if _, isZone := p.Zone(); isZone || p.Token == nil {
		return s, nil
	}
	s.ctx, s.end = context.WithCancelCause(ctx)
	s.token = p.Token
	if a.Revokes == nil || !a.Revokes(method) {
		a.streams.add(s)
	}
	verifier := a.Verifier()
	// A revocation since the first check has not found the stream in the list.
	if err := verifier.Recheck(*s.token); err != nil {
		s.end(ended(err))
		a.unregister(s)
		return nil, a.outcome(s, method, err)
	}
	s.expiry = time.AfterFunc(verifier.TimeLeft(*s.token), s.expire)
	return s, nil
}

// unregister stops watching the token of a stream that is over.
func (a *Authenticator) unregister(s *serverStream) {
	if s.token == nil {
		return
	}
	if s.expiry != nil {
		s.expiry.Stop()
	}
	a.streams.remove(s)
}

// outcome returns the error that a stream ends with, given that of its handler.
func (a *Authenticator) outcome(s *serverStream, method string, err error) error {
	if over := s.over(); over != nil && s.token != nil {
		a.refused(s.ServerStream.Context(), PrincipalFrom(s.ctx), method, context.Cause(s.ctx))
		return over
	}
	return err
}

// serverStream is a stream whose context carries the principal. After that context
// has ended with the token, no message passes.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
	// token authenticated the stream, and end terminates it; nil for streams without
	// a token, and for those of zones.
	token  *token.Token
	end    func(error)
	expiry *time.Timer
}

func (s *serverStream) expire() {
	s.end(ended(fmt.Errorf("%w on %s", token.ErrExpired, s.token.Expires.Format(time.RFC3339))))
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
	if s.ctx.Err() == nil {
		return nil // as for nearly every message: to look for the cause costs more
	}
	if cause := context.Cause(s.ctx); rpcerr.HasReason(cause, ReasonBadToken) {
		return rpcerr.ToStatus(cause).Err()
	}
	return nil
}
