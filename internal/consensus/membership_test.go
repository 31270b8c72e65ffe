package consensus_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/gossip"
	"meridian/internal/rpcerr"
)

// TestGrowAndShrink: one server becomes three and five, and three again, and
// nothing that was acknowledged is lost on the way.
func TestGrowAndShrink(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *cluster) {
		c.write("a", "k")
		c.grow("b", "c")
		c.voting("a", "b", "c")
		c.write("b", "k")
		c.grow("d", "e")
		c.voting("a", "b", "c", "d", "e")
		c.write("e", "k")
		c.check("a", "b", "c", "d", "e")

		err := c.servers["b"].node.Remove(t.Context(), "d", false)
		require.True(t, rpcerr.HasReason(err, consensus.ReasonIsAlive), "%v", err)
		require.NoError(t, c.servers["b"].node.Remove(t.Context(), "d", true), "asked of any server")
		c.eventually("d does not find out", func() bool { return errors.Is(c.servers["d"].died(), consensus.ErrRemoved) })
		c.stop(c.servers["d"])
		c.crash(c.servers["e"])
		c.eventually("e is not missed", func() bool { return c.leading().node.Remove(t.Context(), "e", false) == nil })
		c.voting("a", "b", "c")
		c.write("c", "k")
		c.check("a", "b", "c")

		err = c.servers["c"].node.Remove(t.Context(), "e", true)
		require.True(t, rpcerr.HasReason(err, consensus.ReasonUnknownServer), "%v", err)
	})
}

// TestRemoveTheLeader: it transfers leadership first, whichever server is asked,
// and a cluster shrinks to one server, which stays.
func TestRemoveTheLeader(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *cluster) {
		c.grow("b", "c")
		for _, by := range []string{"leader", "another"} {
			leader := c.leading()
			asked := leader
			for _, s := range c.running() {
				if by == "another" && s != leader {
					asked = s
				}
			}
			require.NoError(t, asked.node.Remove(t.Context(), leader.name, true), by)
			c.eventually("it does not find out", func() bool { return errors.Is(leader.died(), consensus.ErrRemoved) })
			c.stop(leader)
			c.write(c.leading().name, "k")
		}
		last := c.leading()
		err := last.node.Remove(t.Context(), last.name, true)
		require.True(t, rpcerr.HasReason(err, consensus.ReasonLastVoter), "%v", err)
		c.write(last.name, "k")
		c.check(last.name)
	})
}

// TestQuorumIsKept: no force removes a server without which nothing could be
// decided any more.
func TestQuorumIsKept(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *cluster) {
		c.grow("b", "c")
		leader := c.leading()
		var others []string
		for _, s := range c.running() {
			if s != leader {
				others = append(others, s.name)
			}
		}
		c.crash(c.servers[others[0]])
		var err error
		c.eventually("the loss is not noticed", func() bool {
			err = leader.node.Remove(t.Context(), others[0], false)
			return !rpcerr.HasReason(err, consensus.ReasonIsAlive)
		})
		require.NoError(t, err)
		c.start(others[0], nil)
		c.eventually("a removed server rejoins by itself", func() bool {
			return errors.Is(c.servers[others[0]].died(), consensus.ErrRemoved)
		})
		c.stop(c.servers[others[0]])
		c.servers[others[0]].loseDisk()
		c.grow(others[0])
		c.voting("a", "b", "c")
		c.crash(c.servers[others[0]])
		c.eventually("the loss is not noticed", func() bool {
			err = c.leading().node.Remove(t.Context(), others[1], true)
			return rpcerr.HasReason(err, consensus.ReasonWouldLoseQuorum)
		})
		c.write(others[1], "k")
	})
}

// TestPromotionTakesTime: a new server gets its vote once it has been up and
// close to the end of the log for the whole of the stabilization time, whichever
// server leads meanwhile.
func TestPromotionTakesTime(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *cluster) {
		const stable = 10 * time.Second
		c.grow("b", "c")
		begun := time.Now()
		c.start("d", nil)
		c.ready(c.named("d")...)
		c.during(stable/2, "d has a vote already", func() bool { return !c.hasVote("d") })
		// The next leader has not watched it for long enough.
		_, err := c.leading().node.TransferLeadership(t.Context(), "")
		require.NoError(t, err)
		moved := time.Now()
		c.eventually("d gets no vote", func() bool { return c.hasVote("d") })
		require.GreaterOrEqual(t, time.Since(begun), stable)
		require.GreaterOrEqual(t, time.Since(moved), stable)

		// A server that the leader does not reach is not promoted, ever.
		c.start("e", nil)
		c.eventually("e is not added", func() bool { _, joiners := c.members(); return slices.Contains(joiners, "e") })
		c.network.Isolate("e", "a", "b", "c", "d")
		c.during(3*stable, "e has a vote already", func() bool { return !c.hasVote("e") })
		c.network.HealAll()
		healed := time.Now()
		c.eventually("e gets no vote", func() bool { return c.hasVote("e") })
		require.GreaterOrEqual(t, time.Since(healed), stable)
		c.check("a", "b", "c", "d", "e")
	})
}

