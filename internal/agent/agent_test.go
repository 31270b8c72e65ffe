package agent

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/meshca"
	"meridian/internal/service/dataplane"
)

// zone is a zone as agents see it.
type zone struct {
	meridianv1.UnimplementedDataplaneServiceServer
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	address string
	roots   *x509.CertPool

	mu     sync.Mutex
	refuse error
	tokens []string
	hello  *meridianv1.DataplaneHello
	left   bool
	drains int
	// authority signs certificates; nil: the mesh has no mutual TLS.
	authority *meshca.Authority
	lifetime  time.Duration
	// ahead is by how much its clock is ahead of that of the agent.
	ahead time.Duration
	// identity makes the answers to requests in the place of authority, if it is set.
	identity func(version uint64) *meridianv1.DataplaneIdentity
	requests []*ecdsa.PublicKey
	trusted  []uint64
	// silent answers no request for a certificate.
	silent bool
	// onDrain ends the stream that says that it drains, once.
	onDrain error
	// end ends the registration that was accepted last.
	end func(error)
	// stop has it gone, with every connection.
	stop func()
}

func (z *zone) note(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	z.mu.Lock()
	defer z.mu.Unlock()
	z.tokens = append(z.tokens, md.Get("authorization")...)
	return z.refuse
}

// identify answers a request for a certificate.
func (z *zone) identify(stream grpc.BidiStreamingServer[meridianv1.ConnectRequest, meridianv1.ConnectResponse], m *meridianv1.DataplaneCertificateRequest) error {
	key, err := meshca.ParseRequest(m.GetCsr())
	if err != nil {
		return err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.requests = append(z.requests, key)
	if z.silent {
		return nil
	}
	answer := &meridianv1.DataplaneIdentity{Version: uint64(len(z.requests))}
	if z.identity != nil {
		answer = z.identity(answer.GetVersion())
	} else if z.authority != nil {
		c, err := z.authority.Sign(key, "spiffe://east.default/dp/web-1/_/kuma.io_2Fservice/web", z.lifetime, time.Now().Add(z.ahead))
		if err != nil {
			return err
		}
		answer.Certificate, answer.Roots = c.PEM, z.authority.Roots()
	}
	return stream.Send(&meridianv1.ConnectResponse{Identity: answer})
}

func (z *zone) Connect(stream grpc.BidiStreamingServer[meridianv1.ConnectRequest, meridianv1.ConnectResponse]) error {
	if err := z.note(stream.Context()); err != nil {
		return err
	}
	ended := make(chan error, 1)
	z.mu.Lock()
	z.end = func(err error) { ended <- err }
	z.mu.Unlock()
	served := make(chan error, 1)
	go func() { served <- z.register(stream) }()
	select {
	case err := <-ended:
		return err
	case err := <-served:
		return err
	}
}

// register takes what an agent sends.
func (z *zone) register(stream grpc.BidiStreamingServer[meridianv1.ConnectRequest, meridianv1.ConnectResponse]) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		z.mu.Lock()
		if h := m.GetHello(); h != nil {
			z.hello = h
		}
		z.left = z.left || m.GetLeave() != nil
		left := z.left
		var broken error
		if m.GetDrain() != nil {
			z.drains++
			broken, z.onDrain = z.onDrain, nil
		}
		z.mu.Unlock()
		switch {
		case broken != nil:
			return broken
		case left:
			return nil
		case m.GetHello() != nil:
			if err := stream.Send(&meridianv1.ConnectResponse{Sequence: 1, Full: true}); err != nil {
				return err
			}
		case m.GetCertificateRequest() != nil:
			if err := z.identify(stream, m.GetCertificateRequest()); err != nil {
				return err
			}
		case m.GetIdentityAck() != nil:
			z.mu.Lock()
			z.trusted = append(z.trusted, m.GetIdentityAck().GetVersion())
			z.mu.Unlock()
		}
	}
}

// StreamAggregatedResources answers each request with its own type and ends when told.
func (z *zone) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	if err := z.note(stream.Context()); err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case m.GetTypeUrl() == "end":
			return status.Error(codes.NotFound, "the dataplane was deleted")
		}
		if err := stream.Send(&discoveryv3.DiscoveryResponse{TypeUrl: m.GetTypeUrl()}); err != nil {
			return err
		}
	}
}

func startZone(t *testing.T) *zone {
	t.Helper()
	z := &zone{address: "127.0.0.1:0"}
	z.listen(t)
	return z
}

