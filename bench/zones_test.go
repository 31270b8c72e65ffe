package bench

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	syncv1 "meridian/api/sync/v1"
	"meridian/internal/clientconfig"
	"meridian/internal/pki"
	zonesync "meridian/internal/sync"
)

// zonesAtOnce is how many zones connect at the same time.
const zonesAtOnce = 32

// BenchmarkZones connects 1,000 zones to one global with 1,000 policies, or as many as
// BENCH_ZONES and BENCH_RESOURCES say, each zone on a TLS connection of its own. What they hold is not kept: they acknowledge
// as zones do, and as if they had written it, so that the times are those of the global, of the network and of
// this process, which shares the processors with it. Memory is what a connected zone adds at
// rest; and, with the write of its token and whatever is left of it, at the moment at which
// all zones have come back at once.
func BenchmarkZones(b *testing.B) {
	system(b)
	procfs(b)
	enoughFiles(b)
	n, resources := count(b, "BENCH_ZONES", 1000), count(b, "BENCH_RESOURCES", few)
	g := newGlobal(b, resources)
	<-time.After(rest)
	alone := g.memory(b, "VmRSS")
	f := issueZones(b, g, n)
	<-time.After(rest)
	issued := g.memory(b, "VmRSS") // with what it keeps of each zone, connected or not
	f.bring(b)
	f.connect(b, zonesAtOnce)
	<-time.After(rest)
	resting := g.memory(b, "VmRSS")
	var returned, delivered, last samples
	var cpu time.Duration
	var percent float64
	var acks int64
	edition := 1
	for b.Loop() {
		watched := usage{process: g.process}
		watched.begin(b)
		<-time.After(idleWindow)
		watched.end(b)
		percent = watched.percent
		before := g.processor(b)
		f.acks.Store(0)
		for range zoneChanges {
			edition++
			times := f.change(b, g, edition, n)
			delivered = append(delivered, times...)
			last.add(times.at(1))
		}
		cpu, acks = g.processor(b)-before, f.acks.Load()
		<-time.After(rest)
		returned.add(f.reconnect(b))
	}
	target(b, "idle-cpu-%", percent, 1.5)
	target(b, "kB/zone", (resting-issued)*1000/float64(n), 45)
	report(b, "returned-kB/zone", (g.memory(b, "VmRSS")-alone)*1000/float64(n))
	report(b, "delivered-p50-ms", delivered.p50())
	report(b, "delivered-p99-ms", delivered.p99())
	target(b, "all-p50-ms", last.p50(), 40)
	target(b, "all-p99-ms", last.p99(), 120)
	target(b, "cpu-us/delivery", float64(cpu.Microseconds())/float64(zoneChanges*n), 25)
	report(b, "acks/delivery", float64(acks)/float64(zoneChanges*n))
	target(b, "reconnected-max-ms", returned.worst(), 4000)
}

// count is a number from the environment.
func count(b *testing.B, name string, otherwise int) int {
	b.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv(name), strconv.Itoa(otherwise)))
	require.NoError(b, err, name)
	return n
}

// idleWindow is how long a global with idle zones is watched: long enough for a collection of
// the garbage that they make to be no more than its part.
const idleWindow = time.Minute

// zoneChanges is how many writes the zones are sent, one after the other.
const zoneChanges = 50

// simulatedZones are zones of one global.
type simulatedZones struct {
	zones []*simulatedZone
	// arrivals is when zones had a change, while counts is set.
	arrivals chan time.Time
	counts   atomic.Bool
	// acks counts acknowledgements.
	acks    atomic.Int64
	running sync.WaitGroup
}

// simulatedZone speaks the protocol of a zone, and keeps nothing but its revision.
type simulatedZone struct {
	all    *simulatedZones
	name   string
	bundle clientconfig.ZoneBundle
	dial   func() (*grpc.ClientConn, error)
	conn   *grpc.ClientConn
	end    context.CancelFunc

	lease    uint64
	epoch    *syncv1.Epoch
	revision atomic.Uint64
	// mode is by what means the zone came up to date when it connected last.
	mode atomic.Int32
	// stalled, unless nil, is closed when the zone is to read on.
	stalled atomic.Pointer[chan struct{}]
}

func newSimulatedZones(b *testing.B, g *global, n int) *simulatedZones {
	b.Helper()
	f := issueZones(b, g, n)
	f.bring(b)
	f.connect(b, zonesAtOnce)
	return f
}

