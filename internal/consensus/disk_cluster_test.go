package consensus_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/raftlog"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/test/simnet"
)

// end is what becomes of a server that cannot continue: its process ends, and with
// it every operation that hangs.
func (c *cluster) end(s *server) {
	c.crash(s)
	s.disk.Resume()
	s.disk.Fail(nil, 0, 0)
}

// dies waits until a server reports that it cannot continue.
func (c *cluster) dies(s *server) error {
	c.t.Helper()
	c.eventually(s.name+" reports why it cannot continue", func() bool { return s.died() != nil })
	return s.died()
}

// alike waits until servers hold the same state.
func (c *cluster) alike(servers ...*server) {
	c.t.Helper()
	c.eventually("all hold the same", func() bool {
		one := servers[0].store.View()
		return !slices.ContainsFunc(servers[1:], func(s *server) bool {
			other := s.store.View()
			return one.Revision() != other.Revision() || one.DigestOf(nil) != other.DigestOf(nil)
		})
	})
}

// try writes until it is acknowledged, each attempt with the same request id.
func (s *server) try(t testing.TB, name, text string) {
	t.Helper()
	var err error
	for range 20 {
		_, err = s.node.Propose(context.Background(), store.Txn{RequestID: name + text, Ops: []store.Op{put(name, text)}})
		if err == nil {
			return
		}
	}
	require.NoError(t, err)
}

func cutShort(cfg *consensus.Config) {
	cfg.Snapshots = consensus.Snapshots{Threshold: 1 << 30, Interval: 1000 * time.Hour, TrailingLogs: 1, Retain: 2}
}

// TestHungDiskLosesLeadership: a leader whose disk hangs reports it and is replaced
// within ten seconds, whatever part of a write it is that hangs.
func TestHungDiskLosesLeadership(t *testing.T) {
	for name, op := range map[string]simnet.Op{
		"write": simnet.WriteLog, "sync": simnet.SyncLog, "everything": simnet.Writes | simnet.Reads,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				a, b, d := c.three()
				old := c.leader(a, b, d)
				others := c.others(old)
				others[0].write(t, "before", "1")
				old.disk.Hang(op)
				began := time.Now()
				written := make(chan struct{})
				go func() {
					defer close(written)
					others[0].try(t, "during", "1")
				}()
				err := c.dies(old)
				require.ErrorIs(t, err, consensus.ErrDiskHangs)
				require.ErrorContains(t, err, old.name+"/log")
				c.end(old)
				c.leader(others...)
				<-written
				require.LessOrEqual(t, time.Since(began), 10*time.Second)
				for _, s := range others {
					require.Equal(t, "1", s.read(t, "before"))
					require.Equal(t, "1", s.read(t, "during"))
					require.NoError(t, s.died())
				}
				c.open(old, nil)
				c.ready(old)
				c.alike(a, b, d)
			})
		})
	}
}

// TestHungFollowerEnds: a server whose disk hangs does not stay to serve a state
// that grows old; one that hangs over its vote ends too; a snapshot may take as
// long as it likes.
func TestHungFollowerEnds(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		leader := c.leader(a, b, d)
		follower, other := c.others(leader)[0], c.others(leader)[1]

		other.disk.Hang(simnet.WriteSnapshot)
		taken := make(chan error, 1)
		go func() { taken <- other.node.Snapshot() }()
		<-time.After(time.Minute)
		require.Empty(t, taken)
		require.NoError(t, other.died())
		other.disk.Resume()
		require.NoError(t, <-taken)

		follower.disk.Hang(simnet.SyncLog)
		leader.write(t, "k", "1")
		require.ErrorIs(t, c.dies(follower), consensus.ErrDiskHangs)
		c.end(follower)
		c.open(follower, nil)
		c.ready(follower)

		follower.disk.Hang(simnet.WriteValue)
		c.end(leader)
		c.open(leader, nil)
		require.ErrorIs(t, c.dies(follower), consensus.ErrDiskHangs)
		c.end(follower)
		c.open(follower, nil)
		c.ready(follower, leader, other)
		require.Equal(t, "1", follower.read(t, "k"))
	})
}

// TestCloseWhileASnapshotWaits: a follower whose write fails closes although a
// snapshot that was asked for waits for the goroutine that made the write.
func TestCloseWhileASnapshotWaits(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		leader := c.leader(a, b, d)
		follower := c.others(leader)[0]
		follower.disk.Hang(simnet.WriteLog)
		leader.write(t, "k", "1")
		synctest.Wait()
		taken := make(chan error, 1)
		go func() { taken <- follower.node.Snapshot() }()
		synctest.Wait()
		require.Empty(t, taken)
		follower.disk.Fail(simnet.EIO("write"), 1, simnet.WriteLog)
		follower.disk.Resume()
		require.ErrorContains(t, c.dies(follower), "input/output error")
		c.end(follower)
		require.Error(t, <-taken)
		c.open(follower, nil)
		c.ready(follower)
		c.alike(a, b, d)
	})
}

