package store

import (
	"fmt"
	"slices"
	"time"

	"meridian/internal/resource"
)

// Snapshot is a whole state as data: what ReadSnapshot returns and Reset takes.
// The sync stream fills one in by hand.
type Snapshot struct {
	// Revision is what the state is as of; Changed the last batch that changed
	// anything, zero meaning Revision.
	Revision, Changed resource.Revision
	// AccessRevision is the last change of access rules, zero for none.
	AccessRevision resource.Revision
	// Time is the last batch's.
	Time  time.Time
	Epoch Epoch
	// Metadata is what the writer of a stored snapshot said about it.
	Metadata map[string]string
	// Resources in any order, one per key, with the times, versions and
	// revisions they had.
	Resources []*resource.Resource

	// prepared is the state that Prepare made of the resources.
	prepared *draft
	requests []*request
	// forgotten is the time of the newest request that is not among them.
	forgotten time.Time
	past      []undo // newest first
	// retention is nil where no contents are kept; kept are oldest first.
	retention *Retention
	kept      []*pastBatch
	size      int64 // of the file it was read from, in bytes
	format    uint32
}

// Format is the newest format of commands that is known to have made the state: what
// applies the commands after it has to know it. 0 where any release does.
func (snap *Snapshot) Format() uint32 { return snap.format }

// undo is a batch told as the way back to the state before it.
type undo struct {
	revision resource.Revision
	time     time.Time
	before   View // revision, time, access and epoch of the state before
	epoch    bool // the batch set an epoch
	changes  []undoChange
}

// undoChange is what stood under a key before; nil if nothing did.
type undoChange struct {
	key    resource.Key
	before *resource.Resource
}

// Reset replaces the whole state, request ids and history by a snapshot's in
// one step: readers see the old state or the new, nothing between.
//
// The feed continues where the snapshot's own history reaches back far enough,
// batch by batch, exactly as it was at the source; readers that are further
// behind get ErrCompacted. When the snapshot is older than the store, its
// history is not taken over, every Feed and every waiting Next gets
// ErrCompacted, and Revision falls, the only way it ever does. The same goes for
// a snapshot of the store's own revision with other content, by which a damaged
// replica is repaired.
//
// Error: ErrCorrupt when the snapshot contradicts itself; nothing was changed.
func (s *Store) Reset(snap *Snapshot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.View()
	d := snap.prepared
	if snap.prepared = nil; d == nil {
		s.generation++
		var twice resource.Key
		var ok bool
		if d, twice, ok = s.draftOf(s.generation, snap.Resources); !ok {
			return fmt.Errorf("reset: %w: %s twice", ErrCorrupt, twice)
		}
	}
	v := &View{
		revision: snap.Revision, changed: snap.Changed, access: snap.AccessRevision,
		time: snap.Time, epoch: snap.Epoch, timeline: was.timeline,
		tree: d.tree.Copy(), index: d.index.copy(), tallies: d.tallies,
	}
	if v.changed == 0 {
		v.changed = v.revision
	}
	if v.changed > v.revision {
		return fmt.Errorf("reset: %w: changed at %d after revision %d", ErrCorrupt, v.changed, v.revision)
	}
	past := snap.past
	if v.revision < was.revision || (v.revision == was.revision && v.DigestOf(nil) != was.DigestOf(nil)) {
		v.timeline++
		past = nil
	}
	fresh := history{bounds: s.opts.History}
	records, base, err := s.rewind(v, past)
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	fresh.base = base
	for _, r := range slices.Backward(records) {
		fresh.add(r)
	}
	kept, err := snap.restorePast(v)
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	s.tree, s.index, s.restoring = d.tree, d.index, nil
	s.history, s.past = fresh, kept
	s.requests = requests{bounds: s.opts.Requests}
	s.requests.forgotten = snap.forgotten
	for _, r := range snap.requests {
		s.requests.add(r)
	}
	s.publishLocked(v)
	return nil
}

// rewind walks back from a state and returns the batches passed, newest first,
// and the state before them. No reader lists these states by terms, so they have none.
func (s *Store) rewind(v *View, past []undo) ([]*record, *View, error) {
	work := v.tree.Copy()
	tallies := v.tallies
	var records []*record
	for i := range past {
		u := &past[i]
		if u.revision != v.changed || u.before.changed >= u.revision {
			return nil, nil, fmt.Errorf("%w: batch %d, after %d, stands where %d is expected", ErrCorrupt, u.revision, u.before.changed, v.changed)
		}
		s.generation++
		d := &draft{generation: s.generation, tree: work, tallies: slices.Clone(tallies)}
		b := Batch{Revision: u.revision, Prev: u.before.changed, Time: u.time}
		for _, c := range u.changes {
			change := Change{Before: c.before}
			if it, ok := d.get(c.key); ok {
				change.After = it.res
			}
			if change == (Change{}) {
				return nil, nil, fmt.Errorf("%w: batch %d changed nothing at %s", ErrCorrupt, u.revision, c.key)
			}
			b.Changes = append(b.Changes, change)
			if c.before == nil {
				d.delete(c.key)
			} else {
				d.put(newItem(c.before))
			}
		}
		before := &View{
			revision: u.before.changed, changed: u.before.changed, access: u.before.access,
			time: u.before.time, epoch: v.epoch, timeline: v.timeline,
			tree: work.Copy(), tallies: d.tallies,
		}
		if u.epoch {
			e := v.epoch
			b.Epoch, before.epoch = &e, u.before.epoch
		}
		records = append(records, newRecord(b, v))
		v, tallies = before, d.tallies
	}
	return records, v, nil
}
