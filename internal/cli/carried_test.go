package cli

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authz"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/commit/committest"
	"meridian/internal/plan"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/service/admin"
	"meridian/internal/store"
)

const carriedYAML = `---
type: MeshTest
mesh: default
name: default
dataplanes:
- {name: a, networking: {address: 10.0.0.1, inbound: [{port: 80, tags: {kuma.io/service: web}}]}}
- {name: b, networking: {address: 10.0.0.2, inbound: [{port: 80, tags: {kuma.io/service: backend}}]}}
cases:
- {name: good, connection: {from: a, to: b}, expect: allowed}
- {name: bad, connection: {from: b, to: a}, expect: denied}
`

// TestCarriedTests: `meridian test` runs the tests that meshes carry, beside the others,
// with their lines, and knows which policies they depend on.
func TestCarriedTests(t *testing.T) {
	h := newHarness(t)
	secured := strings.Replace(meshYAML, "name: default\n", "name: default\nmtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}\n", 1)
	dir := filepath.Dir(h.write("shop/mesh.yaml", secured+"---\n"+webToBackend))
	tests := h.write("shop/carried.yaml", carriedYAML)
	require.Equal(t, "2 cases passed, 0 failed\n1 of 1 policies decide what a case expects\n", h.ok("test", dir, "--coverage"))

	h.write("shop/carried.yaml", strings.Replace(carriedYAML, "expect: denied", "expect: allowed", 1))
	h.write("shop/tests.yaml", strings.Replace(twoDataplanes, "web-1", "web-2", 1)+"---\n"+strings.ReplaceAll(policyTest, "web-1", "web-2"))
	junit := filepath.Join(h.home, "junit.xml")
	out := h.run("test", dir, "--junit", junit)
	require.Equal(t, exit.No, out.code, out.stderr)
	require.Equal(t, "FAIL  bad\n      "+tests+":10: expected allowed, but it is denied: no permission allows it\n3 cases passed, 1 failed\n", out.stdout)
	report, err := os.ReadFile(junit)
	require.NoError(t, err)
	require.Contains(t, string(report), tests)

	h.serveRoles("type: AccessRole\nname: reader\nrules: [{access: [READ]}]\n---\n" + meshYAML + "---\n" + webToBackend)
	out = h.run("test", tests, "--live")
	require.Equal(t, exit.OK, out.code, "without mutual TLS, all is allowed: %s%s", out.stdout, out.stderr)

	for name, c := range map[string]struct{ change, want string }{
		"another name":   {"name: default\ndataplanes", "a mesh carries one MeshTest, of its own name"},
		"access":         {"expect: denied}\n", "unknown field `access`"},
		"routes":         {"connection: {from: b, to: a}, expect: denied", "a mesh carries no tests over routes"},
		"twice the same": {"name: bad", `the name "good" is taken`},
		"nothing":        {"connection: {from: b, to: a}, expect: denied", "write one of `connection`, `dataplane` and `invariant`; there are 0"},
	} {
		to := map[string]string{
			"another name": "name: other\ndataplanes", "access": "expect: denied, access: {as: a, verb: READ}}\n",
			"routes": "over: routes, invariant: 'true'", "twice the same": "name: good", "nothing": "expect: denied",
		}[name]
		out := h.run("validate", "-f", h.write("wrong.yaml", strings.Replace(carriedYAML, c.change, to, 1)))
		require.NotEqual(t, exit.OK, out.code, name)
		require.Contains(t, out.stderr, c.want, name)
	}
}

