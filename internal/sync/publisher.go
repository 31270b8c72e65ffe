package zonesync

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// firstWindow is how many bytes a zone is sent while it acknowledges nothing of them, after
// it was up to date. Zones of other releases go by it: see ackBytes.
const firstWindow = 64 << 10

// Protocol versions spoken. Both ends use the highest that both speak.
const (
	protocolVersion    = 1
	minProtocolVersion = 1
)

// pacing holds the times and sizes that govern a stream.
type pacing struct {
	bookmarkEvery time.Duration // between bookmarks while caught up and something happens
	quietEvery    time.Duration // between bookmarks while nothing happens
	signedEvery   time.Duration // the same, of zones that send heartbeats
	align         time.Duration // bookmarks of many zones are due together, at multiples of it
	stallAfter    time.Duration // without progress while something is outstanding
	behindGrace   time.Duration // for this server to reach the zone's revision
	window        uint64        // bytes unacknowledged at most, unless the zone says less
	firstWindow   uint64        // bytes unacknowledged while nothing of a burst is acknowledged
	coalesceAfter int           // batches behind, from which they are coalesced
	coalesceBytes int           // read from the feed at a time
	coalesceOps   int           // coalesced into one batch at most
}

func defaultPacing() pacing {
	return pacing{
		bookmarkEvery: time.Second,
		quietEvery:    3 * time.Second,
		signedEvery:   6 * time.Second,
		align:         250 * time.Millisecond,
		stallAfter:    time.Minute,
		behindGrace:   2 * time.Second,
		window:        4 << 20,
		firstWindow:   firstWindow,
		coalesceAfter: 64,
		coalesceBytes: 1 << 20,
		coalesceOps:   512,
	}
}

// fenceError ends a stream, telling the zone why.
type fenceError struct {
	reason  syncv1.FenceReason
	message string
	address string // where to connect next, of FENCE_REASON_MOVED
}

func (e *fenceError) Error() string { return e.message }

func fencef(reason syncv1.FenceReason, format string, args ...any) error {
	return &fenceError{reason: reason, message: fmt.Sprintf(format, args...)}
}

// errNoCommonProtocol means that the zone speaks only versions that this server
// does not.
var errNoCommonProtocol = errors.New("no common protocol version")

// phase is what a publisher is doing.
type phase int

const (
	// phaseSilent: nothing to send until the zone says Hello (again).
	phaseSilent phase = iota
	// phaseBehind: waiting for this server to reach the zone's revision.
	phaseBehind
	// phaseChunks: sending a DIFF or a SNAPSHOT.
	phaseChunks
	// phaseFeed: following the feed.
	phaseFeed
)

// source is where a publisher reads what happened: a *feed.
type source interface {
	position() feedState
	after(r resource.Revision, max int, to []*feedEntry) (entries []*feedEntry, ok bool)
	wants(kind resource.Kind) bool
}

// publisher is one zone's stream as the global sees it: it is given the zone's
// Hello and Acks, and asked for the next frame. It has no socket, clock or
// goroutine; its methods must not be called concurrently. An error from any of
// them ends the stream.
type publisher struct {
	pacing pacing
	feed   source
	view   func() *store.View

	phase  phase
	hellos uint32
	hello  *syncv1.Hello
	epoch  store.Epoch
	// cursor: everything up to it has been sent.
	cursor resource.Revision
	until  time.Time // of phaseBehind

	// Frames that go out before anything else, and the revision the cursor
	// moves to when they have.
	queue       []*syncv1.GlobalFrame
	queueCursor resource.Revision
	// oneFrame and oneEntry are the memory of a queue and of a part of the feed of one: a
	// zone that follows is mostly sent one batch, or one bookmark, at a time.
	oneFrame [1]*syncv1.GlobalFrame
	oneEntry [1]*feedEntry
	// coalesced is what is left of a batch that is encoded as it is sent.
	coalesced *coalescedBatch
	chunks    *chunker

	// Flow control, in bytes since the last Welcome. What may be unacknowledged grows
	// with what is acknowledged, from where a burst began: a zone that stops reading
	// while it is up to date is not sent a whole window to keep here for it.
	sent, consumed, window uint64
	burst                  uint64    // consumed when the zone was last up to date
	progress               time.Time // last time something was acknowledged or began to be outstanding

	acked      resource.Revision
	bookmarked time.Time
	signs      bool // the zone sends heartbeats
	// told is when the zone was first told anything since the last bookmark; zero when it
	// was not. awaited: the zone is to say something every second, whatever happens.
	told    time.Time
	awaited bool
	// wanted is the revision that the zone is waited for to acknowledge, and prompted that of
	// the last bookmark, which it acknowledges at once.
	wanted, prompted resource.Revision
}

