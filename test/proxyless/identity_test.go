package proxyless

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscredentials "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"

	"meridian/internal/meshca/meshcatest"
	"meridian/internal/policy"
	"meridian/internal/resource"
	meridianxds "meridian/internal/xds"
	"meridian/internal/xds/xdstest"
)

const mutualTLS = `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`

// files are an identity where gRPC reads it.
type files struct {
	t     *testing.T
	dir   string
	count int
}

// put puts an identity in the place of the last one, all at once, as an agent does.
func (f *files) put(h *meshcatest.Holder, roots []byte) {
	f.t.Helper()
	f.count++
	next := strconv.Itoa(f.count)
	require.NoError(f.t, os.Mkdir(filepath.Join(f.dir, next), 0o700))
	for name, data := range map[string][]byte{"certificate.pem": h.Certificate, "key.pem": h.KeyPEM(f.t), "roots.pem": roots} {
		require.NoError(f.t, os.WriteFile(filepath.Join(f.dir, next, name), data, 0o600))
	}
	require.NoError(f.t, os.Symlink(next, filepath.Join(f.dir, "new")))
	require.NoError(f.t, os.Rename(filepath.Join(f.dir, "new"), filepath.Join(f.dir, "current")))
}

// identified adds to a bootstrap file that gRPC reads an identity from files.
func identified(bootstrap []byte, f *files) ([]byte, error) {
	var document map[string]any
	if err := json.Unmarshal(bootstrap, &document); err != nil {
		return nil, err
	}
	at := func(name string) string { return filepath.Join(f.dir, "current", name) }
	document["certificate_providers"] = map[string]any{meridianxds.CertificateProvider: map[string]any{"plugin_name": "file_watcher", "config": map[string]string{
		"certificate_file": at("certificate.pem"), "private_key_file": at("key.pem"), "ca_certificate_file": at("roots.pem"), "refresh_interval": "0.01s",
	}}}
	return json.Marshal(document)
}

func newFiles(t *testing.T) *files {
	t.Helper()
	return &files{t: t, dir: t.TempDir()}
}

// member is a stock server with the credentials of gRPC for xDS.
type member struct {
	backend

	address string
	xds     *xdstest.Server
}

