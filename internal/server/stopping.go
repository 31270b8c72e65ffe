package server

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc"

	"meridian/internal/rpcerr"
)

// errStopping is how a watch ends when the server stops.
var errStopping = rpcerr.New(rpcerr.Unavailable, "STOPPING", "the server is stopping")

// watchSuffix ends the names of the methods whose calls last until the caller
// leaves. All others finish by themselves.
const watchSuffix = "/Watch"

// stopper ends watches when the server stops: they would last for as long as the
// callers stay, and hold up the stop until it cuts them off.
type stopper struct {
	stopping context.Context
	stop     context.CancelFunc
}

func newStopper() stopper {
	ctx, cancel := context.WithCancel(context.Background())
	return stopper{ctx, cancel}
}

func (s stopper) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !strings.HasSuffix(info.FullMethod, watchSuffix) {
		return handler(srv, ss)
	}
	return s.watch(srv, ss, handler)
}

// watch serves a call that ends when the server stops.
func (s stopper) watch(srv any, ss grpc.ServerStream, handler grpc.StreamHandler) error {
	ctx, end := context.WithCancelCause(ss.Context())
	defer end(nil)
	unhook := context.AfterFunc(s.stopping, func() { end(errStopping) })
	defer unhook()
	err := handler(srv, watchStream{ss, ctx})
	if errors.Is(context.Cause(ctx), errStopping) {
		return errStopping
	}
	return err
}

// watchStream is a stream whose context also ends with the server.
type watchStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s watchStream) Context() context.Context { return s.ctx }
