package store_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// lived is a store with something of everything: kinds, labels, an epoch,
// request ids, deletions, unchanged and refused batches.
func lived(t testing.TB, opts store.Options) *store.Store {
	t.Helper()
	s := opened(t, opts)
	labelled := retry("labelled", 1)
	labelled = labelled.WithMeta(resource.Meta{Key: labelled.Key(), Labels: map[string]string{"b": "2", "a": "1", "c": "3"}})
	for i, txn := range []store.Txn{
		{SetEpoch: &store.Epoch{ClusterID: "cluster", Incarnation: 1, Random: 1 << 63}},
		{RequestID: "one", Ops: puts(retry("a", 1), labelled, role("admin", 1)).Ops},
		{RequestID: "two", Ops: puts(retry("a", 2), retry("b", 1)).Ops},
		{RequestID: "same", Ops: puts(retry("a", 2)).Ops},
		deletes(retryKey("default", "b"), retryKey("default", "none")),
		{SetEpoch: &store.Epoch{ClusterID: "cluster", Incarnation: 2}, Ops: puts(role("admin", 2)).Ops},
		deletes(meshKey("default")),
		{RequestID: "last", Ops: puts(retry("b", 7)).Ops},
	} {
		txn.Time = clock(i + 1)
		s.Apply(resource.Revision(10*i+10), txn)
	}
	s.Advance(99)
	return s
}

func written(t testing.TB, v *store.View) []byte {
	t.Helper()
	var buf bytes.Buffer
	require.NoError(t, v.WriteSnapshot(&buf))
	return buf.Bytes()
}

func restored(t testing.TB, opts store.Options, data []byte) *store.Store {
	t.Helper()
	snap, err := store.ReadSnapshot(bytes.NewReader(data))
	require.NoError(t, err)
	s := store.New(opts)
	require.NoError(t, s.Reset(snap))
	return s
}

func TestSnapshotRoundTrip(t *testing.T) {
	s := lived(t, store.DefaultOptions())
	data := written(t, s.View())
	r := restored(t, store.DefaultOptions(), data)

	want, got := s.View(), r.View()
	require.Equal(t, dump(want.All()), dump(got.All()))
	require.Equal(t, want.Revision(), got.Revision())
	require.Equal(t, want.Changed(), got.Changed())
	require.Equal(t, want.AccessRevision(), got.AccessRevision())
	require.Equal(t, want.Time(), got.Time())
	require.Equal(t, want.Epoch(), got.Epoch())
	require.Equal(t, want.DigestOf(nil), got.DigestOf(nil))
	require.Equal(t, want.Buckets(nil), got.Buckets(nil))
	require.Equal(t, want.Kinds(), got.Kinds())
	require.Equal(t, data, written(t, got), "the same bytes again")

	t.Run("the feed continues where it was", func(t *testing.T) {
		require.Equal(t, s.Oldest(), r.Oldest())
		for after := s.Oldest(); after <= want.Changed(); after++ {
			a, err := s.ViewAt(after)
			require.NoError(t, err)
			b, err := r.ViewAt(after)
			require.NoError(t, err)
			require.Equal(t, dump(a.All()), dump(b.All()), "at %d", after)
			require.Equal(t, a.AccessRevision(), b.AccessRevision())
			require.Equal(t, a.Epoch(), b.Epoch())
			require.Equal(t, a.Time(), b.Time())
			if after == want.Changed() {
				break
			}
			x, err := s.Next(t.Context(), after)
			require.NoError(t, err)
			y, err := r.Next(t.Context(), after)
			require.NoError(t, err)
			require.Equal(t, feedDump(x), feedDump(y), "after %d", after)
		}
	})
	t.Run("request ids are remembered", func(t *testing.T) {
		for _, id := range []string{"one", "two", "same", "last"} {
			a := s.Apply(s.Revision()+1, store.Txn{RequestID: id})
			b := r.Apply(r.Revision()+1, store.Txn{RequestID: id})
			require.True(t, b.Duplicate, id)
			require.Equal(t, a, b)
		}
	})
}

func feedDump(batches []store.Batch) []any {
	var out []any
	for _, b := range batches {
		out = append(out, b.Revision, b.Prev, b.Time, b.Epoch)
		for _, c := range b.Changes {
			out = append(out, c.Key(), dump(one(c.Before)), dump(one(c.After)))
		}
	}
	return out
}

func one(r *resource.Resource) func(func(*resource.Resource) bool) {
	return func(yield func(*resource.Resource) bool) {
		if r != nil {
			yield(r)
		}
	}
}

func TestSnapshotOfAPastView(t *testing.T) {
	s := lived(t, store.DefaultOptions())
	past, err := s.ViewAt(30)
	require.NoError(t, err)
	r := restored(t, store.DefaultOptions(), written(t, past))
	require.Equal(t, dump(past.All()), dump(r.View().All()))
	require.Equal(t, resource.Revision(30), r.Oldest(), "it has no history")
	require.False(t, r.Apply(31, store.Txn{RequestID: "one"}).Duplicate, "nor request ids")
}

func TestSnapshotMetadata(t *testing.T) {
	var buf bytes.Buffer
	about := map[string]string{"release": "1.2.3", "node": "n1"}
	require.NoError(t, lived(t, store.DefaultOptions()).View().WriteSnapshotWith(&buf, about))
	snap, err := store.ReadSnapshot(&buf)
	require.NoError(t, err)
	require.Equal(t, about, snap.Metadata)
}

