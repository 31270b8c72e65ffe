//go:build multizone

package multizone

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	xdscredentials "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/meshca/meshcatest"
	"meridian/test/processes"
)

// proxyAgent is `meridian proxy run`.
type proxyAgent struct {
	t         *testing.T
	process   *processes.Process
	log       output
	bootstrap string
}

// startAgent runs the agent of a dataplane of a zone.
func startAgent(t *testing.T, zone *process, dataplane, token string) *proxyAgent {
	t.Helper()
	return startAgentWith(t, zone, dataplane, token, func(bootstrap string) []string {
		return []string{"--grpc-bootstrap", bootstrap, "--drain-time", "1h"}
	})
}

// startAgentWith is startAgent with the flags that more returns, such as --envoy.
func startAgentWith(t *testing.T, zone *process, dataplane, token string, more func(bootstrap string) []string) *proxyAgent {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent") // t.TempDir is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	a := &proxyAgent{t: t, bootstrap: filepath.Join(dir, "xds.json")}
	document, tokenFile := filepath.Join(dir, "dataplane.yaml"), filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(document, []byte(dataplane), 0o600))
	require.NoError(t, os.WriteFile(tokenFile, []byte(token), 0o600))
	a.process, err = processes.Start(&a.log, programPath(t, "meridian"), append([]string{
		"proxy", "run", "-f", document, "--token-file", tokenFile,
		"--zone-address", zone.addresses()["grpc"], "--ca-file", filepath.Join(zone.dir, "pki", "ca.pem"),
	}, more(a.bootstrap)...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		if a.process.Running() {
			_ = a.process.Process.Kill()
			<-a.process.Done
		}
		if t.Failed() {
			t.Logf("log of an agent:\n%s", a.log.String())
		}
	})
	return a
}

// configuration waits for the bootstrap file and returns it.
func (a *proxyAgent) configuration() []byte {
	a.t.Helper()
	require.Eventually(a.t, func() bool {
		_, err := os.Stat(a.bootstrap)
		return err == nil || !a.process.Running()
	}, patience, 5*time.Millisecond, "the bootstrap file")
	data, err := os.ReadFile(a.bootstrap)
	require.NoError(a.t, err)
	return data
}

// exit waits for the agent to end and returns its exit code.
func (a *proxyAgent) exit() int {
	a.t.Helper()
	select {
	case <-a.process.Done:
	case <-time.After(patience):
		a.t.Fatal("the agent does not end")
	}
	return a.process.ProcessState.ExitCode()
}

