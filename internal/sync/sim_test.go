package zonesync

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// The simulation connects publishers and replicas through queues, in virtual
// time, with replicas on real files. Nothing in it starts a goroutine.

const (
	policyKind = resource.Kind("TrafficPermission")
	secretKind = resource.Kind("GlobalSecret") // not synced
)

func syncedInTests(k resource.Kind) bool { return k != secretKind }

func policyKey(name string) resource.Key {
	return resource.Key{Kind: policyKind, Mesh: "default", Name: name}
}

// put is an operation that writes a resource with some content.
func put(key resource.Key, content string) store.Op {
	return store.Put(resource.New(resource.Meta{Key: key}, nil, []byte(content)))
}

// unusable marks content that a decoder of an older release refuses.
const unusable = `{"future":true}`

// decodeOld refuses unusable content; decodeNew takes everything.
func decodeOld(m resource.Meta, spec []byte) (*resource.Resource, error) {
	if strings.Contains(string(spec), unusable) || m.Kind == resource.KindRollout && strings.Contains(string(spec), unusableReason) {
		return nil, errors.New("spec.future: unknown field")
	}
	return decodeNew(m, spec)
}

func decodeNew(m resource.Meta, spec []byte) (*resource.Resource, error) {
	if m.Kind == resource.KindRollout {
		r, _, err := resource.Build(m, spec)
		return r, err
	}
	return resource.New(m, nil, spec), nil
}

// image is a state for comparison.
type image map[resource.Key]string

func imageOf(v *store.View) image {
	out := image{}
	for r := range v.All() {
		if syncedInTests(r.Key().Kind) {
			out[r.Key()] = describe(r)
		}
	}
	return out
}

func describe(r *resource.Resource) string {
	m := r.Meta()
	return fmt.Sprintf("%d@%d %s %s %s %s", m.Version, m.Revision, m.CreationTime.UTC(), m.ModificationTime.UTC(), m.Rollout, r.Canonical())
}

// tester is what *testing.T, *testing.B and *rapid.T have in common.
type tester interface {
	require.TestingT
	Helper()
}

// globalSim is a global: a store and its feed.
type globalSim struct {
	t       tester
	now     time.Time
	store   *store.Store
	feed    *feed
	at      *store.Feed
	limit   int
	past    map[store.Epoch]map[resource.Revision]*store.View
	named   map[resource.Key]map[resource.Key]bool // what each rollout, of any time, changes
	applied resource.Revision
}

func memory() store.Options {
	o := store.DefaultOptions()
	o.ExternalMeshes = true
	return o
}

func newGlobalSim(t tester, limit int) *globalSim {
	g := &globalSim{t: t, now: time.Unix(1_800_000_000, 0), store: store.New(memory()), limit: limit, past: map[store.Epoch]map[resource.Revision]*store.View{}, named: map[resource.Key]map[resource.Key]bool{}}
	e := store.Epoch{ClusterID: "c1", Incarnation: 1, Random: 7}
	g.apply(store.Txn{SetEpoch: &e})
	g.restart()
	return g
}

// restart begins the feed anew from what the store retains.
func (g *globalSim) restart() {
	g.feed = newFeed(syncedInTests, g.limit)
	v, err := g.store.ViewAt(g.store.Oldest())
	require.NoError(g.t, err)
	g.feed.reset(v)
	g.at = g.store.Follow(v)
	g.catchUp()
}

func (g *globalSim) apply(txn store.Txn) resource.Revision {
	g.t.Helper()
	g.applied += 1 + g.applied%3 // revisions are not dense
	txn.Time = g.now
	res := g.store.Apply(g.applied, txn)
	require.NoError(g.t, res.Err)
	g.record()
	if g.feed != nil {
		g.catchUp()
	}
	return g.applied
}

func (g *globalSim) write(ops ...store.Op) resource.Revision {
	g.t.Helper()
	return g.apply(store.Txn{Ops: ops})
}

func (g *globalSim) record() {
	v := g.store.View()
	if g.past[v.Epoch()] == nil {
		g.past[v.Epoch()] = map[resource.Revision]*store.View{}
	}
	g.past[v.Epoch()][v.Revision()] = v
}

// catchUp feeds the feed all there is.
func (g *globalSim) catchUp() {
	for g.feed.position().head < g.store.View().Changed() {
		batches, err := g.at.Next(done())
		if errors.Is(err, store.ErrCompacted) {
			v := g.store.View()
			g.feed.reset(v)
			g.at = g.store.Follow(v)
			return
		}
		require.NoError(g.t, err)
		for _, b := range batches {
			require.NoError(g.t, g.feed.append(b, g.now))
		}
	}
	at := g.feed.position()
	require.Equal(g.t, g.store.View().DigestOf(syncedInTests), at.digest)
}

