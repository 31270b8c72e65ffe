package store_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// genShared draws batches that may share an entry: of different keys.
func genShared(t *rapid.T) []store.Txn {
	var batches []store.Txn
	taken := map[resource.Key]bool{}
	for i := range rapid.IntRange(1, 5).Draw(t, "batches") {
		batch := genTxn(t)
		batch.SetEpoch, batch.Note = nil, fmt.Appendf(nil, "note %d", i)
		batch.Ops = slices.DeleteFunc(batch.Ops, func(op store.Op) bool { return taken[op.Key] })
		for _, op := range batch.Ops {
			taken[op.Key] = true
		}
		if len(batch.Ops) > 0 && rapid.IntRange(0, 3).Draw(t, "conditional") == 0 {
			key := rapid.SampledFrom(batch.Ops).Draw(t, "of").Key
			if rapid.Bool().Draw(t, "of another") { // which another batch may write
				key = meshKey(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "mesh"))
			}
			batch.Preconditions = []store.Precondition{{Key: key, Version: rapid.Uint64Range(0, 2).Draw(t, "version")}}
		}
		batches = append(batches, batch)
	}
	return batches
}

// timeless is a state without revisions and times.
func timeless(r store.Reader) []string {
	var lines []string
	for _, kind := range resource.Kinds() {
		for res := range r.List(kind.Kind, "") {
			lines = append(lines, fmt.Sprintf("%s %v v%d %s", res.Key(), res.Meta().Labels, res.Meta().Version, res.Canonical()))
		}
	}
	return lines
}

// TestBatchesOfAnEntryAreAppliedAsEntriesOfTheirOwn (§7.2): batches that share an entry leave what they
// leave as entries of their own, one after the other, and each has the same result. They
// are one batch of the feed, and each resource's history has the note of its own writer,
// also after a start from a snapshot.
func TestBatchesOfAnEntryAreAppliedAsEntriesOfTheirOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opts := store.DefaultOptions()
		opts.Terms = termsOf
		joined, apart := store.New(opts), store.New(opts)
		joined.Apply(1, keeping(store.DefaultRetention()))
		apart.Apply(1, keeping(store.DefaultRetention()))
		rev, own := resource.Revision(1), resource.Revision(1)
		for range rapid.IntRange(1, 6).Draw(t, "entries") {
			batches := genShared(t)
			data, err := store.EncodeCommand(store.Txn{Time: clock(3), Batches: batches})
			require.NoError(t, err)
			entry, err := store.DecodeCommand(data)
			require.NoError(t, err)
			require.Len(t, entry.Batches, len(batches))
			before := joined.View()
			rev++
			result := joined.Apply(rev, entry)
			require.NoError(t, result.Err)
			changed := false
			notes := map[resource.Key]string{}
			for i, batch := range batches {
				own++
				want, got := apart.Apply(own, batch), result.Batches[i]
				require.Equal(t, want.Results, got.Results)
				require.Equal(t, want.Duplicate, got.Duplicate)
				require.Equal(t, fmt.Sprintf("%T", want.Err), fmt.Sprintf("%T", got.Err))
				written := !got.Duplicate && !got.Unchanged() && got.Err == nil
				changed = changed || written
				if written {
					require.Equal(t, rev, got.Revision)
				}
				for _, op := range got.Results {
					if written && op.Outcome != store.Unchanged && op.Outcome != store.Missing {
						notes[op.Key] = string(batch.Note)
					}
				}
			}
			require.Equal(t, timeless(apart.View()), timeless(joined.View()))
			checkDigests(t, joined.View())
			checkTerms(t, joined.View())
			require.Equal(t, rev, joined.Revision())
			if !changed {
				require.Equal(t, before.Changed(), joined.View().Changed())
				continue
			}
			fed, err := joined.Next(t.Context(), before.Changed())
			require.NoError(t, err)
			require.Len(t, fed, 1)
			require.Equal(t, store.Diff(before, joined.View()), fed[0].Changes)
			for _, s := range []*store.Store{joined, restarted(t, joined)} {
				for key, note := range notes {
					for edit := range s.View().Edits(key) {
						require.Equal(t, note, string(edit.Note), key.String())
						require.Equal(t, rev, edit.Revision)
						break
					}
				}
			}
		}
	})
}

