package admin

import (
	"context"
	"slices"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/batch"
	"meridian/internal/commit"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// deciding is a write that is being decided.
type deciding struct {
	// attempt is the scoped request id, size what was received of the request, in
	// bytes.
	attempt string
	size    int64
	dryRun  bool
	force   bool
}

// decide has a write decided and made by attempt, at first on what this server
// has applied: asking the leader whether that is the newest state would cost
// every write a round to a majority, and what is proposed is checked again where
// it takes effect. A refusal is different. It is given only on a state that is
// surely the newest, and so is the answer to a dry run.
//
// A request that was applied before is answered with its result, which attempt
// puts into result otherwise.
func (s *Service) decide(ctx context.Context, d *deciding, result *store.Result, attempt func(store.Reader) error) error {
	again := func() (ok bool) {
		if applied, found := s.appliedAs(d); found {
			*result, ok = applied, true
		}
		return ok
	}
	if !d.dryRun {
		if again() {
			return nil
		}
		memory := commit.Memory{Remembers: s.cfg.Remembers, Now: s.cfg.Now}
		if err := memory.Check(ctx, s.cfg.Writer, d.attempt, batch.Age(ctx)); err != nil {
			return err
		}
		if err := attempt(s.cfg.View()); err == nil || !refused(err) {
			return err
		}
	}
	view, err := s.read(ctx, meridianv1.Consistency_CONSISTENCY_LINEARIZABLE)
	if err != nil {
		return rpcerr.WithEffect(err, rpcerr.EffectNone)
	}
	if again() {
		return nil
	}
	return rpcerr.WithEffect(attempt(view), rpcerr.EffectNone)
}

// appliedAs returns what became of a write that was applied before.
func (s *Service) appliedAs(d *deciding) (store.Result, bool) { return s.cfg.Applied(d.attempt) }

// refused reports whether a write was refused for what it is or who wants it,
// and not because it could not be made.
func refused(err error) bool {
	switch rpcerr.CodeOf(err) {
	case rpcerr.NotFound, rpcerr.Invalid, rpcerr.Denied, rpcerr.Unauthenticated:
		return true
	}
	return false
}

// commit decides whether the caller may make a batch, has it advised on and
// proposes it, or previews it, on the condition that nothing has changed that the
// decision depended on; if something has, it decides again (§6.4).
//
// What the access rules make to say about the batch, and then the advice, is added
// to said.
func (s *Service) commit(ctx context.Context, txn store.Txn, conditions []commit.Condition, d *deciding, advise func() error, said *remarks) (result store.Result, err error) {
	log := s.cfg.Writer
	if d.dryRun {
		log = previewing{log, s.cfg.Preview}
	}
	before := slices.Clone(*said)
	result, err = commit.Write(ctx, log, func() (batch commit.Batch, err error) {
		*said = slices.Clone(before)
		err = s.cfg.Turns.Work(ctx, d.size, func() error {
			permit, err := s.cfg.Access.Write(ctx, txn.Ops, d.force)
			if err != nil {
				return err
			}
			batch = commit.Batch{Txn: txn, Conditions: conditions}
			batch.AccessRevision, batch.Preconditions = &permit.AccessRevision, permit.Preconditions
			if err := advise(); err != nil {
				return err
			}
			for _, warning := range permit.Warnings {
				*said = append(*said, policy.Advice{Problem: resource.Problem{Severity: resource.Warning, Message: warning}})
			}
			return nil
		})
		return batch, err
	})
	if err != nil {
		// The first attempt of a retried request may have been applied by now, and be
		// the reason why it could not be made again.
		if applied, ok := s.appliedAs(d); ok {
			*said = nil
			return applied, nil
		}
	}
	return result, s.missingMeshes(ctx, txn.Ops, s.hideExample(ctx, err))
}

// previewing is a log to which a proposal is a preview: it changes nothing.
type previewing struct {
	commit.Log
	preview func(store.Txn) (store.Result, store.Reader)
}

// Propose implements commit.Log.
func (p previewing) Propose(_ context.Context, txn store.Txn) (store.Result, error) {
	result, _ := p.preview(txn)
	return result, result.Err
}
