package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/cli/clitest"
	"meridian/internal/cli/exit"
)

// What concerns the servers of a zone is never done to those of the global, or of another
// zone, where the zone is named.
func TestServersOfAZone(t *testing.T) {
	for _, args := range [][]string{
		{"generate", "server-token", "--valid-for", "1h"},
		{"cluster", "members"},
		{"cluster", "leader"},
		{"cluster", "transfer-leadership", "g2"},
		{"cluster", "remove", "g3"},
		{"cluster", "snapshot", "save", t.TempDir() + "/saved"},
		{"cluster", "rotate-ca", "start"},
		{"cluster", "rotate-ca", "status"},
	} {
		h := newHarness(t)
		h.server.AllMembers, h.server.Snapshots = threeServers(), &clitest.Snapshots{}
		for role, is := range map[string]string{"global": "a global", "zone": "zone fake", "standalone": "zone fake"} {
			h.server.Role, h.server.Calls = role, nil
			out := h.run(append(args, "--zone", "east")...)
			require.Equal(t, exit.Usage, out.code, "%v: %s", args, out.stderr)
			require.Contains(t, out.stderr, "--zone east: "+h.address+" is a server of "+is+", and what concerns", args)
			require.Equal(t, []string{"Info"}, h.server.Calls, "it was asked who it is, and nothing else")
		}
		h.server.Role, h.server.Calls = "zone", nil
		h.run(append(args, "--zone", "fake")...)
		require.Greater(t, len(h.server.Calls), 1, "%v continued", args)
		out := h.run(append(args, "--zone", "")...)
		require.Equal(t, exit.Usage, out.code, "%v: an empty name, as of a variable that is not set, is none", args)
	}
}
