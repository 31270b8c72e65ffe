package store

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"sort"
	"time"

	"github.com/tidwall/btree"

	"meridian/internal/resource"
)

// Retention bounds the contents of old revisions that a store keeps. It is part of the
// replicated state (Txn.Retention), and what it decides depends on the batches alone, so
// that all servers of a cluster keep the same contents.
type Retention struct {
	// Batches is how many batches are kept. Zero does not bound.
	Batches int
	// Bytes bounds what they take in memory and in a snapshot, by the estimate of
	// PastSize. Zero keeps nothing.
	Bytes int64
	// Age is measured from batch to batch by the times they carry, never by a clock.
	// Zero does not bound.
	Age time.Duration
}

// DefaultRetention returns the bounds that servers use: 100,000 batches, 64 MiB, 30 days.
func DefaultRetention() Retention {
	return Retention{Batches: 100_000, Bytes: 64 << 20, Age: 30 * 24 * time.Hour}
}

// CompactedError means that the contents of a revision are not kept, and which are. It
// is ErrCompacted.
type CompactedError struct {
	// Revision was asked for, zero where a time was. Oldest is the first one that can be
	// read.
	Revision, Oldest resource.Revision
}

func (e *CompactedError) Error() string {
	if e.Revision == 0 {
		return fmt.Sprintf("what was stored then is no longer retained; the oldest revision is %d", e.Oldest)
	}
	return fmt.Sprintf("revision %d is no longer retained; the oldest is %d", e.Revision, e.Oldest)
}

// Is makes it an ErrCompacted.
func (e *CompactedError) Is(target error) bool { return target == ErrCompacted }

// Withheld reports whether the contents of old revisions of a kind are never kept: that
// of secrets and signing keys goes when it is replaced or deleted.
func Withheld(kind resource.Kind) bool {
	d, ok := resource.Describe(kind)
	return ok && d.Sensitive || kind == resource.KindSigningKey
}

// What a batch and a change take in memory and in a snapshot besides the note and the
// resource, in bytes.
const (
	pastOverhead   = 256
	changeSize     = 192
	pastIndexNodes = 16
)

// pastBatch is one batch whose contents are kept: the way back to the state before it.
// It never changes.
type pastBatch struct {
	revision resource.Revision
	time     time.Time
	before   pastState
	// notes are those of the batches that share the revision; there is one where they do not.
	notes   [][]byte
	changes []pastChange // in key order
	size    int64
}

// pastState is what a state has besides resources.
type pastState struct {
	changed, access resource.Revision
	time            time.Time
	// epoch is nil where the batch after it left the epoch as it was.
	epoch *Epoch
}

// pastChange is what one batch did to one key.
type pastChange struct {
	key resource.Key
	// before is what was replaced or deleted, nil if nothing. Its spec is not decoded,
	// and empty where it is withheld.
	before *pastResource
	// version is the one that the batch wrote, 0 where it deleted.
	version uint64
	// note is which of the notes is the change's.
	note int
}

type pastResource struct {
	meta      resource.Meta
	canonical []byte
}

// resource returns it with a spec that is decoded when it is first asked for: who only
// passes it on does not pay for that.
func (p *pastResource) resource() *resource.Resource {
	if p == nil {
		return nil
	}
	meta, canonical := p.meta, p.canonical
	return resource.Deferred(meta, canonical, func() resource.Spec { return Restore(meta, canonical).Spec() })
}

// place is where a change is: the number of its batch, counted from the first that was
// ever kept, and its index there.
type place struct {
	batch int64
	index int
}

// keyChanges are the changes of a key. They are never written over: a later change has
// others, which may share the array.
type keyChanges struct {
	key resource.Key
	// at is where they are, oldest first; the newest is kept, older ones may not be any more.
	at []place
}

