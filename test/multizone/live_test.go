//go:build multizone

package multizone

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/xds/wire"
)

// listenerPort returns a port that nothing listens at, below those that the system gives to
// connections.
func listenerPort(t *testing.T) int {
	t.Helper()
	for {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(20_000+rand.N(12_000))))
		if err != nil {
			require.NoError(t, t.Context().Err())
			continue
		}
		require.NoError(t, l.Close())
		return l.Addr().(*net.TCPAddr).Port
	}
}

// What an Envoy runs itself is told by its agent, at the zone and at the global: the same
// as it is sent, what differs after it refused a change or could not listen, nothing to
// who may not read the dataplane, and one error when it does not answer.
func TestWhatAnEnvoyRuns(t *testing.T) {
	program := os.Getenv("ENVOY_BIN")
	if program == "" {
		t.Skip("no Envoy: `make envoy` installs one, and ENVOY_BIN names it")
	}
	global := newGlobal(t).start().ready()
	east := newZone(t, global, "east", "--localhost-is-admin=false", "--default-access=restricted", "--read-access=granted").start().ready()
	taken, err := net.Listen("tcp", anyPort)
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	web := func(outbounds ...int) string {
		document := fmt.Sprintf("{type: Dataplane, mesh: default, name: web-1, networking: {address: 127.0.0.1, inbound: [{port: %d, servicePort: %d, tags: {kuma.io/service: web}}], outbound: [",
			listenerPort(t), listenerPort(t))
		for _, port := range outbounds {
			document += fmt.Sprintf("{port: %d, tags: {kuma.io/service: backend}},", port)
		}
		return document + "]}}"
	}
	east.mustWith(fmt.Sprintf(`{type: Dataplane, mesh: default, name: backend-1, networking: {address: 127.0.0.1, inbound: [
  {port: %d, tags: {kuma.io/service: backend, kuma.io/protocol: http}}]}}`, listenerPort(t)), "apply", "-f", "-")
	token := strings.TrimSpace(global.must("generate", "dataplane-token", "--mesh", "default", "--name", "web-1", "--tag", "kuma.io/service=web", "--valid-for", "1h"))
	port, busy := listenerPort(t), taken.Addr().(*net.TCPAddr).Port
	agent := startAgentWith(t, east, web(port, busy), token, func(string) []string { return []string{"--envoy", program, "--drain-time", "0s"} })

	live := func(p *process, args ...string) (answer wire.Answer, err error) {
		r := p.command(append([]string{"inspect", "proxy", "web-1", "--live", "-o", "json"}, args...)...)
		if r.code != 0 {
			return answer, fmt.Errorf("%d: %s", r.code, r.stderr)
		}
		return answer, json.Unmarshal([]byte(r.stdout), &answer)
	}
	// other are the resources that Envoy runs otherwise than it is sent, by name.
	other := func(p *process, args ...string) (string, error) {
		answer, err := live(p, args...)
		var names []string
		for _, r := range answer.Resources {
			if r.Live == nil || r.Live.State != wire.LiveSame {
				names = append(names, r.Type+" "+r.Name+" "+r.Live.String())
			}
		}
		if len(answer.Resources) == 0 {
			names = append(names, "nothing")
		}
		return strings.Join(names, ", "), err
	}
	awaitOther := func(want string) {
		t.Helper()
		var got string
		var err error
		defer func() {
			if t.Failed() {
				t.Logf("last: %q, %v", got, err)
			}
		}()
		east.await("Envoy to run otherwise "+want, func() bool {
			got, err = other(east)
			return err == nil && got == want
		})
	}
	missing := fmt.Sprintf("LDS out_backend_%[1]d missing, RDS out_backend_%[1]d missing", busy) // nothing asks for the routes
	awaitOther(missing)
	east.await("the reason", func() bool {
		answer, err := live(east)
		if err != nil { // the agent registers again when its Envoy is ready
			return false
		}
		for _, r := range answer.Resources {
			if r.Type == "LDS" && strings.Contains(r.Live.Message, "Address already in use") {
				return true
			}
		}
		return false
	})
	relayed, err := other(global, "--zone", "east")
	require.NoError(t, err)
	require.Equal(t, missing, relayed, "the global asks the zone")

	// Who may not read the dataplane is told the same of it as of one that is not there.
	anonymous := east.anonymous()
	denied, absent := meridian(t, anonymous, "", "inspect", "proxy", "web-1", "--live"), meridian(t, anonymous, "", "inspect", "proxy", "none-1", "--live")
	require.NotZero(t, denied.code)
	require.Equal(t, absent.code, denied.code)
	require.Equal(t, absent.stderr, strings.ReplaceAll(denied.stderr, "web-1", "none-1"))
	require.Empty(t, denied.stdout)

	// An Envoy that does not answer gives an error that says so, also through the global, and
	// answers once it continues.
	started := strings.SplitAfter(agent.log.String(), "pid=")
	require.Len(t, started, 2)
	var pid int
	_, err = fmt.Sscan(started[1], &pid)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	for _, r := range []result{east.command("inspect", "proxy", "web-1", "--live"), global.command("inspect", "proxy", "web-1", "--live", "--zone", "east")} {
		require.NotZero(t, r.code)
		require.Empty(t, r.stdout)
		require.Contains(t, r.stderr, "Envoy does not say what it runs: it does not answer in time")
	}
	require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	awaitOther(missing)
	require.NoError(t, agent.process.Process.Signal(syscall.SIGTERM))
	require.Zero(t, agent.exit())
}
