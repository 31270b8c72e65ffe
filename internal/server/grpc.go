package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/tap"

	meridianv1 "meridian/api/meridian/v1"
)

const (
	// MaxMessageBytes bounds one message from a server.
	MaxMessageBytes = 24 << 20
	// MaxBatchBytes bounds a batch to a server, in all of its messages: the specs of
	// one at its largest, and what stands around them.
	MaxBatchBytes = 24 << 20
)

// batches are the methods whose messages are one request together.
var batches = []string{
	meridianv1.AdminService_Apply_FullMethodName, meridianv1.AdminService_Delete_FullMethodName,
	meridianv1.AccessService_CanI_FullMethodName,
}

// Limits of one connection.
const (
	// handshakeTimeout bounds the TLS handshake.
	handshakeTimeout = 10 * time.Second
	// maxHeaderBytes bounds the headers of a request: twice the longest token, so
	// that one which is too long is told so.
	maxHeaderBytes = 32 << 10
	// maxStreams bounds the calls that run at once. A client that makes more waits, or
	// opens another connection. The headers of each are held until it has ended,
	// which a client that reads nothing delays until the connection is given up.
	maxStreams = 256
	// writeBuffer is gRPC's buffer for what is written to a connection, in bytes, held only
	// while it writes. A change is written to all zones at the same time, so that each of
	// them has one: a thousand of gRPC's own 32 KiB were 32 MB, and half of what an idle
	// server with a thousand zones allocated.
	writeBuffer = 8 << 10
	// maxIdle is how long a connection may stay without a call.
	maxIdle = 15 * time.Minute
	// keepaliveTimeout is how long a client may leave the server without any sign of
	// life after it was asked for one.
	keepaliveTimeout = 10 * time.Second
)

// GRPC is a server's gRPC side: TLS, limits, keepalive, health and reflection.
// Register services with it, not with the server in it: it receives their
// requests.
type GRPC struct {
	*grpc.Server
	health   *health.Server
	watches  *watchTracker
	receiver *receiver
	requests *requests
}

// Calls are what the calls of a server pass through: Check, Authenticate, Begin and
// Record, each before the first message is received, and Unary. To interceptors a
// unary call is a stream with one message in each direction. Fields that are nil are
// left out.
type Calls struct {
	// Check refuses calls by their method, before anything is done for them.
	Check func(method string) error
	// Authenticate hands on a stream whose context tells who calls.
	Authenticate grpc.StreamServerInterceptor
	// Begin are the steps at the beginning of a call whose caller is known, in order;
	// an error refuses the call. What has nothing to do at the end of a call belongs
	// here: an interceptor is on the stack of its stream for as long as that lasts.
	Begin []func(stream grpc.ServerStream, method string) error
	// Record sees how the call ends.
	Record grpc.StreamServerInterceptor
	// Unary is what a unary call passes with its request.
	Unary grpc.UnaryServerInterceptor
	// UnauthenticatedCanWrite reports whether callers without credentials may write anything
	// at all; else their requests must be small. It must not block.
	UnauthenticatedCanWrite func() bool
	// Limits bound the calls. Those on connections hold for listeners from
	// Limits.Bound.
	Limits *Limits
	// Codec encodes messages; nil for protobuf as gRPC does it.
	Codec encoding.CodecV2
	// Tap sees each call that is within the limits, before anything else is done for it.
	Tap tap.ServerInHandle
}

// tap is the tap handle of a server.
func (c *Calls) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if err := limitCall(ctx, info); err != nil || c.Tap == nil {
		return ctx, err
	}
	return c.Tap(ctx, info)
}

// NewGRPC returns a gRPC server that is not serving yet. Every call passes
// through what calls says, and a handler that panics fails its own call only.
func NewGRPC(log *slog.Logger, config *tls.Config, calls Calls) *GRPC {
	watches, requests := newWatchTracker(), newRequests()
	if calls.Codec == nil {
		calls.Codec = encoding.GetCodecV2(protocodec.Name)
	}
	g := &GRPC{requests: requests, health: health.NewServer(), watches: watches, receiver: newReceiver(calls, watches, log), Server: grpc.NewServer(
		grpc.Creds(limitedCredentials{credentials.NewTLS(config), newHandshakes()}),
		grpc.ForceServerCodecV2(calls.Codec),
		grpc.InTapHandle(calls.tap),
		grpc.StatsHandler(endedCalls{requests}),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxSendMsgSize(MaxMessageBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		// What an unauthenticated client can make a server hold besides: headers, a number of streams,
		// and a connection without any for a while.
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		// Windows that grow with the connection's speed would let a caller send 16 MiB
		// of every request that no handler reads yet.
		grpc.StaticStreamWindowSize(maxRequest),
		grpc.StaticConnWindowSize(connectionWindow),
		// Thousands of proxies hold a connection each and say little on it: what a
		// connection keeps while it is idle decides what a server needs.
		grpc.ReadBufferSize(0),
		grpc.WriteBufferSize(writeBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxIdle, Time: 30 * time.Second, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)}
	g.health.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	healthv1.RegisterHealthServer(g, g.health)
	reflection.Register(g)
	return g
}

// RegisterService implements grpc.ServiceRegistrar.
func (g *GRPC) RegisterService(desc *grpc.ServiceDesc, impl any) {
	g.requests.service(desc)
	g.Server.RegisterService(g.receiver.service(desc), impl)
}

// Collector returns the metrics of the calls.
func (g *GRPC) Collector() prometheus.Collector { return g.requests }

// Ready tells health checks whether the server can do its work: of the server as
// a whole and of every service registered.
func (g *GRPC) Ready(ready bool) {
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if ready {
		status = healthv1.HealthCheckResponse_SERVING
	}
	g.health.SetServingStatus("", status)
	for service := range g.GetServiceInfo() {
		g.health.SetServingStatus(service, status)
	}
}

// Suspend ends the watches of the API and refuses new ones, with a reason, until
// Resume: what they would show may be out of date. Health checks fail meanwhile;
// other calls are answered.
func (g *GRPC) Suspend(reason error) {
	g.Ready(false)
	g.watches.suspend(reason)
}

// Resume undoes Suspend.
func (g *GRPC) Resume() {
	g.watches.resume()
	g.Ready(true)
}

// Run serves on l until ctx ends, then ends the watches and lets all other calls
// finish for at most grace before it cuts them off. It closes l.
func (g *GRPC) Run(ctx context.Context, l net.Listener, grace time.Duration) error {
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve gRPC: %w", err)
	case <-ctx.Done():
	}
	g.health.Shutdown()
	g.watches.stop()
	cut := time.AfterFunc(grace, g.Stop)
	defer cut.Stop()
	g.GracefulStop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve gRPC: %w", err)
	}
	return nil
}
