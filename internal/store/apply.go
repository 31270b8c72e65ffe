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
	if txn.Retention != nil {
		s.retainLocked(*txn.Retention, from)
		s.advanceLocked(rev)
		return Result{Revision: from.changed}
	}

	b := &batch{from: from, revision: rev, time: nextTime(from.time, txn.Time), changed: from.changed, access: from.access}
	var result Result
	notes := [][]byte{txn.Note}
	if len(txn.Batches) == 0 {
		result = s.applyToLocked(b, txn)
	} else {
		notes = make([][]byte, len(txn.Batches))
		result.Batches = make([]Result, len(txn.Batches))
		for i, shared := range txn.Batches {
			notes[i], b.number = shared.Note, i
			result.Batches[i] = s.applyToLocked(b, shared)
		}
		result.Revision = b.changed
	}
	if b.changed != rev {
		s.advanceLocked(rev)
		return result
	}
	s.restoring = nil // another write interrupts a restore
	s.commitLocked(b, notes)
	return result
}

// applyToLocked applies one batch to what those before it at the same revision have left,
// whole or not at all.
func (s *Store) applyToLocked(b *batch, txn Txn) Result {
	if txn.RequestID != "" {
		if r, ok := s.requests.find(txn.RequestID); ok {
			return Result{Revision: r.revision, Results: r.results, Duplicate: true}
		}
	}
	state := b.state()
	err := checkPreconditions(state, txn)
	if err == nil {
		err = s.checkHeldLocked(state, txn.Ops)
	}
	if err != nil {
		return Result{Revision: b.changed, Err: err}
	}
	if b.draft == nil {
		b.draft = s.draftLocked(b.from)
	}
	done := len(b.changes)
	results, err := b.run(txn.Ops, !s.opts.ExternalMeshes)
	if err != nil && done == 0 {
		b.draft, b.changes = nil, nil
	} else if err != nil {
		b.undo(done)
	}
	if err != nil {
		return Result{Revision: b.changed, Err: err}
	}
	if txn.SetEpoch != nil && *txn.SetEpoch != b.from.epoch {
		epoch := *txn.SetEpoch
		b.epoch = &epoch
	}
	if len(b.changes) > done || b.epoch != nil {
		b.changed = b.revision
	}
	b.noteAccess(b.changes[done:])
	if txn.RequestID != "" {
		s.requests.add(&request{id: txn.RequestID, revision: b.changed, time: txn.Time, results: results})
	}
	return Result{Revision: b.changed, Results: results}
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
	*draft   // nil until something is done to it
	from     *View
	revision resource.Revision
	time     time.Time
	// changed and access are those of the state so far.
	changed, access resource.Revision
	epoch           *Epoch // nil where it stays
	changes         []Change
	// number is that of the batch that is applied, among those that share the
	// revision; seen are the keys of all operations, each with the number of its batch.
	number int
	seen   map[resource.Key]int
}

// state is what has been made of from so far.
func (b *batch) state() *View {
	if b.draft == nil || len(b.changes) == 0 {
		return b.from
	}
	return &View{
		revision: b.revision, changed: b.changed, access: b.access,
		time: b.time, epoch: b.from.epoch, timeline: b.from.timeline,
		tree: b.tree, index: b.index, tallies: b.tallies,
	}
}

// noteAccess notes changes of access rules.
func (b *batch) noteAccess(changes []Change) {
	for _, c := range changes {
		if k := c.Key().Kind; k == resource.KindAccessRole || k == resource.KindAccessRoleBinding {
			b.access = b.revision
			return
		}
	}
}

// run does the operations of one batch. After an error the draft is to be dropped, or
// undo called.
func (b *batch) run(ops []Op, meshRules bool) ([]OpResult, error) {
	done := len(b.changes)
	results := make([]OpResult, len(ops))
	if b.seen == nil {
		b.seen = make(map[resource.Key]int, len(ops))
	}
	for i, op := range ops {
		key, err := op.target()
		if err != nil {
			return nil, err
		}
		if by, twice := b.seen[key]; twice && by == b.number {
			return nil, &InvalidOpError{Key: key, Reason: "more than one operation on this key in a batch"}
		} else if twice {
			return nil, &InvalidOpError{Key: key, Reason: "another batch of the same log entry has an operation on this key"}
		}
		b.seen[key] = b.number
		if op.Resource == nil {
			results[i] = b.remove(key)
		} else {
			results[i] = b.write(key, op)
		}
	}
	b.putAll(b.changes[done:])
	if meshRules {
		if err := b.checkMeshes(results); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// undo takes back the changes after the first done ones.
func (b *batch) undo(done int) {
	for _, c := range slices.Backward(b.changes[done:]) {
		if c.Before != nil {
			b.put(newItem(c.Before))
		} else {
			b.delete(c.Key())
		}
	}
	b.changes = b.changes[:done]
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
// of the feed. notes are those of the batches that share the revision.
func (s *Store) commitLocked(b *batch, notes [][]byte) {
	slices.SortFunc(b.changes, func(x, y Change) int { return x.Key().Compare(y.Key()) })
	v := &View{
		revision: b.revision, changed: b.revision, access: b.access,
		time: b.time, epoch: b.from.epoch, timeline: b.from.timeline,
		tree: b.tree.Copy(), index: b.index.copy(), tallies: b.tallies,
	}
	if b.epoch != nil {
		v.epoch = *b.epoch
	}
	s.tree, s.index = b.tree, b.index
	written := Batch{Revision: b.revision, Prev: b.from.changed, Time: b.time, Changes: b.changes, Epoch: b.epoch}
	s.history.add(newRecord(written, v))
	if s.past != nil {
		s.past.add(newPastBatch(written, b.from, notes, b.seen))
	}
	s.publishLocked(v)
}
