package consensus_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/gossip"
	"meridian/internal/store"
)

// inBubble runs a test with a cluster of one server called a. All others join
// it, and every server knows the addresses of all.
func inBubble(t *testing.T, tune func(s *server, cfg *consensus.Config), run func(t *testing.T, c *cluster)) {
	t.Helper()
	bubble(t, func(t *testing.T, c *cluster) {
		c.also(func(s *server, cfg *consensus.Config) {
			cfg.Autopilot.Stabilization = consensus.DefaultConfig("").Autopilot.Stabilization
			cfg.Join = consensus.JoinConfig{Fresh: s.name != "a", Addrs: func() []string { return []string{"a", "b", "c", "d", "e"} }}
			cfg.Addresses = func() consensus.Addresses {
				return consensus.Addresses{GRPC: s.name + ":grpc", Gossip: s.name + ":gossip"}
			}
		})
		if tune != nil {
			c.also(tune)
		}
		c.ready(c.start("a", nil))
		run(t, c)
	})
}

// also changes the settings of servers that start from now on.
func (c *cluster) also(tune func(s *server, cfg *consensus.Config)) {
	before := c.tune
	c.tune = func(s *server, cfg *consensus.Config) {
		if before != nil {
			before(s, cfg)
		}
		tune(s, cfg)
	}
}

// hear says what servers that start from now on hear by gossip.
func (c *cluster) hear(peers func() []gossip.Peer) {
	c.also(func(_ *server, cfg *consensus.Config) { cfg.Peers = peers })
}

// named returns servers by their names.
func (c *cluster) named(names ...string) []*server {
	var servers []*server
	for _, name := range names {
		servers = append(servers, c.servers[name])
	}
	return servers
}

// during checks a condition for a while.
func (c *cluster) during(d time.Duration, what string, cond func() bool) {
	c.t.Helper()
	end := time.Now().Add(d)
	for time.Now().Before(end) {
		require.True(c.t, cond(), "%s\n%s", what, c.describe())
		<-time.After(100 * time.Millisecond)
	}
}

// leading waits for a server that leads and is ready to serve.
func (c *cluster) leading() *server {
	c.t.Helper()
	var leader *server
	c.eventually("no server leads", func() bool {
		for _, s := range c.running() {
			if s.node.IsLeader() {
				leader = s
				return true
			}
		}
		return false
	})
	return leader
}

// members returns the members as the server with the longest log knows them,
// without asking a server: those with a vote, and the others.
func (c *cluster) members() (voters, joiners []string) {
	var best *server
	for _, s := range c.running() {
		if best == nil || s.node.Status().Last > best.node.Status().Last {
			best = s
		}
	}
	if best == nil {
		return nil, nil
	}
	for _, m := range best.node.Members(canceled) {
		if m.Voter {
			voters = append(voters, m.Name)
		} else {
			joiners = append(joiners, m.Name)
		}
	}
	return voters, joiners
}

// canceled asks for what is known here.
var canceled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// voting waits until exactly the given servers have a vote.
func (c *cluster) voting(names ...string) {
	c.t.Helper()
	c.eventually(fmt.Sprintf("%v do not have the votes", names), func() bool {
		voters, joiners := c.members()
		return slices.Equal(voters, names) && len(joiners) == 0
	})
}

// grow starts servers and waits until they have votes.
func (c *cluster) grow(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.start(name, nil)
	}
	c.eventually(fmt.Sprintf("%v do not get votes", names), func() bool {
		voters, _ := c.members()
		return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(voters, name) })
	})
	c.ready(c.named(names...)...)
}

// write writes through a server until it is acknowledged.
func (c *cluster) write(by, name string) {
	c.t.Helper()
	value := c.acked[name] + 1
	c.eventually(fmt.Sprintf("%s cannot write", by), func() bool {
		_, err := c.servers[by].node.Propose(c.t.Context(), store.Txn{
			RequestID: fmt.Sprintf("%s/%d", name, value), Ops: []store.Op{put(name, strconv.Itoa(value))},
		})
		return err == nil
	})
	c.acked[name] = value
}

// check reads every acknowledged value from every given server.
func (c *cluster) check(names ...string) {
	c.t.Helper()
	for _, by := range names {
		s := c.servers[by]
		c.eventually(by+" cannot read", func() bool {
			_, err := s.node.Read(c.t.Context())
			return err == nil
		})
		for name, want := range c.acked {
			require.Equal(c.t, strconv.Itoa(want), value(s.store, name), "%s at %s", name, by)
		}
	}
	c.alike(c.named(names...)...)
}
