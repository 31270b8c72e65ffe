//go:build multizone

package multizone

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
	syncv1 "meridian/api/sync/v1"
	"meridian/internal/batch"
	"meridian/internal/clientconfig"
)

// dial opens a gRPC connection to a server whose CA is trusted.
func (p *process) dial() *grpc.ClientConn {
	p.t.Helper()
	conn, err := grpc.NewClient(p.addresses()["grpc"], grpc.WithTransportCredentials(credentials.NewTLS(p.trust())))
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (p *process) trust() *tls.Config {
	p.t.Helper()
	pem, err := os.ReadFile(filepath.Join(p.dir, "pki", "ca.pem"))
	require.NoError(p.t, err)
	pool := x509.NewCertPool()
	require.True(p.t, pool.AppendCertsFromPEM(pem))
	return &tls.Config{RootCAs: pool, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}
}

// healthy proves that a server does its work: it is ready, and a write and a
// read come through soon.
func (p *process) healthy(after string) {
	p.t.Helper()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + p.addresses()["http"] + "/readyz")
	require.NoError(p.t, err, after)
	require.NoError(p.t, response.Body.Close())
	require.Equal(p.t, http.StatusOK, response.StatusCode, after)
	r := p.commandWith("{type: GlobalSecret, name: pulse, data: "+base64.StdEncoding.EncodeToString([]byte(rand.Text()))+"}", "apply", "-f", "-", "--timeout", "10s")
	require.Zero(p.t, r.code, "after %s: %s", after, r.stderr)
	require.Zero(p.t, p.command("get", "global-secret", "pulse", "--timeout", "10s").code, after)
}

func bearing(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// segments of a token, decoded, to be put together otherwise.
type segments struct {
	header, payload map[string]any
	raw             []string
}

func taken(t *testing.T, token string) segments {
	t.Helper()
	s := segments{raw: strings.Split(token, ".")}
	require.Len(t, s.raw, 3)
	for i, into := range []*map[string]any{&s.header, &s.payload} {
		data, err := base64.RawURLEncoding.DecodeString(s.raw[i])
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(data, into))
	}
	return s
}

func (s segments) with(header, payload map[string]any) string {
	h, p := maps.Clone(s.header), maps.Clone(s.payload)
	maps.Copy(h, header)
	maps.Copy(p, payload)
	encode := func(m map[string]any) string {
		data, _ := json.Marshal(m)
		return base64.RawURLEncoding.EncodeToString(data)
	}
	return encode(h) + "." + encode(p)
}

