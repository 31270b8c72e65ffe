package cli

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/cli/exit"
)

const linted = `{type: Mesh, name: default, mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}}
---
{type: Timeout, mesh: default, name: old, sources: [{match: {kuma.io/service: '*'}}], destinations: [{match: {kuma.io/service: backend}}], conf: {connectTimeout: 5s}}
---
{type: Timeout, mesh: default, name: web, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: backend}}], conf: {connectTimeout: 1s}}
---
{type: Dataplane, mesh: default, name: web-1, networking: {address: 10.0.0.1, inbound: [{port: 80, tags: {kuma.io/service: web}}], outbound: [{port: 90, tags: {kuma.io/service: backend}}]}}
`

// TestLint is what a pipeline sees of files with findings of each severity, and without.
func TestLint(t *testing.T) {
	h := newHarness(t)
	file := h.write("shop/mesh.yaml", linted)
	dir := filepath.Dir(file)
	denies := "error denies-all\n  " + file + ":1: Mesh/default\n  mtls.enabledBackend: denies every connection: with mutual TLS a caller needs a TrafficPermission or MeshTrafficPermission, and mesh default has none\n  fix: apply a permission for the callers that may connect\n"
	dead := "warning dead-policy\n  " + file + ":3: Timeout/default/old\n  takes effect nowhere: on everything that it matches, others hold in its place, such as on web-1: loses to web: matches 1 exact value, the winner matches 2 (§3.3)\n  fix: delete the policy, or make it more specific than those that hold in its place\n"

	sarif := filepath.Join(h.home, "lint.sarif")
	out := h.run("lint", dir, "--sarif", sarif)
	require.Equal(t, exit.No, out.code, "an error: %s", out.stderr)
	require.Equal(t, denies+dead+"1 error, 1 warning, 0 notes\n", out.stdout)
	written, err := os.ReadFile(sarif)
	require.NoError(t, err)
	require.Contains(t, string(written), `"ruleId": "dead-policy"`)
	require.Contains(t, string(written), `"startLine": 3`)

	junit := filepath.Join(h.home, "lint.xml")
	require.Equal(t, exit.No, h.run("lint", dir, "--junit", junit).code)
	require.Equal(t, []string{"Mesh/default"}, failuresIn(t, junit), "the error")
	require.Equal(t, exit.No, h.run("lint", dir, "--junit", junit, "--strict").code)
	require.Equal(t, []string{"Mesh/default", "Timeout/default/old"}, failuresIn(t, junit))

	var document struct {
		Findings []map[string]any `json:"findings"`
	}
	require.NoError(t, json.Unmarshal([]byte(h.run("lint", dir, "-o", "json").stdout), &document))
	require.Len(t, document.Findings, 2)
	require.Equal(t, map[string]any{
		"code": "denies-all", "severity": "error", "source": file, "line": 1.0, "kind": "Mesh", "name": "default", "field": "mtls.enabledBackend",
		"message": document.Findings[0]["message"], "fix": "apply a permission for the callers that may connect",
	}, document.Findings[0])

	h.write("shop/permission.yaml", "{type: TrafficPermission, mesh: default, name: web, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: web}}]}\n")
	require.Equal(t, dead+"0 errors, 1 warning, 0 notes\n", h.ok("lint", dir), "warnings alone are no failure")
	require.Equal(t, exit.No, h.run("lint", dir, "--strict").code)
	require.Equal(t, "nothing was found\n", h.ok("lint", "--strict", filepath.Join(dir, "permission.yaml")))
	require.Empty(t, h.server.Calls, "files need no server")
}

// failuresIn are the names of the cases of a JUnit report that failed, of one suite with a
// case for each document of linted.
func failuresIn(t *testing.T, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var report struct {
		Suites []struct {
			Name  string `xml:"name,attr"`
			Cases []struct {
				Name    string `xml:"name,attr"`
				Failure *struct {
					Message string `xml:"message,attr"`
				} `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	require.NoError(t, xml.Unmarshal(data, &report))
	require.Len(t, report.Suites, 1)
	require.Len(t, report.Suites[0].Cases, 4)
	var failed []string
	for _, c := range report.Suites[0].Cases {
		if c.Failure != nil {
			require.NotEmpty(t, c.Failure.Message)
			failed = append(failed, c.Name)
		}
	}
	return failed
}

func TestLintRefused(t *testing.T) {
	h := newHarness(t)
	good := h.write("a.yaml", meshYAML)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nothing given": {[]string{"lint"}, "missing FILE or DIR"},
		"no such file":  {[]string{"lint", filepath.Join(h.home, "none")}, "no such file"},
		"invalid":       {[]string{"lint", h.write("b.yaml", "type: Timeut\nname: a\n")}, `did you mean "Timeout"?`},
		"wrong zone":    {[]string{"lint", "--zone", "A B", good}, "--zone: "},
		"unwritable":    {[]string{"lint", good, "--sarif", filepath.Join(h.home, "none", "x")}, "write " + h.home},
	} {
		out := h.run(c.args...)
		require.NotEqual(t, exit.OK, out.code, name)
		require.Contains(t, out.stderr, c.want, name)
	}
}

// TestAnalyze asks the control plane, and fails as lint does.
func TestAnalyze(t *testing.T) {
	h := newHarness(t)
	h.serveDocument([]byte(`{"asOf": 3, "findings": [{"code": "dead-policy", "severity": "warning", "kind": "Timeout", "mesh": "default", "name": "old", "message": "takes effect nowhere", "fix": "delete it"}], "dataplanes": {"default": 2}, "incomplete": [{"zone": "west", "reason": "offline"}]}`))
	page := "warning dead-policy\n  Timeout/default/old\n  takes effect nowhere\n  fix: delete the policy, or make it more specific than those that hold in its place\n0 errors, 1 warning, 0 notes\nnot in this answer: zone \"west\": offline\n"
	require.Equal(t, page, h.ok("analyze", "--zone", "east", "-m", "default"))
	require.Equal(t, "east", h.server.Inspected[0].GetZone())
	require.Equal(t, "default", h.server.Inspected[0].GetMesh())
	require.NotNil(t, h.server.Inspected[0].GetAnalysis())
	h.ok("analyze")
	require.Empty(t, h.server.Inspected[1].GetMesh(), "all meshes")
	require.Equal(t, exit.No, h.run("analyze", "--strict").code)
	require.Contains(t, h.ok("analyze", "-o", "json"), `"code": "dead-policy"`)

	h.serveDocument([]byte(`{"asOf": 3, "findings": [{"code": "denies-all", "severity": "error", "kind": "Mesh", "name": "default", "message": "m"}], "dataplanes": {}, "incomplete": []}`))
	require.Equal(t, exit.No, h.run("analyze").code)
	require.Equal(t, exit.Usage, h.run("analyze", "extra").code)

	h.serveDocument([]byte(`{"asOf": 3, "findings": [], "dataplanes": {}, "incomplete": []}`))
	out := h.run("analyze", "-m", "defualt")
	require.Equal(t, exit.No, out.code)
	require.Equal(t, "Error: Mesh/defualt does not exist\n", out.stderr)
	require.Empty(t, out.stdout)
	h.ok("apply", "-f", h.write("mesh.yaml", meshYAML))
	require.Contains(t, h.ok("analyze", "-m", "default"), "nothing was found")
	h.stop()
	require.Equal(t, exit.Unavailable, h.run("analyze", "--timeout", "1s").code)
}
