package zonesync

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/rollout/overlay"
	"meridian/internal/store"
)

// decodeBefore is that of a release that does not know rollouts.
func decodeBefore(m resource.Meta, spec []byte) (*resource.Resource, error) {
	if m.Kind == resource.KindRollout {
		return nil, errors.New(`unknown kind "Rollout"`)
	}
	return decodeOld(m, spec)
}

// unusableReason marks a rollout that a decoder of an older release refuses.
const unusableReason = "of the future"

func rolloutKey(name string) resource.Key {
	return resource.Key{Kind: resource.KindRollout, Name: name}
}

// rolled is what a rollout makes of a resource: content of some number, deleted for 0.
type rolled struct {
	key     resource.Key
	content int
}

// content is a spec that documents in rollouts, which are checked, can have.
func content(n int) []byte {
	return fmt.Appendf(nil, `{"destinations":[{"match":{"kuma.io/service":"*"}}],"sources":[{"match":{"kuma.io/service":"s-%d"}}]}`, n)
}

// rollout is one that is stored.
func (g *globalSim) rollout(name string) *resource.Rollout {
	r, ok := g.store.View().Get(rolloutKey(name))
	require.True(g.t, ok)
	built, _, err := resource.Build(r.Meta(), r.Canonical())
	require.NoError(g.t, err)
	return built.Spec().(*resource.Rollout)
}

func putRollout(t tester, name string, spec *resource.Rollout) store.Op {
	text, err := json.Marshal(spec)
	require.NoError(t, err)
	built, _, err := resource.Build(resource.Meta{Key: rolloutKey(name)}, text)
	require.NoError(t, err)
	// Without its Go type the store does not hold what it changes: a zone is not to rest on that.
	return store.Put(resource.New(built.Meta(), nil, built.Canonical()))
}

// begin writes a rollout that one zone has at first, and returns its name.
func (g *globalSim) begin(name string, zone resource.ZoneName, changes ...rolled) string {
	g.t.Helper()
	spec := &resource.Rollout{
		Stages: []resource.RolloutStage{{Zones: []string{string(zone)}}, {All: true}},
		Status: resource.RolloutStatus{Phase: resource.RolloutProgressing, Stage: 1, Zones: []resource.ZoneName{zone}},
	}
	for _, c := range changes {
		change := resource.RolloutChange{}
		if had, ok := g.store.View().Get(c.key); ok {
			change.Replaces = had.Meta().Version
		}
		if c.content == 0 {
			if change.Replaces == 0 {
				continue
			}
			change.Delete = &resource.RolloutKey{Type: c.key.Kind, Mesh: c.key.Mesh, Name: c.key.Name}
		} else {
			r, _, err := resource.Build(resource.Meta{Key: c.key}, content(c.content))
			require.NoError(g.t, err)
			change.Put = resource.NewRolloutDocument(r)
		}
		spec.Changes = append(spec.Changes, change)
	}
	for _, c := range spec.Changes {
		if g.named[rolloutKey(name)] == nil {
			g.named[rolloutKey(name)] = map[resource.Key]bool{}
		}
		g.named[rolloutKey(name)][c.Key()] = true
	}
	if len(spec.Changes) > 0 {
		g.write(putRollout(g.t, name, spec))
	}
	return name
}

// status writes another status of a rollout.
func (g *globalSim) status(name string, s resource.RolloutStatus, with ...store.Op) {
	g.t.Helper()
	spec := *g.rollout(name)
	spec.Status = s
	g.write(append(with, putRollout(g.t, name, &spec))...)
}

func (g *globalSim) abort(name string) {
	g.status(name, resource.RolloutStatus{Phase: resource.RolloutAborted, Stage: 1})
}

// complete writes what a rollout changes, and that it is completed, as one.
func (g *globalSim) complete(name string) {
	g.t.Helper()
	v := g.store.View()
	r, _ := v.Get(rolloutKey(name))
	var ops []store.Op
	changes := g.rollout(name).Changes
	for i := range changes {
		had, created := changes[i].Key(), time.Time{}
		if old, ok := v.Get(had); ok {
			created = old.Meta().CreationTime
		}
		after := overlay.After(&changes[i], r.Meta(), created)
		if after == nil {
			ops = append(ops, store.Delete(had))
			continue
		}
		ops = append(ops, store.Op{Resource: after, KeepTimes: true})
	}
	g.status(name, resource.RolloutStatus{Phase: resource.RolloutCompleted, Stage: 2}, ops...)
}