// §6.8: tokens that were tampered with, made up, or meant for another
// service are refused by others, each with its reason.
func TestAttacksWithTokens(t *testing.T) {
	global := newGlobal(t).start().ready()
	admin := strings.TrimSpace(global.must("generate", "user-token", "--name", "root", "--group", "mesh-system:admin", "--valid-for", "1h"))
	bob := strings.TrimSpace(global.must("generate", "user-token", "--name", "bob", "--valid-for", "1h"))
	zone := strings.TrimSpace(global.must("generate", "zone-token", "--zone", "east", "--valid-for", "1h"))
	stolen := taken(t, bob)

	// Every caller may read the public keys; an attacker tries them as HMAC secrets.
	var key struct{ PublicKey string }
	require.NoError(t, json.Unmarshal([]byte(global.must("get", "signing-key", "user-token-signing-key-1", "-o", "json")), &key))
	confused := stolen.with(map[string]any{"alg": "HS256"}, map[string]any{"groups": []string{"mesh-system:admin"}})
	mac := hmac.New(sha256.New, []byte(decodeBase64(t, key.PublicKey)))
	mac.Write([]byte(confused))
	confused += "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	_, own, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	sign := func(unsigned string) string {
		return unsigned + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(own, []byte(unsigned)))
	}
	promoted := stolen.with(nil, map[string]any{"groups": []string{"mesh-system:admin"}})

	conn := global.dial()
	client := meridianv1.NewAdminServiceClient(conn)
	get := func(ctx context.Context) error {
		_, err := client.Get(ctx, &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: "Mesh", Name: "default"}})
		return err
	}
	require.NoError(t, get(bearing(t.Context(), admin)), "the token that opens")
	for name, tc := range map[string]struct{ token, want string }{
		"forged payload":       {promoted + "." + stolen.raw[2], "the token's signature does not verify"},
		"own key, stolen kid":  {sign(promoted), "the token's signature does not verify"},
		"own key, own kid":     {sign(stolen.with(map[string]any{"kid": "user-token-signing-key-9"}, nil)), "the token's signing key is not known here"},
		"kid of another use":   {stolen.with(map[string]any{"kid": "zone-token-signing-key-1"}, nil) + "." + stolen.raw[2], "the token's signature does not verify"},
		"kid as a path":        {sign(stolen.with(map[string]any{"kid": "../../admin.yaml"}, nil)), "the token's signing key is not known here"},
		"key in the header":    {sign(stolen.with(map[string]any{"kid": "", "jwk": map[string]string{"kty": "OKP", "crv": "Ed25519"}}, nil)), "the token names no signing key (kid)"},
		"key to be fetched":    {sign(stolen.with(map[string]any{"jku": "https://198.51.100.1/keys", "x5u": "https://198.51.100.1/x"}, nil)), "the token's signature does not verify"},
		"critical extension":   {sign(stolen.with(map[string]any{"crit": []string{"b64"}, "b64": false}, nil)), "the token's signature does not verify"},
		"expired, and forged":  {sign(stolen.with(nil, map[string]any{"exp": 1})), "the token's signature does not verify"},
		"a list for a kid":     {sign(stolen.with(map[string]any{"kid": []string{"user-token-signing-key-1"}}, nil)), "the token names no signing key (kid)"},
		"unheard-of algorithm": {stolen.with(map[string]any{"alg": "HS999"}, nil) + "." + stolen.raw[2], "the token is not signed with EdDSA"},
		"no algorithm":         {stolen.with(map[string]any{"alg": "none"}, nil) + ".", `the token is not signed with EdDSA but with "none"`},
		"algorithm confusion":  {confused, `the token is not signed with EdDSA but with "HS256"`},
		"truncated signature":  {bob[:len(bob)-22], "the token's signature does not verify"},
		"truncated payload":    {stolen.raw[0] + "." + stolen.raw[1][:10] + "." + stolen.raw[2], "the token is malformed"},
		"without signature":    {stolen.raw[0] + "." + stolen.raw[1], "the token is malformed"},
		"signature of another": {stolen.raw[0] + "." + stolen.raw[1] + "." + strings.Split(admin, ".")[2], "the token's signature does not verify"},
		"huge":                 {strings.Repeat("A", 20<<10), "the token is malformed: it has 20480 bytes"},
		"nothing":              {"", "the token is malformed"},
		"zone token, replayed": {zone, "Access Denied: meridian.v1.AdminService takes a user token, not a zone token"},
	} {
		t.Run(name, func(t *testing.T) {
			err := get(bearing(t.Context(), tc.token))
			require.Contains(t, []codes.Code{codes.Unauthenticated, codes.PermissionDenied}, status.Code(err), err)
			require.ErrorContains(t, err, tc.want)
		})
	}
	err = get(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+bob, "authorization", "Bearer "+admin))
	require.ErrorContains(t, err, "more than one set of credentials")
	global.healthy("bad tokens")

	// The stream of zones opens for neither users nor other zones.
	for name, tc := range map[string]struct {
		ctx  context.Context
		want string
	}{
		"user":      {bearing(t.Context(), admin), "is for zones: present a zone token"},
		"anonymous": {t.Context(), "is for zones: present a zone token"},
	} {
		stream, err := syncv1.NewSyncServiceClient(conn).Stream(tc.ctx)
		require.NoError(t, err)
		_, err = stream.Recv()
		require.ErrorContains(t, err, tc.want, name)
	}
	bundle := global.must("generate", "zone-token", "--zone", "east", "--valid-for", "1h", "--bundle")
	stolenBundle := filepath.Join(t.TempDir(), "west.bundle")
	require.NoError(t, os.WriteFile(stolenBundle, []byte(strings.ReplaceAll(bundle, "east", "west")), 0o600))
	global.must("generate", "zone-token", "--zone", "west", "--valid-for", "1h")
	impostor := newProcess(t, "meridian-zone", "west", "--name", "west", "--join-bundle", stolenBundle, "--grpc-addr", anyPort, "--http-addr", anyPort).start()
	impostor.ready()
	require.NotEqual(t, "in-sync", global.zones()["west"].State, "the token of one zone does not let another in")
	require.Empty(t, items(t, impostor.must("get", "meshes", "-o", "json")), "it has received nothing")
	global.healthy("an impostor zone")
}

