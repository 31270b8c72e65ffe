package zonesync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// ZoneState is how a zone stands, in one word (§7.4).
type ZoneState string

// The states of a zone.
const (
	// ZoneInSync: every connected instance has acknowledged every synced change, but for
	// those of which it may put that off.
	ZoneInSync ZoneState = "in-sync"
	// ZoneLagging: connected, with changes that it should have acknowledged.
	ZoneLagging ZoneState = "lagging"
	// ZoneStale: connected, but without contact with an instance for a while.
	ZoneStale ZoneState = "stale"
	// ZoneOffline: not connected.
	ZoneOffline ZoneState = "offline"
)

// staleAfter is how long a connected zone may be silent; it says something
// every heartbeatEvery, or, of an earlier release, every three seconds.
const staleAfter = 5 * time.Second

// ZoneStatus is what servers know of a zone that connected to them. It is soft
// state: gone when they restart.
type ZoneStatus struct {
	Name  resource.ZoneName
	State ZoneState
	// Revision is applied and persisted by every connected instance; when none
	// is connected, the last one acknowledged.
	Revision resource.Revision
	// Lag counts the synced changes after it; zero while the zone may put off their
	// acknowledgement.
	Lag uint64
	// Instances are the connected ones, sorted, and Servers where.
	Instances []string
	Servers   []string
	// Versions are the releases that they run, sorted.
	Versions []string
	// Authorities are those by which the connected instances verify servers
	// (pki.Digest); empty while they differ, or one has not said.
	Authorities string
	// LastError is what last went wrong, empty when all is well.
	LastError string
	LastSeen  time.Time
	// Quarantined is what the zone could not accept, by key.
	Quarantined []Quarantined
	// Draining is how far it has drained, CanDrain that every connected instance can.
	Draining Draining
	CanDrain bool
	// ServersOfZone is how many servers the zone has, as the connected ones say: where that is
	// more than there are Instances, some are away. 0: it has one, or they do not say.
	ServersOfZone int
	// ToDrain: its Zone says that it is to drain. Servers of zones leave it false.
	ToDrain bool
}

// registry knows the zones of one server.
type registry struct {
	mu    sync.Mutex
	zones map[resource.ZoneName]map[string]*instance
	wake  chan struct{} // closed at the next change; nil until changed is called after the last one
}

// instance is one replica of a zone, connected or last seen.
type instance struct {
	conn        *conn // nil: gone
	lease       uint64
	epoch       store.Epoch
	acked       resource.Revision
	lastSeen    time.Time
	lastError   string
	version     string
	authorities string
	// serversOfZone is how many servers its zone has, as it says; 0: it does not.
	serversOfZone uint32
	// drains: it can be told to drain.
	drains      bool
	draining    Draining
	quarantined map[resource.Key]Quarantined
	// reported is the memory that quarantined needs, in bytes.
	reported int
	// unlisted counts reports of resources that were not accepted, beyond those
	// that are kept.
	unlisted int
}

func newRegistry() *registry {
	return &registry{zones: map[resource.ZoneName]map[string]*instance{}}
}

func (r *registry) wakeLocked() {
	if r.wake != nil {
		close(r.wake)
		r.wake = nil
	}
}

// changed is closed at the next change. Take it before reading.
func (r *registry) changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wake == nil {
		r.wake = make(chan struct{})
	}
	return r.wake
}

// join adds a connection and returns the one that it replaces, if any. A
// connection older than the one present is refused.
func (r *registry) join(zone resource.ZoneName, c *conn, h *syncv1.Hello, now time.Time) (older *conn, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	instances := r.zones[zone]
	if instances == nil {
		instances = map[string]*instance{}
		r.zones[zone] = instances
	}
	if old := instances[h.Instance]; old != nil && old.conn != nil {
		switch {
		case old.lease > h.Lease:
			return nil, fencef(syncv1.FenceReason_FENCE_REASON_REPLACED, "a newer connection of this instance is open")
		case old.lease == h.Lease:
			return nil, fencef(syncv1.FenceReason_FENCE_REASON_REPLACED, "another connection of this instance has the same number: two processes run on copies of one data directory; stop one of them and start it with a new data directory")
		}
		older = old.conn
	}
	// What is gone is remembered only until the zone is back.
	maps.DeleteFunc(instances, func(_ string, in *instance) bool { return in.conn == nil })
	if instances[h.Instance] == nil && len(instances) >= maxInstances {
		return nil, fencef(syncv1.FenceReason_FENCE_REASON_NOT_ADMITTED, "zone %s has %d connected instances, the limit for one zone: stop some of them", zone, maxInstances)
	}
	in := &instance{conn: c, lease: h.Lease, lastSeen: now, version: claim(h.Version, maxVersion), drains: canDrain(h), quarantined: map[resource.Key]Quarantined{}}
	if h.Epoch != nil {
		in.epoch, in.acked = epochFrom(h.Epoch), resource.Revision(h.FromRevision)
	}
	instances[h.Instance] = in
	r.wakeLocked()
	return older, nil
}

