package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
)

const (
	// diskReserve is how many bytes of the disk are kept free, and at most a twentieth of
	// it. With less, this server takes no writes as a leader.
	diskReserve = 64 << 20
	// diskInterval is how often the free space on the disk is checked.
	diskInterval = 5 * time.Second
	// spaceTimeout bounds the question to the other servers whether they have free
	// space, and transferTimeout the transfer to one that has.
	spaceTimeout    = time.Second
	transferTimeout = 10 * time.Second
)

// Disk is the state of a node's storage, for people and metrics.
type Disk struct {
	// Server is the name of the server, Where says which disk it is.
	Server, Where string
	// Space is the size of the disk and what is free of it, zeros when not known.
	Space raftlog.Space
	// Reserve is how much of it is kept free, in bytes.
	Reserve uint64
	// Low says that there is less: this server takes no writes as a leader.
	Low bool
	// Hangs is for how long nothing has been written that should have been.
	Hangs time.Duration
}

// Err says what is wrong, nil when nothing is.
func (d Disk) Err() error {
	switch {
	case d.Hangs > 0:
		return fmt.Errorf("%w: nothing was written to %s for %s", ErrDiskHangs, d.Where, d.Hangs.Round(time.Second))
	case d.Low:
		return &lowError{d}
	default:
		return nil
	}
}

// lowError is ErrDiskFull and ErrUnavailable: nothing was written, and nothing
// will be until space is freed.
type lowError struct{ disk Disk }

func (e *lowError) Error() string {
	return fmt.Sprintf("the disk of %s is nearly full: %s are left of %s where %s is, and %s are kept free; free some space there, and writes continue by themselves",
		e.disk.Server, bytesText(e.disk.Space.Free), bytesText(e.disk.Space.Total), e.disk.Where, bytesText(e.disk.Reserve))
}

// Is makes it both kinds.
func (e *lowError) Is(target error) bool {
	return target == raftlog.ErrDiskFull || target == ErrUnavailable
}

// remoteDiskFullError is what the leader reported about its disk.
type remoteDiskFullError struct{ said error }

func (e *remoteDiskFullError) Error() string { return e.said.Error() }

func (e *remoteDiskFullError) Unwrap() error { return e.said }

// Is makes it both kinds.
func (e *remoteDiskFullError) Is(target error) bool {
	return target == raftlog.ErrDiskFull || target == ErrUnavailable
}

// bytesText writes a number of bytes for people.
func bytesText(n uint64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	default:
		return fmt.Sprintf("%d KiB", n>>10)
	}
}

// reserve keeps a part of the disk free: the rest of it is what this server
// needs to know its term, to give its vote, to store what other servers have
// committed, and to be repaired. So it takes no writes for itself long before
// there is no free space at all.
type reserve struct {
	storage raftlog.Storage
	// wake makes watchDisk check at once.
	wake chan struct{}

	mu      sync.Mutex
	disk    Disk
	unknown bool // the last check failed
	// leaving says that another server may be about to lead, which has free space.
	leaving bool
}

func newReserve(server string, storage raftlog.Storage) *reserve {
	return &reserve{storage: storage, wake: make(chan struct{}, 1), disk: Disk{Server: server, Where: storage.Name()}}
}

// check measures the free space. It reports whether that has become too little, or
// is enough again.
func (r *reserve) check() (changed bool, err error) {
	space, err := r.storage.Space()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		told := r.unknown
		r.unknown = true
		if told {
			return false, nil
		}
		return false, fmt.Errorf("measure the free space of %s: %w", r.storage.Name(), err)
	}
	r.unknown = false
	before := r.disk.Low
	r.disk.Space, r.disk.Reserve = space, min(diskReserve, space.Total/20)
	limit := r.disk.Reserve
	if before {
		limit += limit / 4 // or every byte that comes and goes would change it
	}
	r.disk.Low = space.Free < limit
	r.leaving = r.disk.Low && (r.leaving || !before)
	return r.disk.Low != before, nil
}

func (r *reserve) setLeaving(leaving bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving = leaving && r.disk.Low
}

