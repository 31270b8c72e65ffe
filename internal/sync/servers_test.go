package zonesync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// The tests in this file run several servers of one global, each with a store of
// its own, and zones that know more than one of them, in virtual time.

// Addresses of servers.
const (
	serverA = "10.0.0.1:5685"
	serverB = "10.0.0.2:5685"
	serverC = "10.0.0.3:5685"
)

// fleet is the servers of a global.
type fleet struct {
	t       *testing.T
	epoch   store.Epoch
	applied resource.Revision
	// servers by the address at which zones find them.
	servers map[string]*fleetServer

	mu    sync.Mutex // guards named, and who listens
	named []string   // the servers that zones are informed of
}

// names changes which servers zones are informed of.
func (f *fleet) names(addresses ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.named = addresses
}

// fleetServer is one of them.
type fleetServer struct {
	store  *store.Store
	server *Server
	listen *bufconn.Listener // nil: no listener
	hole   bool              // connections are accepted and never answered
	// missed is what it has yet to apply while it lags.
	lags   bool
	missed []func()
	stop   func()
}

func newFleet(t *testing.T, addresses ...string) *fleet {
	f := &fleet{t: t, epoch: store.Epoch{ClusterID: "c1", Incarnation: 1, Random: 7}, servers: map[string]*fleetServer{}}
	for _, address := range addresses {
		s := &fleetServer{store: store.New(memory())}
		f.servers[address] = s
		f.start(address)
	}
	f.apply(store.Txn{SetEpoch: &f.epoch})
	t.Cleanup(func() {
		for _, s := range f.servers {
			if s.listen != nil {
				s.stop()
			}
		}
	})
	return f
}

// start runs a server; it can be started again after its stop.
func (f *fleet) start(address string) {
	s := f.servers[address]
	s.server = NewServer(ServerConfig{
		Name: address, Address: address, Store: s.store, Synced: syncedInTests,
		Authorize:   func(context.Context, string, resource.ZoneName) (until time.Time, err error) { return until, nil },
		Reauthorize: func(resource.Kind) bool { return false },
		Logger:      slog.New(slog.DiscardHandler),
		Servers: func() []string {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.named
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	listen := bufconn.Listen(64 << 10)
	f.mu.Lock()
	s.listen = listen
	f.mu.Unlock()
	g := grpc.NewServer(grpc.ForceServerCodecV2(Codec()), grpc.InTapHandle(Tap))
	syncv1.RegisterSyncServiceServer(g, s.server)
	var running sync.WaitGroup
	running.Go(func() { _ = g.Serve(listen) })
	running.Go(func() { require.NoError(f.t, s.server.Run(ctx)) })
	s.stop = func() {
		cancel()
		g.Stop()
		running.Wait()
		f.mu.Lock()
		s.listen = nil
		f.mu.Unlock()
	}
}

func (f *fleet) apply(txn store.Txn) resource.Revision {
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

func (f *fleet) write(name string) resource.Revision {
	return f.apply(store.Txn{Ops: []store.Op{put(policyKey(name), `{}`)}})
}

// catchUp has a server apply what it missed.
func (s *fleetServer) catchUp() {
	for _, apply := range s.missed {
		apply()
	}
	s.lags, s.missed = false, nil
}

func (f *fleet) dial(ctx context.Context, address string) (net.Conn, error) {
	s := f.servers[address]
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case s.listen == nil:
		return nil, errors.New("connection refused")
	case s.hole:
		near, far := net.Pipe()
		context.AfterFunc(ctx, func() { _ = far.Close() })
		return near, nil
	}
	return s.listen.DialContext(ctx)
}

// zone runs a zone that is given some addresses.
func (f *fleet) zone(name string, addresses []string, options ...zoneOption) *zone {
	z := &zone{store: store.New(memory())}
	rc := ReplicaConfig{Dir: f.t.TempDir(), Zone: resource.ZoneName(name), Decode: decodeOld, Store: z.store}
	cc := ClientConfig{
		Addresses: addresses, Credentials: insecure.NewCredentials(),
		Token:       func(context.Context) (string, error) { return "secret", nil },
		Logger:      slog.New(slog.DiscardHandler),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(f.dial)},
	}
	for _, o := range options {
		o(&rc, &cc)
	}
	var err error
	cc.Replica, err = OpenReplica(rc)
	require.NoError(f.t, err)
	z.replica = cc.Replica
	z.client, err = NewClient(cc)
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { require.NoError(f.t, z.client.Run(ctx)) })
	z.stop = func() {
		cancel()
		running.Wait()
		require.NoError(f.t, z.replica.Close())
	}
	return z
}

// reaches waits until a zone serves a revision and returns how long that took.
func (f *fleet) reaches(z *zone, rev resource.Revision) time.Duration {
	f.t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	require.NoError(f.t, z.store.Wait(ctx, rev), "%+v", z.client.Status())
	return time.Since(began)
}

// fails waits until an attempt of a zone to connect fails for a reason.
func (f *fleet) fails(z *zone, reason string) {
	f.t.Helper()
	for range 1000 {
		if strings.Contains(z.client.Status().LastError, reason) {
			return
		}
		<-time.After(50 * time.Millisecond)
	}
	f.t.Fatalf("not received: %s; %+v", reason, z.client.Status())
}

// at returns the server that a zone is connected to.
func (z *zone) at() string {
	s := z.client.Status()
	if !s.Connected {
		return ""
	}
	return s.Address
}

// TestZoneFindsTheServerThatWorks: whichever it begins with, one that is gone
// and one that is cut off from the others cost a moment.
func TestZoneFindsTheServerThatWorks(t *testing.T) {
	for range 8 { // the first address is drawn
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, serverA, serverB, serverC)
			f.servers[serverA].stop()
			f.servers[serverB].server.Suspend("it has had no leader for 5s")
			rev := f.write("one")
			z := f.zone("east", []string{serverA, serverB, serverC})
			require.LessOrEqual(t, f.reaches(z, rev), 2*backoffFirst, "L2")
			require.Equal(t, serverC, z.at())
			z.stop()
		})
	}
}

