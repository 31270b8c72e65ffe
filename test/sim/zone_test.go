package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/raftnet"
	"meridian/internal/resource"
	"meridian/internal/store"
	zonesync "meridian/internal/sync"
	"meridian/test/history"
)

// zone is a machine that follows the global.
type zone struct {
	w    *world
	name string

	mu   sync.Mutex // guards what follows
	disk *replicaStorage
	// boot counts the starts, disks the media.
	boot, disks int
	p           *zoneProcess
	streams     int
	// wanted says that a process is to run.
	wanted bool
	// learned are the addresses that the global named.
	learned []string
	// stalled is closed when the zone reads again; nil: it reads.
	stalled chan struct{}
}

// zoneProcess is one run of a zone.
type zoneProcess struct {
	z      *zone
	boot   int
	disk   int
	ctx    context.Context
	cancel context.CancelFunc
	store  *store.Store
	// replica and client are set once they are open.
	replica atomic.Pointer[zonesync.Replica]
	client  atomic.Pointer[zonesync.Client]
	ended   chan struct{}
}

func newZone(w *world, name string) *zone {
	return &zone{w: w, name: name, disk: newStorage(), disks: 1}
}

func (z *zone) process() *zoneProcess {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.p
}

// start has the zone run from now on.
func (z *zone) start() {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.wanted {
		return
	}
	z.wanted = true
	z.boot++
	options := storeOptions(z.name)
	options.ExternalMeshes = true
	p := &zoneProcess{z: z, boot: z.boot, disk: z.disks, store: store.New(options), ended: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(z.w.ctx)
	z.p = p
	disk, network := z.disk.open(), z.w.zoneNet.Node(z.name)
	z.w.running.Go(func() { p.run(disk, network) })
}

// run opens the replica and follows the global until the process ends.
func (p *zoneProcess) run(disk *storageSession, network raftnet.Network) {
	defer close(p.ended)
	defer func() { _ = network.Close() }()
	z := p.z
	replica, err := zonesync.OpenReplica(zonesync.ReplicaConfig{
		Storage: disk, Zone: resource.ZoneName(z.name), Decode: decode, Store: p.store,
	})
	if err != nil {
		if p.ctx.Err() == nil {
			z.w.rec.Note("zone %s cannot start: %v", z.name, err)
			z.w.running.Go(z.restart)
		}
		return
	}
	client, err := zonesync.NewClient(z.clientConfig(replica, network))
	if err != nil {
		z.w.violate("zone", "%s: %v", z.name, err)
		return
	}
	p.replica.Store(replica)
	p.client.Store(client)
	var observer sync.WaitGroup
	observer.Go(p.observe)
	_ = client.Run(p.ctx)
	observer.Wait()
}

// learn keeps what the global says of its servers.
func (z *zone) learn(addresses []string) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.learned = addresses
	return nil
}

// restart is what a supervisor does with a process that cannot start.
func (z *zone) restart() {
	z.crash()
	if z.w.pause(2 * time.Second) {
		z.start()
	}
}

func (z *zone) clientConfig(replica *zonesync.Replica, network raftnet.Network) zonesync.ClientConfig {
	z.mu.Lock()
	defer z.mu.Unlock()
	dial := func(ctx context.Context, addr string) (net.Conn, error) { return network.Dial(ctx, addr) }
	return zonesync.ClientConfig{
		Replica: replica, Addresses: z.w.targets(), Credentials: insecure.NewCredentials(),
		Known: z.learned, Learn: z.learn,
		Token:  func(context.Context) (string, error) { return "zone-" + z.name, nil },
		Logger: z.w.logger.With("zone", z.name),
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(dial), grpc.WithStreamInterceptor(z.tap),
		},
	}
}

// crash ends the process at once, with whatever it has persisted, until start.
func (z *zone) crash() {
	z.mu.Lock()
	p := z.p
	z.p, z.wanted = nil, false
	z.disk.crash()
	z.w.zoneNet.Stop(z.name)
	z.mu.Unlock()
	if p != nil {
		p.cancel()
		<-p.ended
	}
}

// decode takes any content but that of rollouts: the simulation writes what it likes.
func decode(meta resource.Meta, spec []byte) (*resource.Resource, error) {
	if meta.Kind == resource.KindRollout {
		r, _, err := resource.Build(meta, spec)
		return r, err
	}
	return resource.New(meta, nil, spec), nil
}

// observe records every state that readers in the zone can see.
func (p *zoneProcess) observe() {
	var at *store.Feed
	var before *store.View
	for p.ctx.Err() == nil {
		if at == nil {
			damaged := len(p.replica.Load().Status().Damage) > 0
			v := p.store.View()
			var gone []resource.Key
			if before != nil {
				for _, ch := range store.Diff(before, v) {
					if ch.After == nil {
						gone = append(gone, ch.Key())
					}
				}
			}
			p.see(v, gone, damaged)
			at, before = p.store.Follow(v), v
		}
		batches, err := at.Next(p.ctx)
		if err != nil {
			at = nil
			continue
		}
		damaged := len(p.replica.Load().Status().Damage) > 0
		for _, b := range batches {
			v, err := p.store.ViewAt(b.Revision)
			if err != nil {
				at = nil
				break
			}
			var gone []resource.Key
			for _, ch := range b.Changes {
				if ch.After == nil {
					gone = append(gone, ch.Key())
				}
			}
			p.see(v, gone, damaged)
			before = v
		}
	}
}

