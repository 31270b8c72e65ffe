package consensus

import (
	"time"

	"meridian/internal/resource"
)

// Figures are what a node counts, for metrics.
type Figures struct {
	// Forwarded is how many batches this server has sent to the leader.
	Forwarded uint64
	// Snapshot is the revision of the newest snapshot, 0 when there is none.
	Snapshot resource.Revision
	// Heard is how long ago a leader last made contact, 0 on the leader itself.
	Heard time.Duration
}

// Figures returns what has been counted since the start. It reads memory only.
func (n *Node) Figures() Figures {
	snapshot, _ := n.lastSnapshot()
	out := Figures{Forwarded: n.proposer.forwarded.Load(), Snapshot: resource.Revision(snapshot)}
	if last := n.raft.LastContact(); !n.leads() && !last.IsZero() {
		out.Heard = time.Since(last)
	}
	return out
}
