package policy

import (
	"iter"
	"slices"

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
