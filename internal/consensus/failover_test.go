package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/test/simnet"
)

// others returns the servers that run, without one.
func (c *cluster) others(than *server) []*server {
	return slices.DeleteFunc(c.running(), func(s *server) bool { return s == than })
}

func (c *cluster) isolate(s *server) {
	for _, other := range c.others(s) {
		c.network.CutBoth(s.name, other.name)
	}
}

// TestEveryServerTakesWritesAndReads: what one server acknowledged, every other
// shows to the next read.
func TestEveryServerTakesWritesAndReads(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		for i, from := range []*server{a, b, d} {
			result := from.write(t, "k", fmt.Sprint(i))
			require.EqualValues(t, fmt.Sprint(i), value(from.store, "k"), "the server that took it has applied it")
			require.LessOrEqual(t, result.Revision, from.store.Revision())
			for _, at := range []*server{a, b, d} {
				require.Equal(t, fmt.Sprint(i), at.read(t, "k"), "written at %s, read at %s", from.name, at.name)
			}
		}
	})
}

// TestTransfersToAServerThatTakesNoEntries: however often leadership is to go to a
// server that takes no entries, it stays, writes continue, and the server gets it once it
// is back. Raft, asked for a second such transfer, refuses every write for ever.
func TestTransfersToAServerThatTakesNoEntries(t *testing.T) {
	for name, away := range map[string]struct {
		begin, end func(c *cluster, s *server)
		pause      time.Duration // between transfers
	}{
		"stopped":               {(*cluster).stop, func(c *cluster, s *server) { c.open(s, nil) }, 20 * time.Second},
		"cut off":               {(*cluster).isolate, func(c *cluster, _ *server) { c.network.HealAll() }, 20 * time.Second},
		"cut off, at once":      {(*cluster).isolate, func(c *cluster, _ *server) { c.network.HealAll() }, 0},
		"its disk has no space": {func(_ *cluster, s *server) { s.disk.Full(true) }, func(_ *cluster, s *server) { s.disk.Full(false) }, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				c.three()
				leader := c.leader(c.others(nil)...)
				gone := c.others(leader)[0]
				away.begin(c, gone)
				leader.write(t, "k", "0")
				for i := range 3 {
					_, err := leader.node.TransferLeadership(t.Context(), gone.name)
					require.ErrorIs(t, err, consensus.ErrUnavailable)
					require.ErrorContains(t, err, gone.name+" does not take entries now")
					leader.write(t, "k", fmt.Sprint(i))
					c.pass(away.pause)
				}
				leader.write(t, "k", "after")
				require.NoError(t, leader.died())
				require.True(t, leader.node.IsLeader())

				away.end(c, gone)
				c.eventually("it leads", func() bool {
					next, err := leader.node.TransferLeadership(t.Context(), gone.name)
					return err == nil && next == gone.name
				})
				require.Equal(t, "after", gone.read(t, "k"))
			})
		})
	}
}

// TestAnySuccessorHasAllEntries: of the servers that could lead, one that takes entries
// is made the leader.
func TestAnySuccessorHasAllEntries(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		leader := c.leader(c.others(nil)...)
		gone, there := c.others(leader)[0], c.others(leader)[1]
		c.stop(gone)
		leader.write(t, "k", "1")
		next, err := leader.node.TransferLeadership(t.Context(), "")
		require.NoError(t, err)
		require.Equal(t, there.name, next)
	})
}

// TestAnySuccessorAnswers: a server that has every entry and has died since, or cannot be
// reached, is not the one that is to lead, whichever of the others it is.
func TestAnySuccessorAnswers(t *testing.T) {
	for name, away := range map[string]func(c *cluster, s *server){"stopped": (*cluster).stop, "cut off": (*cluster).isolate} {
		for i := range 16 { // which of the others is looked at first is not determined
			t.Run(fmt.Sprint(name, i), func(t *testing.T) {
				bubble(t, func(t *testing.T, c *cluster) {
					c.three()
					leader := c.leader(c.others(nil)...)
					gone, there := c.others(leader)[i%2], c.others(leader)[1-i%2]
					leader.write(t, "k", "1")
					c.pass(time.Second)
					require.Equal(t, "1", value(gone.store, "k"))
					away(c, gone)
					next, err := leader.node.TransferLeadership(t.Context(), "")
					require.NoError(t, err)
					require.Equal(t, there.name, next)
				})
			})
		}
	}
}

