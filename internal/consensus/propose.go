package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"meridian/internal/raftlog"
	"meridian/internal/store"
)

const (
	// answerMargin is how long before the end of the caller's time a request ends that waits
	// for a leader, so that the caller hears why.
	answerMargin = 250 * time.Millisecond
	// retryPause is how long a request waits for a leader before it looks again,
	// should nothing wake it.
	retryPause = 20 * time.Millisecond
	// answerGrace is how long the answer of a server that no longer leads is
	// waited for.
	answerGrace = 250 * time.Millisecond
	// proposalBytes is the size of the batches that a leader takes at a time, in
	// bytes. Raft writes all that wait at once, and holds them until they are
	// committed.
	proposalBytes = 32 << 20
)

// proposer writes batches, here or at the leader.
type proposer struct {
	*core
	disk   *diskGuard
	reader *reader
	// formats knows what the members can apply.
	formats  *formats
	entries  *entries
	forwards *forwards
	// space is what is left of proposalBytes.
	space *semaphore.Weighted
	// forwarded counts the batches that were sent to the leader.
	forwarded atomic.Uint64
}

// Propose writes a batch: it returns once the batch is on the disks of a
// majority and applied to this server's store (§7.1). Result.Revision
// is the raft index of the write (§7.2). A txn without a time gets
// the clock's.
//
// Any server takes a batch; the leader gets it. Within ApplyTimeout an attempt
// that had no effect is repeated, so that a change of leader is a delay; one
// whose outcome is unknown is repeated when the txn has a request id, with which
// it is applied at most once.
//
// A batch that would change nothing is compared with a state that is surely the
// newest, and not written, so that batches without effect do not fill the disk. Of
// one with a request id the id is written: an earlier attempt may be on its way. The
// answer is of the state that it was compared with.
//
// Errors: whatever refused the batch (Result.Err, a *store.ConflictError for
// one; nothing was written), ErrNotLeader, ErrUnavailable, ErrClosed (nothing
// was written), ErrUnknownOutcome (it may have been, or yet be), among it the
// end of ctx.
func (n *proposer) Propose(ctx context.Context, txn store.Txn) (store.Result, error) {
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
	proposed := txn
	compared, noEffect := n.withoutEffect(ctx, txn)
	switch {
	case noEffect && txn.RequestID == "":
		return compared, compared.Err
	case noEffect && compared.Err == nil:
		proposed = store.Txn{RequestID: txn.RequestID, Time: txn.Time, Note: txn.Note}
	case noEffect: // the first attempt may be why it is refused
		if applied, found := n.st.Applied(txn.RequestID); found {
			return applied, nil
		}
	}
	command, scope, err := store.EncodeScoped(proposed)
	if err != nil {
		return store.Result{}, fmt.Errorf("encode the batch: %w", err)
	}
	p := proposal{command: command, note: txn.Note, scope: scope, repeatable: txn.RequestID != "", patience: time.NewTimer(n.cfg.ApplyTimeout), begun: time.Now()}
	defer p.patience.Stop()
	result, err := n.write(ctx, &p)
	if err != nil || len(result.Results) >= len(txn.Ops) {
		return result, err
	}
	switch { // it had no effect, now or under the same id before
	case len(compared.Results) == 0:
		result.Results = n.st.View().Without(txn.Ops)
	case result.Duplicate:
		result.Results = compared.Results
	default:
		result = compared
	}
	return result, nil
}

// write makes attempts until one succeeds or none is left.
func (n *proposer) write(ctx context.Context, p *proposal) (store.Result, error) {
	led := p.begun
	for {
		moved := n.moved.Wait()
		result, err := n.attempt(ctx, p, moved)
		if err == nil || result.Err != nil || !p.again(err) || n.network == nil || n.leaderless(ctx, &led) {
			return p.outcome(result, err)
		}
		if !n.pause(ctx, moved, p.patience.C) {
			return p.outcome(store.Result{}, err)
		}
	}
}

