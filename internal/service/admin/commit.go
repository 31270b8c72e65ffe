package admin

import (
	"context"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/batch"
	"meridian/internal/commit"
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
		if err := s.remembered(ctx, d.attempt); err != nil {
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

// clockMargin is how much the clocks of two servers may differ where it is decided
// whether a request is still remembered.
const clockMargin = 10 * time.Second

// remembered refuses a repeated request whose first attempt may have been applied
// and forgotten: it would take effect twice.
func (s *Service) remembered(ctx context.Context, attemptID string) error {
	age := batch.Age(ctx)
	if age == 0 {
		return nil
	}
	// A server that is behind has forgotten less.
	if err := commit.Newest(ctx, s.cfg.Writer); err != nil {
		return rpcerr.WithEffect(err, rpcerr.EffectUnknown)
	}
	if s.cfg.Remembers(attemptID, s.cfg.Now().Add(-age-clockMargin)) {
		return nil
	}
	return rpcerr.WithEffect(rpcerr.New(rpcerr.Conflict, reasonForgotten,
		"the request was first sent %s ago, and request ids of that time are no longer remembered: it may have taken effect then; read the resources, and send what is missing as a new request",
		age.Round(time.Second)), rpcerr.EffectUnknown)
}

// reasonForgotten is the reason of the refusal of a request that is repeated after
// its id was forgotten.
const reasonForgotten = "REQUEST_FORGOTTEN"

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
	before := said.clone()
	result, err = commit.Write(ctx, log, func() (batch commit.Batch, err error) {
		*said = before.clone()
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
			said.warnings = append(said.warnings, permit.Warnings...)
			return nil
		})
		return batch, err
	})
	if err != nil {
		// The first attempt of a retried request may have been applied by now, and be
		// the reason why it could not be made again.
		if applied, ok := s.appliedAs(d); ok {
			*said = remarks{}
			return applied, nil
		}
	}
	return result, s.hideExample(ctx, err)
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