// A write to a mesh with tests is accepted exactly where `meridian test` passes on the
// files that there would be.
func TestWritesAreAcceptedAsTheirFilesPass(t *testing.T) {
	h := newHarness(t)
	admins := authn.WithPrincipal(t.Context(), authn.LoopbackAdmin())
	accepted, refused := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		log := committest.New(store.New(store.DefaultOptions()))
		noon := func() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }
		require.NoError(rt, authz.Defaults{}.Ensure(t.Context(), log.View, log, noon))
		service := admin.New(admin.Config{
			Writer: log, Access: authz.New(log.View), Applied: log.Applied, Remembers: log.Remembers,
			Preview: admin.PreviewOf(log),
			View:    func() store.Reader { return log.View() },
			Stores:  func() []*store.Store { return []*store.Store{log.Store} },
			Source:  func(*resource.Descriptor) admin.Source { return log.Store },
			Owns:    func(*resource.Descriptor) error { return nil },
			Now:     noon,
		})
		state := map[resource.Key]*resource.Resource{}
		for range rapid.IntRange(2, 8).Draw(rt, "writes") {
			next := maps.Clone(state)
			apply, remove := &meridianv1.ApplyRequest{RequestId: rand.Text()}, &meridianv1.DeleteRequest{RequestId: rand.Text()}
			if keys := slices.SortedFunc(maps.Keys(state), resource.Key.Compare); len(keys) > 1 && rapid.IntRange(0, 2).Draw(rt, "deletes") == 0 {
				key := rapid.SampledFrom(keys).Draw(rt, "deleted")
				if key.Kind == resource.KindMesh {
					continue
				}
				delete(next, key)
				remove.Keys = []*meridianv1.ResourceKey{messageKey(key)}
			} else {
				for _, text := range rapid.SliceOfN(rapid.Custom(randomDocument), 1, 4).Draw(rt, "documents") {
					documents, err := resource.Decode("x.yaml", []byte(text), resource.DecodeOptions{})
					require.NoError(rt, err, text)
					next[documents[0].Resource.Key()] = documents[0].Resource
				}
				for key, r := range next {
					if state[key] != r {
						apply.Resources = append(apply.Resources, client.Encode(r))
					}
				}
			}
			if _, ok := next[resource.Key{Kind: resource.KindMesh, Name: "default"}]; !ok {
				continue
			}
			var text bytes.Buffer
			require.NoError(rt, resource.Encode(&text, resource.FormatYAML, slices.Collect(maps.Values(next))...))
			want := true
			if _, carries := next[resource.Key{Kind: resource.KindMeshTest, Mesh: "default", Name: "default"}]; carries {
				out := h.run("test", h.write("state.yaml", text.String()))
				require.Contains(rt, []int{exit.OK, exit.No}, out.code, out.stderr)
				want = out.code == exit.OK
			}
			var err error
			if len(remove.GetKeys()) > 0 {
				_, err = service.DeleteBatch(admins, remove)
			} else {
				_, err = service.ApplyBatch(admins, apply)
			}
			require.Equal(rt, want, err == nil, "%v\n%s", err, text.String())
			if err != nil {
				require.True(rt, rpcerr.HasReason(err, admin.ReasonTestsFail), "%v", err)
				refused++
				continue
			}
			accepted++
			state = next
		}
	})
	require.NotZero(t, accepted)
	require.NotZero(t, refused)
}

// randomDocument is a document of a small mesh. Of policies of a kind that are equally
// specific there is one, by its name: of several, the time of the last write would decide,
// which files do not have (§3.4).
func randomDocument(rt *rapid.T) string {
	service := rapid.SampledFrom([]string{"web", "backend", "'*'"})
	from, to := service.Draw(rt, "from"), service.Draw(rt, "to")
	rank := func(services ...string) (exact int) {
		for _, service := range services {
			if service != "'*'" {
				exact++
			}
		}
		return exact
	}
	between := func(name string) string {
		return fmt.Sprintf("mesh: default\nname: %s\nsources: [{match: {kuma.io/service: %s}}]\ndestinations: [{match: {kuma.io/service: %s}}]\n", name, from, to)
	}
	seconds := func(label string) int { return rapid.IntRange(1, 5).Draw(rt, label) }
	switch rapid.IntRange(0, 4).Draw(rt, "kind") {
	case 0:
		return "type: Mesh\nname: default\n" + rapid.SampledFrom([]string{"", "mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}\n"}).Draw(rt, "mtls")
	case 1:
		return "type: TrafficPermission\n" + between(fmt.Sprintf("exact-%d", rank(to))) // sources do not count on an inbound
	case 2:
		return fmt.Sprintf("type: Timeout\n%sconf: {connectTimeout: %ds}\n", between(fmt.Sprintf("exact-%d", rank(from, to))), seconds("value"))
	case 3:
		return fmt.Sprintf("type: MeshTrafficPermission\nmesh: default\nname: all\ntargetRef: {kind: Mesh}\nfrom: [{targetRef: {kind: Mesh}, default: {action: %s}}]\n",
			rapid.SampledFrom([]string{"ALLOW", "DENY"}).Draw(rt, "action"))
	}
	var b strings.Builder
	b.WriteString(`type: MeshTest
mesh: default
name: default
dataplanes:
- {name: web-1, networking: {address: 10.0.0.1, inbound: [{port: 80, tags: {kuma.io/service: web}}], outbound: [{port: 90, tags: {kuma.io/service: backend}}]}}
- {name: backend-1, networking: {address: 10.0.0.2, inbound: [{port: 80, tags: {kuma.io/service: backend}}]}}
cases:
`)
	for i := range rapid.IntRange(1, 3).Draw(rt, "cases") {
		fmt.Fprintf(&b, "- {name: c%d, ", i)
		switch rapid.IntRange(0, 2).Draw(rt, "case") {
		case 0:
			fmt.Fprintf(&b, "connection: {from: web-1, to: backend-1}, expect: %s}\n", rapid.SampledFrom([]string{"allowed", "denied"}).Draw(rt, "expect"))
		case 1:
			fmt.Fprintf(&b, "dataplane: web-1, kind: Timeout, to: backend, field: connectTimeout, expect: %s}\n", rapid.SampledFrom([]string{"null", fmt.Sprintf("<= %ds", seconds("most"))}).Draw(rt, "expect"))
		default:
			b.WriteString("over: connections, invariant: 'c.allowed || c.from.name == \"web-1\"'}\n")
		}
	}
	return b.String()
}

