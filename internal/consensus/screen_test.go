package consensus

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// TestSnapshotOfAppliedEntries: a snapshot that a leader sends once more, of entries
// that were applied here meanwhile, is read and answered, and raft is not given
// it: it would go back to it. A snapshot of later entries is for raft.
func TestSnapshotOfAppliedEntries(t *testing.T) {
	n, _ := open(t, testConfig(t.TempDir()))
	fill(t, n, 1, 20)
	applied, term := n.raft.AppliedIndex(), n.raft.CurrentTerm()
	for _, c := range []struct {
		term, last uint64
		forRaft    bool
	}{{term, applied, false}, {term + 1, applied - 5, false}, {term, applied + 1, true}, {term - 1, applied, true}} {
		content := strings.NewReader("content")
		answered := make(chan raft.RPCResponse, 1)
		_, forRaft := n.screen(raft.RPC{Command: &raft.InstallSnapshotRequest{Term: c.term, LastLogIndex: c.last}, Reader: content, RespChan: answered})
		require.Equal(t, c.forRaft, forRaft, "%+v", c)
		if c.forRaft {
			require.Empty(t, answered)
			continue
		}
		response := (<-answered).Response.(*raft.InstallSnapshotResponse)
		require.True(t, response.Success)
		require.Equal(t, c.term, response.Term)
		require.Zero(t, content.Len(), "it is read to its end, as its sender expects")
	}
}

// TestNoAnswerBeginsAfterTheLast: while Close waits for the answers to peers, their
// messages are not taken any more.
func TestNoAnswerBeginsAfterTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := open(t, testConfig(t.TempDir()))
		_, peer := raft.NewInmemTransport("")
		peer.Connect(n.transport.LocalAddr(), n.transport)
		last := make(chan struct{})
		end := sync.OnceFunc(func() { close(last) })
		t.Cleanup(end)
		n.answers.Go(func() { <-last })
		closed := make(chan error, 1)
		go func() { closed <- n.Close() }()
		<-time.After(time.Second)
		require.Equal(t, raft.Shutdown, n.raft.State())

		content := strings.NewReader("content")
		request := &raft.InstallSnapshotRequest{Term: n.raft.CurrentTerm(), LastLogIndex: n.raft.AppliedIndex()}
		require.Error(t, peer.InstallSnapshot(n.id, n.transport.LocalAddr(), request, &raft.InstallSnapshotResponse{}, content))
		require.Equal(t, content.Size(), int64(content.Len()), "it was not read")
		end()
		require.NoError(t, <-closed)
	})
}
