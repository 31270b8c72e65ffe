package store

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"time"

	"meridian/internal/resource"
)

// Apply writes one batch at a revision, whole or not at all, and returns what
// became of it. The result depends on the state and the arguments only, so
// that every server comes to the same.
//
// A resource whose canonical bytes and labels are those already stored is
// Unchanged and keeps its version, times and revision. A batch that changes
// nothing, or that is refused, raises the store's revision and adds nothing to
// the feed. The order of operations does not matter.
//
// rev must be greater than Revision; Apply panics otherwise, since a log that
// delivers an entry twice can no longer be trusted.
func (s *Store) Apply(rev resource.Revision, txn Txn) Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.View()
	if rev <= from.revision {
		panic(fmt.Sprintf("store: batch %d applied after revision %d", rev, from.revision))
	}
	if txn.Restore != nil {
		return s.applyRestoreLocked(rev, txn)
	}
	if txn.RequestID != "" {
		if r, ok := s.requests.find(txn.RequestID); ok {
			s.advanceLocked(rev)
			return Result{Revision: r.revision, Results: r.results, Duplicate: true}
		}
	}
	if txn.Retention != nil {
		s.retainLocked(*txn.Retention, from)
		s.advanceLocked(rev)
		return Result{Revision: from.changed}
	}
	err := checkPreconditions(from, txn)
	if err == nil {
		err = s.checkHeldLocked(from, txn.Ops)
	}
	if err != nil {
		s.advanceLocked(rev)
		return Result{Revision: from.changed, Err: err}
	}

	b := &batch{draft: s.draftLocked(from), revision: rev, time: nextTime(from.time, txn.Time)}
	results, err := b.run(txn.Ops, !s.opts.ExternalMeshes)
	if err != nil {
		s.advanceLocked(rev)
		return Result{Revision: from.changed, Err: err}
	}
	var epoch *Epoch
	if txn.SetEpoch != nil && *txn.SetEpoch != from.epoch {
		e := *txn.SetEpoch
		epoch = &e
	}
	result := Result{Revision: from.changed, Results: results}
	if len(b.changes) > 0 || epoch != nil {
		result.Revision = rev
	}
	if txn.RequestID != "" {
		s.requests.add(&request{id: txn.RequestID, revision: result.Revision, time: txn.Time, results: results})
	}
	if result.Revision != rev {
		s.advanceLocked(rev)
		return result
	}
	s.restoring = nil // another write interrupts a restore
	s.commitLocked(from, b, epoch, txn.Note)
	return result
}

func checkPreconditions(v *View, txn Txn) error {
	if txn.AccessRevision != nil && *txn.AccessRevision != v.access {
		return &AccessChangedError{Decided: *txn.AccessRevision, Current: v.access}
	}
	if txn.UnchangedSince != nil && v.changed > *txn.UnchangedSince {
		return &ChangedError{Decided: *txn.UnchangedSince, Current: v.changed}
	}
	for _, p := range txn.Parts {
		if v.PartDigest(p.Mesh, p.Kinds) != p.Digest {
			return &PartChangedError{Mesh: p.Mesh}
		}
	}
	for _, p := range txn.Preconditions {
		have := resource.Meta{}
		if it, ok := lookup(v.tree, p.Key); ok {
			have = it.res.Meta()
		}
		if have.Version != p.Version || (p.Revision != 0 && have.Revision != p.Revision) {
			return &ConflictError{
				Key: p.Key, Want: p.Version, Have: have.Version,
				WantRevision: p.Revision, HaveRevision: have.Revision,
			}
		}
	}
	return nil
}

// nextTime raises a proposed time above the last batch's (§1.1).
func nextTime(last, proposed time.Time) time.Time {
	proposed = proposed.Round(0).UTC()
	if earliest := last.Add(time.Nanosecond); proposed.Before(earliest) {
		return earliest
	}
	return proposed
}

// batch is a draft together with what has been done to it.
type batch struct {
	*draft
	revision resource.Revision
	time     time.Time
	changes  []Change
}

