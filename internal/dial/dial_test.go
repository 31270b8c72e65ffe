package dial

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"meridian/internal/pki"
	"meridian/internal/rpcerr"
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

// TestMain names a proxy in the environment, which is read once in a process. Servers
// on loopback are reached without it.
func TestMain(m *testing.M) {
	var err error
	if proxy, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
		err = os.Setenv("HTTPS_PROXY", "http://"+proxy.Addr().String())
	}
	if err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

var proxy net.Listener

// A client that uses a proxy where the environment names one has its causes in the log
// where it names none.
func TestProxyOfTheEnvironment(t *testing.T) {
	conn, err := Conn(Config{Transport: insecure.NewCredentials(), Log: NewLog(), Proxy: true}, "global.example:5680")
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	conn.Connect()
	asked, err := proxy.Accept()
	require.NoError(t, err)
	defer func() { require.NoError(t, asked.Close()) }()
	first, err := bufio.NewReader(asked).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "CONNECT global.example:5680 HTTP/1.1\r\n", first)
	require.False(t, slices.ContainsFunc([]string{"127.0.0.1:5680", "localhost:5680"}, proxied))
}

// A call without a connection fails with the cause of that, as data and as text; what a
// server answers is left as it is.
func TestExplain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	log := NewLog()
	conn, err := Conn(Config{Transport: insecure.NewCredentials(), Log: log, Proxy: true, Options: []grpc.DialOption{
		grpc.WithUnaryInterceptor(log.UnaryClient), grpc.WithStreamInterceptor(log.StreamClient),
	}}, address)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	client := healthv1.NewHealthClient(conn)
	call, sent := WithSent(t.Context())
	_, err = client.Check(call, &healthv1.HealthCheckRequest{})
	require.False(t, sent())
	_, streamErr := client.Watch(t.Context(), &healthv1.HealthCheckRequest{})
	for _, err := range []error{err, streamErr} {
		require.EqualError(t, err, "dial tcp "+address+": connect: connection refused")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Equal(t, codes.Unavailable, status.Code(err))
	}

	wrong := &pki.HandshakeError{Problem: "another CA"}
	log.Record(address, wrong)
	require.ErrorIs(t, log.Explain(status.Error(codes.Unavailable, "connection error: desc = ...")), wrong)
	answer := rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "no leader")
	require.Equal(t, error(answer), log.Explain(answer), "the server said why")
	require.EqualError(t, log.Explain(status.Error(codes.NotFound, "no such thing")), "no such thing")
	log.Record(address, nil)
	require.EqualError(t, log.Explain(status.Error(codes.Unavailable, "reset")), "reset", "there was a connection")
	require.NoError(t, log.Explain(nil))
}

// A call that a server has received was sent, though it was not answered.
func TestSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		return l.Close()
	}))
	defer server.Stop()
	go func() { _ = server.Serve(l) }()
	conn, err := Conn(Config{Transport: insecure.NewCredentials(), Log: NewLog()}, l.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	call, sent := WithSent(t.Context())
	_, err = healthv1.NewHealthClient(conn).Check(call, &healthv1.HealthCheckRequest{})
	require.Error(t, err)
	require.True(t, sent())
}

// The pause between attempts stays below what is configured, however long the server is
// away, also where nothing is said of how long an attempt may take.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts []time.Time
		conn, err := Conn(Config{
			Transport: insecure.NewCredentials(),
			Backoff:   backoff.Config{BaseDelay: time.Second, Multiplier: 2, Jitter: 0.2, MaxDelay: 5 * time.Second},
			Options: []grpc.DialOption{grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
				attempts = append(attempts, time.Now())
				return nil, errors.New("nothing listens there")
			})},
		}, "127.0.0.1:1")
		require.NoError(t, err)
		for began := time.Now(); time.Since(began) < 10*time.Minute; {
			conn.Connect()
			state := conn.GetState()
			conn.WaitForStateChange(t.Context(), state)
		}
		require.NoError(t, conn.Close())
		require.Equal(t, connectivity.Shutdown, conn.GetState())
		require.Greater(t, len(attempts), 100)
		for i := range attempts[1:] {
			require.LessOrEqual(t, attempts[i+1].Sub(attempts[i]), 6*time.Second)
		}
	})
}
