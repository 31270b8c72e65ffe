package consensus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/raftnet"
	"meridian/internal/resource"
	"meridian/internal/store"
)

const (
	// readAttempt and writeAttempt are how long the leader may take to answer
	// before it is asked again, on another connection. A write is asked again only
	// when it carries a request id.
	readAttempt  = raftnet.RPCTimeout
	writeAttempt = 2 * raftnet.RPCTimeout
)

var (
	errTimeout  = errors.New("no answer in time")
	errMoved    = errors.New("the leader changed")
	errNoAnswer = errors.New("the leader does not answer")
	errStopping = errors.New("this server is stopping")
)

// limited bounds what is done for a request that began then: by its patience, by
// the stop of this node and, unless moved is nil, by a change of leader, after
// which an answer is waited for a little longer.
func (n *core) limited(ctx context.Context, begun time.Time, moved <-chan struct{}) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	patience := time.AfterFunc(time.Until(begun.Add(n.cfg.ApplyTimeout)), func() { cancel(errTimeout) })
	aborting := context.AfterFunc(n.aborting, func() { cancel(errStopping) })
	if moved != nil {
		n.requests.Go(func() { giveUp(ctx, moved, cancel) })
	}
	return ctx, func() {
		patience.Stop()
		aborting()
		cancel(nil)
	}
}

// giveUp ends a context when the leader has changed and an answer has been waited for a
// little longer.
func giveUp(ctx context.Context, moved <-chan struct{}, cancel context.CancelCauseFunc) {
	select {
	case <-moved:
	case <-ctx.Done():
		return
	}
	grace := time.NewTimer(answerGrace)
	defer grace.Stop()
	select {
	case <-grace.C:
		cancel(errMoved)
	case <-ctx.Done():
	}
}

// reach returns a connection to the leader's address that is there. While it is being made,
// nothing has been sent, and there is no answer to wait for: it fails as soon as the leader
// has changed. A process that begins where the leader's was may accept connections long
// before it answers on them.
func (n *core) reach(ctx context.Context, addr string, moved <-chan struct{}) (*grpc.ClientConn, error) {
	conn, err := n.peers.Conn(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if conn.GetState() == connectivity.Ready {
		return conn, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n.requests.Go(func() {
		select {
		case <-moved:
			cancel(errMoved)
		case <-ctx.Done():
		}
	})
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Idle:
			conn.Connect()
		case connectivity.Connecting:
		case connectivity.Ready, connectivity.TransientFailure, connectivity.Shutdown:
			return conn, nil // a call says why it is not there
		}
		if !conn.WaitForStateChange(ctx, state) {
			n.retireSilent(ctx, addr, conn)
			return nil, fmt.Errorf("%w: connect to the leader at %s: %w", ErrUnavailable, addr, context.Cause(ctx))
		}
	}
}

// proposeThere sends a batch to the leader and waits until this server has
// applied it too.
func (n *proposer) proposeThere(ctx context.Context, p *proposal, addr string, moved <-chan struct{}) (store.Result, error) {
	until := moved
	if !p.repeatable {
		until = nil // an answer, however late, is better than none
	}
	limited, done := n.limited(ctx, p.begun, until)
	defer done()
	if p.repeatable {
		attempt, cancel := context.WithTimeoutCause(limited, writeAttempt, errNoAnswer)
		defer cancel()
		limited = attempt
	}
	conn, err := n.reach(limited, addr, moved)
	if err != nil {
		return store.Result{}, err
	}
	response, sent, err := n.forwards.propose(limited, conn, &peerv1.ProposeRequest{Command: p.command, Note: p.note})
	n.forwarded.Add(1)
	if err != nil {
		n.retireSilent(limited, addr, conn)
		return store.Result{}, n.forwardError(limited, ctx, p, err, sent)
	}
	n.endpoint.Committed(response.GetTerm(), response.GetIndex())
	result, refused := resultFromPeer(response)
	if err := n.reader.awaitApplied(ctx, p.begun, resource.Revision(response.GetIndex())); err != nil {
		p.over = true
		if refused != nil {
			return result, refused
		}
		return store.Result{}, unknownOutcome(fmt.Errorf("it was written at revision %d, but this server has not caught up: %w", result.Revision, err))
	}
	return result, refused
}

// forwardError translates the failure of a batch that was sent to the leader.
func (n *proposer) forwardError(limited, ctx context.Context, p *proposal, err error, sent bool) error {
	cause := context.Cause(limited)
	p.over = p.over || cause != nil && (ctx.Err() != nil || !errors.Is(cause, errMoved) && !errors.Is(cause, errNoAnswer))
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	switch reason := reasonOf(err); {
	case reason == reasonDiskFull:
		p.over = true // no other server has free space either
		return &remoteDiskFullError{err}
	case reason == ReasonMemberTooOld:
		return err
	case reason == reasonNotLeader, reason == reasonUnavailable, reason == reasonUnreadable, reason == raftnet.ReasonForeignCluster, reason == raftnet.ReasonNotMember, !sent:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case reason != reasonUnknownOutcome:
		p.misrouted = true
	}
	return unknownOutcome(err)
}

// retireSilent has the next call to an address use a new connection when an
// attempt ended without an answer that should have come: what was sent into a
// broken line is sent again after ever longer pauses, and everything after it
// waits.
func (n *core) retireSilent(attempt context.Context, addr string, conn *grpc.ClientConn) {
	if cause := context.Cause(attempt); errors.Is(cause, errNoAnswer) || errors.Is(cause, errMoved) {
		n.peers.Retire(addr, conn)
	}
}