// TestPromotionOfWhoGotASnapshot: the log of a new server is empty until
// something is written, when all it needed came as a snapshot.
func TestPromotionOfWhoGotASnapshot(t *testing.T) {
	short := func(_ *server, cfg *consensus.Config) {
		cfg.Snapshots = consensus.Snapshots{Threshold: 2, Interval: 5 * time.Millisecond, TrailingLogs: 1, Retain: 1}
	}
	inBubble(t, short, func(t *testing.T, c *cluster) {
		for range 20 {
			c.write("a", "k")
		}
		c.start("b", nil)
		c.voting("a", "b")
		c.check("a", "b")
	})
}

func (c *cluster) hasVote(name string) bool {
	voters, _ := c.members()
	return slices.Contains(voters, name)
}

// TestJoinersDoNotVote: servers without a vote neither lead nor help another to.
func TestJoinersDoNotVote(t *testing.T) {
	inBubble(t, func(s *server, cfg *consensus.Config) {
		if s.name > "c" {
			cfg.Autopilot.Stabilization = time.Hour
		}
	}, func(t *testing.T, c *cluster) {
		c.grow("b", "c")
		c.leads("c") // d is judged by the leader, so by c
		c.start("d", nil)
		c.start("e", nil)
		c.ready(c.named("d", "e")...)
		require.False(t, c.hasVote("d") || c.hasVote("e"))
		c.write("d", "k")
		c.crash(c.servers["a"])
		c.crash(c.servers["c"])
		c.during(30*time.Second, "a server leads", func() bool {
			return !c.servers["b"].node.IsLeader() && !c.servers["d"].node.IsLeader() && !c.servers["e"].node.IsLeader()
		})
		c.start("a", nil)
		c.write("e", "k")
		c.check("a", "b", "d", "e")
	})
}

// TestLostDisk: a voter that comes back empty under its name gets its vote back
// as a new server does, and nothing is lost.
func TestLostDisk(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *cluster) {
		c.grow("b", "c")
		c.write("a", "k")
		lost := "b"
		if c.leading().name == lost {
			lost = "c"
		}
		c.crash(c.servers[lost])
		c.servers[lost].loseDisk()
		c.start(lost, nil)
		c.eventually("its vote is not taken away", func() bool { return !c.hasVote(lost) })
		c.write("a", "k")
		c.voting("a", "b", "c")
		c.ready(c.named(lost)...)
		c.check("a", "b", "c")
	})
}

// TestAVoteWithoutItsLogDoesNotCount: b and the leader acknowledged what c has
// never seen. With b's disk and the leader gone, c must not come to lead with
// the vote of an empty b.
func TestAVoteWithoutItsLogDoesNotCount(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *cluster) {
		// As servers that join by a bundle do, they know their cluster.
		id := c.servers["a"].node.ClusterID()
		c.also(func(_ *server, cfg *consensus.Config) { cfg.ClusterID = id })
		c.grow("b", "c")
		c.leads("a")
		c.network.Isolate("c", "a", "b")
		c.write("a", "k")
		c.crash(c.servers["b"])
		c.crash(c.servers["a"])
		c.network.HealAll()
		c.servers["b"].loseDisk()
		c.start("b", nil)
		c.during(time.Minute, "a server leads that cannot know everything", func() bool {
			return !c.servers["b"].node.IsLeader() && !c.servers["c"].node.IsLeader()
		})
		c.start("a", nil)
		c.voting("a", "b", "c")
		c.ready(c.named("a", "b", "c")...)
		c.check("a", "b", "c")
	})
}