// unfinished are the rollouts of the global that are not over, by name.
func (g *globalSim) unfinished() []string {
	var names []string
	for r := range g.store.View().List(resource.KindRollout, "") {
		if !g.rollout(r.Key().Name).Status.Phase.Finished() {
			names = append(names, r.Key().Name)
		}
	}
	return names
}

// unblocked leaves out operations on what unfinished rollouts change, unless they are
// forced where the store can be: not after a restore, which gives rollouts their Go type.
func (g *globalSim) unblocked(ops []store.Op, forced bool) []store.Op {
	for _, name := range g.unfinished() {
		r, _ := g.store.View().Get(rolloutKey(name))
		if _, holds := r.Spec().(*resource.Rollout); forced && !holds {
			continue
		}
		for _, c := range g.rollout(name).Changes {
			ops = slices.DeleteFunc(ops, func(op store.Op) bool { return op.Key == c.Key() })
		}
	}
	return ops
}

// drawRollout begins a rollout, or takes one to another stage or to its end.
func drawRollout(rt *rapid.T, g *globalSim) {
	unfinished := g.unfinished()
	if len(unfinished) == 0 || rapid.IntRange(0, 4).Draw(rt, "begin") == 0 {
		var changes []rolled
		for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(0, 11), 1, 4, rapid.ID[int]).Draw(rt, "changed") {
			key := policyKey(fmt.Sprintf("p-%d", n))
			if n%4 != 3 && len(g.unblocked([]store.Op{store.Delete(key)}, false)) == 1 {
				changes = append(changes, rolled{key, rapid.IntRange(0, 3).Draw(rt, "to")})
			}
		}
		name := fmt.Sprintf("r-%d", rapid.IntRange(0, 3).Draw(rt, "rollout"))
		if !slices.Contains(unfinished, name) {
			g.begin(name, rapid.SampledFrom([]resource.ZoneName{"east", "west", "north"}).Draw(rt, "first"), changes...)
		}
		return
	}
	name := rapid.SampledFrom(unfinished).Draw(rt, "rollout")
	status := g.rollout(name).Status
	switch rapid.SampledFrom([]string{"stage", "stage", "halt", "future", "complete", "abort", "delete"}).Draw(rt, "what") {
	case "stage":
		status.Phase, status.Stage, status.Reason = resource.RolloutProgressing, 2, ""
		status.Zones = rapid.SampledFrom([][]resource.ZoneName{{"east"}, {"west"}, {"east", "west"}, {"north"}}).Draw(rt, "zones")
		status.All = rapid.IntRange(0, 3).Draw(rt, "all") == 0
		g.status(name, status)
	case "halt":
		status.Phase = resource.RolloutHalted
		g.status(name, status)
	case "future":
		status.Reason = unusableReason
		g.status(name, status)
	case "complete":
		g.complete(name)
	case "abort":
		g.abort(name)
	case "delete":
		g.write(store.Delete(rolloutKey(name)))
	}
}

// rolledOut is the model of what rollouts change in a zone: descriptions of what it is to
// show, "" for what it is not to show.
func rolledOut(at *store.View, zone resource.ZoneName, usable func(*resource.Resource) bool) map[resource.Key]string {
	all := slices.Collect(at.List(resource.KindRollout, ""))
	slices.SortStableFunc(all, func(a, b *resource.Resource) int { return a.Meta().CreationTime.Compare(b.Meta().CreationTime) })
	shown := map[resource.Key]string{}
	for _, r := range all {
		built, _, err := resource.Build(r.Meta(), r.Canonical())
		if err != nil {
			panic(err)
		}
		spec := built.Spec().(*resource.Rollout)
		over := spec.Status.Phase == resource.RolloutAborted || spec.Status.Phase == resource.RolloutCompleted
		if over || !spec.Status.All && !slices.Contains(spec.Status.Zones, zone) || !usable(r) {
			continue
		}
		mine := map[resource.Key]string{}
		for _, c := range spec.Changes {
			key, version, created := c.Key(), uint64(0), r.Meta().CreationTime
			if had, ok := at.Get(key); ok {
				version, created = had.Meta().Version, had.Meta().CreationTime
			}
			if _, taken := shown[key]; taken || version != c.Replaces {
				mine = nil
				break
			}
			mine[key] = ""
			if c.Put != nil {
				m := r.Meta()
				mine[key] = fmt.Sprintf("%d@%d %s %s %s %s", version+1, m.Revision, created.UTC(), m.CreationTime.UTC(), m.Name, c.Put.Resource().Canonical())
			}
		}
		maps.Copy(shown, mine)
	}
	return shown
}