// TestNoConnectionToAFormerLeaderIsAwaited: where the process of the leader has been started
// again and does not answer yet, a write and a read at a follower succeed as soon as there is
// another leader. It is there before an attempt to connect ends by itself.
func TestNoConnectionToAFormerLeaderIsAwaited(t *testing.T) {
	for name, request := range map[string]func(ctx context.Context, at *server) error{
		"a read": func(ctx context.Context, at *server) error {
			_, err := at.node.Read(ctx)
			return err
		},
		"a write": func(ctx context.Context, at *server) error {
			_, err := at.node.Propose(ctx, store.Txn{Ops: []store.Op{put("k", "after")}})
			return err
		},
		"a write that may be repeated": func(ctx context.Context, at *server) error {
			_, err := at.node.Propose(ctx, store.Txn{Ops: []store.Op{put("k", "after")}, RequestID: "once"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				c.three()
				leader := c.leader(c.others(nil)...)
				follower := c.others(leader)[0]
				follower.write(t, "k", "before")
				c.network.Stop(leader.name)
				defer c.crash(leader)         // it takes longer than an election
				c.pass(10 * time.Millisecond) // the others have seen that no process is there
				c.network.NodeAt(leader.name, leader.addr)
				ended, since := make(chan error, 1), time.Now()
				var took time.Duration
				go func() {
					err := request(t.Context(), follower)
					took = time.Since(since)
					ended <- err
				}()
				led := c.untilAnother(leader, since)
				require.NoError(t, <-ended)
				require.Less(t, took-led, 100*time.Millisecond, "%s until another server led", led)
			})
		})
	}
}

// TestWritesOutliveTheLeader: a crash of the leader is a delay to those who
// write, at whichever server.
func TestWritesOutliveTheLeader(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		leader := c.leader(c.others(nil)...)
		leader.write(t, "k", "before")
		c.crash(leader)
		for _, s := range c.others(nil) {
			require.Equal(t, "before", s.read(t, "k"))
			s.write(t, s.name, "after")
		}
		c.open(leader, nil)
		c.ready(leader)
		for _, s := range c.others(nil) {
			require.Equal(t, "before", s.read(t, "k"))
			require.Equal(t, "after", s.read(t, c.others(leader)[0].name))
		}
	})
}

// TestARetriedRequestIsAppliedOnce: while leaders fall, batches with a request id
// are repeated until they have an outcome, and take effect once
// (§7.1).
func TestARetriedRequestIsAppliedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		stop := make(chan struct{})
		var writers sync.WaitGroup
		acked := make([]int, 3)
		errs := make(chan error, 3)
		for i, s := range c.others(nil) {
			writers.Go(func() {
				for n := 1; ; n++ {
					select {
					case <-stop:
						return
					case <-time.After(20 * time.Millisecond):
					}
					// The version is the number of writes that took effect.
					txn := store.Txn{
						RequestID:     fmt.Sprint(s.name, n),
						Ops:           []store.Op{put(s.name, fmt.Sprint(n))},
						Preconditions: []store.Precondition{{Key: key(s.name), Version: uint64(n - 1)}},
					}
					result, err := s.node.Propose(context.Background(), txn)
					if err != nil || result.Results[0].Version != uint64(n) {
						errs <- fmt.Errorf("%s %d: %+v: %w", s.name, n, result, err)
						return
					}
					acked[i] = n
				}
			})
		}
		for range 5 {
			leader := c.leader(c.others(nil)...)
			c.isolate(leader)
			c.pass(3 * time.Second)
			c.network.HealAll()
			c.pass(time.Second)
		}
		close(stop)
		writers.Wait()
		close(errs)
		require.NoError(t, <-errs)
		for i, s := range c.others(nil) {
			require.Greater(t, acked[i], 50)
			for _, at := range c.others(nil) {
				require.Equal(t, fmt.Sprint(acked[i]), at.read(t, s.name))
			}
		}
	})
}

