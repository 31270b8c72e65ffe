package store_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// keeping is the entry that has contents kept.
func keeping(r store.Retention) store.Txn { return store.Txn{Retention: &r} }

// restarted returns a store that begins with a snapshot of another one, and otherwise
// keeps less in memory than that.
func restarted(t require.TestingT, s *store.Store) *store.Store {
	var file bytes.Buffer
	require.NoError(t, s.WriteSnapshot(&file))
	snap, err := store.ReadSnapshot(&file)
	require.NoError(t, err)
	opts := store.DefaultOptions()
	opts.History = store.History{MaxBatches: 2}
	fresh := store.New(opts)
	require.NoError(t, fresh.Reset(snap))
	return fresh
}

// contents is a state without what depends on when it was written.
func contents(r store.Reader) []string {
	var lines []string
	for _, kind := range resource.Kinds() {
		for res := range r.List(kind.Kind, "") {
			got, ok := r.Get(res.Key())
			if !ok || !bytes.Equal(got.Canonical(), res.Canonical()) {
				lines = append(lines, "Get and List disagree on "+res.Key().String())
			}
			m := res.Meta()
			lines = append(lines, fmt.Sprintf("%s %v v%d r%d %s %s", m.Key, m.Labels, m.Version, m.Revision, m.ModificationTime.Format(time.RFC3339Nano), res.Canonical()))
		}
	}
	return lines
}

// TestContentsOfOldRevisions: on random histories, every server has the same contents of
// old revisions, whatever it keeps in memory and however often it starts from a snapshot:
// all that the bounds ask for, equal to what was stored then (§7.2).
func TestContentsOfOldRevisions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := store.DefaultOptions()
		small.History = store.History{MaxBatches: 1}
		servers := []*store.Store{store.New(store.DefaultOptions()), store.New(small), store.New(store.DefaultOptions())}
		retention := store.Retention{
			Batches: rapid.IntRange(0, 12).Draw(t, "batches"),
			Bytes:   rapid.Int64Range(1, 8<<10).Draw(t, "bytes"),
			Age:     time.Duration(rapid.IntRange(0, 4).Draw(t, "age")) * time.Second,
		}
		states := map[resource.Revision][]string{} // by revision, what was there
		edits := map[resource.Key][]string{}
		begun := resource.Revision(rapid.IntRange(2, 6).Draw(t, "begun"))
		last := begun + 30
		for rev := resource.Revision(1); rev <= last; rev++ {
			txn := genTxn(t)
			txn.Note = fmt.Appendf(nil, "note %d", rev)
			switch rev {
			case 1:
				txn = puts(mesh("a"))
			case begun:
				txn = keeping(retention)
			}
			for i, s := range servers {
				result := s.Apply(rev, txn)
				if i == 0 && result.Err == nil && result.Revision == rev && rev > begun {
					for _, r := range result.Results {
						if r.Outcome != store.Unchanged && r.Outcome != store.Missing {
							edits[r.Key] = append(edits[r.Key], fmt.Sprintf("%d v%d %s note %d", rev, r.Version, r.Outcome, rev))
						}
					}
				}
			}
			states[rev] = contents(servers[0].View())
			if rapid.IntRange(0, 4).Draw(t, "restart") == 0 {
				servers[2] = restarted(t, servers[2])
			}
		}
		servers = append(servers, restarted(t, servers[1]))
		oldest := servers[0].OldestState()
		for _, s := range servers {
			require.Equal(t, oldest, s.OldestState())
			require.Equal(t, retention, s.Retention())
			batches, bytes := s.PastSize()
			require.LessOrEqual(t, bytes, retention.Bytes)
			if retention.Batches > 0 {
				require.LessOrEqual(t, batches, retention.Batches)
			}
			for rev := resource.Revision(1); rev <= last; rev++ {
				past, err := s.StateAt(rev)
				if rev < oldest {
					var compacted *store.CompactedError
					require.ErrorAs(t, err, &compacted)
					require.ErrorIs(t, err, store.ErrCompacted)
					require.Equal(t, oldest, compacted.Oldest)
					continue
				}
				require.NoError(t, err)
				require.Equal(t, rev, past.Revision())
				require.Equal(t, states[rev], contents(past), "revision %d", rev)
				requireBeside(t, past, s.View())
			}
			_, err := s.StateAt(last + 1)
			require.ErrorIs(t, err, store.ErrFuture)
			for key, want := range edits {
				var got []string
				for e := range s.View().Edits(key) {
					got = append(got, fmt.Sprintf("%d v%d %s %s", e.Revision, e.Version, e.Outcome, e.Note))
					at, err := s.StateAt(e.Revision)
					require.NoError(t, err)
					r, ok := at.Get(key)
					require.Equal(t, ok, e.After != nil)
					if ok {
						require.Equal(t, r.Canonical(), e.After.Canonical())
					}
				}
				slices.Reverse(got)
				kept := slices.IndexFunc(want, func(line string) bool {
					var rev int
					_, _ = fmt.Sscanf(line, "%d", &rev)
					return resource.Revision(rev) > oldest
				})
				if kept < 0 {
					kept = len(want)
				}
				require.Equal(t, want[kept:], append([]string{}, got...), "%s", key)
				before, err := s.StateAt(oldest)
				require.NoError(t, err)
				was, ok := before.Get(key)
				unedited := s.View().Unedited(key)
				require.Equal(t, ok, unedited != nil)
				if ok {
					require.Equal(t, was.Canonical(), unedited.Canonical())
				}
			}
		}
	})
}

