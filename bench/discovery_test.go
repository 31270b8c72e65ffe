package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/xds"
)

// BenchmarkDiscovery connects 10,000 xDS clients to one zone, each over a TLS connection
// of its own, asking as stock gRPC does for what one target needs. It follows changes
// that touch 100 of them from the request at the global to the clients. A response to any
// other client is a failure.
func BenchmarkDiscovery(b *testing.B) {
	system(b)
	procfs(b)
	enoughFiles(b)
	g := newGlobal(b, few)
	z := startZone(b, g.bundle(b, "east", g.grpcAddr), b.TempDir())
	z.await(b, connected, 0)
	g.api.write(b, policy(0, 1), true)
	alone := z.memory(b, "VmRSS")
	clients := storeClients(b, z, false)
	clients.connect(b, g, z)
	<-time.After(rest)
	require.Empty(b, clients.arrivals, "nothing has changed")
	connectedMB := z.memory(b, "VmRSS")
	var delivered samples
	for b.Loop() {
		for i := range changes {
			delivered = append(delivered, clients.change(b, g, i%(streams/perService))...)
		}
	}
	<-time.After(rest)
	require.Empty(b, clients.arrivals, "there was a response that no change explains")
	target(b, "zone-MB", max(connectedMB, z.memory(b, "VmRSS")), 900)
	report(b, "zone-peak-MB", z.memory(b, "VmHWM"))
	report(b, "kB/client", (connectedMB-alone)*1000/streams)
	report(b, "delivered-p50-ms", delivered.p50())
	target(b, "delivered-p99-ms", delivered.p99(), 100)
	report(b, "connected-s", clients.took.Seconds())
}

// BenchmarkDiscoveryReturn kills a zone with 10,000 xDS clients, starts it again, and
// connects all of them again with the versions that they have, in the incremental variant
// of the protocol. Then one change touches each of them: a client that is sent anything
// but that is a failure.
func BenchmarkDiscoveryReturn(b *testing.B) {
	system(b)
	procfs(b)
	enoughFiles(b)
	g := newGlobal(b, few)
	bundle, dir := g.bundle(b, "east", g.grpcAddr), b.TempDir()
	z := startZone(b, bundle, dir)
	z.await(b, connected, 0)
	g.api.write(b, policy(0, 1), true)
	clients := storeClients(b, z, true)
	clients.connect(b, g, z)
	every := make([]int, streams/perService)
	for i := range every {
		every[i] = i
	}
	clients.change(b, g, every...) // the policies of clients are there from now on
	var ready, took time.Duration
	for b.Loop() {
		clients.killed.Store(true)
		z.kill()
		clients.following.Wait()
		clients.killed.Store(false)
		require.Empty(b, clients.arrivals)
		z = startZone(b, bundle, dir)
		ready = time.Since(z.started)
		clients.connect(b, g, z)
		clients.change(b, g, every...)
		took = time.Since(z.started)
	}
	<-time.After(rest)
	require.Empty(b, clients.arrivals, "there was a response that no change explains")
	report(b, "ready-s", ready.Seconds())
	report(b, "returned-s", took.Seconds())
	report(b, "zone-cpu-s", z.processor(b).Seconds())
	report(b, "zone-peak-MB", z.memory(b, "VmHWM"))
	target(b, "zone-MB", z.memory(b, "VmRSS"), 900)
}

// xdsClients are many xDS clients, 100 of each service.
type xdsClients struct {
	all []*xdsClient
	// edition is that of the last change.
	edition int
	// took is how long it took to connect them last.
	took time.Duration
	// following waits for the goroutines that receive.
	following sync.WaitGroup
	// killed: the zone is not to be waited for.
	killed atomic.Bool
	// arrivals are told of each response after those that connecting waits for.
	arrivals chan arrival
}

// arrival is a response to one client.
type arrival struct {
	at        time.Time
	client    *xdsClient
	typ       xds.Type
	resources int
}

// xdsClient has a stream for one target, and subscribes to one resource of each type by
// its name.
type xdsClient struct {
	of *xdsClients
	// number counts clients from 0; perService of them in a row are one service.
	number      int
	incremental bool
	conn        *grpc.ClientConn
	stream      xdsStream
	// names are what it subscribes to, versions what it has of that; both by type. Only
	// the incremental variant tells versions.
	names, versions [len(xds.Types)]string
}

// storeClients stores a dataplane for each client.
func storeClients(b *testing.B, z *zone, incremental bool) *xdsClients {
	b.Helper()
	c := &xdsClients{arrivals: make(chan arrival, 2*streams)}
	dataplanes := make([]*meridianv1.Resource, streams)
	for i := range dataplanes {
		one := &xdsClient{of: c, number: i, incremental: incremental}
		c.all = append(c.all, one)
		dataplanes[i] = &meridianv1.Resource{Kind: "Dataplane", Mesh: "default", Name: one.name(), Spec: fmt.Appendf(nil,
			`{"networking":{"address":"10.%d.%d.1","inbound":[{"port":9000,"tags":{"kuma.io/service":"service-%d","version":"v1"}}],"outbound":[{"port":10000,"tags":{"kuma.io/service":%q}}]}}`,
			i/256, i%256, one.service(), one.target())}
	}
	z.api.apply(b, dataplanes)
	b.Cleanup(func() {
		for _, one := range c.all {
			one.hangUp()
		}
		c.following.Wait()
	})
	return c
}

