package consensus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
)

// pilotRaft is raft as autopilot sees it. Autopilot acts on what it saw up to
// an interval ago and would make a voter of a server that was removed meanwhile;
// so the one change it makes here is decided once more.
type pilotRaft struct{ node *Node }

var _ autopilot.Raft = pilotRaft{}

// AddVoter gives a joiner its vote.
func (r pilotRaft) AddVoter(id raft.ServerID, addr raft.ServerAddress, _ uint64, _ time.Duration) raft.IndexFuture {
	err := r.node.members.promote(id, addr)
	if err != nil {
		r.node.cfg.Logger.Info("a server does not get its vote yet", "name", raftlog.NameOf(id), "raft", addr, "reason", err)
	}
	return settled{err}
}

// promote gives a server its vote, if it is a member without one, at the same
// address, and still close to the end of the log.
func (n *members) promote(id raft.ServerID, addr raft.ServerAddress) error {
	return n.changeMembers(n.stopping, func() error {
		s, ok := n.membership().disk(id)
		if !ok || s.Address != addr {
			return fmt.Errorf("%s is not a member at %s any more", raftlog.NameOf(id), addr)
		}
		if s.Suffrage == raft.Voter {
			return nil
		}
		ctx, cancel := context.WithTimeout(n.stopping, raftnet.RPCTimeout)
		defer cancel()
		last := n.raft.LastIndex()
		status, err := n.statusOf(ctx, id, addr)
		if err != nil {
			return err
		}
		if status.GetLastIndex()+n.cfg.Autopilot.MaxTrailing < last {
			return fmt.Errorf("%s has fallen behind, at entry %d of %d", raftlog.NameOf(id), status.GetLastIndex(), last)
		}
		if err := n.raft.AddVoter(id, addr, 0, n.cfg.ApplyTimeout).Error(); err != nil {
			return n.proposeError(err)
		}
		n.cfg.Logger.Info("a server has caught up and may vote", "name", raftlog.NameOf(id), "raft", addr)
		return nil
	})
}

// GetConfiguration returns the members.
func (r pilotRaft) GetConfiguration() raft.ConfigurationFuture { return r.node.raft.GetConfiguration() }

// LastIndex returns the end of the log.
func (r pilotRaft) LastIndex() uint64 { return r.node.raft.LastIndex() }

// Leader returns the leader's address.
func (r pilotRaft) Leader() raft.ServerAddress {
	addr, _ := r.node.raft.LeaderWithID()
	return addr
}

// State returns raft's state.
func (r pilotRaft) State() raft.RaftState { return r.node.raft.State() }

// Stats returns the term of the last entry, which is what autopilot reads of
// raft's statistics.
func (r pilotRaft) Stats() map[string]string {
	return map[string]string{"last_log_term": strconv.FormatUint(r.node.lastLogTerm(), 10)}
}

// errNotAutopilots is the answer to changes that only people decide on.
var errNotAutopilots = errors.New("autopilot does not decide that")

// AddNonvoter refuses: servers are added when they ask for it.
func (pilotRaft) AddNonvoter(raft.ServerID, raft.ServerAddress, uint64, time.Duration) raft.IndexFuture {
	return settled{errNotAutopilots}
}

// DemoteVoter refuses: no server loses its vote and stays.
func (pilotRaft) DemoteVoter(raft.ServerID, uint64, time.Duration) raft.IndexFuture {
	return settled{errNotAutopilots}
}

// RemoveServer refuses: the dead are removed by RemoveFailedServer.
func (pilotRaft) RemoveServer(raft.ServerID, uint64, time.Duration) raft.IndexFuture {
	return settled{errNotAutopilots}
}

// LeadershipTransferToServer refuses: any leader is as good as another.
func (pilotRaft) LeadershipTransferToServer(raft.ServerID, raft.ServerAddress) raft.Future {
	return settled{errNotAutopilots}
}

// settled is the outcome of something that is over.
type settled struct{ err error }

// Error returns the outcome.
func (s settled) Error() error { return s.err }

// Index returns nothing: autopilot does not ask.
func (settled) Index() uint64 { return 0 }

// debugOnlyHandler is a log whose lines are all for debugging: what matters of autopilot's
// doings is logged where it is done.
type debugOnlyHandler struct{ slog.Handler }

// Enabled implements slog.Handler.
func (m debugOnlyHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return m.Handler.Enabled(ctx, min(level, slog.LevelDebug))
}

// Handle implements slog.Handler.
func (m debugOnlyHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = min(r.Level, slog.LevelDebug)
	return m.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (m debugOnlyHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return debugOnlyHandler{m.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (m debugOnlyHandler) WithGroup(name string) slog.Handler {
	return debugOnlyHandler{m.Handler.WithGroup(name)}
}
