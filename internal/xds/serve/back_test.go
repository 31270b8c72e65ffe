package serve

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/xds"
)

func TestAClientThatComesBackIsSentWhatDiffers(t *testing.T) {
	a, l := clusterOf(t, "a", 1), listenerOf(t, "l", 1, "r")
	c := converse(t, true, setOf(t, 1, a, endpointsOf(t, "a", 1), clusterOf(t, "b", 2), endpointsOf(t, "b", 1), routesOf(t, "r", 1, "a"), l))
	c.ask(xds.Cluster, Request{Initial: map[string]string{"a": a.Version, "b": "old", "gone": "old"}})
	c.ask(xds.Listener, Request{Initial: map[string]string{"l": l.Version, "gone": "old"}})
	c.ask(xds.Endpoints, Request{Subscribe: []string{"ea"}, Initial: map[string]string{"ea": endpointsOf(t, "a", 1).Version}})
	c.sends("CDS b")
	c.acks(xds.Cluster)
	c.sends("LDS -gone")
	c.acks(xds.Listener)
	c.now = c.now.Add(drain)
	c.sends()
	c.now = c.now.Add(drain)
	c.sends("CDS -gone")
}

func TestAGRPCClientThatComesBackKeepsWhatItUses(t *testing.T) {
	names := map[xds.Type][]string{xds.Listener: {"l"}, xds.Route: {"r"}, xds.Cluster: {"a"}, xds.Endpoints: {"ea"}}
	gone := setOf(t, 2, clusterOf(t, "b", 1), endpointsOf(t, "b", 1), routesOf(t, "r", 2, "b"), listenerOf(t, "l", 1, "r"))
	for _, first := range xds.Types {
		c := gRPC(t)
		memory := c.stream.cfg.Memory
		last := c.stream
		last.Leave(c.now)
		require.Positive(t, memory.Bytes())
		c.stream = New(Config{Drain: drain, Memory: memory})
		c.ask(first, Request{Names: names[first], Version: last.types[first].version})
		c.stream.SetTarget(gone)
		for _, typ := range xds.Types {
			if typ != first {
				c.ask(typ, Request{Names: names[typ], Version: last.types[typ].version})
			}
		}
		c.sends("LDS l", "RDS r", "CDS a")
		require.Zero(t, memory.Bytes(), "the stream has it now")
		c.acks(xds.Route, "r")
		c.acks(xds.Cluster, "a")
		c.acks(xds.Listener, "l")
		c.has("ab", 1)
		c.ask(xds.Cluster, Request{Names: []string{"a", "b"}})
		c.sends("CDS a b")
		c.acks(xds.Cluster, "a", "b")
		c.ask(xds.Endpoints, Request{Names: []string{"ea", "eb"}})
		c.sends("EDS eb") // and not that ea has none
		c.acks(xds.Endpoints, "ea", "eb")
		c.sends("RDS r")
		c.acks(xds.Route, "r")
		c.sends()
		c.has("ba", 1)
		c.now = c.now.Add(drain)
		c.sends("RDS r") // which names a no more
		c.acks(xds.Route, "r")
		c.has("b", 1)
		c.sends()
		c.now = c.now.Add(drain)
		c.sends("CDS b")
	}
}

func TestWhatStreamsLeaveIsBounded(t *testing.T) {
	c := gRPC(t)
	memory := c.stream.cfg.Memory
	version := c.stream.types[xds.Cluster].version
	for range 2 * maxLeft {
		c.stream.Leave(c.now)
	}
	require.Len(t, memory.left[xds.Cluster], maxLeft)
	for _, names := range []string{"", "another"} {
		next := &conversation{t: t, now: start, stream: New(Config{Drain: drain, Memory: memory})}
		next.stream.SetTarget(setOf(t, 2))
		next.ask(xds.Cluster, Request{Names: []string{"a"}, Version: names})
		next.sends("CDS")
	}
	require.NotNil(t, memory.resume(xds.Cluster, version))
	memory.ForgetLeft(c.now.Add(-1))
	require.Positive(t, memory.Bytes())
	memory.ForgetLeft(c.now)
	require.True(t, memory.Empty())
	require.Zero(t, memory.Bytes())
}
