package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/gossip"
	"meridian/internal/raftlog"
	"meridian/internal/store"
	"meridian/test/simnet"
)

func examined(t testing.TB, s *server) *consensus.Recovery {
	t.Helper()
	r, err := consensus.OpenRecovery(s.disk.Mount(), nil)
	require.NoError(t, err)
	return r
}

// One server of three is left: it continues alone, with everything that was
// acknowledged and in its log, as the next incarnation; new servers join it. The
// others, started by mistake, have no say.
func TestRecoverFromOneServer(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		a.bulk(t, "x")
		require.NoError(t, a.node.Snapshot())
		a.write(t, "k", "1")
		c.agree(a, b, d)
		before := b.store.View()
		clusterID := b.node.ClusterID()
		_, err := consensus.OpenRecovery(b.disk.Mount(), nil)
		require.ErrorIs(t, err, raftlog.ErrDataDirInUse, "its server runs")
		c.crash(a)
		c.crash(d)
		c.stop(b)

		r := examined(t, b)
		require.Equal(t, "b", r.Server)
		require.True(t, r.Member)
		require.True(t, r.Voter)
		require.False(t, r.Alone())
		require.Len(t, r.Others, 2)
		require.Equal(t, before.Epoch(), r.Epoch)
		require.Equal(t, before.Len(), r.Resources)
		require.GreaterOrEqual(t, r.Revision, before.Revision())
		require.EqualValues(t, 2, r.Next.Incarnation)
		_, last := b.disk.Entries()
		require.Equal(t, last, r.LastEntry)
		require.NoError(t, r.Recover(time.Now()))
		require.NoError(t, r.Close())

		again := examined(t, b)
		require.True(t, again.Alone(), "done")
		require.EqualValues(t, 2, again.Epoch.Incarnation)
		require.NoError(t, again.Close())

		c.open(b, nil)
		c.ready(b)
		require.Equal(t, r.Next, b.store.View().Epoch())
		require.Equal(t, before.DigestOf(nil), b.store.View().DigestOf(nil))
		require.Equal(t, "1", b.read(t, "k"))
		b.write(t, "k", "2")
		require.NotEqual(t, clusterID, b.node.ClusterID())

		// Those that were lost come back as they were: they elect one of them, and
		// leave the recovered one alone.
		c.open(a, nil)
		c.open(d, nil)
		c.ready(a, d)
		old := c.leader(a, d)
		old.write(t, "k", "of the second history")
		<-time.After(20 * time.Second)
		require.True(t, b.node.IsLeader())
		require.Equal(t, "2", b.read(t, "k"))
		require.Len(t, b.node.Servers(), 1)
		require.NoError(t, b.died())
		c.stop(a)
		c.stop(d)

		// Emptied, they join.
		a.disk, d.disk = simnet.NewDisk("a"), simnet.NewDisk("c")
		c.open(a, joining("b"))
		c.open(d, joining("b"))
		c.ready(a, d)
		c.voters("a", "b", "c")
		view := c.agree(a, b, d)
		require.Equal(t, r.Next, view.Epoch())
		require.Equal(t, "2", a.read(t, "k"))
	})
}

// A zone of several servers is recovered as a global is, and one of a single server has
// nothing to recover.
func TestRecoverAZone(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.tune = func(_ *server, cfg *consensus.Config) { cfg.Role = consensus.RoleZone }
		a, b, d := c.three()
		a.write(t, "k", "1")
		c.agree(a, b, d)
		for _, s := range []*server{a, b, d} {
			c.stop(s)
		}
		r := examined(t, b)
		require.Equal(t, consensus.RoleZone, r.Role)
		require.Len(t, r.Others, 2)
		require.NoError(t, r.Recover(time.Now()))
		require.NoError(t, r.Close())
		c.open(b, nil)
		c.ready(b)
		require.Equal(t, r.Next, b.store.View().Epoch())
		require.Equal(t, "1", b.read(t, "k"))
		c.stop(b)
		r = examined(t, b)
		require.True(t, r.Alone())
		require.NoError(t, r.Close())
	})
}