// Requests beyond the limits are refused without being taken in.
func TestAttacksWithOversizedRequests(t *testing.T) {
	global := newGlobal(t).start().ready()
	conn := global.dial()
	client := meridianv1.NewAdminServiceClient(conn)
	huge := &meridianv1.Resource{Kind: "Mesh", Name: "m", Spec: make([]byte, 30<<20)}
	_, err := batch.Apply(t.Context(), client, &meridianv1.ApplyRequest{Resources: []*meridianv1.Resource{huge}, RequestId: "r"}, grpc.MaxCallSendMsgSize(64<<20))
	require.Equal(t, codes.ResourceExhausted, status.Code(err), err)
	var many []*meridianv1.Resource
	for range 20 {
		many = append(many, &meridianv1.Resource{Kind: "Mesh", Name: "m", Spec: make([]byte, 1<<20)})
	}
	_, err = batch.Apply(t.Context(), client, &meridianv1.ApplyRequest{Resources: many, RequestId: "r"}, grpc.MaxCallSendMsgSize(64<<20))
	require.ErrorContains(t, err, "a batch has at most 16 MiB")
	_, err = client.Get(bearing(t.Context(), strings.Repeat("A", 1<<20)), &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: "Mesh", Name: "default"}})
	require.Error(t, err)
	_, err = client.Get(t.Context(), &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: "Mesh", Name: strings.Repeat("x", 1<<20)}})
	require.Error(t, err)
	global.healthy("oversized gRPC requests")

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+global.addresses()["http"]+"/readyz", nil)
	require.NoError(t, err)
	request.Header.Set("X", strings.Repeat("x", 1<<20))
	response, err := http.DefaultClient.Do(request)
	if err == nil {
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, response.StatusCode)
	}
	global.healthy("oversized HTTP requests")
}

const (
	idleConnections = 10_000
	refusedSize     = 2000
	slowSize        = 300
	// otherFiles is what a process opens besides the connections of clients.
	otherFiles = 1000
)

// fileLimitFor raises the limit on open files, for this process and the servers that
// it starts, so that each can hold n connections. It returns how many they can:
// fewer where the machine does not allow it, which it says.
func fileLimitFor(t *testing.T, n int) int {
	t.Helper()
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	want := uint64(n + otherFiles)
	if limit.Cur < want {
		raised := syscall.Rlimit{Cur: want, Max: max(limit.Max, want)}
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised) != nil {
			raised = syscall.Rlimit{Cur: limit.Max, Max: limit.Max}
			require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised))
		}
		limit = raised
	}
	if limit.Cur >= want {
		return n
	}
	fewer := int(limit.Cur) - otherFiles
	require.Positive(t, fewer, "a process may open %d files here", limit.Cur)
	t.Logf("a process may open %d files here: %d connections in place of %d", limit.Cur, fewer, n)
	return fewer
}

// requireHungUp waits until a server has closed every connection.
func requireHungUp(t *testing.T, conns []net.Conn, who string) {
	t.Helper()
	deadline := time.Now().Add(3 * patience)
	for _, conn := range conns {
		require.NoError(t, conn.SetReadDeadline(deadline))
		_, err := io.Copy(io.Discard, conn)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "%s: the server still waits", who)
	}
}

// attackers is how many addresses an attack comes from, none of them that of other
// clients.
const attackers = 16

// attacker dials from the i-th address of an attack.
func attacker(i int) *net.Dialer {
	return &net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%attackers))}}
}

