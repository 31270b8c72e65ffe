package consensus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/store"
)

// TestAFollowerNeedNotWaitForTheNextEntry: a write through a follower, and a read there of
// what was just written elsewhere, take as long as the messages do. Raft tells a follower
// what is committed with the next entries, or after the commit timeout.
func TestAFollowerNeedNotWaitForTheNextEntry(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		const timeout = 10 * time.Second
		c.tune = func(_ *server, cfg *consensus.Config) { cfg.Timing.Commit = timeout }
		c.three()
		leader := c.leader(c.others(nil)...)
		follower := c.others(leader)[0]
		for _, s := range c.others(leader) {
			c.network.Delay(leader.name, s.name, 5*time.Millisecond)
		}
		for _, at := range []*server{follower, leader} {
			began := time.Now()
			result, err := at.node.Propose(t.Context(), store.Txn{Ops: []store.Op{put("k", at.name)}})
			require.NoError(t, err)
			read, err := follower.node.Read(t.Context())
			require.NoError(t, err)
			require.GreaterOrEqual(t, read, result.Revision)
			require.Equal(t, at.name, follower.read(t, "k"))
			require.Less(t, time.Since(began), timeout/10, "a write at %s", at.name)
		}
	})
}
