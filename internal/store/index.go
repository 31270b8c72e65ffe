package store

import (
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
	// key is the resource's, with the term and endOfTerm in front of its name.
	key resource.Key
	res *resource.Resource
}

// endOfTerm stands in no name.
const endOfTerm = "\x00"

func newIndex(terms func(*resource.Resource) []string) *index {
	if terms == nil {
		return nil
	}
	less := func(a, b entry) bool { return a.key.Compare(b.key) < 0 }
	return &index{terms: terms, entries: btree.NewBTreeGOptions(less, btree.Options{Degree: treeDegree, NoLocks: true})}
}

func (x *index) copy() *index {
	if x == nil {
		return nil
	}
	return &index{terms: x.terms, entries: x.entries.Copy()}
}

// replace takes a resource out and puts another in; either may be nil.
func (x *index) replace(before, after *resource.Resource) {
	if x == nil {
		return
	}
	now := x.of(after)
	for _, e := range x.of(before) {
		if !slices.ContainsFunc(now, func(n entry) bool { return n.key == e.key }) {
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
	var entries []entry
	for _, term := range x.terms(r) {
		key := r.Key()
		key.Name = term + endOfTerm + key.Name
		entries = append(entries, entry{key, r})
	}
	return entries
}

func (x *index) scan(kind resource.Kind, mesh resource.MeshName, prefix string, visit func(*resource.Resource) bool) {
	x.entries.Ascend(entry{key: resource.Key{Kind: kind, Mesh: mesh, Name: prefix}}, func(e entry) bool {
		if e.key.Kind != kind || e.key.Mesh != mesh || !strings.HasPrefix(e.key.Name, prefix) {
			return false
		}
		return visit(e.res)
	})
}
