package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
)

const policyTest = `kind: PolicyTest
cases:
- {name: good, connection: {from: web-1, to: backend-1}, expect: allowed}
- {name: bad, connection: {from: backend-1, to: web-1}, expect: denied}
`

const twoDataplanes = `---
{type: Dataplane, mesh: default, name: web-1, networking: {address: 10.0.0.1, inbound: [{port: 8080, tags: {kuma.io/service: web}}]}}
---
{type: Dataplane, mesh: default, name: backend-1, networking: {address: 10.0.0.2, inbound: [{port: 8080, tags: {kuma.io/service: backend}}]}}
`

// TestPolicyTests runs `meridian test` as a pipeline does.
func TestPolicyTests(t *testing.T) {
	h := newHarness(t)
	dir := filepath.Dir(h.write("shop/mesh.yaml", meshYAML+twoDataplanes))
	tests := h.write("shop/tests.yaml", policyTest)
	junit, sarif := filepath.Join(h.home, "junit.xml"), filepath.Join(h.home, "sarif.json")
	out := h.run("test", dir, "--junit", junit, "--sarif", sarif, "--coverage")
	require.Equal(t, exit.No, out.code, out.stderr)
	require.Equal(t, "FAIL  bad\n      "+tests+":4: expected denied, but it is allowed: no permission is about this caller, and the mesh has no mutual TLS\n1 case passed, 1 failed\n0 of 0 policies decide what a case expects\n", out.stdout)
	for _, report := range []string{junit, sarif} {
		text, err := os.ReadFile(report)
		require.NoError(t, err)
		require.Contains(t, string(text), "no permission is about this caller")
	}
	require.Contains(t, h.run("test", dir, "-o", "json").stdout, `"failed": 1`)
	require.Empty(t, h.server.Calls, "files need no server")

	h.write("shop/tests.yaml", strings.Replace(policyTest, "expect: denied", "expect: allowed", 1))
	require.Equal(t, "2 cases passed, 0 failed\n", h.ok("test", dir))
	require.Equal(t, "3 documents are valid\n", h.ok("validate", "-f", dir), "tests are no resources")
}

func TestPolicyTestsRefused(t *testing.T) {
	h := newHarness(t)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nothing given": {[]string{"test"}, "missing FILE or DIR"},
		"no tests":      {[]string{"test", h.write("a/mesh.yaml", meshYAML)}, "there is no document of kind PolicyTest"},
		"no such file":  {[]string{"test", filepath.Join(h.home, "none")}, "no such file"},
		"invalid":       {[]string{"test", h.write("b/t.yaml", "kind: PolicyTest\ncases: [{name: a}]\n")}, "/b/t.yaml, line 2: cases[0]"},
		"broken policy": {[]string{"test", h.write("c/t.yaml", policyTest+"---\ntype: Timeut\nname: a\n")}, `did you mean "Timeout"?`},
		"wrong zone":    {[]string{"test", "--zone", "A B", h.home}, "--zone: "},
		"unwritable":    {[]string{"test", h.write("d/t.yaml", meshYAML+twoDataplanes+"---\n"+policyTest), "--junit", filepath.Join(h.home, "none", "r.xml")}, "write " + h.home},
	} {
		out := h.run(c.args...)
		require.NotEqual(t, exit.OK, out.code, name)
		require.Contains(t, out.stderr, c.want, name)
	}
}

// TestPolicyTestsLive asks the control plane what inspect would ask it.
func TestPolicyTestsLive(t *testing.T) {
	h := newHarness(t)
	h.serveDocument([]byte(`{"mesh": "default", "from": "web-1", "to": "backend-1", "allowed": true, "allowedBy": ["all"], "effective": []}`))
	out := h.run("test", h.write("t.yaml", policyTest), "--live", "--zone", "east")
	require.Equal(t, exit.No, out.code, out.stderr)
	require.Contains(t, out.stdout, "expected denied, but it is allowed by all")
	require.Len(t, h.server.Inspected, 2)
	require.Equal(t, "east", h.server.Inspected[0].GetZone())
	require.Equal(t, "web-1", h.server.Inspected[0].GetQuestion().(*meridianv1.InspectRequest_Connection).Connection.GetFrom())

	h.stop()
	out = h.run("test", h.write("t.yaml", policyTest), "--live", "--timeout", "1s")
	require.Equal(t, exit.No, out.code)
	require.Contains(t, out.stdout, "0 cases passed, 2 failed")
}
