package zone

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/server/limits"
	"meridian/internal/service/discovery"
	"meridian/internal/store"
	"meridian/internal/xds"
	"meridian/internal/xds/feed"
	"meridian/internal/xds/world"
)

// outboundsEach is how many services the dataplanes of connectedZone call.
const outboundsEach = 10

// anyDataplane lets every token act for every dataplane.
type anyDataplane struct{}

func (anyDataplane) Check(token.Token, resource.Key) error { return nil }
func (anyDataplane) Hold(resource.Key) (func(), error)     { return func() {}, nil }

// proxyStream is a stream of a gRPC client that subscribes to everything for its
// outbounds, and accepts what it is sent.
type proxyStream struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	ctx      context.Context
	requests chan *discoveryv3.DiscoveryRequest
	names    map[string][]string
	accepted map[string]bool // types; of the goroutine that receives
	settled  chan struct{}   // closed when the server has taken an answer of each type
}

func (s *proxyStream) Context() context.Context { return s.ctx }

func (s *proxyStream) Recv() (*discoveryv3.DiscoveryRequest, error) {
	if len(s.accepted) == len(xds.Types) {
		close(s.settled)
		s.accepted = map[string]bool{}
	}
	select {
	case r := <-s.requests:
		if r.GetResponseNonce() != "" {
			s.accepted[r.GetTypeUrl()] = true
		}
		return r, nil
	case <-s.ctx.Done():
		return nil, io.EOF
	}
}

func (s *proxyStream) Send(m *discoveryv3.DiscoveryResponse) error {
	typ := m.GetTypeUrl()
	s.requests <- &discoveryv3.DiscoveryRequest{TypeUrl: typ, ResourceNames: s.names[typ], VersionInfo: m.GetVersionInfo(), ResponseNonce: m.GetNonce()}
	for _, body := range m.GetResources() {
		message, err := body.UnmarshalNew()
		if err != nil {
			return err
		}
		switch r := message.(type) {
		case *routev3.RouteConfiguration:
			s.refer(xds.Cluster, r.GetVirtualHosts()[0].GetRoutes()[0].GetRoute().GetCluster())
		case *clusterv3.Cluster:
			s.refer(xds.Endpoints, r.GetEdsClusterConfig().GetServiceName())
		}
	}
	return nil
}

// refer subscribes to a name that a resource refers to, when all of them are known.
func (s *proxyStream) refer(typ xds.Type, name string) {
	names := append(s.names[typ.URL()], name)
	s.names[typ.URL()] = names
	if len(names) == outboundsEach {
		s.requests <- &discoveryv3.DiscoveryRequest{TypeUrl: typ.URL(), ResourceNames: names}
	}
}

// connectedZone is a zone's service with proxies that have accepted everything: each of a
// dataplane of its own with 10 outbounds, 100 of each service. The policy "all" is about
// each of them, "one" about those of one service.
func connectedZone(t testing.TB, proxies int) *inspectService {
	t.Helper()
	const ofService = 100
	build := func(kind resource.Kind, mesh resource.MeshName, name, spec string) store.Op {
		return store.Put(resourcetest.Build(t, kind, mesh, name, spec))
	}
	timeout := func(name, source, destination string) store.Op {
		return build(resource.KindTimeout, "default", name, fmt.Sprintf(
			`{"sources":[{"match":{"kuma.io/service":%q}}],"destinations":[{"match":{"kuma.io/service":%q}}],"conf":{"http":{"requestTimeout":"7s"}}}`, source, destination))
	}
	ops := []store.Op{build("Mesh", "", "default", `{}`), timeout("all", "*", "*"), timeout("one", "service-0", "service-1"), timeout("unused", "elsewhere", "*")}
	name := func(i int) string { return fmt.Sprintf("proxy-%05d", i) }
	service := func(i int) string { return fmt.Sprintf("service-%d", i/ofService) }
	for i := range proxies {
		spec := fmt.Sprintf(`{"networking":{"address":"10.%d.%d.1","inbound":[{"port":9000,"tags":{"kuma.io/service":%q}}],"outbound":[`, i/256, i%256, service(i))
		for j := range outboundsEach {
			if j > 0 {
				spec += ","
			}
			spec += fmt.Sprintf(`{"port":%d,"tags":{"kuma.io/service":"service-%d"}}`, 10_000+j, j)
		}
		ops = append(ops, build("Dataplane", "default", name(i), spec+"]}}"))
	}
	s := store.New(store.DefaultOptions())
	require.NoError(t, s.Apply(7, store.Txn{Ops: ops}).Err)
	around := world.New("east")
	matching := livematch.New(policy.NewMatcher(engines.All()...).Following(around), s)
	source := feed.New(matching, around)
	served := discovery.New(discovery.Config{
		Source: source, Dataplanes: anyDataplane{}, Budget: limits.NewXDS(2*proxies, 2*proxies, time.Now),
		Refused: func(string) {}, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(authn.WithPrincipal(t.Context(), authn.Principal{Token: &token.Token{ID: "t"}}))
	var running errgroup.Group
	running.Go(func() error { return served.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		require.NoError(t, running.Wait())
	})
	for i := range proxies {
		p := &proxyStream{ctx: ctx, requests: make(chan *discoveryv3.DiscoveryRequest, 16), names: map[string][]string{}, accepted: map[string]bool{}, settled: make(chan struct{})}
		for j := range outboundsEach {
			to := fmt.Sprintf("service-%d", j)
			p.names[xds.Listener.URL()] = append(p.names[xds.Listener.URL()], to)
			p.names[xds.Route.URL()] = append(p.names[xds.Route.URL()], fmt.Sprintf("out_%s_%d", to, 10_000+j))
		}
		for _, typ := range []xds.Type{xds.Listener, xds.Route} {
			r := &discoveryv3.DiscoveryRequest{TypeUrl: typ.URL(), ResourceNames: p.names[typ.URL()]}
			if typ == xds.Listener {
				r.Node = &corev3.Node{Id: "default/" + name(i), UserAgentName: "gRPC Go"}
			}
			p.requests <- r
		}
		running.Go(func() error {
			_ = served.StreamAggregatedResources(p) // it ends with the context
			return nil
		})
		select {
		case <-p.settled:
		case <-t.Context().Done():
		}
	}
	require.Len(t, served.Proxies(), proxies)
	return &inspectService{zone: "east", matching: matching, xds: served, resources: source, world: around}
}

// BenchmarkEnforced asks for the condition Enforced of a policy while 100 or 1,000 proxies
// are connected: of one that is about all of them, of one that is about 100, and of one that
// is about none.
func BenchmarkEnforced(b *testing.B) {
	for _, proxies := range []int{100, 1000} {
		s := connectedZone(b, proxies)
		for _, name := range []string{"all", "one", "unused"} {
			b.Run(fmt.Sprintf("proxies=%d/%s", proxies, name), func(b *testing.B) {
				key := resource.Key{Kind: resource.KindTimeout, Mesh: "default", Name: name}
				for b.Loop() {
					conditions, err := s.enforced(key, nil)
					require.NoError(b, err)
					require.Equal(b, name != "unused", len(conditions) == 1)
				}
			})
		}
	}
}
