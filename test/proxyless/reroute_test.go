package proxyless

import (
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

	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/resource"
	"meridian/internal/server/limits"
	"meridian/internal/service/discovery"
	"meridian/internal/store"
)

// dataplanes lets every stream in.
type dataplanes struct{}

func (dataplanes) Check(token.Token, resource.Key) error { return nil }
func (dataplanes) Hold(resource.Key) (func(), error)     { return func() {}, nil }

type principalStream struct {
	grpc.ServerStream
}

func (s principalStream) Context() context.Context {
	return authn.WithPrincipal(s.ServerStream.Context(), authn.Principal{Token: &token.Token{}})
}

// serve serves the zone's resources as a zone does, and returns its address. Its clock
// stands still, so that no client is slow.
func (z *zone) serve() string {
	z.t.Helper()
	stopped := time.Now()
	return z.serveBy(func() time.Time { return stopped })
}

// serveBy is serve with a clock.
func (z *zone) serveBy(now func() time.Time) string {
	z.t.Helper()
	service := discovery.New(discovery.Config{Source: z.feed, Dataplanes: dataplanes{}, Budget: limits.New(1<<30, 1<<30), Refused: func(string) {}, Now: now, Log: slog.New(slog.DiscardHandler)})
	server := grpc.NewServer(grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return handler(srv, principalStream{stream})
	}))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, service)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(z.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	running.Go(func() { _ = service.Run(ctx) })
	z.t.Cleanup(func() {
		cancel()
		service.Close()
		server.Stop()
		running.Wait()
	})
	return listener.Addr().String()
}

// No call fails under load while routes change to destinations that no route of the
// outbound had before, one after the other.
func TestARerouteToANewDestinationLosesNoCall(t *testing.T) {
	z := newZone(t)
	const destinations = 30
	servers := []*backend{start(t, "even"), start(t, "odd")}
	version := func(i int) string { return fmt.Sprintf("v%d", i) }
	var ops []store.Op
	for i := range destinations {
		ops = append(ops, z.put(resource.KindDataplane, "m", "backend-"+version(i), fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,
			"tags":{"kuma.io/service":"backend","version":%q}}]}}`, servers[i%2].port, version(i))))
	}
	z.apply(append(ops, z.policy(resource.KindTrafficRoute, `{`+v(version(0))+`}`))...)
	z.xds.Address = z.serve()
	conn := z.dial("xds:///backend")
	answered(t, conn, 1, "/a.S/M")
	stop := make(chan struct{})
	var load sync.WaitGroup
	var failed atomic.Pointer[string]
	for range 4 {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := call(t.Context(), conn, "/a.S/M"); err != nil {
					text := err.Error()
					failed.Store(&text)
					return
				}
			}
		})
	}
	for i := 1; i < destinations && failed.Load() == nil; i++ {
		z.apply(z.policy(resource.KindTrafficRoute, `{`+v(version(i))+`}`))
		for name := ""; name != servers[i%2].name && failed.Load() == nil; {
			name = first(answered(t, conn, 1, "/a.S/M"))
		}
	}
	close(stop)
	load.Wait()
	if failed.Load() != nil {
		t.Fatalf("a call failed: %s", *failed.Load())
	}
}

func first(counts map[string]int) string {
	for name := range counts {
		return name
	}
	return ""
}
