package discovery_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/server/limits"
	"meridian/internal/service/discovery"
	"meridian/internal/xds"
	"meridian/internal/xds/enforce"
	"meridian/internal/xds/serve"
)

// zone is a service with a source and dataplanes that the test sets.
type zone struct {
	t       *testing.T
	service *discovery.Service
	client  discoveryv3.AggregatedDiscoveryServiceClient
	run     func()

	mu    sync.Mutex
	touch func([]resource.Key)
	sets  map[resource.Key]*xds.Set
	held  map[resource.Key]int
	// follows counts the streams for which the source follows a dataplane.
	follows map[resource.Key]int
	made    map[resource.Key]int
	// envoys is whether there are resources for Envoys.
	envoys bool
	// listening is what the source was told of listeners with TLS.
	listening []string
	log       log
	clock     atomic.Pointer[time.Time] // what the service takes for now; nil for the clock
	// holding is called in Hold, while the registration is held; nil for nothing.
	holding func()
}

// log is what a service has logged.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// lines returns how many lines say something.
func (l *log) lines(says string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), says)
}

func (z *zone) now() time.Time {
	if at := z.clock.Load(); at != nil {
		return *at
	}
	return time.Now()
}

func (z *zone) OnTouch(f func([]resource.Key)) { z.touch = f }

func (z *zone) Listening(key resource.Key, _, secure bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.listening = append(z.listening, fmt.Sprintf("%s %t", key.Name, secure))
}

func (z *zone) Resources(key resource.Key, dialect xds.Dialect) (*xds.Set, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.made[key]++
	if dialect != xds.GRPC && !z.envoys {
		return nil, fmt.Errorf("%w: %s", xds.ErrDialect, dialect)
	}
	if set := z.sets[key]; set != nil {
		return set, nil
	}
	return nil, xds.ErrNoDataplane
}

func (z *zone) Check(t token.Token, key resource.Key) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	if mesh, _, _ := strings.Cut(t.ID, "/"); mesh != string(key.Mesh) {
		return rpcerr.New(rpcerr.Denied, "TOKEN_DOES_NOT_COVER", "not covered")
	}
	if z.sets[key] == nil {
		return rpcerr.New(rpcerr.NotFound, "DATAPLANE_UNKNOWN", "no such dataplane")
	}
	return nil
}

func (z *zone) Hold(key resource.Key) (func(), error) {
	z.mu.Lock()
	z.held[key]++
	z.mu.Unlock()
	if z.holding != nil {
		z.holding()
	}
	return func() {
		z.mu.Lock()
		defer z.mu.Unlock()
		z.held[key]--
	}, nil
}

// Follow waits for what the source calls, as a source may.
func (z *zone) Follow(key resource.Key) func() {
	add := func(n int) {
		z.touch(nil)
		z.mu.Lock()
		defer z.mu.Unlock()
		z.follows[key] += n
	}
	add(1)
	return func() { add(-1) }
}

// holds returns how many streams hold a registration, and have the source follow the
// dataplane; -1 when some do only one of these.
func (z *zone) holds(key resource.Key) int {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.follows[key] != z.held[key] {
		return -1
	}
	return z.held[key]
}

func (z *zone) generated(key resource.Key) int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.made[key]
}

// set gives a dataplane one cluster in a version.
func (z *zone) set(key resource.Key, version int) {
	z.t.Helper()
	r, err := xds.New(&clusterv3.Cluster{Name: "c", ConnectTimeout: durationpb.New(time.Duration(version) * time.Second)})
	require.NoError(z.t, err)
	set, err := xds.NewSet(resource.Revision(version), r)
	require.NoError(z.t, err)
	z.change(key, set)
}

func (z *zone) change(key resource.Key, set *xds.Set) {
	z.mu.Lock()
	z.sets[key] = set
	z.mu.Unlock()
	z.touch([]resource.Key{key})
}

