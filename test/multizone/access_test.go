//go:build multizone

package multizone

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// anonymous writes a client context that trusts a server and has no token.
func (p *process) anonymous() string {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, "admin.yaml"))
	require.NoError(p.t, err)
	var kept []string
	for _, line := range strings.SplitAfter(string(text), "\n") {
		if !strings.HasPrefix(strings.TrimSpace(line), "token:") {
			kept = append(kept, line)
		}
	}
	require.Less(p.t, len(kept), strings.Count(string(text), "\n")+1, "a token was left out")
	path := filepath.Join(p.t.TempDir(), "anonymous.yaml")
	require.NoError(p.t, os.WriteFile(path, []byte(strings.Join(kept, "")), 0o600))
	return path
}

const (
	adminsOnly = `type: AccessRoleBinding
name: default
subjects:
- type: Group
  name: mesh-system:admin
roles:
- admin
`
	backendOwnerRole = `
type: AccessRole
name: backend-owner
rules:
- types: ["TrafficPermission"]
  mesh: default
  access: ["CREATE", "UPDATE", "DELETE"]
  when:
  - destinations:
      match:
        kuma.io/service: backend
`
	backendOwnerBinding = `
type: AccessRoleBinding
name: backend-owners
subjects:
- type: User
  name: backend-owner
roles:
- backend-owner
`
)

func webTo(destination string) string {
	return `
type: TrafficPermission
mesh: default
name: web-to-backend
sources:
- match:
    kuma.io/service: web
destinations:
- match:
    kuma.io/service: ` + destination + "\n"
}

// §6.11: the walk-through of a new user whose access is restricted to
// the TrafficPermissions of backend, step by step, with its exact denial (§6.7).
func TestAccessWalkThrough(t *testing.T) {
	global := newGlobal(t, "--localhost-is-admin=false").start().ready()
	config := filepath.Join(t.TempDir(), "config.yaml")
	run := func(stdin string, args ...string) result { return meridian(t, config, stdin, args...) }
	must := func(stdin string, args ...string) string {
		r := run(stdin, args...)
		require.Zero(t, r.code, "meridian %s\n%s%s", strings.Join(args, " "), r.stdout, r.stderr)
		return strings.TrimSpace(r.stdout)
	}
	add := func(name, token string) {
		must("", "config", "control-planes", "add", "--name="+name, "--address="+global.addresses()["grpc"],
			"--skip-verify=true", "--auth-type=tokens", "--auth-conf", "token="+token)
	}
	add("cp-admin", tokenOf(t, global))
	must("", "config", "control-planes", "switch", "--name", "cp-admin")
	add("cp-backend-owner", must("", "generate", "user-token", "--valid-for=24h", "--name", "backend-owner"))
	must("", "config", "control-planes", "switch", "--name", "cp-admin")

	must(adminsOnly, "apply", "-f", "-")
	must(backendOwnerRole, "apply", "-f", "-")
	must(backendOwnerBinding, "apply", "-f", "-")
	require.Contains(t, must("", "describe", "AccessRole", "backend-owner"), "user backend-owner, through AccessRoleBinding backend-owners")

	must("", "config", "control-planes", "switch", "--name", "cp-backend-owner")
	require.Contains(t, must("", "auth", "whoami"), "backend-owner, through AccessRoleBinding backend-owners")
	must(webTo("backend"), "apply", "-f", "-")
	denied := run(webTo("other"), "apply", "-f", "-")
	require.Equal(t, 4, denied.code)
	require.Empty(t, denied.stdout)
	lines := strings.Split(denied.stderr, "\n")
	require.Equal(t, `Error: Access Denied (user "backend-owner/mesh-system:authenticated" cannot access the resource)`, lines[0])
	require.Contains(t, lines[1], `UPDATE on TrafficPermission "web-to-backend" in mesh "default"`)
	require.Contains(t, lines[2], `rules[0] of AccessRole "backend-owner"`)

	no := run(webTo("other"), "auth", "can-i", "UPDATE", "-f", "-")
	require.Equal(t, 1, no.code, no.stderr)
	require.True(t, strings.HasPrefix(no.stdout, "no\n"), no.stdout)
	require.True(t, strings.HasPrefix(must(webTo("backend"), "auth", "can-i", "UPDATE", "-f", "-"), "yes"))

	// Reading is open, but not secrets; rights do not grow.
	require.Contains(t, must("", "get", "traffic-permissions"), "web-to-backend")
	require.Equal(t, 4, run("", "get", "global-secret", "admin-user-token").code)
	require.Equal(t, 4, run("", "generate", "zone-token", "--zone", "east", "--valid-for", "1h").code)
	require.Equal(t, 4, run("", "delete", "mesh", "default").code)

	must("", "config", "control-planes", "switch", "--name", "cp-admin")
	last := run("", "delete", "access-role-binding", "default")
	require.Equal(t, 4, last.code, last.stderr)
	require.Contains(t, last.stderr, "--force")
	require.Contains(t, must("", "auth", "who-can", "UPDATE", "TrafficPermission/web-to-backend"), "backend-owner")
}

