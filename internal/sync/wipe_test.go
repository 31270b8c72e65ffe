package zonesync

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/store"
)

// TestWipeGuard is I10: an emptied global does not empty its zones unasked.
func TestWipeGuard(t *testing.T) {
	for _, size := range []int{2, 9, 150} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			g := newGlobalSim(t, 1)
			z := newZoneSim(t, g, t.TempDir())
			defer func() { z.close() }()
			empty := g.store.View()
			var ops []store.Op
			for i := range size {
				ops = append(ops, put(policyKey(fmt.Sprintf("p-%d", i)), `{}`))
			}
			g.write(ops...)
			z.settle()

			g.restore(empty)
			exchange := func() {
				z.connect()
				for z.send(100) || z.receive(100) {
				}
				require.NoError(t, z.ended)
			}
			exchange()
			require.Len(t, imageOf(z.store.View()), size, "held")
			at := Wipe{Incarnation: g.store.View().Epoch().Incarnation, Revision: g.store.Revision()}
			require.Contains(t, z.replica.Status().Problem, "--accept-wipe "+at.String())
			require.Equal(t, replicaHeld, z.replica.machine.phase)

			g.now = g.now.Add(heldRetry)
			require.True(t, z.replica.machine.tick(g.now), "asks again")

			for _, other := range []Wipe{{Incarnation: at.Incarnation - 1, Revision: at.Revision}, {Incarnation: at.Incarnation, Revision: at.Revision + 1}, {Incarnation: at.Incarnation + 1, Revision: at.Revision}} {
				z.replica.AcceptWipe(other)
				z.replica.takeAccept()
				exchange()
				require.Len(t, imageOf(z.store.View()), size, "held: %s is not %s", other, at)
			}
			z.replica.AcceptWipe(at)
			z.replica.takeAccept()
			require.True(t, z.replica.machine.tick(g.now))
			z.settle()
			require.Empty(t, imageOf(z.store.View()))
			require.Zero(t, z.replica.machine.acceptWipe, "once")

			// A flag that is left in place accepts nothing that comes later.
			g.write(ops...)
			z.settle()
			z.replica.AcceptWipe(at)
			z.replica.takeAccept()
			g.restore(empty)
			exchange()
			require.Len(t, imageOf(z.store.View()), size, "held again")
		})
	}
}

func TestWhatTheWipeGuardHolds(t *testing.T) {
	for _, c := range []struct {
		removed, held int
		wipe          bool
	}{
		{0, 0, false},
		{1, 1, false},
		{1, 2, false},
		{2, 2, true},
		{2, 5, false},
		{2, 4, true},
		{49, 100, false},
		{50, 100, true},
		{100, 400, false},
		{101, 505, false},
		{101, 504, true},
		{1000, 4000, true},
		{1000, 6000, false},
	} {
		require.Equal(t, c.wipe, wipes(c.removed, c.held, false), "%d of %d", c.removed, c.held)
		require.Equal(t, c.wipe && c.removed > wipeFloor, wipes(c.removed, c.held, true), "%d of %d", c.removed, c.held)
	}
}

func TestParseWipe(t *testing.T) {
	got, err := ParseWipe("2/1841")
	require.NoError(t, err)
	require.Equal(t, Wipe{Incarnation: 2, Revision: 1841}, got)
	for _, bad := range []string{"", "1841", "2/", "/1", "2/0", "02/1", "2/1 ", "2/1x", "-1/2", "true", "2-/5", "2-0/5", "2-0a/5", "2-A/5", "2-1-1/5"} {
		_, err := ParseWipe(bad)
		require.Error(t, err, bad)
	}
}