// TestFailedDiskOfOne: a leader whose write fails ends, nothing that was
// acknowledged is lost, and a retried write takes effect once.
func TestFailedDiskOfOne(t *testing.T) {
	for name, op := range map[string]simnet.Op{
		"log": simnet.WriteLog, "sync": simnet.SyncLog,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				a, b, d := c.three()
				old := c.leader(a, b, d)
				others := c.others(old)
				others[0].write(t, "k", "1")
				old.disk.Fail(simnet.EIO(name), -1, op)
				written := make(chan struct{})
				go func() {
					defer close(written)
					others[0].try(t, "k", "2")
				}()
				err := c.dies(old)
				require.ErrorContains(t, err, old.name+"/log")
				require.ErrorContains(t, err, "input/output error")
				require.ErrorContains(t, err, "start this server again")
				c.end(old)
				c.leader(others...)
				<-written
				require.Equal(t, "2", others[1].read(t, "k"))
				res, _ := others[1].store.View().Get(key("k"))
				require.EqualValues(t, 2, res.Meta().Version)
				c.open(old, nil)
				c.ready(old)
				c.alike(a, b, d)
			})
		})
	}
}

// TestDamagedEntryIsNotSent: a follower that was away gets nothing from a leader
// whose log is damaged where it needs it; the leader ends, and the others bring
// the follower up to date.
func TestDamagedEntryIsNotSent(t *testing.T) {
	for name, harm := range map[string]func(*simnet.Disk, uint64){
		"flipped": func(d *simnet.Disk, index uint64) { d.FlipEntry(index, 8*30) },
		"missing": func(d *simnet.Disk, index uint64) { d.DropEntries(index, index) },
		"unread":  func(d *simnet.Disk, _ uint64) { d.Fail(simnet.EIO("read"), -1, simnet.ReadLog) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				a, b, d := c.three()
				leader := c.leader(a, b, d)
				away, other := c.others(leader)[0], c.others(leader)[1]
				c.end(away)
				for i := range 20 { // more than the leader has in memory
					leader.write(t, fmt.Sprint("k", i), strings.Repeat("1", 512<<10))
				}
				_, last := leader.disk.Entries()
				harm(leader.disk, last-10)
				c.open(away, nil)
				err := c.dies(leader)
				require.ErrorIs(t, err, raftlog.ErrCorrupt)
				require.ErrorContains(t, err, "/log: ")
				require.ErrorContains(t, err, "entry ")
				c.end(leader)
				c.leader(away, other)
				require.Len(t, away.read(t, "k19"), 512<<10)
				c.alike(away, other)

				// It comes back with an empty disk, as the message says.
				leader.disk = simnet.NewDisk(leader.name)
				c.open(leader, joining(other.addr))
				c.ready(leader)
				c.alike(a, b, d)
			})
		})
	}
}

// TestDamagedSnapshotIsNotSent: a server that joins gets nothing from a leader
// whose snapshot is damaged, in its content or in what is written about it.
func TestDamagedSnapshotIsNotSent(t *testing.T) {
	for name, harm := range map[string]func(*simnet.Disk){
		"content":    func(d *simnet.Disk) { d.FlipSnapshot(0, 8*500) },
		"last bytes": func(d *simnet.Disk) { d.FlipSnapshot(0, -1) },
		"about it":   func(d *simnet.Disk) { d.FlipSnapshotMeta(0, 8*60) },
		"truncated":  func(d *simnet.Disk) { d.TruncateSnapshot(0, 700) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				a := c.start("a", cutShort)
				c.ready(a)
				for i := range 50 {
					a.write(t, fmt.Sprint("k", i), "1")
				}
				require.NoError(t, a.node.Snapshot())
				a.write(t, "after", "1")
				harm(a.disk)
				b := c.start("b", joining("a"))
				err := c.dies(a)
				require.ErrorIs(t, err, raftlog.ErrCorrupt)
				require.ErrorContains(t, err, "a/snapshots")
				require.Zero(t, b.store.View().Len())
				require.Zero(t, b.disk.Snapshots())
			})
		})
	}
}

// TestDamagedOnArrival: a snapshot that is damaged between being received and
// being restored changes nothing, and the server says so.
func TestDamagedOnArrival(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a := c.start("a", cutShort)
		c.ready(a)
		for i := range 50 {
			a.write(t, fmt.Sprint("k", i), "1")
		}
		require.NoError(t, a.node.Snapshot())
		b := &server{name: "b", addr: "b", disk: simnet.NewDisk("b")}
		c.servers["b"] = b
		b.disk.Hang(simnet.ReadSnapshot)
		c.open(b, joining("a"))
		c.eventually("it has arrived", func() bool { return b.disk.Snapshots() == 1 })
		synctest.Wait()
		require.True(t, b.disk.FlipSnapshot(0, 8*500))
		b.disk.Resume()
		require.ErrorIs(t, c.dies(b), raftlog.ErrCorrupt)
		require.Zero(t, b.store.View().Len())
		require.NoError(t, a.died())
	})
}

