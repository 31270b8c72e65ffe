package sim

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/store"
	"meridian/test/simnet"
)

// TestSlowDisksKeepTheirLeader: while every sync of every server takes half a
// second, which is twice a leader's lease, the leader stays and writes take a few
// syncs.
func TestSlowDisksKeepTheirLeader(t *testing.T) {
	scenario(t, small, func(t *testing.T, w *world) {
		leader, _ := w.roles(t)
		term := leader.process().node.Status().Term
		for _, s := range w.members() {
			s.currentDisk().Slow(500*time.Millisecond, simnet.SyncLog)
		}
		var took []time.Duration
		for range 40 / shorter {
			began := time.Now()
			_, err := leader.process().node.Propose(w.ctx, store.Txn{Ops: []store.Op{store.Put(content(dataKey(dataKeys), began.String()))}})
			require.NoError(t, err)
			took = append(took, time.Since(began))
			w.pause(300 * time.Millisecond)
		}
		slices.SortFunc(took, cmp.Compare)
		t.Logf("writes took %s at the median, %s at most", took[len(took)/2], took[len(took)-1])
		require.LessOrEqual(t, took[len(took)/2], 3*time.Second)
		for _, s := range w.members() {
			require.Equal(t, term, s.process().node.Status().Term, "%s has seen an election", s.name)
		}
		for _, s := range w.members() {
			s.currentDisk().Slow(0, 0)
		}
	})
}