// listen starts the zone at its address, also after it has been stopped.
func (z *zone) listen(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", z.address)
	require.NoError(t, err)
	z.address = listener.Addr().String()
	web := httptest.NewTLSServer(nil) // for its certificate
	defer web.Close()
	z.roots = x509.NewCertPool()
	z.roots.AddCert(web.Certificate())
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: web.TLS.Certificates, MinVersion: tls.VersionTLS13})))
	meridianv1.RegisterDataplaneServiceServer(server, z)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, z)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	z.stop = func() { server.Stop(); <-done }
	t.Cleanup(z.stop)
}

// running is an agent that runs.
type running struct {
	Config
	stop  context.CancelFunc
	ended chan error
}

func start(t *testing.T, z *zone, changes ...func(*Config)) *running {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent") // t.TempDir is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	r := &running{ended: make(chan error, 1), Config: Config{
		Mesh: "default", Name: "web-1", Spec: []byte(`{"networking":{}}`), TokenFile: filepath.Join(dir, "token"),
		Addresses: []string{z.address}, Transport: credentials.NewTLS(&tls.Config{RootCAs: z.roots, MinVersion: tls.VersionTLS13}),
		Bootstrap: filepath.Join(dir, "xds.json"), Socket: filepath.Join(dir, "xds.sock"), Instance: "i1", Drain: time.Minute,
		Log: slog.New(slog.DiscardHandler),
	}}
	for _, change := range changes {
		change(&r.Config)
	}
	require.NoError(t, os.WriteFile(r.TokenFile, []byte("t1\n"), 0o600))
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() { r.ended <- Run(ctx, r.Config) }()
	return r
}

// bootstrapped waits for the bootstrap file.
func (r *running) bootstrapped(t *testing.T) bootstrap {
	t.Helper()
	require.Eventually(t, func() bool {
		select {
		case err := <-r.ended:
			t.Fatalf("the agent ended: %v", err)
		default:
		}
		_, err := os.Stat(r.Bootstrap)
		return err == nil
	}, 30*time.Second, time.Millisecond)
	data, err := os.ReadFile(r.Bootstrap)
	require.NoError(t, err)
	var b bootstrap
	require.NoError(t, json.Unmarshal(data, &b))
	return b
}

// application is one that has a stream.
type application struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	conn *grpc.ClientConn
	// gone ends its connection.
	gone func()
}

func (r *running) dial(t *testing.T) application {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+r.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	app := application{conn: conn, gone: sync.OnceFunc(func() { require.NoError(t, conn.Close()) })}
	t.Cleanup(app.gone)
	app.again(t)
	return app
}

// again opens its next stream, on the same connection.
func (a *application) again(t *testing.T) {
	t.Helper()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(a.conn).StreamAggregatedResources(t.Context())
	require.NoError(t, err)
	a.AggregatedDiscoveryService_StreamAggregatedResourcesClient = stream
}

func exchange(t *testing.T, stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient, text string) {
	t.Helper()
	require.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: text}))
	m, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, text, m.GetTypeUrl())
}

func TestAnAgentRegistersRelaysAndLeaves(t *testing.T) {
	z := startZone(t)
	r := start(t, z)
	b := r.bootstrapped(t)
	require.Equal(t, "default/web-1", b.Node.ID)
	require.Equal(t, "i1", b.Node.Metadata["meridian.io/instance"])
	require.Equal(t, "unix://"+r.Socket, b.XDSServers[0].ServerURI)
	require.NotContains(t, b.XDSServers[0].ServerFeatures, "ignore_resource_deletion")
	z.mu.Lock()
	require.True(t, z.hello.GetRegistrationOnly())
	require.Equal(t, string(r.Spec), string(z.hello.GetSpec()))
	z.mu.Unlock()
	for _, path := range []string{r.Socket, r.Bootstrap} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), path)
	}

	// Many streams, each by the token of then.
	first := r.dial(t)
	exchange(t, first, "a")
	require.NoError(t, os.WriteFile(r.TokenFile, []byte("t2"), 0o600))
	second := r.dial(t)
	exchange(t, second, "b")
	exchange(t, first, "c")
	z.mu.Lock()
	require.Equal(t, []string{"Bearer t1", "Bearer t1", "Bearer t2"}, z.tokens[:3]) // it may have registered again since
	z.mu.Unlock()

	// The zone's reason is the client's.
	require.NoError(t, second.Send(&discoveryv3.DiscoveryRequest{TypeUrl: "end"}))
	_, err := second.Recv()
	require.Equal(t, codes.NotFound, status.Code(err))
	require.ErrorContains(t, err, "the dataplane was deleted")

	// It says at once that it drains, and keeps the registration, which streams of
	// clients need, until these have gone.
	r.stop()
	z.await(t, func() bool { return z.drains == 1 })
	exchange(t, first, "d")
	z.mu.Lock()
	require.False(t, z.left)
	require.False(t, z.hello.GetDraining())
	z.mu.Unlock()
	first.gone()
	second.gone()
	require.NoError(t, <-r.ended)
	z.mu.Lock()
	require.True(t, z.left)
	z.mu.Unlock()
	_, err = os.Stat(r.Socket)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func (z *zone) await(t *testing.T, holds func() bool) {
	t.Helper()
	require.Eventually(t, func() bool { z.mu.Lock(); defer z.mu.Unlock(); return holds() }, 30*time.Second, time.Millisecond)
}

