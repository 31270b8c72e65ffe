package serve

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/xds"
)

var start = time.Unix(1_000_000, 0)

// conversation is a stream with a script.
type conversation struct {
	t      testing.TB
	stream *Stream
	now    time.Time
	nonces [len(xds.Types)]string
	// versions are those of the last responses.
	versions [len(xds.Types)]string
}

func converse(t testing.TB, delta bool, set *xds.Set) *conversation {
	c := &conversation{t: t, now: start, stream: New(Config{Delta: delta, Drain: drain, Memory: &Memory{}})}
	c.stream.SetTarget(set)
	return c
}

func (c *conversation) ask(typ xds.Type, r Request) {
	c.t.Helper()
	r.Type = typ
	require.NoError(c.t, c.stream.Handle(r))
}

// sends requires what is sent next, in order: the type, the names, and those that
// are removed after a minus.
func (c *conversation) sends(want ...string) {
	c.t.Helper()
	var got []string
	for {
		r, ok := c.stream.Next(c.now)
		if !ok {
			break
		}
		c.nonces[r.Type], c.versions[r.Type] = r.Nonce, r.Version
		words := []string{r.Type.String()}
		for _, sent := range r.Resources {
			words = append(words, sent.Name)
		}
		for _, name := range r.Removed {
			words = append(words, "-"+name)
		}
		got = append(got, strings.Join(words, " "))
		require.Less(c.t, len(got), 100, "it does not come to an end: %s", got[len(got)-1])
	}
	require.Equal(c.t, want, got)
}

func (c *conversation) acks(typ xds.Type, names ...string) {
	c.t.Helper()
	c.ask(typ, Request{Nonce: c.nonces[typ], Names: names})
}

func (c *conversation) nacks(typ xds.Type, names ...string) {
	c.t.Helper()
	c.ask(typ, Request{Nonce: c.nonces[typ], Names: names, Rejected: true, Detail: "bad"})
}

func (c *conversation) status(typ xds.Type) TypeStatus { return c.stream.Status(c.now)[typ] }

// envoy is a client of the incremental variant that has a set with one listener,
// routes to cluster a, and that.
func envoy(t *testing.T) *conversation {
	c := converse(t, true, setOf(t, 1, clusterOf(t, "a", 1), endpointsOf(t, "a", 1), routesOf(t, "r", 1, "a"), listenerOf(t, "l", 1, "r")))
	c.ask(xds.Cluster, Request{})
	c.ask(xds.Listener, Request{})
	c.sends("CDS a") // the listener waits
	require.Equal(t, Warming, c.status(xds.Listener).State)
	c.ask(xds.Endpoints, Request{Subscribe: []string{"ea"}})
	c.sends("EDS ea") // Envoy accepts the cluster when it has them
	c.acks(xds.Endpoints)
	c.acks(xds.Cluster)
	c.sends("LDS l")
	c.ask(xds.Route, Request{Subscribe: []string{"r"}})
	c.sends("RDS r")
	c.acks(xds.Listener)
	c.acks(xds.Route)
	c.sends()
	for _, s := range c.stream.Status(c.now) {
		require.Equal(t, TypeStatus{Type: s.Type, State: Synced, Revision: 1, Resources: 1}, s)
	}
	return c
}

