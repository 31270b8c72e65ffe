package consensus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/resource"
)

// reader finds linearizable read points, here or at the leader.
type reader struct{ *core }

// Read is a linearizable read point: views of the store taken after it returns
// hold every write that was acknowledged, by any server, before it was called.
// It returns the store's revision at that point.
//
// Any server takes a read. The leader says up to where its store has to be; this
// server then waits until its own is. Within ApplyTimeout a change of leader is
// waited out.
//
// Errors: ErrNotLeader, ErrUnavailable (among it the end of ctx), ErrClosed.
func (n *reader) Read(ctx context.Context) (resource.Revision, error) {
	if err := n.begin(); err != nil {
		return 0, err
	}
	defer n.requests.Done()
	return n.read(ctx)
}

func (n *reader) read(ctx context.Context) (resource.Revision, error) {
	patience := time.NewTimer(n.cfg.ApplyTimeout)
	defer patience.Stop()
	begun := time.Now()
	led := begun
	for {
		moved := n.moved.Wait()
		point, err := n.readPoint(ctx, begun, moved)
		if err == nil {
			if err = n.awaitApplied(ctx, begun, point); err != nil {
				return 0, fmt.Errorf("%w: this server has not caught up with revision %d: %w", ErrUnavailable, point, err)
			}
			return n.st.Revision(), nil
		}
		if n.network == nil || context.Cause(ctx) != nil || n.leaderless(&led) || !n.pause(ctx, moved, patience.C) {
			return 0, err
		}
	}
}

// readPoint asks the leader, which may be this server, for a revision that holds
// everything acknowledged so far.
func (n *reader) readPoint(ctx context.Context, begun time.Time, moved <-chan struct{}) (resource.Revision, error) {
	id, addr := n.Leader()
	if id == n.cfg.NodeID || n.network == nil {
		point, _, err := n.readPointHere(ctx)
		return point, err
	}
	if id == "" {
		return 0, ErrUnavailable
	}
	return n.readPointThere(ctx, addr, begun, moved)
}

// readPointHere returns what is committed, once a majority has confirmed that
// this server still leads, and the term it leads in. Its leadership has to be of one
// term throughout: a leader that lost and regained it may not know yet what was
// committed in between.
func (n *reader) readPointHere(ctx context.Context) (resource.Revision, uint64, error) {
	term, changed, err := n.waitLeadership(ctx)
	if err != nil {
		return 0, 0, err
	}
	asked := n.endpoint.BeginRead()
	committed := resource.Revision(n.raft.CommitIndex())
	if n.log.Starved() && n.onlyVoter() {
		// Raft would not answer while it waits for free space on the disk. No other
		// server could lead, and there is none to ask.
		return committed, term, nil
	}
	for {
		proof := n.endpoint.Changed()
		if err := n.verifyLeadership(ctx); err != nil {
			return 0, 0, err
		}
		if n.raft.CurrentTerm() != term {
			return 0, 0, ErrUnavailable
		}
		if n.network == nil || n.endpoint.Confirmed(n.id, n.servers(), term, asked) {
			return committed, term, nil
		}
		select {
		case <-proof:
		case <-changed:
			return 0, 0, n.notLeader()
		case <-ctx.Done():
			return 0, 0, fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
		}
	}
}

// verifyLeadership makes the leader ask its followers at once.
func (n *core) verifyLeadership(ctx context.Context) error {
	if n.raft.State() == raft.Shutdown {
		return ErrClosed // it would take the question, and may never answer it
	}
	verified := make(chan error, 1)
	n.unanswered.begin()
	go func() { // raft may have ended without an answer: see unanswered
		defer n.unanswered.end()
		verified <- n.raft.VerifyLeader().Error()
	}()
	select {
	case err := <-verified:
		if err != nil {
			return fmt.Errorf("%w: %w", n.notLeader(), err)
		}
		return nil
	case <-n.aborting.Done():
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	}
}

// awaitApplied waits until this server's store has a revision, as long as a
// request that began then may take.
func (n *reader) awaitApplied(ctx context.Context, begun time.Time, rev resource.Revision) error {
	if n.st.Revision() >= rev {
		return nil
	}
	limited, done := n.limited(ctx, begun, nil)
	defer done()
	return n.st.Wait(limited, rev)
}

// readPointThere asks the leader for a read point.
func (n *reader) readPointThere(ctx context.Context, addr string, begun time.Time, moved <-chan struct{}) (resource.Revision, error) {
	limited, done := n.limited(ctx, begun, moved)
	defer done()
	attempt, cancel := context.WithTimeoutCause(limited, readAttempt, errNoAnswer)
	defer cancel()
	conn, err := n.peers.Conn(addr)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	response, err := peerv1.NewRaftServiceClient(conn).ReadIndex(attempt, &peerv1.ReadIndexRequest{})
	if err == nil {
		return resource.Revision(response.GetRevision()), nil
	}
	n.retireSilent(attempt, addr, conn)
	return 0, fmt.Errorf("%w: ask the leader at %s: %w", ErrUnavailable, addr, errors.Join(context.Cause(ctx), err))
}
