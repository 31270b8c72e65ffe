package consensus_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/consensus"
	"meridian/internal/gossip"
	"meridian/internal/raftnet"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
	"meridian/test/simnet"
)

// wipe ends a server and takes its disk away.
func (c *cluster) wipe(s *server) {
	c.t.Helper()
	c.crash(s)
	s.loseDisk()
}

// move ends a server cleanly and starts it at another address.
func (c *cluster) move(s *server, addr string) {
	c.t.Helper()
	require.NoError(c.t, s.node.Close())
	s.addr = addr
	c.open(s, nil)
}

// knows waits until a server knows another by an address.
func (c *cluster) knows(s *server, name, addr string) {
	c.t.Helper()
	c.eventually(s.name+" knows "+name+" at "+addr, func() bool {
		for _, m := range s.node.Servers() {
			if m.Name == name && m.Addr == addr {
				return true
			}
		}
		return false
	})
}

// TestANewServerKeepsJoining: it never begins a cluster of its own, and a restart
// needs no flag that says that it is new.
func TestANewServerKeepsJoining(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a := c.start("a", nil)
		c.ready(a)
		a.write(t, "k", "1")
		c.network.CutBoth("a", "b")
		b := c.start("b", joining("nowhere", "a"))
		c.pass(time.Minute)
		require.Empty(t, b.node.Servers())
		require.Empty(t, b.node.ClusterID())
		require.Contains(t, b.node.Waiting(), "connection refused")
		for range 2 {
			c.crash(b)
			c.open(b, func(cfg *consensus.Config) {
				cfg.Join.Addrs = func() []string { return []string{"a"} }
			})
			c.pass(10 * time.Second)
			require.Empty(t, b.node.Servers())
			_, err := b.node.Read(t.Context())
			require.ErrorIs(t, err, consensus.ErrUnavailable)
		}
		c.network.HealAll()
		c.ready(b)
		require.Equal(t, "1", value(b.store, "k"), "ready means caught up")
		require.Equal(t, a.node.ClusterID(), b.node.ClusterID())
		c.voters("a", "b")
		require.Empty(t, b.node.Waiting())

		// Now it is a member for good.
		require.NoError(t, b.node.Close())
		c.open(b, nil)
		c.ready(b)
		b.write(t, "k", "2")
	})
}

// TestJoiningSurvivesACrashAtAnyTime: a server that is killed while it joins
// continues where it was.
func TestJoiningSurvivesACrashAtAnyTime(t *testing.T) {
	for _, after := range []time.Duration{
		time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond,
		100 * time.Millisecond, 300 * time.Millisecond, time.Second, 3 * time.Second,
	} {
		t.Run(after.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				a := c.start("a", nil)
				c.ready(a)
				for range 20 {
					a.write(t, "k", "1")
				}
				b := c.start("b", joining("a"))
				for range 3 {
					c.pass(after)
					c.crash(b)
					c.open(b, func(cfg *consensus.Config) {
						cfg.Join.Addrs = func() []string { return []string{"a"} }
					})
				}
				c.ready(b)
				require.Equal(t, "1", value(b.store, "k"))
				c.voters("a", "b")
				require.NoError(t, b.died())
			})
		})
	}
}

// TestAServerThatLostItsDiskHasNoSay: it has forgotten what it confirmed, so it
// must not help to elect a leader that never had it.
func TestAServerThatLostItsDiskHasNoSay(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		if !a.node.IsLeader() {
			_, err := a.node.TransferLeadership(t.Context(), "a")
			require.NoError(t, err)
		}
		c.isolate(b)
		a.write(t, "k", "acknowledged") // by a and c
		c.crash(a)
		c.wipe(d)
		c.network.HealAll()
		c.open(d, joining("a", "b"))
		c.pass(time.Minute)
		require.False(t, b.node.IsLeader(), "c must not have voted")
		require.Empty(t, d.node.Servers())

		c.open(a, nil)
		c.ready(a, d)
		for _, s := range c.others(nil) {
			require.Equal(t, "acknowledged", s.read(t, "k"))
		}
		c.voters("a", "b", "c")
		require.NoError(t, d.died())
	})
}

// TestAWipedServerDoesNotMixClusters: a server that begins anew at the address
// of a member is not taken for it, nor does it take the others for its own.
func TestAWipedServerDoesNotMixClusters(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		a.write(t, "k", "ours")
		c.wipe(d)
		c.open(d, nil)
		c.ready(d)
		d.write(t, "k", "another's")
		a.write(t, "l", "ours")
		c.pass(time.Minute)
		require.Equal(t, "ours", b.read(t, "k"))
		require.Equal(t, "another's", d.read(t, "k"))
		require.Empty(t, d.read(t, "l"))
		require.NotEqual(t, a.node.ClusterID(), d.node.ClusterID())
	})
}

