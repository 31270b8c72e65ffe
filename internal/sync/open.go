package zonesync

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// ErrOtherZone means that the data directory holds another zone's replica.
// Start the zone under the name it had, or with a new data directory.
var ErrOtherZone = errors.New("the replica belongs to another zone")

// ReplicaConfig says where a replica lives and where it is shown. All fields
// without a remark are required.
type ReplicaConfig struct {
	// Dir is the zone's data directory; the replica is the file replica.db in
	// it.
	Dir string
	// Storage, unless nil, keeps the replica in place of a file in Dir. Optional.
	Storage ReplicaStorage
	Zone    resource.ZoneName
	// Decode turns content into typed resources.
	Decode Decoder
	// Store shows the replica to readers. Only the replica writes to it.
	Store *store.Store
	// AcceptWipe names the update that the operator accepts although the wipe guard,
	// or an earlier incarnation of the global, holds it. Optional.
	AcceptWipe Wipe
	// Version is the software's, sent to the global. Optional.
	Version string
}

// ReplicaStatus is what a replica holds.
type ReplicaStatus struct {
	Epoch store.Epoch
	// Revision is durable and visible.
	Revision resource.Revision
	// Resources counts what is held, in quarantine or not.
	Resources   int
	Quarantined []Quarantined // by key
	// Damage says what was found damaged on disk and not repaired yet. The rest
	// is served.
	Damage []string
	// Repairs counts how often, since it was opened, the replica turned out to
	// differ from the global and was sent the difference.
	Repairs uint64
	// Problem is what holds the replica back; empty when nothing does.
	Problem string
}

// Replica is a zone's durable copy of the synced part of the global. It serves
// from the moment it is open; a Client keeps it up to date.
type Replica struct {
	cfg     ReplicaConfig
	disk    records
	machine *replica // used by one goroutine, the Client's
	state   *syncv1.ReplicaState
	saved   *syncv1.ReplicaState // as of the last write that succeeded
	leases  uint32
	// unsettled: a commit failed. The machine is ahead of the disk, and the disk
	// may show more than it keeps.
	unsettled bool

	mu     sync.Mutex
	status ReplicaStatus
	accept Wipe // what AcceptWipe was called with
}

// OpenReplica opens the replica in a directory, verifies every record and shows
// it in the store (§7.6). Damaged records are left out, reported in
// Status and repaired when the global is reached. What an older release put in
// quarantine is tried again.
//
// Errors: ErrReplicaInUse; ErrOtherZone; whatever the file system says.
func OpenReplica(cfg ReplicaConfig) (*Replica, error) {
	return openReplica(cfg, bolt.Options{})
}

func openReplica(cfg ReplicaConfig, options bolt.Options) (*Replica, error) {
	storage := cfg.Storage
	var c *contents
	var err error
	if storage == nil {
		storage, c, err = openDisk(cfg.Dir, options, cfg.Decode)
	} else {
		c, err = openStorage(storage, cfg.Decode)
	}
	if err != nil {
		return nil, err
	}
	r := &Replica{cfg: cfg, disk: records{storage, cfg.Decode}}
	if err := r.start(c); err != nil {
		return nil, errors.Join(err, storage.Close())
	}
	return r, nil
}

// start builds the machine from what the file held and shows it.
func (r *Replica) start(c *contents) error {
	r.state = c.state
	if r.state == nil {
		r.state = &syncv1.ReplicaState{Zone: string(r.cfg.Zone), Instance: newInstance()}
	}
	if r.state.Zone != string(r.cfg.Zone) {
		return fmt.Errorf("%w: it is zone %q's, this is zone %q", ErrOtherZone, r.state.Zone, r.cfg.Zone)
	}
	r.state.Boots++
	var whole *store.Snapshot
	var preparing sync.WaitGroup // while the machine is built
	preparing.Go(func() { whole = r.prepare(c) })
	promoted := r.build(c)
	preparing.Wait()
	m := r.machine
	r.state.Revision = uint64(m.revision)
	if !m.damaged {
		// Else the digest stays what it was to be, so that the damage is noticed
		// again if the zone restarts before its repair.
		r.state.Digest = m.digest.Bytes()
	}
	if err := r.save(promoted); err != nil {
		return err
	}
	if whole == nil {
		whole = snapshotOf(m.servedOf(c.keys()))
	}
	if err := r.showAll(whole); err != nil {
		return err
	}
	r.publishStatus(c.damage)
	return nil
}

