package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"

	"meridian/internal/meshca"
	"meridian/internal/xds"
)

// DeltaAggregatedResources answers each first request of a type with nothing.
func (z *zone) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if err := z.note(stream.Context()); err != nil {
		return err
	}
	answered := map[string]bool{}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if answered[m.GetTypeUrl()] {
			continue
		}
		answered[m.GetTypeUrl()] = true
		if err := stream.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: "1"}); err != nil {
			return err
		}
	}
}

func TestOnlyAnEnvoyThatIsNewEnoughIsRun(t *testing.T) {
	for says, problem := range map[string]string{
		"envoy  version: 9e55/1.40.0/Clean/RELEASE/BoringSSL":  "",
		"envoy  version: 9e55/1.139.2/Clean/RELEASE/BoringSSL": "",
		"envoy  version: 9e55/2.0.0/Clean/RELEASE/BoringSSL":   "",
		"envoy  version: 9e55/1.39.9/Clean/RELEASE/BoringSSL":  "it is Envoy 1.39.9; use 1.40 or later",
		"envoy  version: 9e55/1.4.0/Clean/RELEASE/BoringSSL":   "use 1.40 or later",
		"some program 1.40.0": "does not say the version",
	} {
		path := filepath.Join(t.TempDir(), "envoy")
		require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\necho '"+says+"'\n"), 0o600))
		require.NoError(t, os.Chmod(path, 0o700))
		err := checkEnvoy(t.Context(), path)
		if problem == "" {
			require.NoError(t, err, says)
			continue
		}
		require.ErrorContains(t, err, problem)
	}
	require.ErrorContains(t, checkEnvoy(t.Context(), "/nonexistent"), "ask for its version")
}

// An Envoy has no token of this process.
func TestAnEnvoyHasNothingOfMeridian(t *testing.T) {
	t.Setenv("MERIDIAN_TOKEN", "secret")
	t.Setenv("FOR_ENVOY", "kept")
	dir := t.TempDir()
	path, seen := filepath.Join(dir, "envoy"), filepath.Join(dir, "env")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\nenv | grep -e ^MERIDIAN_ -e ^FOR_ENVOY >>'"+seen+"'\necho 'version: 9e55/1.40.0/Clean'\n"), 0o600))
	require.NoError(t, os.Chmod(path, 0o700))
	require.NoError(t, checkEnvoy(t.Context(), path))
	s := &supervisor{agent: &agent{cfg: Config{Envoy: path, Output: io.Discard, Log: slog.New(slog.DiscardHandler)}}, dir: dir, program: path, admin: &http.Client{}}
	require.ErrorContains(t, s.once(t.Context()), "it was not asked to")
	got, err := os.ReadFile(seen)
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(got), "FOR_ENVOY=kept"))
	require.NotContains(t, string(got), "MERIDIAN_TOKEN")
}

// What is bound is beside the socket, with a longer path: the longest directory that is
// taken is one in which it can be made.
func TestSocketsInLongDirectories(t *testing.T) {
	base, err := os.MkdirTemp("/tmp", "s")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	in := func(length int) string {
		dir := filepath.Join(base, strings.Repeat("d", length-len(base)-1))
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.Len(t, dir, length)
		return filepath.Join(dir, "x")
	}
	listener, err := listen(in(maxSocketDir))
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	for _, length := range []int{maxSocketDir + 1, 94} {
		_, err = listen(in(length))
		require.ErrorContains(t, err, "choose a shorter one")
	}
}

func TestAvailability(t *testing.T) {
	var v availability
	up, changed := v.get()
	require.False(t, up)
	v.set(false)
	select {
	case <-changed:
		t.Fatal("nothing changed")
	default:
	}
	v.set(true)
	<-changed
	up, changed = v.get()
	require.True(t, up)
	v.set(false)
	<-changed
}

