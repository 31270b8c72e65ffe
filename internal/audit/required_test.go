package audit

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// made is a node that creates one resource per batch.
func made() *node {
	return &node{result: store.Result{Revision: 7, Results: []store.OpResult{
		{Key: resource.Key{Kind: "Timeout", Mesh: "default", Name: "a"}, Outcome: store.Created, Version: 1},
	}}}
}

// Where records are required, a write that is answered is on record on disk, and no
// write is made that could not be recorded.
func TestRequiredRecords(t *testing.T) {
	c := config(t.TempDir())
	c.Required = true
	l := open(t, c)
	n := made()
	w := writer(n, l)
	propose := func() error {
		_, err := w.Propose(request(t), store.Txn{RequestID: "r"})
		return err
	}
	require.NoError(t, propose())
	require.Equal(t, uint64(1), l.writes.synced, "it is on disk")
	require.NoError(t, l.Ready())

	good := l.writes.file
	broken, err := os.Open(filepath.Join(c.Dir, CurrentFile)) // cannot be written
	require.NoError(t, err)
	l.writes.file = &recordFile{File: broken, sync: broken.Sync}
	err = propose()
	require.ErrorContains(t, err, "it was written at revision 7, and its audit record is not on disk yet (--audit-required); retry it with the same request id")
	require.Equal(t, rpcerr.EffectUnknown, rpcerr.EffectOf(err))

	n.err = errUnknown // it is not asked
	err = propose()
	require.True(t, rpcerr.HasReason(err, ReasonAuditUnavailable))
	require.Equal(t, rpcerr.Unavailable, rpcerr.CodeOf(err))
	require.Equal(t, rpcerr.EffectNone, rpcerr.EffectOf(err))
	require.ErrorContains(t, err, "it takes no writes that it cannot record (--audit-required)")
	require.ErrorContains(t, l.Ready(), "writes are refused until the log can be written (--audit-required)")
	n.err = nil

	l.writes.file = good
	require.NoError(t, broken.Close())
	l.flush()
	require.NoError(t, l.Ready())
	require.NoError(t, propose())
	require.Len(t, records(t, c.Dir), 4, "both, that of the write that was answered with an error, and a note")
	require.Empty(t, verifyDir(t, c.Dir).Problems)
}

// loseOnce has the next sync of a chain's file fail, and lose what it was to bring to
// the disk; further ones succeed, as they do on Linux.
func loseOnce(t *testing.T, c *chain) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	file, kept := c.file, c.size-int64(len(c.unsynced))
	failed := false
	file.sync = func() error {
		if failed {
			return file.File.Sync()
		}
		failed = true
		_, err := file.Seek(kept, io.SeekStart)
		return errors.Join(errors.New("input/output error"), file.Truncate(kept), err)
	}
}

// A sync that succeeds after one that failed proves nothing: what was not on disk
// before is written again, to another file.
func TestARecordSurvivesAFailedSync(t *testing.T) {
	for name, fail := range map[string]func(*Log) error{
		"of a caller": func(l *Log) error { return l.store(write("b")) },
		"of a flush": func(l *Log) error {
			l.writes.mu.Lock()
			_, err := l.writes.appendLocked(write("b"))
			l.writes.mu.Unlock()
			l.flush()
			return errors.Join(err, l.writes.durable(2))
		},
		"of a full file": func(l *Log) error {
			_, _, err := l.writes.write(write("b"))
			l.writes.maxBytes = 1
			return errors.Join(err, l.store(write("c")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := config(t.TempDir())
			c.Required = true
			l := open(t, c)
			require.NoError(t, l.store(write("a")))
			loseOnce(t, l.writes)
			require.ErrorContains(t, fail(l), "input/output error")
			require.ErrorContains(t, l.Ready(), "input/output error")
			require.Equal(t, uint64(1), l.writes.synced)
			l.writes.maxBytes = DefaultMaxBytes

			l.writes.dir = filepath.Join(c.Dir, "away") // where no file can be made
			l.flush()
			require.ErrorContains(t, l.Ready(), "after a sync that failed")
			require.Error(t, l.writes.durable(2))

			l.writes.dir = c.Dir
			l.flush()
			require.NoError(t, l.Ready())
			require.NoError(t, l.writes.durable(2))
			require.NoError(t, l.store(write("d")))
			require.NoError(t, l.Close())
			report := verifyDir(t, c.Dir)
			require.Empty(t, report.Problems)
			require.Empty(t, report.Notes)
			var names []string
			for _, r := range records(t, c.Dir) {
				for _, target := range r.Targets {
					names = append(names, target.Name)
				}
			}
			if name == "of a full file" {
				require.Equal(t, []string{"a", "b", "c", "d"}, names)
			} else {
				require.Equal(t, []string{"a", "b", "d"}, names)
			}
		})
	}
}

// The sync of the end of a server may fail, too.
func TestClosingSurvivesAFailedSync(t *testing.T) {
	c := config(t.TempDir())
	l, err := Open(c)
	require.NoError(t, err)
	loseOnce(t, l.writes)
	l.Write(write("a"))
	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, ".audit.log.1"), []byte("left by a crash"), 0o600))
	require.NoError(t, l.Close())
	require.Len(t, records(t, c.Dir), 1)
	open(t, c)
	require.NoFileExists(t, filepath.Join(c.Dir, ".audit.log.1"))
}

