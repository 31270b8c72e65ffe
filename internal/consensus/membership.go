package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/raftlog"
	"meridian/internal/rpcerr"
)

// members knows the servers of the cluster, and changes who they are while this
// server leads.
type members struct {
	*core
	transfers *transfers
	contacts  *contacts
	// changing holds a token while members are being changed.
	changing chan struct{}
}

// memberAddresses returns the members as this server knows them.
func (n *members) memberAddresses() []*peerv1.MemberAddress {
	servers := n.servers()
	members := make([]*peerv1.MemberAddress, 0, len(servers))
	for _, s := range servers {
		members = append(members, &peerv1.MemberAddress{
			Name: raftlog.NameOf(s.ID), Raft: string(s.Address), Voter: s.Suffrage == raft.Voter,
		})
	}
	return members
}

// membership is what this server, which leads, decides a change on.
func (n *members) membership() membership {
	return membership{
		cluster: n.ClusterID(), self: n.id, servers: n.servers(), format: n.formatInUse.Load(), removed: n.wasRemoved,
		silence: n.contacts.silence,
		// One failed heartbeat is not silence: it may have been lost.
		gone: 2 * n.cfg.Timing.Heartbeat,
	}
}

// addMember makes a server a member without a vote, or notes its new address. It
// has to be called on the leader.
//
// Errors: a refusal (*rpcerr.Error with one of the reasons), ErrNotLeader,
// ErrUnavailable, ErrClosed, ErrUnknownOutcome: ask again.
func (n *members) addMember(ctx context.Context, a addition) error {
	if a.name == "" || a.addr == "" {
		return rpcerr.New(rpcerr.Invalid, "", "a member has a name and an address, not %q and %q", a.name, a.addr)
	}
	return n.changeMembers(ctx, func() error {
		if at, moved := n.endpoint.AddressOf(raftlog.ServerID(a.name, a.disk)); moved {
			a.reached = string(at)
		}
		steps, err := n.membership().add(a)
		if rpcerr.HasReason(err, ReasonRemoved) {
			// Only a server that leads may say so, and what the server was removed by
			// may not be committed yet.
			if err := n.proposeEmpty(); err != nil {
				return err
			}
			steps, err = n.membership().add(a)
		}
		if err != nil {
			return err
		}
		if err := n.replaceable(a, steps); err != nil {
			return err
		}
		if err := n.admit(a); err != nil {
			return err
		}
		for _, s := range steps {
			if err := n.take(s, raftlog.ServerID(a.name, a.disk)); err != nil {
				return err
			}
		}
		if len(steps) > 0 {
			n.cfg.Logger.Info("a server is a member", "name", a.name, "raft", a.addr, "fresh", a.fresh, "version", a.version)
		}
		return nil
	})
}

// replaceable refuses steps that replace a voter which cannot be spared, or is there.
// As for a removal, servers are asked: a heartbeat takes a moment to be missed.
func (n *members) replaceable(a addition, steps []step) error {
	for _, s := range steps {
		if s.what != remove {
			continue
		}
		if server, ok := n.membership().disk(s.id); ok && server.Suffrage == raft.Voter {
			return n.called(n.stopping).replace(server, a)
		}
	}
	return nil
}

// registerPatience bounds how long what is registered of a server may hold up a change
// of members.
const registerPatience = 2 * time.Second

// admit refuses the certificate of a server that was removed, and has the register
// record any other. A server that joins on a new disk is recorded before its old one is
// removed, so that its certificate counts at any moment.
func (n *members) admit(a addition) error {
	if n.cfg.Register == nil || a.key == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(n.stopping, registerPatience)
	defer cancel()
	id := raftlog.ServerID(a.name, a.disk)
	if n.revoked(a.key) {
		return rpcerr.New(rpcerr.Conflict, ReasonCertificateRevoked,
			"the certificate of %s is that of %s, which was removed from this cluster: give it a certificate with another key", a.name, raftlog.NameOf(raft.ServerID(n.cfg.Register.Holders(a.key)[0])))
	}
	if err := n.cfg.Register.Record(ctx, string(id), a.key); err != nil {
		return fmt.Errorf("%w: the certificate of %s cannot be recorded: %w", ErrUnavailable, a.name, err)
	}
	return nil
}

// removing has the register record that a server is about to be removed, and by which
// certificate it is known until then. What fails does not stop the removal, which may be
// urgent: the register is completed later, from the log.
func (n *members) removing(id, successor raft.ServerID) {
	if n.cfg.Register == nil {
		return
	}
	ctx, cancel := context.WithTimeout(n.stopping, registerPatience)
	defer cancel()
	for _, s := range n.servers() {
		if s.ID == id && n.contacts.silence(id) == 0 {
			n.meet(ctx, s)
		}
	}
	if err := n.cfg.Register.Removing(ctx, string(id), string(successor)); err != nil {
		n.cfg.Logger.Warn("the removal of a server is not registered yet", "name", raftlog.NameOf(id), "error", err)
	}
}

