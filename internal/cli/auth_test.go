package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authz"
	"meridian/internal/batch"
	"meridian/internal/cli/client"
	"meridian/internal/cli/clitest"
	"meridian/internal/cli/exit"
	"meridian/internal/commit/committest"
	"meridian/internal/resource"
	"meridian/internal/service/access"
	"meridian/internal/store"
	"meridian/internal/turns"
)

const rolesYAML = `type: AccessRole
name: backend-owner
rules:
- types: ["TrafficPermission"]
  mesh: default
  access: ["CREATE", "UPDATE", "DELETE"]
  when:
  - destinations:
      match:
        kuma.io/service: backend
- mesh: default
  access: ["GENERATE_DATAPLANE_TOKEN"]
  when:
  - dpToken:
      tags:
      - name: kuma.io/service
        value: web
---
type: AccessRole
name: mesh-admin
rules:
- types: ["Mesh"]
  access: ["CREATE", "UPDATE", "DELETE"]
---
type: AccessRoleBinding
name: owners
subjects:
- type: User
  name: bob
roles:
- backend-owner
---
type: AccessRoleBinding
name: team
subjects:
- type: Group
  name: team-a
roles:
- mesh-admin
---
type: AccessRoleBinding
name: everyone-group
subjects:
- type: Group
  name: mesh-system:authenticated
roles:
- nothing
`

// serveRoles makes the fake server answer by the roles of a document, with the
// default ones of a federated zone.
func (h *harness) serveRoles(text string) {
	h.t.Helper()
	p := committest.New(store.New(store.DefaultOptions()))
	now := func() time.Time { return clitest.Epoch }
	require.NoError(h.t, authz.Defaults{Restricted: true}.Ensure(h.t.Context(), p.View, p, now))
	documents, err := resource.Decode("roles.yaml", []byte(text), resource.DecodeOptions{})
	require.NoError(h.t, err)
	var ops []store.Op
	for _, d := range documents {
		ops = append(ops, store.Put(d.Resource))
		m := client.Encode(d.Resource)
		h.server.Stored[d.Resource.Key()] = m
	}
	require.NoError(h.t, p.Apply(p.Revision()+1, store.Txn{Ops: ops}).Err)
	h.granted = authz.New(p.View)
	h.server.Access = access.New(h.granted, p.Read, turns.NewServer())
	caller := authn.UserPrincipal("reader", nil)
	h.server.Caller = &caller
}

