package agent

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"meridian/internal/dial"
)

// hanging is the server's end of a connection, which sends nothing once hangs is set: its
// kernel takes what is sent, and it reads nothing.
type hanging struct {
	net.Conn
	hangs *atomic.Bool
}

func (m hanging) Read(p []byte) (int, error) {
	for {
		n, err := m.Conn.Read(p)
		if err != nil || !m.hangs.Load() {
			return n, err
		}
	}
}

func (m hanging) Write(p []byte) (int, error) {
	if m.hangs.Load() {
		return len(p), nil
	}
	return m.Conn.Write(p)
}

// accepting is a listener of the connections that are sent to it.
type accepting chan net.Conn

func (a accepting) Accept() (net.Conn, error) {
	if conn, ok := <-a; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

// Close ends Accept. The server does that once.
func (a accepting) Close() error   { close(a); return nil }
func (a accepting) Addr() net.Addr { return &net.TCPAddr{} }

// An agent that has other servers to go to notices within 15 seconds that its server
// hangs, as docs/operations/zone-cluster.md says.
func TestAServerThatHangsIsLeft(t *testing.T) {
	for name, c := range map[string]struct {
		addresses []string
		within    time.Duration
	}{
		"one of several": {[]string{"127.0.0.1:1", "127.0.0.1:2"}, 15 * time.Second},
		"the only one":   {[]string{"127.0.0.1:1"}, 33 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var hangs atomic.Bool
				conns := make(accepting, 1)
				// What a zone allows.
				server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second}))
				healthv1.RegisterHealthServer(server, health.NewServer())
				served := make(chan error, 1)
				go func() { served <- server.Serve(conns) }()

				a := &agent{cfg: Config{Addresses: c.addresses}}
				config := a.connecting()
				config.Transport, config.Credentials = insecure.NewCredentials(), nil
				config.Options = []grpc.DialOption{grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
					if hangs.Load() {
						return nil, net.ErrClosed
					}
					near, far := net.Pipe()
					conns <- hanging{far, &hangs}
					return near, nil
				})}
				conn, err := dial.Conn(config, "127.0.0.1:1")
				require.NoError(t, err)
				stream, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
				require.NoError(t, err)
				_, err = stream.Recv()
				require.NoError(t, err)
				// In virtual time: a server that answers is kept. It hangs soon after it has
				// answered last, at 60 seconds.
				<-time.After(61 * time.Second)
				require.Equal(t, connectivity.Ready, conn.GetState())

				hangs.Store(true)
				began := time.Now()
				_, err = stream.Recv()
				require.Error(t, err)
				require.LessOrEqual(t, time.Since(began), c.within)
				require.NoError(t, conn.Close())
				server.Stop()
				require.NoError(t, <-served)
			})
		})
	}
}
