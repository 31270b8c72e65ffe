package dataplane

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// pair is a zone of two servers, a and b, on one store. b leads.
type pair struct {
	a, b *world

	mu     sync.Mutex
	absent map[string]bool
}

func (p *pair) lose(server string) {
	p.mu.Lock()
	p.absent[server] = true
	p.mu.Unlock()
	p.b.service.Adopt()
}

// inPair runs a test in virtual time on a zone of two servers.
func inPair(t *testing.T, run func(t *testing.T, p *pair)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &pair{a: newWorld(t), absent: map[string]bool{}}
		p.b = &world{t: t, replica: p.a.replica, local: p.a.local, auth: p.a.auth, issuer: p.a.issuer, grace: p.a.grace, has: map[string]bool{}, turns: turns.NewServer()}
		p.a.server, p.b.server = "a", "b"
		p.a.absent = func(string) bool { return false }
		p.b.absent = func(server string) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.absent[server]
		}
		p.a.open()
		p.b.open()
		defer func() { p.a.end(); p.b.end() }()
		run(t, p)
	})
}

// at is the server at which a dataplane is registered, "none" where it is not.
func (w *world) at(name string) string {
	if r, ok := w.stored(name); ok {
		return registeredAt(r)
	}
	return "none"
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// A registration follows its proxy from one server to another: it is written once, the older
// stream ends, and it goes when the proxy leaves the one that it went to.
func TestARegistrationMovesWithItsProxy(t *testing.T) {
	inPair(t, func(t *testing.T, p *pair) {
		token := p.a.token("")
		old := p.a.connect(token, "web-1", dataplaneSpec("web"))
		synctest.Wait()
		require.Equal(t, "a", p.a.at("web-1"))
		first, _ := p.a.stored("web-1")

		now := p.b.connect(token, "web-1", dataplaneSpec("web"))
		synctest.Wait()
		require.Equal(t, "b", p.a.at("web-1"))
		moved, _ := p.a.stored("web-1")
		require.Equal(t, first.Meta().Version+1, moved.Meta().Version)
		require.Equal(t, first.Meta().CreationTime, moved.Meta().CreationTime)
		require.True(t, old.over())
		code, text := old.refused()
		require.Equal(t, codes.FailedPrecondition, code)
		require.Contains(t, text, "took the place of this one")
		require.Empty(t, p.a.service.proxies)
		pass(3 * DefaultGrace)
		require.Equal(t, "b", p.a.at("web-1"), "the server that it left does not remove it")
		require.True(t, p.b.state("web-1").Connected)
		require.False(t, p.a.state("web-1").Connected)

		now.leave()
		pass(DefaultGrace - time.Second)
		require.Equal(t, "b", p.a.at("web-1"))
		pass(2 * time.Second)
		require.Equal(t, "none", p.a.at("web-1"))
		require.Empty(t, p.b.service.proxies)
	})
}

// A proxy that leaves one server and comes to another within the grace period keeps its
// registration, however close to the end of that.
func TestARegistrationMovesWithinTheGracePeriod(t *testing.T) {
	inPair(t, func(t *testing.T, p *pair) {
		token := p.a.token("")
		p.a.connect(token, "web-1", dataplaneSpec("web")).leave()
		pass(DefaultGrace - time.Millisecond)
		p.b.connect(token, "web-1", dataplaneSpec("web"))
		pass(3 * DefaultGrace)
		require.Equal(t, "b", p.a.at("web-1"))
	})
}

// What was registered at a server that is gone is looked after by the leader: it goes after
// the grace period, unless its proxy comes back.
func TestTheLeaderLooksAfterALostServer(t *testing.T) {
	inPair(t, func(t *testing.T, p *pair) {
		token := p.a.token("")
		p.a.connect(token, "web-1", dataplaneSpec("web"))
		p.a.connect(token, "web-2", dataplaneSpec("web"))
		synctest.Wait()
		p.a.stop()
		pass(3 * DefaultGrace)
		require.Equal(t, "a", p.b.at("web-1"), "for all that b knows, its proxy is connected to a")

		p.lose("a")
		pass(DefaultGrace / 2)
		p.b.connect(token, "web-2", dataplaneSpec("web"))
		pass(DefaultGrace/2 - time.Second)
		require.Equal(t, "a", p.b.at("web-1"))
		pass(2 * time.Second)
		require.Equal(t, "none", p.b.at("web-1"))
		require.Equal(t, "b", p.b.at("web-2"))
	})
}

// A server that returns within the grace period looks after its registrations again.
func TestALostServerReturns(t *testing.T) {
	inPair(t, func(t *testing.T, p *pair) {
		token := p.a.token("")
		p.a.connect(token, "web-1", dataplaneSpec("web"))
		synctest.Wait()
		p.a.stop()
		p.lose("a")
		pass(DefaultGrace / 2)
		p.a.open()
		p.a.connect(token, "web-1", dataplaneSpec("web"))
		p.mu.Lock()
		delete(p.absent, "a")
		p.mu.Unlock()
		pass(3 * DefaultGrace)
		require.Equal(t, "a", p.a.at("web-1"))
		require.True(t, p.a.state("web-1").Connected)
	})
}

// What was registered before the zone had several servers is adopted by the leader, and says
// where it is once its proxy has come back.
func TestRegistrationsOfAZoneOfOneServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.open()
		token := w.token("")
		w.connect(token, "web-1", dataplaneSpec("web"))
		w.connect(token, "web-2", dataplaneSpec("web"))
		synctest.Wait()
		require.Empty(t, w.at("web-1"))
		w.stop()
		w.server, w.absent = "a", func(server string) bool { return server == "" }
		w.open()
		defer w.end()
		w.connect(token, "web-1", dataplaneSpec("web"))
		pass(2 * DefaultGrace)
		require.Equal(t, "a", w.at("web-1"))
		require.Equal(t, "none", w.at("web-2"))
	})
}