// An Envoy is started once it can read the certificate of its dataplane, in a directory of
// its own.
func TestAnEnvoyStartsWithACertificate(t *testing.T) {
	z := startZone(t)
	ca, err := meshca.New("east", "default", "ca", time.Now())
	require.NoError(t, err)
	z.authority, z.lifetime = ca.WithLongest(time.Hour), time.Hour
	dir := t.TempDir()
	program, seen := filepath.Join(dir, "envoy"), filepath.Join(dir, "seen")
	require.NoError(t, os.WriteFile(program, []byte(`#!/bin/sh
[ "$1" != --version ] || { echo 'version: 9e55/1.40.0/Clean'; exit; }
cat `+xds.EnvoyCertificate+` `+xds.EnvoyRoots+` >'`+seen+`.new'
mv '`+seen+`.new' '`+seen+`'
exec sleep 600
`), 0o600))
	require.NoError(t, os.Chmod(program, 0o700))
	r := start(t, z, func(c *Config) { c.Bootstrap, c.Envoy, c.Output, c.Drain = "", program, io.Discard, 0 })
	var content []byte
	require.Eventually(t, func() bool {
		content, err = os.ReadFile(seen)
		return err == nil
	}, time.Minute, 5*time.Millisecond)
	r.stop()
	require.NoError(t, <-r.ended)
	require.Equal(t, 2, strings.Count(string(content), "BEGIN CERTIFICATE"))
	require.Contains(t, string(content), "BEGIN PRIVATE KEY")
}

// Others send requests to a dataplane while its Envoy is ready: not before, not while it
// is started again, and not once it drains.
func TestAnEnvoyIsSupervised(t *testing.T) {
	program := os.Getenv("ENVOY_BIN")
	if program == "" {
		t.Skip("no Envoy: `make envoy` installs one, and ENVOY_BIN names it")
	}
	z := startZone(t)
	r := start(t, z, func(c *Config) { c.Bootstrap, c.Envoy, c.Output = "", program, io.Discard })
	serving := func() bool { return z.hello != nil && !z.hello.GetDraining() }
	z.await(t, serving)
	z.mu.Lock()
	require.Zero(t, z.drains)
	z.hello = nil
	z.mu.Unlock()
	require.NoError(t, syscall.Kill(childOf(t), syscall.SIGKILL))
	z.await(t, func() bool { return z.drains > 0 })
	z.await(t, serving)
	z.mu.Lock()
	drains := z.drains
	z.mu.Unlock()
	r.stop()
	require.NoError(t, <-r.ended)
	z.await(t, func() bool { return z.left && z.drains > drains })
}

// An Envoy that refuses the listener of an inbound calls itself ready, and takes no requests
// there: others send it some once it has one, also where it refuses a change of it.
func TestAnEnvoyThatRefusesAnInboundIsNotReady(t *testing.T) {
	const refused = `{"name":"in_8080","error_state":{"details":"cannot bind: Address already in use\n"}}`
	s := admin(t)
	var said strings.Builder
	s.agent.cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
	dumps := make(chan string)
	answers(t, s, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ready" {
			_, _ = io.WriteString(w, "LIVE\n")
			return
		}
		_, _ = io.WriteString(w, `{"configs":[`+<-dumps+`]}`)
	}))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.watch(t.Context())
	}()
	for range 2 {
		dumps <- `{"name":"out_backend_1","active_state":{"version_info":"1"}},` + refused
	}
	up, _ := s.agent.available.get()
	require.False(t, up)
	dumps <- `{"name":"out_backend_1","error_state":{"details":"refused"}},
		{"name":"in_8080","active_state":{"version_info":"1"},"error_state":{"details":"refused"}}`
	<-watched
	up, _ = s.agent.available.get()
	require.True(t, up)
	require.Equal(t, 1, strings.Count(said.String(), "Envoy refuses an inbound"))
	require.Contains(t, said.String(), "in_8080: cannot bind: Address already in use")
}

