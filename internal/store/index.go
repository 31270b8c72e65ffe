package store

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"meridian/internal/parallel"
	"meridian/internal/resource"
)

// index finds resources by their terms (see Options.Terms). It is shared and copied as
// the tree is. A nil index holds nothing.
type index struct {
	terms   func(*resource.Resource) []string
	entries *btree.BTreeG[entry]
}

// entry is a resource under one of its terms.
type entry struct {
	// key is the resource's, in the resource. Its name does not count in what a scan
	// begins at, whose res is nil.
	key  *resource.Key
	term string
	res  *resource.Resource
}

// compare orders entries by kind and mesh, then by term, then by name.
func (e *entry) compare(o *entry) int {
	return cmp.Or(
		strings.Compare(string(e.key.Kind), string(o.key.Kind)),
		strings.Compare(string(e.key.Mesh), string(o.key.Mesh)),
		strings.Compare(e.term, o.term),
		strings.Compare(e.key.Name, o.key.Name),
	)
}

func newIndex(terms func(*resource.Resource) []string) *index {
	if terms == nil {
		return nil
	}
	less := func(a, b entry) bool { return a.compare(&b) < 0 }
	return &index{terms: terms, entries: btree.NewBTreeGOptions(less, btree.Options{Degree: treeDegree, NoLocks: true})}
}

func (x *index) copy() *index {
	if x == nil {
		return nil
	}
	return &index{terms: x.terms, entries: x.entries.Copy()}
}

// termChange is what a change of a resource takes out of the index and puts in.
type termChange struct{ out, in []entry }

// change returns what takes a resource out and puts another of the same key in; either
// may be nil. It is safe for concurrent use.
func (x *index) change(before, after *resource.Resource) termChange {
	if x == nil {
		return termChange{}
	}
	c := termChange{in: x.of(after)}
	for _, e := range x.of(before) {
		if !slices.ContainsFunc(c.in, func(n entry) bool { return n.term == e.term }) {
			c.out = append(c.out, e)
		}
	}
	return c
}

func (x *index) apply(c termChange) {
	for _, e := range c.out {
		x.entries.Delete(e)
	}
	for _, e := range c.in {
		x.entries.Set(e)
	}
}

// ofEach returns the entries of each of the resources.
func (x *index) ofEach(resources []*resource.Resource) [][]entry {
	all := make([][]entry, len(resources))
	if x != nil {
		parallel.For(len(resources), func(from, to int) {
			for i := from; i < to; i++ {
				all[i] = x.of(resources[i])
			}
		})
	}
	return all
}

// load puts entries in that come after all others, in any order.
func (x *index) load(entries []entry) {
	slices.SortFunc(entries, func(a, b entry) int { return a.compare(&b) })
	for _, e := range entries {
		x.entries.Load(e)
	}
}

func (x *index) of(r *resource.Resource) []entry {
	if r == nil {
		return nil
	}
	terms := x.terms(r)
	entries := make([]entry, len(terms))
	for i, term := range terms {
		entries[i] = entry{r.KeyRef(), term, r}
	}
	return entries
}

func (x *index) scan(kind resource.Kind, mesh resource.MeshName, prefix string, visit func(*resource.Resource) bool) {
	first := entry{key: &resource.Key{Kind: kind, Mesh: mesh}, term: prefix}
	x.entries.Ascend(first, func(e entry) bool {
		if e.key.Kind != kind || e.key.Mesh != mesh || !strings.HasPrefix(e.term, prefix) {
			return false
		}
		return visit(e.res)
	})
}
