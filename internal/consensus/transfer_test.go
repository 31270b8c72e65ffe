package consensus

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// TestAStuckTransferIsFatal: a leader that refuses every write because of a
// transfer, for longer than one may take, cannot be helped otherwise.
func TestAStuckTransferIsFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		died := make(chan error, 1)
		cfg := testConfig(t.TempDir())
		cfg.Events.Fatal = func(err error) { died <- err }
		n, _ := open(t, cfg)
		refuse := func() {
			require.ErrorIs(t, n.proposeError(raft.ErrLeadershipTransferInProgress), ErrUnavailable)
		}
		for range 5 { // one after the other is fine
			refuse()
			<-time.After(n.stuckTransfer() - time.Millisecond)
			n.transferring.accepted()
		}
		n.transferring.refused(n.raft.CurrentTerm()-1, time.Now()) // so is what was in an earlier term
		<-time.After(2 * n.stuckTransfer())
		refuse()
		<-time.After(n.stuckTransfer() / 2)
		refuse()
		require.Empty(t, died)
		<-time.After(n.stuckTransfer() / 2)
		refuse()
		require.ErrorContains(t, <-died, "transfer")
	})
}
