//go:build multizone

package multizone

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/batch"
)

// conditionsOf returns AuthPolicies with as many expressions of one text as a
// message takes.
func conditionsOf(text func(i int) string) []*meridianv1.Resource {
	var all []*meridianv1.Resource
	for size, i := 0, 0; size < 50<<10; i++ {
		r := &meridianv1.Resource{Kind: "AuthPolicy", Mesh: "default", Name: fmt.Sprint("p", i), Spec: fmt.Appendf(nil,
			`{"targetRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}, "defaults": {"when": %q, "rules": {"metadata": {"a": 1}}}}`, text(i))}
		all = append(all, r)
		size += len(r.GetSpec())
	}
	return all
}

// What a request costs beyond its bytes is bounded: expressions that stand for
// large programs, kinds that nearly exist, large batches of who may write nothing,
// and questions. The limits are generous; without the bounds the attacks took
// minutes of CPU and gigabytes.
func TestAttacksWithExpensiveRequests(t *testing.T) {
	global := newGlobal(t, "--localhost-is-admin=false").start().ready()
	zone := newZone(t, global, "east", "--localhost-is-admin=false").start().ready()
	global.mustWith(adminsOnly+`---
type: AccessRole
name: editor
rules:
- types: [AuthPolicy]
  access: [CREATE]
  when: [{targetRef: {kind: HTTPRoute, name: mine}}]
---
type: AccessRoleBinding
name: editors
subjects: [{type: User, name: editor}]
roles: [editor]
`, "apply", "-f", "-", "--force")
	token := func(p *process, name string) context.Context {
		return bearing(t.Context(), strings.TrimSpace(p.must("generate", "user-token", "--name", name, "--valid-for", "1h")))
	}
	roleless, editor := token(global, "roleless"), token(global, "editor")
	admin := meridianv1.NewAdminServiceClient(global.dial())
	// attack runs what costs a server CPU, which is given in seconds, and memory.
	attack := func(p *process, name string, mostCPU float64, run func()) {
		t.Helper()
		before := p.read("process_cpu_seconds_total")
		run()
		cpu, resident := p.read("process_cpu_seconds_total")-before, p.read("process_resident_memory_bytes")
		t.Logf("%s: %.2f s of CPU, %.0f MiB resident", name, cpu, resident/(1<<20))
		require.Less(t, cpu, mostCPU, name)
		require.Less(t, resident, float64(1<<30), name)
		p.healthy(name)
	}
	refused := func(ctx context.Context, id string, resources []*meridianv1.Resource, want codes.Code) {
		t.Helper()
		_, err := batch.Apply(ctx, admin, &meridianv1.ApplyRequest{RequestId: id, Resources: resources})
		require.Equal(t, want, status.Code(err), err)
	}

	chain := strings.TrimSuffix(strings.Repeat("1 in[1]||", 110), "||")
	expressions := map[string]func(i int) string{
		"nested repeats":   func(i int) string { return fmt.Sprintf(`"%d".matches("((abc){20}){20}")`, i) },
		"chains":           func(i int) string { return fmt.Sprintf("%d==1||%s", i, chain) },
		"too many repeats": func(i int) string { return fmt.Sprintf(`"%d".matches("((abc){100}){10}.*(a{90}){11}")`, i) },
	}
	for name, text := range expressions {
		resources := conditionsOf(text)
		for who, ctx := range map[string]context.Context{"without a role": roleless, "with a role for other content": editor} {
			want, most, batches := codes.PermissionDenied, 4.0, 24
			if ctx == editor {
				most, batches = 30, 4
				if name == "too many repeats" {
					want = codes.InvalidArgument
				}
			}
			attack(global, fmt.Sprintf("%d batches of %d expressions, %s, %s", batches, len(resources), name, who), most, func() {
				for i := range batches {
					refused(ctx, fmt.Sprint(name, i), resources, want)
				}
			})
		}
	}
	var unknown []*meridianv1.Resource
	for i := range 9000 {
		unknown = append(unknown, &meridianv1.Resource{Kind: fmt.Sprintf("MeshTraficPermision%d", i), Name: "x"})
	}
	attack(global, "9,000 unknown kinds", 10, func() {
		refused(roleless, "kinds", unknown, codes.PermissionDenied)
		refused(editor, "kinds", unknown, codes.InvalidArgument)
	})
	attack(global, "four batches of 19 MB of who may write nothing", 10, func() {
		var large []*meridianv1.Resource
		for i := range 19 {
			large = append(large, &meridianv1.Resource{Kind: "TrafficPermission", Mesh: "default", Name: fmt.Sprint("p", i), Spec: fmt.Appendf(nil, `{"sources":[%s{}]}`, strings.Repeat("{},", 330_000))})
		}
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				_, err := batch.Apply(roleless, admin, &meridianv1.ApplyRequest{RequestId: fmt.Sprint("large", i), Resources: large})
				if status.Code(err) != codes.PermissionDenied {
					t.Errorf("a large batch: %v", err)
				}
			})
		}
		all.Wait()
	})
	guest := token(zone, "guest")
	questions := meridianv1.NewAccessServiceClient(zone.dial())
	for name, text := range expressions {
		var spec strings.Builder
		for i := 0; spec.Len() < 50<<10; i++ {
			fmt.Fprintf(&spec, `{"name": %q, "unknown-field-%d": 1},`, text(i), i)
		}
		attack(zone, "24 questions with 50 KB of content, "+name, 20, func() {
			for range 24 {
				_, err := batch.CanI(guest, questions, &meridianv1.CanIRequest{Access: "CREATE", AsUser: "root", AsGroups: []string{"mesh-system:admin"}, Resource: &meridianv1.Resource{
					Kind: "Dataplane", Mesh: "default", Name: "x", Spec: []byte(`{"networking": {"inbound": [` + strings.TrimSuffix(spec.String(), ",") + `]}}`),
				}})
				require.Equal(t, codes.InvalidArgument, status.Code(err), err)
			}
		})
	}
	require.Zero(t, zone.read("meridian_request_work_refused_total"))
}