// TestServersLeftBehindEndNoServer: those that a recovery left behind, and the
// recovered cluster, answer each other at remembered addresses. That ends neither.
func TestServersLeftBehindEndNoServer(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		remembered := func() []gossip.Peer {
			return []gossip.Peer{{Name: "a", Raft: "a"}, {Name: "b", Raft: "b"}, {Name: "c", Raft: "c"}}
		}
		c.tune = func(_ *server, cfg *consensus.Config) { cfg.Peers = remembered }
		a, b, d := c.three()
		before := b.node.ClusterID()
		for _, s := range []*server{a, b, d} {
			c.stop(s)
		}
		r := examined(t, b)
		require.NoError(t, r.Recover(time.Now()))
		require.NoError(t, r.Close())
		c.open(b, nil)
		c.ready(b)
		e, f := c.start("e", joining("b")), c.start("f", joining("b"))
		c.ready(e, f)
		c.voters("b", "e", "f")
		b.write(t, "k", "recovered")

		// A majority of those left behind leads a cluster under the old name. The
		// recovered one loses its majority for a while, and asks around.
		c.open(a, nil)
		c.open(d, nil)
		c.ready(a, d)
		c.stop(e)
		c.stop(f)
		c.eventually("b finds the other cluster", func() bool { return strings.Contains(b.node.Waiting(), before) })
		c.pass(time.Minute)
		require.NoError(t, b.died())
		require.NotContains(t, b.node.Waiting(), "empty")
		// A new server of the recovered cluster, too, may be given such an address.
		g := c.start("g", func(cfg *consensus.Config) {
			joining("a", "b")(cfg)
			cfg.ClusterID = b.node.ClusterID()
		})
		c.pass(time.Minute)
		require.NoError(t, g.died())
		c.open(e, nil)
		c.ready(b, e, g)
		require.Equal(t, "recovered", g.read(t, "k"))

		// One left behind alone asks the recovered cluster, and waits.
		c.stop(a)
		c.eventually("c finds the recovered cluster", func() bool { return strings.Contains(d.node.Waiting(), b.node.ClusterID()) })
		c.pass(time.Minute)
		require.NoError(t, d.died())
		c.open(a, nil)
		c.ready(a, d)
		require.NoError(t, a.died())
		c.open(f, nil)
		c.ready(f)
		require.Equal(t, "recovered", f.read(t, "k"))
	})
}

// cutDisk fails the write that left counts down to, before or after it has
// reached the disk.
type cutDisk struct {
	raftlog.Storage
	left  *int
	after bool
}

var errCut = errors.New("the machine stopped")

func (d cutDisk) write(write func() error) error {
	if *d.left--; *d.left > 0 {
		return write()
	}
	if d.after {
		if err := write(); err != nil {
			return err
		}
	}
	return errCut
}

func (d cutDisk) SetIdentity(data []byte) error {
	return d.write(func() error { return d.Storage.SetIdentity(data) })
}

func (d cutDisk) OpenLog(verify func(raftlog.LogFile) error, mark raftlog.JournalMark) (raftlog.LogFile, error) {
	log, err := d.Storage.OpenLog(verify, mark)
	return cutLog{log, d}, err
}

type cutLog struct {
	raftlog.LogFile
	disk cutDisk
}

func (l cutLog) WriteLogs(logs []*raft.Log) (sync func() error, err error) {
	return nil, l.disk.write(func() error {
		sync, err := l.LogFile.WriteLogs(logs)
		if err != nil || sync == nil {
			return err
		}
		return sync()
	})
}

func (l cutLog) Set(key, value []byte) error {
	return l.disk.write(func() error { return l.LogFile.Set(key, value) })
}

// A recovery that is cut off at any write leaves the server as it was, or
// recovered; repeated, it recovers it; nothing is ever lost.
func TestRecoverCutOff(t *testing.T) {
	for _, after := range []bool{false, true} {
		for left := 1; ; left++ {
			completed := false
			t.Run(fmt.Sprintf("write %d, after it: %t", left, after), func(t *testing.T) {
				completed = recoverCutOff(t, left, after)
			})
			if completed || t.Failed() {
				require.Greater(t, left, 4, "the writes were cut")
				break
			}
		}
	}
}