// prepare has the store prepared for all that the file held, where nothing else is to be
// shown: nothing of it is damaged, in quarantine, or may change what is shown of others.
// Otherwise it returns nil.
func (r *Replica) prepare(c *contents) *store.Snapshot {
	if len(c.damage) > 0 || len(c.bad) > 0 {
		return nil
	}
	all := make([]*resource.Resource, 0, c.count())
	for rec := range c.eachGood() {
		if rec.typed == nil || rec.typed.KeyRef().Kind == resource.KindRollout {
			return nil
		}
		all = append(all, rec.typed)
	}
	whole := snapshotOf(all)
	r.cfg.Store.Prepare(whole)
	return whole
}

// snapshotOf returns resources as a state, of the time at which the last of them changed.
func snapshotOf(resources []*resource.Resource) *store.Snapshot {
	snap := &store.Snapshot{Resources: resources}
	for _, r := range resources {
		if t := r.Meta().ModificationTime; t.After(snap.Time) {
			snap.Time = t
		}
	}
	return snap
}

// save writes operations and the replica's state as one.
func (r *Replica) save(writes []write) error {
	if err := r.disk.save(writes, r.state); err != nil {
		return err
	}
	r.saved = proto.CloneOf(r.state)
	return nil
}

// showAll shows everything that the machine holds in place of what is shown.
func (r *Replica) showAll(whole *store.Snapshot) error {
	whole.Revision, whole.Epoch = r.machine.revision, r.machine.epoch
	if err := r.cfg.Store.Reset(whole); err != nil {
		return fmt.Errorf("show replica: %w", err)
	}
	return nil
}

// errNotShown means that readers see another state than the one that the
// replica holds. It is shown anew.
var errNotShown = errors.New("what is served differs from the replica")

// verify compares what is served with what the machine holds, when everything
// received has been persisted and shown.
func (r *Replica) verify() error {
	v, m := r.cfg.Store.View(), r.machine
	if v.Revision() != m.durable {
		return fmt.Errorf("%w: revision %d is served, the replica is at %d", errNotShown, v.Revision(), m.durable)
	}
	if got := v.DigestOf(nil); got != m.shown {
		return fmt.Errorf("%w: digest %s is served at revision %d, the replica has %s", errNotShown, got, m.durable, m.shown)
	}
	return nil
}

// build makes a machine that holds what the file holds, and returns the records
// that leave quarantine.
func (r *Replica) build(c *contents) (promoted []write) {
	m := &replica{
		instance: r.state.Instance, version: r.cfg.Version,
		holdings: newHoldings(r.cfg.Zone, r.cfg.Decode, c.count()), consent: consent{acceptWipe: r.cfg.AcceptWipe},
	}
	r.machine = m
	for rec := range c.eachGood() {
		m.restore(rec)
	}
	for i := range c.bad {
		if m.restore(&c.bad[i]) {
			promoted = append(promoted, write{key: c.bad[i].key(), raw: c.bad[i].bytes.raw})
		}
	}
	m.showRollouts(func(resource.Key) {})
	if c.state != nil && c.state.Epoch != nil {
		m.epoch, m.revision = epochFrom(c.state.Epoch), resource.Revision(c.state.Revision)
		want, err := store.DigestFromBytes(c.state.Digest)
		m.damaged = err != nil || want != m.digest
	} else {
		// The record of revision and epoch is gone, or there never was one. What
		// is left is served as of the newest revision in it.
		for rec := range c.eachGood() {
			m.revision = max(m.revision, rec.revision())
		}
		for i := range c.bad {
			m.revision = max(m.revision, c.bad[i].revision())
		}
		m.damaged = len(m.held) > 0
	}
	m.damaged = m.damaged || len(c.damage) > 0
	m.badChanges++ // so that the status is made anew
	m.durable, m.durableEpoch = m.revision, m.epoch
	if m.damaged {
		m.problem = "part of the replica on disk was damaged; it is repaired when the global is reached"
	}
	return promoted
}