// A client that leaves a response unanswered is stale after a while, and what it has not
// accepted is counted, until it answers.
func TestStaleAndBehind(t *testing.T) {
	c := envoy(t)
	next := routesOf(t, "r", 2, "a")
	c.stream.SetTarget(setOf(t, 2, clusterOf(t, "a", 1), endpointsOf(t, "a", 1), next, listenerOf(t, "l", 1, "r")))
	require.Equal(t, 1, c.status(xds.Route).Behind)
	require.Equal(t, Pending, c.stream.Delivery(next))
	c.sends("RDS r")
	c.now = start.Add(staleAfter)
	require.Equal(t, Sent, c.status(xds.Route).State)
	c.now = start.Add(staleAfter + 1)
	require.Equal(t, Stale, c.status(xds.Route).State)
	require.Equal(t, Synced, c.status(xds.Listener).State)
	c.acks(xds.Route)
	c.sends()
	require.Equal(t, TypeStatus{Type: xds.Route, State: Synced, Revision: 2, Resources: 1}, c.status(xds.Route))
	require.Equal(t, Accepted, c.stream.Delivery(next))

	bad := routesOf(t, "r", 3, "a")
	c.stream.SetTarget(setOf(t, 3, clusterOf(t, "a", 1), endpointsOf(t, "a", 1), bad, listenerOf(t, "l", 1, "r")))
	c.sends("RDS r")
	c.nacks(xds.Route)
	c.sends()
	require.Equal(t, Refused, c.stream.Delivery(bad))
	require.Equal(t, Accepted, c.stream.Delivery(next), "it keeps what it had")
	require.Equal(t, 1, c.status(xds.Route).Behind)
	require.Equal(t, NotAsked, c.stream.Delivery(routesOf(t, "other", 1, "a")))
}

func TestMakeBeforeBreak(t *testing.T) {
	c := envoy(t)
	c.stream.SetTarget(setOf(t, 2,
		clusterOf(t, "b", 1), endpointsOf(t, "b", 1), routesOf(t, "r", 2, "b"), listenerOf(t, "m", 1, "r")))
	c.sends("CDS b")
	c.ask(xds.Endpoints, Request{Subscribe: []string{"eb"}})
	c.sends("EDS eb")
	c.acks(xds.Cluster)
	c.acks(xds.Endpoints)
	c.sends("LDS m", "RDS r")
	c.acks(xds.Listener)
	c.sends() // the old listener stays until the routes are there
	c.acks(xds.Route)
	c.sends("LDS -l")
	c.acks(xds.Listener)
	c.sends()
	require.Equal(t, start.Add(drain), c.stream.Wake())
	c.now = start.Add(drain - 1)
	c.sends()
	c.now = start.Add(drain)
	c.sends("CDS -a")
	c.acks(xds.Cluster)
	c.ask(xds.Endpoints, Request{Unsubscribe: []string{"ea"}})
	c.sends()
	require.Zero(t, c.stream.Wake())
}

func TestAChangedClusterHasItsEndpointsSentAgain(t *testing.T) {
	c := envoy(t)
	c.stream.SetTarget(setOf(t, 2, clusterOf(t, "a", 2), endpointsOf(t, "a", 1), routesOf(t, "r", 1, "a"), listenerOf(t, "l", 1, "r")))
	c.sends("CDS a", "EDS ea")
	c.acks(xds.Cluster)
	c.acks(xds.Endpoints)
	c.sends()
}

func TestEndpointsAndRoutesAloneGoAtOnce(t *testing.T) {
	c := envoy(t)
	c.stream.SetTarget(setOf(t, 2, clusterOf(t, "a", 1), endpointsOf(t, "a", 2), routesOf(t, "r", 2, "a"), listenerOf(t, "l", 1, "r")))
	c.sends("EDS ea", "RDS r")
	c.stream.SetTarget(setOf(t, 3, clusterOf(t, "a", 1), endpointsOf(t, "a", 3), routesOf(t, "r", 2, "a"), listenerOf(t, "l", 1, "r")))
	c.stream.SetTarget(setOf(t, 4, clusterOf(t, "a", 1), endpointsOf(t, "a", 4), routesOf(t, "r", 2, "a"), listenerOf(t, "l", 1, "r")))
	c.sends() // one unanswered response
	require.Equal(t, Sent, c.status(xds.Endpoints).State)
	c.acks(xds.Endpoints)
	c.sends("EDS ea") // what came meanwhile, once
}

