package consensus_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/gossip"
	"meridian/internal/raftnet"
	"meridian/internal/rpcerr"
)

// TestGrowAndShrink: one server becomes three and five, and three again, and
// nothing that was acknowledged is lost on the way.
func TestGrowAndShrink(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *fleet) {
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
		c.until("d does not find out", func() bool { return errors.Is(c.servers["d"].fatalError(), consensus.ErrRemoved) })
		c.stop("d")
		c.crash("e")
		c.until("e is not missed", func() bool { return c.leader().node.Remove(t.Context(), "e", false) == nil })
		c.voting("a", "b", "c")
		c.write("c", "k")
		c.check("a", "b", "c")

		err = c.servers["c"].node.Remove(t.Context(), "e", true)
		require.True(t, rpcerr.HasReason(err, consensus.ReasonUnknownServer), "%v", err)
	})
}

// TestRemoveTheLeader: it hands over first, whoever is asked, and a cluster goes
// down to one server, which stays.
func TestRemoveTheLeader(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *fleet) {
		c.grow("b", "c")
		for _, by := range []string{"leader", "another"} {
			leader := c.leader()
			asked := leader
			for _, s := range c.running() {
				if by == "another" && s != leader {
					asked = s
				}
			}
			require.NoError(t, asked.node.Remove(t.Context(), leader.name, true), by)
			c.until("it does not find out", func() bool { return errors.Is(leader.fatalError(), consensus.ErrRemoved) })
			c.stop(leader.name)
			c.write(c.leader().name, "k")
		}
		last := c.leader()
		err := last.node.Remove(t.Context(), last.name, true)
		require.True(t, rpcerr.HasReason(err, consensus.ReasonLastVoter), "%v", err)
		c.write(last.name, "k")
		c.check(last.name)
	})
}

// TestQuorumIsKept: no force removes a server without which nothing could be
// decided any more.
func TestQuorumIsKept(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *fleet) {
		c.grow("b", "c")
		leader := c.leader()
		var others []string
		for _, s := range c.running() {
			if s != leader {
				others = append(others, s.name)
			}
		}
		c.crash(others[0])
		var err error
		c.until("the loss is not noticed", func() bool {
			err = leader.node.Remove(t.Context(), others[0], false)
			return !rpcerr.HasReason(err, consensus.ReasonIsAlive)
		})
		require.NoError(t, err)
		c.start(others[0])
		c.until("a removed server is let in by itself", func() bool {
			return errors.Is(c.servers[others[0]].fatalError(), consensus.ErrRemoved)
		})
		c.stop(others[0])
		c.loseDisk(others[0])
		c.grow(others[0])
		c.voting("a", "b", "c")
		c.crash(others[0])
		c.until("the loss is not noticed", func() bool {
			err = c.leader().node.Remove(t.Context(), others[1], true)
			return rpcerr.HasReason(err, consensus.ReasonWouldLoseQuorum)
		})
		c.write(others[1], "k")
	})
}

// TestPromotionTakesTime: a new server gets its vote once it has been up and
// close to the end of the log for the whole of the stabilization time, whoever
// leads meanwhile.
func TestPromotionTakesTime(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *fleet) {
		const stable = 10 * time.Second
		c.grow("b", "c")
		begun := time.Now()
		c.start("d")
		c.ready("d")
		c.during(stable/2, "d has a vote already", func() bool { return !c.hasVote("d") })
		// The next leader has not watched it for long enough.
		_, err := c.leader().node.TransferLeadership(t.Context(), "")
		require.NoError(t, err)
		moved := time.Now()
		c.until("d gets no vote", func() bool { return c.hasVote("d") })
		require.GreaterOrEqual(t, time.Since(begun), stable)
		require.GreaterOrEqual(t, time.Since(moved), stable)

		// A server that the leader does not reach is not promoted, ever.
		c.start("e")
		c.until("e is not let in", func() bool { _, joiners := c.members(); return slices.Contains(joiners, "e") })
		c.net.Isolate("e", "a", "b", "c", "d")
		c.during(3*stable, "e has a vote already", func() bool { return !c.hasVote("e") })
		c.net.HealAll()
		healed := time.Now()
		c.until("e gets no vote", func() bool { return c.hasVote("e") })
		require.GreaterOrEqual(t, time.Since(healed), stable)
		c.check("a", "b", "c", "d", "e")
	})
}

