package consensus

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/raft"
)

// watchStorage makes the node answer for its storage from now on, which is just
// before raft begins to use it.
func (n *Node) watchStorage() {
	n.log.host = n // which is asked nothing before raft runs
	n.log.stall.limit = n.cfg.StallLimit
	n.log.stall.stalled = n.stalled
}

// storageFailed ends the process because of a failure of the storage. Only damage
// needs an operator: after any other failure a restart reads the log from the disk
// and rejoins.
func (n *Node) storageFailed(err error) {
	if errors.Is(err, ErrCorrupt) {
		err = fmt.Errorf("%w; %s", err, repair(n.cfg, n.dir.Name(), !n.onlyVoter(), true))
	} else if !errors.Is(err, errStartAgain) {
		err = fmt.Errorf("%w; start this server again, and replace the disk if that fails or happens again", err)
	}
	n.fatal(err)
}

// shutDownRaft has raft's goroutines end.
func (n *Node) shutDownRaft() {
	n.raftOnce.Do(func() { n.raftEnd = n.running.Load().Shutdown() })
}

// stalled reports a disk that hangs. Raft itself never gives up leadership over
// that, since heartbeats do not touch the disk; and a follower would go on
// serving a state that grows old. So where others can take over, this server
// leaves them to it.
func (n *Node) stalled(since time.Duration) {
	if n.cfg.Events.Stalled != nil {
		n.cfg.Events.Stalled(n.log.path, since)
	}
	if n.onlyVoter() {
		return
	}
	n.fatal(fmt.Errorf("%w: no write to %s has ended for %s; the other servers go on without this one: restart it once its disk answers, or replace the disk",
		ErrDiskHangs, n.log.path, since.Round(time.Millisecond)))
}

// onlyVoter says that this server votes and no other does, so that nobody could
// take over from it. While raft starts, it says no.
func (n *Node) onlyVoter() bool {
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
func (n *Node) leads() bool {
	r := n.running.Load()
	return r != nil && r.State() == raft.Leader
}

// lastSnapshot is what raft says of the snapshot that it took or restored last.
func (n *Node) lastSnapshot() (index, term uint64) {
	r := n.running.Load()
	if r == nil {
		return 0, 0
	}
	stats := r.Stats()
	index, _ = strconv.ParseUint(stats["last_snapshot_index"], 10, 64)
	term, _ = strconv.ParseUint(stats["last_snapshot_term"], 10, 64)
	return index, term
}

// closing ends when Close begins.
func (n *Node) closing() <-chan struct{} { return n.stopping.Done() }

// startError adds to an error of Open what helps against it.
func startError(cfg Config, where string, err error) error {
	if errors.Is(err, ErrCorrupt) {
		return fmt.Errorf("%w; %s", err, repair(cfg, where, false, false))
	}
	return err
}