// open starts a service, with a budget if one is given; run lets it send.
func open(t *testing.T, budget ...*limits.Pool) *zone {
	budget = append(budget, limits.NewXDS(1000, 1000, time.Now))
	z := &zone{t: t, sets: map[resource.Key]*xds.Set{}, held: map[resource.Key]int{}, follows: map[resource.Key]int{}, made: map[resource.Key]int{}}
	z.service = discovery.New(discovery.Config{Source: z, Dataplanes: z, Budget: budget[0], Refused: func(string) {}, Now: z.now, Log: slog.New(slog.NewTextHandler(&z.log, nil))})
	server := grpc.NewServer(grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		id := "m"
		if md, _ := metadata.FromIncomingContext(stream.Context()); len(md.Get("token")) > 0 {
			id = md.Get("token")[0]
		}
		ctx := authn.WithPrincipal(stream.Context(), authn.Principal{Token: &token.Token{ID: id}})
		return rpcerr.StreamServer(srv, principalStream{stream, ctx}, info, handler)
	}))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, z.service)
	listener := bufconn.Listen(64 << 10)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	z.run = func() { running.Go(func() { _ = z.service.Run(ctx) }) }
	conn, err := grpc.NewClient("passthrough:///zone", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	require.NoError(t, err)
	z.client = discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	t.Cleanup(func() {
		cancel()
		z.service.Close()
		server.Stop()
		running.Wait()
		require.NoError(t, conn.Close())
	})
	return z
}

type principalStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s principalStream) Context() context.Context { return s.ctx }

type sotw = discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient

func web(name string) resource.Key {
	return resource.Key{Kind: resource.KindDataplane, Mesh: "m", Name: name}
}

var gRPCNode = &corev3.Node{Id: "m/web-1", UserAgentName: "gRPC Go"}

// connect opens a stream that asks for the cluster.
func (z *zone) connect(node *corev3.Node) sotw {
	z.t.Helper()
	stream, err := z.client.StreamAggregatedResources(z.t.Context())
	require.NoError(z.t, err)
	require.NoError(z.t, stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: xds.Cluster.URL(), ResourceNames: []string{"c"}}))
	return stream
}

// next returns the timeout of the cluster in the next response, and accepts it.
func next(t *testing.T, stream sotw) time.Duration {
	t.Helper()
	r, err := stream.Recv()
	require.NoError(t, err)
	require.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResourceNames: []string{"c"}, VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}))
	require.Len(t, r.GetResources(), 1)
	var c clusterv3.Cluster
	require.NoError(t, r.GetResources()[0].UnmarshalTo(&c))
	return c.GetConnectTimeout().AsDuration()
}

func TestAProxyIsSentItsResourcesAndTheirChanges(t *testing.T) {
	z := open(t)
	z.set(web("web-1"), 1)
	z.set(web("web-2"), 7)
	stream, other := z.connect(gRPCNode), z.connect(&corev3.Node{Id: "m/web-2", UserAgentName: "gRPC C++"})
	require.Zero(t, z.generated(web("web-1")), "nothing is sent before the zone has everything")
	z.run()
	require.Equal(t, time.Second, next(t, stream))
	require.Equal(t, 7*time.Second, next(t, other))
	z.set(web("web-1"), 2)
	require.Equal(t, 2*time.Second, next(t, stream))
	require.Equal(t, 1, z.generated(web("web-2")), "a change makes no work for others")
	require.Equal(t, []resource.Key{web("web-1"), web("web-2")}, z.service.Proxies())
	require.Equal(t, 1, z.holds(web("web-1")))

	// Streams of one instance join, and status shows each.
	second := z.connect(gRPCNode)
	require.Equal(t, 2*time.Second, next(t, second))
	require.Equal(t, 2, z.holds(web("web-1")))
	require.Eventually(t, func() bool {
		all := z.service.Status(web("web-1"))
		return len(all) == 2 && all[1].Types[xds.Cluster].State == serve.Synced && all[1].Types[xds.Cluster].Revision == 2 &&
			all[1].Client == "gRPC Go" && all[1].Types[xds.Listener].State == serve.NotSent
	}, 10*time.Second, time.Millisecond)
	for _, s := range []sotw{stream, second} {
		require.NoError(t, s.CloseSend())
		_, err := s.Recv()
		require.Error(t, err)
	}
	require.Eventually(t, func() bool { return z.holds(web("web-1")) == 0 }, 10*time.Second, time.Millisecond)
	require.Empty(t, z.service.Status(web("web-1")))
	require.Equal(t, 1, z.service.Streams())
}

