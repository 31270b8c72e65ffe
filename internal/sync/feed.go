package zonesync

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// feed is the recent past of the synced kinds, each batch encoded once, when the first
// stream sends it, and shared by every stream. It is bounded by the memory it keeps alive: the oldest
// batches are dropped first, and a reader that still needed them gets the
// difference instead. One goroutine writes, any number read; the writer does not
// wait for readers.
type feed struct {
	synced func(resource.Kind) bool
	limit  int // bytes

	mu      sync.RWMutex
	state   feedState
	bytes   int           // the footprints of entries
	entries []*feedEntry  // in order of revision; immutable
	wake    chan struct{} // closed and replaced at every change
}

// feedState is where a feed stands.
type feedState struct {
	epoch store.Epoch
	// base is the oldest revision that can be resumed from.
	base resource.Revision
	// head is the revision up to which everything is in the feed; last is the
	// newest at which a synced kind changed.
	head, last resource.Revision
	// digest is the digest of the synced kinds at head.
	digest store.Digest
	// bookmark is the frame that says so. Every stream sends this one, and it is not changed.
	bookmark *syncv1.GlobalFrame
	// resources counts the synced resources at head, changes the synced changes
	// since the feed began.
	resources, changes uint64
}

// feedEntry is one batch of synced changes.
type feedEntry struct {
	prev, revision resource.Revision
	time           time.Time
	added          time.Time // when the feed took it
	keys           []resource.Key
	changes        uint64 // synced changes up to and including this batch
	bytes          int    // of the encoded Batches, about

	encoding sync.Once
	// written are what is written of each key until it is encoded, nil for a deletion.
	written []*resource.Resource
	batches encodedBatches
	failed  error
}

// encodedBatches are what zones are sent of a batch. They are not changed.
type encodedBatches struct {
	// frames are the encoded Batches, ready to be sent: every stream sends these.
	frames []*syncv1.GlobalFrame
	// ops are the encoded Ops, one for each key. They share memory with frames.
	ops [][]byte
}

// Estimates of what an entry and an operation keep alive besides the encoded
// bytes, and, of what is not encoded yet, besides the resources: small batches are mostly
// that. What a resource keeps decoded is not counted.
const (
	entryOverhead = 216
	opOverhead    = 80
	batchEncoding = 32
	opEncoding    = 160
)

// footprint is the memory that the feed needs for a batch, in bytes.
func (e *feedEntry) footprint() int { return e.bytes + entryOverhead + opOverhead*len(e.keys) }

func newFeed(synced func(resource.Kind) bool, limit int) *feed {
	return &feed{synced: synced, limit: limit, wake: make(chan struct{})}
}

// reset starts the feed over from a state before which nothing is remembered.
func (f *feed) reset(v *store.View) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := v.Changed() // revisions past it brought nothing; batches are what counts
	f.entries, f.bytes = nil, 0
	f.state = feedState{
		epoch: v.Epoch(), base: at, head: at, last: at,
		digest: v.DigestOf(f.synced), changes: f.state.changes,
	}
	for _, kind := range v.Kinds() {
		if f.synced(kind) {
			f.state.resources += uint64(v.Count(kind))
		}
	}
	f.changedLocked()
}

// append takes the store's next batch. It must follow the one before it.
func (f *feed) append(b store.Batch, now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b.Prev > f.state.head || b.Revision <= f.state.head {
		return fmt.Errorf("batch %d after %d does not follow revision %d", b.Revision, b.Prev, f.state.head)
	}
	f.state.head = b.Revision
	if b.Epoch != nil {
		f.state.epoch = *b.Epoch
	}
	defer f.changedLocked()
	synced := make([]store.Change, 0, len(b.Changes))
	for _, c := range b.Changes {
		if f.synced(c.Key().Kind) {
			synced = append(synced, c)
		}
	}
	if len(synced) == 0 {
		return nil
	}
	e := f.entry(b, synced)
	for _, c := range synced {
		f.accountLocked(c)
	}
	f.state.last, f.state.changes = b.Revision, f.state.changes+uint64(len(synced))
	e.changes, e.added = f.state.changes, now
	f.entries = append(f.entries, e)
	f.bytes += e.footprint()
	f.trimLocked()
	return nil
}

// entry is that of a batch. The chain skips what is not synced.
func (f *feed) entry(b store.Batch, synced []store.Change) *feedEntry {
	e := &feedEntry{
		prev: f.state.last, revision: b.Revision, time: b.Time, bytes: batchEncoding,
		keys: make([]resource.Key, len(synced)), written: make([]*resource.Resource, len(synced)),
	}
	for i, c := range synced {
		e.keys[i], e.written[i] = c.Key(), c.After
		e.bytes += opEncoding
		if c.After != nil {
			e.bytes += c.After.Size()
		}
	}
	return e
}

// encoded returns what zones are sent. Most servers have no zone that wants it: it is
// encoded for the first that does.
func (e *feedEntry) encoded() (encodedBatches, error) {
	e.encoding.Do(func() {
		e.batches, e.failed = e.encode()
		e.written = nil
	})
	return e.batches, e.failed
}