// issueZones makes zones that are not connected.
func issueZones(b *testing.B, g *global, n int) *simulatedZones {
	b.Helper()
	f := &simulatedZones{arrivals: make(chan time.Time, n)}
	f.counts.Store(true)
	for i := range n {
		z := &simulatedZone{all: f, name: fmt.Sprintf("zone-%04d", i)}
		response, err := g.api.GenerateZoneToken(b.Context(), &meridianv1.GenerateZoneTokenRequest{Zone: z.name, ValidForSeconds: 3600, Bundle: true})
		require.NoError(b, err)
		z.bundle, err = clientconfig.DecodeZoneBundle(response.GetBundle())
		require.NoError(b, err)
		transport, err := pki.ClientTransport(pki.ClientTLSConfig{CAPEM: []byte(z.bundle.CA)})
		require.NoError(b, err)
		z.dial = func() (*grpc.ClientConn, error) {
			return grpc.NewClient(g.grpcAddr, append(zonesync.Windows(), grpc.WithTransportCredentials(transport),
				grpc.WithReadBufferSize(0), // what the simulation does not need
				grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))...)
		}
		z.conn, err = z.dial()
		require.NoError(b, err)
		f.zones = append(f.zones, z)
	}
	b.Cleanup(func() {
		for _, z := range f.zones {
			if z.end != nil {
				z.end()
			}
			_ = z.conn.Close()
		}
		f.running.Wait()
	})
	return f
}

// bring has the first zone receive everything, and the others begin with what it has, as
// zones do that were connected before.
func (f *simulatedZones) bring(b *testing.B) {
	b.Helper()
	first := f.zones[0]
	ctx, cancel := context.WithCancel(b.Context())
	current, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		first.follow(ctx, current)
	}()
	require.NoError(b, <-current)
	cancel()
	<-ended
	for _, z := range f.zones[1:] {
		z.epoch = first.epoch
		z.revision.Store(first.revision.Load())
	}
}

// connect connects every zone, some at a time, and returns when all of them have what
// the global has.
func (f *simulatedZones) connect(b *testing.B, atOnce int) {
	b.Helper()
	slots := make(chan struct{}, atOnce)
	var connecting sync.WaitGroup
	for _, z := range f.zones {
		slots <- struct{}{}
		current := make(chan error, 1)
		ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
		z.end = cancel
		f.running.Go(func() { z.follow(ctx, current) })
		connecting.Go(func() {
			defer func() { <-slots }()
			select {
			case err := <-current:
				assert(b, err)
			case <-time.After(patience):
				assert(b, fmt.Errorf("zone %s is not served", z.name))
			}
		})
	}
	connecting.Wait()
	require.False(b, b.Failed())
}

// assert fails a benchmark from any goroutine.
func assert(b *testing.B, err error) {
	if err != nil {
		b.Error(err)
	}
}

// reconnect cuts every zone's connection, has all of them come back at once, and returns
// how long it took until all of them followed again.
func (f *simulatedZones) reconnect(b *testing.B) time.Duration {
	b.Helper()
	for _, z := range f.zones {
		z.end()
	}
	f.running.Wait()
	for _, z := range f.zones {
		require.NoError(b, z.conn.Close())
		var err error
		z.conn, err = z.dial()
		require.NoError(b, err)
	}
	began := time.Now()
	f.connect(b, len(f.zones))
	took := time.Since(began)
	for _, z := range f.zones {
		require.Equal(b, syncv1.Mode_MODE_RESUME, syncv1.Mode(z.mode.Load()), "nothing has changed")
	}
	return took
}

// change writes a change at the global and returns how long it took each of so many zones
// to have it.
func (f *simulatedZones) change(b *testing.B, g *global, edition, zones int) samples {
	b.Helper()
	began := time.Now()
	g.api.write(b, policy(0, edition), false)
	return f.arrived(b, zones, began)
}

// await waits until so many zones have a revision.
func (f *simulatedZones) await(b *testing.B, zones []*simulatedZone, revision uint64) {
	b.Helper()
	require.Eventually(b, func() bool {
		return !slices.ContainsFunc(zones, func(z *simulatedZone) bool { return z.revision.Load() < revision })
	}, patience, 500*time.Microsecond)
}