// newInstance names a replica's disk.
func newInstance() string {
	var b [8]byte
	// Documented never to fail.
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// nextLease numbers a connection: higher than every one before it, of this
// process or an earlier one.
func (r *Replica) nextLease() uint64 {
	r.leases++
	return r.state.Boots<<32 | uint64(r.leases)
}

// commit persists steps in one transaction, shows them one by one, and verifies
// what is shown. After an error the replica is unsettled until settle succeeds.
func (r *Replica) commit(commits []*commit) (err error) {
	defer func() { r.unsettled = r.unsettled || err != nil }()
	if len(commits) == 0 {
		return r.verify()
	}
	var writes []write
	for _, c := range commits {
		writes = append(writes, c.writes...)
	}
	last := commits[len(commits)-1]
	r.state.Epoch, r.state.Revision, r.state.Digest = epochTo(last.epoch), uint64(last.revision), last.digest.Bytes()
	var preparing sync.WaitGroup // while the disk writes
	for _, c := range commits {
		if c.swap {
			preparing.Go(func() { r.cfg.Store.Prepare(c.whole) })
		}
	}
	err = r.save(writes)
	if preparing.Wait(); err != nil {
		return err
	}
	if err := r.publish(commits); err != nil {
		return err
	}
	return r.verify()
}

// publish makes persisted steps visible, one by one.
func (r *Replica) publish(commits []*commit) error {
	for _, c := range commits {
		if err := show(r.cfg.Store, c); err != nil {
			return err
		}
		r.machine.persisted(c)
	}
	return nil
}

// show makes a persisted step visible.
func show(s *store.Store, c *commit) error {
	if c.swap {
		if err := s.Reset(c.whole); err != nil {
			return fmt.Errorf("show state at %d: %w", c.revision, err)
		}
		return nil
	}
	at := s.View()
	b := store.Batch{Revision: c.revision, Prev: at.Revision(), Time: c.time, Changes: c.changes, Epoch: &c.epoch}
	if c.time.IsZero() {
		b.Time = at.Time()
	}
	if err := s.Replicate(b); err != nil {
		return fmt.Errorf("show revision %d: %w", c.revision, err)
	}
	return nil
}

// settle recovers from a commit that failed: it adopts what the disk has,
// and shows it if something else is shown. Until it succeeds, what was shown
// before is served, and nothing is received or acknowledged.
//
// A write whose sync failed may be visible without being durable. What is
// visible is a complete state before or after it, and the next transaction that
// succeeds makes it durable: bbolt syncs all that a root page refers to before
// it writes that page, and writes its two root pages in turn.
func (r *Replica) settle() error {
	if !r.unsettled {
		return nil
	}
	if err := r.reload(); err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.status.Problem = "the replica on disk cannot be used; what was received before is served: " + oneLine(err)
		return err
	}
	return nil
}

func (r *Replica) reload() error {
	c, err := r.disk.read()
	if err != nil {
		return err
	}
	if c.state == nil {
		return fmt.Errorf("%w replica: no state", errMalformed)
	}
	lost := r.machine
	r.state = c.state
	if !proto.Equal(r.state, r.saved) {
		if err := r.save(nil); err != nil {
			return err
		}
	}
	r.build(c)
	lost.damaged = lost.damaged || r.machine.damaged
	r.machine.repairs, r.machine.consent = lost.repairs, lost.consent
	if r.verify() != nil {
		if err := r.showAll(snapshotOf(r.machine.servedOf(c.keys()))); err != nil {
			return err
		}
	}
	r.unsettled = false
	r.publishStatus(c.damage)
	return nil
}

// publishStatus makes the machine's state visible to Status; nil keeps the
// damage known unless it has been repaired.
func (r *Replica) publishStatus(damage []string) {
	if r.unsettled {
		return // the machine is ahead of what is durable
	}
	m := r.machine
	s := ReplicaStatus{
		Epoch: m.durableEpoch, Revision: m.durable, Resources: len(m.held), Repairs: m.repaired, Problem: m.problem,
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.damaged {
		s.Damage = r.status.Damage
		if damage != nil {
			s.Damage = damage
		}
		if len(s.Damage) == 0 {
			s.Damage = []string{"records were found damaged at an earlier start"}
		}
	}
	s.Quarantined = r.status.Quarantined
	if m.badChanges > 0 {
		m.badChanges = 0
		s.Quarantined = make([]Quarantined, 0, len(m.bad))
		for _, q := range m.bad {
			s.Quarantined = append(s.Quarantined, *q)
		}
		slices.SortFunc(s.Quarantined, func(a, b Quarantined) int { return a.Key.Compare(b.Key) })
	}
	r.status = s
}

// Status returns what the replica holds. Safe for concurrent use.
func (r *Replica) Status() ReplicaStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// AcceptWipe accepts one update that is held for the operator, now or when the
// next one comes. Safe for concurrent use.
func (r *Replica) AcceptWipe(w Wipe) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.accept = w
}

// takeAccept passes on what AcceptWipe asked for.
func (r *Replica) takeAccept() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.accept != (Wipe{}) {
		r.machine.acceptWipe, r.machine.asked, r.accept = r.accept, false, Wipe{}
	}
}

// Close releases the file. The Client must have returned.
func (r *Replica) Close() error {
	if err := r.disk.storage.Close(); err != nil {
		return fmt.Errorf("close replica: %w", err)
	}
	return nil
}
