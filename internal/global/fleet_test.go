package global

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	peerv1 "meridian/api/peer/v1"
	syncv1 "meridian/api/sync/v1"
	"meridian/internal/dial/dialtest"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
	zonesync "meridian/internal/sync"
)

// The tests in this file run three servers of a global, each with a store and
// zones of its own, over gRPC and an in-memory network, in virtual time. What
// raft does is done by hand: every write is applied to every store.

// testFleet is the servers.
type testFleet struct {
	t       *testing.T
	servers map[string]*testServer
	applied resource.Revision
	epoch   store.Epoch
}

type testServer struct {
	name   string
	store  *store.Store
	sync   *zonesync.Server
	fleet  *fleet
	listen *bufconn.Listener
	stop   func()

	mu     sync.Mutex
	down   bool       // guarded by mu: the listener is closed
	hangs  bool       // guarded by mu: it takes connections and never answers
	lags   bool       // what is written is not applied
	missed []func()   // while it lags
	conns  []net.Conn // guarded by mu: to it
	peers  []*grpc.ClientConn
}

func newTestFleet(t *testing.T, names ...string) *testFleet {
	f := &testFleet{t: t, servers: map[string]*testServer{}, epoch: store.Epoch{ClusterID: "c", Incarnation: 1, Random: 1}}
	for _, name := range names {
		f.servers[name] = f.server(name)
	}
	for _, s := range f.servers {
		f.join(s, names)
	}
	f.apply(store.Txn{SetEpoch: &f.epoch})
	t.Cleanup(func() {
		for _, s := range f.servers {
			for _, c := range s.peers {
				_ = c.Close()
			}
			s.stop()
		}
	})
	return f
}

func (f *testFleet) server(name string) *testServer {
	s := &testServer{name: name, store: store.New(store.DefaultOptions()), listen: bufconn.Listen(64 << 10)}
	s.sync = zonesync.NewServer(zonesync.ServerConfig{
		Name: name, Address: name + ":1", Store: s.store, Synced: zonesync.SyncedKinds,
		Authorize:   func(context.Context, string, resource.ZoneName) (until time.Time, err error) { return until, nil },
		Reauthorize: func(resource.Kind) bool { return false },
		Logger:      slog.New(slog.DiscardHandler),
	})
	peers := &peerService{name: name}
	peers.zones.Store(s.sync)
	g := grpc.NewServer(grpc.ForceServerCodecV2(zonesync.Codec()), grpc.InTapHandle(zonesync.Tap))
	syncv1.RegisterSyncServiceServer(g, s.sync)
	peerv1.RegisterZoneServiceServer(g, peers)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = g.Serve(s.listen) })
	running.Go(func() { require.NoError(f.t, s.sync.Run(ctx)) })
	s.stop = func() {
		cancel()
		g.Stop()
		running.Wait()
	}
	return s
}

// join makes the others known to a server.
func (f *testFleet) join(s *testServer, names []string) {
	var others []peer
	for _, name := range names {
		if name == s.name {
			continue
		}
		conn, err := grpc.NewClient("passthrough:"+name, grpc.WithContextDialer(f.servers[name].dial),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: 500 * time.Millisecond}}))
		require.NoError(f.t, err)
		s.peers = append(s.peers, conn)
		others = append(others, peer{name, conn})
	}
	s.fleet = newFleet(s.sync, func() []peer { return others }, slog.New(slog.DiscardHandler))
}

func (s *testServer) dial(ctx context.Context, _ string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, errors.New("connection refused")
	}
	conn, err := s.listen.DialContext(ctx)
	if err == nil {
		conn = dialtest.Hanging(conn, s.isHanging)
		s.conns = append(s.conns, conn)
	}
	return conn, err
}

func (s *testServer) isHanging() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hangs
}

// hang has the network swallow whatever is said to a server and by it.
func (s *testServer) hang(hangs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hangs = hangs
}