// A zone that goes away meanwhile is told again; one that has another agent in this
// one's place is not, and both continue to serve streams.
func TestDrainingWithoutTheRegistration(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.FailedPrecondition} {
		z := startZone(t)
		z.onDrain = status.Error(code, "broken off")
		r := start(t, z)
		r.bootstrapped(t)
		stream := r.dial(t)
		exchange(t, stream, "a")
		r.stop()
		z.await(t, func() bool { return z.drains == 1 && (z.hello.GetDraining() || code == codes.FailedPrecondition) })
		exchange(t, stream, "b")
		stream.gone()
		require.NoError(t, <-r.ended)
		z.mu.Lock()
		require.Equal(t, code == codes.Unavailable, z.left)
		z.mu.Unlock()
	}
}

// An application whose stream the zone ended, and which waits to open its next one, is waited
// for: it is connected, and serves requests meanwhile.
func TestDrainingWithAnApplicationThatWaits(t *testing.T) {
	z := startZone(t)
	r := start(t, z)
	r.bootstrapped(t)
	app := r.dial(t)
	require.NoError(t, app.Send(&discoveryv3.DiscoveryRequest{TypeUrl: "end"}))
	_, err := app.Recv()
	require.Equal(t, codes.NotFound, status.Code(err))
	r.stop()
	z.await(t, func() bool { return z.drains == 1 })
	app.again(t)
	exchange(t, app, "a")
	z.mu.Lock()
	require.False(t, z.left)
	z.mu.Unlock()
	app.gone()
	require.NoError(t, <-r.ended)
	z.await(t, func() bool { return z.left })
}

// An application that stays connected is not waited for longer than the drain time.
func TestDrainingEnds(t *testing.T) {
	z := startZone(t)
	r := start(t, z, func(c *Config) { c.Drain = time.Millisecond })
	r.bootstrapped(t)
	stream := r.dial(t)
	exchange(t, stream, "a")
	r.stop()
	require.NoError(t, <-r.ended)
	_, err := stream.Recv()
	require.Error(t, err)
	z.await(t, func() bool { return z.left })
}

func TestOnlyXDSIsRelayed(t *testing.T) {
	r := start(t, startZone(t))
	r.bootstrapped(t)
	conn, err := grpc.NewClient("unix://"+r.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	stream, err := meridianv1.NewDataplaneServiceClient(conn).Connect(t.Context())
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, codes.Unimplemented, status.Code(err))
	require.NoError(t, conn.Close())
	r.stop()
	require.NoError(t, <-r.ended)
}

func TestWhatTheZoneRefusesEndsTheAgent(t *testing.T) {
	for _, code := range []codes.Code{codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument} {
		z := startZone(t)
		z.refuse = status.Error(code, "refused")
		r := start(t, z)
		require.ErrorContains(t, <-r.ended, "refused")
		_, err := os.Stat(r.Bootstrap)
		require.ErrorIs(t, err, fs.ErrNotExist, "%s", code)
	}
}

// What may pass is tried again.
func TestAZoneThatIsAwayIsWaitedFor(t *testing.T) {
	z := startZone(t)
	z.refuse = status.Error(codes.NotFound, "no mesh yet")
	r := start(t, z)
	tried := func(n int) func() bool {
		return func() bool { z.mu.Lock(); defer z.mu.Unlock(); return len(z.tokens) >= n }
	}
	require.Eventually(t, tried(2), 30*time.Second, time.Millisecond)
	z.mu.Lock()
	z.refuse = nil
	z.mu.Unlock()
	r.bootstrapped(t)
	r.stop()
	require.NoError(t, <-r.ended)
}