// checkBetween is I5 for rollouts: of each, a reader saw all or nothing in every state
// that was shown since the last check.
func (z *zoneSim) checkBetween() {
	z.t.Helper()
	for {
		batches, err := z.reader.Next(done())
		if errors.Is(err, store.ErrCompacted) {
			z.reader = z.store.Follow(z.store.View())
			continue
		}
		if err != nil {
			break
		}
		for _, b := range batches {
			v, err := z.store.ViewAt(b.Revision)
			require.NoError(z.t, err)
			z.checkWhole(v)
		}
	}
	z.checkWhole(z.store.View())
}

func (z *zoneSim) checkWhole(v *store.View) {
	z.t.Helper()
	shown := map[string]int{}
	for r := range v.All() {
		if name := r.Meta().Rollout; name != "" {
			shown[name]++
		}
	}
	for name, n := range shown {
		r, ok := v.Get(rolloutKey(name))
		require.True(z.t, ok, "a change of Rollout %s is shown without it", name)
		puts := 0
		for _, c := range r.Spec().(*resource.Rollout).Changes {
			if c.Put != nil {
				puts++
				continue
			}
			_, there := v.Get(c.Key())
			require.False(z.t, there, "%s, which Rollout %s deletes", c.Key(), name)
		}
		require.Equal(z.t, puts, n, "a part of Rollout %s is shown at revision %d", name, v.Revision())
	}
}

// outside is the digest of everything but rollouts.
func outside(v *store.View) store.Digest {
	return v.DigestOf(func(kind resource.Kind) bool { return syncedInTests(kind) && kind != resource.KindRollout })
}

// zoneStates are two zones of a global, of which one has a change first.
func zoneStates(t *testing.T) (g *globalSim, east, west *zoneSim) {
	g = newGlobalSim(t, 1<<20)
	east, west = newZoneSim(t, g, t.TempDir()), newNamedZoneSim(t, g, "west", t.TempDir())
	t.Cleanup(func() { east.close(); west.close() })
	g.write(put(policyKey("a"), `{}`), put(policyKey("b"), `{}`), put(policyKey("other"), `{}`))
	east.settle()
	west.settle()
	return g, east, west
}

// TestAbortEqualsNeverBegun: each zone shows the change or the state before, as the
// stage has it, and after the rollout was aborted everything is as it would be without.
func TestAbortEqualsNeverBegun(t *testing.T) {
	g, east, west := zoneStates(t)
	before := outside(g.store.View())
	name := g.begin("r", "east", rolled{policyKey("a"), 1}, rolled{policyKey("b"), 0}, rolled{policyKey("c"), 2})
	east.settle()
	west.settle()
	require.Equal(t, before, outside(g.store.View()), "the global keeps the state before")
	require.Equal(t, before, outside(west.store.View()))
	a, ok := east.store.View().Get(policyKey("a"))
	require.True(t, ok)
	require.Equal(t, string(content(1)), string(a.Canonical()))
	require.Equal(t, name, a.Meta().Rollout)
	_, ok = east.store.View().Get(policyKey("b"))
	require.False(t, ok)
	_, ok = east.store.View().Get(policyKey("c"))
	require.True(t, ok)

	g.status(name, resource.RolloutStatus{Phase: resource.RolloutProgressing, Stage: 2, All: true})
	east.settle()
	west.settle()
	require.Equal(t, outside(east.store.View()), outside(west.store.View()))
	require.NotEqual(t, before, outside(west.store.View()))

	g.abort(name)
	for _, z := range []*zoneSim{east, west} {
		z.settle()
		require.Equal(t, before, outside(z.store.View()))
		z.crash()
		require.Equal(t, before, outside(z.store.View()))
	}
}