func TestARejectedBatchIsTakenApart(t *testing.T) {
	c := envoy(t)
	c.stream.SetTarget(setOf(t, 2,
		clusterOf(t, "a", 2), clusterOf(t, "b", 2), clusterOf(t, "c", 2), endpointsOf(t, "a", 1), endpointsOf(t, "b", 1), endpointsOf(t, "c", 1),
		routesOf(t, "r", 2, "a", "b", "c"), listenerOf(t, "l", 1, "r")))
	c.sends("CDS a b c", "EDS ea")
	c.acks(xds.Endpoints)
	c.nacks(xds.Cluster)
	c.sends("CDS a", "EDS ea")
	c.acks(xds.Endpoints)
	c.acks(xds.Cluster)
	c.sends("CDS b")
	c.nacks(xds.Cluster)
	c.sends("CDS c")
	c.acks(xds.Cluster)
	c.sends() // four messages for three changes; the routes would lead to b
	status := c.status(xds.Cluster)
	require.Equal(t, Rejected, status.State)
	require.Len(t, status.Rejections, 1)
	require.Equal(t, "b", status.Rejections[0].Resource.Name)
	require.Equal(t, "bad", status.Rejections[0].Detail)

	c.stream.SetTarget(setOf(t, 3,
		clusterOf(t, "a", 2), clusterOf(t, "b", 3), clusterOf(t, "c", 2), endpointsOf(t, "a", 1), endpointsOf(t, "b", 1), endpointsOf(t, "c", 1),
		routesOf(t, "r", 2, "a", "b", "c"), listenerOf(t, "l", 1, "r")))
	c.sends("CDS b")
	c.acks(xds.Cluster)
	c.sends("RDS r")
}

// A client that has taken on a version of a batch that it rejected, and then rejects the
// next one, is sent the version that it is to keep: it does not have that any more.
func TestWhatARejectedBatchLeftBehindIsReplaced(t *testing.T) {
	c := envoy(t)
	set := func(revision resource.Revision, version int) {
		c.stream.SetTarget(setOf(t, revision, clusterOf(t, "a", version), clusterOf(t, "b", 1),
			endpointsOf(t, "a", 1), endpointsOf(t, "b", 1), routesOf(t, "r", 1, "a"), listenerOf(t, "l", 1, "r")))
	}
	set(2, 2)
	c.sends("CDS a b", "EDS ea")
	c.acks(xds.Endpoints)
	c.nacks(xds.Cluster) // for b: it has the second version of a now
	set(3, 3)
	c.sends("CDS a", "EDS ea")
	c.acks(xds.Endpoints)
	c.nacks(xds.Cluster)
	c.sends("CDS b")
	c.nacks(xds.Cluster)
	r, ok := c.stream.Next(c.now)
	require.True(t, ok)
	require.Equal(t, clusterOf(t, "a", 1).Version, r.Resources[0].Version)
	c.ask(xds.Cluster, Request{Nonce: r.Nonce, Rejected: true})
	c.sends("EDS ea") // and not the same cluster once more
}

// A type is not rejected before it is known of which resource: of several that were
// rejected together, each is sent by itself first.
func TestATypeIsRejectedOnceItIsKnownWhatIs(t *testing.T) {
	c := envoy(t)
	c.stream.SetTarget(setOf(t, 2, clusterOf(t, "a", 2), clusterOf(t, "b", 2),
		endpointsOf(t, "a", 1), endpointsOf(t, "b", 1), routesOf(t, "r", 1, "a"), listenerOf(t, "l", 1, "r")))
	c.sends("CDS a b", "EDS ea")
	c.acks(xds.Endpoints)
	c.nacks(xds.Cluster)
	require.Equal(t, Sent, c.status(xds.Cluster).State, "before they are sent by themselves")
	c.sends("CDS a", "EDS ea")
	c.acks(xds.Endpoints)
	c.acks(xds.Cluster)
	c.sends("CDS b")
	c.nacks(xds.Cluster)
	require.Equal(t, Rejected, c.status(xds.Cluster).State)
	require.Len(t, c.status(xds.Cluster).Rejections, 1)
}