// A wait for a revision ends with the answers of the proxies that it touched, and knows
// which of them reject it; what did not touch a proxy is not waited for.
func TestBehind(t *testing.T) {
	z := open(t)
	z.set(web("web-1"), 1)
	z.set(web("web-2"), 1)
	z.run()
	stream, other := z.connect(gRPCNode), z.connect(&corev3.Node{Id: "m/web-2", UserAgentName: "gRPC Go"})
	next(t, stream)
	next(t, other)
	behind := func(revision resource.Revision, want map[resource.Key]enforce.State) {
		t.Helper()
		require.Eventually(t, func() bool { return maps.Equal(want, z.service.Behind(revision)) }, time.Minute, time.Millisecond)
	}
	behind(1, nil)
	behind(2, nil) // it touches no dataplane

	z.set(web("web-1"), 3)
	require.Equal(t, map[resource.Key]enforce.State{web("web-1"): enforce.Pending}, z.service.Behind(3), "at once")
	r, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, map[resource.Key]enforce.State{web("web-1"): enforce.Pending}, z.service.Behind(3), "until it has answered")
	require.Empty(t, z.service.Behind(1), "it has had that")
	answer := &discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResourceNames: []string{"c"}, ResponseNonce: r.GetNonce(), ErrorDetail: &status.Status{Message: "bad"}}
	require.NoError(t, stream.Send(answer))
	behind(3, map[resource.Key]enforce.State{web("web-1"): enforce.Rejected})
	behind(4, nil) // that is later, and did not touch it

	z.set(web("web-1"), 4)
	require.Equal(t, 4*time.Second, next(t, stream))
	behind(3, nil)
	behind(4, nil)
	require.NoError(t, stream.CloseSend())
	require.NoError(t, other.CloseSend())
}

// A wait for a change that raises no revision of resources ends with the answers of the
// proxies that had something to take on when it began.
func TestOutstanding(t *testing.T) {
	z := open(t)
	same := func(key resource.Key, seconds int) { // as of the same revision
		r, err := xds.New(&clusterv3.Cluster{Name: "c", ConnectTimeout: durationpb.New(time.Duration(seconds) * time.Second)})
		require.NoError(t, err)
		set, err := xds.NewSet(1, r)
		require.NoError(t, err)
		z.change(key, set)
	}
	same(web("web-1"), 1)
	same(web("web-2"), 1)
	z.run()
	stream, other := z.connect(gRPCNode), z.connect(&corev3.Node{Id: "m/web-2", UserAgentName: "gRPC Go"})
	next(t, stream)
	next(t, other)
	ends := func(o *discovery.Outstanding, want map[resource.Key]enforce.State) {
		t.Helper()
		require.Eventually(t, func() bool { return maps.Equal(want, o.Behind()) }, time.Minute, time.Millisecond)
	}
	ends(z.service.Outstanding(), nil)

	same(web("web-1"), 2)
	pending := map[resource.Key]enforce.State{web("web-1"): enforce.Pending}
	first := z.service.Outstanding()
	require.Equal(t, pending, first.Behind(), "at once")
	r, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, pending, first.Behind(), "until it has answered")
	second := z.service.Outstanding()
	same(web("web-2"), 2)
	require.Equal(t, pending, second.Behind(), "what came later does not count")
	answer := &discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResourceNames: []string{"c"}, ResponseNonce: r.GetNonce(), ErrorDetail: &status.Status{Message: "bad"}}
	require.NoError(t, stream.Send(answer))
	ends(first, map[resource.Key]enforce.State{web("web-1"): enforce.Rejected})

	same(web("web-1"), 3)
	require.Equal(t, 3*time.Second, next(t, stream))
	ends(first, nil)
	ends(second, nil)
	third := z.service.Outstanding()
	require.Equal(t, map[resource.Key]enforce.State{web("web-2"): enforce.Pending}, third.Behind())
	require.NoError(t, other.CloseSend())
	ends(third, nil) // it has gone
	require.NoError(t, stream.CloseSend())
}