func (c *xdsClient) name() string { return fmt.Sprintf("proxy-%05d", c.number) }

func (c *xdsClient) service() int { return c.number / perService }

// target is the service that a client calls. No policy names both it and the client's own
// service, since such a policy would hold instead of those that are changed.
func (c *xdsClient) target() string {
	return fmt.Sprintf("service-%d", (c.service()+1)%(streams/perService))
}

// connect connects all clients to a zone, each over a new connection, and waits until
// each has what its target needs, as far as it does not have it already.
func (c *xdsClients) connect(b *testing.B, g *global, z *zone) {
	b.Helper()
	dial := proxyDialer(b, g, z)
	began := time.Now()
	var connecting errgroup.Group
	connecting.SetLimit(64)
	for _, one := range c.all {
		connecting.Go(func() (err error) {
			for again := true; again; {
				one.hangUp()
				if one.conn, err = dial(); err != nil {
					return err
				}
				err = one.connect(b.Context())
				switch status.Code(err) {
				case codes.Unavailable: // a zone that has just started resets connections beyond those it can take
				case codes.ResourceExhausted: // it says when to come back
					<-time.After(time.Second)
				default:
					again = false
				}
				again = again && time.Since(began) < patience
			}
			if err != nil {
				return fmt.Errorf("%s: %w", one.name(), err)
			}
			c.following.Go(func() { one.follow(b.Context()) })
			return nil
		})
	}
	require.NoError(b, connecting.Wait())
	c.took = time.Since(began)
}

// hangUp closes the connection, if there is one.
func (c *xdsClient) hangUp() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
}

// connect opens a stream and subscribes: to what the client had before, with the versions
// of that, or else to one type after the other, as it learns the names.
func (c *xdsClient) connect(ctx context.Context) error {
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(c.conn)
	node := &corev3.Node{Id: "default/" + c.name(), UserAgentName: "gRPC Go"}
	if c.incremental {
		stream, err := ads.DeltaAggregatedResources(ctx)
		if err != nil {
			return err
		}
		c.stream = &incremental{stream: stream, node: node}
	} else {
		stream, err := ads.StreamAggregatedResources(ctx)
		if err != nil {
			return err
		}
		c.stream = &stateOfTheWorld{stream: stream, node: node}
	}
	if c.versions[xds.Listener] != "" {
		for _, typ := range xds.Types {
			if err := c.subscribe(typ); err != nil {
				return err
			}
		}
		return nil
	}
	c.names[xds.Listener] = c.target()
	c.names[xds.Route] = "out_" + c.target() + "_10000"
	for _, typ := range []xds.Type{xds.Listener, xds.Route} {
		if err := c.subscribe(typ); err != nil {
			return err
		}
	}
	for has := map[xds.Type]bool{}; len(has) < len(xds.Types); {
		typ, resources, err := c.accept()
		if err != nil {
			return err
		}
		if len(resources) != 1 {
			return fmt.Errorf("%d resources of %s", len(resources), typ)
		}
		has[typ] = true
		if err := c.refer(typ, resources[0].GetResource()); err != nil {
			return err
		}
	}
	return nil
}

// refer subscribes to what a resource refers to.
func (c *xdsClient) refer(typ xds.Type, body *anypb.Any) error {
	var to xds.Type
	switch typ {
	case xds.Route:
		var routes routev3.RouteConfiguration
		if err := body.UnmarshalTo(&routes); err != nil {
			return err
		}
		hosts := routes.GetVirtualHosts()
		if len(hosts) == 0 || len(hosts[0].GetRoutes()) == 0 {
			return fmt.Errorf("no routes in %s", routes.GetName())
		}
		to, c.names[xds.Cluster] = xds.Cluster, hosts[0].GetRoutes()[0].GetRoute().GetCluster()
	case xds.Cluster:
		var cluster clusterv3.Cluster
		if err := body.UnmarshalTo(&cluster); err != nil {
			return err
		}
		to, c.names[xds.Endpoints] = xds.Endpoints, cluster.GetEdsClusterConfig().GetServiceName()
	default:
		return nil
	}
	return c.subscribe(to)
}

// subscribe asks for the resource of a type.
func (c *xdsClient) subscribe(typ xds.Type) error {
	err := c.stream.subscribe(typ, c.names[typ], c.versions[typ])
	if errors.Is(err, io.EOF) { // the zone has ended the stream: it says why to one who receives
		_, _, err = c.stream.accept()
	}
	return err
}

