package audit

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// logOfWrites is a node that keeps what is proposed, as the log of writes does.
type logOfWrites struct {
	batches []batch
	// applied is where batches are told of when they are applied.
	applied func([]byte, store.Result)
	// err is what proposers are told.
	err error
	// before is called before a batch is applied.
	before func()
}

type batch struct {
	note   []byte
	result store.Result
}

func (l *logOfWrites) Propose(_ context.Context, txn store.Txn) (store.Result, error) {
	rev := resource.Revision(len(l.batches) + 1)
	b := batch{txn.Note, store.Result{Revision: rev, Results: []store.OpResult{
		{Key: resource.Key{Kind: "Mesh", Name: txn.RequestID}, Outcome: store.Created, Version: 1},
	}}}
	l.batches = append(l.batches, b)
	if l.applied != nil {
		l.applied(b.note, b.result)
	}
	if l.before != nil {
		l.before()
	}
	return b.result, l.err
}

func (l *logOfWrites) Read(context.Context) (resource.Revision, error) { return 0, nil }

// replay tells a Writer of everything, as after a restart.
func (l *logOfWrites) replay(w *Writer) {
	for _, b := range l.batches {
		w.Applied(b.note, b.result)
	}
}

// wrote returns which revisions a log says were written, in its order.
func wrote(t *testing.T, dir string) []uint64 {
	t.Helper()
	files, _, err := Files(dir)
	require.NoError(t, err)
	var out []uint64
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, r := range decodeAll(t, data) {
			if r.Decision == Allowed && r.Targets[0].Kind != "snapshot" {
				out = append(out, r.Revision)
			}
		}
	}
	return out
}

func TestAWriteThatACrashLeftUnrecordedIsRecordedAtTheRestart(t *testing.T) {
	dir := t.TempDir()
	writes := &logOfWrites{}
	log := open(t, config(dir))
	first := writer(writes, log)
	writes.applied = first.Applied
	for i := range 3 {
		_, err := first.Propose(request(t), store.Txn{RequestID: fmt.Sprintf("kept-%d", i)})
		require.NoError(t, err)
	}
	// Two more are written and the server dies before it records them; so does a
	// batch of another server, and one that was refused.
	lost := writer(writes, open(t, config(t.TempDir())))
	lost.run = first.run
	const id = `lost,"revision":99}` // text is not taken for a field
	_, err := lost.Propose(request(t), store.Txn{RequestID: id})
	require.NoError(t, err)
	_, err = lost.Propose(t.Context(), store.Txn{RequestID: "by-the-server"})
	require.NoError(t, err)
	lost.server = "another"
	_, err = lost.Propose(request(t), store.Txn{RequestID: "elsewhere"})
	require.NoError(t, err)
	lost.server = "a"
	_, err = lost.Propose(request(t), store.Txn{RequestID: "refused"})
	require.NoError(t, err)
	writes.batches[6].result = store.Result{Revision: 6, Err: &store.ConflictError{}}
	// The same request again, as its caller would after a lost connection.
	writes.batches = append(writes.batches, batch{writes.batches[3].note, writes.batches[3].result})
	writes.batches[7].result.Duplicate = true
	// A backup was taken of what is not recorded.
	log.Write(Record{Decision: Allowed, Revision: 4, Targets: []Target{{Action: "save", Kind: "snapshot", Name: "10 bytes"}}})
	require.NoError(t, log.Close())

	log = open(t, config(dir))
	second := NewWriter("a", clock, errUnknown)
	for _, b := range writes.batches[:4] { // before the log is open
		second.Applied(b.note, b.result)
	}
	second.Open(writes, log)
	for _, b := range writes.batches[4:] {
		second.Applied(b.note, b.result)
	}
	require.Equal(t, []uint64{1, 2, 3}, wrote(t, dir), "the goroutine that applies batches does not wait for the disk")
	log.flush()
	require.Equal(t, []uint64{1, 2, 3, 4, 5}, wrote(t, dir))
	found := records(t, dir)[4]
	require.Equal(t, "bob", found.Who.Name)
	require.Equal(t, "id-1", found.Who.Token)
	require.Equal(t, "192.0.2.7:4000", found.From)
	require.Equal(t, id, found.Request)
	require.Equal(t, []Target{{Action: "create", Kind: "Mesh", Name: id, Version: 1}}, found.Targets)
	require.Contains(t, found.Message, "the server stopped before it had recorded it")
	require.Equal(t, serverItself, records(t, dir)[5].Who)
	require.Empty(t, verifyDir(t, dir).Problems)
	require.NoError(t, log.Close())

	// After yet another restart everything is known.
	log = open(t, config(dir))
	third := writer(writes, log)
	writes.replay(third)
	log.flush()
	require.Equal(t, []uint64{1, 2, 3, 4, 5}, wrote(t, dir))
}

// Writes that share a revision are recorded each: where a server dies before it has recorded
// one of them, that one is recorded at the restart, and the others are not recorded again.
func TestOneOfTheWritesOfARevisionIsUnrecorded(t *testing.T) {
	dir := t.TempDir()
	writes := &logOfWrites{}
	log := open(t, config(dir))
	first := writer(writes, log)
	_, err := first.Propose(request(t), store.Txn{RequestID: "kept"})
	require.NoError(t, err)
	lost := writer(writes, open(t, config(t.TempDir())))
	lost.run = first.run
	_, err = lost.Propose(request(t), store.Txn{RequestID: "lost"})
	require.NoError(t, err)
	writes.batches[1].result.Revision = writes.batches[0].result.Revision
	require.NoError(t, log.Close())
	for range 2 {
		log = open(t, config(dir))
		writes.replay(writer(writes, log))
		log.flush()
		var requests []string
		for _, r := range records(t, dir) {
			require.EqualValues(t, 1, r.Revision)
			requests = append(requests, r.Request)
		}
		require.Equal(t, []string{"kept", "lost"}, requests)
		require.NoError(t, log.Close())
	}
}

