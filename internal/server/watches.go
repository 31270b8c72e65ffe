package server

import (
	"context"
	"errors"
	"strings"
	"sync"

	"google.golang.org/grpc"

	"meridian/internal/rpcerr"
)

// errStopping is how a watch ends when the server stops.
var errStopping = rpcerr.New(rpcerr.Unavailable, "STOPPING", "the server is stopping")

const (
	// watchSuffix ends the names of the methods whose calls last until the caller
	// leaves. All others finish by themselves.
	watchSuffix = "/Watch"
	// ownPrefix begins the names of the product's own methods.
	ownPrefix = "/meridian."
)

// watchTracker ends watches when the server stops, since they would last for as long
// as the callers stay and hold up the stop until it cuts them off; and while the
// server cannot tell whether what it shows is the newest state.
type watchTracker struct {
	mu sync.Mutex // guards what follows
	// running ends with the reason why watches have to end.
	running context.Context
	end     context.CancelCauseFunc
	// own is the same for the product's own watches, which can be suspended: the
	// reason is kept until they are resumed.
	own       context.Context
	endOwn    context.CancelCauseFunc
	suspended error
}

func newWatchTracker() *watchTracker {
	s := &watchTracker{}
	s.running, s.end = context.WithCancelCause(context.Background())
	s.own, s.endOwn = context.WithCancelCause(s.running)
	return s
}

// stop ends every watch, for good.
func (s *watchTracker) stop() { s.end(errStopping) }

// suspend ends the product's own watches and refuses new ones, with a reason,
// until resume.
func (s *watchTracker) suspend(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.suspended = reason
	s.endOwn(reason)
}

func (s *watchTracker) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspended != nil {
		s.suspended = nil
		s.own, s.endOwn = context.WithCancelCause(s.running)
	}
}

// contextFor returns the context that a watch depends on.
func (s *watchTracker) contextFor(method string) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.HasPrefix(method, ownPrefix) {
		return s.own
	}
	return s.running
}

// handler is the handler of a watch, which ends when the server says so.
func (s *watchTracker) handler(method string, handler grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, ss grpc.ServerStream) error { return s.watch(srv, ss, method, handler) }
}

// endedError is why the server ended a watch.
type endedError struct{ reason error }

func (e *endedError) Error() string { return e.reason.Error() }

// watch serves a call that ends when the server says so.
func (s *watchTracker) watch(srv any, ss grpc.ServerStream, method string, handler grpc.StreamHandler) error {
	until := s.contextFor(method)
	ctx, end := context.WithCancelCause(ss.Context())
	defer end(nil)
	unhook := context.AfterFunc(until, func() { end(&endedError{context.Cause(until)}) })
	defer unhook()
	err := handler(srv, watchStream{ss, ctx})
	var ended *endedError
	if errors.As(context.Cause(ctx), &ended) {
		return ended.reason
	}
	return err
}

// watchStream is a stream whose context also ends with the server's leave.
type watchStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s watchStream) Context() context.Context { return s.ctx }