// What is under way is requests where there are some, and connections elsewhere.
func TestWhatIsUnderWay(t *testing.T) {
	for body, want := range map[string]int{
		"": 0,
		"http.in_80.downstream_rq_active: 2\nhttp.out_web_81.downstream_rq_active: 1\nlistener.10.0.0.1_80.downstream_cx_active: 9\n":                                                                            3,
		"listener.10.0.0.1_80.downstream_cx_active: 4\nlistener.10.0.0.1_80.worker_0.downstream_cx_active: 4\nlistener.127.0.0.1_81.downstream_cx_active: 2\ntcp.in_80.downstream_cx_total: 7\n":                 4,
		"listener.[__1]_80.downstream_cx_active: 1\ntcp.in_80.downstream_cx_total: 2\ntcp.in_80_plaintext.downstream_cx_total: 2\ntcp.out_a_b_81.downstream_cx_total: 2\nlistener.admin.downstream_cx_active: 1": 1,
		"listener.127.0.0.1_81.downstream_cx_active: 5\ntcp.out_9_a_81_k3x.downstream_cx_total: 2\ntcp.x.downstream_cx_total: 1\n":                                                                               5,
		"listener.127.0.0.1_81.downstream_cx_active: x\ntcp.out_a_81.downstream_cx_total: 2":                                                                                                                     0,
	} {
		require.Equal(t, want, countUnderWay([]byte(body)), body)
	}
}

// An Envoy is not stopped while connections without requests are open, for as long as it
// may drain.
func TestOpenConnectionsAreUnderWay(t *testing.T) {
	program := os.Getenv("ENVOY_BIN")
	if program == "" {
		t.Skip("no Envoy: `make envoy` installs one, and ENVOY_BIN names it")
	}
	application, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, application.Close()) }()
	const address = "127.77.0.1" // no other test listens there
	reserved, err := net.Listen("tcp", address+":0")
	require.NoError(t, err)
	at := reserved.Addr().(*net.TCPAddr)
	require.NoError(t, reserved.Close())
	dir := t.TempDir()
	socket := func(address string, port int) object {
		return object{"socket_address": object{"address": address, "port_value": port}}
	}
	config, err := json.Marshal(object{
		"admin": object{"address": object{"pipe": object{"path": filepath.Join(dir, "admin")}}},
		"static_resources": object{
			"listeners": []object{{"name": "in", "address": socket(address, at.Port), "filter_chains": []object{{"filters": []object{{"name": "tcp", "typed_config": object{
				"@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", "stat_prefix": fmt.Sprintf("in_%d", at.Port), "cluster": "application",
			}}}}}}},
			"clusters": []object{{"name": "application", "type": "STATIC", "load_assignment": object{"cluster_name": "application", "endpoints": []object{{"lb_endpoints": []object{{
				"endpoint": object{"address": socket("127.0.0.1", application.Addr().(*net.TCPAddr).Port)},
			}}}}}}},
		},
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "envoy.json"), config, 0o600))
	cmd := exec.Command(program, "-c", filepath.Join(dir, "envoy.json"), "--disable-hot-restart", "--log-level", "error")
	require.NoError(t, cmd.Start())
	defer func() {
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	}()
	s := &supervisor{admin: &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "admin"))
	}}}}
	var conn net.Conn
	require.Eventually(t, func() bool {
		conn, err = net.Dial("tcp", at.String())
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	require.Eventually(t, func() bool { return s.active(t.Context()) == 1 }, time.Minute, 10*time.Millisecond)
	served, err := application.Accept()
	require.NoError(t, err)
	require.NoError(t, errors.Join(conn.Close(), served.Close()))
	require.Eventually(t, func() bool { return s.active(t.Context()) == 0 }, time.Minute, 10*time.Millisecond)
}

// childOf returns the process of the Envoy that this test has started.
func childOf(t *testing.T) int {
	t.Helper()
	out, err := exec.Command("ps", "-o", "pid=,args=", "--ppid", strconv.Itoa(os.Getpid())).Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		if pid, args, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.Contains(args, "--disable-hot-restart") {
			n, err := strconv.Atoi(pid)
			require.NoError(t, err)
			return n
		}
	}
	t.Fatal("there is no Envoy")
	return 0
}

// Traces name the service of a dataplane, which Envoy has from its node.
func TestAnEnvoyKnowsItsService(t *testing.T) {
	require.Equal(t, "web", serviceOf([]byte(`{"networking":{"address":"127.0.0.1","inbound":[{"port":1,"tags":{"kuma.io/service":"web"}},{"port":2,"tags":{"kuma.io/service":"admin"}}]}}`)))
	require.Empty(t, serviceOf([]byte(`{"networking":{}}`)))
	require.Empty(t, serviceOf([]byte(`{`)))
}
