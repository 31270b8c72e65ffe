package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/test/processes"
)

// enforcements is how many changes are followed: enough for the 99th percentile to be
// five of them.
const enforcements = 500

// BenchmarkEnforcedByGRPC follows one change of a route at a time from the request to the
// global to the first call of a stock gRPC client, one call after the other, that a server
// of the new version answers. Its agent runs beside it.
func BenchmarkEnforcedByGRPC(b *testing.B) {
	system(b)
	enforced(b, "backend", func(agent *agent) func(ctx context.Context) (string, error) {
		bootstrap := agent.bootstrap(b)
		builder, err := xds.NewXDSResolverWithConfigForTesting(bootstrap)
		require.NoError(b, err)
		conn, err := grpc.NewClient("xds:///backend", grpc.WithResolvers(builder), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(b, err)
		b.Cleanup(func() { _ = conn.Close() })
		return func(ctx context.Context) (string, error) {
			var answer wrapperspb.StringValue
			err := conn.Invoke(ctx, "/a.S/M", &emptypb.Empty{}, &answer)
			return answer.GetValue(), err
		}
	})
}

// BenchmarkEnforcedByEnvoy is the same for HTTP requests through an Envoy that its agent
// runs: ENVOY_BIN, or the one of `make envoy`.
func BenchmarkEnforcedByEnvoy(b *testing.B) {
	system(b)
	program := os.Getenv("ENVOY_BIN")
	if program == "" {
		program, _ = filepath.Abs("../.cache/envoy/package/envoy/_bin/envoy")
		if _, err := os.Stat(program); err != nil {
			b.Skip("no Envoy: `make envoy` installs one, and ENVOY_BIN names it")
		}
	}
	enforced(b, "site", func(agent *agent) func(ctx context.Context) (string, error) {
		client := &http.Client{}
		b.Cleanup(client.CloseIdleConnections)
		return func(ctx context.Context) (string, error) {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", agent.port), nil)
			if err != nil {
				return "", err
			}
			response, err := client.Do(request)
			if err != nil {
				return "", err
			}
			defer func() { _ = response.Body.Close() }()
			body, err := io.ReadAll(response.Body)
			if err == nil && response.StatusCode != http.StatusOK {
				err = fmt.Errorf("%s: %s", response.Status, body)
			}
			return string(body), err
		}
	}, "--envoy", program)
}

// enforced measures how long changes of the route to a service take. Clients are made by
// connect.
func enforced(b *testing.B, service string, connect func(*agent) func(context.Context) (string, error), arguments ...string) {
	g := newGlobal(b, many)
	z := newZone(b, g, g.grpcAddr)
	z.api.holds(b, many)
	var servers []*meridianv1.Resource
	for _, version := range []string{"v1", "v2"} {
		port := serve(b, version)
		servers = append(servers, &meridianv1.Resource{Kind: "Dataplane", Mesh: "default", Name: service + "-" + version, Spec: fmt.Appendf(nil,
			`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"tags":{"kuma.io/service":%q,"version":%q,"kuma.io/protocol":"http"}}]}}`, port, service, version)})
	}
	z.api.apply(b, servers)
	route := func(version string) *meridianv1.Resource {
		return &meridianv1.Resource{Kind: "TrafficRoute", Mesh: "default", Name: "to-" + service, Spec: fmt.Appendf(nil,
			`{"sources":[{"match":{"kuma.io/service":"web"}}],"destinations":[{"match":{"kuma.io/service":%q}}],"conf":{"destination":{"kuma.io/service":%q,"version":%q}}}`,
			service, service, version)}
	}
	g.api.apply(b, []*meridianv1.Resource{route("v1")})
	call := connect(startAgent(b, g, z, service, arguments...))
	ctx, cancel := context.WithTimeout(b.Context(), 10*patience)
	defer cancel()
	// answered calls until a server of a version answers. A call that fails once the
	// client is connected is a failure.
	answered := func(version string, connected bool) time.Time {
		for {
			got, err := call(ctx)
			if connected || ctx.Err() != nil {
				require.NoError(b, err)
			}
			if got == version {
				return time.Now()
			}
			if err != nil { // it is not connected yet
				<-time.After(50 * time.Millisecond)
			}
		}
	}
	answered("v1", false)
	var applied, total samples
	changed := 0
	for b.Loop() {
		for range enforcements {
			changed++
			version := fmt.Sprintf("v%d", 1+changed%2)
			requested := time.Now()
			var writing errgroup.Group
			writing.Go(func() error {
				_, err := g.api.put(ctx, route(version), false)
				applied.add(time.Since(requested))
				return err
			})
			total.add(answered(version, true).Sub(requested))
			require.NoError(b, writing.Wait())
		}
	}
	target(b, "enforced-p50-ms", total.p50(), 15)
	target(b, "enforced-p99-ms", total.p99(), 80)
	report(b, "apply-p50-ms", applied.p50())
	disk := syncs(b, g.dir)
	report(b, "enforced-p50/fsync", total.p50()/disk.p50())
}

// serve starts a server that answers HTTP requests and gRPC calls with a text, and returns
// its port.
func serve(b *testing.B, text string) int {
	b.Helper()
	listener, err := net.Listen("tcp", anyPort)
	require.NoError(b, err)
	calls := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(&emptypb.Empty{}); err != nil {
			return err
		}
		return stream.SendMsg(wrapperspb.String(text))
	}))
	server := &http.Server{Protocols: new(http.Protocols), ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 {
			calls.ServeHTTP(w, r)
			return
		}
		_, _ = io.WriteString(w, text)
	})}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // it ends by Close
	b.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	return listener.Addr().(*net.TCPAddr).Port
}

