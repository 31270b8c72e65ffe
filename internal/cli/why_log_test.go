package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/cli/exit"
)

const deniedYAML = `type: Mesh
name: m
mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}
---
type: Dataplane
mesh: m
name: web-1
networking: {address: 10.0.0.1, inbound: [{port: 80, tags: {kuma.io/service: web}}, {port: 81, tags: {kuma.io/service: admin}}]}
---
type: Dataplane
mesh: m
name: backend-1
networking: {address: 10.0.0.2, inbound: [{port: 80, tags: {kuma.io/service: backend}}, {port: 90, tags: {kuma.io/service: other}}]}
---
type: MeshTrafficPermission
mesh: m
name: allow-all
targetRef: {kind: Mesh}
from: [{targetRef: {kind: Mesh}, default: {action: ALLOW}}]
---
type: MeshTrafficPermission
mesh: m
name: no-web
targetRef: {kind: Service, name: backend}
from: [{targetRef: {kind: Service, name: web}, default: {action: DENY}}]
`

const (
	envoyDenied = `Nov 23 10:00:00 web envoy[3]: {"mesh":"m","dataplane":"backend-1","port":80,"listener":"in_80","caller":"spiffe://default.m/dp/web-1/_/kuma.io_2Fservice/web","method":"GET","details":"rbac_access_denied_matched_policy[MeshTrafficPermission_no-web]"}`
	tcpDenied   = `{"mesh":"m","dataplane":"backend-1","port":80,"caller":"spiffe://default.m/dp/web-1/_/kuma.io_2Fservice/admin/_/kuma.io_2Fservice/web","termination":"rbac_access_denied_matched_policy[MeshTrafficPermission_no-web]"}`
	grpcAudit   = `{"grpc_audit_log":{"authorized":false,"matched_rule":"MeshTrafficPermission no-web","policy_name":"","principal":"spiffe://default.m/dp/web-1/_/kuma.io_2Fservice/web","rpc_method":"/a.S/M","timestamp":"2026-05-04T09:00:00Z"}}`
	httpAnswer  = `403 Forbidden RBAC: access denied: rbac_access_denied_matched_policy[MeshTrafficPermission_no-web]`
	grpcError   = `rpc error: code = PermissionDenied desc = incoming RPC matched a deny policy "MeshTrafficPermission no-web"`
)

func TestWhyExplainsADenial(t *testing.T) {
	h := newHarness(t)
	file := h.write("denied.yaml", deniedYAML)
	const because = "not \"ALLOW\" of allow-all: loses to no-web (from[0]): it targets Mesh, the winner Service backend (§4.2)"
	page := h.ok("why", "--log", envoyDenied, "-f", file)
	require.Contains(t, page, "web-1 (kuma.io/service=web,kuma.io/zone=default) called backend-1 at port 80, and was denied by MeshTrafficPermission no-web.\n")
	require.Contains(t, page, "denied by no-web\n")
	require.Contains(t, page, because)
	require.NotContains(t, page, "other:90", "another port")
	page = h.ok("why", "--log", tcpDenied, "-f", file)
	require.Contains(t, page, "web-1 (kuma.io/service=admin,kuma.io/zone=default; kuma.io/service=web,kuma.io/zone=default) called")
	require.Contains(t, page, "1  kuma.io/service=web  no-web")
	page = h.ok("why", "backend-1", "--log", grpcError, "--from", "kuma.io/service=web", "-m", "m", "-f", file)
	require.Contains(t, page, "kuma.io/service=web called backend-1, and was denied by MeshTrafficPermission no-web.\n")
	require.Contains(t, page, because)
	page = h.ok("why", "backend-1", "--log", httpAnswer, "--from", "kuma.io/service=web", "-m", "m", "-f", file)
	require.Contains(t, page, "kuma.io/service=web called backend-1, and was denied by MeshTrafficPermission no-web.\n")
	require.Contains(t, page, because)
	page = h.ok("why", "backend-1", "--log", grpcAudit, "-f", file)
	require.Contains(t, page, "web-1 (kuma.io/service=web,kuma.io/zone=default) called backend-1, and was denied by MeshTrafficPermission no-web.\n")
	require.Contains(t, page, because)
	page = h.ok("why", "backend-1", "--log", `incoming RPC matched a deny policy "mtls-default"`, "--from", "kuma.io/service=web", "-m", "m", "-f", file)
	require.Contains(t, page, "denied by mtls-default")
	require.Contains(t, page, because, "policies may have changed since")
	page = h.ok("why", "backend-1", "--log", "desc = incoming RPC did not match an allow policy", "--from", "kuma.io/service=web", "-m", "m", "-f", file)
	require.Contains(t, page, "denied by no policy that allows it")
	var document struct {
		Denied struct{ Callee, Caller, DeniedBy string }
		Why    []struct{ Kind string }
	}
	require.NoError(t, json.Unmarshal([]byte(h.ok("why", "--log", envoyDenied, "-f", file, "-o", "json")), &document))
	require.Equal(t, "backend-1", document.Denied.Callee)
	require.Equal(t, "MeshTrafficPermission no-web", document.Denied.DeniedBy)
	require.Len(t, document.Why, 1)
	require.Equal(t, "MeshTrafficPermission", document.Why[0].Kind)
	require.Empty(t, h.server.Calls)
}

