package sim

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"meridian/internal/consensus"
	"meridian/internal/resource"
	"meridian/internal/store"
	zonesync "meridian/internal/sync"
	"meridian/test/history"
	"meridian/test/simnet"
)

// world is everything that one simulation runs, inside one bubble of virtual
// time.
type world struct {
	t      *testing.T // of the bubble
	seed   uint64
	plan   plan
	rec    *history.Recorder
	logger *slog.Logger
	// net joins the servers, zoneNet servers and zones; links are between names.
	net, zoneNet *simnet.Network
	ctx          context.Context
	cancel       context.CancelFunc
	// running are all goroutines of the world; clients end before it.
	running, clients sync.WaitGroup
	stopClients      context.CancelFunc

	// begun says that there is a cluster to join.
	begun atomic.Bool

	// retention is which contents of old revisions the servers are to keep.
	retention atomic.Pointer[store.Retention]

	// shown is what zones show of a state, by state.
	shown sync.Map

	mu         sync.Mutex // guards what follows
	servers    []*server  // the members, and those that are to be
	former     []*server  // servers that are not, the newest last
	zones      []*zone
	violations []history.Violation
	probes     int
	// elections is how long an election may still last that began in the current
	// episode of faults, when every disk was slow.
	elections time.Duration
	// machines counts the servers there ever were.
	machines int
}

// plan is the size of a world.
type plan struct {
	servers, zones, clients, watchers int
	// think is the mean pause of a client between bursts of operations.
	think time.Duration
	// slower multiplies every duration that raft, clients and faults go by, and
	// the limits that follow from them: 1 is as in the product. What zones and
	// their servers do every second they do all the same.
	slower int
}

// timing is raft's, and how long autopilot takes to trust a server.
func (p plan) timing() (consensus.Timing, consensus.Autopilot) {
	timing, pilot := consensus.DefaultConfig("").Timing, consensus.DefaultAutopilot()
	by := time.Duration(p.slower)
	timing.Heartbeat, timing.Lease, timing.Commit = by*timing.Heartbeat, by*timing.Lease, by*timing.Commit
	pilot.Interval, pilot.Stabilization = by*pilot.Interval, by*pilot.Stabilization
	return timing, pilot
}

// times is a duration in a world of this plan.
func (p plan) times(d time.Duration) time.Duration { return time.Duration(p.slower) * d }

func newWorld(t *testing.T, seed uint64, p plan, logger *slog.Logger) *world {
	w := &world{
		t: t, seed: seed, plan: p, logger: logger, net: simnet.NewNetwork(), zoneNet: simnet.NewNetwork(),
		rec: history.NewRecorder(time.Now, synced),
	}
	w.retention.Store(&retentions[0])
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// trace shows what happens as it happens, for a run that does not end.
func (w *world) trace() {
	level := slog.LevelInfo
	if os.Getenv("SIM_TRACE") == "debug" {
		level = slog.LevelDebug
	}
	w.logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				a.Value = slog.DurationValue(w.rec.Now())
			}
			return a
		},
	}))
	w.rec.Echo = func(n history.Note) { w.logger.Info("note", "text", n.Text) }
}

// random returns a source of choices that depends on the seed and a name only.
func (w *world) random(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

// pause waits, and reports whether the world still is.
func (w *world) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-w.ctx.Done():
		return false
	}
}

// violate records that something happened which must not.
func (w *world) violate(promise, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, history.Violation{Promise: promise, At: w.rec.Now(), What: fmt.Sprintf(format, args...)})
}

// members are the servers of the global.
func (w *world) members() []*server {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.servers)
}

// names are their raft addresses.
func (w *world) names() []string {
	var out []string
	for _, s := range w.members() {
		out = append(out, s.name)
	}
	return out
}

// target is a server as zones dial it: an address that needs no looking up.
func target(name string) string { return "10.0.0." + strings.TrimPrefix(name, "g") + ":5685" }

// targets are the servers as zones dial them.
func (w *world) targets() []string {
	out := w.names()
	for i := range out {
		out[i] = target(out[i])
	}
	return out
}

func (w *world) followers() []*zone {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.zones)
}

// authorize decides about a zone's token.
func (w *world) authorize(_ context.Context, token string, zone resource.ZoneName) (until time.Time, err error) {
	if token != "zone-"+string(zone) {
		return until, errors.New("the token is another zone's")
	}
	return until, nil
}

// add puts a server into the world and starts it.
func (w *world) add(name string) *server {
	s := newServer(w, name)
	w.mu.Lock()
	w.servers = append(w.servers, s)
	w.mu.Unlock()
	s.start()
	return s
}