// TestAVoterIsNotReplacedWithoutAQuorum: c does not answer, b has just died, and another
// server comes with the name of c. The leader must not give up c, with which it can
// decide again, for one without which it cannot.
func TestAVoterIsNotReplacedWithoutAQuorum(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *cluster) {
		c.grow("b", "c")
		c.voting("a", "b", "c")
		c.leads("a")
		c.write("a", "k")
		c.network.Isolate("c", "a", "b")
		c.pass(time.Minute)
		require.True(t, c.servers["a"].node.IsLeader())
		known := c.servers["a"].node.Servers()

		real := c.servers["c"]
		delete(c.servers, "c")
		c.crash(c.servers["b"])
		c.also(func(_ *server, cfg *consensus.Config) { cfg.Network = c.network.NodeAt("impostor", "elsewhere") })
		c.servers["impostor"] = c.start("c", nil)
		c.servers["c"] = real
		c.pass(time.Minute)
		require.Equal(t, known, c.servers["a"].node.Servers())
		c.network.HealAll()
		c.write("c", "k")
		require.NoError(t, real.died())
		c.eventually("the other is not told", func() bool { return strings.Contains(c.servers["impostor"].node.Waiting(), "name") })
		c.check("a", "c")
	})
}

// TestNamesAreTaken: a server does not get in under the name of one that runs.
func TestNamesAreTaken(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *cluster) {
		c.grow("b", "c")
		real := c.servers["b"]
		delete(c.servers, "b")
		c.also(func(_ *server, cfg *consensus.Config) { cfg.Network = c.network.NodeAt("impostor", "elsewhere") })
		impostor := c.start("b", nil)
		c.servers["b"], c.servers["impostor"] = real, impostor
		c.during(30*time.Second, "it got in", func() bool {
			return c.hasVote("b") && len(c.servers["a"].node.Members(canceled)) == 3
		})
		require.Contains(t, impostor.node.Waiting(), "name")
		c.check("a", "b", "c")
	})
}

// TestStaleDiskOfARemovedServer is scenario 23 of docs/replication.md: a member was
// replaced, and its old disk returns.
func TestStaleDiskOfARemovedServer(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *cluster) {
		c.grow("b", "c")
		gone := "b"
		if c.leading().name == gone {
			gone = "c"
		}
		c.crash(c.servers[gone])
		c.eventually("the loss is not noticed", func() bool { return c.leading().node.Remove(t.Context(), gone, false) == nil })
		c.grow("d")
		c.write("d", "k")
		term := c.leading().node.Status().Term
		stale := c.start(gone, nil)
		c.eventually("it does not find out", func() bool { return errors.Is(stale.died(), consensus.ErrRemoved) })
		c.during(10*time.Second, "it disturbs the others", func() bool { return c.leading().node.Status().Term == term })
		voters, joiners := c.members()
		require.NotContains(t, append(voters, joiners...), gone)
		require.Less(t, value(stale.store, "k"), strconv.Itoa(c.acked["k"]))
		select {
		case <-stale.node.Ready():
			require.Fail(t, "it serves an old state")
		default:
		}
	})
}

// TestStaleDiskOfAReplacedServer is the same scenario where the new server took
// the name of the old one: the old disk knows less than its name has confirmed
// since.
func TestStaleDiskOfAReplacedServer(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *cluster) {
		c.grow("b", "c")
		c.leads("a")
		c.crash(c.servers["b"])
		old := c.servers["b"].loseDisk()
		c.start("b", nil)
		c.eventually("its vote is not taken away", func() bool { return !c.hasVote("b") })
		c.voting("a", "b", "c")
		c.ready(c.named("b")...)

		// What c has not seen, a and the new b have confirmed.
		c.network.Isolate("c", "a", "b")
		c.write("a", "k")
		c.crash(c.servers["a"])
		c.crash(c.servers["b"])
		newer := c.servers["b"].disk
		c.servers["b"].disk = old
		stale := c.start("b", nil)
		c.network.HealAll()
		c.during(time.Minute, "a server leads that cannot know everything", func() bool {
			return !stale.node.IsLeader() && !c.servers["c"].node.IsLeader()
		})
		c.start("a", nil)
		c.eventually("it does not find out", func() bool { return errors.Is(stale.died(), consensus.ErrRemoved) })
		c.stop(c.servers["b"])
		c.servers["b"].disk = newer
		c.start("b", nil)
		c.ready(c.named("a", "b", "c")...)
		c.voting("a", "b", "c")
		c.check("a", "b", "c")
	})
}

// leads makes a server the leader.
func (c *cluster) leads(name string) {
	c.t.Helper()
	c.eventually(name+" does not lead", func() bool {
		if c.leading().name == name {
			return true
		}
		_, err := c.leading().node.TransferLeadership(c.t.Context(), name)
		return err == nil
	})
}

