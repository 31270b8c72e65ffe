package zonesync

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/dial/dialtest"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// The tests in this file run a real server and real clients over gRPC and an
// in-memory network, in virtual time.

const zoneKind = resource.Kind("Zone")

// cluster is a global and its zones.
type cluster struct {
	t      testing.TB
	global *globalSim
	server *Server
	valid  atomic.Pointer[string] // the token that authorizes
	lis    atomic.Pointer[bufconn.Listener]
	grpc   *grpc.Server
	stop   func()

	diskFull atomic.Bool  // of every zone
	syncs    atomic.Int64 // how many syncs of zones fail from now on
	// writing, unless nil, is what every zone's write waits for.
	writing atomic.Pointer[chan struct{}]
}

// failingDisk waits when it is told to, does not write while its disk is full, and fails to sync what it
// has written: bbolt's new root page is then in the file, and its fdatasync has
// returned an error.
type failingDisk struct {
	replicaStore
	full  *atomic.Bool
	syncs *atomic.Int64
	// writing is the cluster's.
	writing *atomic.Pointer[chan struct{}]
}

func (d failingDisk) save(writes []write, state *syncv1.ReplicaState) error {
	if wait := d.writing.Load(); wait != nil {
		<-*wait
	}
	if d.full.Load() {
		return syscall.ENOSPC
	}
	err := d.replicaStore.save(writes, state)
	if err == nil && d.syncs.Add(-1) >= 0 {
		err = syscall.EIO
	}
	return err
}

func newCluster(t testing.TB) *cluster {
	c := &cluster{t: t, global: newGlobalSim(t, 1<<20)}
	c.global.now = time.Now()
	token := "secret"
	c.valid.Store(&token)
	c.start()
	return c
}

// start runs the server; it can be started again after stop.
func (c *cluster) start() {
	c.server = NewServer(ServerConfig{
		Store: c.global.store, Synced: func(k resource.Kind) bool { return k == policyKind },
		Authorize: func(_ context.Context, token string, zone resource.ZoneName) error {
			if token != *c.valid.Load() {
				return fmt.Errorf("the token does not name zone %s", zone)
			}
			return nil
		},
		Reauthorize: func(k resource.Kind) bool { return k == zoneKind },
		Logger:      slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	lis := bufconn.Listen(64 << 10)
	c.lis.Store(lis)
	c.grpc = grpc.NewServer()
	syncv1.RegisterSyncServiceServer(c.grpc, c.server)
	var running sync.WaitGroup
	running.Go(func() { _ = c.grpc.Serve(lis) })
	running.Go(func() { require.NoError(c.t, c.server.Run(ctx)) })
	c.stop = func() {
		cancel()
		c.grpc.Stop()
		running.Wait()
	}
}

func (c *cluster) dial(ctx context.Context, _ string) (net.Conn, error) {
	return c.lis.Load().DialContext(ctx)
}

// zone is a running zone.
type zone struct {
	replica *Replica
	client  *Client
	store   *store.Store
	stop    func()
}

type zoneOption func(*ReplicaConfig, *ClientConfig)

func (c *cluster) zone(name, dir string, options ...zoneOption) *zone {
	z := &zone{store: store.New(memory())}
	rc := ReplicaConfig{Dir: dir, Zone: resource.ZoneName(name), Decode: decodeOld, Store: z.store}
	cc := ClientConfig{
		Addresses: []string{"global:1"}, Credentials: insecure.NewCredentials(),
		Token:       func(context.Context) (string, error) { return "secret", nil },
		Logger:      slog.New(slog.DiscardHandler),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(c.dial)},
	}
	for _, o := range options {
		o(&rc, &cc)
	}
	r, err := OpenReplica(rc)
	require.NoError(c.t, err)
	z.start(c, r, cc)
	return z
}

// attach runs a client for a replica that is open, over TCP.
func (c *cluster) attach(r *Replica, s *store.Store, address string) *zone {
	z := &zone{store: s}
	z.start(c, r, ClientConfig{
		Addresses: []string{address}, Credentials: insecure.NewCredentials(),
		Token:  func(context.Context) (string, error) { return "secret", nil },
		Logger: slog.New(slog.DiscardHandler),
	})
	return z
}

func (z *zone) start(c *cluster, r *Replica, cc ClientConfig) {
	z.replica = r
	z.replica.disk = failingDisk{replicaStore: z.replica.disk, full: &c.diskFull, syncs: &c.syncs, writing: &c.writing}
	cc.Replica = z.replica
	var err error
	z.client, err = NewClient(cc)
	require.NoError(c.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { require.NoError(c.t, z.client.Run(ctx)) })
	z.stop = func() {
		cancel()
		running.Wait()
		require.NoError(c.t, z.replica.Close())
	}
}

// write writes to the global, with the feed of the simulation out of the way:
// the server has its own.
func (c *cluster) write(ops ...store.Op) resource.Revision {
	c.global.feed = nil
	return c.global.write(ops...)
}

func (c *cluster) synced(z *zone) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(c.t, c.visible(z))
	require.NoError(c.t, c.server.WaitApplied(ctx, c.global.applied))
}