// begin starts everything and waits until it works.
func (w *world) begin() error {
	p := w.plan
	first := w.add("g1")
	if !w.await(time.Minute, first.up) {
		return errors.New("the first server does not become ready")
	}
	w.begun.Store(true)
	w.machines = p.servers
	for i := 2; i <= p.servers; i++ {
		s := w.add(fmt.Sprintf("g%d", i))
		if !w.await(p.times(2*time.Minute), s.up) {
			return fmt.Errorf("%s does not become ready", s.name)
		}
	}
	if !w.await(p.times(2*time.Minute), func() bool { return len(w.voters()) == p.servers }) {
		return fmt.Errorf("only %v have a vote", w.voters())
	}
	mesh := content(meshKey, "mesh")
	rev, err := w.probe(w.ctx, p.times(time.Minute), store.Put(mesh))
	if err != nil {
		return err
	}
	for i := range p.zones {
		z := newZone(w, fmt.Sprintf("z%d", i+1))
		w.zones = append(w.zones, z)
		z.start()
	}
	if !w.await(p.times(time.Minute), func() bool { return w.zonesAt(rev) }) {
		return errors.New("the zones do not follow")
	}
	ctx, stop := context.WithCancel(w.ctx)
	w.stopClients = stop
	for i := range p.clients {
		c := newClient(w, i+1)
		w.clients.Go(func() { c.run(ctx, p.times(p.think)) })
	}
	for i := range p.watchers {
		name := fmt.Sprintf("watcher %d", i+1)
		w.clients.Go(func() { w.watch(ctx, name) })
	}
	return nil
}

// await polls until something holds.
func (w *world) await(limit time.Duration, holds func() bool) bool {
	for began := time.Now(); time.Since(began) < limit; {
		if holds() {
			return true
		}
		if !w.pause(w.plan.times(10 * time.Millisecond)) {
			return false
		}
	}
	return holds()
}

// voters are the members that have a vote, as the leader knows them; nil when
// there is none.
func (w *world) voters() []string {
	for _, s := range w.members() {
		p := s.process()
		if p == nil || !p.node.IsLeader() {
			continue
		}
		var out []string
		for _, m := range p.node.Members(p.ctx) {
			if m.Voter {
				out = append(out, m.Name)
			}
		}
		return out
	}
	return nil
}

// probe writes through any server until it is acknowledged, and returns the
// revision.
func (w *world) probe(ctx context.Context, limit time.Duration, ops ...store.Op) (resource.Revision, error) {
	w.mu.Lock()
	w.probes++
	id := fmt.Sprintf("c0-%d", w.probes)
	w.mu.Unlock()
	txn := store.Txn{RequestID: id, Ops: append([]store.Op{store.Put(content(markerKey(0), id))}, ops...)}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for n := 0; ctx.Err() == nil; n++ {
		members := w.members()
		p := members[n%len(members)].process()
		if p == nil {
			w.pause(w.plan.times(10 * time.Millisecond))
			continue
		}
		within, stop := context.WithTimeout(ctx, w.plan.times(time.Second))
		result, err := p.node.Propose(within, txn)
		stop()
		if err == nil {
			return result.Revision, nil
		}
		w.pause(w.plan.times(10 * time.Millisecond))
	}
	return 0, fmt.Errorf("no write was acknowledged within %s", limit)
}

// heal ends every fault and waits until a majority runs again.
func (w *world) heal() bool {
	w.net.HealAll()
	w.zoneNet.HealAll()
	for _, s := range w.members() {
		s.repair()
		s.start()
		s.inspect()
	}
	for _, z := range w.followers() {
		z.disk.resume()
		z.disk.setFull(false)
		z.disk.setUnsynced(false)
		z.read()
		z.start()
	}
	return w.await(w.plan.times(time.Minute), func() bool {
		up := 0
		for _, s := range w.members() {
			if s.process() != nil {
				up++
			}
		}
		return 2*up > len(w.members())
	})
}

// repair ends the faults of a server's disk and clock.
func (s *server) repair() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disk.Resume()
	s.disk.Fail(nil, 0, 0)
	s.disk.Full(false)
	s.disk.Slow(0, 0)
	s.skew = 0
}

// inspect replaces a server of which something was damaged that it has not
// noticed.
func (s *server) inspect() {
	s.mu.Lock()
	damaged := s.damaged
	s.mu.Unlock()
	if !damaged {
		return
	}
	s.crash(false)
	s.mu.Lock()
	s.exchangeLocked()
	s.mu.Unlock()
	s.start()
}

// electionLimit is how long an election lasts at most that began while every sync of
// every server took so long: raft waits between one and two timeouts, of eight syncs
// and at most 12 s each.
func electionLimit(sync time.Duration) time.Duration { return 2 * min(8*sync, 12*time.Second) }

// Limits of what is promised within a time. Those of L1 and L2 are in docs/replication.md;
// reconnecting is the zone's own: silence is noticed after 10 s, and the pause
// before the next attempt grows to 10 s.
const (
	resumeLimit    = 3 * time.Second
	reconnectLimit = 40 * time.Second
	reachLimit     = time.Second
)

