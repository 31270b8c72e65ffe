package store_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/store"
)

// proposer applies batches to a store, or fails.
type proposer struct {
	store *store.Store
	fail  error
}

func (p proposer) Propose(_ context.Context, txn store.Txn) (store.Result, error) {
	if p.fail != nil {
		return store.Result{}, p.fail
	}
	r := p.store.Apply(p.store.Revision()+1, txn)
	return r, r.Err
}

func TestCreateMissing(t *testing.T) {
	s := external()
	p := proposer{store: s}
	require.NoError(t, store.CreateMissing(t.Context(), p, clock(1), retry("a", 1), retry("b", 1)))
	require.Equal(t, 2, s.View().Len())
	before := s.View().Changed()
	require.NoError(t, store.CreateMissing(t.Context(), p, clock(2), retry("a", 2), retry("c", 1)), "somebody else was first")
	require.Equal(t, before, s.View().Changed(), "and nothing is written")
	p.fail = errors.New("no leader")
	require.ErrorIs(t, store.CreateMissing(t.Context(), p, clock(3), retry("d", 1)), p.fail)
}