// TestManyAtOnce: servers that join at the same time all get in.
func TestManyAtOnce(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *cluster) {
		c.grow("b", "c", "d", "e")
		c.voting("a", "b", "c", "d", "e")
		var wg sync.WaitGroup
		errs := make(chan error, 2)
		for _, name := range []string{"d", "e"} {
			c.crash(c.servers[name])
		}
		for _, name := range []string{"d", "e"} {
			wg.Go(func() {
				for range 600 {
					err := c.servers["a"].node.Remove(t.Context(), name, false)
					if !rpcerr.HasReason(err, consensus.ReasonIsAlive) {
						errs <- err
						return
					}
					<-time.After(100 * time.Millisecond)
				}
				errs <- errors.New(name + " is alive for ever")
			})
		}
		wg.Wait()
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)
		c.voting("a", "b", "c")
		c.write("b", "k")
		c.check("a", "b", "c")
	})
}

// TestLeadersChangeMeanwhile: the leader may stop at any moment while the
// cluster grows, replaces a lost disk and shrinks.
func TestLeadersChangeMeanwhile(t *testing.T) {
	for _, how := range []string{"handed over", "crashed"} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, c *cluster) {
				c.grow("b", "c")
				unseat := func() {
					leader := c.leading()
					if how == "crashed" {
						c.crash(leader)
						c.start(leader.name, nil)
						return
					}
					_, err := leader.node.TransferLeadership(t.Context(), "")
					if err != nil {
						require.ErrorIs(t, err, consensus.ErrUnavailable)
					}
				}
				for round := range 3 {
					c.start("d", nil)
					c.start("e", nil)
					pause := time.Duration(100+round*300) * time.Millisecond
					for range 4 {
						<-time.After(pause)
						unseat()
						c.write(c.leading().name, "k")
					}
					c.voting("a", "b", "c", "d", "e")
					c.ready(c.named("d", "e")...)

					c.crash(c.servers["e"])
					c.servers["e"].loseDisk()
					c.start("e", nil)
					for range 3 {
						<-time.After(pause)
						unseat()
						c.write(c.leading().name, "k")
					}
					c.voting("a", "b", "c", "d", "e")
					c.ready(c.named("d", "e")...)

					for _, name := range []string{"d", "e"} {
						done := make(chan error, 1)
						go func() {
							var err error
							for range 20 {
								if err = c.servers["b"].node.Remove(t.Context(), name, true); err == nil || rpcerr.HasReason(err, consensus.ReasonUnknownServer) {
									done <- nil
									return
								}
								<-time.After(time.Second)
							}
							done <- err
						}()
						<-time.After(pause / 10)
						if leader := c.leading(); leader.name != "b" && how == "crashed" || how != "crashed" {
							unseat()
						}
						require.NoError(t, <-done, "%d: %s", round, name)
						c.stop(c.servers[name])
						c.servers[name].loseDisk()
					}
					c.voting("a", "b", "c")
					c.write("a", "k")
				}
				c.check("a", "b", "c")
				require.NotZero(t, c.acked["k"])
			})
		})
	}
}

// TestMembersAsSeen: a list of the members needs no leader and says what is
// wrong with each.
func TestMembersAsSeen(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *cluster) {
		c.hear(func() []gossip.Peer {
			return []gossip.Peer{{Name: "c", GRPC: "c:hint", Gossip: "c:heard", Version: "v9"}}
		})
		c.grow("b", "c")
		for _, s := range c.running() {
			members := s.node.Members(t.Context())
			require.Len(t, members, 3)
			for i, m := range members {
				name := string(rune('a' + i))
				state := "follower"
				if c.leading().name == name {
					state = "leader"
				}
				require.Equal(t, consensus.Member{
					Name: name, Raft: name, GRPC: name + ":grpc", Gossip: name + ":gossip", State: state, Voter: true,
					Applied: m.Applied, Version: m.Version, Encryption: consensus.NotEncrypted,
				}, m, "as seen by %s", s.name)
				require.NotZero(t, m.Applied)
			}
		}
		c.crash(c.servers["a"])
		c.crash(c.servers["c"])
		var members []consensus.Member
		c.eventually("b can still connect to c", func() bool { // the first call may meet the end of the old connection
			members = c.servers["b"].node.Members(t.Context())
			require.Equal(t, consensus.StateUnreachable, members[2].State)
			require.Regexp(t, `^it does not answer: `, members[2].Problem)
			return strings.HasPrefix(members[2].Problem, "it does not answer: dial c: connection refused")
		})
		require.Equal(t, []string{"c:hint", "c:heard", "v9"}, []string{members[2].GRPC, members[2].Gossip, members[2].Version})
		c.eventually("b thinks that all is well", func() bool {
			return c.servers["b"].node.Members(t.Context())[1].Problem == "it knows no leader"
		})
		err := c.servers["b"].node.Remove(t.Context(), "c", true)
		require.ErrorIs(t, err, consensus.ErrUnavailable, "no server can decide")
	})
}

