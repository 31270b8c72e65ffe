package store

// Changes says whether a batch would change this state. It looks no further than
// the first operation that would, and does not check whether the batch would be
// refused.
func (v *View) Changes(txn Txn) bool {
	if txn.SetEpoch != nil && *txn.SetEpoch != v.epoch || txn.Restore != nil || txn.Retention != nil || len(txn.Batches) > 0 {
		return true
	}
	for _, op := range txn.Ops {
		key, err := op.target()
		if err != nil {
			return false
		}
		have, ok := lookup(v.tree, key)
		switch {
		case op.Resource == nil && ok, op.Resource != nil && !ok:
			return true
		case op.Resource != nil && !changesNothing(have.res, op):
			return true
		}
	}
	return false
}

// Without returns the results of operations that had no effect in an earlier state:
// a deletion found nothing, and what was written was there. A version is that of
// this state, 0 where it holds something else by now: which one it was then is not
// known.
func (v *View) Without(ops []Op) []OpResult {
	results := make([]OpResult, len(ops))
	for i, op := range ops {
		key, _ := op.target()
		results[i] = OpResult{Key: key, Outcome: Missing}
		if op.Resource == nil {
			continue
		}
		results[i].Outcome = Unchanged
		if it, ok := lookup(v.tree, key); ok && changesNothing(it.res, op) {
			results[i].Version = it.res.Meta().Version
		}
	}
	return results
}

// Unchanged reports whether no operation of a batch had an effect.
func (r Result) Unchanged() bool {
	for _, op := range r.Results {
		if op.Outcome != Unchanged && op.Outcome != Missing {
			return false
		}
	}
	return r.Err == nil
}

// Preview says what Apply would make of a batch now, and what the state would
// then be. It changes nothing: the result's revision and versions are those
// that the batch would get if nothing came before it.
func (s *Store) Preview(txn Txn) (Result, *View) { return s.Previewing(txn)() }

// Previewing is Preview whose work is done by what it returns, which is to be called
// once at most, at any time and on any goroutine: the answer is about the state at
// the time of Previewing.
func (s *Store) Previewing(txn Txn) func() (Result, *View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.now.Load().view
	err := checkPreconditions(from, txn)
	if err == nil {
		err = s.checkHeldLocked(from, txn.Ops)
	}
	if err != nil {
		return func() (Result, *View) { return Result{Revision: from.changed, Err: err}, from }
	}
	b := &batch{draft: s.draftLocked(from), from: from, revision: from.revision + 1, time: nextTime(from.time, txn.Time), changed: from.revision + 1, access: from.access}
	return func() (Result, *View) { return b.preview(txn.Ops, !s.opts.ExternalMeshes) }
}

// preview does to a draft what a batch would do, and shows it.
func (b *batch) preview(ops []Op, meshRules bool) (Result, *View) {
	results, err := b.run(ops, meshRules)
	if err != nil {
		return Result{Revision: b.from.changed, Err: err}, b.from
	}
	return Result{Revision: b.from.changed, Results: results}, b.state()
}