func (c *cluster) state(name string) ZoneStatus {
	s, _ := c.server.Zone(resource.ZoneName(name))
	return s
}

func TestStreamFollowsReconnectsAndRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		c := newCluster(t)
		c.write(put(policyKey("a"), `{}`))
		z := c.zone("east", dir)
		c.synced(z)
		require.Equal(t, ZoneInSync, c.state("east").State)
		c.write(put(policyKey("b"), `{}`), put(resource.Key{Kind: secretKind, Name: "s"}, `{}`))
		c.synced(z)
		_, leaked := z.store.View().Get(resource.Key{Kind: secretKind, Name: "s"})
		require.False(t, leaked, "I11")

		c.stop() // the global goes away
		synctest.Wait()
		require.False(t, z.client.Status().Connected)
		require.Equal(t, 2, z.store.View().Len(), "I10: a disconnection deletes nothing")
		z.stop()
		z = c.zone("east", dir) // L3: a zone starts without it
		require.Equal(t, 2, z.store.View().Len())

		c.write(store.Delete(policyKey("a")))
		c.start()
		began := time.Now()
		c.synced(z)
		require.LessOrEqual(t, time.Since(began), backoffMost, "L2")
		require.Equal(t, 1, z.store.View().Len())
		z.stop()
		synctest.Wait()
		require.Equal(t, ZoneOffline, c.state("east").State)
		c.stop()
	})
}

// TestConnectedZoneFollowsARestore: a zone that is connected while a backup is
// restored is notified that the history was replaced, connects again and takes the
// state over by itself; one that would lose too much waits for its operator.
func TestConnectedZoneFollowsARestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		for i := range 20 {
			c.write(put(policyKey(fmt.Sprintf("p-%d", i)), `{}`))
		}
		saved := c.global.store.View()
		c.write(put(policyKey("late"), `{}`))
		z := c.zone("east", t.TempDir())
		c.synced(z)

		c.global.restore(saved)
		began := time.Now()
		c.synced(z)
		require.LessOrEqual(t, time.Since(began), backoffMost, "L2")
		require.Equal(t, c.global.store.View().Epoch(), z.replica.Status().Epoch)
		require.Equal(t, imageOf(c.global.store.View()), imageOf(z.store.View()))
		require.Equal(t, ZoneInSync, c.state("east").State)

		var many []store.Op
		for i := range 200 {
			many = append(many, put(policyKey(fmt.Sprintf("many-%d", i)), `{}`))
		}
		c.write(many...)
		c.synced(z)
		served := imageOf(z.store.View())
		c.global.restore(saved)
		<-time.After(time.Minute)
		require.Equal(t, served, imageOf(z.store.View()), "I10: held")
		require.Equal(t, ZoneLagging, c.state("east").State)
		require.Contains(t, c.state("east").LastError, "--accept-wipe")
		c.write(put(policyKey("another"), `{}`))
		<-time.After(time.Minute)
		require.Equal(t, served, imageOf(z.store.View()))
		z.replica.AcceptWipe(Wipe{Incarnation: c.global.store.View().Epoch().Incarnation, Revision: c.global.store.Revision()})
		c.synced(z)
		require.Equal(t, imageOf(c.global.store.View()), imageOf(z.store.View()))
		require.Equal(t, ZoneInSync, c.state("east").State)
		z.stop()
		c.stop()
	})
}