func TestUsage(t *testing.T) {
	z := startZone(t)
	r := start(t, z)
	r.bootstrapped(t)
	for name, c := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"a socket in use":     {func(*Config) {}, "another process listens there"},
		"a file in its place": {func(c *Config) { c.Socket = c.TokenFile }, "a file that is no socket"},
		"a long path":         {func(c *Config) { c.Socket = fmt.Sprintf("/%0200d", 1) }, "choose a shorter one"},
		"no token":            {func(c *Config) { c.TokenFile += "x" }, "--token-file"},
		"a bad address":       {func(c *Config) { c.Addresses = []string{"x"} }, "HOST:PORT"},
	} {
		config := r.Config
		c.change(&config)
		err := Run(t.Context(), config)
		var usage *UsageError
		require.ErrorAs(t, err, &usage, name)
		require.ErrorContains(t, err, c.says, name)
	}
	r.stop()
	require.NoError(t, <-r.ended)
}

// A socket that a killed agent left behind does not stop the next.
func TestAnOldSocketIsReplaced(t *testing.T) {
	z := startZone(t)
	r := start(t, z)
	r.bootstrapped(t)
	r.stop()
	require.NoError(t, <-r.ended)
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.Socket, Net: "unix"})
	require.NoError(t, err)
	old.SetUnlinkOnClose(false)
	require.NoError(t, old.Close())
	ctx, stop := context.WithCancel(t.Context())
	go func() { r.ended <- Run(ctx, r.Config) }()
	require.Eventually(t, func() bool {
		conn, err := net.Dial("unix", r.Socket)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	}, 30*time.Second, time.Millisecond)
	stop()
	require.NoError(t, <-r.ended)
}

// An application is known by files that are replaced at once, readable by the user only,
// and by a new key before a certificate expires.
func TestCertificatesAreRenewed(t *testing.T) {
	z := startZone(t)
	authority, err := meshca.New("east", "default", "ca", time.Now())
	require.NoError(t, err)
	z.authority, z.lifetime = authority.WithLongest(time.Hour), 4*time.Second // renewed after 2 s or more
	a := start(t, z)
	b := a.bootstrapped(t)
	provider := b.CertificateProviders["meridian"]
	require.Equal(t, "file_watcher", provider.PluginName)
	files := provider.Config
	var first tls.Certificate
	var roots []byte
	var readable []string // by others than the user
	read := func() (err error) {
		if first, err = tls.LoadX509KeyPair(files.Certificate, files.Key); err != nil {
			return err
		}
		if roots, err = os.ReadFile(files.Roots); err != nil {
			return err
		}
		return filepath.WalkDir(a.Bootstrap+identitySuffix, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Type()&fs.ModeSymlink != 0 {
				return err
			}
			info, err := d.Info()
			if err == nil && info.Mode().Perm()&0o077 != 0 {
				readable = append(readable, path)
			}
			return err
		})
	}
	// A renewal may replace what is being read.
	require.Eventually(t, func() bool { return read() == nil }, 30*time.Second, time.Millisecond)
	require.Equal(t, authority.Roots(), roots)
	require.Empty(t, readable)
	require.Eventually(t, func() bool {
		pair, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
		return err == nil && !bytes.Equal(pair.Certificate[0], first.Certificate[0])
	}, 30*time.Second, 5*time.Millisecond)
	z.mu.Lock()
	require.GreaterOrEqual(t, len(z.requests), 2)
	require.False(t, z.requests[0].Equal(z.requests[1]), "a new certificate has a new key")
	z.mu.Unlock()
	require.Eventually(t, func() bool { // what is trusted is acknowledged
		z.mu.Lock()
		defer z.mu.Unlock()
		return len(z.trusted) > 0
	}, 30*time.Second, 5*time.Millisecond)
	a.stop()
	require.NoError(t, <-a.ended)
	entries, err := os.ReadDir(a.Bootstrap + identitySuffix)
	require.NoError(t, err)
	require.Len(t, entries, 2, "one identity, and the link to it")
}

