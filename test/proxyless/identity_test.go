package proxyless

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscredentials "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"

	"meridian/internal/identity"
	"meridian/internal/meshca"
	"meridian/internal/policy"
	"meridian/internal/resource"
	meridianxds "meridian/internal/xds"
	"meridian/internal/xds/xdstest"
)

const mutualTLS = `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`

// holder is who has a key and a certificate.
type holder struct {
	key         *ecdsa.PrivateKey
	certificate []byte // PEM
}

func (h *holder) keyPEM(t *testing.T) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(h.key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func (h *holder) pair(t *testing.T) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(h.certificate, h.keyPEM(t))
	require.NoError(t, err)
	return pair
}

func (h *holder) parsed(t *testing.T) *x509.Certificate {
	t.Helper()
	c, err := x509.ParseCertificate(h.pair(t).Certificate[0])
	require.NoError(t, err)
	return c
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

// authority is that of a mesh in zone east.
func authority(t *testing.T, mesh resource.MeshName) *meshca.Authority {
	t.Helper()
	a, err := meshca.New("east", mesh, "ca", time.Now())
	require.NoError(t, err)
	return a.WithLongest(time.Hour)
}

// issue makes a certificate for a dataplane with tags, of which that of the zone is added.
func issue(t *testing.T, a *meshca.Authority, mesh resource.MeshName, dataplane string, sets ...resource.Tags) *holder {
	t.Helper()
	for _, tags := range sets {
		tags[resource.ZoneTag] = "east"
	}
	name, err := identity.Of("east", mesh, dataplane, sets)
	require.NoError(t, err)
	return issueName(t, a, name)
}

// issueOn makes a certificate for a dataplane of mesh m, on a credential.
func issueOn(t *testing.T, a *meshca.Authority, dataplane, credential string, tags resource.Tags) *holder {
	t.Helper()
	tags[resource.ZoneTag] = "east"
	name, err := identity.Of("east", "m", dataplane, []resource.Tags{tags})
	require.NoError(t, err)
	return issueName(t, a, identity.WithCredential(name, credential))
}

func issueName(t *testing.T, a *meshca.Authority, name string) *holder {
	t.Helper()
	h := &holder{key: newKey(t)}
	signed, err := a.Sign(&h.key.PublicKey, name, time.Hour, time.Now())
	require.NoError(t, err)
	h.certificate = signed.PEM
	return h
}

// files are an identity where gRPC reads it.
type files struct {
	t     *testing.T
	dir   string
	count int
}

// put puts an identity in the place of the last one, all at once, as an agent does.
func (f *files) put(h *holder, roots []byte) {
	f.t.Helper()
	f.count++
	next := strconv.Itoa(f.count)
	require.NoError(f.t, os.Mkdir(filepath.Join(f.dir, next), 0o700))
	for name, data := range map[string][]byte{"certificate.pem": h.certificate, "key.pem": h.keyPEM(f.t), "roots.pem": roots} {
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
	ca, other, twice := authority(t, "m"), authority(t, "n"), authority(t, "m")
	web := resource.Tags{resource.ServiceTag: "web"}
	f := newFiles(t)
	f.put(issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), ca.Roots())
	server := z.serveMember("backend-1", `{"kuma.io/service":"backend","kuma.io/zone":"east"}`, f)
	mine := issue(t, ca, "m", "web-1", web)

	answer, err := callBare(t, server.address, presenting(t, mine.pair(t)))
	require.NoError(t, err)
	require.Equal(t, "backend-1", answer)

	// A dataplane signs with its own key the certificate of another one.
	parent := mine.parsed(t)
	uri, err := url.Parse("spiffe://east.m/dp/admin/_/kuma.io_2Fservice/admin")
	require.NoError(t, err)
	forged := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: parent.NotBefore, NotAfter: parent.NotAfter, URIs: []*url.URL{uri},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: parent.ExtKeyUsage,
	}, parent, &forged.PublicKey, mine.key)
	require.NoError(t, err)
	alone := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: parent.NotBefore, NotAfter: parent.NotAfter, URIs: parent.URIs,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: parent.ExtKeyUsage, IsCA: true, BasicConstraintsValid: true,
	}
	self, err := x509.CreateCertificate(rand.Reader, alone, alone, &forged.PublicKey, forged)
	require.NoError(t, err)
	stolen := mine.pair(t)
	stolen.PrivateKey = forged
	for name, with := range map[string]credentials.TransportCredentials{
		"of another mesh":                presenting(t, issue(t, other, "n", "web-1", web).pair(t)),
		"of another authority":           presenting(t, issue(t, twice, "m", "web-1", web).pair(t)),
		"signed by a dataplane":          presenting(t, tls.Certificate{Certificate: [][]byte{der, parent.Raw}, PrivateKey: forged}),
		"signed by itself":               presenting(t, tls.Certificate{Certificate: [][]byte{self}, PrivateKey: forged}),
		"without its key":                presenting(t, stolen),
		"no certificate":                 presenting(t, tls.Certificate{}),
		"plaintext":                      insecure.NewCredentials(),
		"of the authority's certificate": presenting(t, tls.Certificate{Certificate: [][]byte{rootOf(t, ca)}, PrivateKey: forged}),
	} {
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
	for _, h := range []*holder{
		issue(t, other, "n", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), issue(t, twice, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}),
		issue(t, ca, "m", "web-2", resource.Tags{resource.ServiceTag: "web"}), // a dataplane that is not of the service
	} {
		impostor := newFiles(t)
		impostor.put(h, bytes.Join([][]byte{ca.Roots(), other.Roots(), twice.Roots()}, nil))
		wrong := z.serveMember("backend-1", `{"kuma.io/service":"backend","kuma.io/zone":"east"}`, impostor)
		_, err := callBare(t, wrong.address, presenting(t, mine.pair(t)))
		require.NoError(t, err, "it serves a client that does not verify it")
		_, err = call(t.Context(), z.dialMember(client), "/a.S/M")
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	}
}

func rootOf(t *testing.T, a *meshca.Authority) []byte {
	t.Helper()
	block, _ := pem.Decode(a.Roots())
	require.NotNil(t, block)
	return block.Bytes
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
	ca := authority(t, "m")
	own, client := newFiles(t), newFiles(t)
	own.put(issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), ca.Roots())
	mine := issue(t, ca, "m", "web-1", resource.Tags{resource.ServiceTag: "web"})
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
	_, err := callBare(t, server.address, presenting(t, mine.pair(t)))
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
	ca := authority(t, "m")
	own, client := newFiles(t), newFiles(t)
	replace := func() (serial *big.Int) {
		h := issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"})
		own.put(h, ca.Roots())
		client.put(issue(t, ca, "m", "web-1", resource.Tags{resource.ServiceTag: "web"}), ca.Roots())
		return h.parsed(t).SerialNumber
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
	observer := issue(t, ca, "m", "web-2", resource.Tags{resource.ServiceTag: "web"}).pair(t)
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