// TestPromotionOfWhoGotASnapshot: the log of a new server is empty until
// something is written, when all it needed came as a snapshot.
func TestPromotionOfWhoGotASnapshot(t *testing.T) {
	short := func(_ string, cfg *consensus.Config) {
		cfg.Snapshots = consensus.Snapshots{Threshold: 2, Interval: 5 * time.Millisecond, TrailingLogs: 1, Retain: 1}
	}
	inBubble(t, short, func(t *testing.T, c *fleet) {
		for range 20 {
			c.write("a", "k")
		}
		c.start("b")
		c.voting("a", "b")
		c.check("a", "b")
	})
}

func (c *fleet) hasVote(name string) bool {
	voters, _ := c.members()
	return slices.Contains(voters, name)
}

// TestJoinersDoNotVote: servers without a vote neither lead nor help anybody to.
func TestJoinersDoNotVote(t *testing.T) {
	never := func(_ string, cfg *consensus.Config) { cfg.Autopilot.Stabilization = time.Hour }
	inBubble(t, func(name string, cfg *consensus.Config) {
		if name > "c" {
			never(name, cfg)
		}
	}, func(t *testing.T, c *fleet) {
		c.grow("b", "c")
		c.leads("c") // d is judged by the leader, so by c
		c.start("d")
		c.start("e")
		c.ready("d", "e")
		require.False(t, c.hasVote("d") || c.hasVote("e"))
		c.write("d", "k")
		c.crash("a")
		c.crash("c")
		c.during(30*time.Second, "somebody leads", func() bool {
			return !c.servers["b"].node.IsLeader() && !c.servers["d"].node.IsLeader() && !c.servers["e"].node.IsLeader()
		})
		c.start("a")
		c.write("e", "k")
		c.check("a", "b", "d", "e")
	})
}

// TestLostDisk: a voter that comes back empty under its name gets its vote back
// as a new server does, and nothing is lost.
func TestLostDisk(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *fleet) {
		c.grow("b", "c")
		c.write("a", "k")
		lost := "b"
		if c.leader().name == lost {
			lost = "c"
		}
		c.crash(lost)
		c.loseDisk(lost)
		c.start(lost)
		c.until("its vote is not taken away", func() bool { return !c.hasVote(lost) })
		c.write("a", "k")
		c.voting("a", "b", "c")
		c.ready(lost)
		c.check("a", "b", "c")
	})
}

// TestAVoteWithoutItsLogDoesNotCount: b and the leader acknowledged what c has
// never seen. With b's disk and the leader gone, c must not come to lead with
// the vote of an empty b.
func TestAVoteWithoutItsLogDoesNotCount(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *fleet) {
		c.cluster = c.servers["a"].node.ClusterID()
		c.grow("b", "c")
		c.leads("a")
		c.net.Isolate("c", "a", "b")
		c.write("a", "k")
		c.crash("b")
		c.crash("a")
		c.net.HealAll()
		c.loseDisk("b")
		c.start("b")
		c.during(time.Minute, "a server leads that cannot know everything", func() bool {
			return !c.servers["b"].node.IsLeader() && !c.servers["c"].node.IsLeader()
		})
		c.start("a")
		c.voting("a", "b", "c")
		c.ready("a", "b", "c")
		c.check("a", "b", "c")
	})
}

