package bench

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkWriteCost measures the processor time that a write of 1 KiB takes of each of
// three servers and of its client, which depends less on what else the machine does than
// the writes of a second do: with all clients at the leader, spread over the servers, and at
// one follower.
func BenchmarkWriteCost(b *testing.B) {
	system(b)
	procfs(b)
	c := startCluster(b, 3)
	leader := c.leader(b)
	follower := c.servers[slices.IndexFunc(c.servers, func(s *global) bool { return s != leader })]
	for _, clients := range []int{1, 16, 64, 256} {
		measure := func(name string, server func(i int) *global) {
			b.Run(fmt.Sprintf("clients=%d/%s", clients, name), func(b *testing.B) {
				used := newCost(c)
				for b.Loop() {
					for range rounds {
						used.run(b, clients, func(i int) func(context.Context) error { return ourWrite(b, server(i), i) })
					}
				}
				used.report(b, leader)
			})
		}
		measure("leader", func(int) *global { return leader })
		measure("spread", func(i int) *global { return c.servers[i%3] })
		measure("follower", func(int) *global { return follower })
	}
}

// cost is the processor time of writes to a cluster.
type cost struct {
	*cluster
	turns
	// used is that of each server, in their order, and own that of the clients.
	used []time.Duration
	own  time.Duration
}

func newCost(c *cluster) *cost { return &cost{cluster: c, used: make([]time.Duration, len(c.servers))} }

// run is turns.run.
func (c *cost) run(b *testing.B, clients int, newClient func(i int) func(context.Context) error) {
	b.Helper()
	own := ownProcessor(b)
	for i, s := range c.servers {
		c.used[i] -= s.processor(b)
	}
	c.turns.run(b, clients, newClient)
	for i, s := range c.servers {
		c.used[i] += s.processor(b)
	}
	c.own += ownProcessor(b) - own
}

// report reports the time of a write at the leader, at the others (their mean), and at
// its client.
func (c *cost) report(b *testing.B, leader *global) {
	b.Helper()
	each := func(used time.Duration) float64 { return float64(used.Microseconds()) / float64(len(c.times)) }
	var others time.Duration
	for i, s := range c.servers {
		if s == leader {
			report(b, "leader-µs/write", each(c.used[i]))
			continue
		}
		others += c.used[i]
	}
	report(b, "follower-µs/write", each(others)/float64(len(c.servers)-1))
	report(b, "client-µs/write", each(c.own))
	report(b, "writes/s", c.rate())
	report(b, "p50-ms", c.times.p50())
}

// ownProcessor is the processor time that this process has used.
func ownProcessor(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
