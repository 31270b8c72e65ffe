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
