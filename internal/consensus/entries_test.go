package consensus_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// atOnce is how many batches the tests of shared entries propose at the same time: many
// more than are written before others wait for them.
const atOnce = 60

// proposeAtOnce proposes batches at the same time and returns what became of each, and
// how many entries the log has got meanwhile.
func proposeAtOnce(t *testing.T, at, leader *server, batch func(i int) store.Txn) (results []store.Result, errs []error, entries uint64) {
	t.Helper()
	before := leader.node.Status().Last
	results, errs = make([]store.Result, atOnce), make([]error, atOnce)
	var all sync.WaitGroup
	for i := range atOnce {
		all.Go(func() { results[i], errs[i] = at.node.Propose(t.Context(), batch(i)) })
	}
	all.Wait()
	return results, errs, uint64(leader.node.Status().Last - before)
}

// told is what a server was told of the batches it has applied, by their notes.
type told struct {
	mu      sync.Mutex
	results map[string]store.Result // guarded by mu
}

func (t *told) applied(note []byte, result store.Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.results[string(note)] = result
}

// TestBatchesThatWaitShareAnEntry (§7.2): at the leader and at a follower, which sends them to
// the leader together. Each is decided on its own, and what is refused takes nothing else
// with it; each server is told what became of each.
func TestBatchesThatWaitShareAnEntry(t *testing.T) {
	for _, forwarded := range []bool{false, true} {
		t.Run(map[bool]string{false: "at the leader", true: "at a follower"}[forwarded], func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				heard := map[string]*told{}
				c.tune = func(s *server, cfg *consensus.Config) {
					heard[s.name] = &told{results: map[string]store.Result{}}
					cfg.Events.Applied = heard[s.name].applied
				}
				c.three()
				leader := c.leader(c.others(nil)...)
				shareEntries(t, c, leader)
				at := leader
				if forwarded {
					at = c.others(leader)[0]
				}
				for _, s := range c.others(leader) {
					c.network.Delay(leader.name, s.name, 20*time.Millisecond)
				}
				refused := func(i int) bool { return i%7 == 3 }
				results, errs, entries := proposeAtOnce(t, at, leader, func(i int) store.Txn {
					txn := store.Txn{RequestID: fmt.Sprint("request ", i), Ops: []store.Op{put(fmt.Sprint("k", i), "1")}, Note: fmt.Append(nil, "note ", i)}
					if refused(i) {
						txn.Preconditions = []store.Precondition{{Key: key(fmt.Sprint("k", i)), Version: 5}}
					}
					return txn
				})
				revisions := map[resource.Revision]int{}
				for i := range atOnce {
					if refused(i) {
						require.Equal(t, &store.ConflictError{Key: key(fmt.Sprint("k", i)), Want: 5}, errs[i])
						continue
					}
					require.NoError(t, errs[i])
					require.Equal(t, []store.OpResult{{Key: key(fmt.Sprint("k", i)), Outcome: store.Created, Version: 1}}, results[i].Results)
					require.Equal(t, "1", at.read(t, fmt.Sprint("k", i)))
					revisions[results[i].Revision]++
				}
				require.Less(t, entries, uint64(atOnce/2), "for %d batches", atOnce)
				require.Greater(t, slices.Max(slices.Collect(maps.Values(revisions))), atOnce/4, "batches of one revision")
				for _, s := range c.others(nil) {
					require.NoError(t, s.store.Wait(t.Context(), slices.Max(slices.Collect(maps.Keys(revisions)))))
					heard[s.name].mu.Lock()
					for i := range atOnce {
						got, ok := heard[s.name].results[fmt.Sprint("note ", i)]
						require.True(t, ok || refused(i), "%s was not told of batch %d", s.name, i)
						require.Equal(t, ok && refused(i), got.Err != nil)
						if !refused(i) {
							require.Equal(t, results[i].Results, got.Results)
							require.Equal(t, results[i].Revision, got.Revision)
						}
					}
					heard[s.name].mu.Unlock()
				}
			})
		})
	}
}

// shareEntries has batches share entries from now on: the leader has asked all members
// whether they apply such entries, and every server has applied one.
func shareEntries(t *testing.T, c *cluster, leader *server) {
	t.Helper()
	leader.write(t, "asks", "1")
	c.pass(100 * time.Millisecond)
	results, errs, entries := proposeAtOnce(t, leader, leader, func(i int) store.Txn {
		return store.Txn{Ops: []store.Op{put(fmt.Sprint("before", i), "1")}}
	})
	for i := range atOnce {
		require.NoError(t, errs[i])
	}
	require.Less(t, entries, uint64(atOnce))
	for _, s := range c.others(nil) {
		require.NoError(t, s.store.Wait(t.Context(), results[atOnce-1].Revision))
	}
}