// openMany opens n connections from the addresses of an attack and returns them;
// begin is what each does first, as far as the server lets it.
func openMany(t *testing.T, n int, addr string, begin func(net.Conn) error) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, n)
	var group errgroup.Group
	group.SetLimit(64)
	for i := range conns {
		group.Go(func() error {
			conn, err := attacker(i).Dial("tcp", addr)
			if err != nil {
				return err
			}
			conns[i] = conn
			_ = begin(conn) // the server may have hung up already
			return nil
		})
	}
	require.NoError(t, group.Wait())
	t.Cleanup(func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	return conns
}

// Connections that never say who they are do not keep a server from its work,
// however many there are.
func TestAttacksWithConnections(t *testing.T) {
	size := fileLimitFor(t, idleConnections) // before the server starts, which inherits it
	global := newGlobal(t).start().ready()
	trust := global.trust()
	trust.ServerName = "127.0.0.1"
	preface := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	const parts = 5
	var idle []net.Conn
	for range parts {
		idle = append(idle, openMany(t, size/parts, global.addresses()["grpc"], func(conn net.Conn) error {
			secure := tls.Client(conn, trust)
			_, err := secure.Write(preface)
			return err
		})...)
		global.healthy(fmt.Sprintf("%d idle connections", len(idle)))
	}
	// They answer no pings either, and are hung up on for that.
	requireHungUp(t, idle, "idle connections")
	global.healthy("idle connections that were closed")
	openMany(t, refusedSize/4, global.addresses()["http"], func(net.Conn) error { return nil })
	global.healthy("500 idle connections to the plain port")

	// A burst of requests, all of which are refused.
	conn, err := grpc.NewClient(global.addresses()["grpc"], grpc.WithTransportCredentials(credentials.NewTLS(global.trust())),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return attacker(0).DialContext(ctx, "tcp", addr)
		}))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	client := meridianv1.NewAdminServiceClient(conn)
	var group errgroup.Group
	group.SetLimit(64)
	for range refusedSize {
		group.Go(func() error {
			_, err := client.Get(bearing(t.Context(), "no.such.token"), &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: "Mesh", Name: "default"}})
			switch status.Code(err) {
			case codes.Unauthenticated, codes.ResourceExhausted, codes.Unavailable: // and then its connection is closed
				return nil
			default:
				return fmt.Errorf("a forged token: %w", err)
			}
		})
	}
	require.NoError(t, group.Wait())
	global.healthy("2,000 refusals")
	log, err := os.ReadFile(filepath.Join(global.dir, "audit", "refused.log"))
	require.NoError(t, err)
	refused := strings.Count(string(log), "TOKEN_REFUSED")
	require.Positive(t, refused)
	require.Less(t, refused, 100, "refusals are counted, not listed")
}

// More connections than a server may have files open do not keep it from writing
// its own, and it takes connections again once they are gone.
func TestAttacksWithMoreConnectionsThanFiles(t *testing.T) {
	global := newGlobal(t)
	global.files = 300
	global.start().ready()
	standing := global.dial()
	apply := func(name string) error {
		_, err := batch.Apply(t.Context(), meridianv1.NewAdminServiceClient(standing), &meridianv1.ApplyRequest{
			RequestId: name, Resources: []*meridianv1.Resource{{Kind: "Mesh", Name: name, Spec: []byte("{}")}},
		})
		return err
	}
	require.NoError(t, apply("before"))
	for _, port := range []string{"grpc", "http"} {
		openMany(t, 2*global.files, global.addresses()[port], func(net.Conn) error { return nil })
	}
	require.NoError(t, apply("meanwhile"), "who is connected is served")
	save, err := meridianv1.NewClusterServiceClient(standing).SaveSnapshot(bearing(t.Context(), tokenFile(t, global)), &meridianv1.SaveSnapshotRequest{})
	require.NoError(t, err)
	for err == nil {
		_, err = save.Recv()
	}
	require.ErrorIs(t, err, io.EOF, "there are files left to write to")
	global.await("the connections to be closed", func() bool { return global.command("get", "meshes", "--timeout", "5s").code == 0 })
	global.healthy("more connections than files")
	require.NotContains(t, global.log.String(), "too many open files")
}

// tokenFile is the admin token as it stands in the server's own context.
func tokenFile(t *testing.T, p *process) string {
	t.Helper()
	contexts, err := clientconfig.LoadContexts(filepath.Join(p.dir, "admin.yaml"))
	require.NoError(t, err)
	return contexts.ControlPlanes[0].Token
}