// kill ends a server: its connections break and its listener is closed.
func (s *testServer) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = true
	for _, c := range s.conns {
		_ = c.Close()
	}
}

func (f *testFleet) apply(txn store.Txn) resource.Revision {
	f.t.Helper()
	f.applied++
	at := f.applied
	txn.Time = time.Now()
	for _, s := range f.servers {
		apply := func() { require.NoError(f.t, s.store.Apply(at, txn).Err) }
		if s.lags {
			s.missed = append(s.missed, apply)
		} else {
			apply()
		}
	}
	return at
}

// write changes something that zones are sent.
func (f *testFleet) write(name string) resource.Revision {
	f.t.Helper()
	mesh := resourcetest.Build(f.t, "Mesh", "", name, "{}")
	return f.apply(store.Txn{Ops: []store.Op{store.Put(mesh)}})
}

func (s *testServer) catchUp() {
	for _, apply := range s.missed {
		apply()
	}
	s.lags, s.missed = false, nil
}

// fleetZone is a running zone.
type fleetZone struct {
	store  *store.Store
	client *zonesync.Client
	stop   func()
	// hangs: the zone hears nothing, and it sends nothing.
	hangs atomic.Bool
}

// zone runs a zone that knows some of the servers. It answers every question
// with its name and the question, and refuses the question "refuse".
func (f *testFleet) zone(name resource.ZoneName, servers ...string) *fleetZone {
	z := &fleetZone{store: store.New(store.DefaultOptions())}
	replica, err := zonesync.OpenReplica(zonesync.ReplicaConfig{
		Dir: f.t.TempDir(), Zone: name, Store: z.store,
		Decode: func(meta resource.Meta, spec []byte) (*resource.Resource, error) {
			r, _, err := resource.Build(meta, spec)
			return r, err
		},
	})
	require.NoError(f.t, err)
	addresses := make([]string, len(servers))
	for i, s := range servers {
		addresses[i] = s + ":1"
	}
	z.client, err = zonesync.NewClient(zonesync.ClientConfig{
		Replica: replica, Addresses: addresses, Credentials: insecure.NewCredentials(),
		Token:  func(context.Context) (string, error) { return "secret", nil },
		Logger: slog.New(slog.DiscardHandler),
		Answer: func(_ context.Context, question []byte) ([]byte, error) {
			if string(question) == "refuse" {
				return nil, status.Error(codes.NotFound, "no such dataplane")
			}
			return fmt.Appendf(nil, "%s: %s", name, question), nil
		},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			conn, err := f.servers[strings.TrimSuffix(to, ":1")].dial(ctx, to)
			if err == nil {
				conn = dialtest.Hanging(conn, z.hangs.Load)
			}
			return conn, err
		})},
	})
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { require.NoError(f.t, z.client.Run(ctx)) })
	z.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		require.NoError(f.t, replica.Close())
	})
	f.t.Cleanup(z.stop)
	return z
}

// reaches waits until a zone has a revision and has acknowledged it.
func (f *testFleet) reaches(z *fleetZone, rev resource.Revision) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(f.t, z.store.Wait(ctx, rev), "%+v", z.client.Status())
	<-time.After(time.Second) // by then
	synctest.Wait()
}

