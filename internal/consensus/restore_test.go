package consensus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// saved is the node's state as a file.
func saved(t testing.TB, n *Node) []byte {
	t.Helper()
	var file bytes.Buffer
	revision, err := n.SaveBackup(t.Context(), &file, false)
	require.NoError(t, err)
	require.Equal(t, n.st.Revision(), revision)
	return file.Bytes()
}

// bulk is a batch of some kilobytes, so that its backup has several parts.
func bulk(content int) store.Txn {
	txn := store.Txn{}
	for i := range 1500 {
		txn.Ops = append(txn.Ops, store.Put(resource.New(
			resource.Meta{Key: key(fmt.Sprintf("bulk-%04d", i))}, nil,
			fmt.Appendf(nil, `{"data":"%d%s"}`, content, bytes.Repeat([]byte("x"), 512)),
		)))
	}
	return txn
}

func dumpOf(v *store.View) map[resource.Key]string {
	out := map[resource.Key]string{}
	for r := range v.All() {
		m := r.Meta()
		out[m.Key] = fmt.Sprint(m.Version, m.Revision, m.CreationTime, m.ModificationTime, string(r.Canonical()))
	}
	return out
}

func TestRestoreBringsBackWhatWasSaved(t *testing.T) {
	cfg := testConfig(t.TempDir())
	n, st := open(t, cfg)
	_, err := n.proposer.Propose(t.Context(), bulk(1))
	require.NoError(t, err)
	request := store.Txn{RequestID: "r1", Ops: []store.Op{put("k", 1)}}
	_, err = n.proposer.Propose(t.Context(), request)
	require.NoError(t, err)
	before, file := st.View(), saved(t, n)
	propose(t, n, put("k", 2), put("late", 1))

	got, err := n.restorer.Restore(t.Context(), bytes.NewReader(file), false)
	require.NoError(t, err)
	view := st.View()
	require.Equal(t, dumpOf(before), dumpOf(view), "with the versions and times of then")
	require.Equal(t, Restored{Saved: before.Revision(), Revision: view.Revision(), Epoch: view.Epoch(), Resources: before.Len()}, got)
	require.Equal(t, before.Epoch().ClusterID, view.Epoch().ClusterID)
	require.Equal(t, before.Epoch().Incarnation+1, view.Epoch().Incarnation)
	require.NotEqual(t, before.Epoch().Random, view.Epoch().Random)
	require.EqualValues(t, n.Status().Last, view.Revision(), "the revision is the raft index")

	// Writes continue; a request of the history before is not made again.
	again, err := n.proposer.Propose(t.Context(), request)
	require.NoError(t, err)
	require.True(t, again.Duplicate)
	propose(t, n, put("k", 3))
	after := st.View()
	require.NoError(t, n.Close())

	for _, snapshot := range []bool{true, false} {
		n, st = open(t, cfg)
		require.Equal(t, dumpOf(after), dumpOf(st.View()), "after a restart, from the log and from a snapshot")
		require.Equal(t, after.Epoch(), st.View().Epoch())
		if snapshot {
			require.NoError(t, n.Snapshot())
		}
		require.NoError(t, n.Close())
	}
}

// What was decided on the state of before is not written on the restored one:
// not by the rules of then, not over a resource as it was then.
func TestRestoreRefusesOldDecisions(t *testing.T) {
	n, st := open(t, testConfig(t.TempDir()))
	propose(t, n, put("k", 1))
	file := saved(t, n)
	propose(t, n, put("k", 2))
	decidedOn := st.View()
	stale, _ := decidedOn.Get(key("k"))
	_, err := n.restorer.Restore(t.Context(), bytes.NewReader(file), false)
	require.NoError(t, err)

	rules := decidedOn.AccessRevision()
	_, err = n.proposer.Propose(t.Context(), store.Txn{Ops: []store.Op{put("k", 3)}, AccessRevision: &rules})
	var changed *store.AccessChangedError
	require.ErrorAs(t, err, &changed)
	_, err = n.proposer.Propose(t.Context(), store.Txn{Ops: []store.Op{put("k", 3)}, Preconditions: []store.Precondition{{
		Key: key("k"), Version: stale.Meta().Version, Revision: stale.Meta().Revision,
	}}})
	var conflict *store.ConflictError
	require.ErrorAs(t, err, &conflict)
}

