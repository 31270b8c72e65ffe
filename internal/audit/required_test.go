package audit

import (
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
	l.writes.file = broken
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