// TestBatchesOfOneKeyInAnEntry: the leader joins batches of different keys only. Where they are of
// one all the same, the first is applied, on every server.
func TestBatchesOfOneKeyInAnEntry(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	result := s.Apply(10, store.Txn{Batches: []store.Txn{puts(retry("a", 1)), puts(retry("b", 1), retry("a", 2)), puts(retry("c", 1))}})
	var invalid *store.InvalidOpError
	require.NoError(t, result.Batches[0].Err)
	require.ErrorAs(t, result.Batches[1].Err, &invalid)
	require.NoError(t, result.Batches[2].Err)
	require.Equal(t, []string{"Retry/default/a", "Retry/default/c"}, names(s.View().List("Retry", "")))
	require.JSONEq(t, `{"n":1}`, string(get(t, s.View(), retryKey("default", "a")).Canonical()))
}

// TestAccessRulesWithinAnEntry: a batch that was decided on access rules which one before it
// has changed is refused (§6.4).
func TestAccessRulesWithinAnEntry(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	decided := s.View().AccessRevision()
	decidedOn := func(txn store.Txn) store.Txn {
		txn.AccessRevision = &decided
		return txn
	}
	result := s.Apply(10, store.Txn{Batches: []store.Txn{decidedOn(puts(retry("a", 1))), decidedOn(puts(role("r", 1))), decidedOn(puts(retry("b", 1)))}})
	require.NoError(t, result.Batches[0].Err)
	require.NoError(t, result.Batches[1].Err)
	require.Equal(t, &store.AccessChangedError{Decided: decided, Current: 10}, result.Batches[2].Err)
	require.EqualValues(t, 10, s.View().AccessRevision())
}

// TestWhatSharesNoEntry: a release that finds other fields in a batch that does stops, since it
// does not know how the others have applied it.
func TestWhatSharesNoEntry(t *testing.T) {
	since := resource.Revision(1)
	for name, batch := range map[string]store.Txn{
		"epoch":           {SetEpoch: &store.Epoch{}},
		"retention":       {Retention: &store.Retention{}},
		"unchanged since": {UnchangedSince: &since},
		"parts":           {Parts: []store.Part{{Mesh: "m"}}},
		"restore":         {Restore: store.Abandon()},
		"rollout":         puts(rolloutOf(t, "r", resource.RolloutProgressing, []*resource.Resource{namespaceNamed(t, "n")})),
	} {
		_, scope, err := store.EncodeScoped(batch)
		require.NoError(t, err)
		require.False(t, scope.Shareable, name)
		data, err := store.EncodeCommand(store.Txn{Batches: []store.Txn{batch}})
		require.NoError(t, err)
		_, err = store.DecodeCommand(data)
		require.ErrorIs(t, err, store.ErrCorrupt, name)
	}
	plain := store.Txn{RequestID: "id", Ops: []store.Op{store.Put(retry("a", 1)), store.Delete(meshKey("m"))}, Preconditions: []store.Precondition{{Key: meshKey("m")}}}
	data, scope, err := store.EncodeScoped(plain)
	require.NoError(t, err)
	require.Equal(t, store.Scope{Keys: []resource.Key{retryKey("default", "a"), meshKey("m")}, Shareable: true}, scope)
	_, encoded, err := store.Restamp(data, clock(1))
	require.NoError(t, err)
	require.Equal(t, scope, encoded, "the scope of what another server decided")
	joined, err := store.CombineCommands(clock(2), [][]byte{data, data}, [][]byte{[]byte("note"), nil})
	require.NoError(t, err)
	require.EqualValues(t, store.FormatOfShared, store.FormatOf(joined))
	txn, err := store.DecodeCommand(joined)
	require.NoError(t, err)
	require.Equal(t, []byte("note"), txn.Batches[0].Note)
	require.Equal(t, clock(2), txn.Batches[1].Time.UTC())
	_, nested, err := store.Restamp(joined, clock(1))
	require.NoError(t, err)
	require.False(t, nested.Shareable)
}

// TestASnapshotWithSharedRevisionsNamesItsFormat: an older release, which would not tell
// the notes of their batches apart, does not start from it.
func TestASnapshotWithSharedRevisionsNamesItsFormat(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	s.Apply(10, keeping(store.DefaultRetention()))
	format := func() uint32 {
		var file bytes.Buffer
		require.NoError(t, s.WriteSnapshot(&file))
		snap, err := store.ReadSnapshot(&file)
		require.NoError(t, err)
		return snap.Format()
	}
	s.Apply(11, puts(retry("a", 1)))
	require.Less(t, format(), store.FormatOfShared)
	s.Apply(12, store.Txn{Batches: []store.Txn{puts(retry("a", 2)), puts(retry("b", 2))}})
	require.Equal(t, store.FormatOfShared, format())
}
