package store

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tidwall/btree"

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

// replace takes a resource out and puts another of the same key in; either may be nil.
func (x *index) replace(before, after *resource.Resource) {
	if x == nil {
		return
	}
	now := x.of(after)
	for _, e := range x.of(before) {
		if !slices.ContainsFunc(now, func(n entry) bool { return n.term == e.term }) {
			x.entries.Delete(e)
		}
	}
	for _, e := range now {
		x.entries.Set(e)
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
