package zonesync

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/store"
)

// TestForeignCluster: a zone never takes the state of another global.
func TestForeignCluster(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	g.write(put(policyKey("a"), `{}`))
	z.settle()
	served := imageOf(z.store.View())

	other := newGlobalSim(t, 1<<20)
	e := store.Epoch{ClusterID: "c2", Incarnation: 5, Random: 1}
	other.apply(store.Txn{SetEpoch: &e})
	z.g = other
	z.connect()
	z.send(10)
	require.Equal(t, syncv1.Mode_MODE_UNSPECIFIED, lastMode(z))
	require.Len(t, z.down, 1, "nothing follows")
	_, _, err := z.replica.machine.receive(z.down[0], g.now)
	require.ErrorIs(t, err, ErrForeignCluster)
	require.ErrorContains(t, err, "c1")
	require.ErrorContains(t, err, "c2")
	require.Equal(t, served, imageOf(z.store.View()))
	z.g = g
}

// TestOlderIncarnationWaitsForOperator: a global brought back from an old disk
// is not followed, until the operator says so.
func TestOlderIncarnationWaitsForOperator(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	g.restore(g.store.View())
	g.write(put(policyKey("a"), `{}`))
	z.settle()
	old := newGlobalSim(t, 1<<20)
	maps.Copy(old.past, g.past)
	z.g, z.pub = old, nil
	z.connect()
	z.send(10)
	require.Empty(t, z.down, "it may yet apply what began the zone's incarnation")
	old.now = old.now.Add(z.pacing.behindGrace)
	z.send(10)
	_, _, err := z.replica.machine.receive(z.down[0], old.now)
	require.ErrorIs(t, err, ErrOlderIncarnation)

	z.replica.machine.acceptWipe = Wipe{Incarnation: old.store.View().Epoch().Incarnation, Revision: old.store.Revision()}
	z.connect()
	z.send(1)
	old.now = old.now.Add(z.pacing.behindGrace)
	z.send(10)
	_, _, err = z.replica.machine.receive(z.down[0], old.now)
	require.ErrorIs(t, err, ErrOlderIncarnation)
	z.settle()
	require.Equal(t, old.store.View().Epoch(), z.store.View().Epoch())
	require.Empty(t, imageOf(z.store.View()))
}

// TestALateServerLearnsTheIncarnation: a zone that has followed a restore to its
// end comes to a server that has yet to apply it. The server waits, and then
// serves the zone; it does not take the zone for one of another history.
func TestALateServerLearnsTheIncarnation(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	g.write(put(policyKey("a"), `{}`))
	late := newFeed(syncedInTests, 1<<20)
	late.reset(g.store.View())
	g.restore(g.store.View())
	z.settle()

	z.connect()
	z.pub.feed = late
	z.send(10)
	require.Empty(t, z.down)
	require.NoError(t, z.ended)
	late.reset(g.store.View())
	z.send(1)
	require.NoError(t, z.ended)
	require.Equal(t, syncv1.Mode_MODE_RESUME, lastMode(z))
}

// TestOfTwoHistoriesTheOperatorChooses: two globals that were begun from one backup
// have the same incarnation. A zone stays with the one that it has followed, and
// goes to the other when the operator names that one, and then stays there.
func TestOfTwoHistoriesTheOperatorChooses(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	g.write(put(policyKey("a"), `{}`))
	saved := g.store.View()
	begin := func(random uint64, name string) *globalSim {
		other := newGlobalSim(t, 1<<20)
		other.now = g.now
		e := other.store.View().Epoch()
		e.Random = random
		other.apply(store.Txn{SetEpoch: &e})
		other.restore(saved)
		other.write(put(policyKey(name), `{}`))
		for e, past := range g.past {
			if other.past[e] == nil {
				other.past[e] = past
			}
		}
		return other
	}
	one, two := begin(50, "one"), begin(60, "two")
	maps.Copy(one.past, two.past)
	maps.Copy(two.past, one.past)
	require.Equal(t, one.store.View().Epoch().Incarnation, two.store.View().Epoch().Incarnation)

	refused := func(by *globalSim) {
		t.Helper()
		z.g = by
		z.connect()
		z.send(10)
		require.Equal(t, syncv1.Mode_MODE_UNSPECIFIED, lastMode(z), "nothing is sent")
		_, _, err := z.replica.machine.receive(z.down[0], by.now)
		require.ErrorIs(t, err, ErrOtherHistory)
		at := Wipe{Incarnation: 2, Revision: by.store.Revision(), History: by.store.View().Epoch().Random}
		require.ErrorContains(t, err, "--accept-wipe "+at.String())
		parsed, err := ParseWipe(at.String())
		require.NoError(t, err)
		require.Equal(t, at, parsed)
	}
	z.g = one
	z.settle()
	served := imageOf(z.store.View())
	refused(two)
	for _, w := range []Wipe{{Incarnation: 2, Revision: 1}, {Incarnation: 2, Revision: 1, History: 1}} {
		z.replica.AcceptWipe(w) // names no history, or another
		z.replica.takeAccept()
		refused(two)
		refused(two)
	}
	require.Equal(t, served, imageOf(z.store.View()))

	z.replica.AcceptWipe(Wipe{Incarnation: 2, Revision: 1, History: two.store.View().Epoch().Random})
	z.replica.takeAccept()
	refused(two) // the next connection takes it
	z.settle()
	require.Equal(t, imageOf(two.store.View()), imageOf(z.store.View()))
	refused(one)
	z.crash()
	refused(one)
	z.g = two
	z.settle()
}