// restore puts an older state in place, as the next incarnation of its history,
// the way the log does (§7.3). old may be of another global.
func (g *globalSim) restore(old *store.View) {
	g.t.Helper()
	var file bytes.Buffer
	require.NoError(g.t, old.WriteBackup(&file, nil))
	snap, err := store.ReadSnapshot(&file)
	require.NoError(g.t, err)
	now := g.store.View().Epoch()
	next := store.Epoch{
		ClusterID: old.Epoch().ClusterID, Random: now.Random + 1,
		Incarnation: max(now.Incarnation, old.Epoch().Incarnation) + 1,
	}
	for _, part := range snap.Parts(now, next, 100) {
		g.apply(store.Txn{Restore: &part})
	}
	require.Equal(g.t, next, g.store.View().Epoch())
}

// zoneSim is a zone, its stream, and what is under way in both directions.
type zoneSim struct {
	t       tester
	g       *globalSim
	name    resource.ZoneName
	dir     string
	storage ReplicaStorage
	decode  Decoder
	accept  Wipe
	pacing  pacing
	store   *store.Store
	reader  *store.Feed // of what was shown since the last check
	replica *Replica
	pub     *publisher
	down    []*syncv1.GlobalFrame
	up      []*syncv1.ZoneFrame
	bytes   int   // sent to the zone since the stream began
	ended   error // why the stream ended, nil while it is up
	acked   resource.Revision
	nacks   map[resource.Key]string
	// paced has the zone acknowledge when that is due, in place of after each step.
	paced bool
}

func newZoneSim(t tester, g *globalSim, dir string) *zoneSim {
	return newNamedZoneSim(t, g, "east", dir)
}

func newNamedZoneSim(t tester, g *globalSim, name resource.ZoneName, dir string) *zoneSim {
	z := &zoneSim{t: t, g: g, name: name, dir: dir, decode: decodeOld, pacing: defaultPacing(), nacks: map[resource.Key]string{}}
	z.open()
	z.ended = errors.New("not connected yet")
	return z
}

// acceptNow has the zone accept whatever the global's history of now removes.
func (z *zoneSim) acceptNow() {
	z.accept = Wipe{Incarnation: z.g.store.View().Epoch().Incarnation, Revision: 1}
	z.replica.AcceptWipe(z.accept)
	z.replica.takeAccept()
}

func (z *zoneSim) open() {
	z.t.Helper()
	z.store = store.New(memory())
	r, err := openReplica(ReplicaConfig{Dir: z.dir, Storage: z.storage, Zone: z.name, Decode: z.decode, Store: z.store, AcceptWipe: z.accept},
		bolt.Options{NoSync: true, NoGrowSync: true})
	require.NoError(z.t, err)
	z.replica, z.reader = r, z.store.Follow(z.store.View())
	z.check()
}

// crash loses everything that is not on disk, the connection too.
func (z *zoneSim) crash() {
	z.t.Helper()
	require.NoError(z.t, z.replica.Close())
	z.cut()
	z.open()
}

func (z *zoneSim) close() { require.NoError(z.t, z.replica.Close()) }

// cut loses the connection and what was under way.
func (z *zoneSim) cut() {
	z.down, z.up = nil, nil
	if z.pub != nil {
		z.pub.close()
	}
	z.ended = errors.New("cut")
}

func (z *zoneSim) connect() {
	z.cut()
	z.pub, z.bytes, z.ended = newPublisher(z.pacing, z.g.feed, z.g.store.View), 0, nil
	z.nacks = map[resource.Key]string{}
	z.sendHello(z.replica.machine.connect(z.replica.nextLease()))
}

func (z *zoneSim) sendHello(h *syncv1.Hello) {
	z.up = append(z.up, &syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Hello{Hello: h}})
}

// send has the global take up to n frames from the zone and send up to n.
func (z *zoneSim) send(n int) (moved bool) {
	for ; n > 0 && z.ended == nil; n-- {
		if len(z.up) > 0 {
			f := z.up[0]
			z.up, moved = z.up[1:], true
			if h := f.GetHello(); h != nil {
				z.ended = z.pub.greet(h, z.g.now)
			} else {
				z.ended = z.pub.acknowledge(f.GetAck(), z.g.now)
				z.take(f.GetAck())
			}
			continue
		}
		f, err := z.pub.next(z.g.now)
		if z.ended = err; f == nil {
			return moved
		}
		z.bytes += frameBytes(f)
		z.down, moved = append(z.down, f), true
	}
	return moved
}

