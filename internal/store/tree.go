package store

import (
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"meridian/internal/resource"
)

// item is what the tree holds: a resource with its term in the digest, which is derived
// from it once.
type item struct {
	// key is the resource's, in the resource. Alone it is what is looked for.
	key *resource.Key
	res *resource.Resource
	sum Digest
}

func newItem(r *resource.Resource) *item { return &item{key: r.KeyRef(), res: r, sum: Sum(r)} }

// bucket is the one of the resource. It is worked out each time, which takes less than
// to keep it does.
func (it *item) bucket() int { return BucketOf(*it.key) }

type (
	tree     = btree.BTreeG[*item]
	iterator = btree.IterG[*item]
)

// treeDegree keeps nodes small: what a batch copies, and what history then
// retains, is one node per level.
const treeDegree = 16

// newTree returns an empty tree. It takes no locks: one writer owns it, and
// readers see only immutable copies.
func newTree() *tree {
	less := func(a, b *item) bool { return a.key.Compare(*b.key) < 0 }
	return btree.NewBTreeGOptions(less, btree.Options{Degree: treeDegree, NoLocks: true})
}

func lookup(t *tree, key resource.Key) (*item, bool) { return t.Get(itemAt(key)) }

// itemAt returns an item to look for.
func itemAt(key resource.Key) *item {
	at := &struct {
		item
		of resource.Key
	}{of: key}
	at.key = &at.of
	return &at.item
}

// The buckets of a kind are two levels of sixteen, so that a change copies 32
// entries and not 256.
const fanout = 16

type bucketBlock struct {
	generation uint64
	sums       [fanout]Digest
}

// tally counts and digests the resources of one kind. Tallies are copied on
// write: generation says which draft may still write to one.
type tally struct {
	kind       resource.Kind
	generation uint64
	count      int
	digest     Digest
	blocks     [fanout]*bucketBlock
}

// draft is a state under construction. It shares everything it has not changed
// with the state it began from, and is dropped without a trace when the batch
// fails.
type draft struct {
	generation uint64
	tree       *tree
	index      *index
	tallies    []*tally // by kind
}

func (d *draft) get(key resource.Key) (*item, bool) { return lookup(d.tree, key) }

func (d *draft) put(it *item) {
	var before *resource.Resource
	if old, ok := d.get(*it.key); ok {
		before = old.res
	}
	d.putItem(it, d.index.change(before, it.res))
}

// putItem is put of what is prepared: the item, and what it changes in the index.
func (d *draft) putItem(it *item, terms termChange) {
	if old, replaced := d.tree.Set(it); replaced {
		d.subtract(d.tallyOf(it.key.Kind), old)
	}
	d.index.apply(terms)
	d.add(it)
}

// add counts an item that the tree has.
func (d *draft) add(it *item) {
	t := d.tallyOf(it.key.Kind)
	t.count++
	t.digest = t.digest.Add(it.sum)
	bucket := it.bucket()
	b := d.blockOf(t, bucket)
	b.sums[bucket%fanout] = b.sums[bucket%fanout].Add(it.sum)
}

func (d *draft) delete(key resource.Key) {
	if old, ok := d.tree.Delete(itemAt(key)); ok {
		d.subtract(d.tallyOf(key.Kind), old)
		d.index.apply(d.index.change(old.res, nil))
	}
}

func (d *draft) subtract(t *tally, it *item) {
	t.count--
	t.digest = t.digest.Sub(it.sum)
	bucket := it.bucket()
	b := d.blockOf(t, bucket)
	b.sums[bucket%fanout] = b.sums[bucket%fanout].Sub(it.sum)
}

// tallyOf returns the tally of a kind, ready to be written to by this draft. A
// tally that falls to zero stays: kinds are few.
func (d *draft) tallyOf(kind resource.Kind) *tally {
	i, found := findTally(d.tallies, kind)
	if !found {
		d.tallies = slices.Insert(d.tallies, i, &tally{kind: kind, generation: d.generation})
		return d.tallies[i]
	}
	if d.tallies[i].generation != d.generation {
		fresh := *d.tallies[i]
		fresh.generation = d.generation
		d.tallies[i] = &fresh
	}
	return d.tallies[i]
}

func (d *draft) blockOf(t *tally, bucket int) *bucketBlock {
	at := &t.blocks[bucket/fanout]
	switch {
	case *at == nil:
		*at = &bucketBlock{generation: d.generation}
	case (*at).generation != d.generation:
		fresh := **at
		fresh.generation = d.generation
		*at = &fresh
	}
	return *at
}

func findTally(tallies []*tally, kind resource.Kind) (int, bool) {
	return slices.BinarySearchFunc(tallies, kind, func(t *tally, k resource.Kind) int {
		return strings.Compare(string(t.kind), string(k))
	})
}
