package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"meridian/internal/grpctest"
	"meridian/internal/pki"
	"meridian/internal/rpcerr"
)

// A watch lasts until its caller leaves; it must not hold up a stop.
func TestStoppingEndsWatches(t *testing.T) {
	pki, err := pki.Open(pki.Config{DataDir: t.TempDir(), Name: "s", Hosts: []string{"127.0.0.1"}, Now: time.Now, Log: discard(t)})
	require.NoError(t, err)
	g := NewGRPC(discard(t), pki.ServerTLS(), Calls{UnauthenticatedCanWrite: func() bool { return true }, Limits: NewLimits(DefaultLimits())})
	g.Ready(true)
	check, err := g.health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: healthv1.Health_ServiceDesc.ServiceName})
	require.NoError(t, err)
	require.Equal(t, healthv1.HealthCheckResponse_SERVING, check.GetStatus(), "every service has its own status")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stopped := make(chan error, 1)
	go func() { stopped <- g.Run(ctx, l, time.Hour) }()

	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(pki.CAPEM()))
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	watch, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	first, err := watch.Recv()
	require.NoError(t, err)
	require.Equal(t, healthv1.HealthCheckResponse_SERVING, first.GetStatus())

	stop()
	select {
	case err := <-stopped:
		require.NoError(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("the stop waits for a watch")
	}
	for err == nil {
		_, err = watch.Recv()
	}
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "the server is stopping")
}

// A server that cannot tell whether it shows the newest state ends its watches
// and takes no new ones until it can. Health may be watched all the same.
func TestSuspendedWatches(t *testing.T) {
	s := newWatchTracker()
	r := newReceiver(Calls{}, s, discard(t))
	why := rpcerr.New(rpcerr.Unavailable, "CUT_OFF", "cut off")
	watch := func(method string) (started <-chan struct{}, ended <-chan error) {
		begun, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- rpcerr.FromStatus(r.intercepted(grpc.StreamDesc{ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
				close(begun)
				<-stream.Context().Done()
				return stream.Context().Err()
			}}, method)(nil, &grpctest.Call{Ctx: t.Context()}))
		}()
		return begun, done
	}
	const own, health = "/meridian.v1.AdminService/Watch", "/grpc.health.v1.Health/Watch"
	begun, first := watch(own)
	<-begun
	begun, checks := watch(health)
	<-begun
	s.suspend(why)
	require.EqualError(t, <-first, why.Error())
	_, refused := watch(own)
	require.EqualError(t, <-refused, why.Error())
	s.resume()
	s.resume()
	begun, again := watch(own)
	<-begun
	require.Empty(t, checks)
	require.Empty(t, again)
	s.stop()
	require.EqualError(t, <-again, errStopping.Error())
	require.EqualError(t, <-checks, errStopping.Error())
	list := r.intercepted(grpc.StreamDesc{Handler: func(any, grpc.ServerStream) error { return nil }}, "/meridian.v1.AdminService/List")
	require.NoError(t, list(nil, &grpctest.Call{Ctx: t.Context()}), "what ends by itself is let be")
}

// What only begins a call is not on the stack of its handler: a zone has ten thousand
// that wait (docs/adr/0028).
func TestStepsOfACallLeaveItsStack(t *testing.T) {
	frames := func(steps int) int {
		pass := func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			return handle(srv, stream)
		}
		taken, deep := 0, 0
		calls := Calls{Authenticate: pass, Record: pass}
		for range steps {
			calls.Begin = append(calls.Begin, func(grpc.ServerStream, string) error {
				taken++
				return nil
			})
		}
		handler := newReceiver(calls, newWatchTracker(), discard(t)).intercepted(grpc.StreamDesc{ServerStreams: true, Handler: func(any, grpc.ServerStream) error {
			deep = runtime.Callers(0, make([]uintptr, 100))
			return nil
		}}, "/x/Connect")
		require.NoError(t, handler(nil, &grpctest.Call{Ctx: t.Context()}))
		require.Equal(t, steps, taken)
		return deep
	}
	require.Equal(t, frames(0), frames(5))
}