// A damaged or foreign file is refused before anything is written, wherever the
// damage is.
func TestRestoreVerifiesFirst(t *testing.T) {
	n, st := open(t, testConfig(t.TempDir()))
	propose(t, n, put("a", 1), put("b", 2))
	file := saved(t, n)
	before, last := st.View(), n.Status().Last
	refused := func(data []byte, why string, args ...any) {
		t.Helper()
		_, err := n.restorer.Restore(t.Context(), bytes.NewReader(data), false)
		require.ErrorIs(t, err, ErrBadBackup, append([]any{why}, args...)...)
	}
	for i := range file {
		damaged := bytes.Clone(file)
		damaged[i] ^= 1 << (i % 8)
		refused(damaged, "byte %d", i)
	}
	for i := 0; i < len(file); i += 7 {
		refused(file[:i], "cut at %d", i)
	}
	refused(append(bytes.Clone(file), 0), "something follows")
	refused([]byte("name: not a backup\n"), "another file")
	newer := bytes.Clone(file)
	newer[7]++
	_, err := n.restorer.Restore(t.Context(), bytes.NewReader(newer), false)
	require.ErrorIs(t, err, store.ErrUnknownFormat)
	broken := errors.New("the client went away")
	_, err = n.restorer.Restore(t.Context(), io.MultiReader(bytes.NewReader(file[:len(file)/2]), iotest.ErrReader(broken)), false)
	require.ErrorIs(t, err, ErrNotRestored)
	require.ErrorContains(t, err, broken.Error())

	require.Same(t, before, st.View(), "nothing was applied")
	require.Equal(t, last, n.Status().Last, "and nothing logged")
}

// A cluster with nothing of its own becomes the one that was saved; any other
// keeps its name. The incarnation is higher than both in any case.
func TestRestoreIdentity(t *testing.T) {
	source, sourceStore := open(t, testConfig(t.TempDir()))
	fill(t, source, 1, 40)
	file := saved(t, source)
	_, err := source.Restore(t.Context(), bytes.NewReader(file), false)
	require.NoError(t, err)
	file = saved(t, source) // incarnation 2
	for name, test := range map[string]struct {
		fresh   func(*store.View) bool
		adopted bool
	}{
		"fresh":     {func(v *store.View) bool { return v.Len() == 0 }, true},
		"not fresh": {func(v *store.View) bool { return v.Len() > 0 }, false},
		"unasked":   {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t.TempDir())
			cfg.Fresh = test.fresh
			n, st := open(t, cfg)
			own := st.View().Epoch()
			got, err := n.restorer.Restore(t.Context(), bytes.NewReader(file), false)
			require.NoError(t, err)
			require.EqualValues(t, 3, got.Epoch.Incarnation)
			if test.adopted {
				require.Equal(t, sourceStore.View().Epoch().ClusterID, got.Epoch.ClusterID)
			} else {
				require.Equal(t, own.ClusterID, got.Epoch.ClusterID)
			}
			// Its own log is shorter than the saved one was.
			require.Less(t, got.Revision, got.Saved)
			value, _ := stored(t, st.View(), "k")
			require.Equal(t, 40, value)
			propose(t, n, put("k", 41))
			require.NoError(t, n.Snapshot())
			require.NoError(t, n.Close())
			_, st = open(t, cfg)
			value, _ = stored(t, st.View(), "k")
			require.Equal(t, 41, value)
			require.Equal(t, got.Epoch, st.View().Epoch())
		})
	}
}

// Writes that are made while a backup is restored come before it or after it:
// an acknowledgement after it stands for something that is there.
func TestWritesDuringARestore(t *testing.T) {
	n, st := open(t, testConfig(t.TempDir()))
	_, err := n.proposer.Propose(t.Context(), bulk(1))
	require.NoError(t, err)
	file := saved(t, n)
	const writers = 8
	ctx, stop := context.WithCancel(context.Background())
	last := make([]store.Result, writers)
	errs := make(chan error, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := 1; ctx.Err() == nil; i++ {
				result, err := n.proposer.Propose(context.Background(), store.Txn{Ops: []store.Op{put(fmt.Sprint("w", w), i)}})
				if err != nil {
					errs <- err
					return
				}
				last[w] = result
			}
		})
	}
	var restored [3]Restored
	for i := range restored {
		restored[i], err = n.restorer.Restore(t.Context(), bytes.NewReader(file), false)
		require.NoError(t, err)
	}
	stop()
	wg.Wait()
	close(errs)
	require.NoError(t, <-errs)
	view := st.View()
	require.Equal(t, restored[2].Epoch, view.Epoch())
	require.EqualValues(t, 4, view.Epoch().Incarnation)
	for w, result := range last {
		r, there := view.Get(key(fmt.Sprint("w", w)))
		require.Equal(t, result.Revision > restored[2].Revision, there)
		if there {
			require.Equal(t, result.Revision, r.Meta().Revision)
		}
	}
}

