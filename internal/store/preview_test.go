package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/store"
)

func TestPreviewSaysWhatApplyWouldDoAndChangesNothing(t *testing.T) {
	s := external()
	a := retry("a", 1)
	b := retry("b", 1)
	s.Apply(1, store.Txn{Ops: []store.Op{store.Put(a)}})
	before := s.View()

	txn := store.Txn{Ops: []store.Op{store.Put(a), store.Put(b)}, RequestID: "r"}
	result, after := s.Preview(txn)
	require.NoError(t, result.Err)
	require.Equal(t, []store.Outcome{store.Unchanged, store.Created}, []store.Outcome{result.Results[0].Outcome, result.Results[1].Outcome})
	_, ok := after.Get(b.Key())
	require.True(t, ok, "the view shows the state after the batch")

	require.Same(t, before, s.View())
	_, ok = s.View().Get(b.Key())
	require.False(t, ok)
	applied := s.Apply(2, txn)
	require.False(t, applied.Duplicate, "a preview does not use up the request id")
	require.Equal(t, result.Results, applied.Results)
	require.Equal(t, after.Digest(b.Key().Kind), s.View().Digest(b.Key().Kind))

	refused, view := s.Preview(store.Txn{Ops: []store.Op{store.Put(a)}, Preconditions: []store.Precondition{{Key: a.Key(), Version: 9}}})
	var conflict *store.ConflictError
	require.ErrorAs(t, refused.Err, &conflict)
	require.Same(t, s.View(), view)
}

// What a preview says is of the state that it was asked on, whenever its work is done.
func TestPreviewIsOfTheStateThatItWasAskedOn(t *testing.T) {
	s := external()
	a, b := retry("a", 1), retry("b", 1)
	s.Apply(1, puts(a))
	txn := store.Txn{Ops: []store.Op{store.Put(b)}, Preconditions: []store.Precondition{{Key: b.Key()}}}
	preview := s.Previewing(txn)
	require.NoError(t, s.Apply(2, txn).Err)
	s.Apply(3, store.Txn{Ops: []store.Op{store.Delete(a.Key())}})

	result, after := preview()
	require.NoError(t, result.Err)
	require.Equal(t, store.Created, result.Results[0].Outcome)
	_, ok := after.Get(a.Key())
	require.True(t, ok, "what came later is not in it")
	_, ok = after.Get(b.Key())
	require.True(t, ok)
	_, ok = s.View().Get(a.Key())
	require.False(t, ok, "and it takes nothing back")
}

// external is a store whose meshes live elsewhere.
func external() *store.Store {
	options := store.DefaultOptions()
	options.ExternalMeshes = true
	return store.New(options)
}

// Of operations that had no effect before, the version is told of what is still there.
func TestWhatHadNoEffectBefore(t *testing.T) {
	s := external()
	a, b := retry("a", 1), retry("b", 1)
	s.Apply(1, puts(a, b))
	s.Apply(2, puts(retry("b", 2), retry("c", 1)))
	results := s.View().Without([]store.Op{store.Put(a), store.Put(b), store.Delete(retry("c", 1).Key()), store.Put(retry("d", 1))})
	require.Equal(t, []store.OpResult{
		{Key: a.Key(), Outcome: store.Unchanged, Version: 1},
		{Key: b.Key(), Outcome: store.Unchanged},
		{Key: retry("c", 1).Key(), Outcome: store.Missing},
		{Key: retry("d", 1).Key(), Outcome: store.Unchanged},
	}, results)
	require.True(t, store.Result{Results: results}.Unchanged())
	require.False(t, store.Result{Results: []store.OpResult{{Outcome: store.Unchanged}, {Outcome: store.Deleted}}}.Unchanged())
}