// TestSuspendedServerLetsItsZonesGo: they are notified why, follow another server at
// once, and may come back when it is well.
func TestSuspendedServerLetsItsZonesGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, serverA, serverB)
		z := f.zone("east", []string{serverA, serverB})
		f.reaches(z, f.write("one"))
		left := z.at()
		f.servers[left].lags = true
		f.servers[left].server.Suspend("it has had no leader for 5s")
		require.LessOrEqual(t, f.reaches(z, f.write("two")), backoffFirst)
		require.NotEqual(t, left, z.at())
		status, known := zoneOf(f.servers[left].server, "east")
		require.True(t, known)
		require.Equal(t, ZoneOffline, status.State)
		require.Equal(t, "this server does not serve zones now: it has had no leader for 5s", status.LastError)

		f.servers[z.at()].stop()
		f.servers[left].catchUp()
		<-time.After(time.Minute)
		require.Empty(t, z.at())
		f.fails(z, "this server does not serve zones now: it has had no leader for 5s")
		f.fails(z, "connection refused")
		f.servers[left].server.Resume()
		require.LessOrEqual(t, f.reaches(z, f.write("three")), backoffMost+backoffFirst)
		require.Equal(t, left, z.at())
		z.stop()
	})
}

// TestZoneNeverGoesBack is I4 with several servers: one that lags is left, and
// the zone keeps what it has until the server has caught up.
func TestZoneNeverGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, serverA, serverB)
		f.servers[serverB].stop()
		z := f.zone("east", []string{serverA, serverB})
		f.servers[serverB].lags = true
		rev := f.write("one")
		f.reaches(z, rev)
		f.servers[serverA].stop()
		f.start(serverB)
		<-time.After(time.Minute)
		require.Empty(t, z.at())
		require.Equal(t, rev, z.store.View().Revision())
		require.Equal(t, rev, z.replica.Status().Revision)
		f.fails(z, fmt.Sprintf("this server has applied revision 1, the zone has %d", rev))

		f.servers[serverB].catchUp()
		f.reaches(z, f.write("two"))
		require.Equal(t, serverB, z.at())
		z.stop()
	})
}