// TestCompletionChangesNothing: a zone that has the change shows the same once it is
// completed, but for the revision and for whom it has it from; one that has it not gets
// all of it at once.
func TestCompletionChangesNothing(t *testing.T) {
	g, east, west := zoneStates(t)
	g.now = g.now.Add(time.Hour)
	name := g.begin("r", "east", rolled{policyKey("a"), 1}, rolled{policyKey("b"), 0}, rolled{policyKey("c"), 2})
	east.settle()
	west.settle()
	contents := func(z *zoneSim) map[resource.Key]string {
		all := map[resource.Key]string{}
		for r := range z.store.View().List(policyKind, "") {
			m := r.Meta()
			all[r.Key()] = fmt.Sprintf("%d %s %s %s", m.Version, m.CreationTime.UTC(), m.ModificationTime.UTC(), r.Canonical())
		}
		return all
	}
	had := contents(east)
	require.Len(t, had, 3)
	g.now = g.now.Add(time.Hour)
	g.complete(name)
	east.settle()
	require.Equal(t, had, contents(east))
	require.Equal(t, outside(g.store.View()), outside(east.store.View()))
	at := west.store.View().Revision()
	west.settle()
	require.Equal(t, had, contents(west))
	feed := west.store.FollowFrom(at)
	batches, err := feed.Next(done())
	require.NoError(t, err)
	require.Len(t, batches[0].Changes, 4, "with the rollout")
}

// TestRolloutsSurvive: what a rollout changes in a zone is a function of what the zone
// holds: it is the same after a crash, with the global gone, from a snapshot, and after
// the repair of a replica that had lost what is hidden.
func TestRolloutsSurvive(t *testing.T) {
	g, east, west := zoneStates(t)
	g.begin("r", "east", rolled{policyKey("a"), 1}, rolled{policyKey("b"), 0}, rolled{policyKey("c"), 2})
	east.settle()
	had := imageOf(east.store.View())
	east.crash()
	require.Equal(t, had, imageOf(east.store.View()), "without the global")
	fresh := newZoneSim(t, g, t.TempDir())
	require.Equal(t, syncv1.Mode_MODE_SNAPSHOT, reconnect(fresh))
	fresh.settle()
	require.Equal(t, had, imageOf(fresh.store.View()))
	fresh.close()

	m := east.replica.machine
	a := m.held[policyKey("a")]
	m.count(policyKey("a"), a.sum, store.Digest{})
	a.sum = store.Digest{}
	east.connect()
	for range 3 {
		g.now = g.now.Add(time.Second)
		for east.send(100) || east.receive(100) {
		}
	}
	require.NotZero(t, east.replica.Status().Repairs)
	require.Equal(t, had, imageOf(east.store.View()), "after a repair")
	g.restore(g.store.View())
	east.acceptNow()
	east.settle()
	require.Len(t, imageOf(east.store.View()), len(had), "in the next incarnation")
	west.settle()
}

// TestRolloutsHideNoWrites: a change that was made for another version of a resource than
// the zone has is not shown, nor is any other change of its rollout, and what is below
// it follows every write.
func TestRolloutsHideNoWrites(t *testing.T) {
	g, east, _ := zoneStates(t)
	name := g.begin("r", "east", rolled{policyKey("a"), 1}, rolled{policyKey("b"), 0}, rolled{policyKey("c"), 2})
	east.settle()
	g.write(put(policyKey("a"), `{"late":1}`))
	east.settle()
	require.Equal(t, outside(g.store.View()), outside(east.store.View()))
	a, _ := east.store.View().Get(policyKey("a"))
	require.Equal(t, `{"late":1}`, string(a.Canonical()))
	g.abort(name)
	east.settle()
	require.Equal(t, outside(g.store.View()), outside(east.store.View()))
}

