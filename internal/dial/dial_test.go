package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"meridian/internal/pki"
)

func TestConnectionLog(t *testing.T) {
	l := NewLog()
	require.False(t, l.Connected())
	l.Record("a:1", errors.New("refused"))
	require.False(t, l.Connected())
	require.EqualError(t, l.Problem("a:1"), "refused")
	l.Record("a:1", nil)
	require.True(t, l.Connected())
	require.NoError(t, l.Problem("a:1"))
	l.Record("b:1", errors.New("reset"))
	require.True(t, l.Connected(), "it was reached once")
	require.EqualError(t, l.Last(), "reset")
	l.Record("b:1", fmt.Errorf("dial: %w", context.Canceled))
	require.EqualError(t, l.Problem("b:1"), "reset", "an attempt that was called off says nothing")
	require.Equal(t, "a:1", l.Blame(errors.New("no leader")))
	require.EqualError(t, l.Problem("a:1"), "no leader")

	l = NewLog()
	wrong := &pki.HandshakeError{Problem: "another CA"}
	l.Record("a:1", wrong)
	require.True(t, l.Rejected())
	l.Record("b:1", errors.New("refused"))
	l.Record("a:1", wrong)
	require.False(t, l.Rejected(), "b may be the right one, and come back")
}

func TestRotate(t *testing.T) {
	all := []string{"a:1", "b:1", "c:1"}
	require.Equal(t, []string{"c:1", "a:1", "b:1"}, Rotate(all, "b:1"), "the last one tried comes last")
	require.Equal(t, all, Rotate(all, "c:1"))
	require.ElementsMatch(t, all, Rotate(all, "d:1"))
	require.Empty(t, Rotate(nil, "a:1"))
}

// Calls go to the servers after one that was left, and stay there.
func TestLeave(t *testing.T) {
	var addresses []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		s := grpc.NewServer()
		healthv1.RegisterHealthServer(s, health.NewServer())
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		t.Cleanup(func() {
			s.Stop()
			require.NoError(t, <-served)
		})
		addresses = append(addresses, l.Addr().String())
	}
	log := NewLog()
	servers, err := NewServers(Config{Transport: insecure.NewCredentials(), Log: log}, addresses)
	require.NoError(t, err)
	defer servers.Close()
	at := func() string {
		_, err := healthv1.NewHealthClient(servers).Check(t.Context(), &healthv1.HealthCheckRequest{})
		require.NoError(t, err)
		return log.Blame(nil)
	}
	require.Equal(t, addresses[0], at())
	servers.Leave("127.0.0.1:1")
	require.Equal(t, addresses[0], at(), "an address of another control plane changes nothing")
	servers.Leave(addresses[0])
	require.Equal(t, addresses[1], at())
	require.Equal(t, addresses[1], at())
}