// TestHeartbeat: an idle stream carries a bookmark and an Ack a second; a zone
// that hears nothing for ten connects again.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var hung atomic.Bool
		z := c.zone("east", t.TempDir(), func(_ *ReplicaConfig, cc *ClientConfig) {
			cc.DialOptions = append(cc.DialOptions, grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) {
				conn, err := c.dial(ctx, a)
				return dialtest.Hanging(conn, hung.Load), err
			}))
		})
		c.synced(z)
		for range 30 {
			<-time.After(time.Second)
			synctest.Wait()
			require.LessOrEqual(t, time.Since(c.state("east").LastSeen), time.Second)
			require.Equal(t, ZoneInSync, c.state("east").State)
		}
		hung.Store(true) // the network swallows everything, both ways
		<-time.After(staleAfter + 2*time.Second)
		require.Equal(t, ZoneStale, c.state("east").State)
		<-time.After(silenceAfter - staleAfter)
		require.False(t, z.client.Status().Connected)
		require.Contains(t, z.client.Status().LastError, "nothing received")
		hung.Store(false)
		c.write(put(policyKey("a"), `{}`))
		c.synced(z)
		require.Len(t, c.state("east").Instances, 1, "the older connection was replaced")
		z.stop()
		c.stop()
	})
}

// TestDisabledZoneIsCutOff is §7.7: within a second, with the reason.
func TestDisabledZoneIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		z := c.zone("east", t.TempDir())
		c.synced(z)
		other := "another"
		c.valid.Store(&other)
		began := time.Now()
		c.write(put(resource.Key{Kind: zoneKind, Name: "east"}, `{"enabled":false}`))
		synctest.Wait()
		require.Less(t, time.Since(began), time.Second)
		require.False(t, z.client.Status().Connected)
		require.Contains(t, z.client.Status().LastError, "no longer authorized")
		require.Contains(t, c.state("east").LastError, "no longer authorized")
		<-time.After(time.Minute)
		require.Contains(t, z.client.Status().LastError, "is not authorized: the token does not name zone east")

		token := "secret"
		c.valid.Store(&token)
		<-time.After(backoffMost + time.Second)
		require.True(t, z.client.Status().Connected)
		z.stop()
		c.stop()
	})
}

// TestStalledReaderDelaysNoOther is L4 and the progress watchdog: a zone that
// does not read is cut off after a minute, and meanwhile delays no other.
// Nothing is kept of a zone that was deleted, connected or not.
func TestADeletedZoneIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		key := func(zone string) resource.Key { return resource.Key{Kind: zoneKind, Name: zone} }
		c.write(put(key("east"), `{}`), put(key("west"), `{}`))
		east, west := c.zone("east", t.TempDir()), c.zone("west", t.TempDir())
		c.synced(east)
		c.synced(west)
		west.stop()
		synctest.Wait()
		require.Len(t, c.server.Zones(), 2, "one is away, and remembered")

		other := "another"
		c.valid.Store(&other)
		c.write(store.Delete(key("east")), store.Delete(key("west")))
		synctest.Wait()
		<-time.After(time.Minute)
		require.False(t, east.client.Status().Connected)
		require.Empty(t, c.server.Zones())
		require.Empty(t, c.server.registry.zones)
		east.stop()
		c.stop()
	})
}