// take is what the registry does with an Ack.
func (z *zoneSim) take(a *syncv1.Ack) {
	z.acked = resource.Revision(a.Revision)
	for _, n := range a.Nacks {
		key := resource.Key{Kind: resource.Kind(n.Kind), Mesh: resource.MeshName(n.Mesh), Name: n.Name}
		if n.Cleared {
			delete(z.nacks, key)
		} else {
			z.nacks[key] = n.Message
		}
	}
}

// receive has the zone take up to n frames, as a session does: persist and show
// what they amount to, then answer.
func (z *zoneSim) receive(n int) (moved bool) {
	m := z.replica.machine
	var commits []*commit
	var reply signal
	var err error
	for ; n > 0 && len(z.down) > 0 && err == nil && !reply.hello; n-- {
		var c *commit
		var sig signal
		f := z.down[0]
		z.down, moved = z.down[1:], true
		c, sig, err = m.receive(f, z.g.now)
		reply = reply.and(sig)
		if c != nil {
			commits = append(commits, c)
		}
	}
	before := z.store.View()
	require.NoError(z.t, z.replica.commit(commits))
	z.replica.publishStatus(nil)
	if len(commits) > 0 && before.Epoch() == z.store.View().Epoch() && !m.damaged {
		require.GreaterOrEqual(z.t, z.store.Revision(), before.Revision(), "I4")
	}
	if e, now := before.Epoch(), z.store.View().Epoch(); e != now && e != (store.Epoch{}) && z.accept == (Wipe{}) && m.acceptWipe == (Wipe{}) && !m.damaged {
		require.Greater(z.t, now.Incarnation, e.Incarnation, "I4: only a later incarnation is followed unasked")
	}
	z.check()
	switch {
	case err != nil:
		z.ended = err
	case reply.hello:
		z.sendHello(m.greet())
	case reply.ack && !z.paced:
		z.acknowledge()
	default:
		m.owe(reply)
	}
	return z.acknowledgeDue() || moved
}

func (z *zoneSim) acknowledge() {
	z.up = append(z.up, &syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Ack{Ack: z.replica.machine.acknowledge(z.g.now)}})
}

// acknowledgeDue has the zone acknowledge what is due, if it is paced.
func (z *zoneSim) acknowledgeDue() bool {
	due, _ := z.replica.machine.pace.Due(z.g.now)
	if !z.paced || !due || z.ended != nil {
		return false
	}
	z.acknowledge()
	return true
}

// check is I3 and I5: what the zone serves is exactly what the global had at the
// revision that the zone names, as the rollouts of then change it in the zone, but for
// keys in quarantine.
func (z *zoneSim) check() {
	z.t.Helper()
	z.checkBetween()
	v := z.store.View()
	s := z.replica.Status()
	if len(s.Damage) > 0 || v.Revision() == 0 {
		return
	}
	require.Equal(z.t, s.Revision, v.Revision())
	had, known := z.g.past[v.Epoch()][v.Revision()]
	require.True(z.t, known, "the zone names revision %d, which the global never had in epoch %v", v.Revision(), v.Epoch())
	got, want := imageOf(v), imageOf(had)
	aside := map[resource.Key]bool{}
	for _, q := range s.Quarantined {
		aside[q.Key] = true
	}
	changed := rolledOut(had, z.name, func(r *resource.Resource) bool { return !aside[r.Key()] })
	for key := range aside {
		delete(want, key)
		if _, rolled := changed[key]; !rolled {
			delete(got, key)
		}
		if key.Kind != resource.KindRollout {
			continue
		}
		for named := range z.g.named[key] { // what is shown of them follows from its last usable version
			delete(want, named)
			delete(got, named)
			delete(changed, named)
		}
	}
	for key, after := range changed {
		if delete(want, key); after != "" {
			want[key] = after
		}
	}
	require.Equal(z.t, want, got, "at revision %d", v.Revision())
}

// settle lets time pass and everything be delivered until nothing moves.
func (z *zoneSim) settle() {
	z.t.Helper()
	for round := range 200 {
		if z.ended != nil {
			z.connect()
		}
		for z.send(1000) || z.receive(1000) {
		}
		at := z.g.feed.position()
		if z.ended == nil && z.acked == at.head && z.replica.machine.digest == at.digest && z.pub.phase == phaseFeed && round > 2 {
			return
		}
		z.g.now = z.g.now.Add(time.Second)
		if z.replica.machine.tick(z.g.now) {
			z.sendHello(z.replica.machine.greet())
		}
	}
	require.FailNow(z.t, "the zone does not settle", "ended: %v, problem: %s", z.ended, z.replica.machine.problem)
}