// Another stream of a proxy is not sent what it rejected on the first.
func TestAProxyIsNotSentAgainWhatItRejected(t *testing.T) {
	memory := &Memory{}
	for i := range 2 {
		c := &conversation{t: t, now: start, stream: New(Config{Memory: memory})}
		c.stream.SetTarget(setOf(t, 1, clusterOf(t, "a", 1), endpointsOf(t, "a", 1)))
		c.ask(xds.Cluster, Request{Names: []string{"a"}})
		if i == 1 {
			c.sends("CDS")
			require.Equal(t, Rejected, c.status(xds.Cluster).State)
			continue
		}
		c.sends("CDS a")
		c.nacks(xds.Cluster, "a")
		c.sends()
	}
}

func TestAnOutdatedNonceChangesSubscriptionsAndNothingElse(t *testing.T) {
	c := converse(t, false, setOf(t, 1, clusterOf(t, "a", 1), endpointsOf(t, "a", 1), endpointsOf(t, "b", 1)))
	c.ask(xds.Endpoints, Request{Names: []string{"ea"}})
	c.sends("EDS ea")
	c.ask(xds.Endpoints, Request{Names: []string{"ea", "eb"}, Nonce: "0", Rejected: true})
	c.sends() // the first response is not answered
	require.Equal(t, Sent, c.status(xds.Endpoints).State)
	c.acks(xds.Endpoints, "ea", "eb")
	c.sends("EDS eb")
	c.acks(xds.Endpoints, "ea")
	c.sends()
	c.acks(xds.Endpoints, "ea", "eb")
	c.sends("EDS eb") // the client had dropped it
}

func TestNamesThatDoNotExist(t *testing.T) {
	set := setOf(t, 1, clusterOf(t, "a", 1), endpointsOf(t, "a", 1))
	c := converse(t, true, set)
	for _, typ := range xds.Types {
		c.ask(typ, Request{Subscribe: []string{"x"}})
	}
	c.sends("EDS x", "LDS -x", "RDS -x", "CDS -x")
	for _, typ := range xds.Types {
		c.acks(typ)
	}
	c.sends()

	c = converse(t, false, set)
	for _, typ := range xds.Types {
		c.ask(typ, Request{Names: []string{"x"}})
	}
	c.sends("EDS x", "CDS", "LDS")
	for _, typ := range xds.Types {
		c.acks(typ, "x")
	}
	c.sends()
}

// Nothing of a mesh whose rules cannot be enforced stays in effect.
func TestWhatIsWithheldIsRemoved(t *testing.T) {
	c := envoy(t)
	c.stream.SetTarget(xds.WithheldSet(2, "mTLS"))
	c.sends("LDS -l")
	c.acks(xds.Listener)
	c.sends("RDS -r")
	c.acks(xds.Route)
	c.sends()
	c.now = c.now.Add(drain)
	c.sends("CDS -a")
	c.acks(xds.Cluster)
	for _, typ := range []xds.Type{xds.Cluster, xds.Listener, xds.Route} {
		require.Equal(t, NotSent, c.status(typ).State)
	}
}

