package raftnet

import (
	"sync"

	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
)

// addresses says where to send a message to a member. That is the address in
// the log, and when no server answers there, the one that gossip learned last:
// when every server has moved at once, there is no leader to note the new
// addresses, and none could be elected at the old ones. A wrong hint does no harm,
// since a message reaches the server that is meant or none (see Network).
type addresses struct {
	hint func(name string) string

	mu sync.Mutex
	// elsewhere are the servers that did not answer at the address in the log, with
	// the one to try instead.
	elsewhere map[raft.ServerID]raft.ServerAddress
}

func newAddresses(hint func(string) string) *addresses {
	return &addresses{hint: hint, elsewhere: map[raft.ServerID]raft.ServerAddress{}}
}

// reach sends a message to one of the addresses, and after a failure turns to the
// other one for the next.
func (w *addresses) reach(id raft.ServerID, target raft.ServerAddress, send func(at raft.ServerAddress) error) error {
	at, moved := w.find(id, target)
	err := send(at)
	if err == nil {
		return nil
	}
	next := raft.ServerAddress(w.hint(raftlog.NameOf(id)))
	w.mu.Lock()
	defer w.mu.Unlock()
	if moved || next == "" || next == target {
		delete(w.elsewhere, id)
	} else {
		w.elsewhere[id] = next
	}
	return err
}

func (w *addresses) find(id raft.ServerID, target raft.ServerAddress) (at raft.ServerAddress, moved bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at, moved := w.elsewhere[id]; moved {
		return at, true
	}
	return target, false
}

// TimeoutNow makes another server campaign.
func (w *Endpoint) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return w.addresses.reach(id, target, func(at raft.ServerAddress) error { return w.Transport.TimeoutNow(id, at, args, resp) })
}
