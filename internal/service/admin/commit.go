package admin

import (
	"context"
	"errors"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// maxDecisions bounds how often a write is decided anew because what it was
// decided on has changed meanwhile.
const maxDecisions = 16

// decide has a write decided and made by attempt, at first on what this server
// has applied: asking the leader whether that is the newest state would cost
// every write a round to a majority, and what is proposed is checked again where
// it takes effect. A refusal is different. It is given only on a state that is
// surely the newest, and so is the answer to a dry run.
//
// A request that was applied before is answered with its result, which attempt
// puts into result otherwise.
func (s *Service) decide(ctx context.Context, attemptID string, dryRun bool, result *store.Result, attempt func(store.Reader) error) error {
	if !dryRun {
		if applied, ok := s.cfg.Applied(attemptID); ok {
			*result = applied
			return nil
		}
		if err := attempt(s.cfg.View()); err == nil || !refused(err) {
			return err
		}
	}
	view, err := s.read(ctx, meridianv1.Consistency_CONSISTENCY_LINEARIZABLE)
	if err != nil {
		return err
	}
	if applied, ok := s.cfg.Applied(attemptID); ok {
		*result = applied
		return nil
	}
	return attempt(view)
}

// refused reports whether a write was refused for what it is or who wants it,
// and not because it could not be made.
func refused(err error) bool {
	switch rpcerr.CodeOf(err) {
	case rpcerr.NotFound, rpcerr.Invalid, rpcerr.Denied, rpcerr.Unauthenticated:
		return true
	}
	return false
}

// writeOptions are how a request wants its batch written.
type writeOptions struct {
	dryRun bool
	force  bool
}

// commit decides whether the caller may make a batch and proposes it, or
// previews it, on the condition that nothing has changed that the decision
// depended on; if something has, it decides again (§6.4). ifVersion is
// the version that the caller wants the batch's one resource to have.
//
// It returns what the access rules made to say about the batch.
func (s *Service) commit(ctx context.Context, txn store.Txn, ifVersion *uint64, o writeOptions) (store.Result, []string, error) {
	for range maxDecisions {
		permit, err := s.cfg.Access.Write(ctx, txn.Ops, o.force)
		if err != nil {
			// The first attempt of a retried request may have been applied by now,
			// and be the reason why it could not be made again.
			if result, ok := s.cfg.Applied(txn.RequestID); ok {
				return result, nil, nil
			}
			return store.Result{}, nil, err
		}
		txn.AccessRevision, txn.Preconditions = &permit.AccessRevision, nil
		if ifVersion != nil {
			txn.Preconditions = append(txn.Preconditions, store.Precondition{Key: txn.Ops[0].Key, Version: *ifVersion})
		}
		txn.Preconditions = append(txn.Preconditions, permit.Preconditions...)
		result, err := s.propose(ctx, txn, o.dryRun)
		if !outdated(err, ifVersion) {
			return result, permit.Warnings, refusal(err)
		}
		if _, err := s.read(ctx, meridianv1.Consistency_CONSISTENCY_LINEARIZABLE); err != nil {
			return store.Result{}, nil, err
		}
	}
	return store.Result{}, nil, rpcerr.New(rpcerr.Unavailable, "CONTENTION",
		"nothing was written: the resources or the access rules changed %d times while the batch was decided; retry it", maxDecisions)
}

func (s *Service) propose(ctx context.Context, txn store.Txn, dryRun bool) (store.Result, error) {
	if dryRun {
		result, _ := s.cfg.Preview(txn)
		return result, result.Err
	}
	return s.cfg.Writer.Propose(ctx, txn)
}

// outdated reports whether a batch was refused because what it was decided on
// has changed, and not because the caller's own condition fails.
func outdated(err error, ifVersion *uint64) bool {
	var (
		rules    *store.AccessChangedError
		conflict *store.ConflictError
	)
	switch {
	case errors.As(err, &rules):
		return true
	case errors.As(err, &conflict):
		return ifVersion == nil || conflict.Have == *ifVersion
	}
	return false
}