// A machine whose clock is minutes off has certificates that are valid by it; one whose
// clock is further off is told so.
func TestAClockThatIsOff(t *testing.T) {
	for ahead, usable := range map[time.Duration]bool{
		50 * time.Minute: true, -50 * time.Minute: true, 2 * time.Hour: false, -25 * time.Hour: false,
	} {
		t.Run(ahead.String(), func(t *testing.T) {
			z := startZone(t)
			authority, err := meshca.New("east", "default", "ca", time.Now().Add(ahead))
			require.NoError(t, err)
			z.authority, z.lifetime, z.ahead = authority.WithLongest(24*time.Hour), 24*time.Hour, ahead
			var log syncBuffer // a timer of the agent may log after its end
			a := start(t, z, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
			files := a.bootstrapped(t).CertificateProviders["meridian"].Config
			// One that has expired by this clock is soon renewed: what is read may be replaced, so
			// the certificate is read alone, and again.
			var data []byte
			require.Eventually(t, func() bool {
				data, err = os.ReadFile(files.Certificate)
				return err == nil
			}, 30*time.Second, time.Millisecond)
			block, _ := pem.Decode(data)
			require.NotNil(t, block)
			leaf, err := x509.ParseCertificate(block.Bytes)
			require.NoError(t, err)
			roots := x509.NewCertPool()
			require.True(t, roots.AppendCertsFromPEM(authority.Roots()))
			_, err = leaf.Verify(x509.VerifyOptions{Roots: roots})
			require.Equal(t, usable, err == nil, "%v", err)
			a.stop()
			require.NoError(t, <-a.ended)
			require.Equal(t, !usable, strings.Contains(log.String(), "the clock of this machine is wrong"), log.String())
		})
	}
}

// A token that is half written is not one that replaces another.
func TestATokenIsReplacedOnceItIsWhole(t *testing.T) {
	l := tokenLooks{presented: "a.b.c"}
	for _, look := range []struct {
		saw      string
		replaced bool
	}{{"a.b.c", false}, {"a.b.c", false}, {"d.", false}, {"d.e.", false}, {"d.e.f", false}, {"d.e.f", true}, {"a.b.c", false}, {"a.b.c", false}} {
		require.Equal(t, look.replaced, l.replaced(look.saw), look.saw)
	}
}

// An agent whose token is replaced registers again, and has a certificate on that token,
// for another key.
func TestAReplacedTokenIsRegisteredWith(t *testing.T) {
	z := startZone(t)
	authority, err := meshca.New("east", "default", "ca", time.Now())
	require.NoError(t, err)
	z.authority, z.lifetime = authority.WithLongest(time.Hour), time.Hour
	a := start(t, z)
	a.bootstrapped(t)
	stream := a.dial(t)
	exchange(t, stream, "a")
	require.NoError(t, os.WriteFile(a.TokenFile+".new", []byte("t2\n"), 0o600))
	require.NoError(t, os.Rename(a.TokenFile+".new", a.TokenFile))
	z.await(t, func() bool { return len(z.requests) == 2 })
	exchange(t, stream, "b") // what is open stays
	z.mu.Lock()
	require.Equal(t, []string{"Bearer t1", "Bearer t1", "Bearer t2"}, z.tokens)
	require.False(t, z.requests[0].Equal(z.requests[1]))
	require.False(t, z.left)
	z.mu.Unlock()
	a.stop()
	stream.gone()
	require.NoError(t, <-a.ended)
}

// Files that a crash left behind go with the next identity, and a link that a crash left
// half-way does not matter.
func TestAnInterruptedReplacement(t *testing.T) {
	c, err := openCertificates(filepath.Join(t.TempDir(), "xds.json"))
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(c.dir, "identity-old"), 0o700))
	require.NoError(t, os.Symlink("identity-old", filepath.Join(c.dir, "current.new")))
	for _, content := range []string{"a", "b", "b"} {
		require.NoError(t, c.replace(map[string][]byte{keyFile: []byte(content)}))
		got, err := os.ReadFile(filepath.Join(c.dir, current, keyFile))
		require.NoError(t, err)
		require.Equal(t, content, string(got))
		entries, err := os.ReadDir(c.dir)
		require.NoError(t, err)
		require.Len(t, entries, 2)
	}
}

// A stream of an application that begins while the zone is away waits for it, and continues
// once the zone is back: the application has nothing to try again.
func TestAStreamWaitsForTheZone(t *testing.T) {
	z, log := startZone(t), &syncBuffer{}
	r := start(t, z, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(log, nil)) })
	r.bootstrapped(t)
	stream := r.dial(t)
	exchange(t, stream, "a")
	z.stop()
	_, err := stream.Recv()
	require.Error(t, err, "the stream from before has ended")
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "connection refused") }, 30*time.Second, time.Millisecond)
	stream.again(t)
	require.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: "b"}))
	z.listen(t)
	m, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, "b", m.GetTypeUrl())
	stream.gone()
	r.stop()
	require.NoError(t, <-r.ended)
}

// An agent is back before the zone ends the registration that it has kept: the zone may
// have started just after a look, and an attempt to register just before that.
func TestAnAgentIsBackWithinTheGrace(t *testing.T) {
	require.Less(t, maxReconnect*12/10+maxPause, dataplane.DefaultGrace)
}