// TestSkipTestsIsSent: --skip-tests of each command that writes reaches the server, also
// with what was planned before, and is not sent by itself.
func TestSkipTestsIsSent(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	h, _ := historyOf(t)
	file := h.write("p.yaml", webToBackend)
	h.ok("apply", "-f", file)
	h.editor(`sed -i 's/service: web/service: api/' "$1"`)
	planOf := func(name string, args ...string) string {
		path := filepath.Join(h.home, name)
		out := h.run(append([]string{"plan"}, append(args, "--out", path)...)...)
		require.Equal(t, exit.OK, out.code, "%s: the fake's plan is empty\n%s", name, out.stderr)
		return path
	}
	written := planOf("written.plan", "-f", file)
	deleted := planOf("deleted.plan", "delete", "tp", "web-to-backend")
	back := filepath.Join(h.home, "back.plan")
	p := plan.New()
	p.Changes = []plan.Change{{Kind: "Timeout", Mesh: "default", Name: "web", Outcome: plan.Updated, Version: 3, Revision: 103}}
	rolledBack, err := json.Marshal(p)
	require.NoError(t, err)
	type request interface{ GetSkipTests() bool }
	last := func() request {
		h.server.Mu.Lock()
		defer h.server.Mu.Unlock()
		var all []request
		for _, r := range h.server.Applies {
			if !r.GetPlan() {
				all = append(all, r)
			}
		}
		for _, r := range h.server.Deletes {
			if !r.GetPlan() {
				all = append(all, r)
			}
		}
		for _, r := range h.server.Rollbacks {
			all = append(all, r)
		}
		h.server.Applies, h.server.Deletes, h.server.Rollbacks = nil, nil, nil
		require.Len(t, all, 1)
		return all[0]
	}
	last()
	for _, tc := range []struct {
		name string
		args []string
	}{
		{"apply", []string{"apply", "-f", file}},
		{"a dry run", []string{"apply", "-f", file, "--dry-run=server"}},
		{"edit", []string{"edit", "tp", "web-to-backend"}},
		{"a plan of a write", []string{"apply", written}},
		{"delete", []string{"delete", "tp", "web-to-backend"}},
		{"a plan of a deletion", []string{"apply", deleted}},
		{"rollback", []string{"rollback", "--to", "102", "Timeout", "web"}},
		{"a plan of a rollback", []string{"apply", back}},
	} {
		for _, skip := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", tc.name, skip), func(t *testing.T) {
				h.server.Mu.Lock()
				h.server.Plan = []byte("{}")
				h.server.Mu.Unlock()
				args := tc.args
				if skip {
					args = append(slices.Clone(args), "--skip-tests")
				}
				switch tc.name {
				case "edit", "delete", "a plan of a deletion":
					h.ok("apply", "-f", file)
					h.server.Mu.Lock()
					h.server.Applies = nil
					h.server.Mu.Unlock()
				case "a plan of a rollback":
					h.server.Mu.Lock()
					h.server.Plan = rolledBack
					h.server.Mu.Unlock()
					out := h.run("plan", "rollback", "--to", "102", "Timeout", "web", "--out", back)
					require.Equal(t, exit.No, out.code, out.stderr)
				}
				h.run(args...) // the fake may have nothing to do by now: what is sent counts
				require.Equal(t, skip, last().GetSkipTests())
			})
		}
	}
}
