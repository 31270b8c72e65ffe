package sim

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/store"
	"meridian/test/history"
	"meridian/test/simnet"
)

// The scenarios in this file are schedules of their own: what they show is too
// rare, or takes too exact a moment, for chance to find it every time. The
// promises are checked over all of them as well.

var small = plan{servers: 3, zones: 2, clients: 3, watchers: 1, think: time.Second, slower: 1}

// scenario runs one schedule.
func scenario(t *testing.T, p plan, run func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	simulate(t, 1, p, func(w *world) int {
		run(w.t, w)
		return 1
	}).require(t, t.Name())
}

// roles returns the leader and the others.
func (w *world) roles(t *testing.T) (leader *server, others []*server) {
	t.Helper()
	require.True(t, w.await(10*time.Second, func() bool {
		for _, s := range w.members() {
			if p := s.process(); p != nil && p.node.IsLeader() {
				leader = s
				return true
			}
		}
		return false
	}), "there is no leader")
	return leader, w.others(leader)
}

// TestHungDiskLosesLeadership is L5: raft itself would lead for ever on a disk that
// hangs.
func TestHungDiskLosesLeadership(t *testing.T) {
	for _, op := range []simnet.Op{simnet.WriteLog, simnet.SyncLog, simnet.Writes} {
		t.Run(fmt.Sprint(op), func(t *testing.T) {
			scenario(t, small, func(t *testing.T, w *world) {
				leader, others := w.roles(t)
				leader.currentDisk().Hang(op)
				began := time.Now()
				led := w.await(time.Minute, func() bool {
					for _, s := range others {
						if p := s.process(); p != nil && p.node.IsLeader() {
							return true
						}
					}
					return false
				})
				w.rec.Waited(history.Wait{Promise: "L5", What: "until a server with a good disk led", Took: time.Since(began), Limit: 10 * time.Second})
				require.True(t, led)
			})
		})
	}
}

// TestEmptyDiskDoesNotVote is scenario 23 at its worst: a server lost its disk
// and with it acknowledged writes that another one never had. The two are a
// majority in number, and must not become one before the third is back.
func TestEmptyDiskDoesNotVote(t *testing.T) {
	scenario(t, small, func(t *testing.T, w *world) {
		leader, others := w.roles(t)
		loser, stale := others[0], others[1]
		w.net.Isolate(stale.name, w.names()...)
		w.pause(5 * time.Second) // acknowledged by the other two
		leader.crash(false)
		loser.crash(false)
		loser.mu.Lock()
		loser.exchangeLocked()
		loser.mu.Unlock()
		w.net.HealAll()
		loser.start()
		for range 60 {
			w.pause(time.Second)
			for _, s := range others {
				p := s.process()
				require.False(t, p != nil && p.node.IsLeader(), "%s leads", s.name)
			}
		}
		leader.start()
		require.True(t, w.await(2*time.Minute, w.disksAreGood), "they are not together again: %v", w.voters())
	})
}

// TestSnapshotSentAgain: a follower whose disk hangs after it took a snapshot is
// sent the same entries again, and if it does not know what they follow on, the
// same snapshot. It neither goes back nor loses what it has confirmed.
func TestSnapshotSentAgain(t *testing.T) {
	scenario(t, small, func(t *testing.T, w *world) {
		leader, others := w.roles(t)
		require.NoError(t, leader.process().node.Snapshot())
		for i := range 60 {
			_, err := w.probe(w.ctx, time.Minute, store.Put(content(dataKey(dataKeys), fmt.Sprintf("fill-%d", i))))
			require.NoError(t, err)
		}
		require.NoError(t, leader.process().node.Snapshot())
		for n := range max(2, 4/shorter) {
			s := others[n%2]
			s.crash(false)
			s.mu.Lock()
			s.exchangeLocked()
			s.mu.Unlock()
			disk := s.currentDisk()
			disk.Hang(simnet.WriteLog) // longer than a call may take
			s.start()
			require.True(t, w.await(time.Minute, func() bool { return disk.Snapshots() > 0 }))
			w.pause(time.Duration(2000+500*n) * time.Millisecond)
			disk.Resume()
			require.True(t, w.await(2*time.Minute, w.disksAreGood), "it is not a member again: %v", w.voters())
		}
	})
}

// TestZoneStartsAlone is L3: a zone serves what it had within a second of its
// start, with the global gone.
func TestZoneStartsAlone(t *testing.T) {
	scenario(t, small, func(t *testing.T, w *world) {
		z := w.followers()[0]
		require.True(t, w.await(time.Minute, func() bool { return z.process().store.View().Len() > 0 }))
		w.stopClients() // a day of asking servers that are gone shows nothing
		w.clients.Wait()
		for _, s := range w.members() {
			s.crash(false)
		}
		w.pause(time.Second)
		before := z.process().store.View()
		require.Positive(t, before.Len())
		z.crash()
		w.pause(24 * time.Hour / shorter)
		began := time.Now()
		z.start()
		served := w.await(time.Minute, func() bool { return z.process().store.Revision() >= before.Revision() })
		w.rec.Waited(history.Wait{Promise: "L3", What: "until the zone served", Took: time.Since(began), Limit: time.Second})
		require.True(t, served)
		require.Equal(t, before.DigestOf(nil), z.process().store.View().DigestOf(nil))
	})
}