// TestRefusalsSurviveTheWire: what refused a batch arrives at a follower's
// caller as the leader's store said it.
func TestRefusalsSurviveTheWire(t *testing.T) {
	mesh := func(name string) resource.Key { return resource.Key{Kind: "Mesh", Name: name} }
	timeout := func(mesh string) store.Op {
		return store.Put(resource.New(resource.Meta{Key: resource.Key{Kind: "Timeout", Mesh: resource.MeshName(mesh), Name: "t"}}, &resource.Secret{}, []byte(`{}`)))
	}
	decided := resource.Revision(7)
	txns := map[string]store.Txn{
		"conflict":  {Ops: []store.Op{put("k", "1")}, Preconditions: []store.Precondition{{Key: key("k"), Version: 9, Revision: 3}}},
		"access":    {Ops: []store.Op{put("k", "1")}, AccessRevision: &decided},
		"no mesh":   {Ops: []store.Op{timeout("missing")}},
		"mesh full": {Ops: []store.Op{store.Delete(mesh("m"))}},
		"twice":     {Ops: []store.Op{put("k", "1"), put("k", "2")}},
	}
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		leader := c.leader(c.others(nil)...)
		_, err := leader.node.Propose(t.Context(), store.Txn{Ops: []store.Op{
			store.Put(resource.New(resource.Meta{Key: mesh("m")}, &resource.Secret{}, []byte(`{}`))), timeout("m"),
		}})
		require.NoError(t, err)
		for name, txn := range txns {
			_, want := leader.node.Propose(t.Context(), txn)
			require.Error(t, want, name)
			require.NotErrorIs(t, want, consensus.ErrUnknownOutcome)
			for _, follower := range c.others(leader) {
				result, err := follower.node.Propose(t.Context(), txn)
				require.Equal(t, want, err, name)
				require.Equal(t, want, result.Err, name)
			}
		}
	})
}

// TestResultsSurviveTheWire: a follower returns what the leader's store did.
func TestResultsSurviveTheWire(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		leader := c.leader(c.others(nil)...)
		follower := c.others(leader)[0]
		txn := store.Txn{RequestID: "one", Ops: []store.Op{put("a", "1"), put("b", "1"), store.Delete(key("x"))}}
		first, err := follower.node.Propose(t.Context(), txn)
		require.NoError(t, err)
		require.Equal(t, []store.OpResult{
			{Key: key("a"), Outcome: store.Created, Version: 1}, {Key: key("b"), Outcome: store.Created, Version: 1}, {Key: key("x"), Outcome: store.Missing},
		}, first.Results)
		require.False(t, first.Duplicate)
		again, err := leader.node.Propose(t.Context(), txn)
		require.NoError(t, err)
		require.True(t, again.Duplicate)
		again.Duplicate = false
		require.Equal(t, first, again)
		unchanged, err := follower.node.Propose(t.Context(), store.Txn{Ops: []store.Op{put("a", "1")}})
		require.NoError(t, err)
		require.Equal(t, first.Revision, unchanged.Revision)
	})
}

// TestReadsSeeWhatWasAcknowledgedElsewhere: a server that was cut off and comes
// back does not answer from what it had.
func TestReadsSeeWhatWasAcknowledgedElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		leader := c.leader(c.others(nil)...)
		follower := c.others(leader)[0]
		leader.write(t, "k", "old")
		require.Equal(t, "old", follower.read(t, "k"))
		c.isolate(follower)
		leader.write(t, "k", "new")

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := follower.node.Read(short)
		require.ErrorIs(t, err, consensus.ErrUnavailable)
		require.Equal(t, "old", value(follower.store, "k"))

		waiting := make(chan string)
		go func() { waiting <- follower.read(t, "k") }()
		c.pass(time.Second)
		c.network.HealAll()
		require.Equal(t, "new", <-waiting, "the read waited out the partition")
	})
}

// TestAStaleLeaderRefusesReads: a leader that lost its majority does not know of
// the writes of the next one.
func TestAStaleLeaderRefusesReads(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		old := c.leader(c.others(nil)...)
		old.write(t, "k", "old")
		c.isolate(old)
		read := make(chan error)
		short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		go func() {
			_, err := old.node.Read(short)
			read <- err
		}()
		others := c.others(old)
		c.eventually("another leader", func() bool { return others[0].node.IsLeader() || others[1].node.IsLeader() })
		others[0].write(t, "k", "new")
		require.ErrorIs(t, <-read, consensus.ErrUnavailable)
		require.False(t, old.node.IsLeader())
		c.network.HealAll()
		require.Equal(t, "new", old.read(t, "k"))
	})
}

// TestOneWayCuts: a leader that sends but receives nothing steps down, and the
// others elect another.
func TestOneWayCuts(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		old := c.leader(c.others(nil)...)
		others := c.others(old)
		for _, other := range others {
			c.network.Cut(other.name, old.name)
		}
		others[0].write(t, "k", "1")
		require.Equal(t, "1", others[1].read(t, "k"))
		c.network.HealAll()
		require.Equal(t, "1", old.read(t, "k"))
	})
}

