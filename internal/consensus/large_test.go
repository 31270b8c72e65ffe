package consensus_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/store"
	"meridian/test/simnet"
)

// large is a batch of a few megabytes.
const large = 3 << 20

// TestTheLogIsCutInBytes: a few large batches are reason enough for a snapshot,
// and the log keeps as many bytes as it should, far below what it may keep in
// entries.
func TestTheLogIsCutInBytes(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a := c.start("a", func(cfg *consensus.Config) {
			cfg.Snapshots = consensus.Snapshots{Threshold: math.MaxInt64, Bytes: 4 * large, Interval: time.Second, TrailingLogs: 1 << 20, TrailingBytes: 2 * large, Retain: 1}
		})
		c.ready(a)
		var last string
		for i := range 12 {
			last = a.writeLarge(t, i)
		}
		c.eventually("the log is cut", func() bool {
			first, last := a.disk.Entries()
			return a.disk.Snapshots() == 1 && last-first < 4
		})
		before := a.disk.Snapshot()
		for range 10 {
			c.pass(time.Minute)
		}
		require.Equal(t, before, a.disk.Snapshot(), "an idle server has nothing to take a snapshot of")
		c.stop(a)
		c.open(a, nil)
		c.ready(a)
		require.Equal(t, last, value(a.store, "k0"))
	})
}

// writeLarge writes a large batch and returns the value of "k0" in it.
func (s *server) writeLarge(t *testing.T, i int) string {
	t.Helper()
	const parts = 6
	v := make([]byte, large/parts*3/4) // before it is encoded
	for at := range v {
		v[at] = byte('a' + (i+at)%20)
	}
	var txn store.Txn
	for n := range parts {
		txn.Ops = append(txn.Ops, put(fmt.Sprintf("k%d", n), string(v)))
	}
	_, err := s.node.Propose(t.Context(), txn)
	require.NoError(t, err)
	return string(v)
}

// TestLargeEntriesCatchUp: a follower that was away while many large batches were
// written has them all, from the log, and its disk is not taken for one that
// hangs.
func TestLargeEntriesCatchUp(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		c.crash(d)
		var last string
		for i := range 24 {
			last = c.leader(a, b).writeLarge(t, i)
		}
		d.disk.Slow(400*time.Millisecond, simnet.SyncLog)
		c.open(d, nil)
		c.ready(d)
		require.NoError(t, d.died())
		require.Equal(t, last, value(d.store, "k0"))
		require.Zero(t, d.disk.Snapshots(), "the log was enough")
		d.disk.Slow(0, 0)
		require.Equal(t, a.store.View().DigestOf(nil), d.store.View().DigestOf(nil))
	})
}

// TestSnapshotsAfterAnInstalledOne: a follower that was sent a snapshot has an
// empty log. It takes no snapshots of its own while nothing is written.
func TestSnapshotsAfterAnInstalledOne(t *testing.T) {
	cut := func(cfg *consensus.Config) { cfg.Snapshots.TrailingLogs, cfg.Snapshots.Retain = 1, 1 }
	bubble(t, func(t *testing.T, c *cluster) {
		a := c.start("a", cut)
		c.ready(a)
		for range 20 {
			a.write(t, "k", "1")
		}
		require.NoError(t, a.node.Snapshot())
		a.write(t, "k", "2")
		require.NoError(t, a.node.Snapshot())
		b := c.start("b", func(cfg *consensus.Config) {
			cut(cfg)
			joining("a")(cfg)
		})
		c.ready(b)
		c.voters("a", "b")
		before := b.disk.Snapshot()
		require.NotEmpty(t, before)
		c.pass(time.Hour)
		require.Equal(t, before, b.disk.Snapshot())
	})
}

// TestManyLargeBatchesAtOnce: batches that arrive together are written a few at a
// time, in transactions of a bounded size, and the leader stays.
func TestManyLargeBatchesAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		leader := c.leader(a, b, d)
		term := leader.node.Status().Term
		for _, s := range []*server{a, b, d} {
			s.disk.Slow(300*time.Millisecond, simnet.SyncLog)
		}
		var writing sync.WaitGroup
		for i := range 20 {
			writing.Go(func() {
				leader.writeLarge(t, i)
			})
		}
		writing.Wait()
		require.Equal(t, term, leader.node.Status().Term)
		require.LessOrEqual(t, leader.disk.LargestWrite(), 40<<20)
		for _, s := range []*server{a, b, d} {
			s.disk.Slow(0, 0)
		}
	})
}