// TestZonesThroughEveryServer: whichever server is asked, it knows the zones of
// all of them, and asks them.
func TestZonesThroughEveryServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, "a", "b", "c")
		east, west := f.zone("east", "a"), f.zone("west", "b")
		rev := f.write("one")
		f.reaches(east, rev)
		f.reaches(west, rev)
		for name, s := range f.servers {
			c := s.fleet.Status(t.Context())
			require.Empty(t, c.notes(), name)
			require.Equal(t, []resource.ZoneName{"east", "west"}, c.connected(), name)
			require.Len(t, c.zones, 2, name)
			for i, at := range []string{"a", "b"} {
				require.Equal(t, zonesync.ZoneInSync, c.zones[i].State, name)
				require.Equal(t, rev, c.zones[i].Revision, name)
				require.Equal(t, []string{at}, c.zones[i].Servers, name)
				require.Len(t, c.zones[i].Instances, 1, name)
			}
			for _, zone := range c.connected() {
				answer, err := s.fleet.Ask(t.Context(), zone, c.servers[zone], []byte("who are you?"))
				require.NoError(t, err, name)
				require.Equal(t, fmt.Sprintf("%s: who are you?", zone), string(answer))
				_, err = s.fleet.Ask(t.Context(), zone, c.servers[zone], []byte("refuse"))
				require.Equal(t, codes.NotFound, status.Code(err), "%s: the zone's own refusal: %v", name, err)
				require.ErrorContains(t, err, "no such dataplane")
			}
			_, err := s.fleet.Ask(t.Context(), "west", "a", []byte("?"))
			require.ErrorIs(t, err, zonesync.ErrZoneOffline, "%s: a question is passed on once", name)
		}
		east.stop()
		west.stop()
	})
}

// TestServersSpreadTheirZones: servers that look at each other send zones to where there
// are fewer, and know them there.
func TestServersSpreadTheirZones(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, "a", "b")
		a, b := f.servers["a"], f.servers["b"]
		b.kill()
		var zones []*fleetZone
		for i := range 6 {
			zones = append(zones, f.zone(resource.ZoneName(fmt.Sprintf("z-%d", i)), "a", "b"))
		}
		rev := f.write("one")
		for _, z := range zones {
			f.reaches(z, rev)
		}
		b.mu.Lock()
		b.down = false
		b.mu.Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		var looking sync.WaitGroup
		for _, s := range f.servers {
			looking.Go(func() { require.NoError(t, s.fleet.Run(ctx)) })
		}
		<-time.After(3 * time.Minute)
		cancel()
		looking.Wait()
		synctest.Wait()
		require.EqualValues(t, 2, a.sync.Moved())
		at := map[string]int{}
		for _, server := range a.fleet.Status(t.Context()).servers {
			at[server]++
		}
		require.Equal(t, map[string]int{"a": 4, "b": 2}, at)
		rev = f.write("two")
		for _, z := range zones {
			f.reaches(z, rev)
		}
	})
}

// TestZoneOnALaggingServer: its lag is counted against the newest state that any
// server has.
func TestZoneOnALaggingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, "a", "b")
		east := f.zone("east", "b")
		f.reaches(east, f.write("one"))
		f.servers["b"].lags = true
		f.write("two")
		f.write("three")
		<-time.After(2 * time.Second) // by then the zone should have acknowledged them
		for _, s := range f.servers {
			zones := s.fleet.Status(t.Context()).zones
			require.Equal(t, zonesync.ZoneLagging, zones[0].State, s.name)
			require.Equal(t, map[string]uint64{"a": 2, "b": 1}[s.name], zones[0].Lag, "%s: a counts, b knows that there is more", s.name)
		}
		f.servers["b"].catchUp()
		f.reaches(east, f.applied)
		require.Equal(t, zonesync.ZoneInSync, f.servers["a"].fleet.Status(t.Context()).zones[0].State)
		east.stop()
	})
}