// A restore that is given up leaves the state as it was, and the log can be cut
// again.
func TestRestoreGivenUpHasNoEffect(t *testing.T) {
	n, st := open(t, testConfig(t.TempDir()))
	_, err := n.proposer.Propose(t.Context(), bulk(1))
	require.NoError(t, err)
	snap, err := store.ReadSnapshot(bytes.NewReader(saved(t, n)))
	require.NoError(t, err)
	propose(t, n, put("k", 1))
	before := dumpOf(st.View())
	parts := snap.Parts(st.View().Epoch(), store.Epoch{ClusterID: "c", Incarnation: 2, Random: 9}, defaultRestorePart)
	require.Greater(t, len(parts), 2)

	// Without its end, as a leader leaves it that falls.
	for i := range parts[:len(parts)-1] {
		_, err := n.proposer.Propose(t.Context(), store.Txn{Restore: &parts[i]})
		require.NoError(t, err)
	}
	require.ErrorContains(t, n.Snapshot(), errRestoring.Error(), "a snapshot would lack the parts")
	require.Equal(t, before, dumpOf(st.View()))

	// Ended by its caller.
	ctx, cancel := context.WithCancelCause(context.Background())
	gone := errors.New("the caller went away")
	cancel(gone)
	_, err = n.restorer.proposeParts(ctx, parts)
	require.ErrorIs(t, err, ErrNotRestored)
	require.ErrorContains(t, err, "went away")
	_, err = n.reader.Read(t.Context())
	require.NoError(t, err)
	// The end of the restore is written on the side.
	require.Eventually(t, func() bool { return n.Snapshot() == nil }, time.Minute, 10*time.Millisecond)
	require.Equal(t, before, dumpOf(st.View()))
	require.EqualValues(t, 1, st.View().Epoch().Incarnation)
}

// TestRestoreBesideEmptyBatches: a leader writes an empty batch whenever a server
// that was removed asks to be taken in, which a restart makes it do, for ever. The
// parts of a restore are not interrupted by it.
func TestRestoreBesideEmptyBatches(t *testing.T) {
	n, st := open(t, testConfig(t.TempDir()))
	n.restorer.restorePart = 200
	for i := range 200 {
		propose(t, n, put(fmt.Sprintf("k%d", i), i))
	}
	want, file := dumpOf(st.View()), saved(t, n)
	propose(t, n, put("k1", 9))
	done := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				assert.NoError(t, n.proposeEmpty())
			}
		}
	})
	_, err := n.restorer.Restore(t.Context(), bytes.NewReader(file), false)
	close(done)
	asking.Wait()
	require.NoError(t, err)
	require.Equal(t, want, dumpOf(st.View()))
}

// TestNewLeaderEndsARestore: parts that a leader has left behind do not hold up
// snapshots after the next one took over.
func TestNewLeaderEndsARestore(t *testing.T) {
	cfg := testConfig(t.TempDir())
	n, st := open(t, cfg)
	propose(t, n, put("k", 1))
	parts := (&store.Snapshot{}).Parts(st.View().Epoch(), store.Epoch{ClusterID: "x", Incarnation: 5, Random: 7}, 10)
	parts[0].End = nil
	_, err := n.proposer.Propose(t.Context(), store.Txn{Restore: &parts[0]})
	require.NoError(t, err)
	require.True(t, st.Restoring())
	require.NoError(t, n.Close())
	n, st = open(t, cfg)
	require.False(t, st.Restoring())
	require.NoError(t, n.Snapshot())
}