// TestFullDiskOfOne: a server without free space for an entry leaves leadership to
// the others, continues to follow when there is space again, and does not end.
func TestFullDiskOfOne(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		for round := range 3 {
			old := c.leader(a, b, d)
			others := c.others(old)
			old.disk.Full(true)
			began := time.Now()
			for i := range 10 {
				others[i%2].try(t, fmt.Sprint("k", i), fmt.Sprint(round))
			}
			require.Less(t, time.Since(began), 10*time.Second)
			require.NotEqual(t, old, c.leader(others...))
			<-time.After(time.Minute)
			require.True(t, old.node.Disk().Low)
			require.ErrorIs(t, old.node.Disk().Err(), raftlog.ErrDiskFull)
			old.disk.Full(false)
			c.ready(old)
			c.alike(a, b, d)
			<-time.After(time.Minute)
			require.NoError(t, old.node.Disk().Err())
			require.NoError(t, old.died())
		}
	})
}

// TestReserve: with little free space a leader hands over to a server that has
// more; when none has, writes are refused, at once and with a reason, on every
// server, reads continue, and all of it ends when there is space again.
func TestReserve(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		free := func(bytes uint64, servers ...*server) {
			for _, s := range servers {
				s.disk.SetFree(bytes)
			}
			<-time.After(20 * time.Second)
		}
		free(1<<30, a, b, d)
		first := c.leader(a, b, d)
		free(10<<20, first)
		second := c.leader(a, b, d)
		require.NotEqual(t, first, second)
		first.write(t, "k", "1")
		free(10<<20, second)
		third := c.leader(a, b, d)
		require.NotEqual(t, first, third)
		require.NotEqual(t, second, third)
		free(10<<20, third)
		require.Equal(t, third, c.leader(a, b, d), "no server has more")
		for _, s := range []*server{a, b, d} {
			began := time.Now()
			_, err := s.node.Propose(context.Background(), store.Txn{Ops: []store.Op{put("k", "2")}})
			require.ErrorIs(t, err, raftlog.ErrDiskFull, s.name)
			require.ErrorIs(t, err, consensus.ErrUnavailable, s.name)
			require.ErrorContains(t, err, "the disk of "+third.name+" is nearly full")
			require.ErrorContains(t, err, "10 MiB are left")
			require.Less(t, time.Since(began), time.Second)
			require.Equal(t, "1", s.read(t, "k"))
		}
		free(66<<20, third)
		require.True(t, third.node.Disk().Low, "a little more is not enough, or it would change all the time")
		free(1<<30, first)
		require.Equal(t, first, c.leader(a, b, d))
		for _, s := range []*server{a, b, d} {
			s.write(t, "k", "3")
			require.NoError(t, s.died())
		}
		c.alike(a, b, d)
	})
}

// TestReserveOfOne: a single-server cluster refuses writes and serves reads while
// there is little free space, and also while there is none at all.
func TestReserveOfOne(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a := c.start("a", nil)
		c.ready(a)
		a.write(t, "k", "1")
		for _, free := range []uint64{20 << 20, 0} {
			a.disk.SetFree(free)
			<-time.After(time.Minute)
			_, err := a.node.Propose(context.Background(), store.Txn{Ops: []store.Op{put("k", "2")}})
			require.ErrorIs(t, err, raftlog.ErrDiskFull)
			require.Equal(t, "1", a.read(t, "k"))
		}
		a.disk.SetFree(1 << 30)
		<-time.After(10 * time.Second)
		a.write(t, "k", "3")

		// Full from one moment to the next, with a write on its way.
		a.disk.Full(true)
		late := make(chan error, 1)
		go func() {
			_, err := a.node.Propose(context.Background(), store.Txn{Ops: []store.Op{put("late", "1")}})
			late <- err
		}()
		<-time.After(5 * time.Second)
		require.Equal(t, "3", a.read(t, "k"), "raft waits for free space, reads do not")
		require.ErrorIs(t, <-late, consensus.ErrUnknownOutcome)
		_, err := a.node.Propose(context.Background(), store.Txn{Ops: []store.Op{put("k", "4")}})
		require.ErrorIs(t, err, raftlog.ErrDiskFull)
		a.disk.Full(false)
		<-time.After(10 * time.Second)
		a.write(t, "k", "5")
		require.Equal(t, "1", a.read(t, "late"))
		require.NoError(t, a.died())
		require.Greater(t, a.store.Revision(), resource.Revision(0))
	})
}
