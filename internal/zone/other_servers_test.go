package zone

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/controlplane"
	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/service/dataplane"
	"meridian/internal/service/discovery"
	"meridian/internal/store"
	"meridian/internal/xds/feed"
	"meridian/internal/xds/world"
)

// noStreams are no xDS streams.
type noStreams struct{ proxyStreams }

func (noStreams) Status(resource.Key) []discovery.StreamStatus { return nil }

// serverOne is server "one" of a zone, with what it is to others, and a clock that a test sets.
type serverOne struct {
	*zone
	now time.Time
}

func newServerOne(t *testing.T) *serverOne {
	t.Helper()
	s := store.New(store.DefaultOptions())
	w := world.New("east")
	matching := livematch.New(policy.NewMatcher(engines.All()...).Following(w), s)
	one := &serverOne{now: time.Unix(1_000_000, 0)}
	one.zone = &zone{Base: &controlplane.Base{Storage: controlplane.Storage{Store: s}, Name: "one", Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return one.now }}, world: w}
	one.resources = feed.New(matching, w)
	one.others = newOtherServers(one.zone)
	one.others.assembled.Store(true)
	matching.OnUpdate(one.others.touched)
	one.dataplanes = dataplane.New(dataplane.Config{
		Matching: matching, Local: s, Now: one.Now, Log: one.Log, Server: "one", Absent: one.absent, Changed: one.others.changed, Grace: time.Minute,
	})
	one.inspect = &inspectService{zone: "east", matching: matching, xds: noStreams{}, proxies: one.dataplanes, others: one.others, resources: one.resources, world: w}
	one.write(t, store.Put(resourcetest.Build(t, "Mesh", "", "default", "{}")))
	return one
}

func (o *serverOne) write(t *testing.T, ops ...store.Op) {
	t.Helper()
	require.NoError(t, o.Store.Apply(o.Store.Revision()+1, store.Txn{Ops: ops}).Err)
	require.NoError(t, o.inspect.matching.Read(func(*policy.Matcher, resource.Revision) error { return nil }))
}

func (o *serverOne) register(t *testing.T, name string) {
	t.Helper()
	o.write(t, store.Put(resourcetest.Build(t, "Dataplane", "default", name, caller)))
}

// toldStream is the stream of another server, which keeps what it is told.
type toldStream struct {
	grpc.ServerStreamingServer[peerv1.ProxiesResponse]
	ctx  context.Context
	sent chan *peerv1.ProxiesResponse
}

func (s *toldStream) Context() context.Context { return s.ctx }

func (s *toldStream) Send(m *peerv1.ProxiesResponse) error {
	s.sent <- proto.CloneOf(m)
	return nil
}

// Another server is told of all proxies first, and then of what changes: at once what others
// are sent depends on, else within a second, and nothing twice.
func TestProxiesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := newServerOne(t)
		for _, name := range []string{"a", "b", "c"} {
			one.register(t, name)
		}
		hold := func(name string) func() {
			release, err := one.dataplanes.Hold(proxyKey(name))
			require.NoError(t, err)
			return release
		}
		releaseA, releaseB := hold("a"), hold("b")
		ctx, stop := context.WithCancel(t.Context())
		stream := &toldStream{ctx: ctx, sent: make(chan *peerv1.ProxiesResponse, 1000)}
		ended := make(chan error, 1)
		go func() { ended <- one.others.Proxies(&peerv1.ProxiesRequest{}, stream) }()
		told := func(after time.Duration) map[string]*peerv1.ProxyReport {
			<-time.After(after)
			synctest.Wait()
			reports := map[string]*peerv1.ProxyReport{}
			for len(stream.sent) > 0 {
				for _, r := range (<-stream.sent).GetProxies() {
					require.Nil(t, reports[r.GetName()], "%s is told twice", r.GetName())
					reports[r.GetName()] = r
				}
			}
			return reports
		}
		first := told(0)
		require.Len(t, first, 2)
		require.Contains(t, first, "a")
		require.Contains(t, first, "b")
		require.Empty(t, told(10*time.Second))

		one.others.certified(proxyKey("b"), true)
		now := told(0)
		require.Len(t, now, 1)
		require.True(t, now["b"].GetCertified(), "at once")
		releaseA()
		hold("c")
		require.Empty(t, told(0))
		later := told(reviewInterval)
		require.Len(t, later, 2)
		require.True(t, later["a"].GetGone())
		require.False(t, later["c"].GetGone())
		hold("a")
		require.Contains(t, told(reviewInterval), "a")
		releaseB()
		require.True(t, told(reviewInterval)["b"].GetGone())
		hold("b")
		require.False(t, told(reviewInterval)["b"].GetCertified(), "it has to get another certificate first")
		require.Empty(t, told(2*repeatInterval), "also when all are looked at")
		stop()
		require.NoError(t, <-ended)
		require.Empty(t, one.others.told)
	})
}

// What another server says of mutual TLS of its proxy holds here: also for a dataplane that
// was unknown here when it was told, that was removed and registered again, and whose proxy was
// here and has gone there. What this server knows of its own proxies is not overruled.
func TestWhatAnotherServerSaysIsTaken(t *testing.T) {
	one := newServerOne(t)
	a := proxyKey("a")
	certified := func() bool { return !one.world.SetCertified(a, true) } // and so it was not new
	one.others.take("two", []*peerv1.ProxyReport{{Mesh: "default", Name: "a", Identified: true, Certified: true}})
	one.register(t, "a")
	one.others.tellUntold()
	require.True(t, certified())

	one.write(t, store.Delete(a))
	one.register(t, "a")
	one.others.tellUntold()
	require.True(t, certified(), "registered again")

	release, err := one.dataplanes.Hold(a)
	require.NoError(t, err)
	one.others.take("two", []*peerv1.ProxyReport{{Mesh: "default", Name: "a", Identified: true}})
	require.True(t, certified(), "its proxy is here, and another server does not know better")
	release()
	one.others.tellUntold()
	require.False(t, certified(), "its proxy is there")
	require.Empty(t, one.others.untold, "nothing is told again and again")

	require.Equal(t, "two", one.others.serverOf(a))
	require.NotNil(t, one.others.report(a))
	one.others.take("two", []*peerv1.ProxyReport{{Mesh: "default", Name: "a", Gone: true}})
	require.Empty(t, one.others.serverOf(a))
	require.Nil(t, one.others.report(a))
}

// The leader looks after what was registered at a server that is no member, or that has not
// answered for six seconds; no other server does. A server that says nothing for as long is
// not waited for: its proxies have gone to others.
func TestWhoIsAbsent(t *testing.T) {
	one := newServerOne(t)
	o := one.others
	o.members = []string{"one", "three", "two"}
	require.False(t, o.absent("gone"), "it does not lead")
	o.leads = true
	require.True(t, o.absent("gone"))
	require.True(t, o.absent(""), "of a release, or a time, without a label")
	require.False(t, o.absent("two"))
	o.silent["two"] = one.now
	o.lose("two")
	one.now = one.now.Add(absentAfter - time.Nanosecond)
	require.False(t, o.absent("two"))
	require.False(t, o.isLost("two"))
	one.now = one.now.Add(time.Nanosecond)
	require.True(t, o.absent("two"))
	require.True(t, o.isLost("two"))
	o.lose("two")
	require.True(t, o.isLost("two"), "since it was lost first")
	o.take("two", nil)
	require.False(t, o.isLost("two"))
	require.Equal(t, 1, o.unreachable(), "three says nothing yet")
	o.leads = false
	require.False(t, o.absent("gone"))
}