// liveness holds L1 and L2 after a healing: writes resume, every zone comes back,
// and is then told of a write within a second.
func (w *world) liveness() {
	began := time.Now()
	rev, err := w.probe(w.ctx, w.plan.times(time.Minute), store.Put(content(dataKey(dataKeys), fmt.Sprintf("probe-%d", w.rec.Now()))))
	limit := w.plan.times(resumeLimit) + w.elections
	w.elections = 0
	w.rec.Waited(history.Wait{Promise: "L1", What: "the first write after the healing", Took: time.Since(began), Limit: limit})
	if err != nil {
		return
	}
	began = time.Now()
	accepted := map[*zonesync.Replica]bool{}
	w.await(2*time.Minute, func() bool {
		w.acceptWipes(rev, accepted)
		return w.zonesAt(rev)
	})
	w.rec.Waited(history.Wait{Promise: "L2", What: "until every zone followed again", Took: time.Since(began), Limit: reconnectLimit})
	if rev, err = w.probe(w.ctx, w.plan.times(time.Minute), store.Put(content(dataKey(dataKeys), fmt.Sprintf("probe-%d", w.rec.Now())))); err != nil {
		return
	}
	began = time.Now()
	w.await(2*time.Minute, func() bool { return w.zonesAt(rev) })
	w.rec.Waited(history.Wait{Promise: "L2", What: "until every connected zone had a write", Took: time.Since(began), Limit: w.plan.times(reachLimit)})
}

// acceptWipes is what operators do about zones that hold an update, since a restored state
// lacks most of what they have: they accept it, once for each replica.
func (w *world) acceptWipes(rev resource.Revision, accepted map[*zonesync.Replica]bool) {
	for _, z := range w.followers() {
		p := z.process()
		if p == nil {
			continue
		}
		r := p.replica.Load()
		if r == nil || accepted[r] || r.Status().Problem == "" {
			continue
		}
		for _, s := range w.members() {
			if g := s.process(); g != nil && g.store.Revision() >= rev {
				accepted[r] = true
				r.AcceptWipe(zonesync.Wipe{Incarnation: g.store.View().Epoch().Incarnation, Revision: rev})
				break
			}
		}
	}
}

// zonesAt says whether every zone has reached a revision.
func (w *world) zonesAt(rev resource.Revision) bool {
	for _, z := range w.followers() {
		if p := z.process(); p == nil || p.store.Revision() < rev {
			return false
		}
	}
	return true
}

// settle ends the clients and waits until every server and zone holds the same.
func (w *world) settle() {
	w.stopClients()
	w.clients.Wait()
	began := time.Now()
	var lag string
	w.await(w.plan.times(3*time.Minute), func() bool {
		lag = w.lagging()
		return lag == ""
	})
	if lag != "" {
		w.violate("L2", "after the end: %s", lag)
	}
	w.rec.Waited(history.Wait{Promise: "L2", What: "until everything was everywhere", Took: time.Since(began), Limit: w.plan.times(time.Minute)})
	// Commits that no server has shown yet would look as if they did not exist.
	w.pause(w.plan.times(time.Second))
	for _, s := range w.members() {
		if p := s.process(); p != nil {
			p.recallAll()
		}
	}
}

// lagging names a server or zone that lacks what the newest server holds.
func (w *world) lagging() string {
	var newest *store.View
	for _, s := range w.members() {
		if p := s.process(); p != nil && (newest == nil || p.store.Revision() > newest.Revision()) {
			newest = p.store.View()
		}
	}
	if newest == nil {
		return "no server runs"
	}
	for _, s := range w.members() {
		p := s.process()
		if p == nil {
			return s.name + " does not run"
		}
		if v := p.store.View(); v.Changed() != newest.Changed() || v.Epoch() != newest.Epoch() || v.DigestOf(nil) != newest.DigestOf(nil) {
			return fmt.Sprintf("%s is at %d, the newest at %d", s.name, v.Changed(), newest.Changed())
		}
	}
	for _, z := range w.followers() {
		p := z.process()
		if p == nil {
			return "zone " + z.name + " does not run"
		}
		if v := p.store.View(); v.Epoch() != newest.Epoch() || !w.showsWhat(z.name, v, newest) {
			return fmt.Sprintf("zone %s is at %d, the global at %d: %s", z.name, v.Revision(), newest.Changed(), p.status())
		}
	}
	return ""
}

func (p *zoneProcess) status() string {
	if p.client.Load() == nil {
		return "it is not open"
	}
	return fmt.Sprintf("%+v, %+v", p.client.Load().Status(), p.replica.Load().Status())
}

// end stops everything.
func (w *world) end() {
	if w.stopClients != nil {
		w.stopClients()
		w.clients.Wait()
	}
	w.cancel()
	for _, z := range w.followers() {
		z.crash()
	}
	for _, s := range append(w.members(), w.former...) {
		s.crash(false)
	}
	w.running.Wait()
}