// accept waits for the next response and accepts it.
func (c *xdsClient) accept() (xds.Type, []*discoveryv3.Resource, error) {
	typ, resources, err := c.stream.accept()
	for _, r := range resources {
		c.versions[typ] = r.GetVersion()
	}
	return typ, resources, err
}

// follow accepts responses until the stream ends. A stream that the zone refuses, since
// too many come at once, is opened again after the second that the zone asks for.
func (c *xdsClient) follow(ctx context.Context) {
	for {
		typ, resources, err := c.accept()
		for code := status.Code(err); code == codes.ResourceExhausted || code == codes.Unavailable && !c.of.killed.Load(); code = status.Code(err) {
			<-time.After(time.Second) // then it is tried again, as a gRPC client does
			if err = c.connect(ctx); err == nil {
				typ, resources, err = c.accept()
			}
		}
		if err != nil {
			return
		}
		c.of.arrivals <- arrival{at: time.Now(), client: c, typ: typ, resources: len(resources)}
	}
}

// change changes the timeouts of the calls of services in one write, and returns how long
// after the request each of their clients had its new routes.
func (c *xdsClients) change(b *testing.B, g *global, services ...int) samples {
	b.Helper()
	c.edition++
	var policies []*meridianv1.Resource
	waiting := map[*xdsClient]bool{}
	for _, s := range services {
		policies = append(policies, &meridianv1.Resource{Kind: "Timeout", Mesh: "default", Name: fmt.Sprintf("fleet-%d", s), Spec: fmt.Appendf(nil,
			`{"sources":[{"match":{"kuma.io/service":"service-%d","version":"v1"}}],"destinations":[{"match":{"kuma.io/service":"*"}}],"conf":{"http":{"requestTimeout":"%dms"}}}`,
			s, 10_000+c.edition)})
		for _, one := range c.all[s*perService : (s+1)*perService] {
			waiting[one] = true
		}
	}
	began := time.Now()
	g.api.apply(b, policies)
	var times samples
	timeout := time.After(patience)
	for len(waiting) > 0 {
		select {
		case a := <-c.arrivals:
			require.True(b, waiting[a.client], "%s was sent %s, which no change explains", a.client.name(), a.typ)
			require.Equal(b, xds.Route, a.typ)
			require.Equal(b, 1, a.resources)
			delete(waiting, a.client)
			times.add(a.at.Sub(began))
		case <-timeout:
			require.Fail(b, "timeout", "%d clients have the change, %d have not", len(times), len(waiting))
		}
	}
	return times
}

// xdsStream is a stream in one of the two variants of the protocol.
type xdsStream interface {
	// subscribe asks for one resource of a type. version is what the client has of it,
	// empty for nothing.
	subscribe(typ xds.Type, name, version string) error
	// accept waits for the next response and accepts it.
	accept() (xds.Type, []*discoveryv3.Resource, error)
}

// stateOfTheWorld repeats its subscription with every request, and is told of no version
// of a resource.
type stateOfTheWorld struct {
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	node   *corev3.Node // of the first request
	names  [len(xds.Types)]string
}

func (s *stateOfTheWorld) subscribe(typ xds.Type, name, _ string) error {
	s.names[typ] = name
	err := s.stream.Send(&discoveryv3.DiscoveryRequest{Node: s.node, TypeUrl: typ.URL(), ResourceNames: []string{name}})
	s.node = nil
	return err
}

func (s *stateOfTheWorld) accept() (xds.Type, []*discoveryv3.Resource, error) {
	m, err := s.stream.Recv()
	if err != nil {
		return 0, nil, err
	}
	typ, _ := xds.TypeOf(m.GetTypeUrl())
	var resources []*discoveryv3.Resource
	for _, body := range m.GetResources() {
		resources = append(resources, &discoveryv3.Resource{Resource: body})
	}
	return typ, resources, s.stream.Send(&discoveryv3.DiscoveryRequest{
		TypeUrl: m.GetTypeUrl(), ResourceNames: []string{s.names[typ]}, VersionInfo: m.GetVersionInfo(), ResponseNonce: m.GetNonce(),
	})
}

// incremental is the variant that Envoy is given.
type incremental struct {
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	node   *corev3.Node // of the first request
}

func (s *incremental) subscribe(typ xds.Type, name, version string) error {
	r := &discoveryv3.DeltaDiscoveryRequest{Node: s.node, TypeUrl: typ.URL(), ResourceNamesSubscribe: []string{name}}
	if version != "" {
		r.InitialResourceVersions = map[string]string{name: version}
	}
	s.node = nil
	return s.stream.Send(r)
}

func (s *incremental) accept() (xds.Type, []*discoveryv3.Resource, error) {
	m, err := s.stream.Recv()
	if err != nil {
		return 0, nil, err
	}
	typ, _ := xds.TypeOf(m.GetTypeUrl())
	return typ, m.GetResources(), s.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()})
}
