package consensus_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/raftlog"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/test/simnet"
)

// machine is a disk, the node on it, and what the node reported.
type machine struct {
	*simnet.Disk
	cfg  consensus.Config
	node *consensus.Node
	st   *store.Store

	mu    sync.Mutex
	fatal []error
}

func newMachine(name string) *machine {
	m := &machine{Disk: simnet.NewDisk(name), cfg: consensus.DefaultConfig("")}
	m.cfg.NodeID, m.cfg.Role = name, consensus.RoleGlobal
	m.cfg.Snapshots.TrailingLogs = 1
	m.cfg.Snapshots.Interval = 100 * time.Hour
	m.cfg.Events.Fatal = func(err error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.fatal = append(m.fatal, err)
	}
	return m
}

// open starts the node, and waits until it is ready.
func (m *machine) open(t *testing.T) {
	t.Helper()
	require.NoError(t, m.start())
	<-m.node.Ready()
}

func (m *machine) start() (err error) {
	m.cfg.Storage = m.Mount()
	m.st = store.New(store.DefaultOptions())
	m.node, err = consensus.Open(context.Background(), m.cfg, m.st)
	return err
}

func (m *machine) close(t *testing.T) {
	t.Helper()
	require.NoError(t, m.node.Close())
}

// failed returns the one failure that was reported.
func (m *machine) failed(t *testing.T) error {
	t.Helper()
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	require.Len(t, m.fatal, 1)
	require.NotContains(t, m.fatal[0].Error(), "\n", "one line")
	return m.fatal[0]
}

func (m *machine) unharmed(t *testing.T) {
	t.Helper()
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	require.Empty(t, m.fatal)
}

func (m *machine) put(name string, value int) error {
	data := base64.StdEncoding.EncodeToString([]byte(strconv.Itoa(value)))
	_, err := m.node.Propose(context.Background(), store.Txn{Ops: []store.Op{store.Put(resource.New(
		resource.Meta{Key: resource.Key{Kind: "GlobalSecret", Name: name}},
		&resource.Secret{Data: data}, fmt.Appendf(nil, `{"data":%q}`, data),
	))}})
	return err
}

func (m *machine) fill(t *testing.T, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		require.NoError(t, m.put(fmt.Sprint("k", i), i))
	}
}

// TestFailedWriteEndsTheServer: a write to the log that fails is reported with
// the file, the cause and the repair; it is not acknowledged, nothing is written
// after it, and what was acknowledged before is there after a restart.
func TestFailedWriteEndsTheServer(t *testing.T) {
	for name, op := range map[string]simnet.Op{
		"write": simnet.WriteLog,
		"sync":  simnet.SyncLog,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine("one")
				m.open(t)
				m.fill(t, 1, 3)
				m.Fail(simnet.EIO(name), 1, op)
				require.ErrorIs(t, m.put("lost", 1), consensus.ErrUnknownOutcome)
				err := m.failed(t)
				require.ErrorContains(t, err, "one/log")
				require.ErrorContains(t, err, "input/output error")
				require.ErrorContains(t, err, "start this server again")
				_, last := m.Entries()
				require.Error(t, m.put("later", 1), "the disk is fine again, but not trusted")
				<-time.After(time.Minute)
				_, end := m.Entries()
				require.Equal(t, last, end)
				m.Crash()
				_ = m.node.Close()

				m.open(t)
				require.Equal(t, 3, m.st.View().Len())
				m.close(t)
			})
		})
	}
}

// TestUnsavedTermAndVote: a server that cannot save its term or its vote says so
// and does not lead. (Raft would end the process without a word.)
func TestUnsavedTermAndVote(t *testing.T) {
	for times := range 2 { // the term, and the vote
		t.Run(strconv.Itoa(times), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine("one")
				m.open(t)
				m.fill(t, 1, 3)
				m.close(t)

				m.Slow(time.Second, simnet.WriteValue)
				require.NoError(t, m.start())
				<-time.After(time.Duration(times)*time.Second + time.Second/2)
				m.Fail(simnet.EIO("write"), -1, simnet.WriteValue)
				<-time.After(time.Minute)
				require.ErrorContains(t, m.failed(t), "input/output error")
				require.False(t, m.node.IsLeader())
				require.Error(t, m.put("later", 1))
				m.close(t)
			})
		})
	}
}

// TestDamagedEntryIsNotApplied: an entry that is damaged when its turn comes is
// reported, and nothing from there on is applied or kept. (Raft would end the
// process.)
func TestDamagedEntryIsNotApplied(t *testing.T) {
	damage := map[string]func(*machine, uint64){
		"checksum mismatch": func(m *machine, index uint64) { m.FlipEntry(index, 8*30) },
		"is missing":        func(m *machine, index uint64) { m.DropEntries(index, index) },
		"input/output":      func(m *machine, _ uint64) { m.Fail(simnet.EIO("read"), -1, simnet.ReadLog) },
	}
	for says, harm := range damage {
		t.Run(says, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine("one")
				m.open(t)
				m.fill(t, 1, 9)
				m.close(t)
				_, last := m.Entries()

				m.Hang(simnet.WriteValue) // no entry is applied before the election
				require.NoError(t, m.start())
				harm(m, last-4)
				m.Resume()
				<-time.After(time.Minute)
				err := m.failed(t)
				require.ErrorIs(t, err, raftlog.ErrCorrupt)
				require.ErrorContains(t, err, says)
				require.ErrorContains(t, err, "one/log")
				require.Less(t, uint64(m.st.Revision()), last-4)
				require.Error(t, m.node.Snapshot())
				require.Zero(t, m.Snapshots())
				m.close(t)
			})
		})
	}
}

