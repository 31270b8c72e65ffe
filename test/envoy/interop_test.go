package envoy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	xdscredentials "google.golang.org/grpc/credentials/xds"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"

	"meridian/internal/meshca"
	"meridian/internal/meshca/meshcatest"
	"meridian/internal/policy"
	"meridian/internal/resource"
	meridianxds "meridian/internal/xds"
	"meridian/internal/xds/xdstest"
	"meridian/test/traffic"
)

// health is a gRPC service.
type health struct {
	healthv1.UnimplementedHealthServer
}

func (health) Check(context.Context, *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, nil
}

// bootstrap is what a stock gRPC program of a dataplane starts with.
func (z *zone) bootstrap(dataplane string, h *meshcatest.Holder, roots []byte) []byte {
	z.t.Helper()
	dir := directory(z.t)
	at := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(z.t, os.WriteFile(path, data, 0o600))
		return path
	}
	var document map[string]any
	require.NoError(z.t, json.Unmarshal(bytes.Replace(xdstest.Bootstrap(z.address, "m/"+dataplane), []byte(`"ignore_resource_deletion"`), nil, 1), &document))
	document["certificate_providers"] = map[string]any{meridianxds.CertificateProvider: map[string]any{"plugin_name": "file_watcher", "config": map[string]string{
		"certificate_file": at("certificate.pem", h.Certificate), "private_key_file": at("key.pem", h.KeyPEM(z.t)), "ca_certificate_file": at("roots.pem", roots),
	}}}
	data, err := json.Marshal(document)
	require.NoError(z.t, err)
	return data
}

// check calls until the answer has a code.
func check(t *testing.T, conn *grpc.ClientConn, want codes.Code) {
	t.Helper()
	for {
		_, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
		if grpcstatus.Code(err) == want {
			return
		}
		require.NoError(t, t.Context().Err(), "%v", err)
	}
}

const onlyOther = `{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"Service","name":"other"},"default":{"action":"ALLOW"}}]}`

// A stock gRPC client calls a service behind an Envoy: with the identities of both, and as
// permissions say.
func TestAStockClientCallsAnEnvoy(t *testing.T) {
	application := grpc.NewServer()
	healthv1.RegisterHealthServer(application, health{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = application.Serve(listener) }) // it ends by Stop
	t.Cleanup(func() {
		application.Stop()
		serving.Wait()
	})
	for _, c := range []struct{ protocol, backend string }{{"grpc", resource.BuiltinCA}, {"tcp", resource.BuiltinCA}, {"grpc", resource.ProvidedCA}} {
		protocol := c.protocol
		z, ca, f := newZone(t), authorities[c.backend](t, "m"), newFiles(t)
		f.put(meshcatest.Issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), ca.Roots())
		z.apply(z.put(resource.KindMesh, "", "m", strings.Replace(mutualTLS, resource.BuiltinCA, c.backend, 1)), z.put(resource.KindMeshTrafficPermission, "m", "p", everyone),
			z.put(resource.KindDataplane, "m", "backend-1", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"servicePort":%d,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east","kuma.io/protocol":%q}}]}}`,
				free(t), listener.Addr().(*net.TCPAddr).Port, protocol)),
			z.put(resource.KindDataplane, "m", "web-1", `{"networking":{"address":"127.0.0.1","inbound":[{"port":1,"tags":{"kuma.io/service":"web","kuma.io/zone":"east"}}],"outbound":[{"port":4001,"tags":{"kuma.io/service":"backend"}}]}}`))
		z.launchIn(f.dir, "backend-1")
		require.Empty(t, z.settle("backend-1"))
		web := meshcatest.Issue(t, ca, "m", "web-1", resource.Tags{resource.ServiceTag: "web"})
		builder, err := xds.NewXDSResolverWithConfigForTesting(z.bootstrap("web-1", web, ca.Roots()))
		require.NoError(t, err)
		with, err := xdscredentials.NewClientCredentials(xdscredentials.ClientOptions{FallbackCreds: insecure.NewCredentials()})
		require.NoError(t, err)
		conn, err := grpc.NewClient("xds:///backend", grpc.WithResolvers(builder), grpc.WithTransportCredentials(with))
		require.NoError(t, err)
		check(t, conn, codes.OK)
		if protocol == "grpc" { // others are refused in the handshake
			z.apply(z.put(resource.KindMeshTrafficPermission, "m", "p", onlyOther))
			require.Empty(t, z.settle("backend-1"))
			check(t, conn, codes.PermissionDenied)
		}
		require.NoError(t, conn.Close())
	}
}