// TestContentsAreBounded: each bound alone drops the oldest first, smaller bounds at
// once, and none at all ends it.
func TestContentsAreBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		retention store.Retention
		oldest    resource.Revision
	}{
		"by count":    {store.Retention{Batches: 3, Bytes: 1 << 20}, 7},
		"by age":      {store.Retention{Bytes: 1 << 20, Age: 4 * time.Second}, 5},
		"by bytes":    {store.Retention{Bytes: 1200}, 8},
		"by nothing":  {store.Retention{Bytes: 1 << 20}, 1},
		"one too big": {store.Retention{Bytes: 1}, 10},
	} {
		t.Run(name, func(t *testing.T) {
			write := func(s *store.Store) {
				for n := 3; n <= 10; n++ {
					txn := puts(retry("a", n))
					txn.Time = clock(n)
					require.NoError(t, s.Apply(resource.Revision(n), txn).Err)
				}
			}
			s := opened(t, store.DefaultOptions())
			require.NoError(t, s.Apply(2, keeping(tc.retention)).Err)
			write(s)
			require.Equal(t, tc.oldest, s.OldestState())

			later := opened(t, store.DefaultOptions())
			require.NoError(t, later.Apply(2, keeping(store.Retention{Bytes: 1 << 20})).Err)
			write(later)
			require.Equal(t, resource.Revision(1), later.OldestState())
			require.NoError(t, later.Apply(11, keeping(tc.retention)).Err)
			require.Equal(t, tc.oldest, later.OldestState(), "smaller bounds hold at once")
			require.NoError(t, later.Apply(12, keeping(store.Retention{})).Err)
			require.Zero(t, later.Retention())
			require.Empty(t, slices.Collect(later.View().Edits(retryKey("default", "a"))))
		})
	}
}

// TestRevisionAt: a time means what was stored then.
func TestRevisionAt(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	require.NoError(t, s.Apply(2, keeping(store.Retention{Bytes: 1 << 20, Batches: 2})).Err)
	for n := 3; n <= 6; n++ {
		txn := puts(retry("a", n))
		txn.Time = clock(10 * n)
		require.NoError(t, s.Apply(resource.Revision(n), txn).Err)
	}
	for _, at := range []struct {
		time time.Time
		want resource.Revision
	}{{clock(60), 6}, {clock(1000), 6}, {clock(59), 5}, {clock(50), 5}, {clock(49), 4}, {clock(40), 4}} {
		for _, s := range []*store.Store{s, restarted(t, s)} {
			got, err := s.RevisionAt(at.time)
			require.NoError(t, err)
			require.Equal(t, at.want, got)
		}
	}
	var compacted *store.CompactedError
	_, err := s.RevisionAt(clock(39))
	require.ErrorAs(t, err, &compacted)
	require.Equal(t, resource.Revision(4), compacted.Oldest)
}