// TestZoneFollowsARebuiltGlobal: a global that was lost and built anew from a
// backup stands at a lower revision than its zones, and its history went another
// way. A zone takes its state over, and what it had of the lost history is gone.
func TestZoneFollowsARebuiltGlobal(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	for i := range 30 {
		g.write(put(policyKey(fmt.Sprintf("p-%d", i)), `{"n":1}`))
	}
	saved := g.store.View()
	g.now = g.now.Add(time.Hour)
	g.write(put(policyKey("p-1"), `{"n":2}`), store.Delete(policyKey("p-2")), put(policyKey("lost"), `{}`))
	z.settle()
	before := z.store.View()

	rebuilt := newGlobalSim(t, 1<<20)
	rebuilt.now = g.now.Add(time.Hour)
	maps.Copy(rebuilt.past, g.past)
	rebuilt.restore(saved)
	require.Less(t, rebuilt.applied, before.Revision())
	feed := z.store.Follow(before)
	z.cut()
	z.g = rebuilt
	z.settle()
	require.Equal(t, imageOf(rebuilt.store.View()), imageOf(z.store.View()))
	require.Equal(t, rebuilt.store.View().Epoch(), z.store.View().Epoch())
	require.Less(t, z.store.Revision(), before.Revision())
	_, err := feed.Next(t.Context())
	require.ErrorIs(t, err, store.ErrCompacted, "readers of the replica compare")

	// The same again after a restart of the zone, and what comes next arrives.
	z.crash()
	rebuilt.write(put(policyKey("p-1"), `{"n":2}`))
	z.settle()
	require.Equal(t, imageOf(rebuilt.store.View()), imageOf(z.store.View()))
}

// TestARevisionIsOfItsEpoch: a global that was rebuilt, and has since written past
// the revision that a zone has of the lost history, does not take the zone for one
// that lacks only what was written since.
func TestARevisionIsOfItsEpoch(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	for i := range 10 {
		g.write(put(policyKey(fmt.Sprintf("p-%d", i)), `{"n":1}`))
	}
	saved := g.store.View()
	g.write(put(policyKey("p-1"), `{"n":2}`), store.Delete(policyKey("p-2")), put(policyKey("lost"), `{}`))
	for i := range 10 {
		g.write(put(policyKey("p-3"), fmt.Sprintf(`{"n":%d}`, i)))
	}
	z.settle()

	rebuilt := newGlobalSim(t, 1<<20)
	maps.Copy(rebuilt.past, g.past)
	rebuilt.restore(saved)
	require.Less(t, rebuilt.applied, z.store.Revision())
	for i := 0; rebuilt.applied <= z.store.Revision(); i++ {
		rebuilt.write(put(policyKey("p-4"), fmt.Sprintf(`{"m":%d}`, i)))
	}
	require.LessOrEqual(t, rebuilt.feed.position().base, z.store.Revision(), "its feed goes back to before that revision")
	z.cut()
	z.g = rebuilt
	require.Equal(t, syncv1.Mode_MODE_DIFF, reconnect(z))
	z.settle()
	require.Equal(t, imageOf(rebuilt.store.View()), imageOf(z.store.View()))
}

// TestAskPrefersTheEpoch: of a zone's instances, one that has adopted the
// global's history is asked, whatever revision another one had before it.
func TestAskPrefersTheEpoch(t *testing.T) {
	now, before := store.Epoch{Incarnation: 2}, store.Epoch{Incarnation: 1}
	old, fresh, further := &conn{}, &conn{}, &conn{}
	r := newRegistry()
	r.zones["east"] = map[string]*instance{
		"gone": {epoch: now, acked: 99}, "old": {conn: old, epoch: before, acked: 5000},
	}
	require.Same(t, old, r.best("east", now, time.Time{}), "better than none")
	r.zones["east"]["fresh"] = &instance{conn: fresh, epoch: now, acked: 7}
	require.Same(t, fresh, r.best("east", now, time.Time{}))
	r.zones["east"]["further"] = &instance{conn: further, epoch: now, acked: 8}
	require.Same(t, further, r.best("east", now, time.Time{}))
	require.Nil(t, r.best("west", now, time.Time{}))
}