// findLocked is the instance that a connection stands for, unless it was replaced.
func (r *registry) findLocked(zone resource.ZoneName, c *conn) (string, *instance) {
	for id, in := range r.zones[zone] {
		if in.conn == c {
			return id, in
		}
	}
	return "", nil
}

// leave notes that a connection has ended and returns why, in words for operators.
// ours is the epoch of this global.
func (r *registry) leave(zone resource.ZoneName, c *conn, err error, ours store.Epoch, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, in := r.findLocked(zone, c)
	if in == nil {
		return closeReason(err, store.Epoch{}, ours)
	}
	err = closeReason(err, in.epoch, ours)
	in.conn, in.lastSeen = nil, now
	if in.lastError == "" && err != nil {
		in.lastError = oneLine(err)
	}
	// While another instance is connected, the zone is not gone.
	for _, other := range r.zones[zone] {
		if other.conn != nil {
			delete(r.zones[zone], id)
			break
		}
	}
	r.wakeLocked()
	return err
}

// closeReason is why a stream ended. A zone that ends it says nothing; that it does
// not follow this global is visible from the epoch that it greeted with.
func closeReason(err error, theirs, ours store.Epoch) error {
	if !errors.Is(err, context.Canceled) && status.Code(err) != codes.Canceled {
		return err
	}
	switch {
	case theirs == (store.Epoch{}):
	case theirs.ClusterID != ours.ClusterID:
		return fmt.Errorf("the zone does not follow this global: it follows cluster %s, this is cluster %s; give the zone the address of its own global; to have it follow this one, start it with a new data directory, and keep the old one, which may be the only copy of its state",
			theirs.ClusterID, ours.ClusterID)
	case theirs.Incarnation > ours.Incarnation:
		return fmt.Errorf("the zone does not follow this global: this is an earlier incarnation, %d, and the zone has seen %d; if the global was brought back on purpose, start the zone once with the --accept-wipe that its log names",
			ours.Incarnation, theirs.Incarnation)
	case theirs.Incarnation == ours.Incarnation && theirs.Random != ours.Random:
		return fmt.Errorf("the zone does not follow this global: it follows another history of incarnation %d, such as that of a global restored or recovered elsewhere; if this is the one to follow, start the zone once with the --accept-wipe that its log names",
			ours.Incarnation)
	}
	return errors.New("the zone closed the connection, or it was lost")
}

func (r *registry) acknowledge(zone resource.ZoneName, c *conn, a *syncv1.Ack, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, in := r.findLocked(zone, c)
	if in == nil {
		return
	}
	in.lastSeen, in.lastError = now, claim(a.Error, maxClaim)
	if authorities := claim(a.Authorities, maxDigest); in.authorities != authorities {
		in.authorities = authorities
		r.wakeLocked()
	}
	in.draining, in.serversOfZone = drainingOf(a), min(a.Servers, maxInstances)
	r.reportsLocked(zone, in, a.Nacks)
	epoch, acked := epochFrom(a.Epoch), resource.Revision(a.Revision)
	if in.epoch != epoch || in.acked != acked {
		in.epoch, in.acked = epoch, acked
		r.wakeLocked()
	}
}

// forget drops what is known of zones that are no more, and returns their
// connections, which the caller ends.
func (r *registry) forget(gone func(resource.ZoneName) bool) (connected []*conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.zones, func(zone resource.ZoneName, instances map[string]*instance) bool {
		if !gone(zone) {
			return false
		}
		for _, in := range instances {
			if in.conn != nil {
				connected = append(connected, in.conn)
			}
		}
		return true
	})
	r.wakeLocked()
	return connected
}

// best is the connection to ask: of an instance that is not silent, if there is one;
// of these, of the most advanced instance in an epoch, or of any other when none is in
// it. Nil if none is connected.
func (r *registry) best(zone resource.ZoneName, epoch store.Epoch, now time.Time) *conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	silent := func(in *instance) bool { return now.Sub(in.lastSeen) >= silentAfter }
	better := func(a, b *instance) bool {
		switch {
		case silent(a) != silent(b):
			return silent(b)
		case (a.epoch == epoch) != (b.epoch == epoch):
			return a.epoch == epoch
		}
		return a.epoch == b.epoch && a.acked > b.acked
	}
	var best *instance
	for _, in := range r.zones[zone] {
		if in.conn != nil && (best == nil || better(in, best)) {
			best = in
		}
	}
	if best == nil {
		return nil
	}
	return best.conn
}