// TestServerThatCannotBeAsked is named, and costs a second at most.
func TestServerThatCannotBeAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, "a", "b", "c")
		east, west := f.zone("east", "a"), f.zone("west", "b")
		f.reaches(east, f.write("one"))
		f.reaches(west, f.applied)
		a := f.servers["a"].fleet
		a.Status(t.Context())
		f.servers["b"].hang(true)
		began := time.Now()
		c := a.Status(t.Context())
		require.Equal(t, surveyTimeout, time.Since(began))
		require.Equal(t, []string{"server b could not be asked for its zones: no answer within 1s"}, c.notes())
		for range 5 {
			c = a.Status(t.Context())
		}
		require.Equal(t, surveyTimeout+5*silentTimeout, time.Since(began), "not a second for each question")
		require.Equal(t, []string{"server b could not be asked for its zones: no answer within 1s"}, c.notes())
		require.Equal(t, []resource.ZoneName{"east"}, c.connected())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := a.Ask(ctx, "west", "b", []byte("?"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		f.servers["b"].hang(false)
		f.servers["b"].kill()
		_, err = a.Ask(t.Context(), "west", "b", []byte("?"))
		require.ErrorIs(t, err, zonesync.ErrZoneOffline)
		require.ErrorContains(t, err, "its server b cannot be asked")
		c = a.Status(t.Context())
		require.Len(t, c.silent, 1)
		require.Equal(t, began.Add(surveyTimeout), c.silent[0].since, "since it was first noticed")
		require.Contains(t, c.notes()[0], "connection refused")
		east.stop()
		west.stop()
	})
}

// TestZoneThatIsFrozen costs every question one short wait once it is known, through
// its own server and through others, and is named.
func TestZoneThatIsFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, "a", "b")
		east, west := f.zone("east", "a"), f.zone("west", "b")
		f.reaches(east, f.write("one"))
		f.reaches(west, f.applied)
		west.hangs.Store(true)
		ask := func(through string) (time.Duration, error) {
			d := f.servers[through].fleet
			s := &inspectService{zones: d.Status, asking: d.Ask}
			began := time.Now()
			_, err := s.Inspect(t.Context(), aboutDataplane("west"))
			return time.Since(began), err
		}
		took, err := ask("a")
		require.True(t, rpcerr.HasReason(err, reasonZoneTimeout), "%v", err)
		require.ErrorContains(t, err, `zone "west" is connected and does not answer: it sends nothing`)
		require.LessOrEqual(t, took, 3*time.Second, "not as long as a zone that works on an answer")
		for _, through := range []string{"a", "b", "a"} {
			took, err = ask(through)
			require.True(t, rpcerr.HasReason(err, reasonZoneTimeout), "%v", err)
			require.Equal(t, 100*time.Millisecond, took)
		}
		s := &inspectService{zones: f.servers["a"].fleet.Status, asking: f.servers["a"].fleet.Ask}
		r := s.askEach(t.Context(), s.zones(t.Context()), aboutDataplane(""))
		require.Contains(t, r.absent, answer.Absence{Zone: "west", Reason: "connected, without an answer in time"})
		west.stop()
		east.stop()
	})
}

// waitApplied waits for those of the enabled zones that are connected.
func waitApplied(ctx context.Context, d *fleet, rev resource.Revision, enabled ...resource.ZoneName) ([]string, error) {
	return d.WaitApplied(ctx, zoneWait{
		revision: rev, enabled: func() []resource.ZoneName { return enabled },
		progress: func([]zonesync.ZoneStatus) error { return nil },
	})
}

// TestWaitForEveryEnabledZone: a zone that is offline is waited for and named,
// unless only those that are connected are to be waited for, or it is disabled.
func TestWaitForEveryEnabledZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, "a", "b")
		east := f.zone("east", "a")
		f.reaches(east, f.write("one"))
		d, enabled := f.servers["b"].fleet, []resource.ZoneName{"east", "west"}
		var told [][]string
		w := zoneWait{
			revision: f.applied, all: true, enabled: func() []resource.ZoneName { return enabled },
			progress: func(zones []zonesync.ZoneStatus) error { told = append(told, states(zones)); return nil },
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := d.WaitApplied(ctx, w)
		var late *zonesync.NotAppliedError
		require.ErrorAs(t, err, &late)
		require.Equal(t, []resource.ZoneName{"west"}, late.Zones)
		require.Equal(t, [][]string{{"west offline"}}, told, "told once, for nothing changes")

		notes, err := waitApplied(t.Context(), d, f.applied, enabled...)
		require.NoError(t, err)
		require.Equal(t, []string{fmt.Sprintf("zone west is offline and has yet to apply revision %d", f.applied)}, notes)

		waiting := make(chan error, 1)
		go func() {
			_, err := d.WaitApplied(t.Context(), w)
			waiting <- err
		}()
		<-time.After(2 * time.Second)
		synctest.Wait()
		require.Empty(t, waiting)
		west := f.zone("west", "b")
		require.NoError(t, <-waiting, "it has connected and applied it")
		west.stop()
		east.stop()
		enabled = enabled[:0]
		_, err = d.WaitApplied(t.Context(), w)
		require.NoError(t, err, "none of them is enabled any more")
	})
}

