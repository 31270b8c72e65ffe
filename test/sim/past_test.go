package sim

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/test/history"
)

// retentions are the bounds of the contents of old revisions that a world has in turn, the
// first from its beginning. Each is small enough to be met within minutes.
var retentions = []store.Retention{
	{Batches: 80, Bytes: 256 << 10, Age: 10 * time.Minute},
	{Batches: 12, Bytes: 256 << 10},
	{Bytes: 8 << 10},
	{Bytes: 256 << 10, Age: 15 * time.Second},
	{},
}

// keep has the contents of old revisions kept as the world says, while the server leads.
func (p *process) keep() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.ctx.Done():
			return
		}
		want := p.s.w.retention.Load()
		if p.node.IsLeader() && p.store.Retention() != *want {
			_, _ = p.node.Propose(p.ctx, store.Txn{Retention: want}) // tried again
		}
	}
}

// recall reads a state that the server can still read, and records it.
func (p *process) recall(rng *rand.Rand) *store.Past {
	oldest, newest := p.store.OldestState(), p.store.View().Changed()
	if newest <= oldest {
		return nil
	}
	return p.recallAt(oldest + resource.Revision(rng.Uint64N(uint64(newest-oldest)+1)))
}

// recallAt returns nil where the state cannot be read any more, or the server wrote
// meanwhile.
func (p *process) recallAt(rev resource.Revision) *store.Past {
	before := p.store.View()
	then, err := p.store.StateAt(rev)
	r := history.Recall{Server: p.s.name, Now: before.Epoch(), Applied: before.Revision()}
	if p.store.Retention().Bytes > 0 {
		r.Oldest = p.store.OldestState()
	}
	if err != nil || p.store.View() != before || p.s.isFormer() {
		return nil
	}
	r.Epoch, r.Revision, r.Synced = then.Epoch(), rev, history.ImageOf(everything(then), synced)
	p.s.w.rec.Recall(r)
	return then
}

// recallAll reads every state that the server can still read.
func (p *process) recallAll() {
	for rev := p.store.OldestState(); rev <= p.store.View().Changed(); rev++ {
		p.recallAt(rev)
	}
}

// everything yields the resources of a state in key order, without secrets.
func everything(r store.Reader) iter.Seq[*resource.Resource] {
	return func(yield func(*resource.Resource) bool) {
		for _, d := range resource.Kinds() {
			for res := range r.List(d.Kind, "") {
				if !yield(res) {
					return
				}
			}
		}
	}
}

// boundHistory has other contents kept.
func boundHistory(w *world, rng *rand.Rand) (func(), bool) {
	next := &retentions[rng.IntN(len(retentions))]
	w.rec.Note("contents of old revisions are kept within %+v", *next)
	w.retention.Store(next)
	return func() { w.retention.Store(&retentions[0]) }, true
}

// TestTheLastServerToJoinReadsThePast: a server that joins with an empty disk gets the
// contents of old revisions with its snapshot, and reads what the others read.
func TestTheLastServerToJoinReadsThePast(t *testing.T) {
	scenario(t, small, func(t *testing.T, w *world) {
		w.pause(20 * time.Second)
		leader, others := w.roles(t)
		for i := range 30 {
			_, err := w.probe(w.ctx, time.Minute, store.Put(content(dataKey(dataKeys), fmt.Sprint(i))))
			require.NoError(t, err)
		}
		require.NoError(t, leader.process().node.Snapshot())
		for range 60 { // more than what follows a snapshot in the log
			_, err := w.probe(w.ctx, time.Minute)
			require.NoError(t, err)
		}
		require.NoError(t, leader.process().node.Snapshot())
		s := others[1]
		s.crash(false)
		s.mu.Lock()
		s.exchangeLocked()
		s.mu.Unlock()
		disk := s.currentDisk()
		s.start()
		require.True(t, w.await(2*time.Minute, w.disksAreGood), "it is not a member again: %v", w.voters())
		require.Positive(t, disk.Snapshots(), "it was sent no snapshot")
		batches, _ := s.process().store.PastSize()
		require.Greater(t, batches, retentions[0].Batches/2)
		s.process().recallAll()
	})
}