// withoutEffect returns what becomes of a batch that would be refused, or would
// change nothing, in a state that holds everything that was acknowledged before the
// call; false, should it change something.
func (n *proposer) withoutEffect(ctx context.Context, txn store.Txn) (store.Result, bool) {
	if len(txn.Ops) == 0 || n.st.View().Changes(txn) {
		return store.Result{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.ApplyTimeout)
	defer cancel()
	if _, err := n.reader.Read(ctx); err != nil {
		return store.Result{}, false // what keeps it from being read keeps it from being written
	}
	result, after := n.st.Preview(txn)
	if result.Err != nil || result.Unchanged() && !after.Changes(txn) {
		return result, true
	}
	return store.Result{}, false
}

// proposal is a batch on its way into the log.
type proposal struct {
	command, note []byte
	scope         store.Scope
	// repeatable says that the batch carries a request id.
	repeatable bool
	patience   *time.Timer
	begun      time.Time
	// over says that patience or the caller's context ended during an attempt.
	over bool
	// unknownOutcome says that an attempt may have had an effect; misrouted, that
	// it may not even have arrived yet: then it can take effect after a later one.
	unknownOutcome, misrouted bool
}

// again notes how an attempt failed and reports whether to make another.
func (p *proposal) again(err error) bool {
	if errors.Is(err, ErrUnknownOutcome) {
		p.unknownOutcome = true
		return p.repeatable && !p.over
	}
	return !p.over && (errors.Is(err, ErrNotLeader) || errors.Is(err, ErrUnavailable))
}

// outcome is what the caller gets: that nothing was written is said only when it
// is true of every attempt.
func (p *proposal) outcome(result store.Result, err error) (store.Result, error) {
	switch {
	case err == nil, errors.Is(err, ErrUnknownOutcome):
		return result, err
	case result.Err != nil && !p.misrouted:
		return result, err
	case p.unknownOutcome:
		return store.Result{}, unknownOutcome(fmt.Errorf("an earlier attempt had no answer, the last one failed: %v", err)) //nolint:errorlint // what the last attempt says is not true of the write
	}
	return result, err
}

// attempt proposes once, here or at the leader.
func (n *proposer) attempt(ctx context.Context, p *proposal, moved <-chan struct{}) (store.Result, error) {
	id, addr := n.Leader()
	if id == n.cfg.NodeID || n.network == nil {
		result, _, err := n.proposeHere(ctx, p)
		return result, err
	}
	if id == "" {
		return store.Result{}, ErrUnavailable
	}
	return n.proposeThere(ctx, p, addr, moved)
}

// proposeHere appends a batch to this server's log and returns once it is
// committed and applied here, with its index.
func (n *proposer) proposeHere(ctx context.Context, p *proposal) (store.Result, uint64, error) {
	if err := n.disk.writable(); err != nil && n.leads() {
		p.over = errors.Is(err, raftlog.ErrDiskFull) // no server has free space, and that may last
		return store.Result{}, 0, err
	}
	if err := n.formats.check(ctx, store.FormatOf(p.command)); err != nil {
		return store.Result{}, 0, err
	}
	bytes, err := n.takeSpace(ctx, p)
	if err != nil {
		p.over = true
		return store.Result{}, 0, err
	}
	if err := n.writes.enter(ctx, n.cfg.ApplyTimeout); err != nil {
		n.space.Release(bytes)
		p.over = true
		return store.Result{}, 0, err
	}
	answered := make(chan answer, 1)
	n.entries.write(&queued{p.command, p.note, p.scope, func(a answer) {
		n.space.Release(bytes)
		n.writes.leave()
		answered <- a
	}})
	select {
	case a := <-answered:
		return a.result, a.index, a.err
	case <-ctx.Done():
		p.over = true
		return store.Result{}, 0, unknownOutcome(context.Cause(ctx))
	case <-p.patience.C:
		p.over = true
		return store.Result{}, 0, unknownOutcome(fmt.Errorf("no answer within %s", n.cfg.ApplyTimeout))
	}
}

// errNoSpace is why a batch was given up that waited for those before it.
var errNoSpace = errors.New("the batches before it have not been written in time")

// takeSpace waits until a batch fits beside those under way, in the order of their
// arrival. It returns what is to be released once the batch is decided.
func (n *proposer) takeSpace(ctx context.Context, p *proposal) (bytes int64, err error) {
	bytes = min(int64(len(p.command)), proposalBytes)
	if n.space.TryAcquire(bytes) {
		return bytes, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, n.cfg.ApplyTimeout, errNoSpace)
	defer cancel()
	if err := n.space.Acquire(ctx, bytes); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	}
	return bytes, nil
}

// leaderless reports whether a request has waited for a leader for as long as it
// should, or nearly as its caller does. led is when there was one last, to the knowledge of the request.
func (n *core) leaderless(ctx context.Context, led *time.Time) bool {
	if id, _ := n.Leader(); id != "" || n.cfg.LeaderTimeout == 0 {
		*led = time.Now()
		return false
	}
	until, limited := ctx.Deadline()
	return time.Since(*led) > n.cfg.LeaderTimeout || limited && time.Until(until) < answerMargin
}

// pause waits until another attempt may do better, and reports whether there is
// time for one.
func (n *core) pause(ctx context.Context, moved <-chan struct{}, over <-chan time.Time) bool {
	again := time.NewTimer(retryPause)
	defer again.Stop()
	select {
	case <-moved:
		return true
	case <-again.C:
		return true
	case <-over:
	case <-ctx.Done():
	case <-n.stopping.Done():
	}
	return false
}