func TestCanIOffline(t *testing.T) {
	h := newHarness(t)
	h.env = []string{"HOME=" + h.home} // there is no control plane at all
	roles, policy := h.write("roles.yaml", rolesYAML), h.write("new.yaml", webToBackend)
	other := h.write("old.yaml", `{"type": "TrafficPermission", "mesh": "default", "name": "web-to-backend",
		"sources": [{"match": {"kuma.io/service": "web"}}], "destinations": [{"match": {"kuma.io/service": "other"}}]}`)
	for _, tt := range []struct {
		name string
		args []string
		yes  bool
		want string
	}{
		{"content", []string{"UPDATE", "-f", policy, "--as", "bob"}, true, `rules[0] of AccessRole "backend-owner"`},
		{"what is replaced", []string{"UPDATE", "-f", policy, "--old", other, "--as", "bob"}, false, "as it is stored"},
		{"both", []string{"UPDATE", "-f", policy, "--old", policy, "--as", "bob"}, true, "rules[0]"},
		{"other content", []string{"CREATE", "-f", other, "--as", "bob"}, false, "wants kuma.io/service: backend, entry 1 has other"},
		{"several documents", []string{"CREATE", "-f", policy, "-f", h.write("catch.yaml", catchAllK8s), "--as", "bob"}, false, "TrafficPermission/default/catch-all: missing: CREATE"},
		{"another user", []string{"UPDATE", "-f", policy, "--as", "carl"}, false, "no role is bound"},
		{"group", []string{"create", "mesh/x", "--as", "carl", "--as-group", "x", "--as-group", "team-a"}, true, `AccessRoleBinding "team" to group "team-a"`},
		{"type alone", []string{"delete", "meshes", "--as", "carl", "--as-group", "team-a"}, true, "rules[0]"},
		{"identity alone", []string{"DELETE", "TrafficPermission/web", "--as", "bob"}, false, "cannot be judged without the content"},
		{"token", []string{"GENERATE_DATAPLANE_TOKEN", "-m", "default", "--tag", "kuma.io/service=web", "--as", "bob"}, true, "rules[1]"},
		{"token of two values", []string{"generate-dataplane-token", "--tag", "kuma.io/service=web", "--tag", "kuma.io/service=api", "--as", "bob"}, false, "the token carries api"},
		{"token of another mesh", []string{"GENERATE_DATAPLANE_TOKEN", "-m", "demo", "--tag", "kuma.io/service=web", "--as", "bob"}, false, `mesh "default", not "demo"`},
		{"no default roles", []string{"GENERATE_USER_TOKEN", "--as", "admin", "--as-group", "mesh-system:admin"}, false, "no role is bound"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := h.run(append(append([]string{"auth", "can-i"}, tt.args...), "--offline", "--roles", roles)...)
			require.Empty(t, out.stderr)
			require.Contains(t, out.stdout, tt.want)
			if tt.yes {
				require.Equal(t, exit.OK, out.code)
				require.Regexp(t, `^yes\n`, out.stdout)
				return
			}
			require.Equal(t, exit.No, out.code)
			require.Regexp(t, `^no\n`, out.stdout)
		})
	}
	out := h.run("auth", "can-i", "UPDATE", "-f", policy, "--as", "bob", "--offline", "--roles", roles, "-o", "json")
	require.Equal(t, exit.OK, out.code)
	var answer verdictView
	require.NoError(t, json.Unmarshal([]byte(out.stdout), &answer))
	require.True(t, answer.Allowed)

	require.Equal(t, `TYPE  NAME  ROLE           RULE      BINDING  COVERS
User  bob   backend-owner  rules[0]  owners   TrafficPermission in mesh default depending on the content
`, h.ok("auth", "who-can", "UPDATE", "TrafficPermission/web", "--offline", "--roles", roles))
}

// The content of a question may be larger than a message to a server.
func TestCanIAboutLargeContent(t *testing.T) {
	h := newHarness(t)
	h.serveRoles(rolesYAML)
	var text strings.Builder
	text.WriteString("type: TrafficPermission\nname: web-to-backend\nmesh: default\ndestinations: [{match: {kuma.io/service: backend}}]\nsources:\n")
	for i := range 5000 {
		fmt.Fprintf(&text, "- match: {kuma.io/service: service-%d}\n", i)
	}
	large := h.write("large.yaml", text.String())
	require.Greater(t, text.Len(), 2*batch.MaxMessage)
	require.Contains(t, h.ok("auth", "can-i", "UPDATE", "-f", large, "--old", large, "--as", "bob"), `rules[0] of AccessRole "backend-owner"`)
}