// serveXDS serves a stock gRPC server, configured over xDS, that answers with a name.
func serveXDS(t *testing.T, listener net.Listener, bootstrap []byte, name string) (stop func()) {
	t.Helper()
	answer := func(_ any, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(&emptypb.Empty{}); err != nil {
			return err
		}
		return stream.SendMsg(wrapperspb.String(name))
	}
	credentials, err := xdscredentials.NewServerCredentials(xdscredentials.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	require.NoError(t, err)
	server, err := xds.NewGRPCServer(grpc.UnknownServiceHandler(answer), grpc.Creds(credentials), xds.BootstrapContentsForTesting(bootstrap))
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // it ends by Stop
	stop = sync.OnceFunc(func() {
		server.Stop()
		serving.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// dialXDS connects a stock gRPC client, configured over xDS, to a target.
func dialXDS(t *testing.T, bootstrap []byte, target string) *grpc.ClientConn {
	t.Helper()
	builder, err := xds.NewXDSResolverWithConfigForTesting(bootstrap)
	require.NoError(t, err)
	credentials, err := xdscredentials.NewClientCredentials(xdscredentials.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	require.NoError(t, err)
	conn, err := grpc.NewClient(target, grpc.WithResolvers(builder), grpc.WithTransportCredentials(credentials))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// callXDS calls a stock gRPC server and returns what it answered.
func callXDS(conn *grpc.ClientConn) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var answer wrapperspb.StringValue
	err := conn.Invoke(ctx, "/a.S/M", &emptypb.Empty{}, &answer)
	return answer.GetValue(), err
}

// Stock gRPC programs obey the policies of a mesh through their agents and their zone:
// calls succeed, follow a route, outlast the zone, end with mTLS and come back after
// it; and an agent leaves once its application has.
func TestStockGRPCFollowsItsZone(t *testing.T) {
	global := newGlobal(t).start().ready()
	east := newZone(t, global, "east").start().ready()
	east.pin()
	var listeners [2]net.Listener
	var ports [2]int
	for i := range listeners {
		var err error
		listeners[i], err = net.Listen("tcp", anyPort)
		require.NoError(t, err)
		ports[i] = listeners[i].Addr().(*net.TCPAddr).Port
	}
	token := func(name, service string) string {
		return strings.TrimSpace(global.must("generate", "dataplane-token", "--mesh", "default", "--name", name,
			"--tag", "kuma.io/service="+service, "--valid-for", "1h"))
	}
	backend := fmt.Sprintf(`{type: Dataplane, mesh: default, name: backend-1, networking: {address: 127.0.0.1, inbound: [
  {port: %d, tags: {kuma.io/service: backend, version: v1}}, {port: %d, tags: {kuma.io/service: backend, version: v2}}]}}`, ports[0], ports[1])
	web := `{type: Dataplane, mesh: default, name: web-1, networking: {address: 127.0.0.1, inbound: [{port: 1, tags: {kuma.io/service: web}}],
  outbound: [{port: 4001, tags: {kuma.io/service: backend}}]}}`
	route := func(version string) {
		global.mustWith(fmt.Sprintf(`{type: TrafficRoute, mesh: default, name: to-backend, sources: [{match: {kuma.io/service: web}}],
  destinations: [{match: {kuma.io/service: backend}}], conf: {destination: {kuma.io/service: backend, version: %s}}}`, version), "apply", "-f", "-")
	}

	refused := startAgent(t, east, backend, token("backend-1", "payments"))
	require.Equal(t, 4, refused.exit())
	require.Contains(t, refused.log.String(), "Access Denied")

	route("v1")
	server := startAgent(t, east, backend, token("backend-1", "backend"))
	client := startAgent(t, east, web, token("web-1", "web"))
	var stops [2]func()
	for i, name := range []string{"v1", "v2"} {
		stops[i] = serveXDS(t, listeners[i], server.configuration(), name)
	}
	conn := dialXDS(t, client.configuration(), "xds:///backend")
	answers := func(name string) {
		t.Helper()
		east.await("calls to be answered by "+name, func() bool {
			got, err := callXDS(conn)
			return err == nil && got == name
		})
	}
	answers("v1")
	east.await("the route to be accepted", func() bool {
		return strings.Contains(east.must("inspect", "dataplane", "web-1"), "TrafficRoute  to-backend  rev ")
	})

	require.Contains(t, global.must("describe", "traffic-route", "to-backend"), `Enforced=True (AllProxies): 1 of 1 proxies in zone "east"`)

	// What is applied in the zone itself can be waited for there, too.
	second := fmt.Sprintf(`{type: Dataplane, mesh: default, name: backend-2, networking: {address: 127.0.0.1, inbound: [
  {port: %d, tags: {kuma.io/service: backend, version: v1}}]}}`, ports[1])
	require.NoError(t, client.process.Process.Signal(syscall.SIGSTOP))
	late := east.commandWith(second, "apply", "-f", "-", "--wait=enforced", "--timeout", "1s")
	require.NoError(t, client.process.Process.Signal(syscall.SIGCONT))
	require.Equal(t, 6, late.code, late.stderr)
	require.Contains(t, late.stderr, "1 proxy in zone east\n    web-1 in mesh default: pending")
	east.mustWith(second, "apply", "-f", "-", "--wait=enforced")
	answers("v2")
	east.must("delete", "dataplane", "backend-2")
	answers("v1")

	// No call fails while a route changes, and while the zone is killed and comes back.
	stop := make(chan struct{})
	var load sync.WaitGroup
	var failed atomic.Pointer[string]
	var calls atomic.Int64
	load.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			calls.Add(1)
			if _, err := callXDS(conn); err != nil {
				text := err.Error()
				failed.Store(&text)
				return
			}
		}
	})
	route("v2")
	answers("v2")
	east.kill()
	for before := calls.Load(); calls.Load() < before+100 && failed.Load() == nil; {
		answers("v2")
	}
	east.start().ready()
	// Only then does the zone know which routes are to be replaced.
	east.await("the client to be back", func() bool {
		return strings.Count(east.command("proxy", "status", "web-1").stdout, "SYNCED") == 4
	})
	east.await("the agent of the server to be back", func() bool {
		return strings.Contains(east.command("inspect", "dataplane", "backend-1").stdout, "proxy online")
	})
	east.await("the server to be back", func() bool { // its agent ends without it once that is told to
		return strings.Contains(east.command("proxy", "status", "backend-1").stdout, "SYNCED")
	})
	route("v1")
	answers("v1")
	close(stop)
	load.Wait()
	if failed.Load() != nil {
		t.Fatalf("a call failed: %s", *failed.Load())
	}

	// On SIGTERM the endpoint goes at once, and the agent once its application has.
	require.NoError(t, server.process.Process.Signal(syscall.SIGTERM))
	east.await("calls to end", func() bool {
		_, err := callXDS(conn)
		return err != nil
	})
	require.True(t, server.process.Running())
	for _, stop := range stops {
		stop()
	}
	require.Zero(t, server.exit())
}

// In a mesh with mutual TLS a zone issues certificates, and stock gRPC servers accept
// whom permissions allow. A denied caller learns by which policy. No call of an allowed
// caller fails while the zone is killed and while the mesh's authority is replaced.
func TestStockGRPCIsPermitted(t *testing.T) {
	global := newGlobal(t).start().ready()
	east := newZone(t, global, "east").start().ready()
	east.pin()
	mtls := func(backend string) {
		t.Helper()
		global.mustWith(fmt.Sprintf(`{type: Mesh, name: default, mtls: {enabledBackend: %s, backends: [{name: %s, type: builtin}]}}`, backend, backend), "apply", "-f", "-")
	}
	mtls("ca-1")
	listener, err := net.Listen("tcp", anyPort)
	require.NoError(t, err)
	agent := func(name, service, version string, port int) *proxyAgent {
		token := strings.TrimSpace(global.must("generate", "dataplane-token", "--mesh", "default", "--name", name, "--tag", "kuma.io/service="+service, "--valid-for", "1h"))
		return startAgent(t, east, fmt.Sprintf(`{type: Dataplane, mesh: default, name: %s, networking: {address: 127.0.0.1, inbound: [{port: %d, tags: {kuma.io/service: %s, version: %s}}],
  outbound: [{port: 4001, tags: {kuma.io/service: backend}}]}}`, name, port, service, version), token)
	}
	server := agent("backend-1", "backend", "v1", listener.Addr().(*net.TCPAddr).Port)
	serveXDS(t, listener, server.configuration(), "served")
	web := dialXDS(t, agent("web-1", "web", "v1", 1).configuration(), "xds:///backend")
	old := dialXDS(t, agent("web-2", "web", "v0", 2).configuration(), "xds:///backend")
	refused := func(conn *grpc.ClientConn, by string) {
		t.Helper()
		east.await("calls to be denied by "+by, func() bool {
			_, err := callXDS(conn)
			return status.Code(err) == codes.PermissionDenied && strings.Contains(err.Error(), strconv.Quote(by))
		})
	}
	served := func(conn *grpc.ClientConn) {
		t.Helper()
		east.await("calls to be served", func() bool {
			_, err := callXDS(conn)
			return err == nil
		})
	}
	refused(web, "mtls-default")
	global.mustWith(`{type: TrafficPermission, mesh: default, name: web-to-backend, sources: [{match: {kuma.io/service: web, version: v1}}], destinations: [{match: {kuma.io/service: backend}}]}`, "apply", "-f", "-")
	served(web)
	for _, name := range []string{"expires_timestamp_seconds", "failing", "phase", "unacknowledged"} {
		require.Regexp(t, `(?m)^meridian_mesh_ca_`+name+`\{[^}]*mesh="default"`, east.scrape())
	}
	refused(old, "TrafficPermission web-to-backend")
	// The other generation takes its place.
	global.mustWith(`{type: MeshTrafficPermission, mesh: default, name: no-old-web, spec: {targetRef: {kind: Service, name: backend}, from: [
  {targetRef: {kind: ServiceSubset, name: web, tags: {version: v0}}, default: {action: DENY}}, {targetRef: {kind: Mesh}, default: {action: ALLOW}}]}}`, "apply", "-f", "-")
	refused(old, "MeshTrafficPermission no-old-web")
	served(web)
	require.Contains(t, east.must("inspect", "connection", "--mesh", "default", "--from", "web-2", "--to", "backend-1"), "no-old-web")

	stop := make(chan struct{})
	var load sync.WaitGroup
	var failed atomic.Pointer[string]
	var calls atomic.Int64
	load.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			calls.Add(1)
			if _, err := callXDS(web); err != nil {
				text := err.Error()
				failed.Store(&text)
				return
			}
		}
	})
	// The authority is replaced: both trust the next one before it signs.
	mtls("ca-2")
	east.await("the new authority to sign", func() bool {
		return strings.Contains(east.log.String(), "signing=ca-2")
	})
	for before := calls.Load(); calls.Load() < before+100 && failed.Load() == nil; {
		refused(old, "MeshTrafficPermission no-old-web")
	}
	// And again, by one that the operator provides. One that is none is refused.
	made, foreign := meshcatest.Made(t, "default", nil), meshcatest.Made(t, "other", nil)
	secret := func(h *meshcatest.Holder) string {
		return fmt.Sprintf("{type: Secret, mesh: default, name: certificate-authority.ours, data: %s}", base64.StdEncoding.EncodeToString(append(h.KeyPEM(t), h.Certificate...)))
	}
	bad := east.commandWith(secret(foreign), "apply", "-f", "-")
	require.NotZero(t, bad.code)
	require.Contains(t, bad.stderr, "the certificate cannot be used: it is not constrained to the URIs of east.default")
	east.mustWith(secret(made), "apply", "-f", "-")
	global.mustWith("{type: Mesh, name: default, mtls: {enabledBackend: ours, backends: [{name: ours, type: provided, conf: {cert: {secret: certificate-authority.ours}, key: {secret: certificate-authority.ours}}}]}}", "apply", "-f", "-")
	east.await("the provided authority to sign", func() bool {
		return strings.Contains(east.log.String(), "signing=ours")
	})
	for before := calls.Load(); calls.Load() < before+100 && failed.Load() == nil; {
		refused(old, "MeshTrafficPermission no-old-web")
	}
	for _, args := range [][]string{{"get", "secret", "certificate-authority.ours", "-m", "default", "-o", "json"}, {"export", "--include-secrets"}} {
		require.NotContains(t, east.must(args...), `"data"`)
	}
	east.kill()
	for before := calls.Load(); calls.Load() < before+100 && failed.Load() == nil; {
		refused(old, "MeshTrafficPermission no-old-web")
	}
	east.start().ready()
	close(stop)
	load.Wait()
	if failed.Load() != nil {
		t.Fatalf("a call failed: %s", *failed.Load())
	}

	// No client is given the key of an authority.
	stored := east.must("get", "global-secrets", "mesh-certificate-authority.default", "-o", "json")
	require.Contains(t, stored, `"withheld"`)
	require.NotContains(t, stored, `"data"`)
	require.NotContains(t, east.must("export"), "mesh-certificate-authority")
}
