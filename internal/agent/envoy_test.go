package agent

import (
	"io"
	"log/slog"
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