func newPublisher(p pacing, f source, view func() *store.View) *publisher {
	return &publisher{pacing: p, feed: f, view: view}
}

// greet takes a Hello, the first or a later one.
func (p *publisher) greet(h *syncv1.Hello, now time.Time) error {
	if h.Protocol < minProtocolVersion || h.MinProtocol > protocolVersion {
		return fmt.Errorf("%w: the zone speaks %d to %d, this server %d to %d",
			errNoCommonProtocol, h.MinProtocol, h.Protocol, minProtocolVersion, protocolVersion)
	}
	if len(h.Buckets) != 0 {
		if _, err := parseBuckets(h.Buckets); err != nil {
			return fencef(syncv1.FenceReason_FENCE_REASON_PROTOCOL, "bad Hello: %v", err)
		}
	}
	p.close()
	p.hellos++
	p.hello, p.queue, p.coalesced = h, p.oneFrame[:0], nil
	p.signs = slices.Contains(h.Features, FeatureHeartbeat)
	p.sent, p.consumed, p.burst, p.acked, p.prompted = 0, 0, 0, 0, 0
	p.window = p.pacing.window
	if h.Window > 0 {
		p.window = min(p.window, h.Window)
	}
	p.progress = now
	p.bookmarked, p.told = time.Time{}, time.Time{} // a bookmark follows as soon as the zone is up to date
	p.epoch = p.feed.position().epoch
	p.phase, p.until = phaseBehind, now.Add(p.pacing.behindGrace)
	return nil
}

// close releases what an unfinished snapshot holds on to.
func (p *publisher) close() {
	if p.chunks != nil {
		p.chunks.stop()
		p.chunks = nil
	}
	p.phase = phaseSilent
}

// acknowledge takes an Ack. After it next may have a frame only if the zone had been sent
// as much as it may (full), or reported something: its caller calls next then.
func (p *publisher) acknowledge(a *syncv1.Ack, now time.Time) error {
	if p.hello == nil {
		return fencef(syncv1.FenceReason_FENCE_REASON_PROTOCOL, "Ack before Hello")
	}
	if a.Consumed > p.sent {
		return fencef(syncv1.FenceReason_FENCE_REASON_PROTOCOL, "the zone consumed %d bytes of %d sent", a.Consumed, p.sent)
	}
	if rev := resource.Revision(a.Revision); epochFrom(a.Epoch) == p.epoch {
		if rev > p.acked {
			p.acked, p.progress = rev, now
		}
	}
	if a.Consumed > p.consumed {
		p.consumed, p.progress = a.Consumed, now
	}
	if len(a.Nacks) > 0 {
		p.tell(now) // the rest of them comes with the next Ack
	}
	if p.following() && p.cursor >= p.feed.position().last {
		p.burst = p.consumed
	}
	return nil
}

// following reports whether the zone has everything, as far as it said.
func (p *publisher) following() bool {
	return p.phase == phaseFeed && len(p.queue) == 0 && p.coalesced == nil && !p.outstanding()
}

// outstanding reports whether the zone owes an acknowledgement.
func (p *publisher) outstanding() bool { return p.sent > p.consumed }

// stalled is an error when the zone has owed an acknowledgement for too long.
func (p *publisher) stalled(now time.Time) error {
	if p.outstanding() && now.Sub(p.progress) >= p.pacing.stallAfter {
		return fencef(syncv1.FenceReason_FENCE_REASON_NO_PROGRESS,
			"nothing acknowledged for %s with %d bytes outstanding", p.pacing.stallAfter, p.sent-p.consumed)
	}
	return nil
}

// next returns the next frame to send, or nil when there is none until the feed
// changes, an Ack comes in, or deadline passes.
func (p *publisher) next(now time.Time) (*syncv1.GlobalFrame, error) {
	if p.phase == phaseSilent && len(p.queue) == 0 {
		return nil, nil
	}
	if err := p.stalled(now); err != nil {
		return nil, err
	}
	if at := p.feed.position(); p.phase == phaseBehind {
		p.epoch = at.epoch // nothing was said yet
	} else if at.epoch != p.epoch {
		return nil, fencef(syncv1.FenceReason_FENCE_REASON_EPOCH, "the global's history was replaced")
	}
	if p.full() {
		return nil, nil
	}
	for {
		if len(p.queue) > 0 {
			f := p.queue[0]
			p.queue[0] = nil // what was sent is not kept
			p.queue = p.queue[1:]
			if len(p.queue) == 0 {
				p.queue = p.oneFrame[:0]
				p.cursor = max(p.cursor, p.queueCursor)
			}
			p.account(f, now)
			return f, nil
		}
		more, err := p.fill(now)
		if err == nil && !more && !p.outstanding() {
			p.burst = p.consumed
		}
		if err != nil || !more {
			return nil, err
		}
	}
}