// TestBatchesOfOneResourceShareNoEntry: each is decided on what the one before it has left.
// They are written at the same time all the same, and do not wait for each other's way to
// the followers and back.
func TestBatchesOfOneResourceShareNoEntry(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		leader := c.leader(c.others(nil)...)
		shareEntries(t, c, leader)
		for _, s := range c.others(leader) {
			c.network.Delay(leader.name, s.name, 20*time.Millisecond)
		}
		begun := time.Now()
		results, errs, entries := proposeAtOnce(t, leader, leader, func(i int) store.Txn {
			return store.Txn{Ops: []store.Op{put("k", fmt.Sprint(i)), put(fmt.Sprint("other", i), "1")}}
		})
		require.EqualValues(t, atOnce, entries)
		require.Less(t, time.Since(begun), 10*20*time.Millisecond)
		versions := map[uint64]bool{}
		for i := range atOnce {
			require.NoError(t, errs[i])
			versions[results[i].Results[0].Version] = true
		}
		require.Len(t, versions, atOnce)
	})
}

// TestNoEntryIsSharedBeforeTheLastUpgrade: one server of an older release, and each batch
// has an entry of its own, which that release applies. Nothing waits for that server, also
// where it does not answer.
func TestNoEntryIsSharedBeforeTheLastUpgrade(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		old := map[string]bool{}
		c.tune = func(s *server, cfg *consensus.Config) {
			if old[s.name] {
				cfg.LogFormat = store.FormatOfShared - 1
			}
		}
		old["a"] = true
		c.three()
		leader := c.leader(c.others(nil)...)
		if leader.name == "a" {
			_, err := leader.node.TransferLeadership(t.Context(), "")
			require.NoError(t, err)
			leader = c.leader(c.others(leader)...)
		}
		batch := func(round string) func(i int) store.Txn {
			return func(i int) store.Txn { return store.Txn{Ops: []store.Op{put(fmt.Sprint(round, i), "1")}} }
		}
		unshared := func(round string, at *server) {
			_, errs, entries := proposeAtOnce(t, at, leader, batch(round))
			for _, err := range errs {
				require.NoError(t, err)
			}
			require.EqualValues(t, atOnce, entries)
		}
		unshared("first", leader)
		c.pass(2 * time.Second)
		unshared("asked", leader)
		unshared("forwarded", c.servers["a"])
		c.stop(c.servers["a"])
		begun := time.Now()
		unshared("down", leader)
		require.Less(t, time.Since(begun), time.Second)

		old["a"] = false
		c.open(c.servers["a"], nil)
		c.ready(c.servers["a"])
		c.pass(2 * time.Second)
		leader = c.leader(c.others(nil)...)
		leader.write(t, "asks", "1")
		c.pass(100 * time.Millisecond)
		_, _, entries := proposeAtOnce(t, leader, leader, batch("upgraded"))
		require.Less(t, entries, uint64(atOnce))
		for _, s := range c.others(nil) {
			require.NoError(t, s.died())
		}
	})
}

// TestASharedCallThatLosesItsLeader: every batch that was sent along is applied once, or
// its caller is told that the outcome is unknown.
func TestASharedCallThatLosesItsLeader(t *testing.T) {
	for _, repeatable := range []bool{true, false} {
		t.Run(fmt.Sprint("with request ids: ", repeatable), func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				c.three()
				leader := c.leader(c.others(nil)...)
				shareEntries(t, c, leader)
				at := c.others(leader)[0]
				for _, s := range c.others(leader) {
					c.network.Delay(leader.name, s.name, 50*time.Millisecond)
				}
				next := make(chan error, 1) // of a batch for the next leader
				go func() {
					c.pass(70 * time.Millisecond)
					c.isolate(leader)
					c.leader(c.others(leader)...)
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
					defer cancel()
					_, err := at.node.Propose(ctx, store.Txn{RequestID: "next", Ops: []store.Op{put("next", "1")}})
					next <- err
				}()
				results, errs, _ := proposeAtOnce(t, at, leader, func(i int) store.Txn {
					txn := store.Txn{Ops: []store.Op{put(fmt.Sprint("k", i), "1")}}
					if repeatable {
						txn.RequestID = fmt.Sprint("request ", i)
					}
					return txn
				})
				require.NoError(t, <-next, "calls that are not answered keep nothing from the next leader")
				c.network.HealAll()
				for i := range atOnce {
					if !repeatable && errs[i] != nil {
						require.ErrorIs(t, errs[i], consensus.ErrUnknownOutcome)
						continue
					}
					require.NoError(t, errs[i])
					require.EqualValues(t, 1, results[i].Results[0].Version)
					require.Equal(t, "1", at.read(t, fmt.Sprint("k", i)))
				}
			})
		})
	}
}
