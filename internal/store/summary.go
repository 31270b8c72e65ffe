package store

import (
	"cmp"
	"slices"
	"time"

	"meridian/internal/resource"
)

// Summary is what a stored snapshot holds, for people.
type Summary struct {
	Revision resource.Revision
	Epoch    Epoch
	// Time is the last batch's.
	Time time.Time
	// Metadata is what the writer said about it.
	Metadata map[string]string
	// Resources counts all of them, Unreadable those that this release keeps
	// without being able to use them.
	Resources, Unreadable int
	// Counts are per kind and mesh, sorted by them.
	Counts []Count
	// Digest of all resources. It has been checked.
	Digest Digest
	// Bytes is the size of the file.
	Bytes int64
}

// Count is how many resources of one kind there are in one mesh; the mesh of
// globally scoped kinds is empty.
type Count struct {
	Kind  resource.Kind
	Mesh  resource.MeshName
	Count int
}

// Summary counts what the snapshot holds.
func (snap *Snapshot) Summary() Summary {
	s := Summary{
		Revision: snap.Revision, Epoch: snap.Epoch, Time: snap.Time, Metadata: snap.Metadata,
		Resources: len(snap.Resources), Bytes: snap.size,
	}
	type group struct {
		kind resource.Kind
		mesh resource.MeshName
	}
	counts := map[group]int{}
	for _, r := range snap.Resources {
		s.Digest = s.Digest.Add(Sum(r))
		counts[group{r.Key().Kind, r.Key().Mesh}]++
		if _, unreadable := r.Spec().(*Unreadable); unreadable {
			s.Unreadable++
		}
	}
	for g, n := range counts {
		s.Counts = append(s.Counts, Count{Kind: g.kind, Mesh: g.mesh, Count: n})
	}
	slices.SortFunc(s.Counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Mesh, b.Mesh))
	})
	return s
}