// TestServersMoveToOtherAddresses: a server that starts at another address says
// so, and is found.
func TestServersMoveToOtherAddresses(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		leader := c.leader(c.others(nil)...)
		follower := c.others(leader)[0]
		for _, s := range []*server{follower, leader} {
			c.move(s, s.name+"-elsewhere")
			c.ready(s)
			for _, other := range c.others(nil) {
				c.knows(other, s.name, s.addr)
			}
			s.write(t, s.name, "moved")
		}
		for _, s := range c.others(nil) {
			require.Equal(t, "moved", s.read(t, leader.name))
		}
		c.voters("a", "b", "c")
	})
}

// TestAClusterOfOneMoves: no other server has to be notified.
func TestAClusterOfOneMoves(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a := c.start("a", nil)
		c.ready(a)
		c.move(a, "elsewhere")
		c.ready(a)
		c.knows(a, "a", "elsewhere")
		b := c.start("b", joining("elsewhere"))
		c.ready(b)
		c.voters("a", "b")
	})
}

// TestARemovedServerStops: whether it runs or not when it is removed, it finds
// out, and says how to come back.
func TestARemovedServerStops(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		c.ready(c.start("d", joining("a")))
		c.voters("a", "b", "c", "d")
		leader := c.leader(c.others(nil)...)
		running, down := c.others(leader)[0], c.others(leader)[1]
		require.NoError(t, leader.node.Remove(t.Context(), running.name, true))
		c.eventually("it finds out", func() bool { return running.died() != nil })
		require.ErrorIs(t, running.died(), consensus.ErrRemoved)
		require.ErrorContains(t, running.died(), "with a new data directory")
		_, err := running.node.Propose(t.Context(), store.Txn{Ops: []store.Op{put("k", "1")}})
		require.Error(t, err)

		c.crash(down)
		c.pass(2 * time.Second)
		require.NoError(t, c.leader(leader).node.Remove(t.Context(), down.name, false))
		c.open(down, nil)
		c.eventually("it finds out", func() bool { return down.died() != nil })
		require.ErrorIs(t, down.died(), consensus.ErrRemoved)

		// An empty disk brings it back.
		c.wipe(down)
		c.open(down, joining(leader.name))
		c.ready(down)
		leader.write(t, "k", "2")
		require.Equal(t, "2", down.read(t, "k"))
	})
}

// TestAServerThatStoppedIsRemovedAtOnce: without force, from the moment when it
// was told to stop, although it was heard a moment ago; one that runs is not.
func TestAServerThatStoppedIsRemovedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		c.ready(c.start("d", joining("a")))
		c.voters("a", "b", "c", "d")
		leader := c.leader(c.others(nil)...)
		stopped, stopping := c.others(leader)[0], c.others(leader)[1]
		err := leader.node.Remove(t.Context(), stopped.name, false)
		require.True(t, rpcerr.HasReason(err, consensus.ReasonIsAlive), "%v", err)
		c.stop(stopped)
		require.NoError(t, c.leader(c.running()...).node.Remove(t.Context(), stopped.name, false))

		stopping.node.Leave()
		removed := make(chan error, 1)
		go func() { removed <- leader.node.Remove(t.Context(), stopping.name, false) }()
		c.pass(time.Second)
		c.stop(stopping)
		require.NoError(t, <-removed)
	})
}

// TestARemovedServerIsRefusedAtOnce: on the connections that it has, from the
// moment when it is not a member any more.
func TestARemovedServerIsRefusedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		leader := c.leader(c.others(nil)...)
		gone := c.others(leader)[0]
		calls := peerv1.NewRaftServiceClient(gone.node.PeerConn(leader.addr))
		_, err := calls.ReadIndex(t.Context(), &peerv1.ReadIndexRequest{})
		require.NoError(t, err)
		own, err := peerv1.NewRaftServiceClient(leader.node.PeerConn(gone.addr)).Status(t.Context(), &peerv1.StatusRequest{})
		require.NoError(t, err)
		disk := own.GetDisk()
		require.NoError(t, leader.node.Remove(t.Context(), gone.name, true))

		_, err = calls.ReadIndex(t.Context(), &peerv1.ReadIndexRequest{})
		require.True(t, rpcerr.HasReason(err, raftnet.ReasonNotMember), "%v", err)
		_, err = calls.Propose(t.Context(), &peerv1.ProposeRequest{})
		require.True(t, rpcerr.HasReason(err, raftnet.ReasonNotMember), "%v", err)
		_, err = calls.RemoveMember(t.Context(), &peerv1.RemoveMemberRequest{Name: leader.name, Force: true})
		require.True(t, rpcerr.HasReason(err, raftnet.ReasonNotMember), "%v", err)
		_, err = calls.AddMember(t.Context(), &peerv1.AddMemberRequest{Name: "mallory", Raft: "mallory", Fresh: true, CommandFormat: 9})
		require.True(t, rpcerr.HasReason(err, raftnet.ReasonNotMember), "%v", err)
		_, err = calls.AddMember(t.Context(), &peerv1.AddMemberRequest{Name: "mallory", Raft: "mallory", Fresh: true, CommandFormat: 9, Forwarded: true})
		require.True(t, rpcerr.HasReason(err, raftnet.ReasonNotMember), "%v", err)
		status, err := calls.Status(t.Context(), &peerv1.StatusRequest{})
		require.NoError(t, err)
		again := &peerv1.AddMemberRequest{Name: gone.name, Disk: disk, Raft: gone.addr, Fresh: true, CommandFormat: 9}
		_, err = calls.AddMember(t.Context(), again)
		require.True(t, rpcerr.HasReason(err, consensus.ReasonRemoved), "by what it was before: %v", err)
		require.Empty(t, status.GetMembers())
		require.Zero(t, status.GetCommitted())
	})
}

