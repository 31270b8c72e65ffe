package store

import (
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"meridian/internal/resource"
)

// index finds the keys of resources by their terms (see Options.Terms). It is shared and
// copied as the tree is. A nil index holds nothing.
type index struct {
	terms func(*resource.Resource) []string
	// entries are keys whose names have a term and endOfTerm in front.
	entries *btree.BTreeG[resource.Key]
}

// endOfTerm stands in no name.
const endOfTerm = "\x00"

func newIndex(terms func(*resource.Resource) []string) *index {
	if terms == nil {
		return nil
	}
	less := func(a, b resource.Key) bool { return a.Compare(b) < 0 }
	return &index{terms: terms, entries: btree.NewBTreeGOptions(less, btree.Options{Degree: treeDegree, NoLocks: true})}
}

func (x *index) copy() *index {
	if x == nil {
		return nil
	}
	return &index{terms: x.terms, entries: x.entries.Copy()}
}

// replace takes a resource out and puts another in; either may be nil. A change that
// keeps the terms changes nothing.
func (x *index) replace(before, after *resource.Resource) {
	if x == nil {
		return
	}
	old, now := x.of(before), x.of(after)
	for _, key := range old {
		if !slices.Contains(now, key) {
			x.entries.Delete(key)
		}
	}
	for _, key := range now {
		if !slices.Contains(old, key) {
			x.entries.Set(key)
		}
	}
}

func (x *index) of(r *resource.Resource) []resource.Key {
	if r == nil {
		return nil
	}
	var keys []resource.Key
	for _, term := range x.terms(r) {
		key := r.Key()
		key.Name = term + endOfTerm + key.Name
		keys = append(keys, key)
	}
	return keys
}

func (x *index) scan(kind resource.Kind, mesh resource.MeshName, prefix string, visit func(resource.Key) bool) {
	x.entries.Ascend(resource.Key{Kind: kind, Mesh: mesh, Name: prefix}, func(key resource.Key) bool {
		if key.Kind != kind || key.Mesh != mesh || !strings.HasPrefix(key.Name, prefix) {
			return false
		}
		key.Name = key.Name[strings.LastIndex(key.Name, endOfTerm)+len(endOfTerm):]
		return visit(key)
	})
}
