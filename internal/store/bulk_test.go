package store_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// many are resources of several kinds in several meshes, in no order: enough for all
// processors, and for more than one portion of them.
func many() []*resource.Resource {
	var all []*resource.Resource
	for i := range 40_000 {
		key := retryKey(fmt.Sprintf("mesh-%d", i%3), fmt.Sprintf("r-%05d", i))
		if i%5 == 0 {
			key.Kind = resource.KindTimeout
		}
		all = append(all, thing(key, i%7))
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same order in each run
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// byContent lists a resource under one term or two.
func byContent(r *resource.Resource) []string {
	terms := []string{"is " + string(r.Canonical())}
	if r.Key().Name > "r-20000" {
		terms = append(terms, "late")
	}
	return terms
}

// A state that is built as a whole is the one that batches come to: as it is read, listed
// by terms and digested, and in what later batches make of it.
func TestWholeStateIsWhatBatchesComeTo(t *testing.T) {
	opts := store.Options{ExternalMeshes: true, Terms: byContent}
	all := many()
	one := store.New(opts)
	for part := range slices.Chunk(all, 50) { // few enough to be written one after the other
		require.NoError(t, one.Apply(one.Revision()+1, puts(part...)).Err)
	}
	stored := slices.Collect(one.View().All())
	rand.New(rand.NewPCG(3, 4)).Shuffle(len(stored), func(i, j int) { stored[i], stored[j] = stored[j], stored[i] }) //nolint:gosec // as above
	whole := store.New(opts)
	require.NoError(t, whole.Reset(&store.Snapshot{Revision: one.Revision(), Time: one.View().Time(), Resources: stored}))
	compareViews(t, one.View(), whole.View())

	restart := restored(t, opts, written(t, one.View()))
	compareViews(t, one.View(), restart.View())

	prepared := store.New(opts)
	snap := &store.Snapshot{Revision: one.Revision(), Time: one.View().Time(), Resources: stored}
	prepared.Prepare(snap)
	require.NoError(t, prepared.Apply(1, puts(thing(retryKey("mesh-0", "gone"), 1))).Err, "it is written meanwhile")
	require.NoError(t, prepared.Reset(snap))
	compareViews(t, one.View(), prepared.View())

	changes := puts()
	for _, r := range all[:3000] { // in one batch, on all processors
		changes.Ops = append(changes.Ops, puts(thing(r.Key(), 8)).Ops...)
	}
	for _, r := range all[3000:3500] {
		changes.Ops = append(changes.Ops, deletes(r.Key()).Ops...)
	}
	require.NoError(t, whole.Apply(whole.Revision()+1, changes).Err)
	require.NoError(t, prepared.Apply(prepared.Revision()+1, changes).Err)
	compareViews(t, whole.View(), prepared.View())
	for part := range slices.Chunk(changes.Ops, 50) {
		require.NoError(t, one.Apply(one.Revision()+1, store.Txn{Ops: part}).Err)
	}
	for _, kind := range one.View().Kinds() {
		require.Equal(t, one.View().Count(kind), whole.View().Count(kind))
	}
	require.Equal(t, listed(t, one.View()), listed(t, whole.View()))
}

func compareViews(t *testing.T, want, got *store.View) {
	t.Helper()
	require.Equal(t, dump(want.All()), dump(got.All()))
	require.Equal(t, want.Buckets(nil), got.Buckets(nil))
	require.Equal(t, want.Kinds(), got.Kinds())
	for _, kind := range want.Kinds() {
		require.Equal(t, want.Digest(kind), got.Digest(kind))
		require.Equal(t, want.Count(kind), got.Count(kind))
	}
	require.Equal(t, listed(t, want), listed(t, got))
}

// listed are the names of the resources by their terms.
func listed(t *testing.T, v *store.View) (all []string) {
	t.Helper()
	for _, kind := range v.Kinds() {
		for _, mesh := range []resource.MeshName{"mesh-0", "mesh-1", "mesh-2"} {
			for _, prefix := range []string{"is ", "late"} {
				list, ok := v.ListBy(kind, mesh, prefix)
				require.True(t, ok)
				all = append(all, names(list)...)
			}
		}
	}
	return all
}

func TestWholeStateHasEachKeyOnce(t *testing.T) {
	all := many()
	all = append(all, thing(all[10].Key(), 9))
	s := store.New(store.Options{})
	snap := &store.Snapshot{Revision: 1, Resources: all}
	for range 2 { // prepared the second time
		err := s.Reset(snap)
		require.ErrorIs(t, err, store.ErrCorrupt)
		require.ErrorContains(t, err, all[10].Key().String()+" twice")
		require.Zero(t, s.View().Len())
		s.Prepare(snap)
	}
}
