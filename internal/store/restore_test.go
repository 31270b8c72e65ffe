package store_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// next is the epoch that restored states begin.
var next = store.Epoch{ClusterID: "cluster", Incarnation: 3, Random: 77}

// backup is a lived store's state as a file.
func backup(t testing.TB) []byte {
	t.Helper()
	var buf bytes.Buffer
	require.NoError(t, lived(t, store.DefaultOptions()).View().WriteBackup(&buf, map[string]string{"server": "n1"}))
	return buf.Bytes()
}

// parts are the commands that restore a backup onto s, as the log brings them.
func parts(t testing.TB, s *store.Store, file []byte, epoch store.Epoch) []store.Txn {
	t.Helper()
	snap, err := store.ReadSnapshot(bytes.NewReader(file))
	require.NoError(t, err)
	var txns []store.Txn
	for _, p := range snap.Parts(s.View().Epoch(), epoch, 200) {
		data, err := store.EncodeCommand(store.Txn{Time: clock(50), Restore: &p})
		require.NoError(t, err)
		txn, err := store.DecodeCommand(data)
		require.NoError(t, err)
		txns = append(txns, txn)
	}
	require.Greater(t, len(txns), 2, "a restore of several parts")
	return txns
}

// other is a store with a life of its own.
func other(t testing.TB) *store.Store {
	t.Helper()
	s := opened(t, store.DefaultOptions())
	s.Apply(2, store.Txn{SetEpoch: &store.Epoch{ClusterID: "other", Incarnation: 1, Random: 5}, Time: clock(1)})
	txn := puts(retry("own", 1), retry("a", 9))
	txn.RequestID, txn.Time = "mine", clock(2)
	require.NoError(t, s.Apply(3, txn).Err)
	return s
}

func TestRestoreReplacesEverythingAtOnce(t *testing.T) {
	source := lived(t, store.DefaultOptions()).View()
	s := other(t)
	before := dump(s.View().All())
	txns := parts(t, s, backup(t), next)
	rev := s.Revision()
	for i, txn := range txns {
		require.Equal(t, before, dump(s.View().All()), "nothing shows before the last part")
		require.Equal(t, i > 0, s.Restoring())
		rev++
		result := s.Apply(rev, txn)
		require.NoError(t, result.Err)
		require.Equal(t, rev, s.Revision())
	}
	require.False(t, s.Restoring())

	v := s.View()
	require.Equal(t, next, v.Epoch())
	require.Equal(t, rev, v.Changed())
	require.Equal(t, rev, v.AccessRevision(), "a write that was decided on the previous rules is refused")
	require.True(t, v.Time().After(source.Time()))
	require.Equal(t, source.Len(), v.Len())
	for r := range source.All() {
		got := get(t, v, r.Key())
		want := r.Meta()
		want.Revision = min(want.Revision, rev) // revisions of this history are still to come
		require.Equal(t, want, got.Meta())
		require.Equal(t, r.Canonical(), got.Canonical())
	}
	require.Equal(t, rev, s.Oldest(), "the history of before is over")
	require.True(t, s.Apply(rev+1, store.Txn{RequestID: "mine", Time: clock(60)}).Duplicate, "request ids stay")
	require.False(t, s.Apply(rev+2, store.Txn{RequestID: "one", Time: clock(60)}).Duplicate, "and the backup's")
}

// The state of a cluster goes back into it: nothing gets another revision, so
// that zones that hold it are sent only what differs.
func TestRestoreKeepsRevisions(t *testing.T) {
	s := lived(t, store.DefaultOptions())
	saved := s.View()
	var file bytes.Buffer
	require.NoError(t, saved.WriteBackup(&file, nil))
	s.Apply(200, puts(retry("late", 1)))
	rev := resource.Revision(200)
	for _, txn := range parts(t, s, file.Bytes(), next) {
		rev++
		require.NoError(t, s.Apply(rev, txn).Err)
	}
	require.Equal(t, saved.DigestOf(nil), s.View().DigestOf(nil))
	require.Equal(t, dump(saved.All()), dump(s.View().All()))
}

