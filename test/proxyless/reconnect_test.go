package proxyless

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/xds"

	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/server/limits"
	"meridian/internal/service/discovery"
	"meridian/internal/store"
	"meridian/internal/xds/feed"
	"meridian/internal/xds/serve"
	"meridian/internal/xds/world"
	"meridian/internal/xds/xdstest"
)

// line is what lies between clients and a zone, and can be cut.
type line struct {
	mu      sync.Mutex
	changed *sync.Cond
	cut     bool
	streams map[int]context.CancelFunc
	next    int
}

type lineStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s lineStream) Context() context.Context { return s.ctx }

// intercept has a stream wait while the line is cut, and ends it when it is cut.
func (l *line) intercept(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, cancel := context.WithCancel(authn.WithPrincipal(stream.Context(), authn.Principal{Token: &token.Token{}}))
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.set(func() {}) })()
	l.mu.Lock()
	for l.cut && ctx.Err() == nil {
		l.changed.Wait()
	}
	id := l.next
	l.next++
	l.streams[id] = cancel
	l.mu.Unlock()
	defer l.set(func() { delete(l.streams, id) })
	return handler(srv, lineStream{stream, ctx})
}

// set changes the line and tells who waits for that.
func (l *line) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	l.changed.Broadcast()
}

// sever cuts the line and returns when the zone has noticed.
func (l *line) sever() {
	l.set(func() {
		l.cut = true
		for _, cancel := range l.streams {
			cancel()
		}
		for len(l.streams) > 0 {
			l.changed.Wait()
		}
	})
}

// server is a zone that serves at an address, until stop.
type server struct {
	*discovery.Service
	address string
	stop    func()
}

// serveAt serves the zone's resources as a zone does that has just started, at an address.
// Its clock stands still, so that no client is slow.
func (z *zone) serveAt(l *line, address string) *server {
	z.t.Helper()
	w := world.New("east")
	from := feed.New(livematch.New(policy.NewMatcher(engines.All()...).Following(w), z.store), w)
	z.feed = from // apply has it take what is written
	stopped := time.Now()
	service := discovery.New(discovery.Config{Source: from, Dataplanes: dataplanes{}, Budget: limits.New(1<<30, 1<<30), Refused: func(string) {}, Now: func() time.Time { return stopped }, Log: slog.New(slog.DiscardHandler)})
	listening := grpc.NewServer(grpc.StreamInterceptor(l.intercept))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(listening, service)
	listener, err := net.Listen("tcp", address)
	require.NoError(z.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = listening.Serve(listener) })
	running.Go(func() { _ = service.Run(ctx) })
	s := &server{Service: service, address: listener.Addr().String(), stop: sync.OnceFunc(func() {
		cancel()
		service.Close()
		listening.Stop()
		running.Wait()
	})}
	z.t.Cleanup(s.stop)
	return s
}

// settled waits until web-1 has a stream that has accepted everything.
func (s *server) settled(t *testing.T, revision resource.Revision) {
	t.Helper()
	require.Eventually(t, func() bool {
		key := policy.DataplaneKey("m", "web-1")
		if len(s.Behind(0)) > 0 {
			return false
		}
		streams := s.Status(key)
		for _, stream := range streams {
			for _, typ := range stream.Types {
				if typ.State != serve.Synced || typ.Revision < revision {
					return false
				}
			}
		}
		return len(streams) > 0
	}, time.Minute, time.Millisecond)
}

// load calls over a connection until stop, which returns the first failure.
func load(t *testing.T, conn *grpc.ClientConn) (stop func() string) {
	ended := make(chan struct{})
	var running sync.WaitGroup
	var failed atomic.Pointer[string]
	for range 4 {
		running.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				if _, err := call(t.Context(), conn, "/a.S/M"); err != nil {
					text := err.Error()
					failed.CompareAndSwap(nil, &text)
					return
				}
			}
		})
	}
	return func() string {
		close(ended)
		running.Wait()
		if text := failed.Load(); text != nil {
			return *text
		}
		return ""
	}
}

