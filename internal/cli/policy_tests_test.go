package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/rpcerr"
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

	h.serveDocument([]byte(`{"mesh": "default", "from": "web-1", "to": "backend-1", "allowed": false, "allowedBy": [],
		"effective": [{"side": "inbound", "port": 8080, "kind": "MeshTrafficPermission", "conf": {"action": "DENY"}, "fields": {}, "policies": ["deny-all"]}]}`))
	out = h.run("test", h.write("t.yaml", policyTest), "--live")
	require.Contains(t, out.stdout, "expected allowed, but it is denied by deny-all")

	invariants := h.write("i.yaml", "kind: PolicyTest\ncases:\n- {name: all, over: connections, invariant: c.allowed}\n- {name: each, over: dataplanes, invariant: 'true'}\n")
	h.serveRoles("type: Mesh\nname: default\n")
	// What is over dataplanes and connections of a fleet, the global asks its zones.
	verdict, notes := `{"checked": 3, "broken": 0, "examples": [], "incomplete": []}`, []string(nil)
	h.server.Answer = func(r *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		require.NotNil(t, r.GetInvariant())
		return &meridianv1.InspectResponse{Json: []byte(verdict), Notes: notes}, nil
	}
	require.Contains(t, h.ok("test", invariants, "--live"), "2 cases passed")
	notes = []string{`zone "north": offline`}
	out = h.run("test", invariants, "--live")
	require.Equal(t, 2, strings.Count(out.stdout, `the answer is incomplete: zone "north": offline`), out.stdout)
	verdict = `{"checked": 3, "broken": 1, "examples": ["zone east: a → b:80 is denied"], "incomplete": []}`
	out = h.run("test", invariants, "--live")
	require.Equal(t, exit.No, out.code)
	require.Equal(t, 1, strings.Count(out.stdout, "does not hold for 1 of 3 connections: zone east: a → b:80 is denied"), out.stdout)

	// A case about a zone that is away fails alone; a control plane that is away ends the run.
	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return nil, rpcerr.New(rpcerr.Unavailable, "ZONE_UNAVAILABLE", "zone east is away")
	}
	out = h.run("test", h.write("t.yaml", policyTest), "--live", "--zone", "east")
	require.Equal(t, exit.No, out.code)
	require.Contains(t, out.stdout, "0 cases passed, 2 failed")
	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return nil, rpcerr.New(rpcerr.Timeout, "ZONE_TIMEOUT", "zone east is connected and does not answer")
	}
	out = h.run("test", h.write("t.yaml", policyTest), "--live")
	require.Equal(t, exit.No, out.code, "a zone that hangs is no other than one that is away: %s", out.stderr)
	require.Contains(t, out.stdout, "0 cases passed, 2 failed")
	h.server.Before = func(string) error { return rpcerr.New(rpcerr.Unauthenticated, "BAD_TOKEN", "the token has expired") }
	out = h.run("test", h.write("t.yaml", policyTest), "--live")
	require.Equal(t, exit.Denied, out.code, out.stdout)
	h.stop()
	for _, file := range []string{h.write("t.yaml", policyTest), invariants} {
		report := filepath.Join(h.home, "none.xml")
		out = h.run("test", file, "--live", "--timeout", "1s", "--junit", report)
		require.Equal(t, exit.Unavailable, out.code)
		require.Equal(t, 1, strings.Count(out.stderr, "connection refused"), out.stderr)
		require.Empty(t, out.stdout, "nothing is known of any case")
		require.NoFileExists(t, report)
	}
}

// What is over every dataplane fails for a user who may not read all of them, and a case
// whose answer lacks a zone fails, too: they would pass for want of what is not there.
func TestPolicyTestsLiveKnowWhatTheyLack(t *testing.T) {
	const invariant = "kind: PolicyTest\ncases:\n- {name: all, over: connections, invariant: c.allowed}\n"
	h := newHarness(t)
	tests := h.write("t.yaml", invariant)
	const role = "type: AccessRole\nname: reader\nrules: [{types: [Mesh, MeshTrafficPermission, TrafficPermission], access: [READ]}]\n---\ntype: AccessRoleBinding\nname: reader\nsubjects: [{type: User, name: reader}]\nroles: [reader]\n---\n" + meshYAML + twoDataplanes
	h.serveRoles(role)
	h.server.Role = "zone"
	out := h.run("test", tests, "--live")
	require.Equal(t, exit.OK, out.code, out.stdout+out.stderr)

	h.granted.ReadGranted()
	out = h.run("test", tests, "--live")
	require.Equal(t, exit.No, out.code, out.stderr)
	require.Contains(t, out.stdout, "you may not read every AuthPolicy of mesh default, so that what holds for all dataplanes is not known")

	h.serveRoles(strings.Replace(role, "types: [Mesh, MeshTrafficPermission, TrafficPermission], ", "", 1))
	h.granted.ReadGranted()
	require.Contains(t, h.ok("test", tests, "--live"), "1 case passed")

	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return &meridianv1.InspectResponse{Json: []byte(`{"mesh": "default", "from": "web-1", "to": "backend-1", "allowed": true, "allowedBy": ["all"], "effective": []}`), Notes: []string{`zone "north": offline`}}, nil
	}
	out = h.run("test", h.write("t.yaml", policyTest), "--live")
	require.Equal(t, exit.No, out.code)
	require.Contains(t, out.stdout, `the answer is incomplete: zone "north": offline`)
	require.Contains(t, out.stdout, "0 cases passed, 2 failed")
}

// A pipeline runs the tests that a change brings: what they print has nothing of the
// files that they name, and begins no line with a text of theirs.
func TestPolicyTestsTellNothingOfFiles(t *testing.T) {
	h := newHarness(t)
	secret := h.write("secret.pem", "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqG\n")
	typed := h.write("token.yaml", "type: hvs.secrettoken\nname: a\n")
	for _, file := range []string{secret, typed} {
		out := h.run("test", h.write("t.yaml", "kind: PolicyTest\ncases:\n- {name: \"a\\n::error::b\", access: {as: bob, verb: UPDATE, file: "+file+"}, expect: no}\n"))
		require.Equal(t, exit.No, out.code, out.stderr)
		require.Contains(t, out.stdout, file+": what is there is not valid")
		for _, leak := range []string{"PRIVATE", "MIGH", "secrettoken", "\n::"} {
			require.NotContains(t, out.stdout+out.stderr, leak)
		}
	}
	out := h.run("test", h.write("t.yaml", "kind: PolicyTest\ncases:\n- {name: a, access: {as: bob, verb: UPDATE, file: none.yaml}, expect: no}\n"))
	require.Contains(t, out.stdout, "none.yaml: no such file")
}