// agent is `meridian proxy run` for the dataplane web-1.
type agent struct {
	process *processes.Process
	dir     string
	// port is that of its outbound.
	port int
}

// startAgent runs the agent of a dataplane that calls a service. It ends with the
// benchmark.
func startAgent(b *testing.B, g *global, z *zone, service string, arguments ...string) *agent {
	b.Helper()
	dir, err := os.MkdirTemp("", "agent") // b.TempDir is too long for a socket
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, os.RemoveAll(dir)) })
	free, err := net.Listen("tcp", anyPort)
	require.NoError(b, err)
	a := &agent{dir: dir, port: free.Addr().(*net.TCPAddr).Port}
	require.NoError(b, free.Close())
	issued, err := g.api.tokens.GenerateDataplaneToken(b.Context(), &meridianv1.GenerateDataplaneTokenRequest{Mesh: "default", ValidForSeconds: 3600})
	require.NoError(b, err)
	document, token := filepath.Join(dir, "dataplane.yaml"), filepath.Join(dir, "token")
	require.NoError(b, os.WriteFile(token, []byte(issued.GetToken()), 0o600))
	require.NoError(b, os.WriteFile(document, fmt.Appendf(nil,
		`{"type":"Dataplane","mesh":"default","name":"web-1","networking":{"address":"127.0.0.1","inbound":[{"port":1,"servicePort":2,"tags":{"kuma.io/service":"web"}}],"outbound":[{"port":%d,"tags":{"kuma.io/service":%q}}]}}`,
		a.port, service), 0o600))
	program, err := programs.Path("meridian")
	require.NoError(b, err)
	if len(arguments) == 0 {
		arguments = []string{"--grpc-bootstrap", filepath.Join(dir, "xds.json")}
	}
	var log lockedBuffer
	a.process, err = processes.Start(&log, program, append([]string{
		"proxy", "run", "-f", document, "--token-file", token, "--zone-address", z.ready(b).GRPC,
		"--ca-file", filepath.Join(z.dir, "pki", "ca.pem"), "--drain-time", "0s",
	}, arguments...)...)
	require.NoError(b, err)
	b.Cleanup(func() {
		a.process.End(syscall.SIGTERM)
		if b.Failed() {
			b.Logf("the log of the agent:\n%s", log.String())
		}
	})
	return a
}

// bootstrap waits for the file that configures a gRPC client.
func (a *agent) bootstrap(b *testing.B) []byte {
	b.Helper()
	file := filepath.Join(a.dir, "xds.json")
	require.Eventually(b, func() bool {
		_, err := os.Stat(file)
		return err == nil || !a.process.Running()
	}, patience, 5*time.Millisecond, "the bootstrap file")
	data, err := os.ReadFile(file)
	require.NoError(b, err)
	return data
}

// lockedBuffer is a buffer that may be read while it is written to.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.String()
}
