package consensus

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/store"
)

// The state machine answers the caller of a batch, and no other: not that of an equal
// batch, nor one that has gone. An attempt that ends leaves the next one alone.
func TestTheStateMachineAnswersCallers(t *testing.T) {
	a := newAwaited()
	mine, equal := []byte("batch"), []byte("batch")
	first := a.add(mine)
	a.applied(equal, 6, store.Result{Revision: 6})
	require.Empty(t, first.answered)

	second := a.add(mine) // the next attempt, before the first one is over
	a.remove(first)
	a.applied(mine, 7, store.Result{Revision: 7, Err: store.ErrCorrupt})
	require.Empty(t, first.answered)
	got := <-second.answered
	require.EqualValues(t, 7, got.index)
	require.EqualValues(t, 7, got.result.Revision)
	require.ErrorIs(t, got.err, store.ErrCorrupt)

	a.applied(mine, 8, store.Result{Revision: 8})
	second.answer(answer{index: 9})
	require.EqualValues(t, 8, (<-second.answered).index, "the first answer counts")
	a.remove(second)
	a.applied(mine, 9, store.Result{})
	require.Empty(t, second.answered)
	require.Empty(t, a.all)

	(*awaited)(nil).applied(mine, 1, store.Result{})
	a.applied(nil, 1, store.Result{})
	a.remove(a.add(nil))
}
