package consensus

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"meridian/internal/gossip"
	"meridian/internal/raftlog"
	"meridian/internal/resource"
	"meridian/internal/version"
)

// Member is a server of the cluster, as the server that lists it knows it.
type Member struct {
	Name string
	// Raft, GRPC and Gossip are where it serves; empty where that is not known.
	Raft, GRPC, Gossip string
	// State is leader, follower, candidate or unreachable.
	State string
	// Voter says that it takes part in decisions. A server that has joined does
	// not until it has caught up.
	Voter bool
	// Applied is the revision of its store.
	Applied resource.Revision
	// Version is the release that it runs.
	Version string
	// Problem is what is wrong with it, for people; empty when nothing is.
	Problem string
	// GossipKeys identifies the keys of gossip that it has (Config.GossipKeys), empty
	// where that is not known.
	GossipKeys string
	// Encryption is the id of the key that it encrypts its disk with, NotEncrypted, or
	// empty where that is not known.
	Encryption string
}

// NotEncrypted is the Member.Encryption of a server that does not encrypt what it keeps
// on disk.
const NotEncrypted = "none"

// encryption is this server's Member.Encryption.
func (n *core) encryption() string {
	if id, ok := n.cfg.Encryption.First(); ok {
		return id.String()
	}
	return NotEncrypted
}

// StateUnreachable is the state of a member that does not answer.
const StateUnreachable = "unreachable"

// statusTimeout is how long the members have to say how they stand.
const statusTimeout = time.Second

// Members returns the servers of the cluster by name, this one among them. It
// asks every one how it stands, all at once, and needs no leader. A server that
// has not joined its cluster yet lists itself.
func (n *members) Members(ctx context.Context) []Member {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	servers := n.servers()
	hints := n.hints()
	members := make([]Member, len(servers))
	var asked sync.WaitGroup
	joining := true
	for i, s := range servers {
		if s.ID == n.id {
			joining = false
			members[i] = n.self(s)
			continue
		}
		asked.Go(func() { members[i] = n.askStatus(ctx, s, hints[raftlog.NameOf(s.ID)]) })
	}
	asked.Wait()
	if joining {
		self := n.self(raft.Server{ID: n.id, Address: n.transport.LocalAddr()})
		self.Problem = "it is not a member yet: it waits to be added"
		members = append(members, self)
	}
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return members
}

// hints returns what gossip reports about the others, by name.
func (n *members) hints() map[string]gossip.Peer {
	hints := map[string]gossip.Peer{}
	if n.cfg.Peers != nil {
		for _, p := range n.cfg.Peers() {
			hints[p.Name] = p
		}
	}
	return hints
}

// self is this server as a member.
func (n *members) self(s raft.Server) Member {
	own := n.Status()
	m := Member{
		Name: n.cfg.NodeID, Raft: n.RaftAddr(), State: own.State, Voter: s.Suffrage == raft.Voter,
		Applied: own.Applied, Version: version.String(), Encryption: n.encryption(),
	}
	if n.cfg.Addresses != nil {
		addresses := n.cfg.Addresses()
		m.GRPC, m.Gossip = addresses.GRPC, addresses.Gossip
	}
	if n.cfg.GossipKeys != nil {
		m.GossipKeys = n.cfg.GossipKeys()
	}
	if own.Leader == "" {
		m.Problem = "it knows no leader"
	}
	return m
}

// askStatus asks a member how it stands, and makes do with what gossip said about it
// where it does not answer.
func (n *members) askStatus(ctx context.Context, s raft.Server, hint gossip.Peer) Member {
	m := Member{
		Name: raftlog.NameOf(s.ID), Raft: string(s.Address), GRPC: hint.GRPC, Gossip: hint.Gossip,
		State: StateUnreachable, Voter: s.Suffrage == raft.Voter, Version: hint.Version,
	}
	answer, err := n.statusOf(ctx, s.ID, s.Address)
	if err != nil {
		m.Problem = fmt.Sprintf("it does not answer: %v", err)
		if silence := n.contacts.silence(s.ID); silence > 0 {
			m.Problem += fmt.Sprintf(" (silent for %s)", silence.Round(time.Second))
		}
		return m
	}
	m.State, m.Applied, m.Version = answer.GetState(), resource.Revision(answer.GetApplied()), answer.GetVersion()
	m.Encryption, m.GossipKeys = answer.GetEncryption(), answer.GetGossipKeys()
	m.GRPC, m.Gossip = cmp.Or(answer.GetGrpc(), m.GRPC), cmp.Or(answer.GetGossip(), m.Gossip)
	switch {
	case answer.GetState() == "":
		m.State, m.Problem = StateUnreachable, "it does not know this server as a member: one of the two lags, or was removed"
	case answer.GetLeader() == "":
		m.Problem = "it knows no leader"
	case n.contacts.silence(s.ID) > 2*n.cfg.Timing.Heartbeat:
		m.Problem = fmt.Sprintf("it does not answer the leader's heartbeats (for %s)", n.contacts.silence(s.ID).Round(time.Second))
	}
	return m
}

// Health is how the members of the cluster do, in the eyes of the leader.
type Health struct {
	// Leading says that this server leads. Others know nothing of all this.
	Leading bool
	// Healthy says that every member is.
	Healthy bool
	// FailureTolerance is how many servers may fail now without the cluster
	// ceasing to take writes; Voters is how many have a vote.
	FailureTolerance, Voters int
	Members                  []MemberHealth
}

// MemberHealth is how one member does, in the eyes of the leader.
type MemberHealth struct {
	Name    string
	Healthy bool
	// LastContact is for how long it has not answered heartbeats, 0 while it
	// does.
	LastContact time.Duration
	// Lag is by how many entries its log is behind the leader's.
	Lag uint64
}

// Health returns how the members do, by name. What it says is as old as
// Config.Autopilot.Interval at most.
func (n *Node) Health() Health {
	n.pilot.mu.Lock()
	state := n.pilot.state
	n.pilot.mu.Unlock()
	if state == nil {
		return Health{}
	}
	h := Health{Leading: true, Healthy: state.Healthy, FailureTolerance: state.FailureTolerance, Voters: len(state.Voters)}
	last := n.raft.LastIndex()
	if self, ok := state.Servers[n.id]; ok {
		last = self.Stats.LastIndex // of the same moment as the others'
	}
	for id, s := range state.Servers {
		m := MemberHealth{
			Name: raftlog.NameOf(id), Healthy: s.Health.Healthy, LastContact: n.members.contacts.silence(id),
		}
		if s.Stats.LastIndex < last {
			m.Lag = last - s.Stats.LastIndex
		}
		h.Members = append(h.Members, m)
	}
	slices.SortFunc(h.Members, func(a, b MemberHealth) int { return cmp.Compare(a.Name, b.Name) })
	return h
}
