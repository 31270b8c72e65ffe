package envoy

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

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
	meridianxds "meridian/internal/xds"
	"meridian/internal/xds/feed"
	"meridian/internal/xds/serve"
	"meridian/internal/xds/world"
	"meridian/internal/xds/xdstest"
)

// zone makes resources from what is written to it, and serves them to Envoys.
type zone struct {
	t       *testing.T
	store   *store.Store
	feed    *feed.Feed
	service *discovery.Service
	address string
	// agent is for connections to an Envoy's agent.
	agent    net.Listener
	stop     func()
	revision resource.Revision

	mu sync.Mutex
	// touched is the last revision that a dataplane's proxy may have resources of.
	touched map[resource.Key]resource.Revision
	// programs bounds the expressions that Envoys take; 0 for the bound of an agent.
	programs int
	// sent are how many responses of each type were sent.
	sent map[string]int
}

// dataplanes lets every stream in.
type dataplanes struct{}

func (dataplanes) Check(token.Token, resource.Key) error { return nil }
func (dataplanes) Hold(resource.Key) (func(), error)     { return func() {}, nil }

// proxyStream is a stream of a proxy with a token.
type proxyStream struct {
	grpc.ServerStream
	zone *zone
}

// SendMsg implements grpc.ServerStream.
func (s proxyStream) SendMsg(m any) error {
	if r, ok := m.(*discoveryv3.DeltaDiscoveryResponse); ok {
		s.zone.mu.Lock()
		s.zone.sent[r.GetTypeUrl()]++
		s.zone.mu.Unlock()
	}
	return s.ServerStream.SendMsg(m)
}

func (s proxyStream) Context() context.Context {
	return authn.WithPrincipal(s.ServerStream.Context(), authn.Principal{Token: &token.Token{}})
}

// source notes which dataplanes a change touches.
type source struct {
	*feed.Feed
	zone *zone
}

func (s source) OnTouch(f func([]resource.Key)) {
	s.Feed.OnTouch(func(keys []resource.Key) {
		s.zone.mu.Lock()
		for _, key := range keys {
			s.zone.touched[key] = s.zone.revision
		}
		s.zone.mu.Unlock()
		f(keys)
	})
}

func newZone(t *testing.T) *zone {
	t.Helper()
	program(t)
	z := &zone{t: t, store: store.New(store.DefaultOptions()), touched: map[resource.Key]resource.Revision{}, sent: map[string]int{}}
	w := world.New("east")
	z.feed = feed.New(livematch.New(policy.NewMatcher(engines.All()...).Following(w).Following(engines.Trial()), z.store), w)
	z.serve("127.0.0.1:0")
	z.agent = local(t)
	t.Cleanup(func() { _ = z.agent.Close() }) // its server may have closed it
	z.t.Cleanup(func() { z.stop() })
	z.apply(z.put(resource.KindMesh, "", "m", "{}"))
	return z
}

// serve serves xDS at an address until stop, without which nothing is left of what
// streams had.
func (z *zone) serve(address string) {
	z.t.Helper()
	service := discovery.New(discovery.Config{Source: source{z.feed, z}, Dataplanes: dataplanes{}, Budget: limits.New(1<<30, 1<<30), Refused: func(string) {}, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	server := grpc.NewServer(grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return handler(srv, proxyStream{stream, z})
	}))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, service)
	listener, err := net.Listen("tcp", address)
	require.NoError(z.t, err)
	z.service, z.address = service, listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	running.Go(func() { _ = service.Run(ctx) })
	z.stop = func() {
		cancel()
		service.Close()
		server.Stop()
		running.Wait()
	}
}

func (z *zone) put(kind resource.Kind, mesh resource.MeshName, name, spec string) store.Op {
	return store.Put(resourcetest.Build(z.t, kind, mesh, name, spec))
}

// policy is a policy from web to backend.
func (z *zone) policy(kind resource.Kind, conf string) store.Op {
	z.t.Helper()
	return z.put(kind, "m", "p", xdstest.Spec(kind, conf))
}

// apply writes a batch.
func (z *zone) apply(ops ...store.Op) {
	z.t.Helper()
	z.mu.Lock() // a worker reads it
	z.revision++
	z.mu.Unlock()
	require.NoError(z.t, z.store.Apply(z.revision, store.Txn{Ops: ops}).Err)
}