// TestAReturningServerIsNeededAtOnce is L1 where the majority needs a server that
// was away for long, or had no space for long: it is sent entries as soon as it is
// back.
func TestAReturningServerIsNeededAtOnce(t *testing.T) {
	away := map[string]struct {
		begin func(*world, *server)
		end   func(*world, *server)
	}{
		"cut off": {func(w *world, s *server) { w.net.Isolate(s.name, w.names()...) }, func(w *world, _ *server) { w.net.HealAll() }},
		"crashed": {func(_ *world, s *server) { s.crash(false) }, func(_ *world, s *server) { s.start() }},
		"full":    {func(_ *world, s *server) { s.currentDisk().Full(true) }, func(_ *world, s *server) { s.currentDisk().Full(false) }},
	}
	for name, c := range away {
		t.Run(name, func(t *testing.T) {
			scenario(t, small, func(t *testing.T, w *world) {
				_, others := w.roles(t)
				for _, last := range []time.Duration{31, 36, 41} { // raft's pauses are of several lengths
					c.begin(w, others[0])
					w.pause(last * time.Second)
					c.end(w, others[0])
					others[1].crash(false)
					began := time.Now()
					_, err := w.probe(w.ctx, time.Minute)
					require.NoError(t, err)
					w.rec.Waited(history.Wait{Promise: "L1", What: "the first write that needs the server that is back", Took: time.Since(began), Limit: resumeLimit})
					others[1].start()
					w.pause(20 * time.Second)
				}
			})
		})
	}
}

// TestManyRequestsWithinARetry is I9: while a client tries again, more requests than
// once were remembered are acknowledged, a snapshot is taken and all servers restart.
// The repetition gets the first result and has no effect.
func TestManyRequestsWithinARetry(t *testing.T) {
	alone := plan{servers: 3, slower: 1}
	scenario(t, alone, func(t *testing.T, w *world) {
		leader, _ := w.roles(t)
		txn := store.Txn{RequestID: "retried", Ops: []store.Op{store.Put(content(dataKey(0), "retried"))}}
		first, err := leader.process().node.Propose(w.ctx, txn)
		require.NoError(t, err)
		const others, callers = 9000, 90
		var all sync.WaitGroup
		for c := range callers {
			all.Go(func() {
				for i := range others / callers {
					_, err := leader.process().node.Propose(w.ctx, store.Txn{
						RequestID: fmt.Sprintf("other-%d-%d", c, i), Ops: []store.Op{store.Put(content(dataKey(1), fmt.Sprint(c, i)))},
					})
					if err != nil {
						w.violate("I9", "%v", err)
					}
				}
			})
		}
		all.Wait()
		again := func() {
			for _, s := range w.members() {
				repeated, err := s.process().node.Propose(w.ctx, txn)
				require.NoError(t, err)
				require.Equal(t, first.Revision, repeated.Revision, "through %s", s)
			}
			now, _ := leader.process().store.View().Get(dataKey(0))
			require.Equal(t, first.Revision, now.Meta().Revision)
		}
		again()
		for _, s := range w.members() {
			require.NoError(t, s.process().node.Snapshot())
			s.crash(false)
		}
		for _, s := range w.members() {
			s.start()
		}
		require.True(t, w.await(time.Minute, w.disksAreGood))
		again()
	})
}

// TestStopDuringATransfer: a leader that is told to stop hands over. Its disk dies
// before raft has begun with that, which raft then never answers; the stop ends all
// the same.
func TestStopDuringATransfer(t *testing.T) {
	scenario(t, small, func(t *testing.T, w *world) {
		for range 20 / shorter {
			leader, _ := w.roles(t)
			p, disk := leader.process(), leader.currentDisk()
			disk.Slow(1500*time.Millisecond, simnet.SyncLog)
			w.running.Go(func() {
				_, _ = p.node.Propose(p.ctx, store.Txn{Ops: []store.Op{store.Put(content(dataKey(dataKeys), "last"))}})
			})
			w.pause(100 * time.Millisecond)
			stopped := make(chan struct{})
			w.running.Go(func() { defer close(stopped); leader.stop() })
			w.pause(1200 * time.Millisecond) // longer than writes are waited for
			disk.Crash()
			began := time.Now()
			<-stopped
			require.Less(t, time.Since(began), 7*time.Second, "it did not stop by itself")
			disk.Slow(0, 0)
			leader.start()
			require.True(t, w.await(time.Minute, w.disksAreGood))
		}
	})
}