// removeMember takes a server out of the cluster. It has to be called on the
// leader; the leader itself hands over first, and fails with ErrNotLeader: the
// next leader removes it.
//
// Errors: as addMember.
func (n *members) removeMember(ctx context.Context, name string, force bool) error {
	if name != n.cfg.NodeID {
		if !force {
			n.awaitStop(ctx, name)
		}
		return n.changeMembers(ctx, func() error {
			gone, err := n.called(n.stopping).release(name, force)
			if err != nil {
				return err
			}
			if err := n.take(step{remove, gone.ID, ""}, ""); err != nil {
				return err
			}
			n.cfg.Logger.Info("a server is not a member any more", "name", name, "forced", force)
			return nil
		})
	}
	if _, _, err := n.waitLeadership(ctx); err != nil {
		return err
	}
	if _, err := n.called(ctx).release(name, force); err != nil {
		return err
	}
	if _, err := n.transfers.TransferLeadership(ctx, ""); err != nil {
		return err
	}
	return ErrNotLeader
}

// awaitStop waits while a server that is to be removed stops, or has stopped so
// shortly ago that it has not missed a heartbeat yet.
func (n *members) awaitStop(ctx context.Context, name string) {
	for {
		m := n.called(ctx)
		server, known := m.find(name)
		if !known || !m.answers(server.ID) && !m.called[server.ID] || m.called[server.ID] && !m.leaving[server.ID] {
			return
		}
		select {
		case <-time.After(leaderPause):
		case <-ctx.Done():
			return
		case <-n.stopping.Done():
			return
		}
	}
}

// called is the membership, and who answers a call now.
func (n *members) called(ctx context.Context) membership {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	m := n.membership()
	answered, leaving := make([]bool, len(m.servers)), make([]bool, len(m.servers))
	var asked sync.WaitGroup
	for i, s := range m.servers {
		if s.ID == m.self {
			continue
		}
		asked.Go(func() {
			status, err := n.statusOf(ctx, s.ID, s.Address)
			answered[i], leaving[i] = err == nil, status.GetStopping()
		})
	}
	asked.Wait()
	m.called, m.leaving = map[raft.ServerID]bool{}, map[raft.ServerID]bool{}
	for i, s := range m.servers {
		m.called[s.ID], m.leaving[s.ID] = answered[i], leaving[i]
	}
	return m
}

// changeMembers runs a decision about members and what it leads to, one at a
// time: what one decides on must not change under it. Only a leader changes
// members, and raft refuses the change of one that has stopped leading, so
// nothing else can.
//
// The change continues when ctx ends.
func (n *members) changeMembers(ctx context.Context, change func() error) error {
	if err := n.begin(); err != nil {
		return err
	}
	defer n.requests.Done()
	if _, _, err := n.waitLeadership(ctx); err != nil {
		return err
	}
	select {
	case n.changing <- struct{}{}:
	case <-n.stopping.Done():
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	}
	done := make(chan error, 1)
	n.requests.Go(func() {
		defer func() { <-n.changing }()
		done <- change()
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return unknownOutcome(context.Cause(ctx))
	}
}

// take changes raft's configuration and returns once the change is committed. A
// server that is added has no vote; one that moved keeps what it has.
func (n *members) take(s step, successor raft.ServerID) error {
	var future raft.IndexFuture
	switch s.what {
	case remove:
		n.removing(s.id, successor)
		future = n.raft.RemoveServer(s.id, 0, n.cfg.ApplyTimeout)
	case add, move: // raft leaves a voter its vote
		future = n.raft.AddNonvoter(s.id, s.addr, 0, n.cfg.ApplyTimeout)
	}
	if err := future.Error(); err != nil {
		return fmt.Errorf("%s %s: %w", s.what, raftlog.NameOf(s.id), n.proposeError(err))
	}
	if s.what == add {
		n.contacts.add(s.id)
	}
	return nil
}

// Remove takes a server out of the cluster. Any server may be asked, also the
// one that is to go; a leader that is to go hands over first. With force it is
// done also to a server that is alive. A server that was removed stops with
// ErrRemoved once it finds out.
//
// Errors: a refusal (*rpcerr.Error with the reason LAST_VOTER,
// WOULD_LOSE_QUORUM, IS_ALIVE or UNKNOWN_SERVER), ErrUnavailable, ErrClosed,
// ErrUnknownOutcome: look at the members, or ask again.
func (n *members) Remove(ctx context.Context, name string, force bool) error {
	tried := false
	return n.atLeader(ctx, func(ctx context.Context) error {
		err := n.removeMember(ctx, name, force)
		tried = tried || errors.Is(err, ErrUnknownOutcome)
		return removed(err, tried)
	}, func(ctx context.Context, leader peerv1.RaftServiceClient) error {
		_, err := leader.RemoveMember(ctx, &peerv1.RemoveMemberRequest{Name: name, Force: force})
		err = memberError(err)
		tried = tried || errors.Is(err, ErrUnknownOutcome)
		return removed(err, tried)
	})
}

// removed makes a success of the discovery that a server is gone whose removal
// was tried before with an unknown outcome.
func removed(err error, tried bool) error {
	if tried && rpcerr.HasReason(err, ReasonUnknownServer) {
		return nil
	}
	return err
}
