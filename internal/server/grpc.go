package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"meridian/internal/rpcerr"
)

// MaxMessageBytes bounds one message to or from a server: a batch at its
// largest, with room for the envelope.
const MaxMessageBytes = 24 << 20

// Limits of one connection.
const (
	// handshakeTimeout bounds the TLS handshake.
	handshakeTimeout = 10 * time.Second
	// maxHeaderBytes bounds the headers of a request.
	maxHeaderBytes = 64 << 10
	// maxStreams bounds the calls that run at once.
	maxStreams = 1024
	// maxIdle is how long a connection may stay without a call.
	maxIdle = 15 * time.Minute
)

// GRPC is a server's gRPC side: TLS, limits, keepalive, health and reflection.
type GRPC struct {
	*grpc.Server
	health  *health.Server
	watches *stopper
}

// NewGRPC returns a gRPC server that is not serving yet. Every call passes
// through unary and stream, in order, and a handler that panics fails its own
// call only.
func NewGRPC(log *slog.Logger, config *tls.Config, unary []grpc.UnaryServerInterceptor, stream []grpc.StreamServerInterceptor) *GRPC {
	guard, watches := guard{log}, newStopper()
	g := &GRPC{health: health.NewServer(), watches: watches, Server: grpc.NewServer(
		grpc.Creds(credentials.NewTLS(config)),
		grpc.MaxRecvMsgSize(MaxMessageBytes),
		grpc.MaxSendMsgSize(MaxMessageBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		// What a stranger can make a server hold: headers somewhat above the longest
		// token, a number of streams, and a connection without any for a while.
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		// Thousands of proxies hold a connection each and say little on it: what a
		// connection keeps while it is idle decides what a server needs.
		grpc.ReadBufferSize(0),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxIdle, Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(append([]grpc.UnaryServerInterceptor{rpcerr.UnaryServer, guard.unary}, unary...)...),
		grpc.ChainStreamInterceptor(append([]grpc.StreamServerInterceptor{rpcerr.StreamServer, guard.stream, watches.stream}, stream...)...),
	)}
	g.health.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	healthv1.RegisterHealthServer(g.Server, g.health)
	reflection.Register(g.Server)
	return g
}

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

// guard keeps a panic in one handler from ending the process.
type guard struct{ log *slog.Logger }

func (g guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer g.recover(info.FullMethod, &err)
	return handler(ctx, req)
}

func (g guard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer g.recover(info.FullMethod, &err)
	return handler(srv, ss)
}

func (g guard) recover(method string, err *error) {
	if r := recover(); r != nil {
		g.log.Error("a call broke off", "method", method, "panic", r, "stack", string(debug.Stack()))
		*err = rpcerr.New(rpcerr.Internal, "PANIC", "the server failed on this request; its log says more")
	}
}
