package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/batch"
	"meridian/internal/clientconfig"
	"meridian/internal/pki"
)

const (
	// streams is how many proxies connect.
	streams = 10_000
	// perService is how many of them are one service: those that a change of one
	// policy touches.
	perService = 100
	// changes is how many such changes are followed.
	changes = 50
)

// BenchmarkDataplanes connects 10,000 proxies to one zone, each with a stream of
// its own over 100 TLS connections, as agents of nodes would, and follows
// changes that touch 100 of them from the request at the global to the proxies.
// A delivery to any other proxy is a failure.
func BenchmarkDataplanes(b *testing.B) { dataplaneStreams(b, 100) }

// BenchmarkDataplanesAlone is the same with a TLS connection for every proxy.
func BenchmarkDataplanesAlone(b *testing.B) { dataplaneStreams(b, streams) }

func dataplaneStreams(b *testing.B, connections int) {
	system(b)
	procfs(b)
	enoughFiles(b)
	g := newGlobal(b, few)
	z := startZone(b, g.bundle(b, "east", g.grpcAddr), b.TempDir())
	z.await(b, connected, 0)
	g.api.write(b, policy(0, 1), true)
	alone := z.memory(b, "VmRSS")
	proxies := connectFleet(b, g, z, connections)
	var delivered samples
	edition := 1
	for b.Loop() {
		for i := range changes {
			edition++
			delivered = append(delivered, proxies.change(b, g, i, edition)...)
		}
	}
	<-time.After(rest)
	target(b, "zone-MB", z.memory(b, "VmRSS"), 600)
	target(b, "zone-peak-MB", z.memory(b, "VmHWM"), 600)
	report(b, "kB/stream", (z.memory(b, "VmRSS")-alone)*1000/streams)
	report(b, "delivered-p50-ms", delivered.p50())
	target(b, "delivered-p99-ms", delivered.p99(), 100)
	report(b, "connected-s", proxies.took.Seconds())
}

// BenchmarkDataplanesReturn kills a zone with 10,000 proxies, each on a TLS
// connection of its own, and starts it again: all of them come back, as
// impatiently as examples/dataplane. A client reads from the zone meanwhile.
func BenchmarkDataplanesReturn(b *testing.B) {
	system(b)
	procfs(b)
	enoughFiles(b)
	g := newGlobal(b, few)
	bundle, dir := g.bundle(b, "east", g.grpcAddr), b.TempDir()
	z := startZone(b, bundle, dir)
	z.await(b, connected, 0)
	g.api.write(b, policy(0, 1), true)
	proxies := connectFleet(b, g, z, streams)
	var ready, took time.Duration
	var reads samples
	for b.Loop() {
		z.kill()
		z = startZone(b, bundle, dir)
		ready = time.Since(z.started)
		reads = append(reads, proxies.awaitAll(b, z)...)
		took = time.Since(z.started)
	}
	report(b, "first-s", proxies.took.Seconds())
	report(b, "ready-s", ready.Seconds())
	report(b, "returned-s", took.Seconds())
	report(b, "zone-cpu-s", z.processor(b).Seconds())
	report(b, "get-p50-ms", reads.p50())
	report(b, "get-max-ms", reads.worst())
	target(b, "zone-peak-MB", z.memory(b, "VmHWM"), 600)
	<-time.After(rest)
	target(b, "zone-MB", z.memory(b, "VmRSS"), 600)
}