// §6.5: only a server that no other host reaches makes every caller an
// administrator by itself, and none starts with such a binding where other hosts reach it
// without --default-access=open.
func TestDefaultAccess(t *testing.T) {
	const away, refused = "--advertise-addr=global.example.com:5685", "every caller is an administrator of this control plane"
	flags := []string{"--localhost-is-admin=false", away}
	restricted := newGlobal(t, flags...).start().ready()
	require.NotContains(t, restricted.readyz(t), "administrator")
	config := restricted.anonymous()
	context, err := os.ReadFile(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(config, []byte(strings.ReplaceAll(string(context), "global.example.com:5685", restricted.addresses()["grpc"])), 0o600))
	denied := meridian(t, config, webTo("backend"), "apply", "-f", "-")
	require.Equal(t, 4, denied.code, denied.stderr)
	require.Contains(t, denied.stderr, "mesh-system:anonymous")
	require.Zero(t, restricted.stop())

	open := newGlobal(t, "--localhost-is-admin=false").start().ready()
	require.Contains(t, open.log.String(), "EVERY CALLER IS AN ADMINISTRATOR")
	require.Contains(t, open.readyz(t), "[!] access: every caller is an administrator")
	who := meridian(t, open.anonymous(), "", "auth", "whoami")
	require.Contains(t, who.stderr, "every caller is an administrator")
	require.Zero(t, open.stop())

	base := open.args
	open.args = append(slices.Clone(base), away)
	require.Equal(t, 2, open.start().wait())
	for _, text := range []string{refused, "--advertise-addr global.example.com:5685 is reached from other hosts", "start it with every listener on loopback", "--default-access=open"} {
		require.Contains(t, open.log.String(), text)
	}
	open.args = append(slices.Clone(base), "--default-access=restricted")
	require.Equal(t, 2, open.start().wait())
	open.args = append(slices.Clone(base), away, "--default-access=open")
	require.Contains(t, open.start().ready().readyz(t), "[!] access: every caller is an administrator")
}