func TestAuthUsage(t *testing.T) {
	h := newHarness(t)
	roles, policy := h.write("roles.yaml", rolesYAML), h.write("new.yaml", webToBackend)
	for want, args := range map[string][]string{
		`unknown access "CRATE"; did you mean "CREATE"?`: {"can-i", "CRATE", "mesh/x"},
		"unknown access \"LOOK\"; write one of CREATE":   {"can-i", "LOOK", "mesh/x"},
		"missing ACCESS":                           {"can-i"},
		"missing TYPE/NAME, or -f":                 {"can-i", "CREATE"},
		"not both":                                 {"can-i", "CREATE", "mesh/x", "-f", policy},
		"is about no resource":                     {"can-i", "GENERATE_USER_TOKEN", "mesh/x"},
		"leave -f out":                             {"can-i", "GENERATE_USER_TOKEN", "-f", policy},
		"--old goes with UPDATE":                   {"can-i", "CREATE", "-f", policy, "--old", policy},
		"--tag goes with GENERATE_DATAPLANE_TOKEN": {"can-i", "GENERATE_USER_TOKEN", "--tag", "a=b"},
		"write TAG=VALUE":                          {"can-i", "GENERATE_DATAPLANE_TOKEN", "--tag", "a"},
		"--as-group goes with --as":                {"can-i", "CREATE", "mesh/x", "--as-group", "g"},
		"--as is required with --offline":          {"can-i", "CREATE", "mesh/x", "--offline", "--roles", roles},
		"--offline and --roles go together":        {"can-i", "CREATE", "mesh/x", "--as", "bob", "--offline"},
		"did you mean \"Mesh\"":                    {"can-i", "CREATE", "msh/x"},
		"missing TYPE":                             {"who-can", "CREATE"},
		"--as and --as-group require a name":       {"can-i", "CREATE", "mesh/x", "--as", ""},
		"require a name":                           {"can-i", "CREATE", "mesh/x", "--as", "bob", "--as-group", ""},
		"--as-group requires a named user":         {"can-i", "CREATE", "mesh/x", "--as", "mesh-system:anonymous", "--as-group", "g"},
		"no such file or directory":                {"can-i", "CREATE", "mesh/x", "--as", "bob", "--offline", "--roles", roles + ".not"},
		"auth requires a command: one of can-i":    {"--skip-verify", "--token", "abc"},
	} {
		out := h.run(append([]string{"auth"}, args...)...)
		require.Equal(t, exit.Usage, out.code, "%v\n%s%s", args, out.stdout, out.stderr)
		require.Contains(t, out.stderr, want)
		require.Empty(t, out.stdout)
	}
}

// The same questions are answered alike by a control plane and from its export:
// the word, the reasons and the exit code.
func TestOnlineAndOfflineAgree(t *testing.T) {
	h := newHarness(t)
	h.serveRoles(rolesYAML)
	var stored []*resource.Resource
	for _, m := range h.server.Stored {
		r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.Kind(m.GetKind()), Name: m.GetName()}}, m.GetSpec())
		require.NoError(t, err)
		stored = append(stored, r)
	}
	var export bytes.Buffer
	require.NoError(t, resource.Encode(&export, resource.FormatYAML, stored...))
	defaults := "---\ntype: AccessRole\nname: admin\nrules: [{access: [CREATE, UPDATE, DELETE, GENERATE_DATAPLANE_TOKEN, GENERATE_USER_TOKEN, GENERATE_ZONE_CP_TOKEN, GENERATE_ZONE_TOKEN]}]\n" +
		"---\ntype: AccessRoleBinding\nname: default\nsubjects: [{type: Group, name: 'mesh-system:admin'}]\nroles: [admin]\n"
	roles := h.write("export.yaml", export.String()+defaults)
	policy, other := h.write("new.yaml", webToBackend), h.write("catch.yaml", catchAllK8s)
	wide := h.write("wide.yaml", "type: AccessRole\nname: wide\nrules: [{access: [DELETE]}]\n")
	last := h.write("last.yaml", "type: AccessRoleBinding\nname: default\nsubjects: [{type: User, name: bob}]\nroles: [nothing]\n")
	codes := map[int]int{}
	for _, who := range [][]string{{"--as", "bob"}, {"--as", "carl", "--as-group", "team-a"}, {"--as", "admin", "--as-group", "mesh-system:admin"}, {"--as", "mesh-system:anonymous"}} {
		for _, question := range [][]string{
			{"CREATE", "-f", policy},
			{"UPDATE", "-f", policy, "--old", policy},
			{"CREATE", "-f", other},
			{"CREATE", "-f", policy, "-f", other},
			{"DELETE", "mesh/x"},
			{"CREATE", "meshes"},
			{"CREATE", "TrafficPermission/web", "-m", "demo"},
			{"CREATE", "-f", wide},
			{"UPDATE", "-f", last, "--old", last},
			{"DELETE", "AccessRole/admin"},
			{"DELETE", "AccessRole/mesh-admin"},
			{"GENERATE_USER_TOKEN"},
			{"GENERATE_DATAPLANE_TOKEN", "--tag", "kuma.io/service=web"},
			{"GENERATE_DATAPLANE_TOKEN", "-m", "demo"},
			{"GENERATE_ZONE_TOKEN"},
		} {
			args := slices.Concat([]string{"auth", "can-i"}, question, who)
			online := h.run(args...)
			offline := h.run(append(args, "--offline", "--roles", roles)...)
			require.Equal(t, online, offline, "%v", args)
			require.Empty(t, online.stderr, "%v", args)
			codes[online.code]++
		}
	}
	require.Greater(t, codes[exit.OK], 10)
	require.Greater(t, codes[exit.No], 10)
}