// arrived returns how long it took each of so many zones to have the one change since then.
func (f *simulatedZones) arrived(b *testing.B, zones int, since time.Time) samples {
	b.Helper()
	var times samples
	timeout := time.After(patience)
	for range zones {
		select {
		case at := <-f.arrivals:
			times.add(at.Sub(since))
		case <-timeout:
			require.Fail(b, "timeout", "%d of %d zones have the change", len(times), zones)
		}
	}
	return times
}

// follow is one connection. It tells once whether the zone follows the global's changes.
func (z *simulatedZone) follow(ctx context.Context, current chan<- error) {
	told := false
	tell := func(err error) {
		if !told {
			current <- err
			told = true
		}
	}
	tell(z.stream(ctx, func() { tell(nil) }))
}

func (z *simulatedZone) stream(ctx context.Context, following func()) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+z.bundle.Token)
	stream, err := syncv1.NewSyncServiceClient(z.conn).Stream(ctx)
	if err != nil {
		return err
	}
	z.lease++
	hello := &syncv1.Hello{Protocol: 1, MinProtocol: 1, Zone: z.name, Instance: z.name, Lease: z.lease, Epoch: z.epoch, FromRevision: z.revision.Load(), Features: []string{zonesync.FeatureHeartbeat}}
	if err := stream.Send(&syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Hello{Hello: hello}}); err != nil {
		return err
	}
	acks := acknowledgements{zone: z, stream: stream}
	defer acks.end()
	var consumed uint64
	for {
		frame, err := stream.Recv()
		if err != nil {
			return err
		}
		if stalled := z.stalled.Load(); stalled != nil {
			<-*stalled
		}
		atOnce := true
		switch body := frame.GetBody().(type) {
		case *syncv1.GlobalFrame_Welcome:
			z.epoch = body.Welcome.GetEpoch()
			z.mode.Store(int32(body.Welcome.GetMode()))
			continue
		case *syncv1.GlobalFrame_Chunk:
			var chunk syncv1.Chunk
			if err := proto.Unmarshal(body.Chunk, &chunk); err != nil {
				return err
			}
			consumed += uint64(len(body.Chunk))
			if atOnce = chunk.GetLast(); atOnce {
				z.revision.Store(chunk.GetRevision())
			}
		case *syncv1.GlobalFrame_Batch:
			var batch syncv1.Batch
			if err := proto.Unmarshal(body.Batch, &batch); err != nil {
				return err
			}
			consumed += uint64(len(body.Batch))
			atOnce = false
			if batch.GetPart() == batch.GetParts() {
				z.revision.Store(batch.GetRevision())
				if z.all.counts.Load() {
					z.all.arrivals <- time.Now()
				}
			}
		case *syncv1.GlobalFrame_Bookmark:
			consumed += uint64(proto.Size(body.Bookmark))
			z.revision.Store(body.Bookmark.GetRevision())
			following()
		default:
			continue
		}
		if err := acks.owe(consumed, atOnce); err != nil {
			return err
		}
	}
}

// acknowledgements are those of a simulated zone on one connection.
type acknowledgements struct {
	zone   *simulatedZone
	stream syncv1.SyncService_StreamClient

	mu       sync.Mutex // guards what follows, and the stream's sending
	pace     zonesync.AckPace
	consumed uint64
	later    *time.Timer
	ended    bool
}

// owe acknowledges so many bytes when zones do.
func (a *acknowledgements) owe(consumed uint64, atOnce bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.consumed = consumed
	a.pace.Owe(consumed, atOnce)
	return a.proceed()
}

func (a *acknowledgements) proceed() error {
	now := time.Now()
	due, wait := a.pace.Due(now)
	if due {
		a.pace.Acknowledged(now)
		a.zone.all.acks.Add(1)
		ack := &syncv1.Ack{Revision: a.zone.revision.Load(), Consumed: a.consumed, Epoch: a.zone.epoch}
		if err := a.stream.Send(&syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Ack{Ack: ack}}); err != nil {
			return err
		}
		_, wait = a.pace.Due(now)
	}
	if a.later == nil {
		a.later = time.AfterFunc(wait, a.putOff)
	} else {
		a.later.Reset(wait)
	}
	return nil
}

// putOff acknowledges what has waited long enough.
func (a *acknowledgements) putOff() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.ended {
		_ = a.proceed() // the receiver has the reason
	}
}

func (a *acknowledgements) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended = true; a.later != nil {
		a.later.Stop()
	}
}
