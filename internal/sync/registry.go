package zonesync

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// ZoneState is how a zone stands, in one word (SEMANTICS §7.4).
type ZoneState string

// The states of a zone.
const (
	// ZoneInSync: every connected instance has acknowledged every synced change.
	ZoneInSync ZoneState = "in-sync"
	// ZoneLagging: connected, with changes to acknowledge.
	ZoneLagging ZoneState = "lagging"
	// ZoneStale: connected, but nothing was heard of an instance for a while.
	ZoneStale ZoneState = "stale"
	// ZoneOffline: not connected.
	ZoneOffline ZoneState = "offline"
)

const (
	// staleAfter is how long a connected zone may be silent; it says something
	// every second.
	staleAfter = 5 * time.Second
	// maxQuarantined bounds the quarantine reports kept per instance.
	maxQuarantined = 10_000
)

// ZoneStatus is what a server knows of a zone that connected to it. It is soft
// state: gone when the server restarts, known to this server only.
type ZoneStatus struct {
	Name  resource.ZoneName
	State ZoneState
	// Revision is applied and persisted by every connected instance; when none
	// is connected, the last one acknowledged.
	Revision resource.Revision
	// Lag counts the synced changes after it.
	Lag uint64
	// Instances are the connected ones, sorted.
	Instances []string
	// LastError is what last went wrong, empty when all is well.
	LastError string
	LastSeen  time.Time
	// Quarantined is what the zone could not accept, by key.
	Quarantined []Quarantined
}

// registry knows the zones of one server.
type registry struct {
	mu    sync.Mutex
	zones map[resource.ZoneName]map[string]*instance
	wake  chan struct{} // closed and replaced at every change
}

// instance is one replica of a zone, connected or last seen.
type instance struct {
	conn        *conn // nil: gone
	lease       uint64
	epoch       store.Epoch
	acked       resource.Revision
	lastSeen    time.Time
	lastError   string
	quarantined map[resource.Key]Quarantined
}

func newRegistry() *registry {
	return &registry{zones: map[resource.ZoneName]map[string]*instance{}, wake: make(chan struct{})}
}

func (r *registry) wakeLocked() {
	close(r.wake)
	r.wake = make(chan struct{})
}

// changed is closed at the next change. Take it before reading.
func (r *registry) changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
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
		if old.lease > h.Lease {
			return nil, fencef(syncv1.FenceReason_FENCE_REASON_REPLACED, "a newer connection of this instance is open")
		}
		older = old.conn
	}
	// What is gone is remembered only until the zone is back.
	maps.DeleteFunc(instances, func(_ string, in *instance) bool { return in.conn == nil })
	in := &instance{conn: c, lease: h.Lease, lastSeen: now, quarantined: map[resource.Key]Quarantined{}}
	if h.Epoch != nil {
		in.epoch, in.acked = epochFrom(h.Epoch), resource.Revision(h.FromRevision)
	}
	instances[h.Instance] = in
	r.wakeLocked()
	return older, nil
}

// find is the instance that a connection stands for, unless it was replaced.
func (r *registry) findLocked(zone resource.ZoneName, c *conn) (string, *instance) {
	for id, in := range r.zones[zone] {
		if in.conn == c {
			return id, in
		}
	}
	return "", nil
}

func (r *registry) leave(zone resource.ZoneName, c *conn, err error, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, in := r.findLocked(zone, c)
	if in == nil {
		return
	}
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
}

func (r *registry) acknowledge(zone resource.ZoneName, c *conn, a *syncv1.Ack, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, in := r.findLocked(zone, c)
	if in == nil {
		return
	}
	in.lastSeen, in.lastError = now, a.Error
	for _, n := range a.Nacks {
		key := resource.Key{Kind: resource.Kind(n.Kind), Mesh: resource.MeshName(n.Mesh), Name: n.Name}
		if n.Cleared {
			delete(in.quarantined, key)
		} else if len(in.quarantined) < maxQuarantined {
			in.quarantined[key] = Quarantined{Key: key, Version: n.Version, Message: n.Message}
		}
	}
	epoch, acked := epochFrom(a.Epoch), resource.Revision(a.Revision)
	if in.epoch != epoch || in.acked != acked {
		in.epoch, in.acked = epoch, acked
		r.wakeLocked()
	}
}

// best is the connection to ask: of the most advanced instance. Nil if there is
// none.
func (r *registry) best(zone resource.ZoneName) *conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	var best *instance
	for _, in := range r.zones[zone] {
		if in.conn != nil && (best == nil || in.acked > best.acked) {
			best = in
		}
	}
	if best == nil {
		return nil
	}
	return best.conn
}