// TestAnElectionOnSlowDisks: where every write of a term or a vote takes longer
// than an election may last, elections get longer until one succeeds.
func TestAnElectionOnSlowDisks(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		for _, s := range []*server{a, b, d} {
			s.disk.Slow(time.Second, simnet.SyncLog)
		}
		old := c.leader(a, b, d)
		c.crash(old)
		began := time.Now()
		next := c.leader(c.others(old)...)
		_, err := next.node.Propose(t.Context(), store.Txn{Ops: []store.Op{put("k", "1")}})
		require.NoError(t, err)
		t.Logf("after %s", time.Since(began))
		for _, s := range c.running() {
			s.disk.Slow(0, 0)
		}
	})
}

// TestBatchesWithoutEffectAreNotWritten: a batch that changes nothing is answered
// with the revision of what is there, whichever server takes it, and leaves no
// entry in the log, or one with its request id. A request that had no effect has
// none later, when it would have one.
func TestBatchesWithoutEffectAreNotWritten(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		_ = a.writeLarge(t, 1)
		was, err := a.node.Propose(t.Context(), store.Txn{Ops: []store.Op{put("other", "1")}})
		require.NoError(t, err)
		largest := a.disk.LargestWrite()
		require.Greater(t, largest, large/2)
		c.pass(time.Minute) // for what servers write about themselves
		_, before := a.disk.Entries()
		ops := a.allOps(t)
		for _, s := range []*server{a, b, d} {
			result, err := s.node.Propose(t.Context(), store.Txn{Ops: append([]store.Op{store.Delete(key("missing"))}, ops...)})
			require.NoError(t, err)
			require.Equal(t, was.Revision, result.Revision, "the state that it was compared with")
			require.Equal(t, store.Missing, result.Results[0].Outcome)
			require.Equal(t, store.Unchanged, result.Results[1].Outcome)
			require.EqualValues(t, 1, result.Results[1].Version)
		}
		refused := store.Txn{Ops: ops, Preconditions: []store.Precondition{{Key: key("k0"), Version: 7}}}
		_, err = d.node.Propose(t.Context(), refused)
		require.ErrorAs(t, err, new(*store.ConflictError))
		_, after := a.disk.Entries()
		require.Equal(t, before, after)

		named := store.Txn{RequestID: "r1", Ops: ops}
		for i, s := range []*server{a, b, d} {
			result, err := s.node.Propose(t.Context(), named)
			require.NoError(t, err)
			require.Len(t, result.Results, len(ops))
			require.Equal(t, i > 0, result.Duplicate)
		}
		_, after = a.disk.Entries()
		require.EqualValues(t, 3, after-before, "one small entry each")
		a.write(t, "k0", "2")
		result, err := b.node.Propose(t.Context(), named)
		require.NoError(t, err)
		require.True(t, result.Duplicate)
		require.Equal(t, "2", value(a.store, "k0"))
	})
}

// allOps write what is there.
func (s *server) allOps(t *testing.T) (ops []store.Op) {
	t.Helper()
	for r := range s.store.View().All() {
		ops = append(ops, store.Put(r))
	}
	require.NotEmpty(t, ops)
	return ops
}

// TestWhatChangesWhileItIsComparedIsWritten: a batch has an effect on the newest state
// and had none on that of the server that took it.
func TestWhatChangesWhileItIsComparedIsWritten(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		leader := c.leader(c.others(nil)...)
		takes := c.others(leader)[0]
		leader.write(t, "k", "1")
		c.eventually("it is everywhere", func() bool { return value(takes.store, "k") == "1" })
		for i, id := range []string{"", "r"} {
			c.network.CutBoth(leader.name, takes.name)
			answered := make(chan store.Result, 1)
			go func() {
				result, err := takes.node.Propose(context.Background(), store.Txn{RequestID: id, Ops: []store.Op{put("k", "1")}})
				assert.NoError(t, err)
				answered <- result
			}()
			c.pass(10 * time.Millisecond)
			leader.write(t, "k", "2")
			require.Empty(t, answered)
			require.Equal(t, "1", value(takes.store, "k"))
			c.network.HealAll()
			result := <-answered
			require.Equal(t, []store.OpResult{{Key: key("k"), Outcome: store.Updated, Version: uint64(2*i + 3)}}, result.Results)
			require.Equal(t, "1", takes.read(t, "k"))
		}
	})
}