// TestWaitForZonesOfAllServers is --wait=zones: it returns when the zones of
// every server have applied and persisted the revision.
func TestWaitForZonesOfAllServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, "a", "b", "c")
		east, west := f.zone("east", "a"), f.zone("west", "b")
		f.reaches(east, f.write("one"))
		f.reaches(west, f.applied)
		c := f.servers["c"].fleet
		rev := f.write("two")
		began := time.Now()
		notes, err := waitApplied(t.Context(), c, rev, "east", "west")
		require.NoError(t, err)
		require.Empty(t, notes)
		require.Zero(t, time.Since(began), "no poll in between")
		require.Equal(t, rev, west.store.View().Revision())

		f.servers["b"].lags = true
		rev = f.write("three")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err = waitApplied(ctx, c, rev, "east", "west")
		var late *zonesync.NotAppliedError
		require.ErrorAs(t, err, &late)
		require.Equal(t, []resource.ZoneName{"west"}, late.Zones)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		waiting := make(chan error, 1)
		go func() {
			_, err := waitApplied(context.Background(), c, rev, "east", "west")
			waiting <- err
		}()
		<-time.After(3 * time.Second)
		synctest.Wait()
		require.Empty(t, waiting)
		f.servers["b"].catchUp()
		require.NoError(t, <-waiting)
		east.stop()
		west.stop()
	})
}

// TestWaitForAZoneThatChangesServers: it is waited for wherever it goes, also
// when the server it was connected to cannot be asked any more.
func TestWaitForAZoneThatChangesServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, "a", "b", "c")
		west := f.zone("west", "b", "c")
		f.reaches(west, f.write("one"))
		c := f.servers["a"].fleet.Status(t.Context())
		at := f.servers[c.servers["west"]]
		other := f.servers[map[string]string{"b": "c", "c": "b"}[at.name]]
		at.lags, other.lags = true, true
		rev := f.write("two")
		waiting := make(chan error, 1)
		go func() {
			notes, err := waitApplied(context.Background(), f.servers["a"].fleet, rev, "west")
			if err == nil && len(notes) != 1 {
				err = fmt.Errorf("unexpected notes: %q", notes)
			}
			waiting <- err
		}()
		<-time.After(1500 * time.Millisecond)
		at.kill()
		<-time.After(5 * time.Second)
		synctest.Wait()
		require.Empty(t, waiting)
		require.Equal(t, other.name+":1", west.client.Status().Address)
		other.catchUp()
		f.reaches(west, rev)
		<-time.After(2 * time.Second)
		synctest.Wait()
		require.Empty(t, waiting, "the server that was lost may have other zones still")
		require.NoError(t, <-waiting)
		require.Equal(t, rev, west.store.View().Revision())
		west.stop()
	})
}

// TestWaitWithAServerLostLongAgo: it has no zones any more, and is named.
func TestWaitWithAServerLostLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, "a", "b")
		east := f.zone("east", "a")
		f.reaches(east, f.write("one"))
		a := f.servers["a"].fleet
		running, stop := context.WithCancel(context.Background())
		var looking sync.WaitGroup
		looking.Go(func() { _ = a.Run(running) })
		f.servers["b"].kill()
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := waitApplied(ctx, a, f.applied, "east")
		require.EqualError(t, err, fmt.Sprintf("whether revision %d is applied is not known of the zones of b, which have not answered", f.applied))
		notes, err := waitApplied(t.Context(), a, f.applied, "east")
		require.NoError(t, err)
		require.Len(t, notes, 1)
		require.Contains(t, notes[0], fmt.Sprintf("server b cannot be asked whether its zones have applied revision %d: ", f.applied))
		require.Less(t, time.Since(began), silentGrace+2*waitRound)

		<-time.After(time.Minute)
		began = time.Now()
		_, err = waitApplied(t.Context(), a, f.write("two"), "east")
		require.NoError(t, err)
		require.Less(t, time.Since(began), time.Second, "it is known to be lost")
		stop()
		looking.Wait()
		east.stop()
	})
}

