package consensus

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
)

// watchStorage makes the node answer for its storage from now on, which is just
// before raft begins to use it.
func (n *Node) watchStorage() {
	n.log.Attach(logHost{n}, n.cfg.StallLimit, n.stalled) // the host is asked nothing before raft runs
}

// storageFailed ends the process because of a failure of the storage. Only damage
// needs an operator: after any other failure a restart reads the log from the disk
// and rejoins.
func (n *core) storageFailed(err error) {
	if errors.Is(err, raftlog.ErrCorrupt) {
		err = fmt.Errorf("%w; %s", err, repair(n.cfg, n.dir.Name(), !n.onlyVoter(), true))
	} else if !errors.Is(err, raftlog.ErrRestart) {
		err = fmt.Errorf("%w; start this server again, and replace the disk if that fails or happens again", err)
	}
	n.fatal(err)
}

// logHost is the node as its log sees it.
type logHost struct{ node *Node }

var _ raftlog.Host = logHost{}

// LastSnapshot implements raftlog.Host.
func (h logHost) LastSnapshot() (index, term uint64) { return h.node.lastSnapshot() }

// OnlyVoter implements raftlog.Host.
func (h logHost) OnlyVoter() bool { return h.node.onlyVoter() }

// Leads implements raftlog.Host.
func (h logHost) Leads() bool { return h.node.leads() }

// DiskFull implements raftlog.Host.
func (h logHost) DiskFull() { h.node.disk.diskFull() }

// StorageFailed implements raftlog.Host.
func (h logHost) StorageFailed(err error) { h.node.storageFailed(err) }

// ShutDownRaft implements raftlog.Host.
func (h logHost) ShutDownRaft() { h.node.shutDownRaft() }

// Closing implements raftlog.Host.
func (h logHost) Closing() <-chan struct{} { return h.node.stopping.Done() }

// shutDownRaft has raft's goroutines end.
func (n *core) shutDownRaft() {
	n.raftOnce.Do(func() { n.raftEnd = n.running.Load().Shutdown() })
}

// stalled reports a disk that hangs. Raft itself never gives up leadership over
// that, since heartbeats do not touch the disk; and a follower would keep serving
// a state that grows old. So where others can take over, this server
// leaves them to it.
func (n *core) stalled(since time.Duration) {
	if n.cfg.Events.Stalled != nil {
		n.cfg.Events.Stalled(n.log.Path(), since)
	}
	if n.onlyVoter() {
		return
	}
	n.fatal(fmt.Errorf("%w: no write to %s has ended for %s; the other servers continue without this one: restart it once its disk answers, or replace the disk",
		ErrDiskHangs, n.log.Path(), since.Round(time.Millisecond)))
}

// onlyVoter reports whether this server votes and no other does, so that none
// could take over from it. While raft starts, it says no.
func (n *core) onlyVoter() bool {
	r := n.running.Load()
	if r == nil {
		return false
	}
	votes := false
	for _, server := range r.GetConfiguration().Configuration().Servers {
		switch {
		case server.Suffrage != raft.Voter:
		case server.ID != n.id:
			return false
		default:
			votes = true
		}
	}
	return votes
}

// leads says that raft leads here, ready to serve or not.
func (n *core) leads() bool {
	r := n.running.Load()
	return r != nil && r.State() == raft.Leader
}

// lastSnapshot is what raft says of the snapshot that it took or restored last.
func (n *core) lastSnapshot() (index, term uint64) {
	r := n.running.Load()
	if r == nil {
		return 0, 0
	}
	stats := raftStats(r)
	return stats("last_snapshot_index"), stats("last_snapshot_term")
}

// lastLogTerm is the term of the last entry of the log, or of the snapshot that
// the log has not continued yet.
func (n *core) lastLogTerm() uint64 {
	stats := raftStats(n.raft)
	if stats("last_snapshot_index") >= stats("last_log_index") {
		return stats("last_snapshot_term")
	}
	return stats("last_log_term")
}

// raftStats returns numbers that raft says nowhere else, by name.
func raftStats(r *raft.Raft) func(name string) uint64 {
	stats := r.Stats()
	return func(name string) uint64 {
		number, _ := strconv.ParseUint(stats[name], 10, 64)
		return number
	}
}

// startError adds to an error of Open what helps against it.
func startError(cfg Config, where string, err error) error {
	if errors.Is(err, raftlog.ErrCorrupt) {
		return fmt.Errorf("%w; %s", err, repair(cfg, where, false, false))
	}
	return err
}

// repair says how a server comes back whose storage is damaged: alone in its
// cluster, beside others, or, while it starts, unknown.
func repair(cfg Config, where string, others, known bool) string {
	if cfg.Role == RoleZone {
		return fmt.Sprintf("to bring it back: put a backup of %s in its place", where)
	}
	const (
		restore = "start it with an empty one and run \"meridian cluster snapshot restore FILE\" with the last saved snapshot"
		rejoin  = "run \"meridian generate server-token --valid-for 1h --bundle\" against another server and start this one with an empty one and --join-bundle FILE"
	)
	switch {
	case !known:
		return fmt.Sprintf("to bring it back, move %s away; if there are other servers, %s; if not, %s", where, rejoin, restore)
	case others:
		return fmt.Sprintf("to bring it back, move %s away, %s", where, rejoin)
	default:
		return fmt.Sprintf("to bring it back, move %s away, %s", where, restore)
	}
}