// TestASecondServerOfAName: the first continues, and the second waits until it is
// gone.
func TestASecondServerOfAName(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		second := &server{name: d.name, addr: "second", disk: simnet.NewDisk("second")}
		c.servers["second"] = second
		var told strings.Builder
		c.open(second, func(cfg *consensus.Config) {
			joining("a", "b")(cfg)
			cfg.Logger = slog.New(slog.NewTextHandler(&told, nil))
		})
		c.pass(time.Minute)
		require.Equal(t, 1, strings.Count(told.String(), "cannot join"), "it is said once, not at every attempt")
		require.Contains(t, second.node.Waiting(), "a server called c is running at c")
		require.NoError(t, second.died())
		a.write(t, "k", "1")
		require.Equal(t, "1", d.read(t, "k"))

		require.NoError(t, d.node.Close())
		delete(c.servers, "c")
		c.ready(second)
		require.Equal(t, "1", second.read(t, "k"))
		require.Equal(t, "1", b.read(t, "k"))
	})
}

// TestAServerOfAnotherCluster is not taken in, and waits for its own: an address
// may have passed to another cluster.
func TestAServerOfAnotherCluster(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a := c.start("a", nil)
		c.ready(a)
		b := c.start("b", func(cfg *consensus.Config) {
			joining("a")(cfg)
			cfg.ClusterID = "another"
		})
		c.eventually("it finds out", func() bool { return strings.Contains(b.node.Waiting(), a.node.ClusterID()) })
		c.pass(time.Minute)
		require.NoError(t, b.died())
		require.Len(t, a.node.Servers(), 1)
	})
}

// TestReadyMeansCaughtUp: a server that restarts does not show an old state.
func TestReadyMeansCaughtUp(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		leader := c.leader(c.others(nil)...)
		follower := c.others(leader)[0]
		leader.write(t, "k", "old")
		require.NoError(t, follower.node.Close())
		leader.write(t, "k", "new")
		for _, other := range c.others(follower) {
			c.network.Delay(other.name, follower.name, 200*time.Millisecond)
		}
		c.open(follower, nil)
		c.ready(follower)
		require.Equal(t, "new", value(follower.store, "k"))
	})
}

// TestASnapshotIsFollowedToo: a follower that is too far behind for the log
// catches up by a snapshot, and reads wait for that.
func TestASnapshotIsFollowedToo(t *testing.T) {
	cut := func(cfg *consensus.Config) { cfg.Snapshots.TrailingLogs = 4 }
	bubble(t, func(t *testing.T, c *cluster) {
		a := c.start("a", cut)
		c.ready(a)
		b := c.start("b", func(cfg *consensus.Config) {
			cut(cfg)
			joining("a")(cfg)
		})
		c.ready(b)
		c.voters("a", "b")
		d := c.start("c", func(cfg *consensus.Config) {
			cut(cfg)
			joining("a")(cfg)
		})
		c.voters("a", "b", "c")
		c.crash(d)
		for range 50 {
			a.write(t, "k", "1")
		}
		for _, s := range []*server{a, b} {
			require.NoError(t, s.node.Snapshot())
			for range 3 { // until nothing before it is kept
				s.write(t, "k", "2")
				require.NoError(t, s.node.Snapshot())
			}
		}
		c.open(d, nil)
		reads := make(chan error, 1)
		go func() {
			_, err := d.node.Read(context.Background())
			reads <- err
		}()
		c.ready(d)
		require.NoError(t, <-reads)
		require.Equal(t, "2", value(d.store, "k"))
		require.Equal(t, a.store.View().DigestOf(nil), d.store.View().DigestOf(nil))
	})
}

// TestEveryServerMovesAtOnce: when no server is at the address in the log, gossip
// helps them find each other, and the log then learns where they are.
func TestEveryServerMovesAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		servers := c.others(nil)
		servers[0].write(t, "k", "1")
		for _, s := range servers {
			require.NoError(t, s.node.Close())
			s.addr = s.name + "-elsewhere"
		}
		for _, s := range servers {
			c.open(s, func(cfg *consensus.Config) {
				cfg.Peers = func() []gossip.Peer {
					return []gossip.Peer{{Name: "a", Raft: "a-elsewhere"}, {Name: "b", Raft: "b-elsewhere"}, {Name: "c", Raft: "c-elsewhere"}}
				}
			})
		}
		c.ready(servers...)
		for _, s := range servers {
			require.Equal(t, "1", s.read(t, "k"))
			for _, other := range servers {
				c.knows(s, other.name, other.addr)
			}
		}
	})
}