// TestHandingOverLosesNoWrite: while the leadership moves, also because servers
// stop, every write succeeds, with or without a request id.
func TestHandingOverLosesNoWrite(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		stop := make(chan struct{})
		var writers sync.WaitGroup
		written := make([]int, 3)
		errs := make(chan error, 3)
		// Writers use a server that is not stopped.
		stays := c.others(c.leader(c.others(nil)...))[0]
		for i := range written {
			writers.Go(func() {
				for n := 1; ; n++ {
					select {
					case <-stop:
						return
					case <-time.After(20 * time.Millisecond):
					}
					_, err := stays.node.Propose(context.Background(), store.Txn{Ops: []store.Op{put(fmt.Sprint(i), fmt.Sprint(n))}})
					if err != nil {
						errs <- fmt.Errorf("%d %d: %w", i, n, err)
						return
					}
					written[i] = n
				}
			})
		}
		for range 5 {
			before := c.leader(c.others(nil)...)
			next, err := stays.node.TransferLeadership(t.Context(), "")
			require.NoError(t, err)
			require.NotEqual(t, before.name, next)
			require.Equal(t, next, c.leader(c.others(nil)...).name)
			c.pass(100 * time.Millisecond)
		}
		for range 3 {
			leader := c.leader(c.others(nil)...)
			if leader == stays {
				_, err := stays.node.TransferLeadership(t.Context(), c.others(stays)[0].name)
				require.NoError(t, err)
				leader = c.leader(c.others(nil)...)
			}
			began := time.Now()
			require.NoError(t, leader.node.Close())
			leader.node = nil
			c.leader(c.others(nil)...)
			require.Less(t, time.Since(began), 500*time.Millisecond, "no server had to detect that it is gone")
			c.open(leader, nil)
			c.ready(leader)
		}
		close(stop)
		writers.Wait()
		close(errs)
		require.NoError(t, <-errs)
		for i, n := range written {
			require.Equal(t, fmt.Sprint(n), stays.read(t, fmt.Sprint(i)))
		}
	})
}

func TestWhoCannotTakeOver(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a := c.start("a", nil)
		c.ready(a)
		_, err := a.node.TransferLeadership(t.Context(), "")
		require.ErrorContains(t, err, "no other server")
		b := c.start("b", joining("a"))
		c.ready(b)
		_, err = b.node.TransferLeadership(t.Context(), "b")
		require.ErrorContains(t, err, "no vote yet")
		_, err = b.node.TransferLeadership(t.Context(), "x")
		require.ErrorContains(t, err, `called x`)
		next, err := b.node.TransferLeadership(t.Context(), "a")
		require.NoError(t, err, "it leads already")
		require.Equal(t, "a", next)
		c.voters("a", "b")
		c.isolate(b)
		_, err = a.node.TransferLeadership(t.Context(), "b")
		require.ErrorIs(t, err, consensus.ErrUnavailable)
		c.network.HealAll()
		c.leader(a, b)
		a.write(t, "k", "1")
	})
}

// TestWithoutAMajority: nothing is written, requests end in time and say so.
func TestWithoutAMajority(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		leader := c.leader(c.others(nil)...)
		follower := c.others(leader)[0]
		c.isolate(leader)
		c.isolate(follower)
		for _, s := range c.others(nil) {
			began := time.Now()
			_, err := s.node.Propose(t.Context(), store.Txn{Ops: []store.Op{put("lost", "1")}})
			require.Error(t, err)
			require.True(t, errors.Is(err, consensus.ErrUnavailable) || errors.Is(err, consensus.ErrUnknownOutcome), err)
			require.LessOrEqual(t, time.Since(began), 11*time.Second)
			_, err = s.node.Read(t.Context())
			require.ErrorIs(t, err, consensus.ErrUnavailable)
		}
		c.network.HealAll()
		c.leader(c.others(nil)...)
		follower.write(t, "k", "1")
	})
}

// TestWithoutALeaderIsSaidSoon: where LeaderTimeout is set, requests do not wait
// for all of ApplyTimeout while no server can lead, and wait for a leader that is
// elected before that.
func TestWithoutALeaderIsSaidSoon(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		patient := func(addr string) func(*consensus.Config) {
			return func(cfg *consensus.Config) {
				if addr != "" {
					joining(addr)(cfg)
				}
				cfg.LeaderTimeout = 4 * time.Second
			}
		}
		a := c.start("a", patient(""))
		c.ready(a)
		b := c.start("b", patient("a"))
		c.ready(b)
		c.voters("a", "b")
		c.isolate(a)
		c.eventually("no server leads", func() bool {
			one, _ := a.node.Leader()
			other, _ := b.node.Leader()
			return one == "" && other == ""
		})

		began := time.Now()
		_, err := b.node.Propose(t.Context(), store.Txn{RequestID: "1", Ops: []store.Op{put("k", "1")}})
		require.ErrorIs(t, err, consensus.ErrUnavailable)
		_, err = b.node.Read(t.Context())
		require.ErrorIs(t, err, consensus.ErrUnavailable)
		require.Less(t, time.Since(began), 9*time.Second)

		// A caller with less time hears it before that is over.
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = b.node.Propose(short, store.Txn{RequestID: "3", Ops: []store.Op{put("k", "3")}})
		require.ErrorIs(t, err, consensus.ErrUnavailable)
		_, err = b.node.Read(short)
		require.ErrorIs(t, err, consensus.ErrUnavailable)
		require.NoError(t, short.Err())

		written := make(chan error, 1)
		go func() {
			_, err := b.node.Propose(t.Context(), store.Txn{RequestID: "2", Ops: []store.Op{put("k", "2")}})
			written <- err
		}()
		<-time.After(time.Second) // virtual time
		c.network.HealAll()
		require.NoError(t, <-written)
	})
}