func TestSnapshotHistoryIsBounded(t *testing.T) {
	opts := store.DefaultOptions()
	opts.History.SnapshotBytes = 10 << 10
	s := lived(t, opts)
	r := restored(t, opts, written(t, s.View()))
	require.Equal(t, dump(s.View().All()), dump(r.View().All()))
	require.Greater(t, r.Oldest(), s.Oldest())
	require.Less(t, r.Oldest(), s.View().Changed())
}

// Every bit counts: no single flipped bit, no cut and no addition goes
// unnoticed.
func TestSnapshotDamage(t *testing.T) {
	data := written(t, lived(t, store.DefaultOptions()).View())
	for i := range data {
		broken := bytes.Clone(data)
		broken[i] ^= 1 << (i % 8)
		_, err := store.ReadSnapshot(bytes.NewReader(broken))
		require.Error(t, err, "byte %d", i)
		require.True(t, errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrUnknownFormat), "byte %d: %v", i, err)

		_, err = store.ReadSnapshot(bytes.NewReader(data[:i]))
		require.ErrorIs(t, err, store.ErrCorrupt, "cut at %d", i)
	}
	_, err := store.ReadSnapshot(bytes.NewReader(append(bytes.Clone(data), 0)))
	require.ErrorIs(t, err, store.ErrCorrupt)
	_, err = store.ReadSnapshot(bytes.NewReader(append([]byte("MRDNSNP\x02"), data[8:]...)))
	require.ErrorIs(t, err, store.ErrUnknownFormat)
}

func TestSnapshotErrorsOfTheFile(t *testing.T) {
	failed := errors.New("disk on fire")
	s := lived(t, store.DefaultOptions())
	require.ErrorIs(t, s.WriteSnapshot(brokenFile{failed}), failed)
	_, err := store.ReadSnapshot(io.MultiReader(bytes.NewReader(written(t, s.View())[:40]), brokenFile{failed}))
	require.ErrorIs(t, err, failed)
}

type brokenFile struct{ err error }

func (f brokenFile) Write([]byte) (int, error) { return 0, f.err }
func (f brokenFile) Read([]byte) (int, error)  { return 0, f.err }

func TestResetRefusesContradictions(t *testing.T) {
	s := lived(t, store.DefaultOptions())
	before := s.View()
	for name, snap := range map[string]*store.Snapshot{
		"a key twice":           {Revision: 200, Resources: []*resource.Resource{mesh("a"), mesh("a")}},
		"changed in the future": {Revision: 200, Changed: 201},
	} {
		require.ErrorIs(t, s.Reset(snap), store.ErrCorrupt, name)
		require.Same(t, before, s.View(), name)
	}
}

// A snapshot that is ahead of the store, as a follower gets from a leader: the
// feed continues through its history, without a gap or a repetition.
func TestResetAheadKeepsReadersInPlace(t *testing.T) {
	leader := lived(t, store.DefaultOptions())
	follower := opened(t, store.DefaultOptions())
	feed := follower.Follow(follower.View())
	snap, err := store.ReadSnapshot(bytes.NewReader(written(t, leader.View())))
	require.NoError(t, err)
	require.NoError(t, follower.Reset(snap))

	got, err := feed.Next(t.Context())
	require.NoError(t, err)
	want, err := leader.Next(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, feedDump(want), feedDump(got))

	bare := *snap
	late := opened(t, store.DefaultOptions())
	feed = late.Follow(late.View())
	require.NoError(t, late.Reset(&store.Snapshot{Revision: bare.Revision, Resources: bare.Resources}))
	_, err = feed.Next(t.Context())
	require.ErrorIs(t, err, store.ErrCompacted, "a snapshot without history")
}

// What this release cannot decode is kept as it is and counts in the digest.
func TestUnreadableResourcesAreKept(t *testing.T) {
	future := thing(resource.Key{Kind: "KindOfALaterRelease", Name: "x"}, 1)
	s := store.New(store.DefaultOptions())
	require.NoError(t, s.Apply(1, puts(future)).Err)
	r := restored(t, store.DefaultOptions(), written(t, s.View()))
	require.Equal(t, s.View().DigestOf(nil), r.View().DigestOf(nil))
	kept := get(t, r.View(), future.Key())
	require.Equal(t, future.Canonical(), kept.Canonical())
	require.IsType(t, &store.Unreadable{}, kept.Spec())
	report := &resource.Report{}
	kept.Spec().Validate(resource.Root, report)
	require.True(t, report.Failed())
}

func FuzzReadSnapshot(f *testing.F) {
	f.Add(written(f, lived(f, store.DefaultOptions()).View()))
	f.Add(written(f, store.New(store.Options{}).View()))
	f.Add([]byte("MRDNSNP\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		snap, err := store.ReadSnapshot(bytes.NewReader(data))
		if err != nil {
			require.True(t, errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrUnknownFormat), "%v", err)
			return
		}
		s := store.New(store.DefaultOptions())
		if err := s.Reset(snap); err != nil {
			require.ErrorIs(t, err, store.ErrCorrupt)
			return
		}
		again := restored(t, store.DefaultOptions(), written(t, s.View()))
		require.Equal(t, dump(s.View().All()), dump(again.View().All()))
	})
}