// A server that is cut off sends its proxies elsewhere, takes none, and removes nothing; when
// it is no longer, the grace periods begin anew.
func TestAServerThatIsCutOff(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		token := w.token("")
		away := w.connect(token, "web-1", dataplaneSpec("web"))
		held := w.connect(token, "web-2", dataplaneSpec("web"))
		synctest.Wait()
		release, err := w.service.Hold(policy.DataplaneKey("default", "web-2"))
		require.NoError(t, err)
		defer release()
		w.service.Suspend(true)
		synctest.Wait()
		for _, p := range []*proxyClient{away, held, w.connect(token, "web-3", dataplaneSpec("web"))} {
			synctest.Wait()
			code, text := p.refused()
			require.Equal(t, codes.Unavailable, code)
			require.Contains(t, text, "cut off")
		}
		pass(3 * DefaultGrace)
		_, stored := w.stored("web-1")
		require.True(t, stored)

		w.service.Suspend(false)
		pass(DefaultGrace - time.Second)
		_, stored = w.stored("web-1")
		require.True(t, stored)
		pass(2 * time.Second)
		_, stored = w.stored("web-1")
		require.False(t, stored)
		_, stored = w.stored("web-2")
		require.True(t, stored, "its xDS streams hold it")
	})
}

// A dataplane that an operator applied is attended where its agent has an identity from
// another server.
func TestAttendedElsewhere(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.operator("web-1", dataplaneSpec("web"))
		w.operator("web-2", dataplaneSpec("web"))
		synctest.Wait()
		w.service.Attended(policy.DataplaneKey("default", "web-1"))
		w.service.Attended(policy.DataplaneKey("default", "absent"))
		pass(2 * DefaultGrace)
		require.Equal(t, []string{"web-2"}, w.unattended)
		w.operatorDelete("web-1")
		synctest.Wait()
		require.Empty(t, w.service.elsewhere)
	})
}

// Every server of a zone that drains counts all that is left, wherever it is registered: the
// global is told of it while one is away, and while none leads.
func TestServersCountAllThatIsLeft(t *testing.T) {
	inPair(t, func(t *testing.T, p *pair) {
		token := p.a.token("")
		p.a.operator("manual", dataplaneSpec("db"))
		p.a.connect(token, "web-1", dataplaneSpec("web"))
		p.b.connect(token, "web-2", dataplaneSpec("web"))
		synctest.Wait()
		for _, w := range []*world{p.a, p.b} {
			all, applied := w.service.Left()
			require.Equal(t, []int{3, 1}, []int{all, applied})
		}
		p.a.stop()
		all, applied := p.b.service.Left()
		require.Equal(t, []int{3, 1}, []int{all, applied})
	})
}

// A restore leaves registrations as they are: they are of the proxies that are there. What
// operators applied is restored.
func TestARestoreKeepsRegistrations(t *testing.T) {
	registered := func(name string) *resource.Resource {
		r := resourcetest.Build(t, "Dataplane", "default", name, dataplaneSpec("web"))
		return r.WithMeta(resource.Meta{Key: r.Key(), Labels: map[string]string{LabelRegisteredBy: ByProxy}})
	}
	applied := func(name string) *resource.Resource {
		return resourcetest.Build(t, "Dataplane", "default", name, dataplaneSpec("web"))
	}
	mesh := resourcetest.Build(t, "Mesh", "", "default", "{}")
	s := store.New(store.DefaultOptions())
	require.NoError(t, s.Apply(1, store.Txn{Ops: []store.Op{
		store.Put(mesh), store.Put(registered("now")), store.Put(registered("both")), store.Put(applied("applied-since")),
	}}).Err)
	names := func(all []*resource.Resource) (names []string) {
		for _, r := range all {
			names = append(names, r.Key().Name)
		}
		slices.Sort(names)
		return names
	}
	saved := []*resource.Resource{registered("then"), applied("both"), applied("applied")}
	require.Equal(t, []string{"applied", "both", "now"}, names(KeepRegistrations(s.View(), saved, true)))
	require.Equal(t, []string{"applied", "both"}, names(KeepRegistrations(s.View(), saved, false)), "its mesh is not there any more")
	require.Equal(t, []string{"applied", "both", "default", "now"}, names(KeepRegistrations(s.View(), append(saved, mesh), false)))
	require.Len(t, saved, 3)
}