// full reports whether nothing more is to be sent before an acknowledgement.
func (p *publisher) full() bool {
	return p.sent-p.consumed >= min(p.window, p.pacing.firstWindow+p.consumed-p.burst)
}

func (p *publisher) account(f *syncv1.GlobalFrame, now time.Time) {
	if size := frameBytes(f); size > 0 {
		if !p.outstanding() {
			p.progress = now
		}
		p.sent += uint64(size)
		if f.GetBookmark() != nil {
			p.told = time.Time{}
		} else {
			p.tell(now)
		}
	}
}

// frameBytes is what a frame counts in flow control (see Ack.consumed).
func frameBytes(f *syncv1.GlobalFrame) int {
	switch b := f.GetBody().(type) {
	case *syncv1.GlobalFrame_Batch:
		return len(b.Batch)
	case *syncv1.GlobalFrame_Chunk:
		return len(b.Chunk)
	case *syncv1.GlobalFrame_Bookmark:
		return proto.Size(b.Bookmark)
	}
	return 0
}

// fill puts frames into the queue, or reports that there are none now.
func (p *publisher) fill(now time.Time) (bool, error) {
	switch p.phase {
	case phaseBehind:
		return p.welcome(now)
	case phaseChunks:
		return p.fillChunk()
	case phaseFeed:
		return p.fillFeed(now)
	}
	return false, nil
}

// tell notes that the zone is told something, which a bookmark is to follow.
func (p *publisher) tell(now time.Time) {
	if p.told.IsZero() {
		p.told = now
	}
}

// bookmarkAt is when a zone that is up to date is sent the next bookmark: soon after it
// was told something. The times of many zones are made to coincide, which costs less than
// as many wake-ups.
func (p *publisher) bookmarkAt() time.Time {
	if p.bookmarked.IsZero() || p.prompts() {
		return p.bookmarked
	}
	due := p.bookmarked.Add(p.pacing.quietEvery)
	if p.signs {
		due = p.bookmarked.Add(p.pacing.signedEvery)
	}
	if p.awaited || p.feed.position().head > p.cursor {
		due = p.bookmarked.Add(p.pacing.bookmarkEvery)
	} else if soon := p.told.Add(p.pacing.bookmarkEvery); !p.told.IsZero() && soon.Before(due) {
		due = soon
	}
	// Truncate drops the monotonic reading, without which a clock that is set back puts the
	// bookmark off.
	return due.Add(due.Truncate(p.pacing.align).Sub(due))
}

// want has the zone acknowledge a revision at once: a bookmark follows as soon as the zone
// has been sent everything. It reports whether there may be one to send.
func (p *publisher) want(r resource.Revision) bool {
	p.wanted = max(p.wanted, r)
	return p.prompts()
}

// prompts reports whether a bookmark is to have the zone acknowledge what it may put off.
func (p *publisher) prompts() bool { return p.wanted > max(p.acked, p.prompted) }

// deadline is when next has to be called again even if nothing happens; zero
// means never.
func (p *publisher) deadline() time.Time {
	var d time.Time
	sooner := func(t time.Time) {
		if d.IsZero() || t.Before(d) {
			d = t
		}
	}
	switch {
	case p.phase == phaseBehind:
		sooner(p.until)
	case p.phase == phaseFeed && !p.full():
		sooner(p.bookmarkAt())
	}
	if p.outstanding() {
		sooner(p.progress.Add(p.pacing.stallAfter))
	}
	return d
}