// No call of a stock gRPC client fails under load, whatever changes, while it is connected
// to the zone and while it is not.
func TestNoCallIsLost(t *testing.T) {
	to := func(service string) string { return fmt.Sprintf(`{"destination":{"kuma.io/service":%q}}`, service) }
	route := func(z *zone, conf string) store.Op { return z.policy(resource.KindTrafficRoute, conf) }
	of := func(z *zone, b *backend, service, more string) store.Op {
		return z.put(resource.KindDataplane, "m", b.name, fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"tags":{"kuma.io/service":%q}%s}]}}`, b.port, service, more))
	}
	gone := func(b *backend) store.Op { return store.Delete(policy.DataplaneKey("m", b.name)) }
	policies := func(z *zone) (ops []store.Op) {
		for i, p := range []xdstest.Policy{
			{Kind: resource.KindTimeout, Conf: `{"connectTimeout":"9s","http":{"requestTimeout":"1h"}}`},
			{Kind: resource.KindRetry, Conf: `{"grpc":{"numRetries":2,"retryOn":["unavailable"]}}`},
			{Kind: resource.KindCircuitBreaker, Conf: `{"thresholds":{"maxRequests":1000}}`},
			{Kind: resource.KindMeshHTTPFault, Conf: `{"http":[{"delay":{"percentage":50,"value":"1ms"}}]}`},
		} {
			ops = append(ops, z.put(p.Kind, "m", fmt.Sprintf("policy-%d", i), xdstest.Spec(p.Kind, p.Conf)))
		}
		return append(ops, z.put(resource.KindTrafficPermission, "m", "allowed", `{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"*"}}]}`))
	}
	for _, test := range []struct {
		name   string
		change func(z *zone, one, two *backend) []store.Op
		want   string // who answers afterwards; empty for both
	}{
		{"reroute", func(z *zone, _, _ *backend) []store.Op {
			return []store.Op{route(z, `{"split":[{"weight":1,"destination":{"kuma.io/service":"other"}},{"weight":0,"destination":{"kuma.io/service":"backend"}}]}`)}
		}, "two"},
		{"new service", func(z *zone, _, two *backend) []store.Op {
			return []store.Op{of(z, two, "new", ""), route(z, to("new"))}
		}, "two"},
		{"new service, the old one gone", func(z *zone, one, two *backend) []store.Op {
			return []store.Op{of(z, two, "new", ""), route(z, to("new")), gone(one)}
		}, "two"},
		{"scaled up", func(z *zone, _, two *backend) []store.Op { return []store.Op{of(z, two, "backend", "")} }, ""},
		{"replaced instance", func(z *zone, one, two *backend) []store.Op {
			return []store.Op{of(z, two, "backend", ""), gone(one)}
		}, "two"},
		{"draining instance", func(z *zone, one, two *backend) []store.Op {
			return []store.Op{of(z, two, "backend", ""), of(z, one, "backend", `,"health":{"ready":false}`)}
		}, "two"},
		{"policies", func(z *zone, _, _ *backend) []store.Op { return policies(z) }, "one"},
		{"load balancer", func(z *zone, _, _ *backend) []store.Op {
			return []store.Op{route(z, `{"loadBalancer":{"leastRequest":{"choiceCount":3}},"destination":{"kuma.io/service":"backend"}}`)}
		}, "one"},
		{"everything", func(z *zone, one, two *backend) []store.Op {
			return append(policies(z), of(z, two, "new", ""), route(z, to("new")), gone(one))
		}, "two"},
	} {
		for _, away := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, away %v", test.name, away), func(t *testing.T) {
				z := newZone(t)
				one, two := start(t, "one"), start(t, "two")
				z.apply(of(z, one, "backend", ""), of(z, two, "other", ""), route(z, to("backend")))
				l := newLine()
				zone := z.serveAt(l, "127.0.0.1:0")
				conn := z.connect(zone.address)
				require.Equal(t, map[string]int{"one": 1}, answered(t, conn, 1, "/a.S/M"))
				zone.settled(t, 0)
				stop := load(t, conn)
				if away {
					l.sever()
				}
				z.apply(test.change(z, one, two)...)
				l.set(func() { l.cut = false })
				until(t, conn, func(n map[string]int) bool {
					return n[test.want] == 20 || test.want == "" && n["one"] > 0 && n["two"] > 0
				})
				zone.settled(t, 0)
				require.Empty(t, stop())
			})
		}
	}
}

func newLine() *line {
	l := &line{streams: map[int]context.CancelFunc{}}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// connect connects web-1 to backend with a zone that may take away what it has sent.
func (z *zone) connect(address string) *grpc.ClientConn {
	z.t.Helper()
	bootstrap := bytes.Replace(xdstest.Bootstrap(address, "m/web-1"), []byte(`"ignore_resource_deletion"`), nil, 1)
	builder, err := xds.NewXDSResolverWithConfigForTesting(bootstrap)
	require.NoError(z.t, err)
	conn, err := grpc.NewClient("xds:///backend", grpc.WithResolvers(builder), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(z.t, err)
	z.t.Cleanup(func() { require.NoError(z.t, conn.Close()) })
	return conn
}

// No call fails while the zone is killed and another one starts in its place, which has to
// send everything anew.
func TestNoCallIsLostWhenAZoneStarts(t *testing.T) {
	z := newZone(t)
	one, two := start(t, "one"), start(t, "two")
	z.apply(z.dataplane(one, "v1"), z.dataplane(two, "v2"), z.policy(resource.KindTrafficRoute, split(99, 1)))
	l := newLine()
	zone := z.serveAt(l, "127.0.0.1:0")
	conn := z.connect(zone.address)
	answered(t, conn, 1, "/a.S/M")
	zone.settled(t, 0)
	stop := load(t, conn)
	for range 2 {
		zone.stop()
		z.apply(z.policy(resource.KindTrafficRoute, split(1, 4_000_000_000)))
		zone = z.serveAt(l, zone.address)
		zone.settled(t, 0)
		until(t, conn, func(n map[string]int) bool { return n["two"] == 20 })
	}
	require.Empty(t, stop())
}