// serveMember starts the server of a dataplane, whose resources are given to it by follow.
func (z *zone) serveMember(name, tags string, f *files) *member {
	z.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(z.t, err)
	m := &member{backend: backend{name: name, port: listener.Addr().(*net.TCPAddr).Port}, address: listener.Addr().String(), xds: xdstest.Start(z.t)}
	z.apply(z.put(resource.KindDataplane, "m", name, fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"tags":%s}]}}`, m.port, tags)))
	z.follow(m)
	bootstrap, err := identified(xdstest.Bootstrap(m.xds.Address, "m/"+name), f)
	require.NoError(z.t, err)
	credentials, err := xdscredentials.NewServerCredentials(xdscredentials.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	require.NoError(z.t, err)
	ready := make(chan struct{})
	once := sync.OnceFunc(func() { close(ready) })
	server, err := xds.NewGRPCServer(grpc.UnknownServiceHandler(m.handle), grpc.Creds(credentials), xds.BootstrapContentsForTesting(bootstrap),
		xds.ServingModeCallback(func(_ net.Addr, mode xds.ServingModeChangeArgs) {
			if mode.Mode == connectivity.ServingModeServing {
				once()
			}
		}))
	require.NoError(z.t, err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // it ends by Stop
	z.t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	require.Empty(z.t, m.xds.Settle())
	<-ready
	return m
}

// follow gives a server what the zone has for it.
func (z *zone) follow(m *member) {
	z.t.Helper()
	set, err := z.feed.Resources(policy.DataplaneKey("m", m.name), meridianxds.GRPC)
	require.NoError(z.t, err)
	require.Empty(z.t, set.Withheld)
	m.xds.Set(set)
}

// callBare calls a server with credentials, over a connection of its own.
func callBare(t *testing.T, address string, with credentials.TransportCredentials) (string, error) {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(with))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	return call(t.Context(), conn, "/a.S/M")
}

// presenting are the credentials of a client that presents a certificate and trusts
// every server.
func presenting(t *testing.T, certificate tls.Certificate) credentials.TransportCredentials {
	t.Helper()
	return credentials.NewTLS(&tls.Config{
		InsecureSkipVerify: true, // who answers is not what is tested
		NextProtos:         []string{"h2"},
		// The server's hint is ignored, as an attacker would.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil },
	})
}

const everyone = `{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"Mesh"},"default":{"action":"ALLOW"}}]}`

// A server whose permissions allow everyone of the mesh accepts certificates of the mesh's
// authority, and nothing else: not those of another mesh or of another authority for
// this one, not one that a dataplane signed with its own key, not plaintext.
func TestForgedCertificatesAreRejected(t *testing.T) {
	z := newZone(t)
	z.apply(z.put(resource.KindMesh, "", "m", mutualTLS), z.put(resource.KindMeshTrafficPermission, "m", "all", everyone))
	ca, other, twice := meshcatest.Authority(t, "m"), meshcatest.Authority(t, "n"), meshcatest.Authority(t, "m")
	web := resource.Tags{resource.ServiceTag: "web"}
	f := newFiles(t)
	f.put(meshcatest.Issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), ca.Roots())
	server := z.serveMember("backend-1", `{"kuma.io/service":"backend","kuma.io/zone":"east"}`, f)
	mine := meshcatest.Issue(t, ca, "m", "web-1", web)

	answer, err := callBare(t, server.address, presenting(t, mine.Pair(t)))
	require.NoError(t, err)
	require.Equal(t, "backend-1", answer)

	refused := map[string]credentials.TransportCredentials{"plaintext": insecure.NewCredentials()}
	for name, certificate := range meshcatest.Forgeries(t, ca, "m", mine) {
		refused[name] = presenting(t, certificate)
	}
	for name, with := range refused {
		_, err := callBare(t, server.address, with)
		require.Equal(t, codes.Unavailable, status.Code(err), "%s: %v", name, err)
	}

	// Nor does a client call a server with such a certificate.
	client := newFiles(t)
	client.put(mine, ca.Roots())
	z.joins()
	conn := z.dialMember(client)
	answer, err = call(t.Context(), conn, "/a.S/M")
	require.NoError(t, err)
	require.Equal(t, "backend-1", answer)
	for _, h := range []*meshcatest.Holder{
		meshcatest.Issue(t, other, "n", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), meshcatest.Issue(t, twice, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}),
		meshcatest.Issue(t, ca, "m", "web-2", resource.Tags{resource.ServiceTag: "web"}), // a dataplane that is not of the service
	} {
		impostor := newFiles(t)
		impostor.put(h, bytes.Join([][]byte{ca.Roots(), other.Roots(), twice.Roots()}, nil))
		wrong := z.serveMember("backend-1", `{"kuma.io/service":"backend","kuma.io/zone":"east"}`, impostor)
		_, err := callBare(t, wrong.address, presenting(t, mine.Pair(t)))
		require.NoError(t, err, "it serves a client that does not verify it")
		_, err = call(t.Context(), z.dialMember(client), "/a.S/M")
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	}
}

// joins registers web-1 with the tag of its zone, which a zone adds.
func (z *zone) joins() {
	z.t.Helper()
	z.apply(z.put(resource.KindDataplane, "m", "web-1", `{"networking":{"address":"127.0.0.1","inbound":[{"port":1,"tags":{"kuma.io/service":"web","kuma.io/zone":"east"}}],
		"outbound":[{"port":4001,"tags":{"kuma.io/service":"backend"}}]}}`))
}

// newMember connects web-1 to backend with the credentials of gRPC for xDS.
func (z *zone) newMember(f *files) (*grpc.ClientConn, error) {
	bootstrap, err := identified(xdstest.Bootstrap(z.xds.Address, "m/web-1"), f)
	if err != nil {
		return nil, err
	}
	builder, err := xds.NewXDSResolverWithConfigForTesting(bootstrap)
	if err != nil {
		return nil, err
	}
	with, err := xdscredentials.NewClientCredentials(xdscredentials.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("xds:///backend", grpc.WithResolvers(builder), grpc.WithTransportCredentials(with))
}

// dialMember is newMember for the time of the test.
func (z *zone) dialMember(f *files) *grpc.ClientConn {
	z.t.Helper()
	conn, err := z.newMember(f)
	require.NoError(z.t, err)
	z.t.Cleanup(func() { require.NoError(z.t, conn.Close()) })
	return conn
}

// In a mesh whose mode is PERMISSIVE, servers and clients of gRPC use plaintext and no
// permission is enforced; once it is STRICT, they do not and it is.
func TestPermissiveIsPlaintextUntilStrict(t *testing.T) {
	z := newZone(t)
	mode := func(mode string) string {
		return fmt.Sprintf(`{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin","mode":%q}]}}`, mode)
	}
	z.apply(z.put(resource.KindMesh, "", "m", mode("PERMISSIVE")), z.put(resource.KindMeshTrafficPermission, "m", "none", strings.Replace(everyone, "ALLOW", "DENY", 1)))
	ca := meshcatest.Authority(t, "m")
	own, client := newFiles(t), newFiles(t)
	own.put(meshcatest.Issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), ca.Roots())
	mine := meshcatest.Issue(t, ca, "m", "web-1", resource.Tags{resource.ServiceTag: "web"})
	client.put(mine, ca.Roots())
	server := z.serveMember("backend-1", `{"kuma.io/service":"backend","kuma.io/zone":"east"}`, own)
	z.joins()
	conn := z.dialMember(client)
	for _, conn := range []func() (string, error){
		func() (string, error) { return call(t.Context(), conn, "/a.S/M") },
		func() (string, error) { return callBare(t, server.address, insecure.NewCredentials()) },
	} {
		answer, err := conn()
		require.NoError(t, err)
		require.Equal(t, "backend-1", answer)
	}
	_, err := callBare(t, server.address, presenting(t, mine.Pair(t)))
	require.Equal(t, codes.Unavailable, status.Code(err), "it cannot accept both: %v", err)

	z.apply(z.put(resource.KindMesh, "", "m", mode("STRICT")))
	z.follow(server)
	refused := func(attempt func() error, code codes.Code) {
		for {
			if err := attempt(); status.Code(err) == code {
				return
			}
			require.NoError(t, t.Context().Err())
		}
	}
	refused(func() error {
		_, err := callBare(t, server.address, insecure.NewCredentials())
		return err
	}, codes.Unavailable)
	refused(func() error {
		_, err := call(t.Context(), conn, "/a.S/M")
		return err
	}, codes.PermissionDenied)
}

