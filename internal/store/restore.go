package store

import (
	"fmt"
	"slices"
	"time"

	"meridian/internal/resource"
)

// RestorePart is a piece of a whole state that is to take the place of the
// store's. A state is too large for one batch, so its parts are applied one
// after the other; nothing of it shows before the last, which puts all of it
// into effect in one step, as a new epoch.
//
// A restore that is cut off has no effect: the next batch that changes something,
// a part that does not follow (see Abandon), or the first part of another restore
// forgets the parts that came before it. A batch that changes nothing does not: a
// leader writes one when it is elected, and when it is asked about a server that
// was removed, for example.
type RestorePart struct {
	// ID tells one attempt from another.
	ID uint64
	// Number counts the parts of an attempt from 0.
	Number int
	// Resources are the part's, with the times, versions and revisions they had.
	Resources []*resource.Resource
	// End makes this part the last.
	End *RestoreEnd
}

// RestoreEnd puts a restored state into effect.
type RestoreEnd struct {
	// Replaces is the epoch of the state that is replaced. The restore is refused
	// on any other.
	Replaces Epoch
	// Epoch begins with the restored state.
	Epoch Epoch
	// Time is that of the restored state's last batch.
	Time time.Time
	// Resources and Digest are what the parts hold together.
	Resources int
	Digest    Digest
}

// RestoreError means that a restored state was not put into effect: nothing was
// changed. Unless it says that the state contradicts itself, the restore can be
// tried again.
type RestoreError struct {
	Reason string
}

func (e *RestoreError) Error() string { return "the state was not put into effect: " + e.Reason }

// restoring holds the parts that have come so far.
type restoring struct {
	id        uint64
	parts     int
	resources []*resource.Resource
}

// Abandon is a part that follows no other: it ends any restore that is under way,
// and is refused itself.
func Abandon() *RestorePart { return &RestorePart{Number: 1} }

// RestoringParts returns how many parts of a restore have been applied that is not in
// effect yet, false when none is under way under this id.
func (s *Store) RestoringParts(id uint64) (parts int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.restoring == nil || s.restoring.id != id {
		return 0, false
	}
	return s.restoring.parts, true
}

// Restoring reports whether parts of a state have been applied that their last
// part has not put into effect. A snapshot taken now would lack them.
func (s *Store) Restoring() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restoring != nil
}

// applyRestoreLocked takes one part.
func (s *Store) applyRestoreLocked(rev resource.Revision, txn Txn) Result {
	from := s.View()
	err := s.gatherLocked(txn.Restore)
	if err == nil && txn.Restore.End != nil {
		err = s.finishRestoreLocked(from, rev, txn)
		if err == nil {
			return Result{Revision: rev}
		}
	}
	if err != nil {
		s.restoring = nil
		s.advanceLocked(rev)
		return Result{Revision: from.changed, Err: err}
	}
	s.advanceLocked(rev)
	return Result{Revision: from.changed}
}

// gatherLocked adds a part to those before it.
func (s *Store) gatherLocked(part *RestorePart) error {
	if part.Number == 0 {
		s.restoring = &restoring{id: part.ID}
	}
	r := s.restoring
	if r == nil || part.ID == 0 && part.Number > 0 || r.id != part.ID || r.parts != part.Number {
		return &RestoreError{Reason: fmt.Sprintf("part %d did not follow the one before it; another write or restore came between", part.Number)}
	}
	r.parts++
	r.resources = append(r.resources, part.Resources...)
	return nil
}

// finishRestoreLocked makes the collected state the latest one. The history
// is of the previous epoch, and ends with it: readers of the feed get ErrCompacted
// and compare. The contents of the revisions before stay, where they are kept: the
// restore is a batch like any other to them. Request ids stay: a request that was applied before is not applied
// to the restored state when its client sends it again.
func (s *Store) finishRestoreLocked(from *View, rev resource.Revision, txn Txn) error {
	end, gathered := txn.Restore.End, s.restoring.resources
	if from.epoch != end.Replaces {
		return &RestoreError{Reason: fmt.Sprintf("the state was to be that of incarnation %d, and is of incarnation %d by now", end.Replaces.Incarnation, from.epoch.Incarnation)}
	}
	var digest Digest
	for _, r := range gathered {
		digest = digest.Add(Sum(r))
	}
	if len(gathered) != end.Resources || digest != end.Digest {
		return &RestoreError{Reason: fmt.Sprintf("the state contradicts itself: %d resources with digest %s, announced were %d with %s", len(gathered), digest, end.Resources, end.Digest)}
	}
	for i, r := range gathered {
		gathered[i] = notAfter(r, rev)
	}
	s.generation++
	d, twice, ok := s.draftOf(s.generation, gathered)
	if !ok {
		return &RestoreError{Reason: fmt.Sprintf("the state contradicts itself: it holds %s twice", twice)}
	}
	last := from.time
	if end.Time.After(last) {
		last = end.Time
	}
	v := &View{
		revision: rev, changed: rev, access: rev,
		time: nextTime(last, txn.Time), epoch: end.Epoch, timeline: from.timeline + 1,
		tree: d.tree.Copy(), index: d.index.copy(), tallies: d.tallies,
	}
	s.tree, s.index, s.restoring = d.tree, d.index, nil
	s.history = history{bounds: s.opts.History, base: v}
	if s.past != nil {
		s.past.add(newPastBatch(Batch{Revision: rev, Prev: from.changed, Time: v.time, Changes: Diff(from, v), Epoch: &v.epoch}, from, [][]byte{txn.Note}, nil))
	}
	s.publishLocked(v)
	return nil
}

// notAfter returns a resource that was last written at rev or before. A backup
// of a cluster that had come further brings revisions that are still to be given
// out here.
func notAfter(r *resource.Resource, rev resource.Revision) *resource.Resource {
	m := r.Meta()
	if m.Revision <= rev {
		return r
	}
	m.Revision = rev
	return r.WithMeta(m)
}

// resourceOverhead estimates what a resource takes in a command besides its
// identity and content.
const resourceOverhead = 128

// Parts cuts a state into the parts of a restore, of about size bytes each or of
// one resource that is larger. id is epoch.Random.
func (snap *Snapshot) Parts(replaces, epoch Epoch, size int) []RestorePart {
	var parts []RestorePart
	rest := snap.Resources
	var digest Digest
	for first := true; first || len(rest) > 0; first = false {
		n, bytes := 0, 0
		for n < len(rest) && (n == 0 || bytes < size) {
			digest = digest.Add(Sum(rest[n]))
			bytes += rest[n].Size() + resourceOverhead
			n++
		}
		parts = append(parts, RestorePart{ID: epoch.Random, Number: len(parts), Resources: slices.Clip(rest[:n])})
		rest = rest[n:]
	}
	parts[len(parts)-1].End = &RestoreEnd{
		Replaces: replaces, Epoch: epoch, Time: snap.Time, Resources: len(snap.Resources), Digest: digest,
	}
	return parts
}
