package store

// Preview says what Apply would make of a batch now, and what the state would
// then be. It changes nothing: the result's revision and versions are those
// that the batch would get if nothing came before it.
func (s *Store) Preview(txn Txn) (Result, *View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.now.Load().view
	if err := checkPreconditions(from, txn); err != nil {
		return Result{Revision: from.changed, Err: err}, from
	}
	b := &batch{draft: s.draftLocked(from), revision: from.revision + 1, time: nextTime(from.time, txn.Time)}
	results, err := b.run(txn.Ops, !s.opts.ExternalMeshes)
	if err != nil {
		return Result{Revision: from.changed, Err: err}, from
	}
	if len(b.changes) == 0 {
		return Result{Revision: from.changed, Results: results}, from
	}
	return Result{Revision: from.changed, Results: results}, &View{
		revision: b.revision, changed: b.revision, access: from.access,
		time: b.time, epoch: from.epoch, timeline: from.timeline,
		tree: b.tree, tallies: b.tallies,
	}
}
