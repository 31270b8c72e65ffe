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

// TestATransferTakesAsLongAsElections: raft gives up a transfer after an election
// timeout, which is longer while the disk is slow, now or when the transfer began.
func TestATransferTakesAsLongAsElections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		died := make(chan error, 1)
		cfg := testConfig(t.TempDir())
		cfg.Events.Fatal = func(err error) { died <- err }
		n, _ := open(t, cfg)
		usual := n.stuckTransfer()
		SlowWrites(n, time.Hour)
		slow := n.stuckTransfer()
		require.Greater(t, slow, 2*maxElection)
		n.refusedByTransfer()
		<-time.After(slow - time.Second)
		require.Less(t, n.stuckTransfer(), slow, "slow disks are soon forgotten")
		SlowWrites(n, time.Hour)
		n.refusedByTransfer()
		require.Empty(t, died)
		<-time.After(time.Minute)
		require.Equal(t, usual, n.stuckTransfer())
		n.refusedByTransfer()
		require.ErrorContains(t, <-died, "transfer")
	})
}

// TestATransferWithoutAnAnswer: raft never answers a transfer that it has not begun
// when it ends. A stop gives it some time, and then ends in good order.
func TestATransferWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t.TempDir())
		n, _ := open(t, cfg)
		n.unanswered.begin()
		began := time.Now()
		require.NoError(t, n.Close())
		require.Equal(t, handoverGrace, time.Since(began))

		n, _ = open(t, cfg)
		n.unanswered.begin()
		time.AfterFunc(handoverGrace/2, n.unanswered.end)
		began = time.Now()
		require.NoError(t, n.Close())
		require.Equal(t, handoverGrace/2, time.Since(began))
	})
}

// TestReadsWithoutAnAnswer: a disk without space may end raft before the node is
// closed, and then raft takes half of the questions whether it leads and never
// answers them. Nothing waits for these answers; a read fails.
func TestReadsWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // fails where a goroutine remains
		n, _ := open(t, testConfig(t.TempDir()))
		n.shutDownRaft() // as neverReturn does in raftlog
		require.NoError(t, n.raftEnd.Error())
		for range 64 {
			n.askFollowers()
		}
		_, err := n.Read(t.Context())
		require.Error(t, err)
		require.NoError(t, n.Close())
	})
}