// What was recorded in files that are full by now is not recorded again, nor what
// was recorded in files that have been removed since.
func TestWhatOlderFilesRecordIsNotRecordedAgain(t *testing.T) {
	for _, kept := range []int{100, 3} {
		t.Run(fmt.Sprintf("%d files", kept), func(t *testing.T) {
			dir := t.TempDir()
			small := config(dir)
			small.MaxBytes, small.MaxFiles = 1500, kept
			writes := &logOfWrites{}
			log := open(t, small)
			w := writer(writes, log)
			for i := range 20 {
				_, err := w.Propose(request(t), store.Txn{RequestID: fmt.Sprint(i)})
				require.NoError(t, err)
			}
			require.NoError(t, log.Close())
			before := wrote(t, dir)
			_, err := writer(writes, open(t, config(t.TempDir()))).Propose(request(t), store.Txn{RequestID: "lost"})
			require.NoError(t, err)

			log = open(t, small)
			writes.replay(writer(writes, log))
			log.flush()
			after := wrote(t, dir)
			require.Equal(t, uint64(21), after[len(after)-1])
			if kept == 100 {
				require.Equal(t, append(before, 21), after)
			}
			require.Empty(t, verifyDir(t, dir).Problems)
		})
	}
}

// A write whose outcome was unknown to its caller has a record that says so, and a
// second one with the outcome as soon as that is known.
func TestAnUnknownOutcomeIsRecordedWhenItIsKnown(t *testing.T) {
	dir := t.TempDir()
	log := open(t, config(dir))
	writes := &logOfWrites{err: errUnknown}
	w := writer(writes, log)
	propose := func(id string) {
		_, err := w.Propose(request(t), store.Txn{RequestID: id})
		require.ErrorIs(t, err, errUnknown)
	}
	propose("late")
	propose("never")
	w.Applied(writes.batches[0].note, writes.batches[0].result)
	w.Applied(writes.batches[0].note, writes.batches[0].result) // a second attempt under the same id
	log.flush()
	all := records(t, dir)
	require.Len(t, all, 3)
	require.Equal(t, []Decision{Unknown, Unknown, Allowed}, []Decision{all[0].Decision, all[1].Decision, all[2].Decision})
	require.Equal(t, "late", all[2].Request)
	require.Equal(t, uint64(1), all[2].Revision)

	// Applied here before the caller was told, twice even: then it is not unknown.
	writes.applied = func(note []byte, result store.Result) {
		w.Applied(note, result)
		w.Applied(note, store.Result{Revision: 99, Duplicate: true})
	}
	propose("known")
	all = records(t, dir)
	require.Len(t, all, 4)
	require.Equal(t, Allowed, all[3].Decision)
	require.Equal(t, "known", all[3].Request)
	require.Equal(t, uint64(3), all[3].Revision)

	// Those that never come do not pile up.
	writes.applied = nil
	for range 2 * maxUnknownOutcomes {
		propose("never")
	}
	require.Len(t, w.attempts, maxUnknownOutcomes)
	require.Len(t, w.unknownOutcomes, maxUnknownOutcomes)
}

// A snapshot takes batches out of the log that is replayed: they are recorded by
// then.
func TestASnapshotWaitsForTheRecordsOfWhatItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		log := open(t, config(dir))
		resume := make(chan struct{})
		writes := &logOfWrites{before: func() { <-resume }}
		w := writer(writes, log)
		writes.applied = w.Applied
		proposed, settled := make(chan error, 1), make(chan struct{})
		go func() {
			_, err := w.Propose(request(t), store.Txn{RequestID: "slow"})
			proposed <- err
		}()
		synctest.Wait()
		w.Settle(0) // has nothing to wait for
		go func() {
			w.Settle(1)
			close(settled)
		}()
		synctest.Wait()
		select {
		case <-settled:
			require.Fail(t, "the snapshot did not wait")
		default:
		}
		close(resume)
		require.NoError(t, <-proposed)
		<-settled
		head, err := ReadHead(filepath.Join(dir, HeadFile))
		require.NoError(t, err)
		require.Equal(t, uint64(1), head.Seq, "it is on disk")

		// It does not wait for ever.
		writes.before = func() { <-t.Context().Done() }
		go func() { _, _ = w.Propose(context.Background(), store.Txn{RequestID: "stuck"}) }()
		synctest.Wait()
		begun := time.Now()
		w.Settle(2)
		require.Equal(t, settleLimit, time.Since(begun))
	})
}

func FuzzDecodeNote(f *testing.F) {
	whole := note{server: "a", run: 1, number: 7, asked: asking{method: "m"}}.encode()
	f.Add(whole)
	f.Add(whole[:20])
	f.Add([]byte("not a note"))
	f.Fuzz(func(t *testing.T, data []byte) {
		w := writer(&logOfWrites{}, open(t, config(t.TempDir())))
		w.Applied(data, store.Result{Revision: 1})
		n := decodeNote(data)
		require.Equal(t, n, decodeNote(n.encode()))
	})
}