// TestHealth: the leader knows how its members do and what the cluster can bear.
func TestHealth(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *cluster) {
		c.grow("b", "c")
		c.eventually("it is not well", func() bool {
			h := c.leading().node.Health()
			return h.Leading && h.Healthy && h.FailureTolerance == 1 && h.Voters == 3 && len(h.Members) == 3
		})
		for _, s := range c.running() {
			if !s.node.IsLeader() {
				require.Equal(t, consensus.Health{}, s.node.Health(), "only the leader knows")
			}
		}
		lost := "b"
		if c.leading().name == lost {
			lost = "c"
		}
		c.crash(c.servers[lost])
		c.eventually("the loss is not noticed", func() bool {
			h := c.leading().node.Health()
			i := slices.IndexFunc(h.Members, func(m consensus.MemberHealth) bool { return m.Name == lost })
			return !h.Healthy && h.FailureTolerance == 0 && !h.Members[i].Healthy && h.Members[i].LastContact > 10*time.Second
		})
		c.start(lost, nil)
		c.eventually("the return is not noticed", func() bool { return c.leading().node.Health().Healthy })
	})
}

// aged makes servers that are removed 20 seconds after they died.
func aged(_ *server, cfg *consensus.Config) { cfg.Autopilot.DeadAfter = 20 * time.Second }

// TestTheDeadAreRemoved: of four and five servers, after the grace, never so
// that fewer than three are left.
func TestTheDeadAreRemoved(t *testing.T) {
	for _, size := range []int{3, 4, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			inBubble(t, aged, func(t *testing.T, c *cluster) {
				names := []string{"a", "b", "c", "d", "e"}[:size]
				c.grow(names[1:]...)
				c.voting(names...)
				alive := slices.Clone(names)
				for len(alive) > 3 || len(alive) == size {
					leader := c.leading().name
					dead := alive[slices.IndexFunc(alive, func(name string) bool { return name != leader })]
					alive = slices.DeleteFunc(alive, func(name string) bool { return name == dead })
					c.crash(c.servers[dead])
					c.during(18*time.Second, dead+" is removed too early", func() bool { return c.hasVote(dead) })
					if len(alive) < 3 {
						c.during(2*time.Minute, "too few are left", func() bool { return c.hasVote(dead) })
						break
					}
					c.voting(alive...)
				}
				c.write(alive[0], "k")
				c.check(alive...)
			})
		})
	}
}

// TestGossipHasToAgree: a server that gossip still hears is not removed.
func TestGossipHasToAgree(t *testing.T) {
	inBubble(t, aged, func(t *testing.T, c *cluster) {
		var said atomic.Pointer[gossip.Peer]
		said.Store(&gossip.Peer{Name: "d", State: gossip.Alive})
		c.hear(func() []gossip.Peer {
			return []gossip.Peer{{Name: "a", State: gossip.Alive}, {Name: "b", State: gossip.Alive}, *said.Load()}
		})
		c.stop(c.servers["a"])
		c.start("a", nil)
		c.grow("b", "c", "d")
		for c.leading().name == "d" {
			_, err := c.leading().node.TransferLeadership(t.Context(), "")
			require.NoError(t, err)
		}
		c.network.Isolate("d", "a", "b", "c")
		c.during(time.Minute, "d is removed", func() bool { return c.hasVote("d") })
		said.Store(&gossip.Peer{Name: "d", State: gossip.Dead, Since: time.Now()})
		c.during(18*time.Second, "d is removed too early", func() bool { return c.hasVote("d") })
		c.voting("a", "b", "c")
	})
}

// TestFlappingServersStay: who comes back within the grace is not removed,
// however often that happens.
func TestFlappingServersStay(t *testing.T) {
	inBubble(t, aged, func(t *testing.T, c *cluster) {
		c.grow("b", "c", "d")
		lost := "d"
		if c.leading().name == lost {
			lost = "c"
		}
		for range 5 {
			c.crash(c.servers[lost])
			c.during(15*time.Second, "it is removed", func() bool { return c.hasVote(lost) })
			c.start(lost, nil)
			c.ready(c.named(lost)...)
			c.during(5*time.Second, "it is removed", func() bool { return c.hasVote(lost) })
		}
		c.check("a", "b", "c", "d")
	})
}
