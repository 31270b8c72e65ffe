package store

import (
	"bytes"
	"maps"

	"meridian/internal/resource"
)

// Replicate writes a batch of another store's feed into a replica, which keeps
// the times, versions and revisions that the source assigned. Of each change
// only the key and After are read; the replica's own feed tells what it had
// before. The batch may join several of the source's, the last state of each
// key standing for all (deleting what is not there is then no mistake).
//
// Error: *GapError unless the batch begins where the replica stands, from its
// last change up to its revision, and ends after it; *InvalidOpError when it
// has two changes of one key. Nothing is applied then.
func (s *Store) Replicate(in Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.View()
	if in.Prev < from.changed || in.Prev > from.revision || in.Revision <= from.revision {
		return &GapError{At: from.revision, Prev: in.Prev, Revision: in.Revision}
	}
	b := &batch{draft: s.draftLocked(from), from: from, revision: in.Revision, time: in.Time, access: from.access}
	seen := make(map[resource.Key]struct{}, len(in.Changes))
	for _, c := range in.Changes {
		if _, twice := seen[c.Key()]; twice {
			return &InvalidOpError{Key: c.Key(), Reason: "more than one change of this key in a batch"}
		}
		seen[c.Key()] = struct{}{}
		b.adopt(c)
	}
	b.putAll(b.changes)
	b.noteAccess(b.changes)
	if in.Epoch != nil && *in.Epoch != from.epoch {
		b.epoch = in.Epoch
	}
	if len(b.changes) == 0 && b.epoch == nil {
		s.advanceLocked(in.Revision)
		return nil
	}
	s.commitLocked(b, [][]byte{nil})
	return nil
}

// adopt notes a change, and deletes what it deletes.
func (b *batch) adopt(c Change) {
	key := c.Key()
	it, had := b.get(key)
	switch {
	case c.After == nil && had:
		b.delete(key)
		b.changes = append(b.changes, Change{Before: it.res})
	case c.After == nil:
	case !had:
		b.changes = append(b.changes, Change{After: c.After})
	case !same(it.res, c.After):
		b.changes = append(b.changes, Change{Before: it.res, After: c.After})
	}
}

// same reports whether two resources are equal in everything that is stored.
func same(a, b *resource.Resource) bool {
	x, y := a.Meta(), b.Meta()
	return x.Key == y.Key && x.Version == y.Version && x.Revision == y.Revision && x.Rollout == y.Rollout &&
		x.CreationTime.Equal(y.CreationTime) && x.ModificationTime.Equal(y.ModificationTime) &&
		maps.Equal(x.Labels, y.Labels) && bytes.Equal(a.Canonical(), b.Canonical())
}