// Where plaintext is accepted, too, a stock gRPC client uses TLS to a service whose
// endpoints all accept it, so that permissions decide about it; and no call fails while
// that begins and ends, and while the mode changes.
func TestAStockClientWherePlaintextIsAccepted(t *testing.T) {
	application := grpc.NewServer()
	healthv1.RegisterHealthServer(application, health{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = application.Serve(listener) }) // it ends by Stop
	t.Cleanup(func() {
		application.Stop()
		serving.Wait()
	})
	z, ca, f := newZone(t), meshcatest.Authority(t, "m"), newFiles(t)
	f.put(meshcatest.Issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), ca.Roots())
	z.apply(z.put(resource.KindMesh, "", "m", permissiveTLS), z.put(resource.KindMeshTrafficPermission, "m", "p", everyone),
		z.put(resource.KindDataplane, "m", "backend-1", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"servicePort":%d,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east","kuma.io/protocol":"grpc"}}]}}`,
			free(t), listener.Addr().(*net.TCPAddr).Port)),
		z.put(resource.KindDataplane, "m", "web-1", `{"networking":{"address":"127.0.0.1","inbound":[{"port":1,"tags":{"kuma.io/service":"web","kuma.io/zone":"east"}}],"outbound":[{"port":4001,"tags":{"kuma.io/service":"backend"}}]}}`))
	e := z.launchIn(f.dir, "backend-1")
	require.Empty(t, z.settle("backend-1"))
	web := meshcatest.Issue(t, ca, "m", "web-1", resource.Tags{resource.ServiceTag: "web"})
	builder, err := xds.NewXDSResolverWithConfigForTesting(z.bootstrap("web-1", web, ca.Roots()))
	require.NoError(t, err)
	with, err := xdscredentials.NewClientCredentials(xdscredentials.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	require.NoError(t, err)
	dial := func() *grpc.ClientConn {
		conn, err := grpc.NewClient("xds:///backend", grpc.WithResolvers(builder), grpc.WithTransportCredentials(with))
		require.NoError(t, err)
		return conn
	}
	conn := dial()
	l := traffic.New(t)
	t.Cleanup(func() { l.Stop(); require.NoError(t, conn.Close()) })
	check(t, conn, codes.OK)
	l.Worker(func() error {
		_, err := healthv1.NewHealthClient(conn).Check(context.Background(), &healthv1.HealthCheckRequest{})
		return err
	})
	l.Pass(20)
	certified := func(has bool, names ...string) {
		t.Helper()
		for _, name := range names {
			z.feed.Certified(policy.DataplaneKey("m", name), has)
			require.Empty(t, z.settle("backend-1"))
			require.Empty(t, z.settle("web-1"))
			l.Pass(20)
		}
	}
	// A client that is new, and the one that calls all the time.
	until := func(code codes.Code) {
		t.Helper()
		fresh := dial()
		check(t, fresh, code)
		require.NoError(t, fresh.Close())
	}
	const plaintext = "%5Ehttp.in_.*_plaintext.downstream_cx_active"
	require.Positive(t, e.count(plaintext))
	certified(true, "backend-1", "web-1")
	for e.count(plaintext) > 0 {
		require.NoError(t, t.Context().Err())
		l.Pass(1)
	}
	before := e.plaintext()
	for _, mode := range []string{mutualTLS, permissiveTLS} {
		z.apply(z.put(resource.KindMesh, "", "m", mode))
		certified(true, "backend-1")
	}
	require.Equal(t, before, e.plaintext())
	certified(false, "web-1")
	certified(true, "web-1")
	l.Stop()
	z.apply(z.put(resource.KindMeshTrafficPermission, "m", "p", onlyOther))
	require.Empty(t, z.settle("backend-1"))
	until(codes.PermissionDenied)
	check(t, conn, codes.PermissionDenied)
	z.feed.Certified(policy.DataplaneKey("m", "web-1"), false)
	until(codes.OK)
}

// An application behind an Envoy calls a stock gRPC server: with the identities of both,
// and as permissions say.
func TestAnEnvoyCallsAStockServer(t *testing.T) {
	for backend := range authorities {
		t.Run(backend, func(t *testing.T) { anEnvoyCallsAStockServer(t, backend) })
	}
}

// authorities are those of the types of backends with which zones issue certificates.
var authorities = map[string]func(require.TestingT, resource.MeshName) *meshca.Authority{
	resource.BuiltinCA: meshcatest.Authority, resource.ProvidedCA: meshcatest.Provided,
}

func anEnvoyCallsAStockServer(t *testing.T, kind string) {
	z, ca, f := newZone(t), authorities[kind](t, "m"), newFiles(t)
	f.put(meshcatest.Issue(t, ca, "m", "web-1", resource.Tags{resource.ServiceTag: "web"}), ca.Roots())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	z.apply(z.put(resource.KindMesh, "", "m", strings.Replace(mutualTLS, resource.BuiltinCA, kind, 1)), z.put(resource.KindMeshTrafficPermission, "m", "p", everyone),
		z.put(resource.KindDataplane, "m", "backend-1", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east","kuma.io/protocol":"grpc"}}]}}`, listener.Addr().(*net.TCPAddr).Port)))
	with, err := xdscredentials.NewServerCredentials(xdscredentials.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	require.NoError(t, err)
	ready := make(chan struct{})
	once := sync.OnceFunc(func() { close(ready) })
	backend := meshcatest.Issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"})
	server, err := xds.NewGRPCServer(grpc.Creds(with), xds.BootstrapContentsForTesting(z.bootstrap("backend-1", backend, ca.Roots())),
		xds.ServingModeCallback(func(_ net.Addr, mode xds.ServingModeChangeArgs) {
			if mode.Mode == connectivity.ServingModeServing {
				once()
			}
		}))
	require.NoError(t, err)
	healthv1.RegisterHealthServer(server, health{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // it ends by Stop
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	<-ready
	c, _ := z.caller(f)
	conn, err := grpc.NewClient(c.url[len("http://"):], grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	check(t, conn, codes.OK)
	z.apply(z.put(resource.KindMeshTrafficPermission, "m", "p", onlyOther))
	_, err = z.feed.Resources(policy.DataplaneKey("m", "backend-1"), meridianxds.GRPC) // changes are matched when they are asked for
	require.NoError(t, err)
	check(t, conn, codes.PermissionDenied)
}