// now returns the result of the last check.
func (r *reserve) now() Disk {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.disk
}

// Disk returns the state of this server's storage. Cheap, and never waits for the
// disk.
func (n *Node) Disk() Disk {
	disk := n.disk.reserve.now()
	disk.Hangs = n.log.Stuck()
	return disk
}

// writable returns why this server, which leads, takes no writes now. ErrDiskFull
// means until space is freed; ErrUnavailable alone, that another server is about
// to lead.
func (n *diskGuard) writable() error {
	n.reserve.mu.Lock()
	defer n.reserve.mu.Unlock()
	if !n.reserve.disk.Low {
		return nil
	}
	n.diskFull() // it may be over
	switch {
	case n.reserve.leaving:
		return fmt.Errorf("%w: the disk of %s is nearly full, and another server is about to lead", ErrUnavailable, n.cfg.NodeID)
	default:
		return &lowError{n.reserve.disk}
	}
}

// diskFull is called when a write found no free space.
func (n *diskGuard) diskFull() {
	select {
	case n.reserve.wake <- struct{}{}:
	default: // it is about to check anyway
	}
}

// diskGuard watches the free space on the disk of this server, which gives up
// leadership and refuses writes when there is too little.
type diskGuard struct {
	*core
	transfers *transfers
	reserve   *reserve
}

// watchDisk checks the free space on the disk until ctx ends. While there is too
// little and this server leads, it transfers leadership to one that has enough.
func (n *diskGuard) watchDisk(ctx context.Context) {
	ticker := time.NewTicker(diskInterval)
	defer ticker.Stop()
	for {
		_, leadershipChanged := n.leadership.get()
		n.checkDisk()
		if n.reserve.now().Low {
			n.transferToMostSpace(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-n.reserve.wake:
		case <-leadershipChanged:
		}
	}
}

// checkDisk checks once, and logs a change.
func (n *diskGuard) checkDisk() {
	changed, err := n.reserve.check()
	disk := n.reserve.now()
	switch {
	case err != nil:
		n.cfg.Logger.Warn("cannot measure the free space on the disk", "node", n.cfg.NodeID, "error", err)
	case changed && disk.Low:
		n.cfg.Logger.Error("the disk is nearly full: this server takes no writes until space is freed", "node", n.cfg.NodeID,
			"where", disk.Where, "free", disk.Space.Free, "kept_free", disk.Reserve)
	case changed:
		n.cfg.Logger.Info("the disk has free space again", "node", n.cfg.NodeID, "where", disk.Where, "free", disk.Space.Free)
	}
}

// transferToMostSpace makes a server that has free space the leader: the one with
// the longest log. Where there is none, this server remains the leader.
func (n *diskGuard) transferToMostSpace(ctx context.Context) {
	defer n.reserve.setLeaving(false)
	if !n.IsLeader() || n.onlyVoter() {
		return
	}
	to := n.mostSpace(ctx)
	if to == "" {
		return
	}
	n.reserve.setLeaving(true)
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	if leader, err := n.transfers.TransferLeadership(ctx, to); err == nil {
		n.cfg.Logger.Warn("the disk is nearly full: another server leads", "node", n.cfg.NodeID, "leader", leader)
	} else if !errors.Is(err, ErrClosed) {
		n.cfg.Logger.Warn("the disk is nearly full, but leadership could not be transferred", "node", n.cfg.NodeID, "to", to, "error", err)
	}
}

// mostSpace asks the other voters, and returns the name of the one that has free
// space and the longest log; "" when there is none.
func (n *diskGuard) mostSpace(ctx context.Context) (name string) {
	ctx, cancel := context.WithTimeout(ctx, spaceTimeout)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	longest := uint64(0)
	for _, server := range n.servers() {
		if server.Suffrage != raft.Voter || server.ID == n.id {
			continue
		}
		asking.Go(func() {
			status, err := n.statusOf(ctx, server.ID, server.Address)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && !status.GetDiskLow() && status.GetLastIndex() >= longest {
				name, longest = raftlog.NameOf(server.ID), status.GetLastIndex()
			}
		})
	}
	asking.Wait()
	return name
}