// TestRolloutsInQuarantine: a zone that cannot read a rollout keeps what it shows, and
// says so; once the change was completed, it follows the global again.
func TestRolloutsInQuarantine(t *testing.T) {
	g, east, _ := zoneStates(t)
	old := newNamedZoneSim(t, g, "north", t.TempDir())
	old.decode = decodeBefore
	old.crash()
	defer func() { old.close() }()
	name := g.begin("r", "east", rolled{policyKey("a"), 1}, rolled{policyKey("c"), 2})
	g.status(name, resource.RolloutStatus{Phase: resource.RolloutProgressing, Stage: 2, All: true})
	east.settle()
	old.settle()
	require.Equal(t, outside(g.store.View()), outside(old.store.View()), "an older release has the state before")
	require.Contains(t, old.nacks, rolloutKey(name))

	g.status(name, resource.RolloutStatus{Phase: resource.RolloutProgressing, Stage: 2, All: true, Reason: unusableReason})
	east.settle()
	require.Contains(t, east.nacks, rolloutKey(name))
	require.NotEqual(t, outside(g.store.View()), outside(east.store.View()), "the last usable status holds")
	spec := *g.rollout(name)
	g.complete(name)
	spec.Status = resource.RolloutStatus{Phase: resource.RolloutCompleted, Stage: 2, Reason: unusableReason}
	g.write(putRollout(t, name, &spec))
	g.write(put(policyKey("a"), `{"after":1}`))
	east.settle()
	old.settle()
	require.Equal(t, outside(g.store.View()), outside(east.store.View()))
	require.Equal(t, outside(g.store.View()), outside(old.store.View()))
}

// TestHiddenInQuarantine: of a resource that is hidden, newer bytes that cannot be used
// count as received.
func TestHiddenInQuarantine(t *testing.T) {
	g, east, _ := zoneStates(t)
	g.write(put(policyKey("a"), unusable))
	name := g.begin("r", "east", rolled{policyKey("a"), 1})
	east.settle()
	require.Contains(t, east.nacks, policyKey("a"))
	a, _ := east.store.View().Get(policyKey("a"))
	require.Equal(t, string(content(1)), string(a.Canonical()))
	east.crash()
	a, _ = east.store.View().Get(policyKey("a"))
	require.Equal(t, string(content(1)), string(a.Canonical()))
	g.complete(name)
	east.settle()
	require.Empty(t, east.nacks)
	require.Equal(t, outside(g.store.View()), outside(east.store.View()))
}

// TestRolloutsEqualTheirModel: with any rollouts among writes, each zone shows what the
// model does at every revision that it reaches, also where the global wrote what it keeps
// from being written, and after crashes, other releases, snapshots and restores.
func TestRolloutsEqualTheirModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := newGlobalSim(rt, rapid.SampledFrom([]int{600, 1 << 20}).Draw(rt, "feed bytes"))
		zones := []*zoneSim{newZoneSim(rt, g, t.TempDir()), newNamedZoneSim(rt, g, "west", t.TempDir())}
		var began []string
		for i := range 4 { // something to change
			g.write(put(policyKey(fmt.Sprintf("p-%d", i)), `{}`))
		}
		for range rapid.IntRange(5, 40).Draw(rt, "steps") {
			z := rapid.SampledFrom(zones).Draw(rt, "zone")
			switch rapid.SampledFrom([]string{"write", "rollout", "rollout", "rollout", "deliver", "deliver", "deliver", "crash", "cut", "upgrade", "restore"}).Draw(rt, "step") {
			case "write":
				if ops := g.unblocked(drawOps(rt), rapid.IntRange(0, 9).Draw(rt, "forced") == 0); len(ops) > 0 {
					g.write(ops...)
				}
			case "rollout":
				drawRollout(rt, g)
				began = g.unfinished()
			case "deliver":
				for z.ended != nil {
					z.connect()
				}
				for z.send(100) || z.receive(rapid.IntRange(1, 100).Draw(rt, "frames")) {
				}
			case "crash":
				z.crash()
			case "cut":
				z.cut()
			case "upgrade":
				z.decode = rapid.SampledFrom([]Decoder{decodeOld, decodeNew, decodeBefore}).Draw(rt, "decoder")
				z.crash()
			case "restore":
				g.restore(g.store.View())
				for _, z := range zones {
					z.acceptNow()
				}
			}
		}
		for _, name := range began {
			if rapid.Bool().Draw(rt, "abort") {
				g.abort(name)
			}
		}
		for _, z := range zones {
			z.settle()
			z.check()
			if len(g.unfinished()) == 0 && len(z.nacks) == 0 {
				require.Equal(rt, outside(g.store.View()), outside(z.store.View()))
			}
			z.crash()
			z.close()
		}
	})
}