// §6.1: with --read-access=granted a team sees its own mesh and no other, through
// the global and about dataplanes of a zone too.
func TestTeamReadsItsMesh(t *testing.T) {
	global := newGlobal(t, "--read-access=granted").start().ready()
	zone := newZone(t, global, "east").start().ready()
	global.awaitState("east", "in-sync")
	global.mustWith("type: Mesh\nname: demo\n---"+strings.ReplaceAll(webTo("web"), "mesh: default", "mesh: demo")+"---"+webTo("secret")+`---
type: AccessRole
name: demo
rules: [{mesh: demo, access: [READ]}]
---
type: AccessRoleBinding
name: demo
subjects: [{type: Group, name: demo}]
roles: [demo]
---
type: AccessRoleBinding
name: default
subjects: [{type: Group, name: mesh-system:admin}]
roles: [admin]
`, "apply", "-f", "-", "--wait=zones")
	zone.mustWith(webDataplane+"---\n"+strings.ReplaceAll(webDataplane, "mesh: default", "mesh: demo"), "apply", "-f", "-")
	token := strings.TrimSpace(global.must("generate", "user-token", "--name", "ann", "--group", "demo", "--valid-for", "1h"))
	config := filepath.Join(t.TempDir(), "ann.yaml")
	add := meridian(t, config, "", "config", "control-planes", "add", "--name=cp", "--address="+global.addresses()["grpc"], "--skip-verify", "--auth-type=tokens", "--auth-conf", "token="+token)
	require.Zero(t, add.code, add.stderr)

	ann := func(args ...string) result { return meridian(t, config, "", args...) }
	require.Equal(t, "TrafficPermission/web-to-backend\n", ann("get", "traffic-permissions", "-m", "demo", "-o", "name").stdout)
	require.NotContains(t, ann("export").stdout, "secret")
	require.Equal(t, 4, ann("get", "traffic-permissions", "-m", "default").code)
	require.Contains(t, ann("inspect", "dataplane", "web-1", "-m", "demo").stdout, "web-to-backend")
	require.Equal(t, 4, ann("inspect", "dataplane", "web-1", "-m", "default").code)
	require.Equal(t, 4, ann("why", "web-1", "TrafficPermission").code)
	dataplanes := ann("dataplanes").stdout
	require.Contains(t, dataplanes, "demo")
	require.NotContains(t, dataplanes, "default")
	require.NotContains(t, ann("zones").stdout, "east")
	require.Equal(t, 4, ann("auth", "who-can", "UPDATE", "Mesh/demo").code)
	require.Equal(t, 1, ann("auth", "can-i", "READ", "Mesh/demo").code)
	require.Zero(t, ann("auth", "can-i", "READ", "TrafficPermission/web-to-backend", "-m", "demo").code)
	require.Equal(t, 4, ann("get", "mesh", "demo").code)
}

// §6.5, §6.6, §6.10: unauthenticated callers have the rights of their group, which
// are all on a global and none in its zones; roles stay where they were written.
func TestAccessOfUnauthenticatedCallers(t *testing.T) {
	global := newGlobal(t, "--localhost-is-admin=false").start().ready()
	zone := newZone(t, global, "east", "--localhost-is-admin=false", "--environment", "kubernetes").start().ready()
	global.awaitState("east", "in-sync")
	global.mustWith(backendOwnerRole, "apply", "-f", "-", "--wait=zones")

	open := meridian(t, global.anonymous(), webTo("backend"), "apply", "-f", "-", "--wait=zones")
	require.Zero(t, open.code, open.stderr)

	outside := zone.anonymous()
	who := meridian(t, outside, "", "auth", "whoami")
	require.Contains(t, who.stdout, "mesh-system:anonymous")
	require.Equal(t, 4, meridian(t, outside, "", "get", "traffic-permissions").code, "reading is open to authenticated users")
	closed := meridian(t, outside, webDataplane, "apply", "-f", "-")
	require.Equal(t, 4, closed.code)
	require.Contains(t, closed.stderr, `Error: Access Denied (user "mesh-system:anonymous/mesh-system:unauthenticated" cannot access the resource)`)
	require.Equal(t, 4, meridian(t, outside, "", "get", "global-secrets").code)
	zone.mustWith(webDataplane, "apply", "-f", "-")

	require.Equal(t, "AccessRole/admin\n", zone.must("get", "access-roles", "-o", "name"), "the global's roles stay there")
	require.Contains(t, zone.must("get", "access-role-binding", "default", "-o", "yaml"), "system:masters")
	require.NotContains(t, global.must("get", "access-role-binding", "default", "-o", "yaml"), "system:masters")

	// The role is back after a restart; the binding is left as it was.
	zone.must("delete", "access-role", "admin", "--force")
	require.Zero(t, zone.stop())
	zone.start().ready()
	require.Equal(t, "AccessRole/admin\n", zone.must("get", "access-roles", "-o", "name"))
}
