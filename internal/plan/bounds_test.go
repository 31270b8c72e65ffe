package plan_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/plan"
	"meridian/internal/policy"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

// many is a mesh of so many dataplanes, of a service each.
func many(t *testing.T, n int) *policy.Matcher {
	w := policytest.NewWorld()
	w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, `{}`)
	for i := range n {
		w.Put(t, resource.Meta{Key: policy.DataplaneKey("m", fmt.Sprintf("d%03d", i))},
			fmt.Sprintf(`{"networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "s%03d"}}]}}`, i))
	}
	return matcherOf(t, w.View())
}

func permission(t *testing.T, action string) *plan.Batch {
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindMeshTrafficPermission, Mesh: "m", Name: "all"}},
		[]byte(`{"targetRef": {"kind": "Mesh"}, "from": [{"targetRef": {"kind": "Mesh"}, "default": {"action": "`+action+`"}}]}`))
	require.NoError(t, err)
	return &plan.Batch{Written: []*resource.Resource{r}}
}

// A plan lists so many rows, and counts the others: what it says of all of them stays
// true.
func TestAPlanIsBounded(t *testing.T) {
	const n = 150
	m := many(t, n)
	p := plan.New()
	require.NoError(t, p.Dataplanes(t.Context(), m, permission(t, "DENY"), "z", nil))
	require.Len(t, p.Connections, 1)
	require.Equal(t, n*(n-1), p.Connections[0].Count)
	require.Len(t, p.Connections[0].From, 21)
	d := p.Document()
	require.Len(t, d.Connections, 10_000)
	require.Equal(t, n*(n-1)-10_000, d.Truncated)
	var page strings.Builder
	require.NoError(t, p.Render(&page))
	require.Contains(t, page.String(), "s000, s001, s002 and 147 more → s000, s001, s002 and 147 more: allowed → denied by all, 22350 connections in zone z of mesh m\n")

	again := plan.New()
	require.NoError(t, again.Dataplanes(t.Context(), m, permission(t, "DENY"), "z", nil))
	first, err := p.Digest()
	require.NoError(t, err)
	second, err := again.Digest()
	require.NoError(t, err)
	require.Equal(t, first, second, "a plan of one change is always the same")
	other := plan.New()
	require.NoError(t, other.Dataplanes(t.Context(), many(t, n-1), permission(t, "DENY"), "z", nil))
	third, err := other.Digest()
	require.NoError(t, err)
	require.NotEqual(t, first, third)
}

// A plan ends with its caller.
func TestAPlanEndsWithItsCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, plan.New().Dataplanes(ctx, many(t, 2), permission(t, "DENY"), "z", nil), context.Canceled)
}

// Callers of other zones count, and are other dataplanes than those of the same name here.
func TestCallersElsewhere(t *testing.T) {
	m := many(t, 1)
	there := plan.Callers(many(t, 2), []resource.MeshName{"m"})
	require.Len(t, there, 2)
	there[0].Zone = "y"
	p := plan.New()
	require.NoError(t, p.Dataplanes(t.Context(), m, permission(t, "DENY"), "z", there))
	require.Equal(t, 2, p.Connections[0].Count)
	require.Equal(t, []plan.Pair{{From: "d000", FromZone: "y", To: "d000", Port: 80}, {From: "d001", To: "d000", Port: 80}}, p.Connections[0].Rows)

	west := plan.New()
	require.NoError(t, west.Dataplanes(t.Context(), many(t, 2), permission(t, "DENY"), "z", nil))
	merged := plan.New()
	merged.Add("east", p)
	merged.Add("west", west)
	require.Equal(t, []string{"s000 and s001 → s000 and s001: allowed → denied by all, 2 connections in zone west of mesh m", "s000 and s001 → s000: allowed → denied by all, 2 connections in zone east of mesh m"}, sorted(merged.Access()))
	require.Equal(t, merged.Access(), merged.Losses())
}

func sorted(lines []string) []string {
	if len(lines) == 2 && lines[0] > lines[1] {
		lines[0], lines[1] = lines[1], lines[0]
	}
	return lines
}

// Rules of inherited policies are compared path by path.
func TestRoutesOfAPlan(t *testing.T) {
	w := policytest.NewWorld()
	put := func(kind resource.Kind, name, spec string) resource.Key {
		meta := resource.Meta{Key: resource.Key{Kind: kind, Mesh: "m", Name: name}}
		if kind == resource.KindMesh {
			meta.Mesh = ""
		}
		return w.Put(t, meta, spec)
	}
	put(resource.KindMesh, "m", `{}`)
	put(resource.KindGateway, "g", `{"gatewayClassName": "c", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}`)
	put(resource.KindHTTPRoute, "r", `{"parentRefs": [{"name": "g"}], "rules": [{"backendRefs": [{"name": "a"}]}]}`)
	put(resource.KindAuthPolicy, "low", `{"targetRef": {"kind": "HTTPRoute", "name": "r"}, "rules": {"authentication": {"a.b": {"x": 1}}}}`)
	m := matcherOf(t, w.View())
	key := put(resource.KindAuthPolicy, "high", `{"targetRef": {"kind": "Gateway", "name": "g"}, "overrides": {"strategy": "merge", "rules": {"authentication": {"a.b": {"x": 2}, "c": {"x": 3}}}}}`)
	p := plan.New()
	require.NoError(t, p.RoutesOf(t.Context(), m, &plan.Batch{Written: []*resource.Resource{w.Resources[key]}}))
	require.Len(t, p.Routes, 2)
	require.Equal(t, `authentication["a.b"]`, p.Routes[1].Field)
	require.Equal(t, `{"x":1}`, policytest.Spell(t, p.Routes[1].Before))
	require.Equal(t, `{"x":2}`, policytest.Spell(t, p.Routes[1].After))
	require.Equal(t, "high", p.Routes[1].By)
	require.Nil(t, p.Routes[0].Before)
	var page strings.Builder
	require.NoError(t, p.Render(&page))
	require.Contains(t, page.String(), `AuthPolicy authentication.c on route r, rule rule-1 through gateway g: none → {"x":3} by high`)
}