func (p *zoneProcess) see(v *store.View, gone []resource.Key, damaged bool) {
	p.z.w.rec.See(history.Sighting{
		Zone: p.z.name, Boot: p.boot, Disk: p.disk, Epoch: v.Epoch(), Revision: v.Revision(),
		Synced: history.ImageOf(v.All(), synced), Gone: gone, Damaged: damaged,
	})
}

// tap records the frames of a zone's streams as they pass.
func (z *zone) tap(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.streams++
	return &tapped{ClientStream: s, zone: z, stream: z.streams, server: cc.Target()}, nil
}

type tapped struct {
	grpc.ClientStream
	zone     *zone
	stream   int
	server   string
	mu       sync.Mutex
	instance string
}

func (t *tapped) frame(kind history.FrameKind) history.Frame {
	t.mu.Lock()
	defer t.mu.Unlock()
	return history.Frame{Zone: t.zone.name, Instance: t.instance, Stream: t.stream, Server: t.server, Kind: kind}
}

// SendMsg records what the zone says.
func (t *tapped) SendMsg(m any) error {
	f, _ := m.(*syncv1.ZoneFrame)
	switch {
	case f.GetHello() != nil:
		t.mu.Lock()
		t.instance = f.GetHello().Instance
		t.mu.Unlock()
		fr := t.frame(history.HelloFrame)
		fr.Epoch, fr.Revision, fr.Lease = epochOf(f.GetHello().Epoch), resource.Revision(f.GetHello().FromRevision), f.GetHello().Lease
		t.zone.w.rec.Frame(fr)
	case f.GetAck() != nil:
		fr := t.frame(history.AckFrame)
		fr.Epoch, fr.Revision = epochOf(f.GetAck().Epoch), resource.Revision(f.GetAck().Revision)
		t.zone.w.rec.Frame(fr)
	}
	return t.ClientStream.SendMsg(m)
}

// stopReading and read are the beginning and the end of a time in which the zone's
// process takes nothing from its streams.
func (z *zone) stopReading() {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.stalled == nil {
		z.stalled = make(chan struct{})
	}
}

func (z *zone) read() {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.stalled != nil {
		close(z.stalled)
		z.stalled = nil
	}
}

// RecvMsg records what the zone is told.
func (t *tapped) RecvMsg(m any) error {
	t.zone.mu.Lock()
	stalled := t.zone.stalled
	t.zone.mu.Unlock()
	if stalled != nil {
		select {
		case <-stalled:
		case <-t.Context().Done():
		}
	}
	if err := t.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	f, _ := m.(*syncv1.GlobalFrame)
	fr, err := t.heard(f)
	if err != nil {
		t.zone.w.violate("sync", "%s sent zone %s: %v", t.server, t.zone.name, err)
	} else if fr.Kind != "" {
		t.zone.w.rec.Frame(fr)
	}
	return nil
}

func (t *tapped) heard(f *syncv1.GlobalFrame) (history.Frame, error) {
	switch body := f.GetBody().(type) {
	case *syncv1.GlobalFrame_Welcome:
		fr := t.frame(history.WelcomeFrame)
		fr.Epoch, fr.Resume = epochOf(body.Welcome.Epoch), body.Welcome.Mode == syncv1.Mode_MODE_RESUME
		return fr, nil
	case *syncv1.GlobalFrame_Batch:
		var b syncv1.Batch
		if err := proto.Unmarshal(body.Batch, &b); err != nil {
			return history.Frame{}, fmt.Errorf("a batch: %w", err)
		}
		fr := t.frame(history.BatchFrame)
		fr.Revision, fr.Prev, fr.Coalesced = resource.Revision(b.Revision), resource.Revision(b.PrevRevision), b.Coalesced
		fr.Part, fr.Parts = max(b.Part, 1), max(b.Parts, 1)
		var err error
		fr.Kinds, err = kindsIn(b.Ops)
		return fr, err
	case *syncv1.GlobalFrame_Chunk:
		var c syncv1.Chunk
		if err := proto.Unmarshal(body.Chunk, &c); err != nil {
			return history.Frame{}, fmt.Errorf("a chunk: %w", err)
		}
		fr := t.frame(history.ChunkFrame)
		fr.Revision, fr.Last = resource.Revision(c.Revision), c.Last
		if c.Last {
			sum, err := store.DigestFromBytes(c.Digest)
			if err != nil {
				return fr, fmt.Errorf("a chunk: %w", err)
			}
			fr.Sum = sum
		}
		var err error
		fr.Kinds, err = kindsIn(c.Ops)
		return fr, err
	case *syncv1.GlobalFrame_Bookmark:
		fr := t.frame(history.BookmarkFrame)
		sum, err := store.DigestFromBytes(body.Bookmark.Digest)
		if err != nil {
			return fr, fmt.Errorf("a bookmark: %w", err)
		}
		fr.Revision, fr.Sum = resource.Revision(body.Bookmark.Revision), sum
		return fr, nil
	}
	return history.Frame{}, nil
}

// kindsIn lists the kinds of encoded operations, each once.
func kindsIn(ops [][]byte) ([]resource.Kind, error) {
	var out []resource.Kind
	seen := map[string]bool{}
	for _, raw := range ops {
		var op syncv1.Op
		if err := proto.Unmarshal(raw, &op); err != nil {
			return nil, errors.Join(errors.New("an operation that cannot be decoded"), err)
		}
		if !seen[op.Kind] {
			seen[op.Kind] = true
			out = append(out, resource.Kind(op.Kind))
		}
	}
	return out, nil
}

func epochOf(e *syncv1.Epoch) store.Epoch {
	return store.Epoch{ClusterID: e.GetClusterId(), Incarnation: e.GetIncarnation(), Random: e.GetNonce()}
}
