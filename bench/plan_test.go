package bench

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/batch"
	"meridian/internal/plan"
)

// BenchmarkPlans plans single policies, and ones for all of the mesh, at a global with
// 10,000 policies and three zones with 10,000 dataplanes together, from the request to the
// complete answer.
func BenchmarkPlans(b *testing.B) {
	system(b)
	const rounds = 10
	g := newGlobal(b, many)
	for i, name := range []string{"east", "west", "north"} {
		z := startZoneNamed(b, name, g.bundle(b, name, g.grpcAddr), b.TempDir())
		z.await(b, connected, 0)
		g.api.write(b, policy(0, i+1), true) // a zone that has this has the mesh
		z.api.apply(b, callers(many/3))
	}
	all := `"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"service-7","version":"v1"}}]`
	one := []*meridianv1.Resource{
		{Kind: "TrafficPermission", Mesh: "default", Name: "planned", Spec: []byte(`{` + all + `}`)},
		{Kind: "Timeout", Mesh: "default", Name: "planned", Spec: []byte(`{` + all + `,"conf":{"connectTimeout":"3s"}}`)},
	}
	wide := []*meridianv1.Resource{
		{Kind: "MeshTrafficPermission", Mesh: "default", Name: "planned", Spec: []byte(`{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"Mesh"},"default":{"action":"ALLOW"}}]}`)},
		{Kind: "MeshUpstreamTimeout", Mesh: "default", Name: "planned", Spec: []byte(`{"targetRef":{"kind":"Mesh"},"to":[{"targetRef":{"kind":"Mesh"},"default":{"connectTimeout":"3s"}}]}`)},
	}
	var single, mesh samples
	for b.Loop() {
		for range rounds {
			for i := range one {
				single.add(planned(b, g, one[i]))
				mesh.add(planned(b, g, wide[i]))
			}
		}
	}
	target(b, "one-max-ms", single.worst(), 1000)
	report(b, "one-p50-ms", single.p50())
	target(b, "mesh-max-ms", mesh.worst(), 3000)
	report(b, "mesh-p50-ms", mesh.p50())
}

// planned plans a policy that changes something, and returns how long that took.
func planned(b *testing.B, g *global, r *meridianv1.Resource) time.Duration {
	b.Helper()
	begun := time.Now()
	response, err := batch.Apply(b.Context(), g.api, &meridianv1.ApplyRequest{DryRun: true, Plan: true, Resources: []*meridianv1.Resource{r}})
	took := time.Since(begun)
	require.NoError(b, err)
	p := plan.New()
	require.NoError(b, json.Unmarshal(response.GetPlan(), p))
	require.Empty(b, p.Incomplete)
	require.NotZero(b, len(p.Connections)+len(p.Fields), "%s", r.GetKind())
	return took
}

// callers are dataplanes of all services, each with outbounds.
func callers(n int) []*meridianv1.Resource {
	all := make([]*meridianv1.Resource, n)
	for i := range all {
		all[i] = &meridianv1.Resource{Kind: "Dataplane", Mesh: "default", Name: fmt.Sprintf("caller-%05d", i), Spec: fmt.Appendf(nil,
			`{"networking":{"address":"10.0.0.1","inbound":[{"port":8080,"tags":{"kuma.io/service":"service-%d","version":"v1"}}],"outbound":[{"port":9001,"tags":{"kuma.io/service":"service-%d"}},{"port":9002,"tags":{"kuma.io/service":"service-7","version":"v1"}}]}}`,
			i%services, (i+1)%services)}
	}
	return all
}
