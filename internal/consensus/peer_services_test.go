package consensus

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"meridian/internal/raftnet"
	"meridian/internal/raftnet/raftnettest"
)

// TestServicesOfPeers: what a server registers, its peers call, and no other client.
func TestServicesOfPeers(t *testing.T) {
	ca := raftnettest.NewAuthority(t)
	cfg := testConfig(t.TempDir())
	cfg.Transport = raftnet.Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "one")}
	cfg.PeerServices = func(r grpc.ServiceRegistrar) { healthv1.RegisterHealthServer(r, fine{}) }
	one, _ := open(t, cfg)
	other := testConfig(t.TempDir())
	other.ClusterID = "another"
	other.Transport = raftnet.Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "two")}
	two, _ := open(t, other)

	answer, err := healthv1.NewHealthClient(one.PeerConn(one.RaftAddr())).Check(t.Context(), &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, healthv1.HealthCheckResponse_SERVING, answer.GetStatus())
	_, err = healthv1.NewHealthClient(two.PeerConn(one.RaftAddr())).Check(t.Context(), &healthv1.HealthCheckRequest{})
	require.ErrorContains(t, err, "not another", "another cluster under the same authority")

	unknown := testConfig(t.TempDir())
	unknown.Transport = raftnet.Config{Addr: "127.0.0.1:0", TLS: raftnettest.NewAuthority(t).Config(t, "three")}
	three, _ := open(t, unknown)
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = healthv1.NewHealthClient(three.PeerConn(one.RaftAddr())).Check(short, &healthv1.HealthCheckRequest{})
	require.Error(t, err, "another authority")

	require.NoError(t, one.Close())
	_, err = healthv1.NewHealthClient(one.PeerConn(two.RaftAddr())).Check(t.Context(), &healthv1.HealthCheckRequest{})
	require.ErrorIs(t, err, ErrClosed)
}

type fine struct {
	healthv1.UnimplementedHealthServer
}

func (fine) Check(context.Context, *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, nil
}

// TestOneServerOnTheNetwork: with an address the listener is there from the
// start, the server leads without waiting for a timeout, and a restart on
// another port keeps everything.
func TestOneServerOnTheNetwork(t *testing.T) {
	ca := raftnettest.NewAuthority(t)
	cfg := testConfig(t.TempDir())
	cfg.Transport = raftnet.Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "one")}
	cfg.Timing.Heartbeat, cfg.Timing.Lease = time.Hour, time.Hour
	n, _ := open(t, cfg)
	propose(t, n, put("a", 1))
	conn, err := tls.Dial("tcp", n.RaftAddr(), ca.Config(t, "two"))
	require.NoError(t, err)
	require.EqualValues(t, tls.VersionTLS13, conn.ConnectionState().Version)
	require.NoError(t, n.Close(), "an open connection does not hold it up")
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	_ = conn.Close()

	n, st := open(t, cfg)
	value, _ := stored(t, st.View(), "a")
	require.Equal(t, 1, value)
	propose(t, n, put("a", 2))
}
