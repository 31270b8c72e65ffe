package consensus

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
)

// contacts is what a leader knows about whom it reaches. Raft tells of a
// heartbeat that fails, each time, and of the first one that succeeds after
// that. Only the leader sends heartbeats, so only it learns anything.
type contacts struct {
	mu sync.Mutex
	// failures are of the servers whose last heartbeat failed.
	failures map[raft.ServerID]failure
	// added is when this server, leading, last made a server a member.
	added map[raft.ServerID]time.Time
}

// failure is a heartbeat that was not answered.
type failure struct {
	// last is when the server was heard last, told when raft said so.
	last, told time.Time
	// logged says that the log has it.
	logged bool
}

// noContactReportDelay is how long a server has to be silent before the log says
// so: longer than an election, during which a server that loses leadership does
// not answer.
const noContactReportDelay = time.Second

// failureStale is how long a failed heartbeat says anything about now. Raft
// tries again after half an election timeout at most, and every attempt ends
// within raftnet.RPCTimeout; so who has not failed for longer than this has been heard,
// or this server does not lead any more. It makes up for an observation that was
// dropped.
const failureStale = 3 * raftnet.RPCTimeout

// observationQueue is how many observations may wait. Raft drops what does not
// fit.
const observationQueue = 256

func newContacts() *contacts {
	return &contacts{failures: map[raft.ServerID]failure{}, added: map[raft.ServerID]time.Time{}}
}

// observeHeartbeats feeds contacts until ctx ends.
func (n *members) observeHeartbeats(ctx context.Context) {
	observations := make(chan raft.Observation, observationQueue)
	observer := raft.NewObserver(observations, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.FailedHeartbeatObservation, raft.ResumedHeartbeatObservation, raft.PeerObservation:
			return true
		}
		return false
	})
	n.raft.RegisterObserver(observer)
	defer n.raft.DeregisterObserver(observer)
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-observations:
			switch h := n.contacts.observe(o.Data); {
			case h.server == "":
			case h.answers:
				n.cfg.Logger.Info("a server answers again", "name", h.server, "silent_for", h.silent.Round(time.Millisecond))
			default:
				n.cfg.Logger.Warn("a server does not answer; `meridian cluster members` says why",
					"name", h.server, "silent_for", h.silent.Round(time.Millisecond))
			}
		}
	}
}

// contactChange is a change of what the log should say of a server: that it does not
// answer, once per silence, or that it answers again. The zero value is none.
type contactChange struct {
	server  string
	answers bool
	// silent is for how long it has been, or was, silent.
	silent time.Duration
}

func (c *contacts) observe(data any) contactChange {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch o := data.(type) {
	case raft.FailedHeartbeatObservation:
		now := time.Now()
		f, ok := c.failures[o.PeerID]
		if !ok || now.Sub(f.told) > failureStale { // it is of an earlier lead, or of an earlier silence
			f = failure{}
		}
		f.last, f.told = o.LastContact, now
		silent, tell := now.Sub(f.last), false
		if !f.logged && silent > noContactReportDelay {
			f.logged, tell = true, true
		}
		c.failures[o.PeerID] = f
		if tell {
			return contactChange{server: raftlog.NameOf(o.PeerID), silent: silent}
		}
	case raft.ResumedHeartbeatObservation:
		f := c.failures[o.PeerID]
		delete(c.failures, o.PeerID)
		if f.logged {
			return contactChange{server: raftlog.NameOf(o.PeerID), answers: true, silent: time.Since(f.last)}
		}
	case raft.PeerObservation: // it was added or removed: what was known is of another
		delete(c.failures, o.Peer.ID)
	}
	return contactChange{}
}

// silence returns for how long a server has not answered heartbeats; 0 when it
// answers, or when this server does not lead.
func (c *contacts) silence(id raft.ServerID) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.failures[id]
	if !ok || time.Since(f.told) > failureStale {
		return 0
	}
	return max(time.Since(f.last), time.Nanosecond)
}

// add notes that a server was made a member: whatever was known of its name is
// of another.
func (c *contacts) add(id raft.ServerID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.failures, id)
	c.added[id] = time.Now()
}

// newSince reports whether this server made another one a member within the
// time given.
func (c *contacts) newSince(id raft.ServerID, within time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.added[id]
	return ok && time.Since(at) < within
}