func TestStaleBackupNeedsNoLeader(t *testing.T) {
	n, st := open(t, testConfig(t.TempDir()))
	propose(t, n, put("k", 1))
	require.NoError(t, n.Close())
	_, err := n.SaveBackup(t.Context(), io.Discard, false)
	require.ErrorIs(t, err, ErrClosed)
	var file bytes.Buffer
	revision, err := n.SaveBackup(t.Context(), &file, true)
	require.NoError(t, err)
	snap, err := store.ReadSnapshot(&file)
	require.NoError(t, err)
	require.Equal(t, st.Revision(), revision)
	require.Equal(t, "one", snap.Metadata[BackupServer])
	require.NotEmpty(t, snap.Metadata[BackupRelease])
	require.NotEmpty(t, snap.Metadata[BackupTaken])

	failed := errors.New("disk full")
	_, err = n.SaveBackup(t.Context(), brokenWriter{failed}, true)
	require.ErrorIs(t, err, failed)
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// What the cluster trusts is kept where the backup is of this cluster, and only
// there, and not if the caller wants none of it.
func TestRestoreKeepsTrust(t *testing.T) {
	for _, fresh := range []bool{false, true} { // one that holds nothing else has revocations, too
		t.Run(fmt.Sprintf("fresh=%t", fresh), func(t *testing.T) { restoreKeepsTrust(t, fresh) })
	}
}

func restoreKeepsTrust(t *testing.T, fresh bool) {
	cfg := testConfig(t.TempDir())
	cfg.Fresh = func(*store.View) bool { return fresh }
	extra := resource.New(resource.Meta{Key: key("kept")}, nil, []byte(`{}`))
	asked := 0
	cfg.KeepTrust = func(running *store.View, saved []*resource.Resource) ([]*resource.Resource, KeptTrust) {
		asked++
		_, late := running.Get(key("late"))
		require.True(t, late, "the running state")
		return append(saved, extra), KeptTrust{Revocations: 1}
	}
	owned := 0
	cfg.KeepOwn = func(running *store.View, saved []*resource.Resource) []*resource.Resource {
		owned++
		own, there := running.Get(key("own"))
		require.True(t, there, "the running state")
		return append(saved, own)
	}
	n, st := open(t, cfg)
	propose(t, n, put("k", 1))
	file := saved(t, n)
	propose(t, n, put("late", 1))
	propose(t, n, put("own", 1))

	got, err := n.restorer.Restore(t.Context(), bytes.NewReader(file), false)
	require.NoError(t, err)
	require.Equal(t, KeptTrust{Revocations: 1}, got.Kept)
	require.Equal(t, st.View().Len(), got.Resources)
	_, kept := st.View().Get(extra.Key())
	require.True(t, kept)

	got, err = n.restorer.Restore(t.Context(), bytes.NewReader(file), true)
	require.NoError(t, err)
	require.Zero(t, got.Kept)
	_, kept = st.View().Get(extra.Key())
	require.False(t, kept)

	other, _ := open(t, testConfig(t.TempDir()))
	propose(t, other, put("k", 1))
	got, err = n.restorer.Restore(t.Context(), bytes.NewReader(saved(t, other)), false)
	require.NoError(t, err)
	require.Zero(t, got.Kept, "a backup of another cluster")
	require.Equal(t, 1, asked)
	require.Equal(t, 3, owned, "what is about the servers' own files is kept always")
	_, kept = st.View().Get(key("own"))
	require.True(t, kept)
}

// The state of a zone is restored into that zone, and nowhere else.
func TestRestoreIsOfTheSameZone(t *testing.T) {
	of := func(zone string) (*Node, *store.Store) {
		cfg := testConfig(t.TempDir())
		cfg.Zone = zone
		return open(t, cfg)
	}
	for _, from := range []string{"", "east", "west"} {
		n, _ := of(from)
		var file bytes.Buffer
		_, err := n.SaveBackup(t.Context(), &file, false)
		require.NoError(t, err)
		for _, to := range []string{"", "east"} {
			n, st := of(to)
			before := st.View()
			_, err := n.restorer.Restore(t.Context(), bytes.NewReader(file.Bytes()), false)
			if from == to {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, ErrBadBackup)
			require.ErrorContains(t, err, "it is of "+whose(from)+", and these are the servers of "+whose(to))
			require.Same(t, before, st.View())
		}
	}
}