// TestNamesAreTaken: a server does not get in under the name of one that runs.
func TestNamesAreTaken(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *fleet) {
		c.grow("b", "c")
		real := c.servers["b"]
		delete(c.servers, "b")
		c.network = func(string) raftnet.Network { return c.net.NodeAt("impostor", "elsewhere") }
		impostor := c.start("b")
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
	inBubble(t, nil, func(t *testing.T, c *fleet) {
		c.grow("b", "c")
		gone := "b"
		if c.leader().name == gone {
			gone = "c"
		}
		c.crash(gone)
		c.until("the loss is not noticed", func() bool { return c.leader().node.Remove(t.Context(), gone, false) == nil })
		c.grow("d")
		c.write("d", "k")
		term := c.leader().node.Status().Term
		stale := c.start(gone)
		c.until("it does not find out", func() bool { return errors.Is(stale.fatalError(), consensus.ErrRemoved) })
		c.during(10*time.Second, "it disturbs the others", func() bool { return c.leader().node.Status().Term == term })
		voters, joiners := c.members()
		require.NotContains(t, append(voters, joiners...), gone)
		require.Less(t, numberAt(t, stale.store.View(), "k"), c.acked["k"])
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
	inBubble(t, nil, func(t *testing.T, c *fleet) {
		c.grow("b", "c")
		c.leads("a")
		c.crash("b")
		old := c.loseDisk("b")
		c.start("b")
		c.until("its vote is not taken away", func() bool { return !c.hasVote("b") })
		c.voting("a", "b", "c")
		c.ready("b")

		// What c has not seen, a and the new b have confirmed.
		c.net.Isolate("c", "a", "b")
		c.write("a", "k")
		c.crash("a")
		c.crash("b")
		newer := c.servers["b"].disk
		c.servers["b"].disk = old
		stale := c.start("b")
		c.net.HealAll()
		c.during(time.Minute, "a server leads that cannot know everything", func() bool {
			return !stale.node.IsLeader() && !c.servers["c"].node.IsLeader()
		})
		c.start("a")
		c.until("it does not find out", func() bool { return errors.Is(stale.fatalError(), consensus.ErrRemoved) })
		c.stop("b")
		c.servers["b"].disk = newer
		c.start("b")
		c.ready("a", "b", "c")
		c.voting("a", "b", "c")
		c.check("a", "b", "c")
	})
}

// leads makes a server the leader.
func (c *fleet) leads(name string) {
	c.t.Helper()
	c.until(name+" does not lead", func() bool {
		if c.leader().name == name {
			return true
		}
		_, err := c.leader().node.TransferLeadership(c.t.Context(), name)
		return err == nil
	})
}

// TestManyAtOnce: servers that join at the same time all get in.
func TestManyAtOnce(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *fleet) {
		c.grow("b", "c", "d", "e")
		c.voting("a", "b", "c", "d", "e")
		var wg sync.WaitGroup
		errs := make(chan error, 2)
		for _, name := range []string{"d", "e"} {
			c.crash(name)
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

// TestLeadersChangeMeanwhile: whoever leads may go at any moment while the
// cluster grows, replaces a lost disk and shrinks.
func TestLeadersChangeMeanwhile(t *testing.T) {
	for _, how := range []string{"handed over", "crashed"} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, c *fleet) {
				c.grow("b", "c")
				unseat := func() {
					leader := c.leader()
					if how == "crashed" {
						c.crash(leader.name)
						c.start(leader.name)
						return
					}
					_, err := leader.node.TransferLeadership(t.Context(), "")
					if err != nil {
						require.ErrorIs(t, err, consensus.ErrUnavailable)
					}
				}
				for round := range 3 {
					c.start("d")
					c.start("e")
					pause := time.Duration(100+round*300) * time.Millisecond
					for range 4 {
						<-time.After(pause)
						unseat()
						c.write(c.leader().name, "k")
					}
					c.voting("a", "b", "c", "d", "e")
					c.ready("d", "e")

					c.crash("e")
					c.loseDisk("e")
					c.start("e")
					for range 3 {
						<-time.After(pause)
						unseat()
						c.write(c.leader().name, "k")
					}
					c.voting("a", "b", "c", "d", "e")
					c.ready("d", "e")

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
						if leader := c.leader(); leader.name != "b" && how == "crashed" || how != "crashed" {
							unseat()
						}
						require.NoError(t, <-done, "%d: %s", round, name)
						c.stop(name)
						c.loseDisk(name)
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
	inBubble(t, nil, func(t *testing.T, c *fleet) {
		c.gossip = func(name string) []gossip.Peer {
			return []gossip.Peer{{Name: "c", GRPC: "c:hint", Gossip: "c:heard", Version: "v9"}}
		}
		c.grow("b", "c")
		for _, s := range c.running() {
			members := s.node.Members(t.Context())
			require.Len(t, members, 3)
			for i, m := range members {
				name := string(rune('a' + i))
				state := "follower"
				if c.leader().name == name {
					state = "leader"
				}
				require.Equal(t, consensus.Member{
					Name: name, Raft: name, GRPC: name + ":grpc", Gossip: name + ":gossip", State: state, Voter: true,
					Applied: m.Applied, Version: m.Version,
				}, m, "as seen by %s", s.name)
				require.NotZero(t, m.Applied)
			}
		}
		c.crash("a")
		c.crash("c")
		members := c.servers["b"].node.Members(t.Context())
		require.Equal(t, consensus.StateUnreachable, members[2].State)
		require.Regexp(t, `^it does not answer: dial c: connection refused`, members[2].Problem)
		require.Equal(t, []string{"c:hint", "c:heard", "v9"}, []string{members[2].GRPC, members[2].Gossip, members[2].Version})
		c.until("b thinks that all is well", func() bool {
			return c.servers["b"].node.Members(t.Context())[1].Problem == "it knows no leader"
		})
		err := c.servers["b"].node.Remove(t.Context(), "c", true)
		require.ErrorIs(t, err, consensus.ErrUnavailable, "nobody can decide")
	})
}

// TestHealth: the leader knows how its members do and what the cluster can bear.
func TestHealth(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, c *fleet) {
		c.grow("b", "c")
		c.until("it is not well", func() bool {
			h := c.leader().node.Health()
			return h.Leading && h.Healthy && h.FailureTolerance == 1 && h.Voters == 3 && len(h.Members) == 3
		})
		for _, s := range c.running() {
			if !s.node.IsLeader() {
				require.Equal(t, consensus.Health{}, s.node.Health(), "only the leader knows")
			}
		}
		lost := "b"
		if c.leader().name == lost {
			lost = "c"
		}
		c.crash(lost)
		c.until("the loss is not noticed", func() bool {
			h := c.leader().node.Health()
			i := slices.IndexFunc(h.Members, func(m consensus.MemberHealth) bool { return m.Name == lost })
			return !h.Healthy && h.FailureTolerance == 0 && !h.Members[i].Healthy && h.Members[i].LastContact > 10*time.Second
		})
		c.start(lost)
		c.until("the return is not noticed", func() bool { return c.leader().node.Health().Healthy })
	})
}

// aged makes servers that are removed 20 seconds after they died.
func aged(_ string, cfg *consensus.Config) { cfg.Autopilot.DeadAfter = 20 * time.Second }

// TestTheDeadAreRemoved: of four and five servers, after the grace, never so
// that fewer than three are left.
func TestTheDeadAreRemoved(t *testing.T) {
	for _, size := range []int{3, 4, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			inBubble(t, aged, func(t *testing.T, c *fleet) {
				names := []string{"a", "b", "c", "d", "e"}[:size]
				c.grow(names[1:]...)
				c.voting(names...)
				alive := slices.Clone(names)
				for len(alive) > 3 || len(alive) == size {
					leader := c.leader().name
					dead := alive[slices.IndexFunc(alive, func(name string) bool { return name != leader })]
					alive = slices.DeleteFunc(alive, func(name string) bool { return name == dead })
					c.crash(dead)
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
	inBubble(t, aged, func(t *testing.T, c *fleet) {
		var said atomic.Pointer[gossip.Peer]
		said.Store(&gossip.Peer{Name: "d", State: gossip.Alive})
		c.gossip = func(string) []gossip.Peer {
			return []gossip.Peer{{Name: "a", State: gossip.Alive}, {Name: "b", State: gossip.Alive}, *said.Load()}
		}
		c.stop("a")
		c.start("a")
		c.grow("b", "c", "d")
		for c.leader().name == "d" {
			_, err := c.leader().node.TransferLeadership(t.Context(), "")
			require.NoError(t, err)
		}
		c.net.Isolate("d", "a", "b", "c")
		c.during(time.Minute, "d is removed", func() bool { return c.hasVote("d") })
		said.Store(&gossip.Peer{Name: "d", State: gossip.Dead, Since: time.Now()})
		c.during(18*time.Second, "d is removed too early", func() bool { return c.hasVote("d") })
		c.voting("a", "b", "c")
	})
}

// TestFlappingServersStay: who comes back within the grace is not removed,
// however often that happens.
func TestFlappingServersStay(t *testing.T) {
	inBubble(t, aged, func(t *testing.T, c *fleet) {
		c.grow("b", "c", "d")
		lost := "d"
		if c.leader().name == lost {
			lost = "c"
		}
		for range 5 {
			c.crash(lost)
			c.during(15*time.Second, "it is removed", func() bool { return c.hasVote(lost) })
			c.start(lost)
			c.ready(lost)
			c.during(5*time.Second, "it is removed", func() bool { return c.hasVote(lost) })
		}
		c.check("a", "b", "c", "d")
	})
}