func recoverCutOff(t *testing.T, left int, after bool) (completed bool) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		a.write(t, "k", "1")
		c.agree(a, b, d)
		was := b.node.ClusterID()
		for _, s := range []*server{b, a, d} {
			c.stop(s)
		}
		r, err := consensus.OpenRecovery(cutDisk{b.disk.Mount(), &left, after}, nil)
		require.NoError(t, err)
		err = r.Recover(time.Now())
		if completed = err == nil; !completed {
			require.ErrorIs(t, err, errCut)
		}
		_ = r.Close() // after a write that failed it has nothing more to say

		// The server is one of three still, or alone, and nothing between.
		c.open(b, nil)
		members := len(b.node.Servers())
		if members == 1 {
			c.ready(b)
			require.EqualValues(t, 2, b.store.View().Epoch().Incarnation)
			require.NotEqual(t, was, b.node.ClusterID())
			require.Equal(t, "1", b.read(t, "k"))
		} else {
			require.Equal(t, 3, members)
			require.Equal(t, was, b.node.ClusterID())
			c.open(a, nil)
			c.ready(a, b)
			require.EqualValues(t, 1, b.store.View().Epoch().Incarnation)
			b.write(t, "k", "1")
			c.agree(a, b)
			c.stop(a)
		}
		c.stop(b)

		r = examined(t, b)
		if !r.Alone() {
			require.NoError(t, r.Recover(time.Now()))
		}
		require.NoError(t, r.Close())
		c.open(b, nil)
		c.ready(b)
		require.EqualValues(t, 2, b.store.View().Epoch().Incarnation)
		require.Equal(t, "1", b.read(t, "k"))
	})
	return completed
}

// A server that was removed can be recovered with what it held, under another
// address too.
func TestRecoverARemovedServer(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		a.write(t, "k", "1")
		c.agree(a, b, d)
		require.NoError(t, a.node.Remove(context.Background(), "c", true))
		c.eventually("c is told", func() bool { return d.died() != nil || len(d.node.Servers()) == 2 })
		for _, s := range []*server{d, a, b} {
			c.stop(s)
		}
		r := examined(t, d)
		require.False(t, r.Alone())
		require.NoError(t, r.Recover(time.Now()))
		require.NoError(t, r.Close())
		d.addr = "c-elsewhere"
		c.open(d, nil)
		c.ready(d)
		require.Equal(t, "1", d.read(t, "k"))
		d.write(t, "k", "2")
		c.eventually("it knows its address", func() bool { return d.node.Servers()[0].Addr == "c-elsewhere" })
	})
}

// replaced takes the disk of server c away while it is cut off, has a new one
// join under its name, and returns both.
func (c *cluster) replaced(a, b, old *server) (fresh *server) {
	c.t.Helper()
	c.stop(old)
	fresh = &server{name: "c", addr: "c", disk: simnet.NewDisk("c again")}
	c.servers["c"] = fresh
	c.open(fresh, joining("a", "b"))
	c.ready(fresh)
	c.voters("a", "b", "c")
	c.agree(a, b, fresh)
	return fresh
}

func othersOf(r *consensus.Recovery) (names []string) {
	for _, m := range r.Others {
		names = append(names, m.Name)
	}
	return names
}

// A disk that was replaced under its name and has come back since says that it is
// no member. One that has not come back cannot know: what shows is its shorter log.
func TestRecoverAReplacedDisk(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, old := c.three()
		a.write(t, "k", "1")
		c.agree(a, b, old)
		fresh := c.replaced(a, b, old)
		a.write(t, "k", "2")
		c.agree(a, b, fresh)
		c.stop(fresh)

		r := examined(t, fresh)
		require.True(t, r.Member)
		require.True(t, r.Voter)
		require.ElementsMatch(t, []string{"a", "b"}, othersOf(r))
		last := r.LastEntry
		require.NoError(t, r.Close())
		r = examined(t, old)
		require.True(t, r.Member)
		require.True(t, r.Voter)
		require.Less(t, r.LastEntry, last)
		require.NoError(t, r.Close())

		c.servers["c"] = old
		c.open(old, nil)
		c.eventually("the old disk is told", func() bool { return errors.Is(old.died(), consensus.ErrRemoved) })
		for _, s := range []*server{old, a, b} {
			c.stop(s)
		}
		r = examined(t, old)
		require.False(t, r.Member)
		require.False(t, r.Voter)
		require.False(t, r.Alone())
		require.ElementsMatch(t, []string{"a", "b"}, othersOf(r))

		// When there is nothing better, it can be recovered all the same.
		require.NoError(t, r.Recover(time.Now()))
		require.NoError(t, r.Close())
		r = examined(t, old)
		require.True(t, r.Alone())
		require.NoError(t, r.Close())
		c.open(old, nil)
		c.ready(old)
		require.Equal(t, "1", old.read(t, "k"))
		old.write(t, "k", "3")
	})
}

