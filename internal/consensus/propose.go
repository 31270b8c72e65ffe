package consensus

import (
	"context"
	"fmt"
	"time"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// Propose writes a batch: it returns once the batch is on the disks of a
// majority and applied to this server's store (SEMANTICS §7.1). Result.Revision
// is the raft index of the write (SEMANTICS §7.2). A txn without a time gets
// the clock's.
//
// Errors: whatever refused the batch (Result.Err, a *store.ConflictError for
// one; nothing was written), ErrNotLeader, ErrUnavailable, ErrClosed (nothing
// was written), ErrUnknownOutcome (it may have been), among it the end of ctx.
func (n *Node) Propose(ctx context.Context, txn store.Txn) (store.Result, error) {
	if err := n.begin(); err != nil {
		return store.Result{}, err
	}
	defer n.requests.Done()
	if err := context.Cause(ctx); err != nil {
		return store.Result{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if txn.Time.IsZero() {
		txn.Time = n.cfg.Clock()
	}
	command, err := store.EncodeCommand(txn)
	if err != nil {
		return store.Result{}, fmt.Errorf("consensus: propose: %w", err)
	}

	type answer struct {
		result store.Result
		err    error
	}
	answered := make(chan answer, 1)
	if err := n.writes.enter(ctx, n.cfg.ApplyTimeout); err != nil {
		return store.Result{}, err
	}
	n.requests.Go(func() {
		defer n.writes.leave()
		future := n.raft.Apply(command, n.cfg.ApplyTimeout)
		if err := future.Error(); err != nil {
			answered <- answer{err: n.proposeError(err)}
			return
		}
		result, _ := future.Response().(store.Result)
		answered <- answer{result: result, err: result.Err}
	})

	patience := time.NewTimer(n.cfg.ApplyTimeout)
	defer patience.Stop()
	select {
	case a := <-answered:
		return a.result, a.err
	case <-ctx.Done():
		return store.Result{}, fmt.Errorf("%w: %w", ErrUnknownOutcome, context.Cause(ctx))
	case <-patience.C:
		return store.Result{}, fmt.Errorf("%w: no answer within %s", ErrUnknownOutcome, n.cfg.ApplyTimeout)
	}
}

// Read is a linearizable read point: views of the store taken after it returns
// hold every write that was acknowledged, by any server, before it was called.
// It returns the store's revision at that point.
//
// It asks a majority whether this server still leads, having noted what is
// committed, and then waits until the store has applied that much. The lead has
// to be of one term throughout: a leader that lost and regained it may not know
// yet what was committed in between.
//
// Errors: ErrNotLeader, ErrUnavailable (among it the end of ctx), ErrClosed.
func (n *Node) Read(ctx context.Context) (resource.Revision, error) {
	if err := n.begin(); err != nil {
		return 0, err
	}
	defer n.requests.Done()
	term, err := n.waitLead(ctx)
	if err != nil {
		return 0, err
	}
	committed := resource.Revision(n.raft.CommitIndex())
	verified := make(chan error, 1)
	n.requests.Go(func() { verified <- n.raft.VerifyLeader().Error() })
	select {
	case err = <-verified:
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", n.notLeader(), err)
	}
	if n.raft.CurrentTerm() != term {
		return 0, ErrUnavailable
	}
	if err := n.st.Wait(ctx, committed); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return n.st.Revision(), nil
}
