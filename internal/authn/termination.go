package authn

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"meridian/internal/rpcerr"
)

type terminationKey struct{}

// TerminationOf returns the function that terminates a stream, given the stream's
// context; false where the stream cannot be terminated. The stream ends with the
// error as its status, nil being success, unless it has ended before;
// context.Cause returns the error, and a handler that waits in Recv or Send returns
// with one. It does not block. The Authenticator provides it for every stream that
// was authenticated by a token.
func TerminationOf(ctx context.Context) (end func(error), ok bool) {
	end, ok = ctx.Value(terminationKey{}).(func(error))
	return end, ok
}

// statusWriter is the transport's side of a call on a gRPC server: sending the
// status ends every wait of the call.
type statusWriter interface {
	WriteStatus(st *status.Status) error
}

// terminable returns a context for a stream, in which TerminationOf finds the
// function that terminates it.
//
// A Recv observes no context that a server can cancel. Without this, a handler that
// may have to terminate its stream needs a second goroutine for as long as it
// receives, which is a quarter of the memory of an idle stream. gRPC allows a status
// to be sent while the handler runs, though not by its own interfaces; where it
// does not, TerminationOf finds nothing.
func terminable(ctx context.Context) (context.Context, func(error)) {
	call, ok := grpc.ServerTransportStreamFromContext(ctx).(statusWriter)
	ctx, cancel := context.WithCancelCause(ctx) // released with the stream's own
	if !ok {
		return ctx, cancel
	}
	end := func(err error) {
		cancel(err)
		// What fails here, the handler's own end fails with as well.
		_ = call.WriteStatus(rpcerr.ToStatus(err))
	}
	return context.WithValue(ctx, terminationKey{}, end), end
}