// TestSilentAddress: one that takes connections and never answers is left for
// the next one.
func TestSilentAddress(t *testing.T) {
	for range 8 { // the first address is drawn
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, serverA, serverB)
			f.servers[serverA].hole = true
			rev := f.write("one")
			z := f.zone("east", []string{serverA, serverB})
			require.LessOrEqual(t, f.reaches(z, rev), connectTimeout+backoffFirst)
			z.stop()
		})
	}
}

// TestZoneLearnsTheServers: given one address it goes to the others when that
// server is gone, also those that come later, and knows them at its next start.
func TestZoneLearnsTheServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, serverA, serverB, serverC)
		f.names(serverA)
		var kept []string
		learning := func(_ *ReplicaConfig, cc *ClientConfig) {
			cc.Learn = func(addresses []string) error {
				kept = addresses
				return nil
			}
		}
		z := f.zone("east", []string{serverA}, learning)
		f.reaches(z, f.write("one"))
		synctest.Wait()
		require.Empty(t, kept, "what is configured need not be learned")
		f.names(serverA, serverB)
		<-time.After(2 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{serverB}, kept)
		f.names(serverA, serverB, serverC)
		f.servers[serverA].stop()
		require.LessOrEqual(t, f.reaches(z, f.write("two")), 2*backoffFirst)
		require.Equal(t, serverB, z.at())
		<-time.After(2 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{serverB, serverC}, kept)
		z.stop()

		f.servers[serverB].stop()
		z = f.zone("east", []string{serverA}, learning, func(_ *ReplicaConfig, cc *ClientConfig) { cc.Known = kept })
		require.LessOrEqual(t, f.reaches(z, f.applied), 3*backoffFirst)
		require.Equal(t, serverC, z.at())
		z.stop()
	})
}

func TestLearnedAddresses(t *testing.T) {
	var kept []string
	failing := errors.New("the disk is full")
	c, err := NewClient(ClientConfig{
		Addresses: []string{"global.example:5685"}, Logger: slog.New(slog.DiscardHandler),
		Learn: func(addresses []string) error {
			kept = addresses
			return failing
		},
	})
	require.NoError(t, err)
	c.learn("global.example:5685", []string{"10.0.0.1:5685", "global.example:5685", "10.0.0.1:5685", "127.0.0.1:5685", "[::1]:5685", "localhost:5685", "nonsense"})
	require.Equal(t, []string{"10.0.0.1:5685"}, kept)
	require.Equal(t, []string{"global.example:5685", "10.0.0.1:5685"}, c.round(""))
	require.Equal(t, []string{"global.example:5685", "10.0.0.1:5685"}, c.round("global.example:5685"), "what was configured comes first")

	kept = nil
	c.learn("10.0.0.1:5685", []string{"global.example:5685", "10.0.0.1:5685"})
	require.Nil(t, kept, "nothing has changed")
	c.learn("global.example:5685", make([]string, maxLearned+1))
	require.Len(t, c.round(""), 2, "too many to be true")
	c.learn("127.0.0.1:5685", []string{"127.0.0.1:5686"})
	require.Equal(t, []string{"127.0.0.1:5686"}, kept, "on this host loopback is a place to go to")
	c.learn("127.0.0.1:5686", nil)
	require.Equal(t, []string{"global.example:5685"}, c.round(""))

	c, err = NewClient(ClientConfig{Addresses: []string{"a:1", "b:1", "c:1"}, Known: []string{"d:1", "e:1"}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	c.learn("a:1", []string{"f:1"})
	require.Equal(t, []string{"c:1", "a:1", "b:1"}, c.round("b:1")[:3], "the last one tried comes last; nothing is learned")
	require.Equal(t, []string{"e:1", "d:1"}, c.round("d:1")[3:])
}