func TestNamesAreBounded(t *testing.T) {
	many := make([]string, MaxNames+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for name, r := range map[string]Request{
		"many": {Names: many}, "long": {Names: []string{strings.Repeat("x", MaxNameBytes+1)}},
		"long and incremental": {Subscribe: []string{strings.Repeat("x", MaxNameBytes+1)}}, "many that are unsubscribed": {Unsubscribe: many},
		"long and brought": {Initial: map[string]string{strings.Repeat("x", MaxNameBytes+1): ""}},
	} {
		c := New(Config{Memory: &Memory{}})
		require.ErrorIs(t, c.Handle(r), ErrTooManyNames, name)
	}
	c := New(Config{Delta: true, Memory: &Memory{}})
	require.NoError(t, c.Handle(Request{Type: xds.Endpoints, Subscribe: many[:MaxNames]}))
	require.ErrorIs(t, c.Handle(Request{Type: xds.Endpoints, Subscribe: many[MaxNames:]}), ErrTooManyNames)
}

// A client that brings names along is bounded like one that subscribes to them.
func TestNamesThatAreBroughtCountWithThoseOfTheFirstRequest(t *testing.T) {
	r := Request{Type: xds.Endpoints, Initial: map[string]string{}}
	for i := range MaxNames {
		r.Initial[fmt.Sprint(i)] = "1"
	}
	r.Subscribe = []string{"0"}
	require.NoError(t, New(Config{Delta: true, Memory: &Memory{}}).Handle(r))
	r.Subscribe = []string{"x"}
	require.ErrorIs(t, New(Config{Delta: true, Memory: &Memory{}}).Handle(r), ErrTooManyNames)
}

// The names of a stream are bounded in bytes, too, those of all types together.
func TestTheBytesOfNamesAreBounded(t *testing.T) {
	const n = MaxBytes / 2 / MaxNameBytes
	names := func(from, to int) (all []string) {
		for i := from; i < to; i++ {
			all = append(all, fmt.Sprintf("%0*d", MaxNameBytes, i))
		}
		return all
	}
	for _, delta := range []bool{false, true} {
		c := New(Config{Delta: delta, Memory: &Memory{}})
		for _, typ := range []xds.Type{xds.Cluster, xds.Endpoints} {
			require.NoError(t, c.Handle(Request{Type: typ, Names: names(0, n), Subscribe: names(0, n)}))
		}
		require.NoError(t, c.Handle(Request{Type: xds.Cluster, Names: names(1, n+1), Subscribe: names(n, n+1), Unsubscribe: names(0, 1)}))
		require.ErrorIs(t, c.Handle(Request{Type: xds.Cluster, Names: names(0, n+1), Subscribe: names(0, 1)}), ErrTooManyNames)
	}
	brought := map[string]string{}
	for _, name := range names(0, 2*n) {
		brought[name] = "1"
	}
	c := New(Config{Delta: true, Memory: &Memory{}})
	require.NoError(t, c.Handle(Request{Type: xds.Cluster, Initial: brought, Subscribe: names(0, 2*n)}))
	require.ErrorIs(t, c.Handle(Request{Type: xds.Endpoints, Initial: map[string]string{"x": "1"}}), ErrTooManyNames)
}

// Under a wildcard, names that do not exist are forgotten with the subscription to them:
// a client that asks for ever new ones does not fill the zone's memory.
func TestTheWildcardKeepsNoNamesThatDoNotExist(t *testing.T) {
	for _, delta := range []bool{false, true} {
		t.Run(fmt.Sprintf("delta %v", delta), func(t *testing.T) {
			c := converse(t, delta, setOf(t, 1, clusterOf(t, "a", 1), endpointsOf(t, "a", 1)))
			for round := range 5 {
				names := []string{wildcard}
				for i := range 100 {
					names = append(names, fmt.Sprintf("%d-%d", round, i))
				}
				if delta {
					c.ask(xds.Cluster, Request{Subscribe: names})
					c.ask(xds.Cluster, Request{Unsubscribe: names[1:]})
				} else {
					c.ask(xds.Cluster, Request{Names: names})
				}
				if r, ok := c.stream.Next(c.now); ok {
					c.ask(xds.Cluster, Request{Nonce: r.Nonce, Names: []string{wildcard}})
				}
			}
			require.Len(t, c.stream.types[xds.Cluster].entries, 1)
			require.Equal(t, 1, c.status(xds.Cluster).Resources)

			// What is gone before the client has answered is still to be removed.
			c.stream.SetTarget(setOf(t, 2, clusterOf(t, "b", 1), endpointsOf(t, "b", 1)))
			r, ok := c.stream.Next(c.now)
			require.True(t, ok)
			c.stream.SetTarget(setOf(t, 3))
			c.ask(xds.Cluster, Request{Nonce: r.Nonce, Names: []string{wildcard}})
			c.sends()
			c.now = c.now.Add(drain)
			if delta {
				c.sends("CDS -a -b")
			} else {
				c.sends("CDS")
			}
			c.acks(xds.Cluster, wildcard)
			c.sends()
			require.Empty(t, c.stream.types[xds.Cluster].entries)
		})
	}
}

// That a name has no endpoints is said once, although the client rejects it, and nothing
// is remembered of what does not exist. Endpoints that come later are sent.
func TestARejectedAbsenceIsNotRepeated(t *testing.T) {
	for _, delta := range []bool{false, true} {
		t.Run(fmt.Sprintf("delta %v", delta), func(t *testing.T) {
			c := converse(t, delta, setOf(t, 1))
			c.ask(xds.Endpoints, Request{Names: []string{"ea", "x"}, Subscribe: []string{"ea", "x"}})
			c.sends("EDS ea x")
			c.nacks(xds.Endpoints, "ea", "x")
			c.sends("EDS ea") // each once more, by itself
			c.nacks(xds.Endpoints, "ea", "x")
			c.sends("EDS x")
			c.nacks(xds.Endpoints, "ea", "x")
			c.sends()
			require.True(t, c.stream.cfg.Memory.Empty())
			require.Equal(t, "bad", c.status(xds.Endpoints).Detail)

			c.stream.SetTarget(setOf(t, 2, clusterOf(t, "a", 1), endpointsOf(t, "a", 1)))
			c.sends("EDS ea")
			c.stream.SetTarget(setOf(t, 3)) // meanwhile it is gone again
			c.nacks(xds.Endpoints, "ea", "x")
			require.True(t, c.stream.cfg.Memory.Empty())
			c.sends()
		})
	}
}

// A cluster that is used again before it was removed has all of its drain time when it
// goes for good.
func TestAClusterThatComesBackDrainsAnew(t *testing.T) {
	c := envoy(t)
	without := setOf(t, 2, clusterOf(t, "b", 1), endpointsOf(t, "b", 1), routesOf(t, "r", 2, "b"), listenerOf(t, "l", 1, "r"))
	with := setOf(t, 3, clusterOf(t, "a", 1), endpointsOf(t, "a", 1), clusterOf(t, "b", 1), endpointsOf(t, "b", 1), routesOf(t, "r", 3, "a"), listenerOf(t, "l", 1, "r"))
	c.stream.SetTarget(without)
	c.sends("CDS b")
	c.acks(xds.Cluster)
	c.sends("RDS r")
	c.acks(xds.Route)
	c.sends() // a drains from now
	c.now = c.now.Add(drain / 2)
	c.stream.SetTarget(with)
	c.sends("RDS r")
	c.acks(xds.Route)
	c.sends()
	c.now = c.now.Add(10 * drain)
	c.stream.SetTarget(without)
	c.sends("RDS r")
	c.acks(xds.Route)
	c.sends() // it drains once more
	c.now = c.now.Add(drain)
	c.sends("CDS -a")
}

// Stock clients receive up to 4 MiB.
func TestALargeSetIsSentInParts(t *testing.T) {
	var all []*xds.Resource
	var names []string
	for i := range 3 {
		name := fmt.Sprint(i)
		to := make([]string, 0, 20_000)
		for range 20_000 {
			to = append(to, strings.Repeat("c", 60))
		}
		all = append(all, routesOf(t, name, 1, to...))
		names = append(names, name)
	}
	all = append(all, clusterOf(t, strings.Repeat("c", 60), 1), endpointsOf(t, strings.Repeat("c", 60), 1))
	c := converse(t, false, setOf(t, 1, all...))
	c.ask(xds.Route, Request{Names: names})
	c.sends("RDS 0")
	c.acks(xds.Route, names...)
	c.sends("RDS 1")
	c.acks(xds.Route, names...)
	c.sends("RDS 2")
}

// A client that connects again is told of the endpoints of a cluster that is sent before
// it asks for them, also when it brings them along: Envoy waits for them, 15 s, before it
// uses a cluster that changed.
func TestEndpointsFollowAClusterThatIsSentBeforeTheyAreBrought(t *testing.T) {
	a, e := clusterOf(t, "a", 1), endpointsOf(t, "a", 1)
	c := converse(t, true, setOf(t, 2, clusterOf(t, "a", 2), e))
	c.ask(xds.Cluster, Request{Initial: map[string]string{"a": a.Version}})
	c.sends("CDS a")
	c.ask(xds.Endpoints, Request{Subscribe: []string{"ea"}, Initial: map[string]string{"ea": e.Version}})
	c.sends("EDS ea")
	c.acks(xds.Endpoints)
	c.acks(xds.Cluster)
	c.sends()
}

// What is gone of a service while its callers had no stream keeps its endpoints until
// their routes lead elsewhere.
func TestEndpointsOfBeforeStayUntilRoutesLeadElsewhere(t *testing.T) {
	a, e, r := clusterOf(t, "a", 1), endpointsOf(t, "a", 1), routesOf(t, "r", 1, "a")
	l := listenerOf(t, "l", 1, "r")
	c := converse(t, true, setOf(t, 2, clusterOf(t, "b", 1), endpointsOf(t, "b", 1), routesOf(t, "r", 2, "b"), l))
	c.ask(xds.Cluster, Request{Initial: map[string]string{"a": a.Version}})
	c.ask(xds.Endpoints, Request{Subscribe: []string{"ea"}, Initial: map[string]string{"ea": e.Version}})
	c.ask(xds.Listener, Request{Initial: map[string]string{"l": l.Version}})
	c.ask(xds.Route, Request{Subscribe: []string{"r"}, Initial: map[string]string{"r": r.Version}})
	c.sends("CDS b") // and not that ea has none
	c.ask(xds.Endpoints, Request{Subscribe: []string{"eb"}})
	c.sends("EDS eb")
	c.acks(xds.Endpoints)
	c.acks(xds.Cluster)
	c.sends("RDS r")
	c.now = c.now.Add(10 * drain)
	c.acks(xds.Route)
	c.sends() // a drains from now, and no earlier
	c.now = c.now.Add(drain)
	c.sends("CDS -a")
}

// A cluster that a client brings along drains from when its routes lead elsewhere, also
// when it asks for routes after there was nothing more to send of clusters.
func TestAClusterDrainsFromItsLastUse(t *testing.T) {
	a, b, r, l := clusterOf(t, "a", 1), clusterOf(t, "b", 1), routesOf(t, "r", 1, "a"), listenerOf(t, "l", 1, "r")
	c := converse(t, true, setOf(t, 2, b, endpointsOf(t, "b", 1), routesOf(t, "r", 2, "b"), l))
	c.ask(xds.Cluster, Request{Initial: map[string]string{"a": a.Version, "b": b.Version}})
	c.sends()
	c.ask(xds.Listener, Request{Initial: map[string]string{"l": l.Version}})
	c.ask(xds.Route, Request{Subscribe: []string{"r"}, Initial: map[string]string{"r": r.Version}})
	c.sends("RDS r")
	c.now = c.now.Add(10 * drain)
	c.acks(xds.Route)
	c.sends()
	c.now = c.now.Add(drain)
	c.sends("CDS -a")
}

// What a client of gRPC had is known over its next stream, whatever type it asks for
// first: endpoints and clusters that have gone stay until its routes lead elsewhere, and
// clusters that are new to it are introduced.
// What a client names another version of, it does not have. What no client comes back for is
// forgotten.