// welcome answers the Hello once this server has applied what the zone has.
func (p *publisher) welcome(now time.Time) (bool, error) {
	at, h := p.feed.position(), p.hello
	theirs, from := epochFrom(h.Epoch), resource.Revision(h.FromRevision)
	known := h.Epoch != nil && theirs == at.epoch
	w := &syncv1.Welcome{
		Protocol: min(h.Protocol, protocolVersion), Epoch: epochTo(at.epoch),
		Head: uint64(at.head), CompactRevision: uint64(at.base), Hello: p.hellos,
	}
	p.cursor, p.queueCursor = 0, 0
	switch {
	case h.Epoch != nil && theirs.ClusterID == at.epoch.ClusterID && theirs.Incarnation > at.epoch.Incarnation && now.Before(p.until):
		return false, nil // this server may yet apply what began it
	case h.Epoch != nil && !follows(theirs, at.epoch):
		w.Mode, p.phase = syncv1.Mode_MODE_UNSPECIFIED, phaseSilent
	case known && from > at.head:
		// Nothing old is ever sent to a zone that knows better.
		if now.Before(p.until) {
			return false, nil
		}
		return false, fencef(syncv1.FenceReason_FENCE_REASON_BEHIND,
			"this server has applied revision %d, the zone has %d", at.head, from)
	case known && !h.Repair && from >= at.base:
		w.Mode, p.phase, p.cursor = syncv1.Mode_MODE_RESUME, phaseFeed, from
	default:
		mode, c, err := p.chunksFor(h)
		if err != nil {
			return false, err
		}
		w.Mode, p.phase, p.chunks = mode, phaseChunks, c
	}
	p.queue = append(p.queue, &syncv1.GlobalFrame{Body: &syncv1.GlobalFrame_Welcome{Welcome: w}})
	return true, nil
}

// follows reports whether a zone with the state of one epoch takes that of another
// by itself: of the same history, or of a later incarnation of the cluster. Of two
// histories of one incarnation neither is later.
func follows(theirs, ours store.Epoch) bool {
	return theirs == ours || theirs.ClusterID == ours.ClusterID && theirs.Incarnation < ours.Incarnation
}

// chunksFor starts a DIFF when the zone reported what it has, else a SNAPSHOT.
func (p *publisher) chunksFor(h *syncv1.Hello) (syncv1.Mode, *chunker, error) {
	v := p.view()
	if v.Epoch() != p.epoch {
		return 0, nil, fencef(syncv1.FenceReason_FENCE_REASON_EPOCH, "the global's history was replaced")
	}
	if len(h.Buckets) == 0 {
		return syncv1.Mode_MODE_SNAPSHOT, newChunker(v, p.feed.wants, nil), nil
	}
	theirs, err := parseBuckets(h.Buckets)
	if err != nil {
		return 0, nil, fencef(syncv1.FenceReason_FENCE_REASON_PROTOCOL, "bad Hello: %v", err)
	}
	ours := buckets(v.Buckets(p.feed.wants))
	return syncv1.Mode_MODE_DIFF, newChunker(v, p.feed.wants, differing(theirs, &ours)), nil
}

func (p *publisher) fillChunk() (bool, error) {
	c, err := p.chunks.next()
	if err != nil {
		return false, err
	}
	raw, err := proto.Marshal(c)
	if err != nil {
		return false, fmt.Errorf("encode chunk: %w", err)
	}
	p.queue = append(p.queue, &syncv1.GlobalFrame{Body: &syncv1.GlobalFrame_Chunk{Chunk: raw}})
	if c.Last {
		p.chunks.stop()
		p.chunks = nil
		p.phase, p.queueCursor = phaseFeed, resource.Revision(c.Revision)
	}
	return true, nil
}

// fillFeed queues what follows the cursor: one batch as every zone is sent it,
// or, far behind, many coalesced into one; a bookmark when there is nothing and
// it is time.
func (p *publisher) fillFeed(now time.Time) (bool, error) {
	if p.coalesced != nil {
		return true, p.queueCoalescedPart()
	}
	entries, ok := p.feed.after(p.cursor, p.pacing.coalesceBytes, p.oneEntry[:0])
	defer clear(p.oneEntry[:])
	if len(entries) > p.pacing.coalesceAfter {
		entries = fewOps(entries, p.pacing.coalesceOps)
	}
	switch {
	case !ok:
		return false, fencef(syncv1.FenceReason_FENCE_REASON_COMPACTED,
			"revision %d is no longer remembered: connect again to be sent the difference", p.cursor)
	case len(entries) > p.pacing.coalesceAfter:
		return true, p.queueCoalesced(entries)
	case len(entries) > 0:
		for _, e := range entries {
			batches, err := e.encoded()
			if err != nil {
				return false, err
			}
			p.queue = append(p.queue, batches.frames...)
			p.queueCursor = e.revision
		}
		return true, nil
	}
	at := p.feed.position()
	if at.last > p.cursor || at.head < p.cursor || now.Before(p.bookmarkAt()) {
		return false, nil
	}
	p.bookmarked, p.prompted, p.queueCursor = now, max(at.head, p.wanted), at.head
	p.queue = append(p.queue, at.bookmark)
	return true, nil
}