// Whatever comes between two parts ends the restore without an effect; the whole
// can be tried again.
func TestInterruptedRestoreHasNoEffect(t *testing.T) {
	file := backup(t)
	for name, between := range map[string]func(t *testing.T, s *store.Store){
		"a write": func(t *testing.T, s *store.Store) { require.NoError(t, s.Apply(10, puts(retry("x", 1))).Err) },
		"an epoch": func(t *testing.T, s *store.Store) {
			require.NoError(t, s.Apply(10, store.Txn{SetEpoch: &store.Epoch{ClusterID: "third"}}).Err)
		},
		"its end": func(t *testing.T, s *store.Store) {
			require.Error(t, s.Apply(10, store.Txn{Time: clock(3), Restore: store.Abandon()}).Err)
		},
		"a part of another": func(t *testing.T, s *store.Store) {
			foreign := next
			foreign.Random++
			require.Error(t, s.Apply(10, parts(t, s, file, foreign)[1]).Err)
		},
		"a part twice": func(t *testing.T, s *store.Store) {
			txns := parts(t, s, file, next)
			require.NoError(t, s.Apply(9, txns[1]).Err)
			require.Error(t, s.Apply(10, txns[1]).Err)
		},
		"a snapshot of the leader": func(t *testing.T, s *store.Store) {
			snap, err := store.ReadSnapshot(bytes.NewReader(written(t, s.View())))
			require.NoError(t, err)
			require.NoError(t, s.Reset(snap))
			s.Advance(10)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := other(t)
			txns := parts(t, s, file, next)
			require.NoError(t, s.Apply(8, txns[0]).Err)
			between(t, s)
			require.False(t, s.Restoring())
			before, epoch := dump(s.View().All()), s.View().Epoch()
			if name == "an epoch" {
				txns = parts(t, s, file, next) // of this one from now on
			}
			for i, txn := range txns[1:] {
				var refused *store.RestoreError
				require.ErrorAs(t, s.Apply(resource.Revision(11+i), txn).Err, &refused)
			}
			require.Equal(t, before, dump(s.View().All()))
			require.Equal(t, epoch, s.View().Epoch())

			for i, txn := range txns {
				require.NoError(t, s.Apply(resource.Revision(30+i), txn).Err)
			}
			require.Equal(t, next, s.View().Epoch())
		})
	}
}

// What changes nothing may stand between two parts: a change of membership, the
// empty batch of a new leader, a write without effect, or one that is refused.
func TestNothingDoesNotInterruptARestore(t *testing.T) {
	for name, between := range map[string]func(s *store.Store, rev resource.Revision){
		"membership":             func(s *store.Store, rev resource.Revision) { s.Advance(rev) },
		"an empty batch":         func(s *store.Store, rev resource.Revision) { s.Apply(rev, store.Txn{Time: clock(3)}) },
		"a write without effect": func(s *store.Store, rev resource.Revision) { s.Apply(rev, puts(retry("own", 1))) },
		"a refused write":        func(s *store.Store, rev resource.Revision) { s.Apply(rev, puts(retry("x", 1), retry("x", 2))) },
	} {
		t.Run(name, func(t *testing.T) {
			s := other(t)
			txns := parts(t, s, backup(t), next)
			for i, txn := range txns {
				require.NoError(t, s.Apply(resource.Revision(10+2*i), txn).Err)
				if i < len(txns)-1 {
					between(s, resource.Revision(11+2*i))
					applied, ok := s.RestoringParts(next.Random)
					require.True(t, ok)
					require.Equal(t, i+1, applied)
				}
			}
			require.Equal(t, next, s.View().Epoch())
			require.False(t, s.Restoring())
		})
	}
}

func TestRestoreRefusesContradictions(t *testing.T) {
	for name, spoil := range map[string]func(*store.Txn){
		"another history":   func(txn *store.Txn) { txn.Restore.End.Replaces.Incarnation++ },
		"a resource less":   func(txn *store.Txn) { txn.Restore.End.Resources++ },
		"another digest":    func(txn *store.Txn) { txn.Restore.End.Digest.Lo++ },
		"a key twice":       func(txn *store.Txn) { twice(txn, retry("twice", 1)) },
		"a resource missed": func(txn *store.Txn) { txn.Restore.Resources = nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := other(t)
			before := dump(s.View().All())
			txns := parts(t, s, backup(t), next)
			spoil(&txns[len(txns)-1])
			var err error
			for i, txn := range txns {
				require.NoError(t, err)
				err = s.Apply(resource.Revision(10+i), txn).Err
			}
			var refused *store.RestoreError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, before, dump(s.View().All()))
			require.False(t, s.Restoring())
		})
	}
}