// web is the dataplane of the application that sends requests: its outbound to backend
// listens at a port of this host.
func (z *zone) web(outbound int) store.Op {
	return z.put(resource.KindDataplane, "m", "web-1", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"servicePort":%d,"tags":{"kuma.io/service":"web"}}],
		"outbound":[{"port":%d,"tags":{"kuma.io/service":"backend"}}]}}`, free(z.t), free(z.t), outbound))
}

// backend is the dataplane of a server that speaks a protocol, without an Envoy of its
// own.
func (z *zone) backend(name string, port int, protocol, version string) store.Op {
	return z.put(resource.KindDataplane, "m", name, fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,
		"tags":{"kuma.io/service":"backend","kuma.io/protocol":%q,"version":%q}}]}}`, port, protocol, version))
}

// launch starts the Envoy of a dataplane.
func (z *zone) launch(name string) *envoy { return z.launchIn(directory(z.t), name) }

// launchIn starts the Envoy of a dataplane in a directory.
func (z *zone) launchIn(dir, name string) *envoy {
	z.t.Helper()
	return launchIn(z.t, dir, fmt.Sprintf(`{
		"layered_runtime": {"layers": [{"name": "static", "static_layer": {"re2.max_program_size.error_level": %[4]d, "re2.max_program_size.warn_level": 1048576}}]},
		"admin": {"address": {"pipe": {"path": "ADMIN", "mode": 384}}},
		"node": {"id": "m/%[1]s", "cluster": "m", "metadata": {"meridian.io/instance": "%[1]s"}},
		"dynamic_resources": {
			"ads_config": {"api_type": "DELTA_GRPC", "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {"cluster_name": "zone", "retry_policy": {"retry_back_off": {"base_interval": "0.01s", "max_interval": "0.1s"}}}}]},
			"cds_config": {"ads": {}, "resource_api_version": "V3"}, "lds_config": {"ads": {}, "resource_api_version": "V3"}},
		"static_resources": {"clusters": [%[2]s, %[3]s]}}`,
		name, static("zone", z.address), static(meridianxds.AgentCluster, z.agent.Addr().String()), cmp.Or(z.programs, 1<<20)))
}

// static is a cluster of an address that takes HTTP/2.
func static(name, address string) string {
	host, port, _ := net.SplitHostPort(address)
	return fmt.Sprintf(`{"name": %[1]q, "type": "STATIC", "connect_timeout": "5s",
		"typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
			"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}},
		"load_assignment": {"cluster_name": %[1]q, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": %[2]q, "port_value": %[3]s}}}}]}]}}`, name, host, port)
}

// settle waits until the Envoy of a dataplane has answered everything that it is to have
// at the current revision, and returns what it has refused.
func (z *zone) settle(name string) (refused []string) {
	z.t.Helper()
	set, err := z.feed.Resources(policy.DataplaneKey("m", name), meridianxds.Envoy) // changes are matched when they are asked for
	require.NoError(z.t, err)
	for {
		streams := z.service.Status(policy.DataplaneKey("m", name))
		z.mu.Lock()
		revision := z.touched[policy.DataplaneKey("m", name)]
		z.mu.Unlock()
		settled := len(streams) == 1 && len(streams[0].Types) > 0
		refused = nil
		for _, s := range streams {
			for _, t := range s.Types {
				for _, r := range t.Rejections {
					refused = append(refused, r.Resource.Ref().String()+": "+r.Detail)
				}
				settled = settled && (t.State == serve.Rejected || t.State == serve.Synced && t.Revision >= revision || t.State == serve.NotSent && len(set.Of(t.Type)) == 0)
			}
		}
		if settled {
			return refused
		}
		z.pause()
	}
}

// pause is between two looks at something that is waited for.
func (z *zone) pause() {
	z.t.Helper()
	select {
	case <-time.After(5 * time.Millisecond):
	case <-z.t.Context().Done():
		z.t.Fatal("the test ended first")
	}
}

// waitFor waits until something holds that no request brings about.
func (z *zone) waitFor(holds func() bool) {
	z.t.Helper()
	for !holds() {
		z.pause()
	}
}

// given are the ports that free has returned.
var given sync.Map