// Roles alone answer no question, and files that hold something else none at all.
func TestRolesWithoutBindings(t *testing.T) {
	h := newHarness(t)
	out := h.run("auth", "can-i", "CREATE", "mesh/x", "--as", "bob", "--offline", "--roles", h.write("mesh.yaml", meshYAML))
	require.Equal(t, exit.No, out.code)
	require.Contains(t, out.stderr, "there is no AccessRoleBinding in the files of --roles")
}

func TestAuthOnline(t *testing.T) {
	h := newHarness(t)
	h.serveRoles(rolesYAML)
	reader := h.server.Caller
	h.server.Caller = nil
	policy := h.write("new.yaml", webToBackend)

	require.Equal(t, `User:   mesh-system:anonymous
Groups: mesh-system:unauthenticated
Known:  not at all: no credentials were sent
Roles:  none: you can write nothing
`, h.ok("auth", "whoami"))
	require.Equal(t, exit.Denied, h.run("auth", "can-i", "CREATE", "-f", policy, "--as", "bob").code, "the rights of others are for those who read the rules")
	require.Equal(t, exit.Denied, h.run("auth", "who-can", "UPDATE", "mesh/demo").code)
	h.server.Caller = reader

	out := h.run("auth", "can-i", "CREATE", "-f", policy)
	require.Equal(t, exit.No, out.code)
	require.Regexp(t, `^no\n`, out.stdout)
	require.Regexp(t, `^yes\n`, h.ok("auth", "can-i", "CREATE", "-f", policy, "--as", "bob"))
	require.Regexp(t, `^yes\n`, h.ok("auth", "can-i", "UPDATE", "-f", policy, "--old", policy, "--as", "bob"))
	require.Regexp(t, `^yes\n`, h.ok("auth", "can-i", "GENERATE_DATAPLANE_TOKEN", "--tag", "kuma.io/service=web", "--as", "bob"))
	require.Regexp(t, `^yes\n`, h.ok("auth", "can-i", "DELETE", "mesh/demo", "--as", "carl", "--as-group", "team-a"))
	require.Equal(t, `TYPE   NAME               ROLE        RULE      BINDING  COVERS
Group  mesh-system:admin  admin       rules[0]  default  everything
Group  team-a             mesh-admin  rules[0]  team     Mesh
`, h.ok("auth", "who-can", "UPDATE", "mesh/demo"))
	var held struct {
		Items []holderView `json:"items"`
	}
	require.NoError(t, json.Unmarshal([]byte(h.ok("auth", "who-can", "GENERATE_USER_TOKEN", "-o", "json")), &held))
	require.Len(t, held.Items, 1)
}

func TestDescribeRoleShowsWhoHoldsIt(t *testing.T) {
	h := newHarness(t)
	h.serveRoles(rolesYAML)
	page := h.ok("describe", "access-role", "backend-owner")
	require.Contains(t, page, "Held by:\n  user bob, through AccessRoleBinding owners\n")
	h.server.Stored[resource.Key{Kind: "AccessRole", Name: "unbound"}] = &meridianv1.Resource{
		Kind: "AccessRole", Name: "unbound", Spec: []byte(`{"rules":[{"access":["CREATE"]}]}`),
	}
	require.Contains(t, h.ok("describe", "AccessRole/unbound"), "no user or group: no AccessRoleBinding grants it")
}

func TestForceIsSent(t *testing.T) {
	h := newHarness(t)
	h.ok("apply", "-f", h.write("mesh.yaml", secretYAML))
	h.ok("apply", "-f", h.write("mesh.yaml", secretYAML), "--force")
	require.False(t, h.server.Applies[0].GetForce())
	require.True(t, h.server.Applies[1].GetForce())
}