func TestTheIncrementalVariant(t *testing.T) {
	z := open(t)
	z.set(web("web-1"), 1)
	z.run()
	stream, err := z.client.DeltaAggregatedResources(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: gRPCNode, TypeUrl: xds.Cluster.URL(), ResourceNamesSubscribe: []string{"c", "x"}}))
	r, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, "c", r.GetResources()[0].GetName())
	require.NoError(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.Cluster.URL(), ResponseNonce: r.GetNonce()}))
	r, err = stream.Recv()
	require.NoError(t, err)
	require.Equal(t, []string{"x"}, r.GetRemovedResources())
}

// The source is told that a dataplane listens with TLS once its Envoy has accepted such a
// listener. An Envoy that is away has it still; a gRPC application has none.
func TestWhoListensWithTLS(t *testing.T) {
	z := open(t)
	z.envoys = true
	l, err := xds.New(&listenerv3.Listener{Name: "in_80", FilterChains: []*listenerv3.FilterChain{{TransportSocket: &corev3.TransportSocket{Name: "tls"}}}})
	require.NoError(t, err)
	set, err := xds.NewSet(1, l)
	require.NoError(t, err)
	z.change(web("web-1"), set)
	z.run()
	told := func() []string {
		z.mu.Lock()
		defer z.mu.Unlock()
		return slices.Compact(slices.Clone(z.listening))
	}
	stream, err := z.client.DeltaAggregatedResources(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "m/web-1", UserAgentName: "envoy"}, TypeUrl: xds.Listener.URL()}))
	r, err := stream.Recv()
	require.NoError(t, err)
	require.NotContains(t, told(), "web-1 true", "it has not answered")
	require.NoError(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.Listener.URL(), ResponseNonce: r.GetNonce()}))
	require.Eventually(t, func() bool { return slices.Contains(told(), "web-1 true") }, time.Minute, time.Millisecond)
	before := told()
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.Error(t, err)
	require.Eventually(t, func() bool { return z.holds(web("web-1")) == 0 }, time.Minute, time.Millisecond)
	require.Equal(t, before, told(), "it is only away")
	other := z.connect(gRPCNode)
	require.Eventually(t, func() bool { return len(told()) > len(before) }, time.Minute, time.Millisecond)
	require.Equal(t, append(before, "web-1 false"), told())
	require.NoError(t, other.CloseSend())
}

