package consensus

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"meridian/internal/raftnet"
	"meridian/internal/raftnet/raftnettest"
	"meridian/internal/store"
)

// tlsServer is one of several servers with files, on real sockets.
type tlsServer struct {
	cfg   Config
	node  *Node
	store *store.Store
}

// startTLS opens a server of a cluster on loopback. A new one joins those given.
func startTLS(t *testing.T, ca *raftnettest.Authority, timing Timing, name string, addrs ...string) *tlsServer {
	t.Helper()
	cfg := testConfig(t.TempDir())
	cfg.Timing = timing
	// An election may follow a handover that a busy machine was too slow for.
	cfg.ApplyTimeout = max(cfg.ApplyTimeout, 12*timing.Heartbeat)
	cfg.NodeID = name
	cfg.Transport = raftnet.Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, name)}
	cfg.Join = JoinConfig{Fresh: len(addrs) > 0, Addrs: func() []string { return addrs }}
	cfg.Autopilot.Stabilization = cfg.Autopilot.Interval
	s := &tlsServer{cfg: cfg}
	s.open(t)
	return s
}

func (s *tlsServer) open(t *testing.T) {
	t.Helper()
	s.store = store.New(store.DefaultOptions())
	var err error
	s.node, err = Open(context.Background(), s.cfg, s.store)
	require.NoError(t, err)
	node := s.node
	t.Cleanup(func() { require.NoError(t, node.Close()) })
}

func (s *tlsServer) ready(t *testing.T) {
	t.Helper()
	select {
	case <-s.node.Ready():
	case <-time.After(time.Minute):
		require.FailNow(t, "not ready", "%s: %s", s.cfg.NodeID, s.node.Waiting())
	}
}

// threeTLS starts three servers, all voters, the first of which leads.
func threeTLS(t *testing.T, timing Timing) []*tlsServer {
	t.Helper()
	ca := raftnettest.NewAuthority(t)
	a := startTLS(t, ca, timing, "a")
	a.ready(t)
	b, c := startTLS(t, ca, timing, "b", a.node.RaftAddr()), startTLS(t, ca, timing, "c", a.node.RaftAddr())
	b.ready(t)
	c.ready(t)
	servers := []*tlsServer{a, b, c}
	await(t, "three voters", func() bool {
		for _, s := range servers {
			voters := 0
			for _, m := range s.node.Servers() {
				if m.Voter {
					voters++
				}
			}
			if voters != 3 {
				return false
			}
		}
		return true
	})
	return servers
}

// await waits until something is so.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	require.Eventually(t, so, time.Minute, 5*time.Millisecond, what)
}

func (s *tlsServer) put(t *testing.T, name string, value int) {
	t.Helper()
	_, err := s.node.Propose(context.Background(), store.Txn{RequestID: rand.Text(), Ops: []store.Op{put(name, value)}})
	require.NoError(t, err)
}

func (s *tlsServer) get(t *testing.T, name string) int {
	t.Helper()
	_, err := s.node.Read(context.Background())
	require.NoError(t, err)
	value, _ := stored(t, s.store.View(), name)
	return value
}

// TestThreeServersOverTLS: writes and reads at every server, a leader that is
// lost, one that hands over, and one that comes back at another port.
func TestThreeServersOverTLS(t *testing.T) {
	servers := threeTLS(t, testConfig("").Timing)
	for i, from := range servers {
		from.put(t, "k", i)
		for _, at := range servers {
			require.Equal(t, i, at.get(t, "k"))
		}
	}
	_, err := servers[1].node.Propose(context.Background(), store.Txn{
		Ops: []store.Op{put("k", 9)}, Preconditions: []store.Precondition{{Key: key("k"), Version: 77}},
	})
	var conflict *store.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.EqualValues(t, 3, conflict.Have)

	next, err := servers[2].node.TransferLeadership(context.Background(), "b")
	require.NoError(t, err)
	require.Equal(t, "b", next)
	servers[0].put(t, "k", 10)

	// The leader is cut off from one moment to the next.
	require.NoError(t, servers[1].node.network.Close())
	servers[2].put(t, "k", 11)
	require.Equal(t, 11, servers[0].get(t, "k"))
	require.NoError(t, servers[1].node.Close())

	servers[1].open(t) // on another port
	servers[1].ready(t)
	require.Equal(t, 11, servers[1].get(t, "k"))
	await(t, "its address is known", func() bool {
		for _, m := range servers[0].node.Servers() {
			if m.Name == "b" && m.Addr == servers[1].node.RaftAddr() {
				return true
			}
		}
		return false
	})
	servers[1].put(t, "k", 12)
}

// TestHandingOverUnderLoadOverTLS: servers stop one after the other, leaders
// among them, and every write at another one succeeds, without a request id.
func TestHandingOverUnderLoadOverTLS(t *testing.T) {
	// Nobody may lose the lead because the machine is busy: that is no orderly
	// change, and leaves writes without a request id in doubt.
	servers := threeTLS(t, Timing{Heartbeat: 10 * time.Second, Lease: 10 * time.Second, Commit: 10 * time.Millisecond})
	stop, failed := make(chan struct{}), make(chan error, 4)
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := 1; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := servers[0].node.Propose(context.Background(), store.Txn{Ops: []store.Op{put(fmt.Sprint(w), i)}}); err != nil {
					failed <- fmt.Errorf("write %d of %d: %w", i, w, err)
					return
				}
			}
		})
	}
	for _, name := range []string{"b", "c", "b"} {
		_, err := servers[0].node.TransferLeadership(context.Background(), name)
		require.NoError(t, err)
		leader := servers[map[string]int{"b": 1, "c": 2}[name]]
		require.NoError(t, leader.node.Close())
		await(t, "another leader", func() bool {
			id, _ := servers[0].node.Leader()
			return id != "" && id != name
		})
		leader.cfg.Transport.Addr = leader.node.RaftAddr()
		leader.open(t)
		leader.ready(t)
	}
	close(stop)
	writers.Wait()
	close(failed)
	require.NoError(t, <-failed)
}

// TestServicesOfPeers: what a server registers, its peers call, and nobody else.
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