// TestOldAnswersDoNotProveLeadership: raft would take the answer to a heartbeat that
// left before the read began. A leader that was stopped finds such answers when
// it continues, while another one leads.
func TestOldAnswersDoNotProveLeadership(t *testing.T) {
	const late = 200 * time.Millisecond
	bubble(t, func(t *testing.T, c *cluster) {
		patient := func(cfg *consensus.Config) { cfg.Timing.Lease = cfg.Timing.Heartbeat }
		a := c.start("a", patient)
		c.ready(a)
		b := c.start("b", joining("a"))
		c.ready(b)
		c.voters("a", "b")
		c.network.Delay("b", "a", late)
		c.pass(3 * late)
		for range 20 {
			began := time.Now()
			_, err := a.node.Read(t.Context())
			require.NoError(t, err)
			require.GreaterOrEqual(t, time.Since(began), late, "the answer was on its way before the question")
			c.pass(17 * time.Millisecond)
		}
	})
}

// TestAServerWithoutAVoteProvesNothing: raft would count its answer.
func TestAServerWithoutAVoteProvesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		slow := func(cfg *consensus.Config) { cfg.Autopilot.Stabilization = time.Hour }
		a := c.start("a", nil)
		c.ready(a)
		b := c.start("b", joining("a"))
		c.ready(b)
		c.voters("a", "b")
		if !a.node.IsLeader() {
			_, err := a.node.TransferLeadership(t.Context(), "a")
			require.NoError(t, err)
		}
		require.NoError(t, a.node.Close())
		c.open(a, slow)
		c.ready(a, b)
		if !a.node.IsLeader() {
			_, err := a.node.TransferLeadership(t.Context(), "a")
			require.NoError(t, err)
		}
		d := c.start("c", joining("a"))
		c.ready(d)
		c.network.CutBoth("a", "b")
		c.pass(10 * time.Millisecond) // what was on its way has arrived
		require.True(t, a.node.IsLeader())
		short, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		_, err := a.node.Read(short)
		require.ErrorIs(t, err, consensus.ErrUnavailable)
	})
}

// TestTheLeadersClockCounts: a batch has the leader's time, whichever server
// decided it (§1.1).
func TestTheLeadersClockCounts(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a := c.start("a", nil)
		c.ready(a)
		b := c.start("b", func(cfg *consensus.Config) {
			joining("a")(cfg)
			cfg.Clock = func() time.Time { return time.Now().Add(24 * time.Hour) }
		})
		c.ready(b)
		txn := store.Txn{Time: time.Now().Add(24 * time.Hour), Ops: []store.Op{put("k", "1")}}
		_, err := b.node.Propose(t.Context(), txn)
		require.NoError(t, err)
		r, ok := b.store.View().Get(key("k"))
		require.True(t, ok)
		require.WithinDuration(t, time.Now(), r.Meta().CreationTime, time.Minute)
	})
}

// TestAFailedTransferWithSlowDisks: one that fails while elections are given more time
// refuses writes for that long, and does not end the leader.
func TestAFailedTransferWithSlowDisks(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		leader := c.leader(c.others(nil)...)
		successor := c.others(leader)[0]
		consensus.SlowWrites(leader.node, 1500*time.Millisecond)
		successor.disk.Hang(simnet.Writes) // it takes the message, and cannot begin a term
		began := time.Now()
		_, err := leader.node.TransferLeadership(t.Context(), successor.name)
		require.ErrorIs(t, err, consensus.ErrUnavailable)
		c.eventually("writes are accepted again", func() bool {
			_, err := leader.node.Propose(t.Context(), store.Txn{Ops: []store.Op{put("k", "1")}})
			return err == nil
		})
		require.Greater(t, time.Since(began), 10*time.Second)
		require.NoError(t, leader.died())
		successor.disk.Resume()
	})
}