func (b *batch) run(ops []Op, meshRules bool) ([]OpResult, error) {
	results := make([]OpResult, len(ops))
	seen := make(map[resource.Key]struct{}, len(ops))
	for i, op := range ops {
		key, err := op.target()
		if err != nil {
			return nil, err
		}
		if _, twice := seen[key]; twice {
			return nil, &InvalidOpError{Key: key, Reason: "more than one operation on this key in a batch"}
		}
		seen[key] = struct{}{}
		if op.Resource == nil {
			results[i] = b.remove(key)
		} else {
			results[i] = b.write(key, op)
		}
	}
	b.putAll(b.changes)
	if meshRules {
		if err := b.checkMeshes(results); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// target returns the key that the operation is on.
func (op Op) target() (resource.Key, error) {
	key := op.Key
	if op.Resource != nil {
		if key == (resource.Key{}) {
			key = op.Resource.Key()
		}
		if key != op.Resource.Key() {
			return key, &InvalidOpError{Key: key, Reason: "its resource is " + op.Resource.Key().String()}
		}
	}
	if key.Kind == "" || key.Name == "" {
		return key, &InvalidOpError{Key: key, Reason: "kind and name are required"}
	}
	return key, nil
}

// write notes what an operation writes, which is put with all others of the batch.
func (b *batch) write(key resource.Key, op Op) OpResult {
	r := op.Resource
	meta := resource.Meta{
		Key: key, Labels: r.Meta().Labels,
		CreationTime: b.time, ModificationTime: b.time,
		Version: 1, Revision: b.revision,
	}
	var kept resource.Meta // its times
	if op.KeepTimes {
		kept = r.Meta()
	}
	result := OpResult{Key: key, Outcome: Created, Version: 1}
	var before *resource.Resource
	if it, ok := b.get(key); ok {
		before = it.res
		was := before.Meta()
		if changesNothing(before, op) {
			return OpResult{Key: key, Outcome: Unchanged, Version: was.Version}
		}
		meta.CreationTime = was.CreationTime
		meta.Version = was.Version + 1
		result.Outcome, result.Version = Updated, meta.Version
	}
	if !kept.CreationTime.IsZero() {
		meta.CreationTime = kept.CreationTime
	}
	if !kept.ModificationTime.IsZero() {
		meta.ModificationTime = kept.ModificationTime
	}
	after := r.Store(meta)
	b.changes = append(b.changes, Change{Before: before, After: after})
	return result
}

// sameTime reports whether a time to keep, zero for none, is what is stored.
func sameTime(kept, stored time.Time) bool { return kept.IsZero() || kept.Equal(stored) }

// changesNothing says that an operation writes what is stored.
func changesNothing(stored *resource.Resource, op Op) bool {
	was, meta := stored.Meta(), op.Resource.Meta()
	if !bytes.Equal(stored.Canonical(), op.Resource.Canonical()) || !maps.Equal(was.Labels, meta.Labels) {
		return false
	}
	return !op.KeepTimes || sameTime(meta.CreationTime, was.CreationTime) && sameTime(meta.ModificationTime, was.ModificationTime)
}

func (b *batch) remove(key resource.Key) OpResult {
	it, ok := b.get(key)
	if !ok {
		return OpResult{Key: key, Outcome: Missing}
	}
	b.delete(key)
	b.changes = append(b.changes, Change{Before: it.res})
	return OpResult{Key: key, Outcome: Deleted}
}

// checkMeshes holds §1.4 for the state after the batch, so that a
// mesh and its resources may be created, or deleted, together.
func (b *batch) checkMeshes(results []OpResult) error {
	for _, r := range results {
		if r.Outcome == Deleted && r.Key.Kind == resource.KindMesh {
			if err := b.checkEmpty(resource.MeshName(r.Key.Name)); err != nil {
				return err
			}
		}
	}
	known := resource.MeshName("")
	for _, r := range results {
		if r.Key.Mesh == "" || r.Key.Mesh == known || r.Outcome == Deleted || r.Outcome == Missing {
			continue
		}
		if _, ok := b.get(resource.Key{Kind: resource.KindMesh, Name: string(r.Key.Mesh)}); !ok {
			return &MeshMissingError{Key: r.Key}
		}
		known = r.Key.Mesh
	}
	return nil
}

func (b *batch) checkEmpty(mesh resource.MeshName) error {
	left := &MeshNotEmptyError{Mesh: mesh}
	for _, t := range b.tallies {
		if t.count == 0 {
			continue
		}
		b.tree.Ascend(&item{key: &resource.Key{Kind: t.kind, Mesh: mesh}}, func(it *item) bool {
			if it.key.Kind != t.kind || it.key.Mesh != mesh {
				return false
			}
			if left.Count == 0 {
				left.Example = *it.key
			}
			left.Count++
			return true
		})
	}
	if left.Count > 0 {
		return left
	}
	return nil
}

// commitLocked makes a finished batch the newest state and the newest record
// of the feed.
func (s *Store) commitLocked(from *View, b *batch, epoch *Epoch, note []byte) {
	slices.SortFunc(b.changes, func(x, y Change) int { return x.Key().Compare(y.Key()) })
	v := &View{
		revision: b.revision, changed: b.revision, access: from.access,
		time: b.time, epoch: from.epoch, timeline: from.timeline,
		tree: b.tree.Copy(), index: b.index.copy(), tallies: b.tallies,
	}
	for _, c := range b.changes {
		if k := c.Key().Kind; k == resource.KindAccessRole || k == resource.KindAccessRoleBinding {
			v.access = b.revision
		}
	}
	if epoch != nil {
		v.epoch = *epoch
	}
	s.tree, s.index = b.tree, b.index
	written := Batch{Revision: b.revision, Prev: from.changed, Time: b.time, Changes: b.changes, Epoch: epoch}
	s.history.add(newRecord(written, v))
	if s.past != nil {
		s.past.add(newPastBatch(written, from, note))
	}
	s.publishLocked(v)
}