// TestStalledZoneDelaysNoOther is L4 as far as virtual time shows it: while one
// zone hears nothing, another has every write at once.
func TestStalledZoneDelaysNoOther(t *testing.T) {
	scenario(t, small, func(t *testing.T, w *world) {
		stalled, other := w.followers()[0], w.followers()[1]
		for _, s := range w.members() {
			w.zoneNet.Cut(s.name, stalled.name)
		}
		for i := range 120 / shorter {
			rev, err := w.probe(w.ctx, time.Minute, store.Put(content(dataKey(dataKeys), fmt.Sprintf("%d-%032000d", i, i))))
			require.NoError(t, err)
			began := time.Now()
			w.await(time.Minute, func() bool { return other.process().store.Revision() >= rev })
			w.rec.Waited(history.Wait{Promise: "L4", What: "a write's way to a zone beside one that stalls", Took: time.Since(began), Limit: 200 * time.Millisecond})
			w.pause(time.Second)
		}
	})
}

// records is how many a zone surely holds before its disk is damaged.
const records = 3

// TestDriftIsRepaired is L6: a record that a zone's disk has lost is back within
// two bookmarks of the connection.
func TestDriftIsRepaired(t *testing.T) {
	scenario(t, small, func(t *testing.T, w *world) {
		z := w.followers()[0]
		require.True(t, w.await(time.Minute, func() bool { return z.process().store.View().Len() >= records }))
		for n := range max(records, 10/shorter) {
			z.crash()
			require.True(t, z.disk.flip(n%records, 1+n*77))
			z.start()
			require.True(t, w.await(time.Minute, func() bool {
				p := z.process()
				return p.client.Load() != nil && p.client.Load().Status().Connected
			}))
			began := time.Now()
			repaired := w.await(time.Minute, func() bool { return len(z.process().replica.Load().Status().Damage) == 0 })
			w.rec.Waited(history.Wait{Promise: "L6", What: "until the drift was repaired", Took: time.Since(began), Limit: 2 * time.Second})
			require.True(t, repaired)
		}
	})
}

// TestMajorityOfDisksStays: with one disk of three lost while the other two crash
// and come back, nothing is lost.
func TestMajorityOfDisksStays(t *testing.T) {
	scenario(t, small, func(t *testing.T, w *world) {
		for round := range max(3, 5/shorter) {
			leader, others := w.roles(t)
			for _, s := range w.members() {
				s.crash(round%2 == 0)
			}
			lost := append([]*server{leader}, others...)[round%3]
			lost.mu.Lock()
			lost.exchangeLocked()
			lost.mu.Unlock()
			for _, s := range w.members() {
				s.start()
			}
			require.True(t, w.await(2*time.Minute, w.disksAreGood), "round %d: %v", round, w.voters())
		}
	})
}

// TestReplacedDiskIsRefused is the other half of scenario 23: a server that was
// replaced comes back from the disk it had before. It finds out that it is no
// member, and harms no other.
func TestReplacedDiskIsRefused(t *testing.T) {
	scenario(t, small, func(t *testing.T, w *world) {
		_, others := w.roles(t)
		s := others[0]
		old := s.currentDisk()
		s.crash(false)
		s.mu.Lock()
		s.exchangeLocked()
		s.mu.Unlock()
		s.start()
		require.True(t, w.await(2*time.Minute, w.disksAreGood), "it is not a member again: %v", w.voters())
		w.pause(10 * time.Second)
		s.crash(false)
		s.mu.Lock()
		s.disk = old
		s.mu.Unlock()
		s.start()
		require.True(t, w.await(time.Minute, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return errors.Is(s.ended, consensus.ErrRemoved)
		}), "it ended with %v", s.ended)
		require.True(t, w.await(2*time.Minute, w.disksAreGood), "it is not a member again: %v", w.voters())
	})
}

// TestZoneKeepsToItsGlobal is scenario 22: another global at the same addresses
// is not followed, and takes nothing away.
func TestZoneKeepsToItsGlobal(t *testing.T) {
	alone := plan{servers: 1, zones: 1, slower: 1}
	scenario(t, alone, func(t *testing.T, w *world) {
		_, err := w.probe(w.ctx, time.Minute, store.Put(content(dataKey(0), "kept")))
		require.NoError(t, err)
		z := w.followers()[0]
		g := w.members()[0]
		require.True(t, w.await(time.Minute, func() bool { _, ok := z.process().store.View().Get(dataKey(0)); return ok }))
		kept := g.currentDisk()
		g.crash(false)
		g.mu.Lock()
		g.disk = simnet.NewDisk(g.name)
		g.mu.Unlock()
		w.begun.Store(false) // it begins a cluster of its own
		g.start()
		require.True(t, w.await(time.Minute, g.up))
		w.pause(time.Minute)
		_, ok := z.process().store.View().Get(dataKey(0))
		require.True(t, ok)
		require.Contains(t, z.process().status(), "another global")
		g.crash(false)
		g.mu.Lock()
		g.disk = kept
		g.mu.Unlock()
		w.begun.Store(true)
		g.start()
		require.True(t, w.await(time.Minute, g.up))
	})
}