// A disk is not taken for another one of its name, even if the log says that the
// other one is the member: it is neither a member nor alone.
func TestRecoverDoesNotTakeAnotherDiskForItself(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, old := c.three()
		fresh := c.replaced(a, b, old)
		a.write(t, "k", "1")
		c.agree(a, b, fresh)
		require.NoError(t, a.node.Remove(context.Background(), "b", true))
		c.eventually("b is gone", func() bool { return len(fresh.node.Servers()) == 2 })
		c.stop(a)
		c.stop(fresh)
		c.stop(b)

		// The log of the new disk, and the identity of the old one.
		from, to := old.disk.Mount(), fresh.disk.Mount()
		require.NoError(t, from.Acquire())
		identity, err := from.Identity()
		require.NoError(t, err)
		from.Release(false)
		require.NoError(t, to.Acquire())
		require.NoError(t, to.SetIdentity(identity))
		to.Release(false)

		r := examined(t, fresh)
		require.Equal(t, "c", r.Server)
		require.False(t, r.Member)
		require.False(t, r.Voter)
		require.ElementsMatch(t, []string{"a", "c"}, othersOf(r), "the c among them has another disk")
		require.NoError(t, r.Recover(time.Now()))
		require.NoError(t, r.Close())
		r = examined(t, fresh)
		require.True(t, r.Alone())
		require.NoError(t, r.Close())
		c.open(fresh, nil)
		c.ready(fresh)
		require.Equal(t, "1", fresh.read(t, "k"))
	})
}

func TestRecoverRefuses(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		refused := func(disk raftlog.Storage, why string) {
			t.Helper()
			_, err := consensus.OpenRecovery(disk, nil)
			require.ErrorIs(t, err, consensus.ErrNotRecoverable)
			require.ErrorContains(t, err, why)
		}
		refused(simnet.NewDisk("new").Mount(), "no server has run")
		refused(raftlog.Files(t.TempDir()), "no data directory")

		newcomer := c.start("newcomer", joining("nowhere"))
		<-time.After(time.Second)
		c.stop(newcomer)
		refused(newcomer.disk.Mount(), "was still joining")

		alone := c.start("alone", nil)
		c.ready(alone)
		alone.write(t, "k", "1")
		require.NoError(t, alone.node.Snapshot())
		alone.write(t, "k", "2")
		c.stop(alone)
		r := examined(t, alone)
		require.True(t, r.Alone())
		require.NoError(t, r.Close())
		_, last := alone.disk.Entries()
		require.True(t, alone.disk.FlipEntry(last, 77))
		_, err := consensus.OpenRecovery(alone.disk.Mount(), nil)
		require.ErrorIs(t, err, raftlog.ErrCorrupt)
		require.True(t, alone.disk.FlipEntry(last, 77))

		// Damage is found before anything is written.
		r = examined(t, alone)
		require.NoError(t, r.Close())
		c.open(alone, nil)
		c.ready(alone)
		require.Equal(t, "2", alone.read(t, "k"))
	})
}

// A restore that was under way when the cluster was lost has no effect.
func TestRecoverForgetsHalfARestore(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		s := c.start("a", nil)
		c.ready(s)
		s.write(t, "k", "1")
		snap := &store.Snapshot{}
		parts := snap.Parts(s.store.View().Epoch(), store.Epoch{ClusterID: "x", Incarnation: 5}, 10)
		parts[0].End = nil
		_, err := s.node.Propose(context.Background(), store.Txn{Restore: &parts[0]})
		require.NoError(t, err)
		require.True(t, s.store.Restoring())
		c.stop(s)
		r := examined(t, s)
		require.NoError(t, r.Recover(time.Now()), "it is alone, and can be recovered all the same")
		require.NoError(t, r.Close())
		c.open(s, nil)
		c.ready(s)
		require.False(t, s.store.Restoring())
		require.Equal(t, "1", s.read(t, "k"))
		require.NoError(t, s.node.Snapshot())
	})
}
