package consensus_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/raftnet"
	"meridian/internal/raftnet/raftnettest"
	"meridian/internal/store"
)

// overTLS returns a cluster without servers, whose servers have files and real
// sockets on loopback.
func overTLS(t *testing.T, timing consensus.Timing) *cluster {
	t.Helper()
	ca := raftnettest.NewAuthority(t)
	directories := map[string]string{}
	c := &cluster{t: t, servers: map[string]*server{}}
	c.tune = func(s *server, cfg *consensus.Config) {
		if directories[s.name] == "" {
			directories[s.name] = t.TempDir()
		}
		cfg.DataDir, cfg.Timing = directories[s.name], timing
		// An election may follow a handover that a busy machine was too slow for.
		cfg.ApplyTimeout = max(cfg.ApplyTimeout, 12*timing.Heartbeat)
		cfg.Transport = raftnet.Config{Addr: s.addr, TLS: ca.Config(t, s.name)}
		cfg.Autopilot.Stabilization = cfg.Autopilot.Interval
	}
	t.Cleanup(c.close)
	return c
}

// TestThreeServersOverTLS: writes and reads at every server, a leader that is
// lost, one that hands over, and one that comes back at another port.
func TestThreeServersOverTLS(t *testing.T) {
	c := overTLS(t, consensus.DefaultConfig("").Timing)
	a, b, d := c.three()
	servers := []*server{a, b, d}
	for i, from := range servers {
		from.write(t, "k", fmt.Sprint(i))
		for _, at := range servers {
			require.Equal(t, fmt.Sprint(i), at.read(t, "k"))
		}
	}
	_, err := b.node.Propose(context.Background(), store.Txn{
		Ops: []store.Op{put("k", "9")}, Preconditions: []store.Precondition{{Key: key("k"), Version: 77}},
	})
	var conflict *store.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.EqualValues(t, 3, conflict.Have)

	next, err := d.node.TransferLeadership(context.Background(), "b")
	require.NoError(t, err)
	require.Equal(t, "b", next)
	a.write(t, "k", "10")

	// The leader is cut off from one moment to the next.
	require.NoError(t, consensus.CutOff(b.node))
	d.write(t, "k", "11")
	require.Equal(t, "11", a.read(t, "k"))
	c.restart(b, nil) // on another port
	require.Equal(t, "11", b.read(t, "k"))
	c.knows(a, "b", b.node.RaftAddr())
	b.write(t, "k", "12")
}

// TestHandingOverUnderLoadOverTLS: servers stop one after the other, leaders
// among them, and every write at another one succeeds, without a request id.
func TestHandingOverUnderLoadOverTLS(t *testing.T) {
	// No server may lose leadership because the machine is busy: that is no orderly
	// change, and leaves writes without a request id in doubt.
	c := overTLS(t, consensus.Timing{Heartbeat: 10 * time.Second, Lease: 10 * time.Second, Commit: 10 * time.Millisecond})
	a, _, _ := c.three()
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
				if _, err := a.node.Propose(context.Background(), store.Txn{Ops: []store.Op{put(fmt.Sprint(w), fmt.Sprint(i))}}); err != nil {
					failed <- fmt.Errorf("write %d of %d: %w", i, w, err)
					return
				}
			}
		})
	}
	for _, name := range []string{"b", "c", "b"} {
		_, err := a.node.TransferLeadership(context.Background(), name)
		require.NoError(t, err)
		leader := c.servers[name]
		leader.addr = leader.node.RaftAddr()
		c.stop(leader)
		c.eventually("another leader", func() bool {
			id, _ := a.node.Leader()
			return id != "" && id != name
		})
		c.open(leader, nil)
		c.ready(leader)
	}
	close(stop)
	writers.Wait()
	close(failed)
	require.NoError(t, <-failed)
}