// TestServersThatDiffer: the servers have applied the same log, so one that holds
// something else is broken, and every other one says so.
func TestServersThatDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, "a", "b", "c")
		f.write("one")
		look := func() map[string][]string {
			differs := map[string][]string{}
			for name, s := range f.servers {
				s.fleet.Status(t.Context())
				differs[name] = s.fleet.diverged()
			}
			return differs
		}
		none := map[string][]string{"a": nil, "b": nil, "c": nil}
		synctest.Wait()
		require.Equal(t, none, look())
		f.servers["b"].lags = true
		f.write("two")
		synctest.Wait()
		require.Equal(t, none, look(), "it is behind and holds what the others held then")
		f.servers["b"].catchUp()

		// A bit flips in memory.
		f.servers["b"].lags = true
		mesh := resourcetest.Build(t, "Mesh", "", "other", "{}")
		f.write("three")
		require.NoError(t, f.servers["b"].store.Apply(f.applied, store.Txn{Ops: []store.Op{store.Put(mesh)}, Time: time.Now()}).Err)
		synctest.Wait()
		require.Equal(t, map[string][]string{"a": {"b"}, "b": {"a", "c"}, "c": {"b"}}, look(), "the one that differs from both others is the broken one")
	})
}

// TestInspectFollowsAZone: a zone that has gone to another server is asked
// there.
func TestInspectFollowsAZone(t *testing.T) {
	asked := []string{}
	s := zonesThat(nil, "east")
	s.asking = func(_ context.Context, _ resource.ZoneName, server string, _ []byte) ([]byte, error) {
		asked = append(asked, server)
		s.zones = func(context.Context) fleetStatus { return connectedTo("b", "east") }
		if server == "a" {
			return nil, fmt.Errorf("%w: east", zonesync.ErrZoneOffline)
		}
		return nil, nil
	}
	_, err := s.Inspect(t.Context(), aboutDataplane("east"))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, asked)
}

// TestAnswersSayWhatTheyMayLack: zones of a server that cannot be asked.
func TestAnswersSayWhatTheyMayLack(t *testing.T) {
	s := zonesThat(func(resource.ZoneName) (string, uint64, error) { return "{}\n", 7, nil }, "east")
	known := connectedTo("a", "east")
	known.silent = []silentServer{{name: "b", err: errors.New("connection refused")}}
	known.zones = append(known.zones, zonesync.ZoneStatus{Name: "west", State: zonesync.ZoneOffline})
	s.zones = func(context.Context) fleetStatus { return known }
	note := "server b could not be asked for its zones: connection refused"
	r, err := s.Inspect(t.Context(), aboutDataplane(""))
	require.NoError(t, err)
	require.Equal(t, []string{note}, r.GetNotes())
	r, err = s.Inspect(t.Context(), aboutDataplane("east"))
	require.NoError(t, err)
	require.Empty(t, r.GetNotes(), "the zone that was named has answered")
	_, err = s.Inspect(t.Context(), aboutDataplane("west"))
	require.ErrorContains(t, err, "("+note+")")
	known.servers = nil
	_, err = s.Inspect(t.Context(), aboutDataplane(""))
	require.ErrorContains(t, err, "no zone is connected")
	require.ErrorContains(t, err, "("+note+")")
	require.True(t, slices.IsSorted(known.connected()))
}