// neverReads opens a stream as a zone does, in the fewest bytes, and reads nothing of
// what comes back.
func neverReads(t testing.TB, address string, hello *syncv1.Hello) net.Conn {
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	var fields bytes.Buffer
	encoder := hpack.NewEncoder(&fields)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", syncv1.SyncService_Stream_FullMethodName},
		{":authority", "global"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
		{"authorization", "Bearer secret"},
	} {
		require.NoError(t, encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
	}
	message, err := proto.Marshal(&syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Hello{Hello: hello}})
	require.NoError(t, err)
	framed := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	_, err = conn.Write([]byte(http2.ClientPreface))
	require.NoError(t, err)
	frames := http2.NewFramer(conn, nil)
	require.NoError(t, frames.WriteSettings())
	require.NoError(t, frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields.Bytes(), EndHeaders: true}))
	require.NoError(t, frames.WriteData(1, false, append(framed, message...)))
	return conn
}

// zonesThatDoNotRead opens a stream of each of many zones, over real sockets, which
// resume or are sent everything, and reads nothing of them. It returns once the window
// of each is full; begin is called before the first opens.
func zonesThatDoNotRead(t testing.TB, zones int, mode string, begin func()) (c *cluster, address string, stop func()) {
	c = newCluster(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.ReadBufferSize(0)) // as servers do
	syncv1.RegisterSyncServiceServer(server, c.server)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(lis) })
	big := func(v int) string { return fmt.Sprintf(`{"x":"%04000d"}`, v) }
	var ops []store.Op
	for i := range 500 {
		ops = append(ops, put(policyKey(fmt.Sprintf("p-%d", i)), big(0)))
	}
	oldest := c.write(ops...)
	for i := range 120 {
		c.write(put(policyKey(fmt.Sprintf("p-%d", i)), big(i)))
	}
	for changed := c.server.feed.changed(); c.server.feed.position().head < c.global.applied; changed = c.server.feed.changed() {
		<-changed
	}
	begin()
	conns := make([]net.Conn, zones)
	for i := range conns {
		hello := &syncv1.Hello{Protocol: 1, MinProtocol: 1, Zone: fmt.Sprintf("z-%d", i), Instance: "i"}
		if mode == "resume" {
			hello.Epoch, hello.FromRevision = epochTo(c.global.store.View().Epoch()), uint64(oldest)
		}
		conns[i] = neverReads(t, lis.Addr().String(), hello)
	}
	// The window of HTTP/2 is full once as much was sent.
	for stuck := 0; stuck < zones; {
		stuck = 0
		for i := range zones {
			conn := c.server.registry.best(resource.ZoneName(fmt.Sprintf("z-%d", i)), store.Epoch{}, time.Now())
			if conn == nil {
				break
			}
			conn.mu.Lock()
			if conn.pub.sent >= 64<<10 {
				stuck++
			}
			conn.mu.Unlock()
		}
		runtime.Gosched()
	}
	return c, lis.Addr().String(), func() {
		for _, conn := range conns {
			require.NoError(t, conn.Close())
		}
		server.Stop()
		c.stop()
		serving.Wait()
	}
}

// Zones that open a stream and never read keep nothing from a zone that reads, and are
// sent no more than their window (I12).
func TestZonesThatDoNotRead(t *testing.T) {
	for _, mode := range []string{"resume", "snapshot"} {
		t.Run(mode, func(t *testing.T) {
			const zones = 50
			c, address, stop := zonesThatDoNotRead(t, zones, mode, func() {})
			z := c.zone("east", t.TempDir(), atAddress(address))
			require.NoError(t, c.visible(z))
			c.write(put(policyKey("another"), `{}`))
			require.NoError(t, c.visible(z))
			for i := range zones {
				conn := c.server.registry.best(resource.ZoneName(fmt.Sprintf("z-%d", i)), store.Epoch{}, time.Now())
				conn.mu.Lock()
				require.LessOrEqual(t, conn.pub.sent, uint64(64<<10+maxPart))
				conn.mu.Unlock()
			}
			z.stop()
			stop()
		})
	}
}

func TestStalledReaderDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		conn, err := grpc.NewClient("passthrough:global", grpc.WithContextDialer(c.dial), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithPerRPCCredentials(bearerToken{token: func(context.Context) (string, error) { return "secret", nil }}))
		require.NoError(t, err)
		stream, err := syncv1.NewSyncServiceClient(conn).Stream(context.Background())
		require.NoError(t, err)
		require.NoError(t, stream.Send(&syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Hello{
			Hello: &syncv1.Hello{Protocol: 1, MinProtocol: 1, Zone: "stuck", Instance: "i"},
		}}))
		z := c.zone("east", t.TempDir())
		c.synced2(z, "stuck")
		big := strings.Repeat("x", 64<<10)
		began := time.Now()
		for i := range 100 {
			c.write(put(policyKey(fmt.Sprintf("p-%d", i%10)), fmt.Sprintf(`"%d%s"`, i, big)))
			require.NoError(t, c.visible(z))
		}
		require.Less(t, time.Since(began), time.Second)
		require.Len(t, c.server.Zones(), 2)
		require.Equal(t, ZoneStale, func() ZoneState { <-time.After(10 * time.Second); return c.state("stuck").State }())

		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var notApplied *NotAppliedError
		require.ErrorAs(t, c.server.WaitApplied(ctx, c.global.applied), &notApplied)
		require.Equal(t, []resource.ZoneName{"stuck"}, notApplied.Zones)
		require.ErrorIs(t, notApplied, context.DeadlineExceeded)
		waiting := make(chan error, 1)
		go func() { waiting <- c.server.WaitApplied(context.Background(), c.global.applied) }()

		<-time.After(2 * time.Minute)
		require.Equal(t, ZoneOffline, c.state("stuck").State)
		require.Contains(t, c.state("stuck").LastError, "nothing acknowledged")
		require.NoError(t, c.server.WaitApplied(context.Background(), c.global.applied), "it was away all the time")
		synctest.Wait()
		require.Empty(t, waiting, "a zone that went away while it was waited for has not applied anything")
		require.NoError(t, conn.Close())
		z.stop()
		c.stop()
		require.ErrorAs(t, <-waiting, &notApplied, "nor has it when the server stops")
		require.Equal(t, []resource.ZoneName{"stuck"}, notApplied.Zones)
		require.ErrorIs(t, notApplied, errClosed)
	})
}

// visible waits until a zone serves the newest revision.
func (c *cluster) visible(z *zone) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := z.store.Wait(ctx, c.global.applied); err != nil {
		return fmt.Errorf("%w: client %+v, replica %+v", err, z.client.Status(), z.replica.Status())
	}
	return nil
}

// synced2 waits for one zone while another one is stuck.
func (c *cluster) synced2(z *zone, stuck string) {
	require.NoError(c.t, c.visible(z))
	for c.state(stuck).Name == "" || len(c.state(stuck).Instances) == 0 {
		<-c.server.registry.changed()
	}
}

