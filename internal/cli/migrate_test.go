package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/cli/exit"
)

const toMigrate = `{type: Timeout, mesh: default, name: web, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: backend}}], conf: {connectTimeout: 1s}}
---
{type: TrafficPermission, mesh: default, name: web, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: backend}}]}
`

// TestMigrate translates a directory, writes it and translates nothing more of the result.
func TestMigrate(t *testing.T) {
	h := newHarness(t)
	policies := h.write("shop/policies.yaml", toMigrate)
	fleet := h.write("shop/fleet.yaml", "# who is there\n"+meshYAML+strings.Replace(twoDataplanes, "{kuma.io/service: web}}]}}", "{kuma.io/service: web}}], outbound: [{port: 9000, tags: {kuma.io/service: backend}}]}}", 1))
	dir, out := filepath.Dir(policies), filepath.Join(h.home, "out")

	done := h.run("migrate", "-f", dir, "--out", out)
	require.Equal(t, exit.OK, done.code, done.stderr)
	require.Equal(t, "2 documents translated, 0 refused\nequal: 2 dataplanes and 4 connections compared\n", done.stderr)
	require.Empty(t, done.stdout)
	kept, err := os.ReadFile(filepath.Join(out, "fleet.yaml"))
	require.NoError(t, err)
	original, err := os.ReadFile(fleet)
	require.NoError(t, err)
	require.Equal(t, string(original), string(kept), "a file without policies stays as it is")
	made, err := os.ReadFile(filepath.Join(out, "policies.yaml"))
	require.NoError(t, err)
	require.Contains(t, string(made), "# from Timeout/default/web, policies.yaml line 1\ntype: MeshUpstreamTimeout\n")
	require.Contains(t, string(made), "name: m00000-web\n")
	h.ok("validate", "-f", out)

	again := h.run("migrate", "-f", out, "-o", "json")
	require.Equal(t, exit.OK, again.code, again.stderr)
	var report struct {
		Documents []map[string]any `json:"documents"`
		Proof     map[string]any   `json:"proof"`
	}
	require.NoError(t, json.Unmarshal([]byte(again.stdout), &report))
	for _, d := range report.Documents {
		require.Equal(t, "unchanged", d["result"])
	}
	require.Equal(t, map[string]any{"dataplanes": 2.0, "connections": 4.0}, report.Proof)
	require.Equal(t, exit.Usage, h.run("migrate", "-f", dir, "--out", out).code, "what is there is not written over")

	turned := h.run("migrate", "-f", out, "--to", "LastWins")
	require.Equal(t, exit.OK, turned.code, turned.stderr)
	require.Contains(t, turned.stdout, "targetRef: LastWins")

	// And back: what is effective is the same all the way.
	last, first := filepath.Join(h.home, "last"), filepath.Join(h.home, "first")
	for _, step := range [][3]string{{out, "LastWins", last}, {last, "FirstWins", first}} {
		turned = h.run("migrate", "-f", step[0], "--to", step[1], "--out", step[2])
		require.Equal(t, exit.OK, turned.code, turned.stderr)
		require.Contains(t, turned.stderr, "equal: 2 dataplanes and 4 connections compared\n")
	}
	effective := func(dir string) string {
		return h.ok("eval", "dataplane", "web-1", "-f", dir, "-o", "jsonpath={.effective[*].conf.connectTimeout}")
	}
	for _, turned := range []string{dir, out, last, first} {
		require.Equal(t, "1s\n", effective(turned))
	}
	require.Empty(t, h.server.Calls, "files need no server")
}

// TestMigrateUnproven shows what cannot be translated and what would differ, and writes
// nothing unless it is told to.
func TestMigrateUnproven(t *testing.T) {
	h := newHarness(t)
	out := filepath.Join(h.home, "out")
	route := h.write("route.yaml", meshYAML+"---\n{type: TrafficRoute, mesh: default, name: r, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: backend}}], conf: {destination: {kuma.io/service: other}}}\n")
	refused := h.run("migrate", "-f", route, "--out", out)
	require.Equal(t, exit.No, refused.code)
	require.Contains(t, refused.stderr, route+":4: TrafficRoute/default/r: not translated: TrafficRoute is not translated: write a MeshTrafficRoute by hand\n")
	require.Contains(t, refused.stderr, "nothing is proven: there are no dataplanes to compare on\n")
	require.NoDirExists(t, out)

	// `from` holds on all inbounds of a dataplane that is selected by one.
	both := h.write("both.yaml", meshYAML+`---
{type: Dataplane, mesh: default, name: two, networking: {address: 10.0.0.1, inbound: [{port: 80, tags: {kuma.io/service: web}}, {port: 81, tags: {kuma.io/service: admin}}]}}
---
{type: TrafficPermission, mesh: default, name: p, sources: [{match: {kuma.io/service: other}}], destinations: [{match: {kuma.io/service: admin}}]}
`)
	differs := h.run("migrate", "-f", both, "--out", out)
	require.Equal(t, exit.No, differs.code)
	require.Contains(t, differs.stderr, "not equal: MeshTrafficPermission on inbound web:80 of dataplane default/two, called by two\n  before: true\n  after: false\n    MeshTrafficPermission m00000-p: ")
	require.NoDirExists(t, out)
	require.Equal(t, exit.No, h.run("migrate", "-f", both, "--out", out, "--write-anyway").code)
	require.FileExists(t, filepath.Join(out, "both.yaml"))
}

func TestMigrateRefused(t *testing.T) {
	h := newHarness(t)
	good := h.write("a.yaml", meshYAML)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nothing given": {[]string{"migrate"}, "-f is required"},
		"no such way":   {[]string{"migrate", "-f", good, "--to", "best"}, `--to "best": write targetref, FirstWins or LastWins`},
		"wrong zone":    {[]string{"migrate", "-f", good, "--zone", "A B"}, "--zone: "},
		"invalid":       {[]string{"migrate", "-f", h.write("b.yaml", "type: Timeut\nname: a\n")}, `did you mean "Timeout"?`},
	} {
		out := h.run(c.args...)
		require.Equal(t, exit.Usage, out.code, name)
		require.Contains(t, out.stderr, c.want, name)
	}
	h.stop()
	require.Equal(t, exit.Unavailable, h.run("migrate", "-f", good, "--live", "--timeout", "1s").code)
}