// enoughFiles skips the benchmark where a process may not have a socket for each
// stream.
func enoughFiles(b *testing.B) {
	b.Helper()
	var limit syscall.Rlimit
	require.NoError(b, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	if limit.Max < streams+500 {
		b.Skipf("a process may open %d files here, and %d streams are to be opened", limit.Max, streams)
	}
}

// proxyDialer returns what connects a proxy of the mesh to a zone, with the token of a
// dataplane, each time over a connection of its own.
func proxyDialer(b *testing.B, g *global, z *zone) func() (*grpc.ClientConn, error) {
	b.Helper()
	issued, err := g.api.tokens.GenerateDataplaneToken(b.Context(), &meridianv1.GenerateDataplaneTokenRequest{Mesh: "default", ValidForSeconds: 3600})
	require.NoError(b, err)
	contexts, err := clientconfig.LoadContexts(filepath.Join(z.dir, "admin.yaml"))
	require.NoError(b, err)
	server, err := contexts.Get("")
	require.NoError(b, err)
	transport, err := pki.ClientTransport(pki.ClientTLSConfig{CAPEM: []byte(server.CA), Source: z.dir})
	require.NoError(b, err)
	return func() (*grpc.ClientConn, error) {
		return grpc.NewClient(server.Addresses[0], grpc.WithTransportCredentials(transport),
			grpc.WithPerRPCCredentials(token.Credentials(issued.GetToken(), false)), grpc.WithReadBufferSize(4<<10))
	}
}

// fleet is many proxies.
type fleet struct {
	took time.Duration
	dial func() (*grpc.ClientConn, error)
	// received counts all configurations; arrivals are told of each that is not
	// the first of its stream.
	received atomic.Int64
	arrivals chan time.Time
	// returned has an element for each that has come back.
	returned chan struct{}
}

// connectFleet connects all proxies over a number of connections and waits until
// each has its configuration.
func connectFleet(b *testing.B, g *global, z *zone, connections int) *fleet {
	b.Helper()
	c := &fleet{arrivals: make(chan time.Time, streams), returned: make(chan struct{}, streams)}
	ctx, cancel := context.WithCancel(b.Context())
	var following sync.WaitGroup
	began := time.Now()
	c.dial = proxyDialer(b, g, z)
	conns := make([]*grpc.ClientConn, connections)
	for i := range conns {
		var err error
		conns[i], err = c.dial()
		require.NoError(b, err)
	}
	var connecting errgroup.Group
	connecting.SetLimit(64)
	for i := range streams {
		connecting.Go(func() error {
			stream, err := c.connect(ctx, conns[i%connections], i)
			if err != nil {
				return fmt.Errorf("proxy %d: %w", i, err)
			}
			following.Go(func() {
				c.follow(stream)
				if connections == streams {
					_ = conns[i].Close()
					c.reconnect(ctx, i)
				}
			})
			return nil
		})
	}
	b.Cleanup(func() {
		cancel()
		following.Wait()
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	require.NoError(b, connecting.Wait())
	c.took = time.Since(began)
	return c
}

type dataplaneStream = grpc.BidiStreamingClient[meridianv1.ConnectRequest, meridianv1.ConnectResponse]

// connect connects the i-th proxy and takes its first configuration.
func (c *fleet) connect(ctx context.Context, conn *grpc.ClientConn, i int) (dataplaneStream, error) {
	stream, err := meridianv1.NewDataplaneServiceClient(conn).Connect(ctx)
	if err != nil {
		return nil, err
	}
	spec := fmt.Appendf(nil, `{"networking":{"address":"10.%d.%d.1","inbound":[{"port":9000,"servicePort":8080,"tags":{"kuma.io/service":"service-%d","version":"v1"}}],"outbound":[`, i/256, i%256, i/perService)
	for j := range outbounds {
		if j > 0 {
			spec = append(spec, ',')
		}
		spec = fmt.Appendf(spec, `{"port":%d,"tags":{"kuma.io/service":"service-%d"}}`, 10_000+j, (i/perService*outbounds+j)%services)
	}
	hello := &meridianv1.DataplaneHello{Mesh: "default", Name: fmt.Sprintf("proxy-%05d", i), Spec: append(spec, "]}}"...)}
	if err := stream.Send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{Hello: hello}}); err != nil {
		_, err = stream.Recv()
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	c.received.Add(1)
	return stream, acknowledge(stream, first)
}

// reconnect connects the i-th proxy again and again, at random moments and over a
// new connection each time, as proxies should, until ctx ends.
func (c *fleet) reconnect(ctx context.Context, i int) {
	wait := time.Second
	for {
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
			return
		}
		wait = min(2*wait, longestPause)
		conn, err := c.dial()
		if err != nil {
			continue
		}
		if stream, err := c.connect(ctx, conn, i); err == nil {
			c.returned <- struct{}{}
			c.follow(stream)
			wait = time.Second
		}
		_ = conn.Close()
	}
}

// longestPause is about how long a proxy waits at most before it tries again.
const longestPause = 10 * time.Second

// awaitAll waits until all proxies have come back to a zone that was restarted,
// and returns how long reading from it takes meanwhile.
func (c *fleet) awaitAll(b *testing.B, z *zone) samples {
	b.Helper()
	var reads samples
	ctx, cancel := context.WithCancel(b.Context())
	var reading sync.WaitGroup
	reading.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			_, err := z.api.Get(ctx, &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: "Mesh", Name: "default"}}, grpc.WaitForReady(true))
			if err == nil {
				reads.add(time.Since(began))
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	defer reading.Wait()
	defer cancel()
	timeout := time.After(5 * patience)
	for back := range streams {
		select {
		case <-c.returned:
		case <-timeout:
			require.Fail(b, "timeout", "%d of %d proxies are back", back, streams)
		}
	}
	cancel()
	reading.Wait()
	return reads
}

// follow takes configurations until the stream ends.
func (c *fleet) follow(stream dataplaneStream) {
	for {
		configuration, err := stream.Recv()
		if err != nil {
			return
		}
		c.received.Add(1)
		c.arrivals <- time.Now()
		if acknowledge(stream, configuration) != nil {
			return
		}
	}
}

func acknowledge(stream dataplaneStream, c *meridianv1.ConnectResponse) error {
	return stream.Send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Ack{Ack: &meridianv1.DataplaneAck{Sequence: c.GetSequence()}}})
}

// change changes a policy of one service and returns how long after the request
// each of its proxies had it.
func (c *fleet) change(b *testing.B, g *global, service, edition int) samples {
	b.Helper()
	r := &meridianv1.Resource{Kind: "Timeout", Mesh: "default", Name: fmt.Sprintf("fleet-%d", service), Spec: fmt.Appendf(nil,
		`{"sources":[{"match":{"kuma.io/service":"service-%d","version":"v1"}}],"destinations":[{"match":{"kuma.io/service":"*"}}],"conf":{"connectTimeout":"%dms"}}`,
		service, edition)}
	before := c.received.Load()
	began := time.Now()
	_, err := batch.Apply(b.Context(), g.api, &meridianv1.ApplyRequest{Resources: []*meridianv1.Resource{r}, RequestId: g.api.requestID()})
	require.NoError(b, err)
	var times samples
	timeout := time.After(patience)
	for range perService {
		select {
		case at := <-c.arrivals:
			times.add(at.Sub(began))
		case <-timeout:
			require.Fail(b, "timeout", "%d of %d proxies have the change", len(times), perService)
		}
	}
	// A delivery to a proxy that is not affected is found here or by the next.
	require.Equal(b, before+perService, c.received.Load())
	require.Empty(b, c.arrivals)
	return times
}