// past keeps the contents of old revisions. One writer; what it publishes never changes.
type past struct {
	retention Retention
	window    window[*pastBatch]
	// first is the number of the oldest batch of the window, next that of the next one.
	first, next int64
	// floor is the oldest revision that can be read.
	floor resource.Revision
	bytes int64
	// epochs are the batches of the window that changed the epoch.
	epochs window[*pastBatch]
	keys   *btree.BTreeG[*keyChanges]
	now    *pastView
}

// pastView is what is kept at one revision.
type pastView struct {
	retention Retention
	batches   []*pastBatch
	first     int64
	floor     resource.Revision
	bytes     int64
	epochs    []*pastBatch
	keys      *btree.BTreeG[*keyChanges]
}

func newPast(r Retention, floor resource.Revision) *past {
	less := func(a, b *keyChanges) bool { return a.key.Compare(b.key) < 0 }
	p := &past{retention: r, floor: floor, keys: btree.NewBTreeGOptions(less, btree.Options{Degree: pastIndexNodes, NoLocks: true})}
	p.publish()
	return p
}

// view returns what is kept, nil where nothing is.
func (p *past) view() *pastView {
	if p == nil {
		return nil
	}
	return p.now
}

func (p *past) publish() {
	p.now = &pastView{
		retention: p.retention, batches: p.window.slice(), first: p.first, floor: p.floor, bytes: p.bytes,
		epochs: p.epochs.slice(), keys: p.keys.Copy(),
	}
}

// shared reports whether batches of several writers have shared a revision.
func (k *pastView) shared() bool {
	return k != nil && slices.ContainsFunc(k.batches, func(b *pastBatch) bool { return len(b.notes) > 1 })
}

// newPastBatch tells a batch as the way back to the state before it. by says which of the
// notes is that of a key, the first by default.
func newPastBatch(b Batch, from *View, notes [][]byte, by map[resource.Key]int) *pastBatch {
	p := &pastBatch{
		revision: b.Revision, time: b.Time, notes: notes,
		before:  pastState{changed: from.changed, time: from.time, access: from.access},
		changes: make([]pastChange, len(b.Changes)),
	}
	if b.Epoch != nil {
		epoch := from.epoch
		p.before.epoch = &epoch
	}
	for i, c := range b.Changes {
		change := pastChange{key: c.Key(), note: by[c.Key()]}
		if c.Before != nil {
			change.before = &pastResource{meta: c.Before.Meta(), canonical: c.Before.Canonical()}
		}
		if c.After != nil {
			change.version = c.After.Meta().Version
		}
		p.changes[i] = change
	}
	p.withhold()
	return p
}

// withhold removes the contents that are never kept, and counts what is left.
func (b *pastBatch) withhold() {
	b.size = pastOverhead
	for _, note := range b.notes {
		b.size += int64(len(note))
	}
	for i := range b.changes {
		c := &b.changes[i]
		if c.before != nil && Withheld(c.key.Kind) {
			c.before.meta.Labels, c.before.canonical = nil, nil
		}
		b.size += changeSize + int64(len(c.key.Kind)+len(c.key.Mesh)+len(c.key.Name))
		if c.before != nil {
			b.size += int64(len(c.before.canonical))
			for name, value := range c.before.meta.Labels {
				b.size += int64(len(name) + len(value))
			}
		}
	}
}

// add keeps a batch and drops what is beyond the bounds, oldest first.
func (p *past) add(b *pastBatch) {
	p.push(b)
	p.trim(b.time)
	p.publish()
}

func (p *past) push(b *pastBatch) {
	number := p.next
	for i := range b.changes {
		now := &keyChanges{key: b.changes[i].key}
		if was, ok := p.keys.Set(now); ok {
			now.at = was.at[kept(was.at, p.first):]
		}
		now.at = append(now.at, place{number, i})
	}
	p.window.push(b)
	if b.before.epoch != nil {
		p.epochs.push(b)
	}
	p.next++
	p.bytes += b.size
}

// kept returns the index of the first place that is in a batch from first on.
func kept(at []place, first int64) int {
	i, _ := slices.BinarySearchFunc(at, first, func(p place, first int64) int { return cmp.Compare(p.batch, first) })
	return i
}