// TestDamagedVote: a vote that is damaged or lost at rest is found before it is
// acted upon.
func TestDamagedVote(t *testing.T) {
	for _, key := range []string{"CurrentTerm", "LastVoteTerm", "LastVoteCand"} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine("one")
			m.open(t)
			m.fill(t, 1, 3)
			m.close(t)
			m.FlipValue(key, 60)
			err := m.start()
			require.ErrorIs(t, err, raftlog.ErrCorrupt)
			require.ErrorContains(t, err, "one/log")
			require.ErrorContains(t, err, key)
			require.ErrorContains(t, err, "--join-bundle")
			require.ErrorContains(t, err, "meridian cluster snapshot restore")
			m.unharmed(t)
		})
	}
}

// TestFullDiskIsWaitedFor: a single-server cluster continues when there is free
// space again, however long that takes, and what it acknowledges is there.
func TestFullDiskIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine("one")
		m.open(t)
		m.fill(t, 1, 3)
		m.Full(true)
		outcome := make(chan error, 1)
		go func() { outcome <- m.put("late", 1) }()
		require.Error(t, <-outcome)
		<-time.After(time.Hour)
		require.True(t, m.node.IsLeader())
		m.unharmed(t)
		m.Full(false)
		<-time.After(6 * time.Second)
		m.fill(t, 4, 6)
		m.close(t)
		m.open(t)
		require.GreaterOrEqual(t, m.st.View().Len(), 6)

		// Neither the election nor the end of the server needs free space.
		m.close(t)
		m.Full(true)
		require.NoError(t, m.start())
		<-time.After(time.Hour)
		require.False(t, m.node.IsLeader())
		m.close(t)
		require.NoError(t, m.start())
		<-time.After(time.Minute)
		m.Full(false)
		<-m.node.Ready()
		<-time.After(6 * time.Second)
		m.fill(t, 7, 9)
		m.unharmed(t)
		m.close(t)
	})
}

// TestDamagedSnapshotInMemory: whatever bit of the only snapshot flips, of its
// content or of what is written about it, and wherever it is cut off: it is not
// restored from, and the server says so.
func TestDamagedSnapshotInMemory(t *testing.T) {
	build := func(t *testing.T) *machine {
		m := newMachine("one")
		m.open(t)
		m.fill(t, 1, 5)
		require.NoError(t, m.node.Snapshot())
		m.close(t)
		require.Equal(t, 1, m.Snapshots())
		return m
	}
	refused := func(t *testing.T, m *machine, what string) {
		err := m.start()
		if err == nil {
			m.close(t)
		}
		require.ErrorIs(t, err, raftlog.ErrCorrupt, what)
		require.ErrorContains(t, err, "one/snapshots", what)
	}
	synctest.Test(t, func(t *testing.T) {
		m := build(t)
		for bit := 0; bit < 8*20_000; bit += 211 {
			require.True(t, m.FlipSnapshot(0, bit))
			refused(t, m, fmt.Sprint("content, bit ", bit))
			require.True(t, m.FlipSnapshot(0, bit))
		}
		for keep := 0; m.TruncateSnapshot(0, keep); keep += 97 {
			refused(t, m, fmt.Sprint("cut after ", keep))
			m = build(t)
		}
		m.open(t)
		require.Equal(t, 5, m.st.View().Len())
		m.close(t)
	})
	synctest.Test(t, func(t *testing.T) {
		m := build(t)
		for bit := range 8 * 300 {
			require.True(t, m.FlipSnapshotMeta(0, bit))
			if err := m.start(); err == nil {
				// Nothing that counts was changed, such as the case of a key.
				<-m.node.Ready()
				require.Equal(t, 5, m.st.View().Len())
				m.close(t)
			} else {
				require.ErrorIs(t, err, raftlog.ErrCorrupt)
			}
			require.True(t, m.FlipSnapshotMeta(0, bit))
		}
	})
}

// TestDamagedEntryAtStart: whatever bit of an entry flips while the server is
// down, it says so when it starts, and so it does when entries are missing or
// torn.
func TestDamagedEntryAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine("one")
		m.open(t)
		m.fill(t, 1, 9)
		m.close(t)
		first, last := m.Entries()
		for bit := range 8 * 300 {
			index := first + uint64(bit)%(last-first+1)
			require.True(t, m.FlipEntry(index, bit))
			require.ErrorIs(t, m.start(), raftlog.ErrCorrupt, "entry %d bit %d", index, bit)
			require.True(t, m.FlipEntry(index, bit))
		}
		m.open(t)
		m.Hang(simnet.SyncLog)
		go func() { _ = m.put("torn", 1) }()
		synctest.Wait()
		m.CrashTorn()
		m.Resume()
		_ = m.node.Close()
		require.ErrorIs(t, m.start(), raftlog.ErrCorrupt, "an entry cut short cannot be told from a damaged one that was acknowledged")

		m = newMachine("two")
		m.open(t)
		m.fill(t, 1, 9)
		m.close(t)
		require.True(t, m.DropEntries(5, 6))
		err := m.start()
		require.ErrorIs(t, err, raftlog.ErrCorrupt)
		require.ErrorContains(t, err, "entry 5 is missing")
	})
}