// TestNewerConnectionReplacesOlder: one replica has one stream.
func TestNewerConnectionReplacesOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		conn, err := grpc.NewClient("passthrough:global", grpc.WithContextDialer(c.dial), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithPerRPCCredentials(bearerToken{token: func(context.Context) (string, error) { return "secret", nil }}))
		require.NoError(t, err)
		open := func(lease uint64) syncv1.SyncService_StreamClient {
			stream, err := syncv1.NewSyncServiceClient(conn).Stream(context.Background())
			require.NoError(t, err)
			require.NoError(t, stream.Send(&syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Hello{
				Hello: &syncv1.Hello{Protocol: 1, MinProtocol: 1, Zone: "east", Instance: "i", Lease: lease},
			}}))
			return stream
		}
		fenced := func(s syncv1.SyncService_StreamClient) syncv1.FenceReason {
			for {
				f, err := s.Recv()
				require.NoError(t, err)
				if f.GetFence() != nil {
					return f.GetFence().Reason
				}
			}
		}
		first := open(5)
		_, err = first.Recv()
		require.NoError(t, err)
		second := open(6)
		require.Equal(t, syncv1.FenceReason_FENCE_REASON_REPLACED, fenced(first))
		delayed := open(5)
		require.Equal(t, syncv1.FenceReason_FENCE_REASON_REPLACED, fenced(delayed))
		f, err := second.Recv()
		require.NoError(t, err)
		require.NotNil(t, f.GetWelcome())
		require.NoError(t, conn.Close())
		c.stop()
	})
}

func TestRefusedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		conn, err := grpc.NewClient("passthrough:global", grpc.WithContextDialer(c.dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		last := func(h *syncv1.Hello) codes.Code {
			stream, err := syncv1.NewSyncServiceClient(conn).Stream(context.Background())
			require.NoError(t, err)
			if h != nil {
				require.NoError(t, stream.Send(&syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Hello{Hello: h}}))
			}
			for {
				if _, err := stream.Recv(); err != nil {
					return status.Code(err)
				}
			}
		}
		require.Equal(t, codes.DeadlineExceeded, last(nil), "no Hello")
		require.Equal(t, codes.PermissionDenied, last(&syncv1.Hello{Protocol: 1, Zone: "east", Instance: "i"}), "no token")
		empty := ""
		c.valid.Store(&empty)
		require.Equal(t, codes.InvalidArgument, last(&syncv1.Hello{Protocol: 1}), "no zone")
		require.Equal(t, codes.InvalidArgument, last(&syncv1.Hello{Protocol: 1, Zone: "east", Instance: "\x1b[2J"}), "a name that acts on terminals")
		require.Equal(t, codes.FailedPrecondition, last(&syncv1.Hello{Protocol: 9, MinProtocol: 9, Zone: "east", Instance: "i"}))
		require.NoError(t, conn.Close())
		c.stop()
	})
}

func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		hold := make(chan struct{})
		z := c.zone("east", t.TempDir(), func(_ *ReplicaConfig, cc *ClientConfig) {
			cc.Answer = func(ctx context.Context, request []byte) ([]byte, error) {
				switch string(request) {
				case "fail":
					return nil, status.Error(codes.NotFound, "no such dataplane")
				case "wait":
					select {
					case <-hold:
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				case "late":
					return nil, fmt.Errorf("match: %w", context.DeadlineExceeded)
				case "large":
					return make([]byte, 3<<20), nil
				}
				return append([]byte("answer to "), request...), nil
			}
		})
		c.synced(z)
		ctx := context.Background()
		answer, err := c.server.Ask(ctx, "east", []byte("q"))
		require.NoError(t, err)
		require.Equal(t, "answer to q", string(answer))
		answer, err = c.server.Ask(ctx, "east", []byte("large"))
		require.NoError(t, err)
		require.Len(t, answer, 3<<20)
		_, err = c.server.Ask(ctx, "east", []byte("fail"))
		require.Equal(t, codes.NotFound, status.Code(err))
		_, err = c.server.Ask(ctx, "west", []byte("q"))
		require.ErrorIs(t, err, ErrZoneOffline)
		_, err = c.server.Ask(ctx, "east", []byte("late"))
		require.ErrorIs(t, err, context.DeadlineExceeded, "whichever clock runs out first")
		limited, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err = c.server.Ask(limited, "east", []byte("wait"))
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait() // the zone has given up too

		failed := make(chan error)
		go func() {
			_, err := c.server.Ask(ctx, "east", []byte("wait"))
			failed <- err
		}()
		synctest.Wait()
		z.stop()
		require.ErrorIs(t, <-failed, ErrZoneOffline)
		c.stop()
	})
}

