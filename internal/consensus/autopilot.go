package consensus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"meridian/internal/gossip"
	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
)

// Autopilot is how a leader looks after its members: it gives a new server its
// vote once that is safe, and removes one that is gone for good.
type Autopilot struct {
	// Interval is how often the members are looked at.
	Interval time.Duration
	// Stabilization is for how long a new server has to be up and close to the
	// end of the log before it gets its vote: a vote of a server that comes and
	// goes does harm. At least raftnet.RPCTimeout, so that no answer from before a
	// server lost its disk counts as one of its new life.
	Stabilization time.Duration
	// MaxTrailing is by how many entries a healthy server may be behind.
	MaxTrailing uint64
	// DeadAfter is for how long a server has to be silent towards heartbeats and
	// gossip both before it is removed; 0: never.
	DeadAfter time.Duration
	// MinVoters is how many voters have to be left for a dead server to be
	// removed.
	MinVoters uint
}

// DefaultAutopilot returns the settings for servers that are near each other.
func DefaultAutopilot() Autopilot {
	return Autopilot{
		Interval: 2 * time.Second, Stabilization: 10 * time.Second, MaxTrailing: 1000,
		DeadAfter: 5 * time.Minute, MinVoters: 3,
	}
}

func (a Autopilot) validate() error {
	switch {
	case a.Interval <= 0:
		return fmt.Errorf("autopilot: interval %s must be positive", a.Interval)
	case a.Stabilization < raftnet.RPCTimeout:
		return fmt.Errorf("autopilot: stabilization %s must be at least %s", a.Stabilization, raftnet.RPCTimeout)
	case a.DeadAfter < 0:
		return fmt.Errorf("autopilot: time until removal %s must not be negative", a.DeadAfter)
	case a.MinVoters < 3 && a.DeadAfter > 0:
		return errors.New("autopilot: at least 3 voters must remain when a dead one is removed")
	}
	return nil
}

// pilot runs raft-autopilot while this server leads. It decides when a server is
// stable or dead; whether a change is still right is decided again when it is
// made, like every other change of members (membership.go).
type pilot struct {
	node *Node

	mu sync.Mutex
	// state is what was found last, nil while this server does not lead.
	state *autopilot.State
	// since is when each member became as healthy as it is. Autopilot has a field
	// for that which stays what it was when the member was first seen (v0.3.0,
	// state.go: it compares the new value with a pointer to itself).
	since map[raft.ServerID]health
}

// health is whether a member is healthy, and since when.
type health struct {
	healthy bool
	since   time.Time
}

var (
	_ autopilot.ApplicationIntegration = (*pilot)(nil)
	_ autopilot.Promoter               = (*pilot)(nil)
)

// voterNode and joinerNode are autopilot's node types: only the former count
// when it works out how many voters would be left.
const (
	voterNode  = autopilot.NodeVoter
	joinerNode = autopilot.NodeType("joiner")
)

