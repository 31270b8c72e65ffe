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
		if n.network == nil || context.Cause(ctx) != nil || n.leaderless(ctx, &led) || !n.pause(ctx, moved, patience.C) {
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
	if n.raft.State() == raft.Shutdown {
		return 0, 0, ErrClosed
	}
	asked := n.endpoint.BeginRead()
	committed := n.committed()
	for first := true; ; first = false {
		proof := n.endpoint.Changed()
		if n.endpoint.Confirmed(n.id, n.servers(), term, asked) {
			break
		}
		if first { // the only voter needs no other
			n.askFollowers()
		}
		select {
		case <-proof:
		case <-changed:
			return 0, 0, n.notLeader()
		case <-n.aborting.Done():
			return 0, 0, ErrClosed
		case <-ctx.Done():
			return 0, 0, fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
		}
	}
	if n.raft.CurrentTerm() != term {
		return 0, 0, ErrUnavailable
	}
	return committed, term, nil
}

// committed is up to where the log is committed, as this server knows it: what raft takes
// for committed, as far as it is on disk here (see raftlog).
func (n *core) committed() resource.Revision {
	return resource.Revision(n.log.OnDisk(n.raft.CommitIndex()))
}

// askFollowers has raft send a heartbeat to every follower at once. Their answers arrive
// at the endpoint. Raft's own answer is not awaited: it proves less (see
// raftnet.Endpoint), and raft gives none when it ends before it has taken the question.
func (n *core) askFollowers() {
	n.answers.Go(func() { n.raft.VerifyLeader() }) // waits while raft takes no questions
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
	conn, err := n.reach(attempt, addr, moved)
	if err != nil {
		return 0, err
	}
	response, err := peerv1.NewRaftServiceClient(conn).ReadIndex(attempt, &peerv1.ReadIndexRequest{})
	if err == nil {
		n.endpoint.Committed(response.GetTerm(), response.GetRevision())
		return resource.Revision(response.GetRevision()), nil
	}
	n.retireSilent(attempt, addr, conn)
	return 0, fmt.Errorf("%w: ask the leader at %s: %w", ErrUnavailable, addr, errors.Join(context.Cause(ctx), err))
}
