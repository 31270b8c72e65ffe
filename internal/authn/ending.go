package authn

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"meridian/internal/rpcerr"
)

type endKey struct{}

// EndOf returns what ends a stream from within, given its context; false where
// the stream cannot be ended. It ends with the error as its status, nil being
// success, unless it has ended before; context.Cause tells the error, and a
// handler that waits for its caller in Recv or in Send gets one too. It does not
// block. The Authenticator gives one to every stream that it watches over.
func EndOf(ctx context.Context) (end func(error), ok bool) {
	end, ok = ctx.Value(endKey{}).(func(error))
	return end, ok
}

// finisher is what a call of a gRPC server is to its transport: it sends the
// status, and by that ends every wait of the call.
type finisher interface {
	WriteStatus(st *status.Status) error
}

// endable returns a context for a stream that EndOf finds its end in.
//
// A context that is cancelled ends for those who look at it, but a Recv looks at
// none that a server can cancel: without more, a handler that may have to end a
// stream needs a second goroutine for as long as it receives, which is a quarter
// of what an idle stream costs. grpc lets a status be sent while the handler
// runs, though not by its own interfaces; where it cannot, EndOf finds nothing.
func endable(ctx context.Context) (context.Context, func(error)) {
	call, ok := grpc.ServerTransportStreamFromContext(ctx).(finisher)
	ctx, cancel := context.WithCancelCause(ctx) // released with the stream's own
	if !ok {
		return ctx, cancel
	}
	end := func(err error) {
		cancel(err)
		// What fails here, the handler's own end fails with as well.
		_ = call.WriteStatus(rpcerr.ToStatus(err))
	}
	return context.WithValue(ctx, endKey{}, end), end
}
