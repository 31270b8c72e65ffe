package consensus

import (
	"sync"

	"github.com/hashicorp/raft"
)

// roster remembers which servers were members, as far as the log and the time since
// the start go back. What raft knows a server by is used once: a server that was
// removed joins again as another one. So one that was removed stays removed.
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

// configured notes a committed configuration, and ends raft's connections of a
// server that it removes.
func (n *core) configured(c raft.Configuration) {
	if !n.roster.note(c) || n.begin() != nil {
		return
	}
	go func() { // ends before Close does
		defer n.requests.Done()
		n.Recheck()
	}()
}
