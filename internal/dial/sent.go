package dial

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/stats"
)

type sentKey struct{}

// WithSent returns a context for one call, and whether that call was begun on a
// connection: then a server may have received it, whatever became of the connection
// afterwards. It is known for connections with a Log.
func WithSent(ctx context.Context) (context.Context, func() bool) {
	sent := new(atomic.Bool)
	return context.WithValue(ctx, sentKey{}, sent), sent.Load
}

// sentCalls marks the contexts of WithSent.
type sentCalls struct{}

// TagRPC implements stats.Handler.
func (sentCalls) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (sentCalls) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutHeader); !ok {
		return
	}
	if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
}

// TagConn implements stats.Handler.
func (sentCalls) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (sentCalls) HandleConn(context.Context, stats.ConnStats) {}