func (p *past) trim(now time.Time) {
	r := p.retention
	for len(p.window.items) > 0 {
		oldest := p.window.items[0]
		if p.bytes <= r.Bytes && (r.Batches == 0 || len(p.window.items) <= r.Batches) && (r.Age == 0 || now.Sub(oldest.time) <= r.Age) {
			return
		}
		for _, c := range oldest.changes {
			if it, ok := p.keys.Get(&keyChanges{key: c.key}); ok && it.at[len(it.at)-1].batch == p.first {
				p.keys.Delete(it)
			}
		}
		if oldest.before.epoch != nil {
			p.epochs.pop()
		}
		p.floor = oldest.revision
		p.bytes -= oldest.size
		p.window.pop()
		p.first++
	}
}

// retainLocked makes r the bounds from now on.
func (s *Store) retainLocked(r Retention, from *View) {
	switch {
	case r.Bytes == 0:
		s.past = nil
	case s.past == nil:
		s.past = newPast(r, from.changed)
	default:
		s.past.retention = r
		s.past.trim(from.time)
		s.past.publish()
	}
}

// Retention returns the bounds of the contents that are kept, zero while none are.
func (s *Store) Retention() Retention {
	if p := s.View().past; p != nil {
		return p.retention
	}
	return Retention{}
}

// PastSize returns how many batches are kept with their contents, and how many bytes
// they count as.
func (s *Store) PastSize() (batches int, bytes int64) {
	if p := s.View().past; p != nil {
		return len(p.batches), p.bytes
	}
	return 0, 0
}

// OldestState returns the first revision that StateAt accepts. Where contents are kept
// it is the same on every server of a cluster.
func (s *Store) OldestState() resource.Revision { return s.now.Load().oldest() }

func (p *published) oldest() resource.Revision {
	if p.view.past != nil {
		return p.view.past.floor
	}
	return p.base.changed
}

// StateAt returns the state at a revision, without secrets (Withheld). Errors:
// *CompactedError, which is ErrCompacted; ErrFuture.
func (s *Store) StateAt(rev resource.Revision) (*Past, error) {
	p := s.now.Load()
	switch kept := p.view.past; {
	case rev > p.view.revision:
		return nil, ErrFuture
	case rev < p.oldest():
		return nil, &CompactedError{Revision: rev, Oldest: p.oldest()}
	case rev >= p.base.changed:
		v := p.at(rev)
		return &Past{revision: rev, history: p.view.epoch.Random, epoch: v.epoch, view: v}, nil
	default:
		return kept.at(rev, p.view), nil
	}
}

// RevisionAt returns the newest revision that was written at a time or before. A time
// before the oldest state gives the CompactedError of StateAt.
func (s *Store) RevisionAt(at time.Time) (resource.Revision, error) {
	p := s.now.Load()
	if !p.view.time.After(at) {
		return p.view.revision, nil
	}
	if kept := p.view.past; kept != nil {
		// Times rise from batch to batch (nextTime).
		later := sort.Search(len(kept.batches), func(i int) bool { return kept.batches[i].time.After(at) })
		if later > 0 {
			return kept.batches[later-1].revision, nil
		}
		if len(kept.batches) > 0 && !kept.batches[0].before.time.After(at) {
			return kept.floor, nil
		}
		return 0, &CompactedError{Oldest: kept.floor}
	}
	for _, r := range slices.Backward(p.past) {
		if !r.batch.Time.After(at) {
			return r.batch.Revision, nil
		}
	}
	if !p.base.time.After(at) {
		return p.base.changed, nil
	}
	return 0, &CompactedError{Oldest: p.base.changed}
}

// at returns the state at a revision that is kept, whose changes up to newest are.
func (k *pastView) at(rev resource.Revision, newest *View) *Past {
	out := &Past{revision: rev, history: newest.epoch.Random, epoch: newest.epoch, view: newest, kept: k}
	for _, b := range slices.Backward(k.epochs) {
		if b.revision <= rev {
			break
		}
		out.epoch = *b.before.epoch
	}
	return out
}

