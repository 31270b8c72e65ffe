package consensus

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
)

const (
	// keeperInterval is how often the log is measured.
	keeperInterval = time.Second
	// electionWrites is how many writes of a term or a vote an election may take: a
	// candidate's and a voter's three, one after the other, and some more.
	electionWrites = 8
	// maxElection bounds how long an election may last.
	maxElection = 12 * time.Second
)

// keeper bounds the log in bytes, where raft counts entries, and gives elections
// the time that the disk takes.
type keeper struct {
	*core
	snapshots *raftlog.Snapshots
	// mu guards the rest. slow is how long a small write takes; hastened says that the
	// leader is waited for no longer than its lease.
	mu       sync.Mutex
	slow     time.Duration
	hastened bool
}

// cut takes snapshots, with which raft cuts the log, until ctx ends.
func (k *keeper) cut(ctx context.Context) {
	// Servers write the same entries: not all of them should take a snapshot at the
	// same time.
	interval := max(k.cfg.Snapshots.Interval, time.Nanosecond)
	scatter := func() time.Duration { return interval + rand.N(interval) }
	limit := k.cfg.Snapshots.Bytes + rand.Uint64N(k.cfg.Snapshots.Bytes/4+1)
	tick := time.NewTicker(keeperInterval)
	defer tick.Stop()
	check := time.NewTimer(scatter())
	defer check.Stop()
	retry := time.Time{}
	for {
		counted := false
		select {
		case <-ctx.Done():
			return
		case <-check.C:
			counted = true
			check.Reset(scatter())
		case <-tick.C:
		}
		index, _ := k.lastSnapshot()
		entries, bytes := k.log.Since(index)
		due := counted && entries >= k.cfg.Snapshots.Threshold ||
			k.cfg.Snapshots.Bytes > 0 && bytes >= limit && time.Now().After(retry) && bytes >= k.snapshotSize()
		if !due {
			continue
		}
		k.tune() // the log may have grown a lot since
		if err := k.answer(k.raft.Snapshot()); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) && ctx.Err() == nil {
			k.cfg.Logger.Debug("no snapshot was taken", "node", k.cfg.NodeID, "error", err)
			retry = time.Now().Add(scatter())
		}
	}
}

// snapshotSize is the size of the newest snapshot, in bytes.
func (k *keeper) snapshotSize() uint64 {
	metas, err := k.snapshots.List()
	if err != nil || len(metas) == 0 {
		return 0
	}
	return uint64(max(0, metas[0].Size))
}

// follow gives raft its settings until ctx ends.
func (k *keeper) follow(ctx context.Context) {
	tick := time.NewTicker(keeperInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k.tune()
		}
	}
}

// tune gives raft the settings that follow from what was measured.
func (k *keeper) tune() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.slow = max(k.log.Slowest(), k.slow/2) // soon forgotten: a disk that is fast again needs no long elections
	k.reloadLocked()
}

// hasten makes raft wait for a leader no longer than its lease, or as long as it is
// configured to again.
func (k *keeper) hasten(now bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hastened = now
	k.reloadLocked()
}

// reloadLocked gives raft the settings that differ from those it has.
func (k *keeper) reloadLocked() {
	now := k.raft.ReloadableConfig()
	want := now
	want.HeartbeatTimeout = k.cfg.Timing.Heartbeat
	if k.hastened {
		want.HeartbeatTimeout = k.cfg.Timing.Lease // raft allows no less
	}
	want.ElectionTimeout = min(max(k.cfg.Timing.Heartbeat, electionWrites*k.slow), max(k.cfg.Timing.Heartbeat, maxElection))
	want.TrailingLogs = k.cfg.Snapshots.TrailingLogs
	if most := k.cfg.Snapshots.TrailingBytes; most > 0 {
		want.TrailingLogs = max(1, min(want.TrailingLogs, k.log.Within(most)))
	}
	if want == now {
		return
	}
	if err := k.raft.ReloadConfig(want); err != nil {
		k.cfg.Logger.Warn("raft does not take its settings", "node", k.cfg.NodeID, "error", err)
	}
}
