package cli

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/cli/clitest"
	"meridian/internal/cli/exit"
	"meridian/internal/clientconfig"
	"meridian/internal/rpcerr"
)

// unused returns an address without a listener. It is that of the client's end of a
// connection, so that nothing else gets it.
func unused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(conn.Close(), l.Close())) })
	return conn.LocalAddr().String()
}

// hole returns an address that takes connections and never says anything, as a
// server does that was stopped.
func hole(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l.Addr().String()
}

// TestServerThatIsGone costs a moment: the next one is asked.
func TestServerThatIsGone(t *testing.T) {
	h := newHarness(t)
	for _, gone := range []string{unused(t), hole(t)} {
		out := h.run("--config", h.config, "--address", gone+","+h.address, "zones", "-o", "json", "--timeout", "20s")
		require.Equal(t, exit.OK, out.code, out.stderr)
	}
}

// A context learns the servers that one names, over a connection that its CA has
// verified, and finds one of them when those that the user wrote are gone.
func TestContextLearnsServers(t *testing.T) {
	h := newHarness(t)
	other := clitest.New()
	address, _ := other.Serve(t, h.tls)
	h.server.Servers = h.address + "," + address
	learned := func() []string {
		contexts, err := clientconfig.LoadContexts(h.config)
		require.NoError(t, err)
		entry, err := contexts.Get("")
		require.NoError(t, err)
		require.Equal(t, []string{h.address}, entry.Addresses)
		return entry.Learned
	}
	for _, args := range [][]string{
		{"--address", h.address}, {"--skip-verify"}, {"--ca-cert-file", h.caFile},
	} {
		require.Empty(t, h.run(append([]string{"--config", h.config, "zones", "-o", "json"}, args...)...).stderr)
		require.Empty(t, learned(), "%v: the user chose", args)
	}
	require.Equal(t, "The servers of the control plane have changed: the configuration lists "+h.address+", "+address+" now.\n", h.run("zones", "-o", "json").stderr)
	require.Equal(t, []string{address}, learned())
	require.Empty(t, h.run("zones", "-o", "json").stderr, "it is said once")

	h.stop()
	out := h.run("zones", "-o", "json")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Contains(t, other.Calls, "Zones")
	out = h.run("--config", h.config, "--address", h.address, "zones")
	require.Equal(t, exit.Unavailable, out.code, "only the one that was named")
}

// TestServerThatCannotServe: a request goes to the next server, under the same
// request id.
func TestServerThatCannotServe(t *testing.T) {
	h := newHarness(t)
	other := clitest.New()
	address, _ := other.Serve(t, h.tls)
	addresses := h.address + "," + address
	noLeader := rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "there is no leader")

	h.server.Before = func(string) error { return noLeader }
	out := h.runWith(t.Context(), secretYAML, "--config", h.config, "--address", addresses, "apply", "-f", "-")
	require.Equal(t, outcome{exit.OK, "GlobalSecret/web-to-backend created\nrevision 1841\n", ""}, out)
	require.Empty(t, h.server.Applies)

	// The first server writes and goes away before it has answered.
	h.server.Before = nil
	h.server.After = func(string) error { return rpcerr.New(rpcerr.Unavailable, "OUTCOME_UNKNOWN", "the leader was lost") }
	out = h.runWith(t.Context(), secretYAML, "--config", h.config, "--address", addresses, "apply", "-f", "-")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Len(t, h.server.Applies, 1)
	require.Len(t, other.Applies, 2)
	require.NotEmpty(t, h.server.Applies[0].GetRequestId())
	require.Equal(t, h.server.Applies[0].GetRequestId(), other.Applies[1].GetRequestId())
}

// TestNothingIsClaimedAfterADoubt: a write of which one attempt had no answer may
// have taken effect, whatever the attempts after it were told.
func TestNothingIsClaimedAfterADoubt(t *testing.T) {
	h := newHarness(t)
	full := rpcerr.WithEffect(rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "the disk of one is nearly full"), rpcerr.EffectNone)
	apply := func() outcome {
		return h.runWith(t.Context(), secretYAML, "--config", h.config, "apply", "-f", "-", "--timeout", "2s")
	}
	h.server.Before = func(string) error { return full }
	out := apply()
	require.Equal(t, exit.Unavailable, out.code)
	require.Contains(t, out.stderr, "is unavailable: the disk of one is nearly full\nNothing was written.\n")

	attempts := 0
	h.server.Before = func(string) error {
		if attempts++; attempts == 1 {
			return rpcerr.WithEffect(rpcerr.New(rpcerr.Unavailable, "OUTCOME_UNKNOWN", "no answer within 10s"), rpcerr.EffectUnknown)
		}
		return full
	}
	out = apply()
	require.Equal(t, exit.Unavailable, out.code)
	require.Greater(t, attempts, 1)
	require.NotContains(t, out.stderr, "Nothing was written")
	require.Contains(t, out.stderr, "is unavailable: an attempt had no answer, and a later one was refused: the disk of one is nearly full\nWhether it was written is not known.\n")
}

// TestNoServerCanServe: what is wrong with each of them is said.
func TestNoServerCanServe(t *testing.T) {
	h := newHarness(t)
	gone := unused(t)
	other := clitest.New()
	address, _ := other.Serve(t, h.tls)
	addresses := strings.Join([]string{h.address, gone, address}, ",")
	h.server.Before = func(string) error { return rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "there is no leader") }
	other.Before = func(string) error {
		return rpcerr.New(rpcerr.Unavailable, "STARTING", "starting: waiting for a leader")
	}
	out := h.run("--config", h.config, "--address", addresses, "zones", "--timeout", "3s")
	require.Equal(t, exit.Unavailable, out.code)
	for _, line := range []string{
		"Error: the control plane at " + addresses + " is unavailable: ",
		"  " + h.address + ": there is no leader\n",
		"  " + gone + ": connection refused\n",
		"  " + address + ": starting: waiting for a leader\n",
	} {
		require.Contains(t, out.stderr, line)
	}

	out = h.run("--config", h.config, "--address", gone+","+gone, "zones")
	require.Equal(t, exit.Unavailable, out.code)
	require.Contains(t, out.stderr, "Error: the control plane at "+gone+","+gone+" cannot be reached: connection refused\n  "+gone+": connection refused\n")
}