// Past is the state at one revision, without secrets. It is a Reader, never changes,
// and takes nothing to keep but what it was made from.
type Past struct {
	revision resource.Revision
	history  uint64
	epoch    Epoch
	// view is the state itself, or the newest one with kept, which has the changes
	// since.
	view *View
	kept *pastView
}

var _ Reader = (*Past)(nil)

// Revision is the revision that was asked for.
func (p *Past) Revision() resource.Revision { return p.revision }

// History is the random part of the epoch of the state that was the newest when this one was
// asked for (see Position): two states of one store and one history are of one log.
func (p *Past) History() uint64 { return p.history }

// Epoch is the epoch of the state.
func (p *Past) Epoch() Epoch { return p.epoch }

// Get returns a resource, or false. Its spec is decoded when it is first asked for.
func (p *Past) Get(key resource.Key) (*resource.Resource, bool) {
	if Withheld(key.Kind) {
		return nil, false
	}
	if p.kept != nil {
		if it, ok := p.kept.keys.Get(&keyChanges{key: key}); ok {
			if was, changed := p.was(it); changed {
				return was.resource(), was != nil
			}
		}
	}
	return p.view.Get(key)
}

// was returns what a key held, nil for nothing, where it was changed since.
func (p *Past) was(it *keyChanges) (was *pastResource, changed bool) {
	at := it.at[kept(it.at, p.kept.first):]
	i := sort.Search(len(at), func(i int) bool { return p.kept.batch(at[i]).revision > p.revision })
	if i == len(at) {
		return nil, false
	}
	return p.kept.change(at[i]).before, true
}

// batch returns the batch of a place that is kept.
func (k *pastView) batch(at place) *pastBatch { return k.batches[at.batch-k.first] }

func (k *pastView) change(at place) *pastChange { return &k.batch(at).changes[at.index] }

// List yields the resources of a kind in key order; an empty mesh means every mesh.
func (p *Past) List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource] {
	return p.ListFrom(resource.Key{Kind: kind, Mesh: mesh}, mesh)
}

// ListFrom is List of the kind of a key, beginning at the key.
func (p *Past) ListFrom(first resource.Key, mesh resource.MeshName) iter.Seq[*resource.Resource] {
	switch {
	case Withheld(first.Kind):
		return func(func(*resource.Resource) bool) {}
	case p.kept == nil:
		return p.view.ListFrom(first, mesh)
	}
	return func(yield func(*resource.Resource) bool) {
		changes := p.changesFrom(first, mesh)
		key, was, more := changes.next()
		emit := func() bool {
			ok := was == nil || yield(was.resource())
			key, was, more = changes.next()
			return ok
		}
		for r := range p.view.ListFrom(first, mesh) {
			for more && key.Compare(r.Key()) < 0 {
				if !emit() {
					return
				}
			}
			same := more && key == r.Key()
			if same && !emit() || !same && !yield(r) {
				return
			}
		}
		for more && emit() {
		}
	}
}

// changesOf walks over what the keys of a kind held that were changed since, in key order.
type changesOf struct {
	past  *Past
	first resource.Key
	mesh  resource.MeshName
	keys  btree.IterG[*keyChanges]
	at    bool // keys stands on an item
}

func (p *Past) changesFrom(first resource.Key, mesh resource.MeshName) *changesOf {
	c := &changesOf{past: p, first: first, mesh: mesh, keys: p.kept.keys.Iter()}
	c.at = c.keys.Seek(&keyChanges{key: first})
	return c
}

// next returns a key and what it held, nil for nothing; false at the end.
func (c *changesOf) next() (resource.Key, *pastResource, bool) {
	for c.at {
		it := c.keys.Item()
		if it.key.Kind != c.first.Kind || c.mesh != "" && it.key.Mesh != c.mesh {
			c.at = false
			break
		}
		c.at = c.keys.Next()
		if was, changed := c.past.was(it); changed {
			return it.key, was, true
		}
	}
	return resource.Key{}, nil, false
}

