package consensus

import (
	"context"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
)

// roster remembers which servers were members, as far as the log and the time since
// the start go back; Config.Register goes back further. What raft knows a server by is
// used once: a server that was removed joins again as another one. So one that was
// removed stays removed.
type roster struct {
	mu sync.Mutex
	// seen are all, current those of the newest committed configuration.
	seen, current map[raft.ServerID]bool // guarded by mu
}

// note takes a committed configuration, and reports whether a member is gone.
func (r *roster) note(c raft.Configuration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.current
	r.current = map[raft.ServerID]bool{}
	if r.seen == nil {
		r.seen = map[raft.ServerID]bool{}
	}
	for _, s := range c.Servers {
		r.seen[s.ID], r.current[s.ID] = true, true
	}
	for id := range before {
		if !r.current[id] {
			return true
		}
	}
	return false
}

// removed reports whether a server was a member, and is none any more.
func (r *roster) removed(id raft.ServerID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[id] && !r.current[id]
}

// gone returns the servers that were members and are none any more.
func (r *roster) gone() (ids []raft.ServerID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.seen {
		if !r.current[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// wasRemoved reports whether a server was a member, and is none any more.
func (n *core) wasRemoved(id raft.ServerID) bool {
	if n.roster.removed(id) {
		return true
	}
	if n.cfg.Register == nil || !n.cfg.Register.Removed(string(id)) {
		return false
	}
	return n.running.Load() == nil || !n.isMember(id)
}

// revoked reports whether a key of a certificate is known as that of servers that were
// removed only. Servers that share a certificate keep it until the last one is removed.
func (n *core) revoked(key string) bool {
	if n.cfg.Register == nil {
		return false
	}
	holders := n.cfg.Register.Holders(key)
	for _, id := range holders {
		if !n.wasRemoved(raft.ServerID(id)) {
			return false
		}
	}
	return len(holders) > 0
}

// Gone returns the servers that were members and are none any more, as raft knows
// them, as far as the log of this server and the time since its start go back.
func (n *core) Gone() []string {
	gone := n.roster.gone()
	names := make([]string, len(gone))
	for i, id := range gone {
		names[i] = string(id)
	}
	slices.Sort(names)
	return names
}

// Meet has the certificates of the other members verified anew (raftnet.Config.Met):
// those of connections that are open may have been replaced since. Servers that do not
// answer are passed over.
func (n *core) Meet(ctx context.Context) {
	var meeting sync.WaitGroup
	for _, s := range n.servers() {
		if s.ID != n.id {
			meeting.Go(func() { n.meet(ctx, s) })
		}
	}
	meeting.Wait()
}

func (n *core) meet(ctx context.Context, s raft.Server) {
	if n.network == nil {
		return
	}
	addr := s.Address
	if at, moved := n.endpoint.AddressOf(s.ID); moved {
		addr = at
	}
	if err := n.network.Meet(ctx, s.ID, string(addr)); err != nil {
		n.cfg.Logger.Debug("the certificate of a server was not seen", "name", raftlog.NameOf(s.ID), "error", err)
	}
}

// configured notes a committed configuration, and ends raft's connections of a
// server that it removes.
func (n *core) configured(c raft.Configuration) {
	removed := n.roster.note(c)
	if n.cfg.Events.Members != nil {
		n.cfg.Events.Members()
	}
	if !removed || n.begin() != nil {
		return
	}
	go func() { // ends before Close does
		defer n.requests.Done()
		n.Recheck()
	}()
}
