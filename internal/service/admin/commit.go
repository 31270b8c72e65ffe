package admin

import (
	"context"
	"fmt"
	"slices"
	"sync"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/batch"
	"meridian/internal/commit"
	"meridian/internal/deepstack"
	"meridian/internal/plan"
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
	// skipTests writes what breaks tests that meshes carry.
	skipTests bool
	// skipped are the meshes whose tests are skipped so.
	skipped []resource.MeshName
	// plan asks for what the write would do, and makes it a dry run; planned is the answer.
	plan    bool
	planned []byte
	// broken are the tests for which a plan would be refused.
	broken []plan.BrokenTests
	// rollout has the write reach the zones by stages; nil for one that takes effect at once.
	rollout *meridianv1.RolloutOptions
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

// commit decides whether the caller may make a batch and proposes it, or previews it, on
// the condition that nothing has changed that the decision depended on; if something has,
// it decides again (§6.4).
//
// What the access rules make to say about the batch is added to said, and then the
// advice, which is found while the batch is written.
func (s *Service) commit(ctx context.Context, txn store.Txn, conditions []commit.Condition, d *deciding, said *remarks) (result store.Result, err error) {
	log := &advising{Log: s.cfg.Writer}
	if d.dryRun {
		log.Log = previewing{s.cfg.Writer, s.cfg.Preview}
	}
	before := slices.Clone(*said)
	ops := txn.Ops
	result, err = commit.Write(ctx, log, func() (batch commit.Batch, err error) {
		*said = slices.Clone(before)
		var now *store.View
		var tested []resource.MeshName
		var change store.Txn // what is decided on: that of a rollout is not written yet
		err = s.cfg.Turns.Work(ctx, d.size, func() error {
			permit, err := s.cfg.Access.Write(ctx, ops, d.force)
			if err != nil {
				return err
			}
			now = s.written().View()
			txn.Ops = withTests(now, ops)
			batch = commit.Batch{Txn: txn, Conditions: conditions}
			batch.AccessRevision, batch.Preconditions = &permit.AccessRevision, permit.Preconditions
			for _, warning := range permit.Warnings {
				said.warn(warning)
			}
			tested = guardTests(now, &batch)
			change = batch.Txn
			if d.rollout != nil {
				if batch, err = s.begin(ctx, d, batch); err != nil {
					return err
				}
			}
			log.advise = s.advisor(ctx, txn, d.size, said)
			return nil
		})
		if err == nil && len(tested) > 0 {
			err = s.runTests(ctx, now, change, tested, d, said)
			if err == nil && d.rollout != nil && len(d.skipped) > 0 {
				err = skipInRollout(&batch, d.skipped)
			}
		}
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
	if err == nil && d.rollout != nil && len(result.Results) == 0 {
		result = s.unchanged(txn.Ops)
	}
	if err == nil && d.plan {
		d.planned, err = s.plan(ctx, txn, d.broken)
	}
	return result, s.missingMeshes(ctx, txn.Ops, s.hideExample(ctx, err))
}

// advisor looks at what there will be once a batch is written, and returns what advises
// on it: a function that waits for its turn. Where it does not come, a remark says so.
func (s *Service) advisor(ctx context.Context, txn store.Txn, size int64, said *remarks) func() {
	lint := s.lint(ctx, txn)
	if lint == nil {
		return nil
	}
	return func() {
		err := s.cfg.Turns.Work(ctx, size, func() error { return lint(said) })
		if err != nil {
			said.warn(fmt.Sprintf("nothing is said about what the batch does: %v", err))
		}
	}
}

// PreviewOf is the preview (Config) of what one store holds, which may be a *store.Store.
func PreviewOf(st interface {
	Previewing(txn store.Txn) func() (store.Result, *store.View)
},
) func(store.Txn) func() (store.Result, store.Reader) {
	return func(txn store.Txn) func() (store.Result, store.Reader) {
		preview := st.Previewing(txn)
		return func() (store.Result, store.Reader) { return preview() }
	}
}

// advising is a log that has the author of a batch advised while it is written, where
// advise is not nil.
type advising struct {
	commit.Log
	advise func()
}

// Propose implements commit.Log.
func (a *advising) Propose(ctx context.Context, txn store.Txn) (result store.Result, err error) {
	if a.advise == nil {
		return a.Log.Propose(ctx, txn)
	}
	var advice sync.WaitGroup
	advice.Go(func() {
		deepstack.Reserve()
		a.advise()
	})
	defer advice.Wait()
	return a.Log.Propose(ctx, txn)
}

// previewing is a log to which a proposal is a preview: it changes nothing.
type previewing struct {
	commit.Log
	preview func(store.Txn) func() (store.Result, store.Reader)
}

// Propose implements commit.Log.
func (p previewing) Propose(_ context.Context, txn store.Txn) (store.Result, error) {
	result, _ := p.preview(txn)()
	return result, result.Err
}