// ListBeside is ListFrom, each resource with what another state has under its key, nil for
// nothing.
func (p *Past) ListBeside(now *View, first resource.Key, mesh resource.MeshName) iter.Seq2[*resource.Resource, *resource.Resource] {
	return func(yield func(then, now *resource.Resource) bool) {
		beside := now.tree.Iter()
		at := beside.Seek(&item{key: &first})
		for r := range p.ListFrom(first, mesh) {
			key := r.Key()
			order := 1
			for at {
				if order = beside.Item().key.Compare(key); order >= 0 {
					break
				}
				at = beside.Next()
			}
			var same *resource.Resource
			if at && order == 0 {
				same = beside.Item().res
			}
			if !yield(r, same) {
				return
			}
		}
	}
}

// firstAfter returns the index of the first batch after a revision.
func (k *pastView) firstAfter(rev resource.Revision) int {
	i, _ := slices.BinarySearchFunc(k.batches, rev+1, func(b *pastBatch, rev resource.Revision) int {
		return cmp.Compare(b.revision, rev)
	})
	return i
}

// Edit is one write of one resource, as it is kept.
type Edit struct {
	Revision resource.Revision
	Time     time.Time
	// Version is the one that was written, 0 for a deletion.
	Version uint64
	Outcome Outcome
	// After is what was written, nil for a deletion. Of kinds that are withheld it has
	// neither spec nor labels, but for the newest.
	After *resource.Resource
	// Note is that of the batch (Txn.Note).
	Note []byte
}

// placesOf returns where the kept changes of a key are, oldest first.
func (v *View) placesOf(key resource.Key) []place {
	if v.past == nil {
		return nil
	}
	it, ok := v.past.keys.Get(&keyChanges{key: key})
	if !ok {
		return nil
	}
	return it.at[kept(it.at, v.past.first):]
}

// Edits yields the kept writes of a resource, newest first. The contents of what is
// yielded are decoded when they are first asked for.
func (v *View) Edits(key resource.Key) iter.Seq[Edit] {
	return func(yield func(Edit) bool) {
		after, _ := v.Get(key)
		for _, at := range slices.Backward(v.placesOf(key)) {
			b, c := v.past.batch(at), v.past.change(at)
			e := Edit{Revision: b.revision, Time: b.time, Version: c.version, Note: b.notes[c.note], After: after, Outcome: Updated}
			switch {
			case c.version == 0:
				e.Outcome, e.After = Deleted, nil
			case c.before == nil:
				e.Outcome = Created
			}
			if !yield(e) {
				return
			}
			after = c.before.resource()
		}
	}
}

// Unedited returns a resource as it was before the oldest kept write of it, nil where it
// did not exist or that is not known; it is what is stored where no write is kept.
func (v *View) Unedited(key resource.Key) *resource.Resource {
	if at := v.placesOf(key); len(at) > 0 {
		return v.past.change(at[0]).before.resource()
	}
	now, _ := v.Get(key)
	return now
}

// ChangedBetween returns the keys that were written after one revision and up to another,
// in any order, perhaps more than once. False: what happened since the earlier of them is
// not kept, or the later one has not been written.
func (s *Store) ChangedBetween(a, b resource.Revision) ([]resource.Key, bool) {
	a, b = min(a, b), max(a, b)
	p := s.now.Load()
	var keys []resource.Key
	switch known := p.view.past; {
	case b > p.view.revision || a < p.oldest():
		return nil, false
	case a >= p.base.changed:
		for _, r := range p.past[firstAfter(p.past, a):] {
			if r.batch.Revision > b {
				break
			}
			for _, c := range r.batch.Changes {
				keys = append(keys, c.Key())
			}
		}
	default:
		for _, batch := range known.batches[known.firstAfter(a):] {
			if batch.revision > b {
				break
			}
			for i := range batch.changes {
				keys = append(keys, batch.changes[i].key)
			}
		}
	}
	return keys, true
}
