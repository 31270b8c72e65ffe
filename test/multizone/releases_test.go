//go:build multizone

package multizone

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// keepTimes applies a mesh with times of its own, which only the newer of two
// releases can apply.
func (p *process) keepTimes(mesh string) result {
	p.t.Helper()
	return p.commandWith(fmt.Sprintf("{type: Mesh, name: %s, creationTime: '2020-01-01T00:00:00Z'}", mesh), "apply", "--keep-times", "-f", "-")
}

// restartAs restarts a server as the older release or the newer one.
func (p *process) restartAs(older bool, all []*process) {
	p.t.Helper()
	require.Zero(p.t, p.stop(), p.log.String())
	p.older = older
	p.start().ready()
	p.awaitVoters("one", "two", "three")
	for _, s := range all {
		require.True(p.t, s.running(), "%s ended: %s", s.name, tail(s.log.String(), 20))
	}
}

// TestTwoReleasesInOneCluster: servers of two releases, in processes of two builds,
// are upgraded one after the other in either order, with a step back on the way. No
// server ends, all take and show writes all the time, and what only the newer
// release can apply is refused until the last upgrade, with the name of the server
// that needs it. After that a step back ends that one server, with what to do, and
// loses nothing.
func TestTwoReleasesInOneCluster(t *testing.T) {
	for name, leaderFirst := range map[string]bool{"the leader is upgraded first": true, "the leader is upgraded last": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := newProcess(t, "meridian-global", "one", loopback("one")...)
			first.older = true
			first.start().ready()
			all := []*process{first, newServer(t, first, "two"), newServer(t, first, "three")}
			for _, p := range all[1:] {
				p.older = true
				p.start()
			}
			for _, p := range all[1:] {
				p.ready()
			}
			first.awaitVoters("one", "two", "three")
			leader := first.leader(all...)
			order := slices.DeleteFunc(slices.Clone(all), func(p *process) bool { return p == leader })
			if leaderFirst {
				order = slices.Insert(order, 0, leader)
			} else {
				order = append(order, leader)
			}
			refused := func(step string) {
				for _, at := range all {
					r := at.keepTimes("kept")
					require.NotZero(t, r.code, "%s, asked %s", step, at.name)
					require.Contains(t, r.stderr, "cannot apply", "%s, asked %s", step, at.name)
				}
				writesAndReads(t, order[len(step)%3], all, step)
			}
			refused("before")
			order[0].restartAs(false, all)
			refused("one-upgraded")
			order[1].restartAs(false, all)
			refused("two-upgraded")
			r := order[0].leader(all...).keepTimes("kept")
			if !order[0].leader(all...).older {
				require.Contains(t, r.stderr, order[2].name, "the server that needs the upgrade is named")
			}
			order[1].restartAs(true, all)
			refused("one-step-back")
			order[1].restartAs(false, all)
			order[2].restartAs(false, all)
			order[2].await("what only the newer release applies to be accepted", func() bool { return order[2].keepTimes("kept").code == 0 })
			for _, p := range all {
				require.Contains(t, p.must("get", "mesh", "kept", "-o", "yaml"), "2020-01-01T00:00:00Z", p.name)
			}

			// A step back now is one too many.
			back := order[0]
			require.Zero(t, back.stop())
			back.older = true
			back.start()
			require.NotZero(t, back.wait())
			require.Contains(t, back.log.String(), "the log was written by a newer release")
			require.Regexp(t, "start a release that applies format [23]", back.log.String())
			require.NotContains(t, back.log.String(), "goroutine ")
			writesAndReads(t, order[1], order[1:], "without-it")
			back.older = false
			back.start().ready()
			for _, mesh := range []string{"before", "one-upgraded", "two-upgraded", "one-step-back", "kept", "without-it"} {
				require.Contains(t, back.must("get", "meshes", "-o", "name")+"\n", "Mesh/"+mesh+"\n")
			}
		})
	}
}