// Zones returns what is known of every zone that has connected to this server,
// by name.
func (s *Server) Zones() []ZoneStatus {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]ZoneStatus, 0, len(r.zones))
	for _, name := range slices.Sorted(maps.Keys(r.zones)) {
		out = append(out, s.statusLocked(name, time.Now()))
	}
	return out
}

// Zone returns what is known of one zone; false if it never connected to this
// server.
func (s *Server) Zone(name resource.ZoneName) (ZoneStatus, bool) {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.zones[name]) == 0 {
		return ZoneStatus{Name: name, State: ZoneOffline}, false
	}
	return s.statusLocked(name, time.Now()), true
}

func (s *Server) statusLocked(name resource.ZoneName, now time.Time) ZoneStatus {
	out := ZoneStatus{Name: name, State: ZoneOffline}
	quarantined := map[resource.Key]Quarantined{}
	silent, first := false, true
	for id, in := range s.registry.zones[name] {
		if in.conn != nil {
			out.Instances = append(out.Instances, id)
			silent = silent || now.Sub(in.lastSeen) > staleAfter
		}
		if in.lastSeen.After(out.LastSeen) {
			out.LastSeen = in.lastSeen
		}
		out.LastError = max(out.LastError, in.lastError)
		maps.Copy(quarantined, in.quarantined)
		if lag := s.feed.lag(in.acked, in.epoch); first || lag > out.Lag {
			out.Lag = lag
		}
		if first || in.acked < out.Revision {
			out.Revision = in.acked
		}
		first = false
	}
	slices.Sort(out.Instances)
	out.Quarantined = slices.SortedFunc(maps.Values(quarantined), func(a, b Quarantined) int { return a.Key.Compare(b.Key) })
	switch {
	case len(out.Instances) == 0:
	case silent:
		out.State = ZoneStale
	case out.Lag > 0:
		out.State = ZoneLagging
	default:
		out.State = ZoneInSync
	}
	return out
}

// NotAppliedError means that the caller stopped waiting before every connected
// zone had applied a revision. The write itself stands.
type NotAppliedError struct {
	Revision resource.Revision
	// Zones are those that had not, sorted.
	Zones []resource.ZoneName
	// Cause is why the wait ended.
	Cause error
}

func (e *NotAppliedError) Error() string {
	names := make([]string, len(e.Zones))
	for i, z := range e.Zones {
		names[i] = string(z)
	}
	return fmt.Sprintf("revision %d is not applied yet in: %s", e.Revision, strings.Join(names, ", "))
}

func (e *NotAppliedError) Unwrap() error { return e.Cause }

// WaitApplied returns when every zone connected to this server has applied and
// persisted a revision. It does not wait for zones that were away all the time;
// one that goes away while it is waited for is waited for until it is back.
// Error: *NotAppliedError when ctx ends first, or the server does.
func (s *Server) WaitApplied(ctx context.Context, rev resource.Revision) error {
	awaited := map[resource.ZoneName]bool{}
	for {
		feed, zones := s.feed.changed(), s.registry.changed()
		if v := s.cfg.Store.View(); v.Revision() >= rev {
			rev = min(rev, v.Changed()) // nothing changed after that
		}
		floor, reached := s.feed.floor(rev)
		var missing []resource.ZoneName
		if reached {
			if missing = s.registry.behind(floor, s.feed.position().epoch, awaited); len(missing) == 0 {
				return nil
			}
		}
		select {
		case <-feed:
		case <-zones:
		case <-s.ending:
			return &NotAppliedError{Revision: rev, Zones: missing, Cause: errClosed}
		case <-ctx.Done():
			return &NotAppliedError{Revision: rev, Zones: missing, Cause: context.Cause(ctx)}
		}
	}
}

// behind lists the zones with a connected instance that has not acknowledged a
// revision, and those that were listed before and are away. It adds what it
// lists to awaited.
func (r *registry) behind(rev resource.Revision, epoch store.Epoch, awaited map[resource.ZoneName]bool) []resource.ZoneName {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []resource.ZoneName
	for name, instances := range r.zones {
		connected, late := false, false
		for _, in := range instances {
			connected = connected || in.conn != nil
			late = late || in.conn != nil && (in.epoch != epoch || in.acked < rev)
		}
		if late || !connected && awaited[name] {
			out = append(out, name)
			awaited[name] = true
		}
	}
	slices.Sort(out)
	return out
}