// No call fails while the certificates of both sides are replaced, neither over a
// connection that lasts nor over one that is made for it.
func TestCertificatesAreReplacedUnderLoad(t *testing.T) {
	z := newZone(t)
	z.apply(z.put(resource.KindMesh, "", "m", mutualTLS), z.put(resource.KindMeshTrafficPermission, "m", "all", everyone))
	ca := meshcatest.Authority(t, "m")
	own, client := newFiles(t), newFiles(t)
	replace := func() (serial *big.Int) {
		h := meshcatest.Issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"})
		own.put(h, ca.Roots())
		client.put(meshcatest.Issue(t, ca, "m", "web-1", resource.Tags{resource.ServiceTag: "web"}), ca.Roots())
		return h.Parsed(t).SerialNumber
	}
	replace()
	server := z.serveMember("backend-1", `{"kuma.io/service":"backend","kuma.io/zone":"east"}`, own)
	z.joins()
	lasting := z.dialMember(client)
	stop := make(chan struct{})
	var load sync.WaitGroup
	var failed atomic.Pointer[string]
	for _, attempt := range []func() error{
		func() error {
			_, err := call(t.Context(), lasting, "/a.S/M")
			return err
		},
		func() error {
			conn, err := z.newMember(client)
			if err != nil {
				return err
			}
			_, err = call(t.Context(), conn, "/a.S/M")
			return errors.Join(err, conn.Close())
		},
	} {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := attempt(); err != nil {
					text := err.Error()
					failed.Store(&text)
					return
				}
			}
		})
	}
	observer := meshcatest.Issue(t, ca, "m", "web-2", resource.Tags{resource.ServiceTag: "web"}).Pair(t)
	for range 5 {
		serial := replace()
		for failed.Load() == nil { // until new connections get the new one
			conn, err := tls.Dial("tcp", server.address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{observer}})
			require.NoError(t, err)
			presented := conn.ConnectionState().PeerCertificates[0].SerialNumber
			require.NoError(t, conn.Close())
			if presented.Cmp(serial) == 0 {
				break
			}
			require.NoError(t, t.Context().Err())
		}
	}
	close(stop)
	load.Wait()
	if failed.Load() != nil {
		t.Fatalf("a call failed: %s", *failed.Load())
	}
}