// run starts and stops autopilot with the leadership, until ctx ends.
func (p *pilot) run(ctx context.Context) {
	for {
		term, changed := p.node.leadership.get()
		if term != 0 {
			p.runUntil(ctx, changed)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// runUntil runs autopilot until the leadership changes. It is a new one each time:
// what an earlier one knew is old.
func (p *pilot) runUntil(ctx context.Context, changed <-chan struct{}) {
	interval := p.node.cfg.Autopilot.Interval
	a := autopilot.New(pilotRaft{p.node}, p,
		autopilot.WithLogger(raftnet.NewLogger(slog.New(debugOnlyHandler{p.node.cfg.Logger.Handler()}))),
		autopilot.WithPromoter(p),
		autopilot.WithUpdateInterval(interval),
		autopilot.WithReconcileInterval(interval),
	)
	a.Start(ctx)
	select {
	case <-changed:
	case <-ctx.Done():
	}
	<-a.Stop()
	p.NotifyState(nil)
}

// AutopilotConfig implements autopilot.ApplicationIntegration.
func (p *pilot) AutopilotConfig() *autopilot.Config {
	cfg := p.node.cfg
	return &autopilot.Config{
		CleanupDeadServers:      cfg.Autopilot.DeadAfter > 0,
		LastContactThreshold:    2 * cfg.Timing.Heartbeat,
		MaxTrailingLogs:         cfg.Autopilot.MaxTrailing,
		MinQuorum:               cfg.Autopilot.MinVoters,
		ServerStabilizationTime: cfg.Autopilot.Stabilization,
	}
}

// NotifyState keeps what was found.
func (p *pilot) NotifyState(state *autopilot.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.since
	p.state, p.since = state, map[raft.ServerID]health{}
	if state == nil {
		return
	}
	for id, s := range state.Servers {
		now := health{s.Health.Healthy, time.Now()}
		if was, ok := before[id]; ok && was.healthy == now.healthy {
			now = was
		}
		p.since[id] = now
	}
}

// stable reports whether a member has been healthy for some time.
func (p *pilot) stable(id raft.ServerID, long time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.since[id]
	return h.healthy && time.Since(h.since) >= long && !p.node.members.contacts.newSince(id, long)
}

// KnownServers says which members are dead. It names every member: autopilot
// takes what it is not told of for stale and removes it at once.
func (p *pilot) KnownServers() map[raft.ServerID]*autopilot.Server {
	servers := p.node.servers()
	known := make(map[raft.ServerID]*autopilot.Server, len(servers))
	for _, s := range servers {
		status := autopilot.NodeAlive
		if p.dead(s.ID) {
			status = autopilot.NodeFailed
		}
		known[s.ID] = &autopilot.Server{
			ID: s.ID, Name: raftlog.NameOf(s.ID), Address: s.Address,
			NodeStatus: status, NodeType: nodeType(s.Suffrage == raft.Voter),
			IsLeader: s.ID == p.node.id,
		}
	}
	return known
}

func nodeType(voter bool) autopilot.NodeType {
	if voter {
		return voterNode
	}
	return joinerNode
}

// dead reports whether a member has been silent for too long, by every means
// there is. Heartbeats alone may fail because of a link that only the leader
// needs; gossip, which goes around it, has to agree. A server that gossip does
// not know is not alive either, unless gossip reaches no server at all and so
// proves nothing.
func (p *pilot) dead(id raft.ServerID) bool {
	limit := p.node.cfg.Autopilot.DeadAfter
	if limit == 0 || id == p.node.id || p.node.members.contacts.silence(id) < limit {
		return false
	}
	if p.node.cfg.Peers == nil {
		return true
	}
	hears := false
	for _, peer := range p.node.cfg.Peers() {
		switch {
		case peer.Name != raftlog.NameOf(id):
			hears = hears || peer.State == gossip.Alive
		case peer.State == gossip.Alive:
			return false
		case peer.State == gossip.Dead && time.Since(peer.Since) < limit:
			return false
		}
	}
	return hears
}

// FetchServerStats asks every member how far it is. One that does not answer, or
// answers as another server, is not healthy.
func (p *pilot) FetchServerStats(ctx context.Context, servers map[raft.ServerID]*autopilot.Server) map[raft.ServerID]*autopilot.ServerStats {
	var (
		mu    sync.Mutex
		asked sync.WaitGroup
		stats = make(map[raft.ServerID]*autopilot.ServerStats, len(servers))
	)
	for id, s := range servers {
		asked.Go(func() {
			stat := p.stats(ctx, s)
			mu.Lock()
			defer mu.Unlock()
			stats[id] = &stat
		})
	}
	asked.Wait()
	return stats
}

// silent is how autopilot is told that a server is not there.
const silent = time.Duration(-1)

func (p *pilot) stats(ctx context.Context, s *autopilot.Server) autopilot.ServerStats {
	n := p.node
	if s.ID == n.id {
		return autopilot.ServerStats{LastTerm: n.lastLogTerm(), LastIndex: n.raft.LastIndex()}
	}
	status, err := n.statusOf(ctx, s.ID, s.Address)
	if err != nil {
		return autopilot.ServerStats{LastContact: silent}
	}
	return autopilot.ServerStats{
		LastContact: n.members.contacts.silence(s.ID), LastTerm: status.GetLastTerm(), LastIndex: status.GetLastIndex(),
	}
}

// RemoveFailedServer removes a server that is dead still. Autopilot has made
// sure that enough voters remain.
func (p *pilot) RemoveFailedServer(s *autopilot.Server) {
	n := p.node
	err := n.members.changeMembers(n.stopping, func() error {
		known, ok := n.members.membership().disk(s.ID)
		if !ok || known.Address != s.Address || !p.dead(s.ID) {
			return nil
		}
		silence := n.members.contacts.silence(s.ID)
		if err := n.members.take(step{remove, s.ID, ""}, ""); err != nil {
			return err
		}
		n.cfg.Logger.Warn("a dead server is not a member any more: to bring it back, let it join as a new server, with a new data directory",
			"name", s.Name, "silent_for", silence.Round(time.Second))
		return nil
	})
	if err != nil {
		n.cfg.Logger.Warn("a dead server could not be removed", "name", s.Name, "error", err)
	}
}

// GetServerExt implements autopilot.Promoter: there is nothing to add.
func (*pilot) GetServerExt(*autopilot.Config, *autopilot.ServerState) any { return nil }

// GetStateExt implements autopilot.Promoter: there is nothing to add.
func (*pilot) GetStateExt(*autopilot.Config, *autopilot.State) any { return nil }

// GetNodeTypes implements autopilot.Promoter.
func (*pilot) GetNodeTypes(_ *autopilot.Config, state *autopilot.State) map[raft.ServerID]autopilot.NodeType {
	types := make(map[raft.ServerID]autopilot.NodeType, len(state.Servers))
	for id, s := range state.Servers {
		types[id] = nodeType(s.HasVotingRights())
	}
	return types
}

// IsPotentialVoter implements autopilot.Promoter.
func (*pilot) IsPotentialVoter(t autopilot.NodeType) bool { return t == voterNode }

// FilterFailedServerRemovals keeps dead joiners of a cluster that is too small
// to lose any, and stale servers: there are none, only ones that were added
// while autopilot was looking.
func (p *pilot) FilterFailedServerRemovals(cfg *autopilot.Config, state *autopilot.State, failed *autopilot.FailedServers) *autopilot.FailedServers {
	kept := &autopilot.FailedServers{FailedVoters: failed.FailedVoters}
	if uint(len(state.Voters)) >= cfg.MinQuorum {
		kept.FailedNonVoters = failed.FailedNonVoters
	}
	return kept
}

// CalculatePromotionsAndDemotions promotes joiners that have been healthy for
// the whole of the stabilization time. Autopilot's own promoter lets a new
// leader promote at once.
func (p *pilot) CalculatePromotionsAndDemotions(cfg *autopilot.Config, state *autopilot.State) autopilot.RaftChanges {
	var changes autopilot.RaftChanges
	for id, s := range state.Servers {
		if s.State == autopilot.RaftNonVoter && p.stable(id, cfg.ServerStabilizationTime) {
			changes.Promotions = append(changes.Promotions, id)
		}
	}
	return changes
}