func TestAStreamEndsWithItsReason(t *testing.T) {
	z := open(t)
	z.set(web("web-1"), 1)
	z.run()
	names := make([]string, serve.MaxNames+1)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	for name, c := range map[string]struct {
		request *discoveryv3.DiscoveryRequest
		code    codes.Code
		says    string
	}{
		"no node":             {&discoveryv3.DiscoveryRequest{}, codes.InvalidArgument, "has to be MESH/DATAPLANE"},
		"no mesh":             {&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "/x"}}, codes.InvalidArgument, "has to be MESH/DATAPLANE"},
		"a long name":         {&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "m/" + strings.Repeat("x", 1000)}}, codes.InvalidArgument, "has to be MESH/DATAPLANE"},
		"a long client":       {&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "m/web-1", UserAgentName: strings.Repeat("x", 1000)}}, codes.InvalidArgument, "user agent"},
		"another's dataplane": {&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "n/web-1"}}, codes.PermissionDenied, "not covered"},
		"no dataplane":        {&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "m/web-9"}}, codes.NotFound, "no such dataplane"},
		"another dialect":     {&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "m/web-1", UserAgentName: "envoy"}}, codes.InvalidArgument, "it serves gRPC clients"},
		"too many names": {&discoveryv3.DiscoveryRequest{
			Node: gRPCNode, TypeUrl: xds.Endpoints.URL(), ResourceNames: names,
		}, codes.ResourceExhausted, "too many names"},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := z.client.StreamAggregatedResources(t.Context())
			require.NoError(t, err)
			require.NoError(t, stream.Send(c.request))
			_, err = stream.Recv()
			require.Equal(t, c.code, grpcstatus.Code(err), "%v", err)
			require.ErrorContains(t, err, c.says)
		})
	}
	t.Run("another node", func(t *testing.T) {
		stream := z.connect(gRPCNode)
		next(t, stream)
		require.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "m/web-2"}}))
		_, err := stream.Recv()
		require.Equal(t, codes.InvalidArgument, grpcstatus.Code(err))
	})
	t.Run("deleted", func(t *testing.T) {
		stream := z.connect(gRPCNode)
		next(t, stream)
		z.change(web("web-1"), nil)
		_, err := stream.Recv()
		require.Equal(t, codes.NotFound, grpcstatus.Code(err))
		z.set(web("web-1"), 1)
	})
	t.Run("the zone stops", func(t *testing.T) {
		stream := z.connect(gRPCNode)
		next(t, stream)
		z.service.Close()
		_, err := stream.Recv()
		require.Equal(t, codes.Unavailable, grpcstatus.Code(err))
	})
}

func TestStreamsOfADataplaneAreBounded(t *testing.T) {
	z := open(t)
	z.set(web("web-1"), 1)
	z.run()
	for range 128 {
		next(t, z.connect(gRPCNode))
	}
	stream := z.connect(gRPCNode)
	_, err := stream.Recv()
	require.Equal(t, codes.ResourceExhausted, grpcstatus.Code(err))
	require.Equal(t, 128, z.holds(web("web-1")))
}

// A client that breaks off while its stream joins its dataplane leaves neither a hold
// nor a place among the dataplane's streams behind.
func TestAStreamThatWasLeftNeverJoins(t *testing.T) {
	z := open(t)
	z.set(web("web-1"), 1)
	joining, left := make(chan struct{}), make(chan struct{})
	z.holding = func() {
		close(joining)
		<-left
	}
	z.run()
	ctx, breakOff := context.WithCancel(t.Context())
	stream, err := z.client.StreamAggregatedResources(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{Node: gRPCNode, TypeUrl: xds.Cluster.URL()}))
	<-joining
	breakOff()
	gone := func() bool { return z.service.Streams() == 0 }
	assert.Eventually(t, gone, 10*time.Second, time.Millisecond)
	close(left)
	require.Eventually(t, func() bool { return z.holds(web("web-1")) == 0 }, 10*time.Second, time.Millisecond)
	require.Empty(t, z.service.Status(web("web-1")))
	require.Empty(t, z.service.Proxies())
}

// What a proxy rejected is not sent to it when it connects again, and status names
// it with its reason.
func TestARejectionOutlivesTheStream(t *testing.T) {
	z := open(t)
	z.set(web("web-1"), 1)
	z.run()
	for i := range 2 {
		stream := z.connect(gRPCNode)
		r, err := stream.Recv()
		require.NoError(t, err)
		require.Len(t, r.GetResources(), 1-i)
		require.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{
			TypeUrl: r.GetTypeUrl(), ResourceNames: []string{"c"}, ResponseNonce: r.GetNonce(),
			ErrorDetail: &status.Status{Message: "cannot be used"},
		}))
		require.Eventually(t, func() bool { return z.service.Rejected() == uint64(i+1) }, 10*time.Second, time.Millisecond)
		all := z.service.Status(web("web-1"))
		got := all[len(all)-1].Types[xds.Cluster]
		require.Equal(t, serve.Rejected, got.State)
		require.Equal(t, "cannot be used", got.Rejections[0].Detail)
		require.NoError(t, stream.CloseSend())
		_, err = stream.Recv()
		require.Error(t, err)
		require.Eventually(t, func() bool { return z.service.Streams() == 0 }, 10*time.Second, time.Millisecond)
	}
}

