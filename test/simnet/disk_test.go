package simnet

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/raftlog"
	"meridian/internal/resource"
	"meridian/internal/store"
)

func openNode(t *testing.T, disk raftlog.Storage) (*consensus.Node, *store.Store) {
	t.Helper()
	cfg := consensus.DefaultConfig("")
	cfg.Storage, cfg.NodeID, cfg.Role = disk, "one", consensus.RoleGlobal
	st := store.New(store.DefaultOptions())
	n, err := consensus.Open(context.Background(), cfg, st)
	require.NoError(t, err)
	<-n.Ready()
	return n, st
}

func put(name string, value int) store.Op {
	data := base64.StdEncoding.EncodeToString([]byte(strconv.Itoa(value)))
	return store.Put(resource.New(
		resource.Meta{Key: resource.Key{Kind: "GlobalSecret", Name: name}},
		&resource.Secret{Data: data}, fmt.Appendf(nil, `{"data":%q}`, data),
	))
}

// TestNodeOnDisk: a node lives on a disk in memory, through restarts, snapshots
// and crashes, in virtual time.
func TestNodeOnDisk(t *testing.T) {
	for name, storage := range map[string]func(*testing.T) raftlog.Storage{
		"memory": func(*testing.T) raftlog.Storage { return NewDisk("d").Mount() },
		"files":  func(t *testing.T) raftlog.Storage { return NewFiles(t.TempDir()) },
	} {
		t.Run(name, func(t *testing.T) {
			disk := storage(t)
			synctest.Test(t, func(t *testing.T) {
				var last resource.Revision
				for round := range 3 {
					n, st := openNode(t, disk)
					require.GreaterOrEqual(t, st.Revision(), last, "round %d", round)
					require.Equal(t, round*5, st.View().Len(), "round %d", round)
					for i := range 5 {
						result, err := n.Propose(context.Background(), store.Txn{Ops: []store.Op{put(fmt.Sprint(round, "-", i), i)}})
						require.NoError(t, err)
						last = result.Revision
					}
					if round == 1 {
						require.NoError(t, n.Snapshot())
					}
					require.NoError(t, n.Close())
				}
			})
		})
	}
}

// TestCrashKeepsWhatWasAcknowledged: a write that the disk has not synced is not
// acknowledged, and gone after a crash.
func TestCrashKeepsWhatWasAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := NewDisk("d")
		n, _ := openNode(t, disk.Mount())
		_, err := n.Propose(context.Background(), store.Txn{Ops: []store.Op{put("kept", 1)}})
		require.NoError(t, err)
		_, before := disk.Entries()

		disk.Hang(SyncLog)
		outcome := make(chan error, 1)
		go func() {
			_, err := n.Propose(context.Background(), store.Txn{Ops: []store.Op{put("lost", 1)}})
			outcome <- err
		}()
		synctest.Wait()
		require.Empty(t, outcome)
		_, written := disk.Entries()
		require.Equal(t, before+1, written, "it is in the log, but not safe")
		disk.Crash()
		require.ErrorIs(t, <-outcome, consensus.ErrUnknownOutcome)
		disk.Resume()
		_, after := disk.Entries()
		require.Equal(t, before, after)

		n2, st := openNode(t, disk.Mount())
		require.Equal(t, 1, st.View().Len())
		require.NoError(t, n2.Close())
		_ = n.Close()
	})
}