// fewOps returns the first batches, at least one, that have no more than max
// operations together.
func fewOps(entries []*feedEntry, max int) []*feedEntry {
	ops := 0
	for i, e := range entries {
		if ops += len(e.keys); ops > max && i > 0 {
			return entries[:i]
		}
	}
	return entries
}

// queueCoalesced sends the last change of each key: it takes the zone to
// exactly the state at the last entry's revision.
func (p *publisher) queueCoalesced(entries []*feedEntry) error {
	type slot struct{ entry, op int }
	lastOf := map[resource.Key]slot{}
	for i, e := range entries {
		for j, key := range e.keys {
			lastOf[key] = slot{i, j}
		}
	}
	ops := make([][]byte, 0, len(lastOf))
	for i, e := range entries {
		batches, err := e.encoded()
		if err != nil {
			return err
		}
		for j, key := range e.keys {
			if lastOf[key] == (slot{i, j}) {
				ops = append(ops, batches.ops[j])
			}
		}
	}
	last := entries[len(entries)-1]
	p.coalesced = &coalescedBatch{groups: splitOps(ops, maxPart), head: &syncv1.Batch{
		Revision: uint64(last.revision), PrevRevision: uint64(p.cursor), Coalesced: true, Time: timestamppb.New(last.time),
	}}
	return nil
}

// coalescedBatch is a batch made for one zone. Its operations are those of the
// feed, shared by all zones; a part of it is encoded when the zone can be sent it.
type coalescedBatch struct {
	head   *syncv1.Batch
	groups [][][]byte
	sent   int
}

// queueCoalescedPart queues the next part.
func (p *publisher) queueCoalescedPart() error {
	b := p.coalesced
	part, _, err := encodePart(b.head, b.sent, len(b.groups), b.groups[b.sent], nil)
	if err != nil {
		return err
	}
	p.queue = append(p.queue, batchFrame(part))
	b.groups[b.sent] = nil
	if b.sent++; b.sent == len(b.groups) {
		p.coalesced, p.queueCursor = nil, resource.Revision(b.head.Revision)
	}
	return nil
}

// chunker cuts a view, or some buckets of it, into Chunks.
type chunker struct {
	view   *store.View
	digest store.Digest
	cover  *bucketSet // nil: everything
	pull   func() (*resource.Resource, bool)
	stop   func()
	held   []byte // an encoded Op that did not fit into the last chunk
	part   uint32
}

// newChunker reads the buckets in cover, nil meaning all. stop must be called.
func newChunker(v *store.View, synced func(resource.Kind) bool, cover *bucketSet) *chunker {
	wanted := func(int) bool { return true }
	if cover != nil {
		wanted = cover.has
	}
	c := &chunker{view: v, digest: v.DigestOf(synced), cover: cover}
	c.pull, c.stop = iter.Pull(v.Bucket(wanted, synced))
	return c
}

func (c *chunker) next() (*syncv1.Chunk, error) {
	c.part++
	out := &syncv1.Chunk{Revision: uint64(c.view.Changed()), Part: c.part}
	if c.part == 1 && c.cover != nil {
		out.Buckets = c.cover[:]
	}
	size := 0
	take := func(raw []byte) {
		out.Ops = append(out.Ops, raw)
		size += len(raw)
	}
	if c.held != nil {
		take(c.held)
		c.held = nil
	}
	for {
		r, ok := c.pull()
		if !ok {
			out.Last, out.Digest, out.Time = true, c.digest.Bytes(), timestamppb.New(c.view.Time())
			return out, nil
		}
		raw, err := encodePut(r)
		if err != nil {
			return nil, err
		}
		if size > 0 && size+len(raw) > maxPart {
			c.held = raw
			return out, nil
		}
		take(raw)
	}
}

func epochFrom(e *syncv1.Epoch) store.Epoch {
	return store.Epoch{ClusterID: e.GetClusterId(), Incarnation: e.GetIncarnation(), Random: e.GetNonce()}
}

func epochTo(e store.Epoch) *syncv1.Epoch {
	return &syncv1.Epoch{ClusterId: e.ClusterID, Incarnation: e.Incarnation, Nonce: e.Random}
}