// What is kept until it is on disk is bounded.
func TestWhatIsNotOnDiskIsBounded(t *testing.T) {
	l := open(t, config(t.TempDir()))
	l.Write(write("a"))
	require.Zero(t, l.writes.synced)
	l.writes.unsynced = make([]byte, maxUnsynced)
	l.Write(write("b"))
	require.Equal(t, uint64(1), l.writes.synced)
	require.Less(t, len(l.writes.unsynced), 1<<10)
}

// Otherwise writes continue.
func TestRecordsThatAreNotRequired(t *testing.T) {
	l := open(t, config(t.TempDir()))
	w := writer(made(), l)
	l.writes.failLocked(os.ErrPermission)
	_, err := w.Propose(request(t), store.Txn{RequestID: "r"})
	require.NoError(t, err)
	require.ErrorIs(t, l.Ready(), os.ErrPermission)
	l.flush()
	require.Len(t, records(t, l.cfg.Dir), 2)
}

// Callers at the same time share what waits for the disk, also while files are full.
func TestRequiredRecordsOfManyCallers(t *testing.T) {
	c := config(t.TempDir())
	c.Required, c.MaxBytes, c.MaxFiles = true, 4000, 100
	l := open(t, c)
	w := writer(made(), l)
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for range 10 {
				if _, err := w.Propose(t.Context(), store.Txn{RequestID: "r"}); err != nil {
					t.Error(err)
				}
				l.writes.mu.Lock()
				if l.writes.synced == 0 {
					t.Error("nothing is on disk")
				}
				l.writes.mu.Unlock()
			}
		})
	}
	callers.Wait()
	l.flush()
	report := verifyDir(t, c.Dir)
	require.Empty(t, report.Problems)
	require.EqualValues(t, 160, report.Chains[0].Records)
}

// What it costs to have the record on disk before a write is answered.
func BenchmarkPropose(b *testing.B) {
	for name, required := range map[string]bool{"default": false, "required": true} {
		for _, callers := range []int{1, 64} {
			b.Run(name+"/callers="+map[int]string{1: "1", 64: "64"}[callers], func(b *testing.B) {
				c := config(b.TempDir())
				c.Required, c.Now = required, time.Now
				l, err := Open(c)
				require.NoError(b, err)
				defer func() { require.NoError(b, l.Close()) }()
				w := writer(made(), l)
				b.SetParallelism(callers)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if _, err := w.Propose(b.Context(), store.Txn{RequestID: "r"}); err != nil {
							b.Error(err)
						}
					}
				})
			})
		}
	}
}

// What is kept until it is on disk takes about as much memory as the last time, and none once
// nothing is written any more.
func TestUnsyncedRecordsTakeNoMemoryAtRest(t *testing.T) {
	l := open(t, config(t.TempDir()))
	l.Write(write("a"))
	kept := len(l.writes.unsynced)
	require.NotZero(t, kept)
	l.flush()
	require.Empty(t, l.writes.unsynced)
	require.Equal(t, kept, cap(l.writes.unsynced))
	l.flush()
	require.Nil(t, l.writes.unsynced)
}
