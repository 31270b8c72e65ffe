package consensus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/store"
)

// writeBeside writes a batch past the gate that holds all others.
func writeBeside(t *testing.T, n *Node, txn store.Txn) {
	t.Helper()
	command, err := store.EncodeCommand(txn)
	require.NoError(t, err)
	require.NoError(t, n.raft.Apply(command, time.Minute).Error())
}

// TestTheAnswerIsOfTheStateThatWasCompared: what is written between the comparison and
// the request id is not in the answer; the same request, sent again, is not told that
// a later version is what it wrote.
func TestTheAnswerIsOfTheStateThatWasCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, st := open(t, testConfig(t.TempDir()))
		was := propose(t, n, put("k", 1))
		same := store.Txn{RequestID: "r", Ops: []store.Op{put("k", 1), store.Delete(key("other"))}}
		require.NoError(t, n.writes.hold(t.Context(), whileHandingOver))
		answered := make(chan store.Result, 1)
		go func() {
			result, _ := n.proposer.Propose(context.Background(), same)
			answered <- result
		}()
		synctest.Wait()
		writeBeside(t, n, store.Txn{Ops: []store.Op{put("k", 2), put("other", 1)}})
		require.Empty(t, answered)
		n.writes.release()
		first := <-answered
		require.Equal(t, store.Result{Revision: was.Revision, Results: []store.OpResult{
			{Key: key("k"), Outcome: store.Unchanged, Version: 1}, {Key: key("other"), Outcome: store.Missing},
		}}, first)

		again, err := n.proposer.Propose(t.Context(), same)
		require.NoError(t, err)
		require.True(t, again.Duplicate)
		require.Equal(t, []store.OpResult{
			{Key: key("k"), Outcome: store.Unchanged}, {Key: key("other"), Outcome: store.Missing},
		}, again.Results, "which version it was is not known any more")
		require.EqualValues(t, 2, versionOf(t, st, "k"))
	})
}

// TestAResentRequestGetsItsResult: also when its conditions do not hold any more because
// its first attempt took effect. One that was not applied is refused.
func TestAResentRequestGetsItsResult(t *testing.T) {
	n, st := open(t, testConfig(t.TempDir()))
	create := store.Txn{RequestID: "r", Ops: []store.Op{put("k", 1)}, Preconditions: []store.Precondition{{Key: key("k")}}}
	first, err := n.proposer.Propose(t.Context(), create)
	require.NoError(t, err)
	again, err := n.proposer.Propose(t.Context(), create)
	require.NoError(t, err)
	require.True(t, again.Duplicate)
	require.Equal(t, first.Results, again.Results)
	require.Equal(t, first.Revision, again.Revision)

	same := store.Txn{RequestID: "same", Ops: []store.Op{put("k", 1)}, Preconditions: []store.Precondition{{Key: key("k"), Version: 1}}}
	first, err = n.proposer.Propose(t.Context(), same)
	require.NoError(t, err)
	propose(t, n, put("k", 2))
	propose(t, n, put("k", 1))
	again, err = n.proposer.Propose(t.Context(), same)
	require.NoError(t, err)
	require.True(t, again.Duplicate)
	require.Equal(t, []store.OpResult{{Key: key("k"), Outcome: store.Unchanged, Version: 3}}, again.Results, "the state that is as it wrote it")
	require.Equal(t, first.Revision, again.Revision)

	create.RequestID = "another"
	_, err = n.proposer.Propose(t.Context(), create)
	require.ErrorAs(t, err, new(*store.ConflictError))
	require.EqualValues(t, 3, versionOf(t, st, "k"))
}

func versionOf(t *testing.T, st *store.Store, name string) uint64 {
	t.Helper()
	_, version := stored(t, st.View(), name)
	return version
}
