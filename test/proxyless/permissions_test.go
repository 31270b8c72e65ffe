package proxyless

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meridian/internal/meshca/meshcatest"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
)

// Stock gRPC decides about real callers, with certificates of the mesh's authority, as the
// answer about the connection says. What it is sent is compared for many more meshes
// in package generate/grpc.
func TestStockServersDecideAsTheAnswerSays(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	selector := func() string {
		s := fmt.Sprintf(`"kuma.io/service":%q`, pick("web", "a/_/b", "*"))
		if r.IntN(2) == 0 {
			s += fmt.Sprintf(`,"version":%q`, pick("v1", "v2", "_", ".+", "é", "*"))
		}
		return "{" + s + "}"
	}
	target := func() string {
		switch r.IntN(3) {
		case 0:
			return `{"kind":"Mesh"}`
		case 1:
			return fmt.Sprintf(`{"kind":"MeshSubset","tags":{"version":%q}}`, pick("v1", "v2", "_", ".+", "é", "*"))
		default:
			return fmt.Sprintf(`{"kind":"Service","name":%q}`, pick("web", "a/_/b"))
		}
	}
	served, refused := 0, 0
	for n := range 8 {
		z := newZone(t)
		z.apply(z.put(resource.KindMesh, "", "m", mutualTLS))
		ca := meshcatest.Authority(t, "m")
		for i := range 1 + r.IntN(3) {
			if n%2 == 0 {
				z.apply(z.put(resource.KindTrafficPermission, "m", fmt.Sprintf("p%d", i), fmt.Sprintf(`{"sources":[{"match":%s},{"match":%s}],"destinations":[{"match":{"kuma.io/service":"backend"}}]}`, selector(), selector())))
				continue
			}
			var from []string
			for range 1 + r.IntN(4) {
				from = append(from, fmt.Sprintf(`{"targetRef":%s,"default":{"action":%q}}`, target(), pick("ALLOW", "DENY")))
			}
			z.apply(z.put(resource.KindMeshTrafficPermission, "m", fmt.Sprintf("p%d", i), `{"targetRef":{"kind":"Mesh"},"from":[`+strings.Join(from, ",")+`]}`))
		}
		f := newFiles(t)
		f.put(meshcatest.Issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), ca.Roots())
		server := z.serveMember("backend-1", `{"kuma.io/service":"backend","kuma.io/zone":"east"}`, f)
		m := policy.NewMatcher(engines.All()...)
		m.Reset(z.store.View())
		for i := range 12 {
			tags := resource.Tags{resource.ServiceTag: pick("web", "a/_/b", "other")}
			if r.IntN(3) > 0 {
				tags["version"] = pick("v1", "v2", "_", ".+", "é", "a b")
			}
			h := meshcatest.Issue(t, ca, "m", fmt.Sprintf("caller-%d", i), tags) // it adds the zone's tag
			a, err := answer.Connection(m, answer.ConnectionQuestion{Mesh: "m", FromTags: tags, To: "backend-1"}, 1)
			require.NoError(t, err)
			_, err = callBare(t, server.address, presenting(t, h.Pair(t)))
			if a.Allowed {
				served++
				require.NoError(t, err, "%v", tags)
				continue
			}
			refused++
			require.Equal(t, codes.PermissionDenied, status.Code(err), "%v: %v", tags, err)
			by := "matched a deny policy"
			for _, e := range a.Effective {
				if e.Kind == resource.KindMeshTrafficPermission {
					by = string(e.Kind) + " " + e.Policies[0]
				}
			}
			require.ErrorContains(t, err, by)
		}
	}
	require.Greater(t, served, 10)
	require.Greater(t, refused, 10)
}