// A proxy that rejects all that it is sent, as fast as it can, does not fill the log:
// of each stream and type there is one line in a second.
func TestRejectionsAreLoggedOnceASecond(t *testing.T) {
	z := open(t)
	at := time.Unix(1_000_000, 0)
	z.clock.Store(&at)
	z.set(web("web-1"), 1)
	z.run()
	stream, err := z.client.DeltaAggregatedResources(t.Context())
	require.NoError(t, err)
	reject := func(round int) {
		t.Helper()
		require.NoError(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{
			Node: gRPCNode, TypeUrl: xds.Endpoints.URL(), ResourceNamesSubscribe: []string{fmt.Sprint(round)},
		}))
		r, err := stream.Recv() // it has dealt with what came before
		require.NoError(t, err)
		require.NoError(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{
			TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), ErrorDetail: &status.Status{Message: "cannot be used"},
		}))
	}
	for round := range 10 {
		reject(round)
	}
	reject(10)
	require.Equal(t, 1, z.log.lines("cannot be used"))
	later := at.Add(time.Second)
	z.clock.Store(&later)
	reject(11)
	reject(12)
	require.Equal(t, 2, z.log.lines("cannot be used"))
}

func TestASilentStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := open(t)
		z.run()
		stream, err := z.client.StreamAggregatedResources(t.Context())
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, codes.DeadlineExceeded, grpcstatus.Code(err))
	})
}

// What a client of gRPC had when its stream ended, and its version does not carry, is known
// when it connects again, also after its resources changed, until Absence has passed.
func TestWhatAClientHadIsKnownForAWhile(t *testing.T) {
	for away, known := range map[time.Duration]int{discovery.Absence - 1: 1, discovery.Absence + 1: 0} {
		synctest.Test(t, func(t *testing.T) {
			z := open(t)
			z.set(web("web-1"), 1)
			z.run()
			stream := z.connect(gRPCNode)
			r, err := stream.Recv()
			require.NoError(t, err)
			accepted := &discoveryv3.DiscoveryRequest{Node: gRPCNode, TypeUrl: r.GetTypeUrl(), ResourceNames: []string{"c"}, VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}
			require.NoError(t, stream.Send(accepted))
			synctest.Wait()
			require.NoError(t, stream.CloseSend())
			synctest.Wait()
			require.Zero(t, z.service.Streams())
			none, err := xds.NewSet(2)
			require.NoError(t, err)
			z.change(web("web-1"), none)
			<-time.After(away)
			synctest.Wait()
			stream, err = z.client.StreamAggregatedResources(t.Context())
			require.NoError(t, err)
			accepted.ResponseNonce = ""
			accepted.VersionInfo, _, _ = strings.Cut(accepted.GetVersionInfo(), ".")
			require.NoError(t, stream.Send(accepted))
			r, err = stream.Recv()
			require.NoError(t, err)
			require.Len(t, r.GetResources(), known) // the cluster drains first
		})
	}
}

// A client that connects again and again does not fill the log: of its lines some are left
// out, and how many is said.
func TestReconnectsDoNotFillTheLog(t *testing.T) {
	z := open(t)
	z.set(web("web-1"), 1)
	z.run()
	const streams = 600 // with a line when each begins, and one when it ends
	at := time.Now()
	z.clock.Store(&at)
	for range streams {
		stream := z.connect(gRPCNode)
		next(t, stream)
		require.NoError(t, stream.CloseSend())
		_, err := stream.Recv()
		require.Error(t, err)
	}
	require.Eventually(t, func() bool { return z.service.Streams() == 0 }, 10*time.Second, time.Millisecond)
	require.Equal(t, 1000, z.log.lines("xDS stream"), "of %d", 2*streams)
}
