package store

import (
	"iter"

	"meridian/internal/resource"
)

// Union returns a reader of both states as one, such as a zone's replica of
// what the global owns and its own local store. Where both hold a key, first
// wins. Lists are merged in key order. Its revision is first's.
func Union(first, second Reader) Reader { return union{first, second} }

type union struct{ first, second Reader }

func (u union) Get(key resource.Key) (*resource.Resource, bool) {
	if r, ok := u.first.Get(key); ok {
		return r, true
	}
	return u.second.Get(key)
}

func (u union) Revision() resource.Revision { return u.first.Revision() }

func (u union) List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource] {
	return func(yield func(*resource.Resource) bool) {
		next, stop := iter.Pull(u.second.List(kind, mesh))
		defer stop()
		b, more := next()
		for a := range u.first.List(kind, mesh) {
			for more && b.Key().Compare(a.Key()) < 0 {
				if !yield(b) {
					return
				}
				b, more = next()
			}
			if more && b.Key() == a.Key() {
				b, more = next()
			}
			if !yield(a) {
				return
			}
		}
		for ; more; b, more = next() {
			if !yield(b) {
				return
			}
		}
	}
}

// ListBy is View.ListBy of both, one after the other, where both can.
func (u union) ListBy(kind resource.Kind, mesh resource.MeshName, prefix string) (iter.Seq[*resource.Resource], bool) {
	type lister interface {
		ListBy(kind resource.Kind, mesh resource.MeshName, prefix string) (iter.Seq[*resource.Resource], bool)
	}
	a, ok := u.first.(lister)
	b, also := u.second.(lister)
	if !ok || !also {
		return nil, false
	}
	first, ok := a.ListBy(kind, mesh, prefix)
	second, also := b.ListBy(kind, mesh, prefix)
	if !ok || !also {
		return nil, false
	}
	return func(yield func(*resource.Resource) bool) {
		for r := range first {
			if !yield(r) {
				return
			}
		}
		for r := range second {
			if _, hidden := u.first.Get(r.Key()); !hidden && !yield(r) {
				return
			}
		}
	}, true
}

// Position is where a reader of several stores stands: a revision of each, and the
// history that it is of.
type Position struct {
	Revisions []resource.Revision
	// Histories are the random parts of the stores' epochs.
	Histories []uint64
}

// ReadAt returns a reader of several stores as one, as Union does, and where it
// stands; at, unless nil, is where it is to stand. Errors: ErrCompacted, the position
// is not retained any more or is of another history; ErrFuture.
func ReadAt(stores []*Store, at *Position) (Reader, Position, error) {
	var all Reader
	var here Position
	if at != nil && (len(at.Revisions) != len(stores) || len(at.Histories) != len(stores)) {
		return nil, here, ErrCompacted
	}
	for i, s := range stores {
		v := s.View()
		if at != nil {
			var err error
			if v, err = s.ViewAt(at.Revisions[i]); err != nil {
				return nil, here, err
			}
			if v.Epoch().Random != at.Histories[i] {
				return nil, here, ErrCompacted
			}
		}
		here.Revisions, here.Histories = append(here.Revisions, v.Revision()), append(here.Histories, v.Epoch().Random)
		if all == nil {
			all = v
		} else {
			all = Union(all, v)
		}
	}
	return all, here, nil
}