// frozenConn is the connection of a process that may be stopped: nothing goes in or
// out meanwhile.
type frozenConn struct {
	net.Conn
	// frozen is nil while the process runs, and otherwise closed when it continues.
	frozen *atomic.Pointer[chan struct{}]
}

func (c frozenConn) wait() {
	if frozen := c.frozen.Load(); frozen != nil {
		<-*frozen
	}
}

func (c frozenConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wait()
	return n, err
}

func (c frozenConn) Write(b []byte) (int, error) {
	c.wait()
	return c.Conn.Write(b)
}

// TestAskOfAFrozenZone costs one wait, and little while the zone is known to be
// silent; a zone that works on an answer for long is waited for.
func TestAskOfAFrozenZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var frozen atomic.Pointer[chan struct{}]
		z := c.zone("east", t.TempDir(), func(_ *ReplicaConfig, cc *ClientConfig) {
			cc.Answer = func(_ context.Context, request []byte) ([]byte, error) {
				if string(request) == "slow" {
					<-time.After(9 * time.Second)
				}
				return request, nil
			}
			cc.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) {
				conn, err := c.dial(ctx, a)
				return frozenConn{conn, &frozen}, err
			})}
		})
		c.synced(z)
		ask := func(question string) (time.Duration, error) {
			began := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_, err := c.server.Ask(ctx, "east", []byte(question))
			return time.Since(began), err
		}
		took, err := ask("slow")
		require.NoError(t, err, "it says something every second")
		require.GreaterOrEqual(t, took, 9*time.Second)

		hold := make(chan struct{})
		frozen.Store(&hold)
		took, err = ask("first")
		require.ErrorIs(t, err, ErrZoneSilent)
		require.LessOrEqual(t, took, silentAfter)
		require.GreaterOrEqual(t, took, silentAfter-time.Second, "it has sent something within the last second")
		for range 5 {
			took, err = ask("again")
			require.ErrorIs(t, err, ErrZoneSilent)
			require.Equal(t, laterGrace, took)
		}
		require.Empty(t, c.server.registry.best("east", c.global.store.View().Epoch(), time.Now()).asks.pending)

		frozen.Store(nil)
		close(hold)
		synctest.Wait()
		took, err = ask("back")
		require.NoError(t, err)
		require.Zero(t, took)

		// Known to be silent before the question, it has the first grace.
		hold = make(chan struct{})
		frozen.Store(&hold)
		<-time.After(silentAfter + time.Second)
		took, err = ask("late")
		require.ErrorIs(t, err, ErrZoneSilent)
		require.Equal(t, firstGrace, took)
		took, err = ask("later")
		require.ErrorIs(t, err, ErrZoneSilent)
		require.Equal(t, laterGrace, took)
		frozen.Store(nil)
		close(hold)
		z.stop()
		c.stop()
	})
}

// TestSeveralAddresses: a zone finds a server that works.
func TestSeveralAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		z := c.zone("east", t.TempDir(), func(_ *ReplicaConfig, cc *ClientConfig) {
			cc.Addresses = []string{"dead-1:1", "global:1", "dead-2:1"}
			cc.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) {
				if strings.HasPrefix(a, "dead") {
					return nil, errors.New("connection refused")
				}
				return c.dial(ctx, a)
			})}
		})
		c.synced(z)
		require.Equal(t, "global:1", z.client.Status().Address)
		z.stop()
		c.stop()
	})
}