// twice adds two resources of one key, and makes the announcement fit.
func twice(txn *store.Txn, r *resource.Resource) {
	end := txn.Restore.End
	for range 2 {
		txn.Restore.Resources = append(txn.Restore.Resources, r)
		end.Resources++
		end.Digest = end.Digest.Add(store.Sum(r))
	}
}

// Every reader of the feed is interrupted, whether it waits for the next batch or
// reads later.
func TestRestoreEndsEveryFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := other(t)
		waiting, late := s.Follow(s.View()), s.Follow(s.View())
		ended := make(chan error, 2)
		go func() {
			_, err := waiting.Next(t.Context())
			ended <- err
		}()
		seen := s.View()
		go func() {
			_, err := s.Next(t.Context(), seen.Revision())
			ended <- err
		}()
		synctest.Wait()
		for i, txn := range parts(t, s, backup(t), next) {
			require.NoError(t, s.Apply(resource.Revision(10+i), txn).Err)
		}
		require.ErrorIs(t, <-ended, store.ErrCompacted)
		require.ErrorIs(t, <-ended, store.ErrCompacted)
		_, err := late.Next(t.Context())
		require.ErrorIs(t, err, store.ErrCompacted)
		_, err = s.ViewAt(seen.Revision())
		require.ErrorIs(t, err, store.ErrCompacted)
	})
}

func TestBackupHoldsTheStateAlone(t *testing.T) {
	v := lived(t, store.DefaultOptions()).View()
	r := restored(t, store.DefaultOptions(), backup(t))
	require.Equal(t, dump(v.All()), dump(r.View().All()))
	require.Equal(t, v.Changed(), r.Oldest(), "no history")
	require.False(t, r.Apply(r.Revision()+1, store.Txn{RequestID: "one", Time: clock(90)}).Duplicate, "no request ids")
}

func TestSummary(t *testing.T) {
	file := backup(t)
	v := lived(t, store.DefaultOptions()).View()
	snap, err := store.ReadSnapshot(bytes.NewReader(file))
	require.NoError(t, err)
	s := snap.Summary()
	require.Equal(t, v.Revision(), s.Revision)
	require.Equal(t, v.Epoch(), s.Epoch)
	require.Equal(t, v.DigestOf(nil), s.Digest)
	require.Equal(t, map[string]string{"server": "n1"}, s.Metadata)
	require.Equal(t, int64(len(file)), s.Bytes)
	require.Equal(t, 5, s.Resources)
	require.Equal(t, 4, s.Unreadable, "the content is not what those kinds hold")
	require.Equal(t, []store.Count{
		{Kind: "AccessRole", Count: 1}, {Kind: "Mesh", Count: 1}, {Kind: "Retry", Mesh: "default", Count: 3},
	}, s.Counts)
}

// Await notices a store that was rewound, however far, where waiting for the
// next revision would not.
func TestAwaitNoticesARewoundStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lived(t, store.DefaultOptions())
		seen := s.View()
		noticed := make(chan *store.View)
		go func() {
			v, _ := s.Await(t.Context(), seen)
			noticed <- v
		}()
		synctest.Wait()
		require.NoError(t, s.Reset(&store.Snapshot{Revision: 2, Resources: []*resource.Resource{mesh("default")}}))
		require.Equal(t, resource.Revision(2), (<-noticed).Revision())

		gone, cancel := context.WithCancelCause(t.Context())
		stopped := errors.New("stopped")
		cancel(stopped)
		_, err := s.Await(gone, s.View())
		require.ErrorIs(t, err, stopped)
		time.AfterFunc(time.Second, func() { s.Advance(3) })
		v, err := s.Await(t.Context(), s.View())
		require.NoError(t, err)
		require.Equal(t, resource.Revision(3), v.Revision())
	})
}
