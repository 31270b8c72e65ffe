package zonesync

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

const zoneKind = resource.Kind("Zone")

// cluster is a global and its zones: a real server and real clients over gRPC and an
// in-memory network, in virtual time.
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
	ReplicaStorage
	full  *atomic.Bool
	syncs *atomic.Int64
	// writing is the cluster's.
	writing *atomic.Pointer[chan struct{}]
}

func (d failingDisk) Write(entries []Entry) error {
	if wait := d.writing.Load(); wait != nil {
		<-*wait
	}
	if d.full.Load() {
		return syscall.ENOSPC
	}
	err := d.ReplicaStorage.Write(entries)
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
		Authorize: func(_ context.Context, token string, zone resource.ZoneName) (until time.Time, err error) {
			if deep(16) == 0 || token != *c.valid.Load() {
				return until, fmt.Errorf("the token does not name zone %s", zone)
			}
			return until, nil
		},
		Reauthorize: func(k resource.Kind) bool { return k == zoneKind },
		Logger:      slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	lis := bufconn.Listen(64 << 10)
	c.lis.Store(lis)
	c.grpc = grpc.NewServer(grpc.StaticStreamWindowSize(64<<10), grpc.ForceServerCodecV2(Codec()), grpc.InTapHandle(Tap)) // as servers do
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

// deep needs some kilobytes of stack, as verifying a signature does.
func deep(calls int) int {
	var frame [256]byte
	if frame[calls] = byte(calls); calls > 0 {
		return int(frame[calls]) + deep(calls-1)
	}
	return 1
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
	z.replica.disk.storage = failingDisk{ReplicaStorage: z.replica.disk.storage, full: &c.diskFull, syncs: &c.syncs, writing: &c.writing}
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
	require.NoError(c.t, c.applied(ctx, c.global.applied))
}

// applied waits until every zone that is connected has applied a revision.
func (c *cluster) applied(ctx context.Context, rev resource.Revision) error {
	report := c.server.Await(ctx, rev)
	switch {
	case report.Reached && len(report.Late) == 0:
		return nil
	case ctx.Err() != nil:
		return &NotAppliedError{Revision: rev, Zones: report.Late, Cause: context.Cause(ctx)}
	}
	return &NotAppliedError{Revision: rev, Zones: report.Late, Cause: errClosed}
}

func (c *cluster) state(name string) ZoneStatus {
	s, _ := zoneOf(c.server, name)
	return s
}

// zoneOf is what a server knows of a zone; false where it has never connected to it.
func zoneOf(s *Server, name string) (ZoneStatus, bool) {
	for _, z := range s.Zones() {
		if string(z.Name) == name {
			return z, true
		}
	}
	return ZoneStatus{}, false
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