// free returns a port of this host that is free, below those that the system gives to
// connections, and that it has not returned before.
func free(t *testing.T) int {
	t.Helper()
	for {
		port := 20_000 + rand.N(12_000)
		if _, used := given.LoadOrStore(port, true); used {
			require.NoError(t, t.Context().Err())
			continue
		}
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			require.NoError(t, t.Context().Err())
			continue
		}
		require.NoError(t, listener.Close())
		return port
	}
}

// server is an application that answers HTTP/1 and HTTP/2 with its name.
type server struct {
	name string
	port int
	web  *http.Server
	// status is what it answers with when not 0, for as many requests as fail says.
	status, fail atomic.Int32
	// block has requests wait for their end, or for release.
	block    atomic.Bool
	released chan struct{}
	// size is that of bodies in bytes, beside the name.
	size atomic.Int32
	// requests are how many came.
	requests atomic.Int32
	seen     atomic.Pointer[http.Request]
}

// start starts a server.
func start(t *testing.T, name string) *server {
	t.Helper()
	return startAt(t, name, "127.0.0.1")
}

// startAt starts a server at an address of this host.
func startAt(t *testing.T, name, address string) *server {
	t.Helper()
	s := &server{name: name, released: make(chan struct{})}
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	require.NoError(t, err)
	s.port = listener.Addr().(*net.TCPAddr).Port
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	web := &http.Server{Handler: s, Protocols: protocols, ReadHeaderTimeout: time.Minute}
	s.web = web
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = web.Serve(listener) // it ends by Close
	}()
	t.Cleanup(func() {
		require.NoError(t, web.Close())
		<-done
	})
	return s
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	s.seen.Store(r)
	if s.block.Load() {
		select {
		case <-s.released:
		case <-r.Context().Done():
			return
		}
	}
	w.Header().Set("served-by", s.name)
	w.Header().Set("protocol", r.Proto)
	w.Header().Set("extra", "yes")
	if r.Header.Get("Content-Type") == "application/grpc" { // an empty message, and that all is well
		w.Header().Set("Content-Type", "application/grpc")
		if status := s.status.Load(); status != 0 && s.fail.Add(-1) >= 0 {
			w.Header().Set("Grpc-Status", strconv.Itoa(int(status)))
			return
		}
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		_, _ = w.Write(make([]byte, 5))
		return
	}
	if status := s.status.Load(); status != 0 && s.fail.Add(-1) >= 0 {
		w.WriteHeader(int(status))
	}
	_, _ = io.WriteString(w, s.name)
	_, _ = w.Write(make([]byte, s.size.Load()))
}

// release answers the requests that wait, for the rest of the test.
func (s *server) release() { close(s.released) }

// client sends requests to an outbound.
type client struct {
	t    *testing.T
	http *http.Client
	url  string
	// headers are in every request: pairs of a name and a value.
	headers []string
}

func newClient(t *testing.T, port int) *client {
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{t: t, http: &http.Client{
		Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, url: "http://127.0.0.1:" + strconv.Itoa(port)}
}

// answer is what a request was answered.
type answer struct {
	status int
	body   string
	header http.Header
}

// try sends a request, with headers as pairs.
func (c *client) try(method, path string, headers ...string) (answer, error) {
	request, err := http.NewRequestWithContext(context.Background(), method, c.url+path, http.NoBody)
	if err != nil {
		return answer{}, err
	}
	for pair := range slices.Chunk(slices.Concat(c.headers, headers), 2) {
		request.Header.Set(pair[0], pair[1])
	}
	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, string(body), response.Header}, err
}

// get sends a GET, which has to be answered.
func (c *client) get(path string, headers ...string) answer {
	c.t.Helper()
	a, err := c.try(http.MethodGet, path, headers...)
	require.NoError(c.t, err)
	return a
}

// until sends requests until one is answered as it should: a proxy accepts what it is
// sent a moment before its requests obey it.
func (c *client) until(path string, holds func(answer) bool) {
	c.t.Helper()
	for !holds(c.get(path)) {
		require.NoError(c.t, c.t.Context().Err())
	}
}

// answered counts which server answers how many requests, all of which have to succeed.
func (c *client) answered(requests int, path string) map[string]int {
	c.t.Helper()
	counts := map[string]int{}
	for range requests {
		a := c.get(path)
		require.Equal(c.t, http.StatusOK, a.status, a.body)
		counts[a.body]++
	}
	return counts
}