// TestDisk: what each fault does to what is stored.
func TestDisk(t *testing.T) {
	logs := func(from, to uint64) (batch []*raft.Log) {
		for i := from; i <= to; i++ {
			batch = append(batch, &raft.Log{Index: i, Term: 1, Data: []byte("entry")})
		}
		return batch
	}
	open := func(d *Disk) raftlog.LogFile {
		m := d.Mount()
		require.NoError(t, m.Acquire())
		log, err := m.OpenLog(func(raftlog.LogFile) error { return nil }, nil)
		require.NoError(t, err)
		return log
	}
	d := NewDisk("d")
	log := open(d)
	require.NoError(t, storeLogs(log, logs(1, 10)))
	require.NoError(t, log.Set([]byte("k"), []byte("v")))
	require.ErrorIs(t, d.Mount().Acquire(), raftlog.ErrDataDirInUse)

	d.Fail(EIO("write"), 1, WriteLog)
	require.ErrorIs(t, storeLogs(log, logs(11, 11)), syscall.EIO)
	require.NoError(t, storeLogs(log, logs(11, 11)))
	d.Full(true)
	require.ErrorIs(t, storeLogs(log, logs(12, 12)), syscall.ENOSPC)
	require.ErrorIs(t, log.Set([]byte("k"), []byte("w")), syscall.ENOSPC)
	d.SetFree(10_000)
	require.NoError(t, storeLogs(log, logs(12, 12)))
	d.Full(false)
	require.NoError(t, storeLogs(log, logs(8, 9)), "entries may be replaced")
	first, last := d.Entries()
	require.Equal(t, [2]uint64{1, 12}, [2]uint64{first, last})

	d.Lossy(true)
	require.NoError(t, storeLogs(log, logs(13, 16)))
	require.NoError(t, log.Set([]byte("k"), []byte("w")))
	require.NoError(t, log.DeleteRange(1, 4))
	d.Crash()
	require.ErrorIs(t, storeLogs(log, logs(13, 13)), ErrCrashed)
	require.ErrorIs(t, log.GetLog(1, new(raft.Log)), ErrCrashed)
	log = open(d)
	first, last = d.Entries()
	require.Equal(t, [2]uint64{1, 12}, [2]uint64{first, last})
	value, err := log.Get([]byte("k"))
	require.NoError(t, err)
	require.Equal(t, "v", string(value))

	require.NoError(t, storeLogs(log, logs(13, 16)))
	d.CrashTorn()
	log = open(d)
	_, last = d.Entries()
	require.EqualValues(t, 14, last)
	require.Error(t, log.GetLog(14, new(raft.Log)))
	require.NoError(t, log.GetLog(13, new(raft.Log)))

	d.Lossy(false)
	var entry raft.Log
	require.True(t, d.FlipEntry(3, 8*21))
	require.NoError(t, log.GetLog(3, &entry))
	require.NotEqual(t, "entry", string(entry.Data))
	require.True(t, d.DropEntries(5, 6))
	require.ErrorIs(t, log.GetLog(5, &entry), raft.ErrLogNotFound)
	require.True(t, d.DropValue("k"))
	require.False(t, d.FlipValue("k", 0))
	require.False(t, d.FlipSnapshot(0, 0))
	_, err = log.Get([]byte("k"))
	require.EqualError(t, err, "not found")
}

// TestSlow: a slow disk takes as long as it is told to.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := NewDisk("d")
		n, _ := openNode(t, disk.Mount())
		disk.Slow(time.Second, SyncLog)
		began := time.Now()
		_, err := n.Propose(context.Background(), store.Txn{Ops: []store.Op{put("a", 1)}})
		require.NoError(t, err)
		require.Equal(t, time.Second, time.Since(began))
		disk.Slow(0, 0)
		require.NoError(t, n.Close())
	})
}

// TestALateRelease: a node that is closed after its machine crashed, and
// another has the disk, does not take it from that one, which a crash still ends.
func TestALateRelease(t *testing.T) {
	d := NewDisk("d")
	first, second := d.Mount(), d.Mount()
	require.NoError(t, first.Acquire())
	d.Crash()
	require.NoError(t, second.Acquire())
	first.Release(false)
	require.ErrorIs(t, d.Mount().Acquire(), raftlog.ErrDataDirInUse)
	require.NoError(t, second.SetIdentity([]byte("{}")))
	d.Crash()
	require.ErrorIs(t, second.SetIdentity([]byte("{}")), ErrCrashed)
}

// storeLogs writes entries and syncs.
func storeLogs(log raftlog.LogFile, logs []*raft.Log) error {
	sync, err := log.WriteLogs(logs)
	if err != nil {
		return err
	}
	return sync()
}
