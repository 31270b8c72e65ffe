package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"meridian/internal/auth"
)

// A watch lasts until its caller leaves; it must not hold up a stop.
func TestStoppingEndsWatches(t *testing.T) {
	pki, err := auth.OpenPKI(auth.PKIConfig{DataDir: t.TempDir(), Name: "s", Hosts: []string{"127.0.0.1"}, Now: time.Now, Log: discard(t)})
	require.NoError(t, err)
	g := NewGRPC(discard(t), pki.ServerTLS(), nil, nil)
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
