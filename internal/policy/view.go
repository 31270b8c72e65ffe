package policy

import (
	"iter"
	"slices"
	"strings"

	"meridian/internal/resource"
)

// View is one consistent revision of every resource. Implementations are
// immutable and safe for concurrent use.
type View interface {
	// Get returns a resource, or false.
	Get(key resource.Key) (*resource.Resource, bool)
	// List yields the resources of a kind in key order; an empty mesh means
	// every mesh.
	List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource]
	// Revision is the revision read from.
	Revision() resource.Revision
}

// TermLister is a View that finds resources by terms that an engine gives them, such as
// the services that they select: what is looked for need not be among all of a kind.
type TermLister interface {
	View
	// ListBy yields the resources of a kind in a mesh that have a term which begins with
	// a prefix, once for each such term. False: this view cannot tell.
	ListBy(kind resource.Kind, mesh resource.MeshName, prefix string) (iter.Seq[*resource.Resource], bool)
}

// Terms finds the resources of a view by their terms: the view's own way where it is a
// TermLister, or else by an index of each kind that is asked for. It is not safe for
// concurrent use.
type Terms struct {
	view  View
	terms func(*resource.Resource) []string
	// kinds are indexes of kinds in meshes, under keys without a name.
	kinds map[resource.Key][]termed
}

// termed is a resource under one of its terms.
type termed struct {
	term string
	r    *resource.Resource
}

// NewTerms returns the terms of a view. A TermLister is to have the same, of the kinds
// that are asked for.
func NewTerms(view View, terms func(*resource.Resource) []string) *Terms {
	return &Terms{view: view, terms: terms, kinds: map[resource.Key][]termed{}}
}

// List yields as TermLister.ListBy.
func (t *Terms) List(kind resource.Kind, mesh resource.MeshName, prefix string) iter.Seq[*resource.Resource] {
	if lister, ok := t.view.(TermLister); ok {
		if list, ok := lister.ListBy(kind, mesh, prefix); ok {
			return list
		}
	}
	key := resource.Key{Kind: kind, Mesh: mesh}
	all, known := t.kinds[key]
	if !known {
		for r := range t.view.List(kind, mesh) {
			for _, term := range t.terms(r) {
				all = append(all, termed{term, r})
			}
		}
		slices.SortStableFunc(all, func(a, b termed) int { return strings.Compare(a.term, b.term) })
		t.kinds[key] = all
	}
	from, _ := slices.BinarySearchFunc(all, prefix, func(e termed, prefix string) int { return strings.Compare(e.term, prefix) })
	return func(yield func(*resource.Resource) bool) {
		for _, e := range all[from:] {
			if !strings.HasPrefix(e.term, prefix) || !yield(e.r) {
				return
			}
		}
	}
}

// Snapshot is a View of a fixed set of resources: what offline evaluation reads
// from files. Its revision is 0.
type Snapshot struct {
	sorted []*resource.Resource
}

// NewSnapshot returns a view of the resources, in any order. Of two with one
// key the last one counts; loaders of documents reject such input before.
func NewSnapshot(resources ...*resource.Resource) *Snapshot {
	latest := make(map[resource.Key]*resource.Resource, len(resources))
	for _, r := range resources {
		latest[r.Key()] = r
	}
	sorted := make([]*resource.Resource, 0, len(latest))
	for _, r := range latest {
		sorted = append(sorted, r)
	}
	slices.SortFunc(sorted, func(a, b *resource.Resource) int { return a.Key().Compare(b.Key()) })
	return &Snapshot{sorted: sorted}
}

// Get implements View.
func (s *Snapshot) Get(key resource.Key) (*resource.Resource, bool) {
	i, found := s.search(key)
	if !found {
		return nil, false
	}
	return s.sorted[i], true
}

// List implements View.
func (s *Snapshot) List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource] {
	return func(yield func(*resource.Resource) bool) {
		from, _ := s.search(resource.Key{Kind: kind, Mesh: mesh})
		for _, r := range s.sorted[from:] {
			k := r.Key()
			if k.Kind != kind || (mesh != "" && k.Mesh != mesh) || !yield(r) {
				return
			}
		}
	}
}

// Revision implements View.
func (s *Snapshot) Revision() resource.Revision { return 0 }

func (s *Snapshot) search(key resource.Key) (int, bool) {
	return slices.BinarySearchFunc(s.sorted, key, func(r *resource.Resource, k resource.Key) int {
		return r.Key().Compare(k)
	})
}
