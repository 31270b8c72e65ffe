package consensus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// keepTimes is a write that only newer releases can apply.
func keepTimes(s *server, t *testing.T, name string) error {
	t.Helper()
	op := put(name, "1")
	op.KeepTimes = true
	_, err := s.node.Propose(t.Context(), store.Txn{Ops: []store.Op{op}})
	return err
}

// TestNewEntriesWaitForTheLastUpgrade: servers are upgraded one after the other, in
// either order. What an older one could not apply is refused until all are, with
// the name of the one that is missing, and ends no server; other writes continue.
func TestNewEntriesWaitForTheLastUpgrade(t *testing.T) {
	for name, leaderFirst := range map[string]bool{"the leader is upgraded first": true, "the leader is upgraded last": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				old := map[string]bool{"a": true, "b": true, "c": true}
				c.tune = func(s *server, cfg *consensus.Config) {
					if old[s.name] {
						cfg.LogFormat = 1
					}
				}
				c.three()
				leader := c.leader(c.others(nil)...)
				order := c.others(leader)
				if leaderFirst {
					order = append([]*server{leader}, order...)
				} else {
					order = append(order, leader)
				}
				for i, s := range order {
					for _, at := range c.running() {
						err := keepTimes(at, t, "new")
						require.True(t, rpcerr.HasReason(err, consensus.ReasonMemberTooOld), "%d upgraded, asked %s: %v", i, at.name, err)
						require.Equal(t, rpcerr.Unsupported, rpcerr.CodeOf(err))
					}
					order[(i+1)%3].write(t, "k", "1")
					c.stop(s)
					delete(old, s.name)
					c.open(s, nil)
					c.ready(s)
				}
				c.pass(2 * time.Second) // what the members have said is asked again
				require.NoError(t, keepTimes(order[0], t, "new"))
				for _, s := range order {
					require.NoError(t, s.died())
					require.Equal(t, "1", s.read(t, "new"))
				}

				// An older release cannot be made a member any more.
				c.tune = func(s *server, cfg *consensus.Config) {
					if s.name == "d" {
						cfg.LogFormat = 1
					}
				}
				d := c.start("d", joining("a", "b", "c"))
				c.eventually("it is refused", func() bool { return d.died() != nil })
				require.ErrorContains(t, d.died(), "cannot read what the servers of this cluster write")
			})
		})
	}
}

// TestAMemberThatIsNotKnownBlocksNewEntries: it may be of an older release.
func TestAMemberThatIsNotKnownBlocksNewEntries(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		leader := c.leader(c.others(nil)...)
		down := c.others(leader)[0]
		c.crash(down)
		err := keepTimes(leader, t, "new")
		require.True(t, rpcerr.HasReason(err, consensus.ReasonMemberTooOld), "%v", err)
		require.ErrorContains(t, err, down.name)
		c.open(down, nil)
		c.ready(down)
		require.NoError(t, keepTimes(leader, t, "new"))
		c.crash(down)
		c.pass(2 * time.Second)
		require.NoError(t, keepTimes(leader, t, "another"), "it said what it knows before it went away")
	})
}

// TestFormatsInUseNeedNoAnswer: what was begun by an entry of a format continues under a
// leader that has never asked a member which is down.
func TestFormatsInUseNeedNoAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		first := c.leader(c.others(nil)...)
		require.NoError(t, keepTimes(first, t, "new"))
		c.crash(first)
		require.NoError(t, keepTimes(c.leader(c.others(first)...), t, "another"))
	})
}

// TestFormatsOfTheLogOutliveARestart: an entry that a snapshot covers is still in the
// log, and may be sent to a new member.
func TestFormatsOfTheLogOutliveARestart(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a := c.start("a", nil)
		c.ready(a)
		require.NoError(t, keepTimes(a, t, "new"))
		require.NoError(t, a.node.Snapshot())
		first, _ := a.disk.Entries()
		require.EqualValues(t, 1, first)
		c.stop(a)
		c.open(a, nil)
		c.ready(a)
		b := c.start("b", func(cfg *consensus.Config) {
			joining("a")(cfg)
			cfg.LogFormat = 1
		})
		c.eventually("it is refused", func() bool { return b.died() != nil })
		require.ErrorContains(t, b.died(), "cannot read what the servers of this cluster write")
		require.NoError(t, a.died())
	})
}

// TestAnOlderReleaseEndsCleanly: a server that is started again with a release that
// cannot apply what was written meanwhile ends with what to do, without having
// applied anything after that; so does one that finds it in its log. The release
// that can apply it continues where they ended, and nothing is lost.
func TestAnOlderReleaseEndsCleanly(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		old := map[string]bool{}
		c.tune = func(s *server, cfg *consensus.Config) {
			if old[s.name] {
				cfg.LogFormat = 1
			}
		}
		c.three()
		leader := c.leader(c.others(nil)...)
		back, other := c.others(leader)[0], c.others(leader)[1]
		restart := func(s *server, older bool) {
			c.stop(s)
			old[s.name] = older
			c.open(s, nil)
		}
		restart(other, true)
		c.ready(other)
		require.Error(t, keepTimes(leader, t, "new"), "one is too old; the others have said what they know")
		restart(other, false)
		c.ready(other)
		back.write(t, "k", "1")
		c.stop(back)
		require.NoError(t, keepTimes(leader, t, "new"))
		leader.write(t, "k", "2")

		old[back.name] = true
		c.open(back, nil)
		c.eventually("it cannot apply what it is sent", func() bool { return back.died() != nil })
		requireNewer(t, back.died())
		require.Less(t, back.store.Revision(), leader.store.Revision())
		require.Error(t, back.node.Snapshot(), "it would say that all was applied")
		view := back.store.View()
		c.pass(10 * time.Second)
		require.Equal(t, view.Revision(), back.store.Revision(), "nothing is applied after that")
		c.stop(back)

		_, err := consensus.Open(t.Context(), c.config(back), store.New(store.DefaultOptions()))
		requireNewer(t, err)

		old[back.name] = false
		c.open(back, nil)
		c.ready(back)
		require.Equal(t, "1", back.read(t, "new"))
		require.Equal(t, "2", back.read(t, "k"))
		require.NoError(t, leader.died())
		require.NoError(t, other.died())
	})
}

// requireNewer requires the error of an older release, which names what it cannot
// apply and what to do.
func requireNewer(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, consensus.ErrNewerLog)
	require.Regexp(t, `entry \d+ has format 2, .* applies formats up to 1; start a release that applies format 2 .* nothing is changed or lost`, err.Error())
}
