package store

import (
	"slices"

	"meridian/internal/parallel"
	"meridian/internal/resource"
)

// loadAtOnce bounds how many resources are prepared before they are put into the trees of
// a state that is built as a whole, so that what was prepared takes little memory.
const loadAtOnce = 32 << 10

// Prepare does beforehand what takes Reset longest, while the store is read and written. It
// may be left out, and the snapshot is for one Reset of this store.
func (s *Store) Prepare(snap *Snapshot) {
	s.mu.Lock()
	s.generation++
	generation := s.generation
	s.mu.Unlock()
	if d, _, ok := s.draftOf(generation, snap.Resources); ok { // else Reset says why not
		snap.prepared = d
	}
}

// draftOf returns the draft of a state that has the resources alone, in any order, or
// false and a key that two of them have. It reads them on all processors and builds the
// trees in their order: a server that starts has a million of them, which take half as
// long as if they were written one after the other.
func (s *Store) draftOf(generation uint64, resources []*resource.Resource) (d *draft, twice resource.Key, ok bool) {
	d = &draft{generation: generation, tree: newTree(), index: newIndex(s.opts.Terms)}
	compare := func(a, b *resource.Resource) int { return a.KeyRef().Compare(*b.KeyRef()) }
	if !slices.IsSortedFunc(resources, compare) {
		resources = slices.SortedFunc(slices.Values(resources), compare)
	}
	for i, r := range resources[min(1, len(resources)):] {
		if *r.KeyRef() == *resources[i].KeyRef() {
			return nil, r.Key(), false
		}
	}
	for len(resources) > 0 {
		n := portionOf(resources)
		d.load(resources[:n])
		resources = resources[n:]
	}
	return d, resource.Key{}, true
}

// portionOf returns how many of the resources to load next: all of a kind in a mesh, which
// the index sorts together.
func portionOf(sorted []*resource.Resource) int {
	n := 0
	for n < min(len(sorted), loadAtOnce) {
		n += groupAt(sorted[n:])
	}
	return n
}

// groupAt returns how many resources at the beginning are of one kind in one mesh.
func groupAt(sorted []*resource.Resource) int {
	first := sorted[0].KeyRef()
	n, _ := slices.BinarySearchFunc(sorted, first, func(r *resource.Resource, first *resource.Key) int {
		if k := r.KeyRef(); k.Kind == first.Kind && k.Mesh == first.Mesh {
			return -1
		}
		return 1
	})
	return n
}

// load adds resources that come after all that the draft has.
func (d *draft) load(sorted []*resource.Resource) {
	items, entries := make([]*item, len(sorted)), d.index.ofEach(sorted)
	parallel.For(len(sorted), func(from, to int) {
		for i := from; i < to; i++ {
			items[i] = newItem(sorted[i])
		}
	})
	for _, it := range items {
		d.tree.Load(it)
		d.add(it)
	}
	for len(sorted) > 0 {
		n := groupAt(sorted)
		d.index.load(slices.Concat(entries[:n]...))
		sorted, entries = sorted[n:], entries[n:]
	}
}

// putAll puts what changes write, which are of different keys, as put does.
func (d *draft) putAll(changes []Change) {
	items, terms := make([]*item, len(changes)), make([]termChange, len(changes))
	parallel.For(len(changes), func(from, to int) {
		for i := from; i < to; i++ {
			if c := changes[i]; c.After != nil {
				items[i], terms[i] = newItem(c.After), d.index.change(c.Before, c.After)
			}
		}
	})
	for i, it := range items {
		if it != nil {
			d.putItem(it, terms[i])
		}
	}
}
