package consensus_test

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/store"
	"meridian/test/simnet"
)

// TestALeaderWritesWhileItsFollowersDo: where every disk takes a second to sync, a write
// takes one, not two.
func TestALeaderWritesWhileItsFollowersDo(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		servers := make([]*server, 3)
		servers[0], servers[1], servers[2] = c.three()
		leader := c.leader(servers...)
		for _, s := range servers {
			s.disk.Slow(time.Second, simnet.SyncLog)
		}
		began := time.Now()
		leader.write(t, "k", "1")
		require.Less(t, time.Since(began), 1500*time.Millisecond)
		require.GreaterOrEqual(t, time.Since(began), time.Second)
	})
}

// slowLeader begins a write of k=2, after k=1, for which the leader's disk takes four
// seconds to sync, and waits until the others have the entry on theirs. outcome is the
// write's.
func slowLeader(c *cluster) (leader *server, others []*server, outcome <-chan error) {
	c.t.Helper()
	a, b, d := c.three()
	leader = c.leader(a, b, d)
	others = c.others(leader)
	leader.write(c.t, "k", "1")
	c.alike(a, b, d)
	leader.disk.Slow(4*time.Second, simnet.SyncLog)
	before := leader.node.Status().Last
	written := make(chan error, 1)
	go func() {
		_, err := leader.node.Propose(context.Background(), store.Txn{RequestID: rand.Text(), Ops: []store.Op{put("k", "2")}})
		written <- err
	}()
	c.eventually("the others have the entry", func() bool {
		return others[0].node.Status().Last > before && others[1].node.Status().Last > before
	})
	c.pass(time.Second) // longer than it takes to tell them that it is committed
	return leader, others, written
}

// TestNothingIsCommittedThatIsNotOnTheLeadersDisk: what the others have on their disks is
// neither acknowledged nor applied by any server, nor a read waits for it, while it is not
// on the leader's.
func TestNothingIsCommittedThatIsNotOnTheLeadersDisk(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		leader, others, written := slowLeader(c)
		require.Empty(t, written)
		for _, s := range c.running() {
			require.Equal(t, "1", s.read(t, "k"), s.name)
			status := s.node.Status()
			require.Less(t, status.Committed, status.Last, s.name)
		}
		require.Empty(t, written, "the sync has not ended while the test looked")
		leader.disk.Slow(0, 0)
		require.NoError(t, <-written)
		for _, s := range append(others, leader) {
			require.Equal(t, "2", s.read(t, "k"), s.name)
		}
	})
}

// TestALeaderLosesWhatItHasSent: the power of a leader fails that has sent an entry
// which is not on its own disk. The others have it, and the leader receives it.
func TestALeaderLosesWhatItHasSent(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		leader, others, written := slowLeader(c)
		sent := leader.node.Status().Last
		c.crash(leader)
		require.Error(t, <-written)
		_, kept := leader.disk.Entries()
		require.Less(t, kept, uint64(sent))
		c.leader(others...)
		leader.disk.Slow(0, 0)
		c.open(leader, nil)
		c.ready(leader)
		for _, s := range c.running() {
			require.Equal(t, "2", s.read(t, "k"), s.name)
		}
		c.alike(c.running()...)
	})
}