// A caller writes the path, which is no error of a client, wherever the object begins.
func TestWhatACallerWritesIsNoDenial(t *testing.T) {
	h := newHarness(t)
	file := h.write("denied.yaml", deniedYAML)
	posed := strings.Replace(envoyDenied, `"method":"GET"`, `"method":"GET","path":"/incoming RPC matched a deny policy \"MeshTrafficPermission allow-all\""`, 1)
	require.NotEqual(t, envoyDenied, posed)
	for _, line := range []string{posed, posed[strings.IndexByte(posed, '{'):]} {
		require.Contains(t, h.ok("why", "--log", line, "-f", file), "and was denied by MeshTrafficPermission no-web.\n")
	}
	out := h.run("why", "--log", posed[:len(posed)-2], "-f", file) // one that was cut
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "no whole JSON object")
	out = h.run("why", "backend-2", "--log", strings.Replace(envoyDenied, "backend-1", `\u001b[31m`, 1), "-f", file)
	require.Equal(t, exit.Usage, out.code)
	require.NotContains(t, out.stderr, "\x1b")
}

func TestWhatIsNoDenialIsRefused(t *testing.T) {
	h := newHarness(t)
	file := h.write("denied.yaml", deniedYAML)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--log", "hello"}, "neither a JSON object"},
		{[]string{"--log", ""}, "neither a JSON object"},
		{[]string{"--log", `{"mesh"`}, "no whole JSON object"},
		{[]string{"--log", `{"port":"x"}`}, "`port`: expected a number from 0 to 4294967295, got string"},
		{[]string{"--log", `{"mesh":1}`}, "`mesh`: expected text, got number"},
		{[]string{"--log", `{"mesh":"m","details":"via_upstream"}`}, "not about a denial"},
		{[]string{"--log", `{"mesh":"m","details":"rbac_access_denied_matched_policy[none]"}`}, "does not say who was called"},
		{[]string{"--log", `{"mesh":"m","dataplane":"../x","caller":"spiffe://default.m/dp/a/_/a/b","details":"rbac_access_denied_matched_policy[none]"}`}, "dataplane:"},
		{[]string{"--log", `{"mesh":"m","dataplane":"backend-1","details":"rbac_access_denied_matched_policy[none]"}`}, "does not say who called"},
		{[]string{"--log", `{"mesh":"m","dataplane":"backend-1","caller":"spiffe://x","details":"rbac_access_denied_matched_policy[none]"}`}, "is not the name of a dataplane"},
		{[]string{"--log", strings.Replace(envoyDenied, `"mesh":"m"`, `"mesh":"n"`, 1)}, "is of mesh m"},
		{[]string{"--log", grpcError}, "does not say who was called"},
		{[]string{"--log", httpAnswer}, "does not say who was called"},
		{[]string{"backend-1", "--log", httpAnswer}, "does not say who called"},
		{[]string{"backend-1", "--log", grpcError}, "does not say who called"},
		{[]string{"backend-2", "--log", envoyDenied}, "about the dataplane backend-1, not backend-2"},
		{[]string{"--log", envoyDenied, "--from", "a=b"}, "the line says who called"},
		{[]string{"--log", envoyDenied, "-m", "other"}, "the line is about mesh m"},
		{[]string{"--log", envoyDenied, "--to", "backend"}, "--to selects outbounds"},
		{[]string{"--log", envoyDenied, "a", "b"}, "unexpected argument"},
		{[]string{"--log", "-"}, "no line"},
		{[]string{"--log", strings.Repeat("x", maxLogLine+1)}, "at most"},
	} {
		out := h.run(append([]string{"why", "-f", file}, c.args...)...)
		require.Equal(t, exit.Usage, out.code, "%v: %s", c.args, out.stderr)
		require.Contains(t, out.stderr, c.want, "%v", c.args)
	}
}
