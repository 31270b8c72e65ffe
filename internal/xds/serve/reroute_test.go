package serve

import (
	"fmt"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/xds"
)

// gRPC is a client of the variant state of the world that has routes to cluster a, and
// that.
func gRPC(t *testing.T) *conversation {
	set := setOf(t, 1, clusterOf(t, "a", 1), endpointsOf(t, "a", 1), routesOf(t, "r", 1, "a"), listenerOf(t, "l", 1, "r"))
	c := converse(t, false, set)
	c.ask(xds.Listener, Request{Names: []string{"l"}})
	c.sends("LDS l")
	c.acks(xds.Listener, "l")
	c.ask(xds.Route, Request{Names: []string{"r"}})
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.ask(xds.Cluster, Request{Names: []string{"a"}})
	c.sends("CDS a")
	c.acks(xds.Cluster, "a")
	c.ask(xds.Endpoints, Request{Names: []string{"ea"}})
	c.sends("EDS ea")
	c.acks(xds.Endpoints, "ea")
	c.sends()
	return c
}

// held returns the clusters that the routes which the client has refer to, and how many
// of them by routes that can match.
func (c *conversation) held() (clusters string, matching int) {
	r := c.stream.types[xds.Route].entries["r"].held
	m, err := r.Message()
	require.NoError(c.t, err)
	for _, route := range m.(*routev3.RouteConfiguration).GetVirtualHosts()[0].GetRoutes() {
		clusters += route.GetRoute().GetCluster()
		if len(route.GetMatch().GetHeaders()) == 0 {
			matching++
		}
	}
	return clusters, matching
}

func (c *conversation) has(clusters string, matching int) {
	c.t.Helper()
	gotClusters, gotMatching := c.held()
	require.Equal(c.t, clusters, gotClusters)
	require.Equal(c.t, matching, gotMatching)
}

// to is a set that routes to some of the clusters a to c.
func (c *conversation) to(revision resource.Revision, clusters ...string) {
	all := []*xds.Resource{routesOf(c.t, "r", 1, clusters...), listenerOf(c.t, "l", 1, "r")}
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, clusterOf(c.t, name, 1), endpointsOf(c.t, name, 1))
	}
	c.stream.SetTarget(setOf(c.t, revision, all...))
}

func TestNewClustersAreIntroduced(t *testing.T) {
	c := gRPC(t)
	c.to(2, "b")
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.sends()
	c.has("ab", 1)
	require.Equal(t, Warming, c.status(xds.Route).State)
	c.ask(xds.Cluster, Request{Names: []string{"a", "b"}})
	c.sends("CDS a b")
	c.acks(xds.Cluster, "a", "b")
	c.sends()
	c.ask(xds.Endpoints, Request{Names: []string{"ea", "eb"}})
	c.sends("EDS eb")

	// Another change meanwhile begins with the routes of before.
	c.to(3, "b", "c")
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.acks(xds.Endpoints, "ea", "eb")
	c.sends()
	c.has("abc", 1)
	c.ask(xds.Cluster, Request{Names: []string{"a", "b", "c"}})
	c.sends("CDS a b c")
	c.acks(xds.Cluster, "a", "b", "c")
	c.ask(xds.Endpoints, Request{Names: []string{"ea", "eb", "ec"}})
	c.sends("EDS ec")
	c.acks(xds.Endpoints, "ea", "eb", "ec")
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.sends()
	c.has("bca", 2)
	require.Equal(t, TypeStatus{Type: xds.Route, State: Synced, Revision: 3, Resources: 1}, c.status(xds.Route))
}

// What never comes is not waited for longer than 5 s, and what is refused not at all.
func TestAnIntroductionEnds(t *testing.T) {
	c := gRPC(t)
	c.to(2, "b")
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.sends()
	require.Equal(t, start.Add(patience), c.stream.Wake())
	c.now = c.stream.Wake()
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.has("ba", 1)

	c = gRPC(t)
	c.to(2, "b")
	c.sends("RDS r")
	c.nacks(xds.Route, "r")
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.has("b", 1)
	require.True(t, c.stream.cfg.Memory.Empty())

	// Routes that are refused after their clusters were introduced: those of before.
	c = gRPC(t)
	c.to(2, "b")
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.sends()
	c.now = c.stream.Wake()
	c.sends("RDS r")
	c.nacks(xds.Route, "r")
	c.sends("RDS r") // without spare clusters
	c.nacks(xds.Route, "r")
	c.sends()
	c.has("ab", 1)
	require.Equal(t, Rejected, c.status(xds.Route).State)
	c.now = c.stream.Wake()
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.sends()
	c.has("a", 1)
	require.Equal(t, Rejected, c.status(xds.Route).State)
}

// changed has the client take on routes to other clusters, of which it has the last ones.
func (c *conversation) changed(revision resource.Revision, clusters ...string) {
	c.t.Helper()
	c.to(revision, clusters...)
	c.sends("RDS r")
	c.acks(xds.Route, "r")
}

// introduced has the client take on cluster b, beside a.
func (c *conversation) introduced() {
	c.t.Helper()
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.ask(xds.Cluster, Request{Names: []string{"a", "b"}})
	c.sends("CDS a b")
	c.acks(xds.Cluster, "a", "b")
	c.ask(xds.Endpoints, Request{Names: []string{"ea", "eb"}})
	c.sends("EDS eb")
	c.acks(xds.Endpoints, "ea", "eb")
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.sends()
}

// Routes name clusters that calls have left for the drain time, in which calls can come
// back to them at once.
func TestClustersStayNamedAfterCallsHaveLeft(t *testing.T) {
	c := gRPC(t)
	c.to(2, "b")
	c.introduced()
	c.has("ba", 1)
	require.Equal(t, TypeStatus{Type: xds.Route, State: Synced, Revision: 2, Resources: 1}, c.status(xds.Route))
	for revision := resource.Revision(3); revision < 9; revision += 2 {
		c.now = c.now.Add(drain - time.Second)
		c.changed(revision, "a")
		c.has("ab", 1)
		c.changed(revision+1, "b")
		c.has("ba", 1)
	}
	c.sends()
	require.Equal(t, c.now.Add(drain), c.stream.Wake(), "since it was left the last time")
	c.now = c.stream.Wake()
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.has("b", 1)

	// Not more than some, of which the oldest go first.
	spares := map[string]time.Time{"old": start, "older": start.Add(-1)}
	for i := range maxSpares - 1 {
		spares = spared(spares, fmt.Sprint(i), start.Add(1))
	}
	require.Len(t, spares, maxSpares)
	require.Contains(t, spares, "old")
	require.NotContains(t, spares, "older")
}

// A cluster that no routes name any more is not named again before the client has given
// it up, or has not for 5 s.
func TestAClusterComesBackOnceItIsGivenUp(t *testing.T) {
	left := func() *conversation {
		c := gRPC(t)
		c.to(2, "b")
		c.introduced()
		c.now = c.now.Add(drain)
		c.sends("RDS r")
		c.acks(xds.Route, "r")
		c.has("b", 1)
		c.to(3, "a")
		c.sends()
		require.Equal(t, Warming, c.status(xds.Route).State)
		require.Equal(t, c.now.Add(patience), c.stream.Wake())
		return c
	}
	c := left()
	c.ask(xds.Cluster, Request{Names: []string{"b"}, Nonce: c.nonces[xds.Cluster]})
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.has("ba", 1)

	c = left()
	c.now = c.stream.Wake()
	c.sends("RDS r")
	c.acks(xds.Route, "r")
	c.has("ba", 1)
}
