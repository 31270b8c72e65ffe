package serve

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"strconv"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

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

// A gRPC client keeps what its calls use while its routes come to lead elsewhere, also when
// the zone has been killed meanwhile and knows nothing but what the client brings along.
func TestAGRPCClientThatComesBackKeepsWhatItUses(t *testing.T) {
	names := map[xds.Type][]string{xds.Listener: {"l"}, xds.Route: {"r"}, xds.Cluster: {"a"}, xds.Endpoints: {"ea"}}
	gone := setOf(t, 2, clusterOf(t, "b", 1), endpointsOf(t, "b", 1), routesOf(t, "r", 2, "b"), listenerOf(t, "l", 1, "r"))
	for _, killed := range []bool{false, true} {
		for _, first := range xds.Types {
			c := gRPC(t)
			memory := c.stream.cfg.Memory
			c.stream.Leave(c.now)
			require.Positive(t, memory.Bytes())
			if killed {
				memory = &Memory{}
			}
			c.stream = New(Config{Drain: drain, Memory: memory})
			c.ask(first, Request{Names: names[first], Version: c.versions[first]})
			c.stream.SetTarget(gone)
			for _, typ := range xds.Types {
				if typ != first {
					c.ask(typ, Request{Names: names[typ], Version: c.versions[typ]})
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
}

// Clusters that routes of a client only name are known as such after a restart: they are
// named for the same time as before, and calls go to them once the client has them.
func TestClustersThatRoutesOnlyNameAreCarried(t *testing.T) {
	c := gRPC(t)
	next := setOf(t, 2, clusterOf(t, "a", 1), endpointsOf(t, "a", 1), clusterOf(t, "b", 1), endpointsOf(t, "b", 1), routesOf(t, "r", 2, "b"), listenerOf(t, "l", 1, "r"))
	c.stream.SetTarget(next)
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.has("ab", 1)

	c.stream = New(Config{Drain: drain, Memory: &Memory{}})
	c.stream.SetTarget(next)
	c.ask(xds.Route, Request{Names: []string{"r"}, Version: c.versions[xds.Route]})
	c.ask(xds.Cluster, Request{Names: []string{"a", "b"}, Version: c.versions[xds.Cluster]})
	c.ask(xds.Endpoints, Request{Names: []string{"ea"}, Version: c.versions[xds.Endpoints]})
	c.sends("CDS a b", "EDS ea")
	c.acks(xds.Cluster, "a", "b")
	c.acks(xds.Endpoints, "ea", "eb")
	c.has("ab", 1)
	c.sends("EDS eb")
	c.acks(xds.Endpoints, "ea", "eb")
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.has("ba", 1)

	c.stream = New(Config{Drain: drain, Memory: &Memory{}})
	c.stream.SetTarget(next)
	c.ask(xds.Route, Request{Names: []string{"r"}, Version: c.versions[xds.Route]})
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.has("ba", 1)
	c.now = c.now.Add(drain - 1)
	c.sends()
	c.now = c.now.Add(1)
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.has("b", 1)
}

// A version that carries what cannot be used, or is made up, is one that carries nothing.
func TestVersionsThatCarryNothingUsable(t *testing.T) {
	c := gRPC(t)
	packed := func(typ xds.Type, messages ...proto.Message) string {
		s := New(Config{Memory: &Memory{}})
		for _, m := range messages {
			r := made(t, m)
			s.types[typ].entries[r.Name] = &entry{held: r}
		}
		return "hash" + s.carried(typ, nil)
	}
	routes := func(name string, hosts int) *routev3.RouteConfiguration {
		m, err := routesOf(t, name, 1, "a").Message()
		require.NoError(t, err)
		config := m.(*routev3.RouteConfiguration)
		for len(config.GetVirtualHosts()) < hosts {
			config.VirtualHosts = append(config.VirtualHosts, config.GetVirtualHosts()[0])
		}
		return config
	}
	_, good, _ := strings.Cut(packed(xds.Route, routes("r", maxCarriedHosts)), carries)
	all, ok := c.stream.unpacked(xds.Route, good)
	require.True(t, ok)
	require.Contains(t, all, "r")

	bomb := make([]byte, 0, 1<<10)
	var out bytes.Buffer
	w := packers.Get().(*flate.Writer)
	w.Reset(&out)
	for range 2 * maxUnpackedBytes / cap(bomb) {
		_, err := w.Write(bomb[:cap(bomb)])
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	_, cluster, _ := strings.Cut(c.versions[xds.Cluster], carries)
	_, hosts, _ := strings.Cut(packed(xds.Route, routes("r", maxCarriedHosts+1)), carries)
	require.NotEmpty(t, hosts)
	left := func(n int) string {
		var names []string
		for i := range n {
			names = append(names, "left"+strconv.Itoa(i))
		}
		config, err := withUnmatched(made(t, routes("r", 1)), names)
		require.NoError(t, err)
		m, err := config.Message()
		require.NoError(t, err)
		_, carried, _ := strings.Cut(packed(xds.Route, m), carries)
		return carried
	}
	all, ok = c.stream.unpacked(xds.Route, left(maxSpares))
	require.True(t, ok)
	require.Len(t, all["r"].variant.spares, maxSpares)
	require.Greater(t, sizeOf(all["r"].held), len(all["r"].held.Body)+maxSpares*perUse, "what it refers to is counted")
	for name, carried := range map[string]string{
		"nothing": "", "no base64": "%", "not packed": "aGVsbG8", "cut": good[:len(good)/2], "another type": cluster, "many hosts": hosts,
		"more clusters without calls than are kept": left(maxSpares + 1),
		"unpacks to more": base64.RawURLEncoding.EncodeToString(out.Bytes()), "long": strings.Repeat("A", maxCarriedBytes+1),
	} {
		_, ok := c.stream.unpacked(xds.Route, carried)
		require.False(t, ok, name)
		next := &conversation{t: t, now: start, stream: New(Config{Drain: drain, Memory: &Memory{}})}
		next.stream.SetTarget(c.stream.set)
		next.ask(xds.Route, Request{Names: []string{"r"}, Version: "hash" + carries + carried})
		require.True(t, next.stream.types[xds.Route].entries["r"].brought, name)
	}

	big := routes("r", 1)
	for i := range 40_000 {
		big.VirtualHosts[0].Domains = append(big.VirtualHosts[0].Domains, strconv.Itoa(i*i*7919))
	}
	require.Equal(t, "hash", packed(xds.Route, big), "too much")
	require.Equal(t, "hash", packed(xds.Route, &routev3.RouteConfiguration{Name: "server"}), "it leads nowhere")
}

// A gRPC server, which asks for no clusters, is sent its permissions at once by a zone that
// has just started.
func TestPermissionsOfAServerDoNotWaitForClusters(t *testing.T) {
	allowed := setOf(t, 1, routesOf(t, "in", 1), listenerOf(t, "l", 1, "in"))
	denied := setOf(t, 2, routesOf(t, "in", 2), listenerOf(t, "l", 1, "in"))
	c := converse(t, false, allowed)
	c.ask(xds.Listener, Request{Names: []string{"l"}})
	c.sends("LDS l")
	c.acks(xds.Listener, "l")
	c.ask(xds.Route, Request{Names: []string{"in"}})
	c.sends("RDS in")
	c.acks(xds.Route, "in")

	c.stream = New(Config{Drain: drain, Memory: &Memory{}})
	c.stream.SetTarget(denied)
	c.ask(xds.Listener, Request{Names: []string{"l"}, Version: c.versions[xds.Listener]})
	c.ask(xds.Route, Request{Names: []string{"in"}, Version: c.versions[xds.Route]})
	c.sends("LDS l", "RDS in")
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
		if names != "" {
			next.sends() // its routes come first
			next.now = start.Add(patience)
		}
		next.sends("CDS")
	}
	require.NotNil(t, memory.resume(xds.Cluster, version))
	memory.ForgetLeft(c.now.Add(-1))
	require.Positive(t, memory.Bytes())
	memory.ForgetLeft(c.now)
	require.True(t, memory.Empty())
	require.Zero(t, memory.Bytes())
}

// A gRPC client whose version carries nothing keeps what is gone until its routes lead
// elsewhere, and its calls to clusters that are new to it wait for a moment.
func TestAGRPCClientOfWhoseRoutesNothingIsKnown(t *testing.T) {
	names := [len(xds.Types)][]string{xds.Cluster: {"a", "c"}, xds.Endpoints: {"ea", "ec"}, xds.Listener: {"l"}, xds.Route: {"r"}}
	for _, first := range xds.Types {
		c := converse(t, false, setOf(t, 2, clusterOf(t, "b", 1), endpointsOf(t, "b", 1), clusterOf(t, "c", 1), endpointsOf(t, "c", 1),
			routesOf(t, "r", 2, "b", "c"), listenerOf(t, "l", 1, "r")))
		c.ask(first, Request{Names: names[first], Version: "before"})
		for _, typ := range xds.Types {
			if typ != first {
				c.ask(typ, Request{Names: names[typ], Version: "before"})
			}
		}
		c.sends("EDS ec", "LDS l", "RDS r") // not that ea has none, nor that a is gone
		r := c.stream.types[xds.Route].out.changes[0].to
		m, err := r.Message()
		require.NoError(t, err)
		routes := m.(*routev3.RouteConfiguration).GetVirtualHosts()[0].GetRoutes()
		require.Len(t, routes, 2)
		require.NotEmpty(t, routes[0].GetTypedPerFilterConfig(), "to b, which is new to the client")
		require.Empty(t, routes[1].GetTypedPerFilterConfig())
		c.acks(xds.Endpoints, "ea", "ec")
		c.acks(xds.Listener, "l")
		c.acks(xds.Route, "r")
		c.sends("CDS c", "EDS ec")
		c.acks(xds.Endpoints, "ea", "ec")
		c.acks(xds.Cluster, "a", "b", "c")
		c.sends("CDS b c", "EDS ea") // it has a no more
		c.acks(xds.Cluster, "b", "c")
		c.acks(xds.Endpoints, "eb", "ec")
		c.sends("EDS eb")
		c.acks(xds.Endpoints, "eb", "ec")
		c.sends("RDS r")
		require.NotEqual(t, r.Version, c.stream.types[xds.Route].out.changes[0].to.Version)
		c.acks(xds.Route, "r")
		c.sends()
		require.Equal(t, TypeStatus{Type: xds.Route, State: Synced, Revision: 2, Resources: 1}, c.status(xds.Route))
	}
}
