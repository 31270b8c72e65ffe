package consensus_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
)

// earliest is how soon after its last message a leader can be replaced whose process
// is not known to have ended: the heartbeat timeout, less the time between heartbeats.
const earliest = 400 * time.Millisecond

// untilAnother returns how long it took from a moment until another server leads.
func (c *cluster) untilAnother(than *server, since time.Time) time.Duration {
	c.t.Helper()
	for _, s := range c.others(than) {
		for {
			changed := s.node.LeaderChanged()
			if id, _ := s.node.Leader(); id != "" && id != than.name {
				break
			}
			select {
			case <-changed:
			case <-time.After(time.Minute):
				require.FailNow(c.t, "no other leader", "%s", c.describe())
			}
		}
	}
	return time.Since(since)
}

// TestALeaderWhoseProcessEndedIsReplacedEarly: after the lease, whichever server led.
func TestALeaderWhoseProcessEndedIsReplacedEarly(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		for i := range 20 {
			leader := c.leader(c.others(nil)...)
			leader.write(t, "k", fmt.Sprint(i))
			c.pass(time.Duration(i) * 37 * time.Millisecond) // at any time between two heartbeats
			before, killed := leader.node.Status().Term, time.Now()
			c.crash(leader)
			took := c.untilAnother(leader, killed)
			lease := consensus.DefaultConfig("").Timing.Lease
			require.GreaterOrEqual(t, took, lease)
			require.Less(t, took, earliest, "%s", c.describe())
			require.Equal(t, before+1, c.others(nil)[0].node.Status().Term, "the first election was won")
			c.open(leader, nil)
			c.ready(leader)
			c.pass(time.Second)
		}
	})
}

// TestSilenceIsNoEndOfAProcess: a leader that only does not answer is waited for as
// long as ever, also when connections have ended.
func TestSilenceIsNoEndOfAProcess(t *testing.T) {
	for name, fault := range map[string]func(c *cluster, leader *server){
		"cut off":                        (*cluster).isolate,
		"its process ends while cut off": func(c *cluster, leader *server) { c.isolate(leader); c.crash(leader) },
		"cut off, and another server ends": func(c *cluster, leader *server) {
			c.isolate(leader)
			c.crash(c.servers["d"])
		},
		"slow": func(c *cluster, leader *server) {
			for _, other := range c.others(leader) {
				c.network.Delay(leader.name, other.name, 3*time.Second)
			}
			c.crash(c.servers["d"])
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				c.three()
				d := c.start("d", joining("a"))
				e := c.start("e", joining("a"))
				c.ready(d, e)
				c.voters("a", "b", "c", "d", "e") // a majority remains without two
				leader := c.leader(c.others(nil)...)
				if leader == d {
					_, err := d.node.TransferLeadership(t.Context(), "a")
					require.NoError(t, err)
					leader = c.leader(c.others(nil)...)
				}
				c.pass(time.Second)
				since := time.Now()
				fault(c, leader)
				require.GreaterOrEqual(t, c.untilAnother(leader, since), earliest)
			})
		})
	}
}

// TestServersThatEndCostNoLeader: a follower that ends, or that was removed, leaves
// the leader where it is, although connections end.
func TestServersThatEndCostNoLeader(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.three()
		leader := c.leader(c.others(nil)...)
		term := leader.node.Status().Term
		for range 10 {
			gone := c.others(leader)[0]
			c.crash(gone)
			c.pass(3 * time.Second)
			c.open(gone, nil)
			c.ready(gone)
			c.pass(3 * time.Second)
			require.Equal(t, term, leader.node.Status().Term)
		}
	})
}