func (e *feedEntry) encode() (encodedBatches, error) {
	raws := make([][]byte, len(e.keys))
	for i, key := range e.keys {
		var err error
		if r := e.written[i]; r != nil {
			raws[i], err = encodePut(r)
		} else {
			raws[i], err = encodeDelete(key)
		}
		if err != nil {
			return encodedBatches{}, err
		}
	}
	head := &syncv1.Batch{Revision: uint64(e.revision), PrevRevision: uint64(e.prev), Time: timestamppb.New(e.time)}
	parts, shared, err := encodeBatch(head, raws)
	if err != nil {
		return encodedBatches{}, err
	}
	out := encodedBatches{ops: shared}
	for _, part := range parts {
		out.frames = append(out.frames, batchFrame(part))
	}
	return out, nil
}

// batchFrame is the frame of an encoded Batch.
func batchFrame(part []byte) *syncv1.GlobalFrame {
	return &syncv1.GlobalFrame{Body: &syncv1.GlobalFrame_Batch{Batch: part}}
}

func (f *feed) accountLocked(c store.Change) {
	var old, sum store.Digest
	if c.Before != nil {
		old = store.Sum(c.Before)
		f.state.resources--
	}
	if c.After != nil {
		sum = store.Sum(c.After)
		f.state.resources++
	}
	f.state.digest = f.state.digest.Sub(old).Add(sum)
}

func (f *feed) trimLocked() {
	drop := 0
	// The newest batch stays, however large: a stream may be about to send it.
	for f.bytes > f.limit && drop < len(f.entries)-1 {
		f.bytes -= f.entries[drop].footprint()
		f.state.base = f.entries[drop].revision
		drop++
	}
	if drop > 0 {
		clear(f.entries[:drop])
		f.entries = f.entries[drop:]
	}
}

// changedLocked follows every change of the state.
func (f *feed) changedLocked() {
	f.state.bookmark = &syncv1.GlobalFrame{Body: &syncv1.GlobalFrame_Bookmark{Bookmark: &syncv1.Bookmark{
		Revision: uint64(f.state.head), Digest: f.state.digest.Bytes(), Head: uint64(f.state.head),
	}}}
	f.wakeLocked()
}

func (f *feed) wakeLocked() {
	close(f.wake)
	f.wake = make(chan struct{})
}

// rouse has every stream look whether there is anything to send.
func (f *feed) rouse() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wakeLocked()
}

// changed is closed at the next change. Take it before reading.
func (f *feed) changed() <-chan struct{} {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.wake
}

// wants says whether zones are sent a kind.
func (f *feed) wants(kind resource.Kind) bool { return f.synced(kind) }

// position returns where the feed stands.
func (f *feed) position() feedState {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.state
}

// after returns the batches after a revision, at most max bytes of them and at
// least one if there is any. ok is false when some are no longer remembered.
// They are appended to what is given, so that a stream which follows allocates nothing.
func (f *feed) after(r resource.Revision, max int, to []*feedEntry) (entries []*feedEntry, ok bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if r < f.state.base {
		return nil, false
	}
	first := f.searchLocked(r)
	last, bytes := first, 0
	for ; last < len(f.entries); last++ {
		bytes += f.entries[last].bytes
		if bytes > max && last > first {
			break
		}
	}
	return append(to, f.entries[first:last]...), true
}

// searchLocked is the index of the first batch after a revision.
func (f *feed) searchLocked(r resource.Revision) int {
	i, found := slices.BinarySearchFunc(f.entries, r, func(e *feedEntry, r resource.Revision) int {
		switch {
		case e.revision < r:
			return -1
		case e.revision > r:
			return 1
		}
		return 0
	})
	if found {
		i++
	}
	return i
}

// lag counts the synced changes after a revision. For a revision that is no
// longer remembered it is the number of synced resources, which is what will be
// compared.
func (f *feed) lag(r resource.Revision, epoch store.Epoch) uint64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if epoch != f.state.epoch || r < f.state.base {
		return max(f.state.resources, 1)
	}
	i := f.searchLocked(r)
	if i == len(f.entries) {
		return 0
	}
	before := f.entries[i].changes - uint64(len(f.entries[i].keys))
	return f.state.changes - before
}

// withheld reports whether a zone that acknowledged a revision last, at a time, may have
// everything and not have said so yet: it puts acknowledgements off for ackEvery, and they may
// take as long again.
func (f *feed) withheld(r resource.Revision, epoch store.Epoch, last, now time.Time) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if epoch != f.state.epoch || r < f.state.base || r >= f.state.last {
		return false
	}
	oldest, newest := f.entries[f.searchLocked(r)], f.entries[len(f.entries)-1]
	return now.Sub(oldest.added) < withheldFor && newest.added.Sub(last) < 2*ackEvery
}

// floor is the newest revision up to r at which a synced kind changed: a
// replica that holds it holds r. ok is false while the feed has not reached r.
func (f *feed) floor(r resource.Revision) (floor resource.Revision, ok bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if r > f.state.head {
		return 0, false
	}
	if r < f.state.base {
		return r, true
	}
	if i := f.searchLocked(r); i > 0 {
		return f.entries[i-1].revision, true
	}
	return f.state.base, true
}