// TestSecretsLeaveNoContents: what a secret or a signing key was is in no snapshot and no
// state of the past, and that it was written still is (§6.1).
func TestSecretsLeaveNoContents(t *testing.T) {
	key := resource.Key{Kind: resource.KindGlobalSecret, Name: "password"}
	signing := resource.Key{Kind: resource.KindSigningKey, Name: "user-1"}
	secret := func(text string, key resource.Key) *resource.Resource {
		return resource.New(resource.Meta{Key: key, Labels: map[string]string{"hint": text}}, nil, []byte(`{"data":"`+text+`"}`))
	}
	opts := store.DefaultOptions()
	opts.History.MaxBatches = 1
	s := opened(t, opts)
	require.NoError(t, s.Apply(2, keeping(store.DefaultRetention())).Err)
	for i, text := range []string{"swordfish", "opensesame"} {
		require.NoError(t, s.Apply(resource.Revision(3+i), puts(secret(text, key), secret(text, signing))).Err)
	}
	require.NoError(t, s.Apply(5, deletes(key, signing)).Err)
	require.NoError(t, s.Apply(6, puts(retry("a", 1))).Err)
	require.NoError(t, s.Apply(7, puts(retry("a", 2))).Err)
	fresh := restarted(t, s)
	var file bytes.Buffer
	require.NoError(t, fresh.WriteSnapshot(&file))
	require.NotContains(t, file.String(), "swordfish")
	require.NotContains(t, file.String(), "opensesame")
	for _, key := range []resource.Key{key, signing} {
		for rev := resource.Revision(1); rev <= 7; rev++ {
			past, err := s.StateAt(rev)
			require.NoError(t, err)
			_, ok := past.Get(key)
			require.False(t, ok)
			require.Empty(t, slices.Collect(past.List(key.Kind, "")))
		}
		var outcomes []store.Outcome
		for e := range fresh.View().Edits(key) {
			outcomes = append(outcomes, e.Outcome)
		}
		require.Equal(t, []store.Outcome{store.Deleted, store.Updated, store.Created}, outcomes)
	}
}

// TestContentsOverARestore: a restored backup is a batch like any other to the history,
// so that what it replaced can be read.
func TestContentsOverARestore(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	require.NoError(t, s.Apply(2, keeping(store.DefaultRetention())).Err)
	require.NoError(t, s.Apply(3, puts(retry("a", 1))).Err)
	var file bytes.Buffer
	require.NoError(t, s.View().WriteBackup(&file, nil))
	backup, err := store.ReadSnapshot(&file)
	require.NoError(t, err)
	require.NoError(t, s.Apply(4, puts(retry("a", 2), retry("b", 2))).Err)
	before := contents(s.View())
	rev := resource.Revision(5)
	for _, part := range backup.Parts(s.View().Epoch(), store.Epoch{ClusterID: "c", Incarnation: 2, Random: 7}, 1<<20) {
		require.NoError(t, s.Apply(rev, store.Txn{Restore: &part}).Err)
		rev++
	}
	require.NotEqual(t, before, contents(s.View()))
	for _, s := range []*store.Store{s, restarted(t, s)} {
		past, err := s.StateAt(4)
		require.NoError(t, err)
		require.Equal(t, before, contents(past))
		require.Zero(t, past.Epoch())
		var outcomes []store.Outcome
		for e := range s.View().Edits(retryKey("default", "b")) {
			outcomes = append(outcomes, e.Outcome)
		}
		require.Equal(t, []store.Outcome{store.Deleted, store.Created}, outcomes)
	}
}

// TestSnapshotsWithoutContents: one of a release that kept none is read, and one with
// damaged contents is not.
func TestSnapshotsWithoutContents(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	require.NoError(t, s.Apply(2, puts(retry("a", 1))).Err)
	fresh := restarted(t, s)
	require.Zero(t, fresh.Retention())
	require.NoError(t, fresh.Apply(3, keeping(store.DefaultRetention())).Err)
	require.NoError(t, fresh.Apply(4, puts(retry("a", 2))).Err)
	require.Equal(t, resource.Revision(2), fresh.OldestState(), "the history begins with the entry that asks for it")

	var file bytes.Buffer
	require.NoError(t, fresh.WriteSnapshot(&file))
	for cut := range file.Len() {
		_, err := store.ReadSnapshot(bytes.NewReader(file.Bytes()[:cut]))
		require.ErrorIs(t, err, store.ErrCorrupt, "cut after %d bytes", cut)
	}
}

// requireBeside: a list of an earlier state from any of its keys on has what both states
// hold under each of its keys, in order.
func requireBeside(t require.TestingT, past *store.Past, now *store.View) {
	for _, d := range resource.Kinds() {
		keys := []resource.Key{{Kind: d.Kind}}
		for r := range past.List(d.Kind, "") {
			keys = append(keys, r.Key())
		}
		for i, first := range keys {
			listed := []resource.Key{}
			for then, beside := range past.ListBeside(now, first, "") {
				was, ok := past.Get(then.Key())
				require.True(t, ok)
				require.Equal(t, was.Meta(), then.Meta())
				is, ok := now.Get(then.Key())
				require.Equal(t, ok, beside != nil)
				require.True(t, is == beside, "what is stored now") //nolint:testifylint // the same, also nil
				listed = append(listed, then.Key())
			}
			require.Equal(t, append([]resource.Key{}, keys[max(i, 1):]...), listed)
		}
	}
}