// Who is slow at saying hello is hung up on, on every port of both servers.
func TestAttacksWithSlowHandshakes(t *testing.T) {
	global := newGlobal(t, "--webhook-addr", anyPort, "--webhook-allow-any-client").start().ready()
	zone := newZone(t, global, "east", "--webhook-addr", anyPort, "--webhook-allow-any-client").start().ready()
	// A TLS record that promises more than ever comes.
	record := []byte{0x16, 0x03, 0x01, 0x02, 0x00, 0x01}
	slow := map[string][]net.Conn{}
	for _, p := range []*process{global, zone} {
		addresses, trust := p.addresses(), p.trust()
		trust.ServerName, trust.NextProtos = "127.0.0.1", []string{"http/1.1"}
		for what, how := range map[string]struct {
			port  string
			begin func(net.Conn) error
		}{
			"half a hello":          {"grpc", func(conn net.Conn) error { return second(conn.Write(record)) }},
			"silence":               {"grpc", func(net.Conn) error { return nil }},
			"half a header":         {"http", func(conn net.Conn) error { return second(conn.Write([]byte("GET /readyz HTTP/1.1\r\nHost: x\r\nX-A"))) }},
			"half a hello, webhook": {"webhook", func(conn net.Conn) error { return second(conn.Write(record)) }},
			"silence, webhook":      {"webhook", func(net.Conn) error { return nil }},
			"half a review": {"webhook", func(conn net.Conn) error {
				return second(tls.Client(conn, trust).Write([]byte("POST /validate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{")))
			}},
		} {
			slow[p.name+", "+what] = openMany(t, slowSize, addresses[how.port], how.begin)
		}
	}
	global.healthy("slow handshakes")
	zone.healthy("slow handshakes")
	for name, conns := range slow {
		requireHungUp(t, conns, name)
	}
	global.healthy("slow handshakes that were hung up on")
	zone.healthy("slow handshakes that were hung up on")
}

// second is the error of a write.
func second(_ int, err error) error { return err }

// The id of another caller's request does not return its answer without
// authorization, and does not suppress a write.
func TestAttacksWithRequestIDs(t *testing.T) {
	global := newGlobal(t, "--localhost-is-admin=false").start().ready()
	for _, document := range []string{adminsOnly, backendOwnerRole, backendOwnerBinding} {
		global.mustWith(document, "apply", "-f", "-")
	}
	owner := strings.TrimSpace(global.must("generate", "user-token", "--name", "backend-owner", "--valid-for", "1h"))
	admin := meridianv1.NewAdminServiceClient(global.dial())
	apply := func(ctx context.Context, resource *meridianv1.Resource) (*meridianv1.ApplyResponse, error) {
		return batch.Apply(ctx, admin, &meridianv1.ApplyRequest{RequestId: "the same", Resources: []*meridianv1.Resource{resource}})
	}
	mesh := &meridianv1.Resource{Kind: "Mesh", Name: "secret-plans", Spec: []byte("{}")}
	root := bearing(t.Context(), tokenOf(t, global))
	first, err := apply(root, mesh)
	require.NoError(t, err)
	again, err := apply(root, mesh)
	require.NoError(t, err)
	require.Equal(t, first.GetRevision(), again.GetRevision(), "who asks again is answered again")
	for who, ctx := range map[string]context.Context{"an unauthenticated caller": t.Context(), "a user": bearing(t.Context(), owner)} {
		_, err := apply(ctx, mesh)
		require.Equal(t, codes.PermissionDenied, status.Code(err), who)
	}
	own := &meridianv1.Resource{Kind: "TrafficPermission", Mesh: "default", Name: "own", Spec: []byte(
		`{"sources": [{"match": {"kuma.io/service": "web"}}], "destinations": [{"match": {"kuma.io/service": "backend"}}]}`)}
	made, err := apply(bearing(t.Context(), owner), own)
	require.NoError(t, err)
	require.Equal(t, "own", made.GetResults()[0].GetName())
	require.Contains(t, global.must("get", "traffic-permissions", "-o", "name"), "TrafficPermission/own")
}