// TestFailedDisk: what cannot be persisted is neither shown nor acknowledged,
// and is fetched again when the disk works again.
func TestFailedDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.write(put(policyKey("a"), `{}`))
		z := c.zone("east", t.TempDir())
		c.synced(z)
		c.diskFull.Store(true)
		at := z.store.Revision()
		for i := range 40 {
			c.write(put(policyKey(fmt.Sprintf("p-%d", i)), fmt.Sprintf(`"%04000d"`, i)))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		require.ErrorIs(t, z.store.Wait(ctx, at+1), context.DeadlineExceeded, "no reader sees what is not on disk")
		full := c.state("east")
		require.Less(t, full.Revision, c.global.applied)
		require.Equal(t, at, z.store.Revision())
		require.Equal(t, at, z.replica.Status().Revision)
		c.diskFull.Store(false)
		c.synced(z)
		require.Equal(t, 41, z.store.View().Len())
		z.stop()
		c.stop()
	})
}

// TestAcknowledgedWhenDurable: while a zone's disk works on a write, the zone
// neither shows nor acknowledges it.
func TestAcknowledgedWhenDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.write(put(policyKey("a"), `{}`))
		z := c.zone("east", t.TempDir())
		c.synced(z)
		at := z.store.Revision()
		done := make(chan struct{})
		c.writing.Store(&done)
		c.write(put(policyKey("b"), `{}`))
		<-time.After(3 * time.Second)
		require.Equal(t, at, z.store.Revision())
		require.Equal(t, at, c.state("east").Revision)
		c.writing.Store(nil)
		close(done)
		c.synced(z)
		z.stop()
		c.stop()
	})
}

// TestFailedSync: a write is in the file although its sync failed. The zone
// shows what it adopts from there (I3), and acknowledges it only once a later
// write has made it durable (§7.4).
func TestFailedSync(t *testing.T) {
	for _, failures := range []int64{1, 2, 5} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			c.write(put(policyKey("a"), `{}`))
			z := c.zone("east", t.TempDir())
			c.synced(z)

			c.syncs.Store(failures)
			c.write(put(policyKey("b"), `{}`))
			c.synced(z)
			require.Negative(t, c.syncs.Load(), "acknowledged with a write that did not fail")
			require.Equal(t, 2, z.store.View().Len())
			require.Equal(t, c.global.applied, z.store.Revision())

			c.syncs.Store(failures)
			c.write(store.Delete(policyKey("a")), put(policyKey("b"), `{"later":true}`))
			c.synced(z)
			require.Equal(t, 1, z.store.View().Len())
			require.Zero(t, z.replica.Status().Repairs)
			z.stop()
			c.stop()
		})
	}
}

// TestServedDiffers: a reader of the store would see another state than the one
// that the replica holds, for whatever reason. It is noticed without a change
// and without the global, and shown anew.
func TestServedDiffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.write(put(policyKey("a"), `{}`), put(policyKey("b"), `{}`))
		z := c.zone("east", t.TempDir())
		c.synced(z)
		at := z.store.View()
		require.NoError(t, z.store.Reset(&store.Snapshot{Revision: at.Revision(), Time: at.Time(), Epoch: at.Epoch(), Resources: slices.Collect(at.All())[:1]}))
		require.Equal(t, 1, z.store.View().Len())
		<-time.After(5 * time.Second)
		require.Equal(t, 2, z.store.View().Len())
		require.Equal(t, at.Revision(), z.store.Revision())
		z.stop()
		c.stop()
	})
}

// TestRealSockets runs the same over TCP with nothing left behind.
func TestRealSockets(t *testing.T) {
	defer goleak.VerifyNone(t)
	c := newCluster(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = c.grpc.Serve(lis) })
	z := c.zone("east", filepath.Join(t.TempDir()), func(_ *ReplicaConfig, cc *ClientConfig) {
		cc.Addresses, cc.DialOptions = []string{lis.Addr().String()}, nil
	})
	for i := range 50 {
		c.write(put(policyKey(fmt.Sprintf("p-%d", i)), `{}`))
	}
	c.synced(z)
	require.Equal(t, 50, z.store.View().Len())
	z.stop()
	c.stop()
	serving.Wait()
}
