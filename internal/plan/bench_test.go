package plan_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/plan"
	"meridian/internal/policy"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

// fleet is a mesh of so many services with ten dataplanes each, and ten policies for each
// service: who may call it, and how those do that call it.
func fleet(b *testing.B, services int) *policy.Matcher {
	w := policytest.NewWorld()
	at := time.Unix(1, 0)
	put := func(kind resource.Kind, name, spec string) {
		meta := resource.Meta{Key: resource.Key{Kind: kind, Mesh: "m", Name: name}, CreationTime: at, ModificationTime: at}
		if kind == resource.KindMesh {
			meta.Mesh = ""
		}
		w.Put(b, meta, spec)
	}
	put(resource.KindMesh, "m", `{"mtls": {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin"}]}}`)
	for s := range services {
		for i := range 10 {
			put(resource.KindDataplane, fmt.Sprintf("d-%d-%d", s, i), fmt.Sprintf(`{"networking": {"address": "10.0.0.1",
				"inbound": [{"port": 80, "tags": {"kuma.io/service": "s%d", "kuma.io/zone": "z"}}],
				"outbound": [{"port": 81, "tags": {"kuma.io/service": "s%d"}}, {"port": 82, "tags": {"kuma.io/service": "s%d"}}]}}`, s, (s+1)%services, (s+2)%services))
		}
		for i := range 5 {
			put(resource.KindTrafficPermission, fmt.Sprintf("p-%d-%d", s, i), fmt.Sprintf(`{"sources": [{"match": {"kuma.io/service": "s%d"}}], "destinations": [{"match": {"kuma.io/service": "s%d"}}]}`, (s+services-1-i)%services, s))
			put(resource.KindTimeout, fmt.Sprintf("t-%d-%d", s, i), fmt.Sprintf(`{"sources": [{"match": {"kuma.io/service": "s%d"}}], "destinations": [{"match": {"kuma.io/service": "s%d"}}], "conf": {"connectTimeout": "%ds"}}`, (s+services-1-i)%services, s, i+1))
		}
	}
	return matcherOf(b, w.View())
}

// BenchmarkPlan plans one policy, and one for all of the mesh, against 10,000 policies and
// 10,000 dataplanes.
func BenchmarkPlan(b *testing.B) {
	m := fleet(b, 1000)
	all := `[{"match": {"kuma.io/service": "*"}}]`
	for name, c := range map[string]struct {
		kind resource.Kind
		spec string
	}{
		"permission":      {resource.KindTrafficPermission, `{"sources": ` + all + `, "destinations": [{"match": {"kuma.io/service": "s1", "kuma.io/zone": "z"}}]}`},
		"timeout":         {resource.KindTimeout, `{"sources": [{"match": {"kuma.io/service": "s1", "kuma.io/zone": "z"}}], "destinations": [{"match": {"kuma.io/service": "s2"}}], "conf": {"connectTimeout": "9s"}}`},
		"mesh permission": {resource.KindMeshTrafficPermission, `{"targetRef": {"kind": "Mesh"}, "from": [{"targetRef": {"kind": "Mesh"}, "default": {"action": "ALLOW"}}]}`},
		"mesh timeout":    {resource.KindMeshUpstreamTimeout, `{"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "Mesh"}, "default": {"connectTimeout": "9s"}}]}`},
	} {
		r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: c.kind, Mesh: "m", Name: "new"}, CreationTime: time.Unix(2, 0), ModificationTime: time.Unix(2, 0)}, []byte(c.spec))
		require.NoError(b, err)
		batch := &plan.Batch{Written: []*resource.Resource{r}}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				p := plan.New()
				require.NoError(b, p.Dataplanes(b.Context(), m, batch, "z", nil))
				require.False(b, p.Nothing() || len(p.Connections)+len(p.Fields) == 0)
			}
		})
	}
}
