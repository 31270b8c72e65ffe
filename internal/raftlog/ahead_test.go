package raftlog

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// leading is the node of a log that leads, with followers.
type leading struct {
	afterSnapshot
	follows, alone bool
	failed         error
	closing        chan struct{}
}

func (l *leading) Leads() bool              { return !l.follows }
func (l *leading) OnlyVoter() bool          { return l.alone }
func (l *leading) StorageFailed(err error)  { l.failed = err }
func (l *leading) Closing() <-chan struct{} { return l.closing }

// heldSync runs a test on a log with entries up to 10, of which the next syncs end with what
// is sent to end.
func heldSync(t *testing.T, test func(t *testing.T, log *Log, host *leading, end chan error)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		log := openTestLog(t, t.TempDir())
		require.NoError(t, log.StoreLogs(entries(1, 10)))
		file := journaledOf(t, log)
		require.NoError(t, file.begin())
		end := make(chan error)
		file.journal.disk.sync = func(*os.File) error { return <-end }
		host := &leading{closing: make(chan struct{})}
		log.Attach(host, time.Hour, nil)
		log.Running()
		test(t, log, host, end)
		require.NoError(t, log.Close())
	})
}

// begun calls a function and returns what it returns, unless it waits for something.
func begun(do func() error) <-chan error {
	out := make(chan error, 1)
	go func() { out <- do() }()
	synctest.Wait()
	return out
}

// TestALeaderDoesNotWaitForItsDisk: entries of a leader can be read and sent before they
// are on its disk. What may not be done before that waits.
func TestALeaderDoesNotWaitForItsDisk(t *testing.T) {
	heldSync(t, func(t *testing.T, log *Log, _ *leading, end chan error) {
		require.NoError(t, log.StoreLogs(entries(11, 12)))
		var entry raft.Log
		require.NoError(t, log.GetLog(12, &entry))
		require.Equal(t, *entries(12, 12)[0], entry)
		last, err := log.LastIndex()
		require.NoError(t, err)
		require.EqualValues(t, 12, last)

		require.NoError(t, log.Synced(10))
		require.EqualValues(t, 9, log.OnDisk(9))
		require.EqualValues(t, 10, log.OnDisk(12))
		synced := begun(func() error { return log.Synced(11) })
		settled := begun(func() error { log.Settle(); return nil })
		require.Empty(t, synced)
		require.Empty(t, settled)
		end <- nil
		require.NoError(t, <-synced)
		require.NoError(t, <-settled)
		require.EqualValues(t, 12, log.OnDisk(12))
		require.NoError(t, log.Synced(12))
	})
}

// TestOneSyncAfterTheOther: what changes the end of the log waits for the sync before it: a
// start takes only the newest record of the journal for one that may be incomplete.
func TestOneSyncAfterTheOther(t *testing.T) {
	for name, change := range map[string]func(log *Log) error{
		"append":   func(log *Log) error { return log.StoreLogs(entries(13, 13)) },
		"cut":      func(log *Log) error { return log.DeleteRange(12, 12) },
		"replaced": func(log *Log) error { return log.StoreLogs(entries(12, 12)) },
	} {
		t.Run(name, func(t *testing.T) {
			heldSync(t, func(t *testing.T, log *Log, _ *leading, end chan error) {
				require.NoError(t, log.StoreLogs(entries(11, 12)))
				changed := begun(func() error { return change(log) })
				require.Empty(t, changed)
				end <- nil
				close(end)
				require.NoError(t, <-changed)
				log.Settle()
			})
		})
	}
}

// TestWhatIsOnDiskBeforeItIsSent: StoreLogs of a follower, of a server without followers
// and of entries that raft itself acts on returns once they are on disk.
func TestWhatIsOnDiskBeforeItIsSent(t *testing.T) {
	command := entries(11, 11)
	of := func(kind raft.LogType) []*raft.Log {
		return append(entries(11, 11), &raft.Log{Index: 12, Term: 2, Type: kind})
	}
	for name, c := range map[string]struct {
		host leading
		logs []*raft.Log
	}{
		"of a follower":             {leading{follows: true}, command},
		"of the only voter":         {leading{alone: true}, command},
		"a change of membership":    {leading{}, of(raft.LogConfiguration)},
		"the first entry of a term": {leading{}, of(raft.LogNoop)},
		"a barrier":                 {leading{}, of(raft.LogBarrier)},
	} {
		t.Run(name, func(t *testing.T) {
			heldSync(t, func(t *testing.T, log *Log, host *leading, end chan error) {
				host.follows, host.alone = c.host.follows, c.host.alone
				stored := begun(func() error { return log.StoreLogs(c.logs) })
				require.Empty(t, stored)
				end <- nil
				require.NoError(t, <-stored)
				require.EqualValues(t, 12, log.OnDisk(12))
			})
		})
	}
}

// TestASyncThatFailsBehindALeader: nothing is on disk after it. It ends the process, and
// what waits for it is answered when the node is closed.
func TestASyncThatFailsBehindALeader(t *testing.T) {
	heldSync(t, func(t *testing.T, log *Log, host *leading, end chan error) {
		require.NoError(t, log.StoreLogs(entries(11, 12)))
		end <- errNoPower
		synctest.Wait()
		require.ErrorIs(t, host.failed, errNoPower)
		require.EqualValues(t, 10, log.OnDisk(12))
		synced := begun(func() error { return log.Synced(12) })
		stored := begun(func() error { return log.StoreLogs(entries(13, 13)) })
		require.Empty(t, synced)
		require.Empty(t, stored)
		close(host.closing)
		require.ErrorIs(t, <-synced, errNoPower)
		require.ErrorIs(t, <-stored, errNoPower)
		require.EqualValues(t, 10, log.OnDisk(12))
	})
}

// TestASyncThatEndsWellBesideAFailure: another failure of the storage says nothing about
// entries whose sync ends well. One of them that was taken for lost would not be applied,
// and the next one would.
func TestASyncThatEndsWellBesideAFailure(t *testing.T) {
	heldSync(t, func(t *testing.T, log *Log, _ *leading, end chan error) {
		require.NoError(t, log.StoreLogs(entries(11, 12)))
		synced := begun(func() error { return log.Synced(11) })
		require.ErrorIs(t, log.report(errNoPower), errNoPower)
		end <- nil
		require.NoError(t, <-synced)
		require.NoError(t, log.Synced(12))
	})
}

// TestNothingIsWritten: a call without entries leaves nothing behind.
func TestNothingIsWritten(t *testing.T) {
	heldSync(t, func(t *testing.T, log *Log, _ *leading, end chan error) {
		close(end)
		require.NoError(t, log.StoreLogs(nil))
		require.NoError(t, log.StoreLogs(entries(11, 11)))
		log.Settle()
		require.EqualValues(t, 11, log.OnDisk(11))
	})
}
