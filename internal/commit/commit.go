package commit

import (
	"context"
	"errors"
	"slices"
	"time"

	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// MaxDecisions bounds how often a batch is decided again because what it was
// decided on has changed.
const MaxDecisions = 16

// ReasonContention is the reason of writes that were decided MaxDecisions times,
// each time on a state that changed before they took effect.
const ReasonContention = "CONTENTION"

// ReasonStateChanged is the reason of a write that was decided on all of a state which
// has changed since (store.Txn.UnchangedSince). The caller decides it again.
const ReasonStateChanged = "STATE_CHANGED"

// ReasonVersion is the reason of a write of which a condition did not hold.
const ReasonVersion = "VERSION_CONFLICT"

// Log is where batches are written. *consensus.Node and *audit.Writer implement
// it; it is safe for concurrent use.
type Log interface {
	// Propose commits a batch and returns what the state machine made of it. After
	// an error of unknown outcome, proposing the same request id again is safe.
	Propose(ctx context.Context, txn store.Txn) (store.Result, error)
	// Read waits until the local state holds every write acknowledged before the
	// call.
	Read(ctx context.Context) (resource.Revision, error)
}

// Batch is a batch as it was decided.
type Batch struct {
	store.Txn
	// Conditions are the caller's own, which the Txn does not hold. Where one fails
	// the write fails, whatever else has changed.
	Conditions []Condition
}

// Condition is what a caller wants to be stored of a resource of its batch.
type Condition struct {
	store.Precondition
	// OrMissing: the condition also holds where the resource does not exist.
	OrMissing bool
}

// fails reports whether the condition does not hold where this version is stored,
// which this revision has written.
func (c Condition) fails(version uint64, revision resource.Revision) bool {
	if version == 0 && c.OrMissing {
		return false
	}
	return c.Version != version || c.Revision != 0 && c.Revision != revision
}

// Write has a batch decided and proposes it. decide is called at most
// MaxDecisions times: first on what this server has applied, again each time on
// the newest state. A batch without operations is not proposed: there is nothing
// to write.
//
// The error is the one of decide, or an *rpcerr.Error, with its effect.
func Write(ctx context.Context, log Log, decide func() (Batch, error)) (store.Result, error) {
	for range MaxDecisions {
		batch, err := decide()
		if err != nil {
			return store.Result{}, rpcerr.WithEffect(err, rpcerr.EffectNone)
		}
		if len(batch.Ops) == 0 {
			return store.Result{}, nil
		}
		batch.Preconditions = slices.Concat(required(batch), batch.Preconditions)
		result, err := log.Propose(ctx, batch.Txn)
		if !outdated(err, batch.Conditions) {
			return result, Explain(err)
		}
		if err := Newest(ctx, log); err != nil {
			return store.Result{}, rpcerr.WithEffect(err, rpcerr.EffectNone)
		}
	}
	return store.Result{}, rpcerr.WithEffect(rpcerr.New(rpcerr.Unavailable, ReasonContention,
		"the resources or the access rules changed %d times while the write was decided; retry it", MaxDecisions), rpcerr.EffectNone)
}

// WriteNewest is Write whose first decision, too, is made on the newest state.
func WriteNewest(ctx context.Context, log Log, decide func() (Batch, error)) (store.Result, error) {
	if err := Newest(ctx, log); err != nil {
		return store.Result{}, rpcerr.WithEffect(err, rpcerr.EffectNone)
	}
	return Write(ctx, log, decide)
}

// Newest waits until the local state holds every write acknowledged before the
// call. The error is an *rpcerr.Error of code Unavailable.
func Newest(ctx context.Context, log Log) error {
	if _, err := log.Read(ctx); err != nil {
		return rpcerr.New(rpcerr.Unavailable, reasonNoLeader, "read the newest state: %w", err)
	}
	return nil
}

// CreateMissing writes resources that do not exist yet. When one of them does,
// nothing is written, which is no error: another server created them.
func CreateMissing(ctx context.Context, log Log, at time.Time, batch ...*resource.Resource) error {
	txn := store.Txn{Time: at}
	for _, r := range batch {
		txn.Ops = append(txn.Ops, store.Put(r))
		txn.Preconditions = append(txn.Preconditions, store.Precondition{Key: r.Key()})
	}
	_, err := log.Propose(ctx, txn)
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		return nil
	}
	return Explain(err)
}

// required are the conditions as preconditions, without those that hold because
// the batch was decided on the resource being missing, which is a precondition
// already.
func required(batch Batch) []store.Precondition {
	missing := map[resource.Key]bool{}
	for _, p := range batch.Preconditions {
		if p.Version == 0 {
			missing[p.Key] = true
		}
	}
	var out []store.Precondition
	for _, c := range batch.Conditions {
		if !c.OrMissing || !missing[c.Key] {
			out = append(out, c.Precondition)
		}
	}
	return out
}

// outdated reports whether a batch was refused because what it was decided on
// has changed, and not because a condition of the caller's own fails.
func outdated(err error, conditions []Condition) bool {
	var (
		rules    *store.AccessChangedError
		part     *store.PartChangedError
		conflict *store.ConflictError
	)
	switch {
	case errors.As(err, &rules), errors.As(err, &part):
		return true
	case errors.As(err, &conflict):
		return !slices.ContainsFunc(conditions, func(c Condition) bool {
			return c.Key == conflict.Key && c.fails(conflict.Have, conflict.HaveRevision)
		})
	}
	return false
}
