package store

import (
	"context"

	"meridian/internal/resource"
)

// maxBatches bounds what one read of the feed copies.
const maxBatches = 512

// Next returns the batches after a revision, oldest first and without a gap,
// and blocks until there is one. It returns at most some hundreds at a time:
// continue from the last one's revision. Errors: ErrCompacted, take View and
// continue from its revision; ErrFuture, Wait first; the context's cause.
//
// A revision alone does not tell a history from one that was rewound by Reset
// between two calls; a reader that must know uses Follow.
func (s *Store) Next(ctx context.Context, after resource.Revision) ([]Batch, error) {
	return s.next(ctx, s.View().timeline, after)
}

func (s *Store) next(ctx context.Context, timeline uint64, after resource.Revision) ([]Batch, error) {
	for {
		p := s.now.Load()
		if p.view.timeline != timeline {
			return nil, ErrCompacted
		}
		if err := p.check(after); err != nil {
			return nil, err
		}
		if pending := p.past[firstAfter(p.past, after):]; len(pending) > 0 {
			batches := make([]Batch, min(len(pending), maxBatches))
			for i := range batches {
				batches[i] = pending[i].batch
			}
			return batches, nil
		}
		if err := p.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// Feed is one reader's place in the feed. It is for one goroutine.
type Feed struct {
	store    *Store
	timeline uint64
	at       resource.Revision
}

// Follow returns a feed that begins right after a view of this store.
func (s *Store) Follow(v *View) *Feed {
	return &Feed{store: s, timeline: v.timeline, at: v.revision}
}

// FollowFrom returns a feed that begins after a revision, of whatever history the
// store has now. A reader that has a view uses Follow.
func (s *Store) FollowFrom(after resource.Revision) *Feed {
	return &Feed{store: s, timeline: s.View().timeline, at: after}
}

// Next returns the batches after the last one returned, as Store.Next does, and
// ErrCompacted also when the store was rewound to an older snapshot since. After
// ErrCompacted the reader takes a view, compares it with the one it has (see
// Diff) and follows that.
func (f *Feed) Next(ctx context.Context) ([]Batch, error) {
	batches, err := f.store.next(ctx, f.timeline, f.at)
	if err != nil {
		return nil, err
	}
	f.at = batches[len(batches)-1].Revision
	return batches, nil
}

// Revision is the revision up to which the feed has delivered everything.
func (f *Feed) Revision() resource.Revision { return f.at }

// Diff returns what leads from one state to another, in key order: what a
// reader that lost its place has missed, as one step. Resources of equal
// content and version are no change. It reads both states whole.
func Diff(from, to *View) []Change {
	var changes []Change
	was, is := from.tree.Iter(), to.tree.Iter()
	defer was.Release()
	defer is.Release()
	old, fresh := was.First(), is.First()
	for old || fresh {
		switch order := compareItems(&was, old, &is, fresh); {
		case order < 0:
			changes = append(changes, Change{Before: was.Item().res})
			old = was.Next()
		case order > 0:
			changes = append(changes, Change{After: is.Item().res})
			fresh = is.Next()
		default:
			before, after := was.Item(), is.Item()
			if before != after && !same(before.res, after.res) {
				changes = append(changes, Change{Before: before.res, After: after.res})
			}
			old, fresh = was.Next(), is.Next()
		}
	}
	return changes
}

// compareItems orders what two iterators stand on; one at its end comes last.
func compareItems(a *iterator, inA bool, b *iterator, inB bool) int {
	switch {
	case !inB:
		return -1
	case !inA:
		return 1
	}
	return a.Item().key.Compare(*b.Item().key)
}
