package zonesync

import (
	"errors"
	"fmt"
	"iter"
	"time"

	"google.golang.org/protobuf/proto"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// ErrForeignCluster means that the global at the other end is not the one whose
// state the replica holds. The zone keeps serving what it has and waits for its
// operator: to point it at the right global, or to start it with an empty data
// directory.
var ErrForeignCluster = errors.New("another global than the one this replica belongs to")

// ErrOtherHistory means that the global is at the incarnation of the replica, but
// of another history: both were begun from one state, by restores or recoveries
// that did not know of each other. The zone keeps serving what it has and waits for
// its operator.
var ErrOtherHistory = errors.New("the global has another history than this replica")

// ErrOlderIncarnation means that the global is at an earlier incarnation of its
// history than the replica has seen, such as a server brought back from an old
// disk. The zone keeps serving what it has and waits for its operator.
var ErrOlderIncarnation = errors.New("the global is at an earlier incarnation than this replica")

// errDiverged means that repairing the replica did not make it equal to the
// global. It connects again and starts from a snapshot.
var errDiverged = errors.New("the replica differs from the global after a repair")

// errProtocol means that the global sent something that no correct global sends.
var errProtocol = errors.New("protocol violation")

const (
	// heldRetry is how often a zone whose update is held asks again: the global
	// may have got its resources back.
	heldRetry = 30 * time.Second
	// zoneWindow is how many bytes a zone accepts unacknowledged.
	zoneWindow = 4 << 20
)

// write is one record to put on disk or take off it.
type write struct {
	key resource.Key
	raw []byte // nil: delete the key altogether
	bad bool   // put it in quarantine, beside the last good record
}

// commit is a step of a replica that takes effect as a whole: on disk, then in
// the store, then in an acknowledgement.
type commit struct {
	epoch    store.Epoch
	revision resource.Revision
	digest   store.Digest
	time     time.Time
	writes   []write
	// changes is what readers see. A swap shows them whole instead, because it
	// does not continue from the state before.
	changes []store.Change
	swap    bool
	whole   *store.Snapshot
}

// signal is what the replica wants said to the global: a Hello, or an Ack, when it is due or
// at once.
type signal struct{ hello, ack, atOnce bool }

// and is both of two signals, unless a Hello voids the first.
func (s signal) and(next signal) signal {
	return signal{hello: next.hello, ack: s.ack || next.ack, atOnce: s.atOnce || next.atOnce}
}

// staging collects a batch in parts or a sequence of chunks.
type staging struct {
	mode     syncv1.Mode // unspecified for a batch
	epoch    store.Epoch
	revision resource.Revision
	prev     resource.Revision
	parts    uint32 // received
	of       uint32 // of a batch
	cover    *bucketSet
	time     time.Time
	// groups are the changes as they came, count of them.
	groups [][]change
	count  int
}

// replicaPhase is what a replica is doing.
type replicaPhase int

const (
	// replicaGreeting: a Hello was said, everything before its Welcome is void.
	replicaGreeting replicaPhase = iota
	// replicaLoading: taking chunks.
	replicaLoading
	// replicaFollowing: taking batches.
	replicaFollowing
	// replicaHeld: an update waits for the operator.
	replicaHeld
)

// replica is the zone's side of a stream: it is given frames and says what to
// persist, publish and answer. It has no socket, disk, clock or goroutine; its
// methods must not be called concurrently. Its state runs ahead of the disk by
// the commits it has returned: if one cannot be persisted, the replica is
// dropped and loaded from disk again.
type replica struct {
	instance string
	version  string

	holdings
	exchange
	repairs
	consent

	// What is known to be on disk.
	durable      resource.Revision
	durableEpoch store.Epoch
	// problem is what holds the replica back; empty when nothing does.
	problem string
}

// exchange is how far the conversation with the global has come.
type exchange struct {
	phase    replicaPhase
	hellos   uint32
	lease    uint64
	staging  *staging
	consumed uint64 // bytes
	pace     AckPace
	told     string    // the problem that was last acknowledged
	retryAt  time.Time // when a held update is asked for again
}

// repairs are what is wrong with a replica, and what was done about it.
type repairs struct {
	damaged  bool   // something on disk was lost: resume would keep the hole
	failed   int    // repairs since the last bookmark that agreed
	repaired uint64 // repairs since the replica was opened
}

// consent is what the operator has agreed to.
type consent struct {
	adopt      bool // to let go of the epoch held
	acceptWipe Wipe // to this update, once
	asked      bool // whether it has been asked for since it was accepted
}

// greet returns the Hello that opens a stream, or asks for a repair within one.
func (r *replica) greet() *syncv1.Hello {
	r.hellos++
	r.phase, r.staging, r.pace = replicaGreeting, nil, AckPace{}
	h := &syncv1.Hello{
		Protocol: protocolVersion, MinProtocol: minProtocolVersion,
		Zone: string(r.zone), Instance: r.instance, Lease: r.lease, Version: r.version,
		FromRevision: uint64(r.revision), Window: zoneWindow,
		Repair: r.damaged || r.failed > 0, Quarantined: uint64(len(r.bad)), Features: []string{featureDrain, FeatureHeartbeat},
	}
	if r.epoch != (store.Epoch{}) && !r.adopt {
		h.Epoch = epochTo(r.epoch)
	}
	// After a repair that did not help, everything is sent anew.
	if len(r.held) > 0 && r.failed < 2 {
		h.Buckets = r.buckets.bytes()
	}
	return h
}

// connect begins a new stream: the global knows nothing of the one before.
func (r *replica) connect(lease uint64) *syncv1.Hello {
	r.hellos, r.lease = 0, lease
	r.reportAll()
	return r.greet()
}

// receive takes a frame. The commit, if any, is to be persisted and published;
// what the signal asks for is to be said after that.
func (r *replica) receive(f *syncv1.GlobalFrame, now time.Time) (*commit, signal, error) {
	if w := f.GetWelcome(); w != nil {
		return nil, signal{}, r.welcome(w)
	}
	if fence := f.GetFence(); fence != nil {
		return nil, signal{}, fencef(fence.Reason, "the global ended the stream: %s", fence.Message)
	}
	size := frameBytes(f)
	if size == 0 || r.phase == replicaGreeting {
		return nil, signal{}, nil // nothing for the replica, void, or from a later protocol
	}
	r.consumed += uint64(size)
	switch b := f.Body.(type) {
	case *syncv1.GlobalFrame_Batch:
		return r.batch(b.Batch)
	case *syncv1.GlobalFrame_Chunk:
		return r.chunk(b.Chunk, now)
	case *syncv1.GlobalFrame_Bookmark:
		return r.bookmark(b.Bookmark)
	}
	return nil, signal{}, nil
}

func (r *replica) welcome(w *syncv1.Welcome) error {
	if w.Hello != r.hellos {
		return nil // answers a Hello that a later one has replaced
	}
	if w.Protocol < minProtocolVersion || w.Protocol > protocolVersion {
		return fmt.Errorf("%w: the global chose protocol version %d", errProtocol, w.Protocol)
	}
	e := epochFrom(w.Epoch)
	if err := r.accept(e, resource.Revision(w.Head)); err != nil {
		r.problem = err.Error()
		return err
	}
	r.consumed, r.staging = 0, nil
	switch w.Mode {
	case syncv1.Mode_MODE_RESUME:
		if e != r.epoch {
			return fmt.Errorf("%w: resumed in another epoch", errProtocol)
		}
		r.phase = replicaFollowing
	case syncv1.Mode_MODE_DIFF, syncv1.Mode_MODE_SNAPSHOT:
		r.phase, r.staging = replicaLoading, &staging{mode: w.Mode, epoch: e}
	default:
		return fmt.Errorf("%w: unknown mode %s", errProtocol, w.Mode)
	}
	return nil
}

// accept decides whether to follow a global: the same cluster, in the same history
// or at a later incarnation, or else one that the operator has accepted.
func (r *replica) accept(e store.Epoch, head resource.Revision) error {
	switch {
	case r.epoch == (store.Epoch{}):
		return nil
	case e.ClusterID != r.epoch.ClusterID:
		return fmt.Errorf("%w: it follows cluster %s, this is cluster %s; give the zone the address of its own global; to have it follow this one, start it with a new data directory, and keep the old one, which may be the only copy of its state",
			ErrForeignCluster, r.epoch.ClusterID, e.ClusterID)
	case e.Incarnation < r.epoch.Incarnation && !r.adopt:
		if r.acceptWipe.accepts(e, head, r.epoch, r.revision) {
			r.adopt = true // the next connection lets go of the epoch
		}
		return fmt.Errorf("%w: %d, the replica has seen %d; if the global was brought back on purpose, start the zone once with --accept-wipe %s",
			ErrOlderIncarnation, e.Incarnation, r.epoch.Incarnation, r.wipeTo(e, head))
	case !follows(r.epoch, e) && !r.adopt && e.Incarnation == r.epoch.Incarnation:
		if r.acceptWipe.accepts(e, head, r.epoch, r.revision) {
			r.adopt = true
		}
		return fmt.Errorf("%w, both of incarnation %d: a global was restored or recovered twice from one state; if this is the one to follow, start the zone once with --accept-wipe %s",
			ErrOtherHistory, e.Incarnation, r.wipeTo(e, head))
	}
	return nil
}

// wipeTo names a state of a global, for the operator to accept.
func (r *replica) wipeTo(e store.Epoch, at resource.Revision) Wipe {
	w := Wipe{Incarnation: e.Incarnation, Revision: at}
	if e.Incarnation == r.epoch.Incarnation && e != r.epoch {
		w.History = e.Random
	}
	return w
}

func (r *replica) batch(raw []byte) (*commit, signal, error) {
	if r.phase == replicaHeld {
		return nil, signal{ack: true}, nil
	}
	if r.phase != replicaFollowing {
		return nil, signal{}, fmt.Errorf("%w: a batch among chunks", errProtocol)
	}
	var b syncv1.Batch
	if err := proto.Unmarshal(raw, &b); err != nil {
		return nil, signal{}, fmt.Errorf("%w batch: %w", errMalformed, err)
	}
	if b.Parts == 0 {
		b.Part, b.Parts = 1, 1
	}
	if b.Part == 1 && r.staging == nil {
		r.staging = &staging{
			revision: resource.Revision(b.Revision), prev: resource.Revision(b.PrevRevision),
			of: b.Parts, time: timeOf(b.Time),
		}
	}
	s := r.staging
	if s == nil || uint64(s.revision) != b.Revision || s.of != b.Parts || s.parts+1 != b.Part {
		return nil, signal{}, fmt.Errorf("%w: part %d of %d of batch %d out of place", errProtocol, b.Part, b.Parts, b.Revision)
	}
	s.parts++
	if err := s.add(b.Ops, func(*change) {}); err != nil {
		return nil, signal{}, err
	}
	if s.parts < s.of {
		return nil, signal{ack: true}, nil
	}
	r.staging = nil
	// Everything in scope up to the replica's revision is in it, so a batch may
	// begin at or before that revision, and must end after it.
	if s.prev > r.revision || s.revision <= r.revision {
		return r.repair(fmt.Sprintf("batch %d follows revision %d, the replica is at %d", s.revision, s.prev, r.revision))
	}
	return r.apply(s, r.epoch, nil), signal{ack: true}, nil
}

func (s *staging) add(raws [][]byte, then func(*change)) error {
	changes, err := decodeChanges(raws, then)
	s.groups, s.count = append(s.groups, changes), s.count+len(changes)
	return err
}

// changes are all of them in order. They are shared.
func (s *staging) changes() iter.Seq[*change] {
	return func(yield func(*change) bool) {
		for _, group := range s.groups {
			for i := range group {
				if !yield(&group[i]) {
					return
				}
			}
		}
	}
}

// prepare decodes a resource of a state, unless the replica has the same: all that is left
// to do when the state is complete delays the zone's readers.
func (r *replica) prepare(c *change) {
	if h := r.held[c.meta.Key]; h == nil || h.sum != c.sum || h.bad {
		c.typed, c.problem = r.decode(c.meta, c.spec)
	}
}

func (r *replica) bookmark(b *syncv1.Bookmark) (*commit, signal, error) {
	at := resource.Revision(b.Revision)
	answered := signal{ack: true, atOnce: true} // the server looks whether the zone is there
	if r.phase == replicaHeld {
		return nil, answered, nil
	}
	if r.phase != replicaFollowing || r.staging != nil || at < r.revision {
		return nil, signal{}, fmt.Errorf("%w: bookmark at %d out of place, the replica is at %d", errProtocol, at, r.revision)
	}
	want, err := store.DigestFromBytes(b.Digest)
	if err != nil {
		return nil, signal{}, err
	}
	if want != r.digest {
		return r.repair(fmt.Sprintf("digest %s at revision %d, the global has %s", r.digest, at, want))
	}
	r.failed, r.damaged, r.problem = 0, false, ""
	if at == r.revision {
		return nil, answered, nil
	}
	r.revision = at
	return &commit{epoch: r.epoch, revision: at, digest: r.digest}, answered, nil
}

// repair asks for the difference, then for everything, then gives up the
// connection.
func (r *replica) repair(why string) (*commit, signal, error) {
	r.problem = "repairing: " + why
	r.failed++
	r.repaired++
	if r.failed > 2 {
		return nil, signal{}, fmt.Errorf("%w: %s", errDiverged, why)
	}
	return nil, signal{hello: true}, nil
}

func (r *replica) chunk(raw []byte, now time.Time) (*commit, signal, error) {
	if r.phase == replicaHeld {
		return nil, signal{ack: true}, nil
	}
	if r.phase != replicaLoading {
		return nil, signal{}, fmt.Errorf("%w: a chunk among batches", errProtocol)
	}
	var c syncv1.Chunk
	if err := proto.Unmarshal(raw, &c); err != nil {
		return nil, signal{}, fmt.Errorf("%w chunk: %w", errMalformed, err)
	}
	s := r.staging
	if c.Part != s.parts+1 || (s.parts > 0 && uint64(s.revision) != c.Revision) {
		return nil, signal{}, fmt.Errorf("%w: chunk %d of revision %d out of place", errProtocol, c.Part, c.Revision)
	}
	s.parts, s.revision = c.Part, resource.Revision(c.Revision)
	if c.Part == 1 {
		s.cover = allBuckets()
		if s.mode == syncv1.Mode_MODE_DIFF {
			if len(c.Buckets) != len(s.cover) {
				return nil, signal{}, fmt.Errorf("%w: a difference without its buckets", errProtocol)
			}
			copy(s.cover[:], c.Buckets)
		}
	}
	if err := s.add(c.Ops, r.prepare); err != nil {
		return nil, signal{}, err
	}
	if !c.Last {
		return nil, signal{ack: true}, nil
	}
	want, err := store.DigestFromBytes(c.Digest)
	if err != nil {
		return nil, signal{}, err
	}
	s.time = timeOf(c.Time)
	return r.load(s, want, now)
}

// load takes a complete DIFF or SNAPSHOT: checked against its digest, then
// against the wipe guard, then as one step.
func (r *replica) load(s *staging, want store.Digest, now time.Time) (*commit, signal, error) {
	r.staging = nil
	if s.epoch == r.epoch && s.revision < r.revision {
		return nil, signal{}, fmt.Errorf("%w: a state at %d, the replica is at %d", errProtocol, s.revision, r.revision)
	}
	sent := make(map[resource.Key]bool, s.count)
	var got store.Digest
	for i, part := range r.buckets {
		if !s.cover.has(i) {
			got = got.Add(part)
		}
	}
	for c := range s.changes() {
		if c.deleted || sent[c.meta.Key] || !s.cover.has(store.BucketOf(c.meta.Key)) {
			return nil, signal{}, fmt.Errorf("%w: %s out of place in a state", errProtocol, c.meta.Key)
		}
		sent[c.meta.Key] = true
		got = got.Add(c.sum)
	}
	if got != want {
		return r.repair(fmt.Sprintf("state at revision %d has digest %s, not %s as announced", s.revision, got, want))
	}
	var gone []resource.Key
	for key := range r.held {
		if !sent[key] && s.cover.has(store.BucketOf(key)) {
			gone = append(gone, key)
		}
	}
	wipe := wipes(len(gone), len(r.held), s.epoch == r.epoch)
	if wipe && !r.acceptWipe.accepts(s.epoch, s.revision, r.epoch, r.revision) {
		r.phase, r.retryAt = replicaHeld, now.Add(heldRetry)
		r.problem = fmt.Sprintf("held: the global's state at revision %d would remove %d of %d resources; if that is meant, start the zone once with --accept-wipe %s",
			s.revision, len(gone), len(r.held), r.wipeTo(s.epoch, s.revision))
		return nil, signal{ack: true}, nil
	}
	r.phase, r.adopt = replicaFollowing, false
	if wipe {
		r.acceptWipe = Wipe{}
	}
	r.problem, r.damaged = "", false
	return r.apply(s, s.epoch, gone), signal{ack: true, atOnce: true}, nil
}

// persisted says that a commit is on disk and visible.
func (r *replica) persisted(c *commit) { r.durable, r.durableEpoch = c.revision, c.epoch }

// owe notes what a signal wants acknowledged, of what has been persisted. What an operator
// is to see does not wait.
func (r *replica) owe(sig signal) {
	if sig.ack {
		r.pace.Owe(r.consumed, sig.atOnce || len(r.reports) > 0 || r.problem != r.told)
	}
}

// acknowledge returns the Ack for what has been persisted.
func (r *replica) acknowledge(now time.Time) *syncv1.Ack {
	r.pace.Acknowledged(now)
	r.told = r.problem
	return &syncv1.Ack{
		Revision: uint64(r.durable), Epoch: epochTo(r.durableEpoch),
		Quarantined: uint64(len(r.bad)), Error: r.problem, Consumed: r.consumed, Nacks: r.nacks(),
	}
}

// tick reports whether a held update is due to be asked for again, by a Hello.
func (r *replica) tick(now time.Time) bool {
	accepted := r.acceptWipe != (Wipe{}) && !r.asked
	if r.phase != replicaHeld || now.Before(r.retryAt) && !accepted {
		return false
	}
	r.asked = true
	return true
}
