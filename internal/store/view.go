package store

import (
	"iter"
	"time"

	"meridian/internal/resource"
)

// View is the whole state at one revision. It never changes, may be kept and
// read by any number of goroutines, and costs only what has changed since. It
// implements Reader.
type View struct {
	revision resource.Revision // state as of
	changed  resource.Revision // last batch, ≤ revision
	access   resource.Revision // last batch that touched access rules
	time     time.Time         // of the last batch
	epoch    Epoch
	timeline uint64 // counts the Resets that rewound the store
	tree     *tree  // never written to; its own copy
	index    *index // likewise; nil where the store has none
	tallies  []*tally

	// What a snapshot carries besides the state. Only in the newest view: views
	// inside the history must not hold on to the history.
	requests []*request
	// forgotten is the time of the newest request that is not among them.
	forgotten time.Time
	history   []*record
	base      *View // the state before history[0]
	tail      int   // bytes of history in a snapshot
	past      *pastView
}

var _ Reader = (*View)(nil)

// Revision is the revision that the view is as of. Every batch up to it is in.
func (v *View) Revision() resource.Revision { return v.revision }

// Changed is the revision of the last batch that changed anything, at most
// Revision.
func (v *View) Changed() resource.Revision { return v.changed }

// AccessRevision is the revision of the last change of an AccessRole or
// AccessRoleBinding, zero if there was none. A writer who was authorized on
// this view passes it in Txn.AccessRevision (§6.4).
func (v *View) AccessRevision() resource.Revision { return v.access }

// Time is the time of the last batch.
func (v *View) Time() time.Time { return v.time }

// Epoch is the epoch of the state; zero until one has been set.
func (v *View) Epoch() Epoch { return v.epoch }

// Get returns a resource, or false.
func (v *View) Get(key resource.Key) (*resource.Resource, bool) {
	it, ok := lookup(v.tree, key)
	if !ok {
		return nil, false
	}
	return it.res, true
}

// List yields the resources of a kind in key order; an empty mesh means every
// mesh. It touches only what it yields.
func (v *View) List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource] {
	return v.ListFrom(resource.Key{Kind: kind, Mesh: mesh}, mesh)
}

// ListFrom is List of the kind of a key, beginning at the key.
func (v *View) ListFrom(first resource.Key, mesh resource.MeshName) iter.Seq[*resource.Resource] {
	return func(yield func(*resource.Resource) bool) {
		v.scan(first, func(it *item) bool {
			if it.key.Kind != first.Kind || (mesh != "" && it.key.Mesh != mesh) {
				return false
			}
			return yield(it.res)
		})
	}
}

// ListBy yields the resources of a kind in a mesh that have a term which begins with a
// prefix, in the order of their terms and then names: once for each such term (see
// Options.Terms). It touches only what it yields, and reports false where the store has
// no terms, and for a state of the past that a snapshot brought.
func (v *View) ListBy(kind resource.Kind, mesh resource.MeshName, prefix string) (iter.Seq[*resource.Resource], bool) {
	if v.index == nil {
		return nil, false
	}
	return func(yield func(*resource.Resource) bool) {
		v.index.scan(kind, mesh, prefix, yield)
	}, true
}

// All yields every resource in key order.
func (v *View) All() iter.Seq[*resource.Resource] {
	return func(yield func(*resource.Resource) bool) {
		v.scan(resource.Key{}, func(it *item) bool { return yield(it.res) })
	}
}

func (v *View) scan(from resource.Key, visit func(*item) bool) {
	v.tree.Ascend(&item{key: &from}, visit)
}

// Kinds returns the kinds that have resources, sorted.
func (v *View) Kinds() []resource.Kind {
	var kinds []resource.Kind
	for _, t := range v.tallies {
		if t.count > 0 {
			kinds = append(kinds, t.kind)
		}
	}
	return kinds
}

// Count returns how many resources of a kind there are.
func (v *View) Count(kind resource.Kind) int {
	if i, ok := findTally(v.tallies, kind); ok {
		return v.tallies[i].count
	}
	return 0
}

// Len returns how many resources there are.
func (v *View) Len() int { return v.tree.Len() }

// Digest returns the digest of one kind.
func (v *View) Digest(kind resource.Kind) Digest {
	if i, ok := findTally(v.tallies, kind); ok {
		return v.tallies[i].digest
	}
	return Digest{}
}

// PartDigest returns the digest of what a mesh has of some kinds. It walks over those
// resources.
func (v *View) PartDigest(mesh resource.MeshName, kinds []resource.Kind) Digest {
	var d Digest
	for _, kind := range kinds {
		v.scan(resource.Key{Kind: kind, Mesh: mesh}, func(it *item) bool {
			if it.key.Kind != kind || it.key.Mesh != mesh {
				return false
			}
			d = d.Add(it.sum)
			return true
		})
	}
	return d
}

// DigestOf returns the digest of the kinds that keep accepts, nil meaning all.
// It costs a few additions.
func (v *View) DigestOf(keep func(resource.Kind) bool) Digest {
	var d Digest
	for _, t := range v.tallies {
		if keep == nil || keep(t.kind) {
			d = d.Add(t.digest)
		}
	}
	return d
}

// Buckets returns the digest of each bucket (see BucketOf) over the kinds that
// keep accepts, nil meaning all. Its cost does not depend on how many resources
// there are.
func (v *View) Buckets(keep func(resource.Kind) bool) [BucketCount]Digest {
	var sums [BucketCount]Digest
	for _, t := range v.tallies {
		if keep != nil && !keep(t.kind) {
			continue
		}
		for hi, block := range t.blocks {
			if block == nil {
				continue
			}
			for lo, sum := range block.sums {
				i := hi*fanout + lo
				sums[i] = sums[i].Add(sum)
			}
		}
	}
	return sums
}

// Bucket yields, in key order, the resources of the given buckets and of the
// kinds that keep accepts, nil meaning all. It reads every resource of those
// kinds.
func (v *View) Bucket(wanted func(bucket int) bool, keep func(resource.Kind) bool) iter.Seq[*resource.Resource] {
	return func(yield func(*resource.Resource) bool) {
		for _, t := range v.tallies {
			if t.count == 0 || (keep != nil && !keep(t.kind)) {
				continue
			}
			more := true
			v.scan(resource.Key{Kind: t.kind}, func(it *item) bool {
				if it.key.Kind != t.kind {
					return false
				}
				more = !wanted(it.bucket()) || yield(it.res)
				return more
			})
			if !more {
				return
			}
		}
	}
}
