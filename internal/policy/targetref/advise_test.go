package targetref_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/policytest"
	"meridian/internal/policy/targetref"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
)

const someDataplanes = `
---
type: Dataplane
mesh: m
name: web-1
networking:
  address: 10.0.0.1
  inbound:
    - {port: 80, tags: {kuma.io/service: web, version: v1}}
  outbound:
    - {port: 1, tags: {kuma.io/service: backend}}
---
type: Dataplane
mesh: m
name: backend-1
networking:
  address: 10.0.0.2
  inbound:
    - {port: 80, tags: {kuma.io/service: backend, version: v2}}
`

// advised lints all documents and returns what is said about the policy p.
func advised(t *testing.T, documents string) []string {
	t.Helper()
	view := viewOf(t, documents)
	var said []string
	for _, kind := range targetref.New().Kinds() {
		for _, a := range policytest.Lint(t, view, slices.Collect(view.List(kind, "m")), targetref.New()) {
			if a.Key.Name == "p" {
				said = append(said, map[resource.Severity]string{resource.Warning: "warning: ", resource.Info: "note: "}[a.Severity]+a.String())
			}
		}
	}
	return said
}

// What surprises people is said when a policy is written.
func TestAdvice(t *testing.T) {
	timeout := func(rest string) string { return "type: MeshUpstreamTimeout\nmesh: m\nname: p\n" + rest }
	toMesh := "to:\n  - {targetRef: {kind: Mesh}, connectTimeout: 1s}\n"
	permission := func(rest string) string { return "type: MeshTrafficPermission\nmesh: m\nname: p\n" + rest }
	route := "\n---\ntype: HTTPRoute\nmesh: m\nname: info\nparentRefs: [{kind: Service, name: backend}]\n"
	tests := map[string]struct {
		documents string
		want      []string
	}{
		"nothing to say": {documents: timeout(toMesh) + someDataplanes},
		"a service that no inbound has, and the near miss": {
			documents: timeout("targetRef: {kind: Service, name: backnd}\n"+toMesh) + someDataplanes,
			want:      []string{"warning: targetRef: no inbound has kuma.io/service=backnd; did you mean backend?"},
		},
		"without any dataplane, as on the global, nothing is reported": {
			documents: timeout("targetRef: {kind: Service, name: backnd}\n" + toMesh),
		},
		"a tag that no inbound has": {
			documents: timeout("targetRef: {kind: MeshSubset, tags: {verson: v1}}\n"+toMesh) + someDataplanes,
			want:      []string{"warning: targetRef: no inbound has the tag verson; did you mean version?"},
		},
		"tags that no single inbound has together (§4.2)": {
			documents: timeout("targetRef: {kind: ServiceSubset, name: web, tags: {version: v2}}\n"+toMesh) + someDataplanes,
			want:      []string{"warning: targetRef: no inbound has all of kuma.io/service=web, version=v2"},
		},
		"a proxy that does not exist": {
			documents: timeout("targetRef: {kind: Proxy, name: web-2}\n"+toMesh) + someDataplanes,
			want:      []string{"warning: targetRef.name: there is no dataplane web-2; did you mean web-1?"},
		},
		"a route that does not exist": {
			documents: timeout("targetRef: {kind: HTTPRoute, name: inf}\n"+toMesh) + someDataplanes + route,
			want:      []string{"warning: targetRef.name: there is no HTTPRoute inf; did you mean info?"},
		},
		"a route to a service that no dataplane consumes": {
			documents: timeout("targetRef: {kind: HTTPRoute, name: lost}\n"+toMesh) + someDataplanes +
				"\n---\ntype: HTTPRoute\nmesh: m\nname: lost\nparentRefs: [{kind: Service, name: web}]\n",
			want: []string{"warning: targetRef.name: no outbound leads to what HTTPRoute lost is attached to"},
		},
		"a route that is attached to nothing here": {
			documents: timeout("targetRef: {kind: HTTPRoute, name: lost}\n"+toMesh) + someDataplanes +
				"\n---\ntype: HTTPRoute\nmesh: m\nname: lost\nparentRefs: [{kind: Gateway, name: g}]\n",
			want: []string{"warning: targetRef.name: HTTPRoute lost is attached to no service and to no mesh gateway with destinations"},
		},
		"an outbound that no dataplane has": {
			documents: timeout("to:\n  - {targetRef: {kind: Service, name: backends}, connectTimeout: 1s}\n") + someDataplanes,
			want:      []string{"warning: to[0].targetRef.name: no outbound has kuma.io/service=backends; did you mean backend?"},
		},
		"a caller that is probably misspelled": {
			documents: permission("from:\n  - {targetRef: {kind: Service, name: wbe}, action: ALLOW}\n") + someDataplanes,
			want:      []string{"warning: from[0].targetRef: no inbound has kuma.io/service=wbe; did you mean web?"},
		},
		"a caller from elsewhere may well exist": {
			documents: permission("from:\n  - {targetRef: {kind: Service, name: infra-logger}, action: ALLOW}\n") + someDataplanes,
		},
		"an item below one that sets the same for all callers": {
			documents: timeout("to:\n  - {targetRef: {kind: Mesh}, connectTimeout: 1s, idleTimeout: 1s}\n  - {targetRef: {kind: Service, name: backend}, connectTimeout: 2s}\n") + someDataplanes,
			want:      []string{"warning: to[1]: can never take effect: to[0] targets Mesh and sets the same, and the first item that has a field sets it"},
		},
		"with LastWins it is the item above": {
			documents: timeout("to:\n  - {targetRef: {kind: Service, name: backend}, connectTimeout: 2s}\n  - {targetRef: {kind: Mesh}, connectTimeout: 1s}\n") + someDataplanes +
				"\n---\ntype: Mesh\nname: m\nmatching: {targetRef: LastWins}\n",
			want: []string{"warning: to[0]: can never take effect: to[1] targets Mesh and sets the same, and the last item that has a field sets it"},
		},
		"a caller whom an earlier item has decided about": {
			documents: permission("from:\n  - {targetRef: {kind: Service, name: web}, action: ALLOW}\n  - {targetRef: {kind: ServiceSubset, name: web, tags: {version: v1}}, action: DENY}\n") + someDataplanes,
			want:      []string{"warning: from[1]: can never take effect: from[0] targets Service web and sets the same, and the first item that has a field sets it"},
		},
		"an item about another route than the policy's": {
			documents: timeout("targetRef: {kind: HTTPRoute, name: info}\nto:\n  - {targetRef: {kind: HTTPRoute, name: other}, connectTimeout: 1s}\n") + someDataplanes + route,
			want:      []string{"warning: to[0].targetRef.name: can never take effect: the policy holds for HTTPRoute info only"},
		},
		"an unset that the mesh forbids": {
			documents: timeout("unset: [/connectTimeout]\n") + "\n---\ntype: Mesh\nname: m\nmatching: {unset: Forbidden}\n",
			want:      []string{"warning: unset: has no effect: mesh m forbids unsetting"},
		},
		"two policies that tie on kind (§4.3)": {
			documents: timeout(toMesh) + "\n---\ntype: MeshUpstreamTimeout\nmesh: m\nname: a\n" + toMesh +
				"\n---\ntype: MeshUpstreamTimeout\nmesh: m\nname: z\n" + "to:\n  - {targetRef: {kind: Service, name: backend}, connectTimeout: 1s}\n",
			want: []string{
				"note: targetRef: has priority over a, which targets Mesh too and sets /connectTimeout: the name that sorts later has priority",
				"note: targetRef: has lower priority than z, which targets Mesh too and sets /connectTimeout: the name that sorts later has priority",
			},
		},
		"policies on one target that set different things do not tie": {
			documents: timeout(toMesh) + "\n---\ntype: MeshUpstreamTimeout\nmesh: m\nname: a\nto:\n  - {targetRef: {kind: Mesh}, idleTimeout: 1s}\n",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tt.want, advised(t, tt.documents))
		})
	}
}

// Advice on a batch looks at everything once: its cost grows with the batch, not
// with its square.
func TestAdviceOnABatch(t *testing.T) {
	w := oneDataplane(t)
	timeouts(t, w, 3000)
	view := w.View()
	batch := slices.Collect(view.List("MeshUpstreamTimeout", mesh))
	advice := policytest.Lint(t, view, batch, targetref.New())
	require.Len(t, advice, 3000-10, "every policy for a service that no dataplane consumes")
}

// Many names that are missed in one batch are not each compared with every name
// there is.
func TestAdviceOnManyMissingRoutesStaysCheap(t *testing.T) {
	const n = 5000
	var routes []*resource.Resource
	items := make([]string, n)
	for i := range n {
		r := resourcetest.Build(t, "HTTPRoute", "m", fmt.Sprintf("checkout-of-shop-%d", i), "{}")
		routes = append(routes, r)
		items[i] = fmt.Sprintf(`{"targetRef": {"kind": "HTTPRoute", "name": "chekout-of-shop-%d"}, "connectTimeout": "1s"}`, i)
	}
	p := resourcetest.Build(t, "MeshUpstreamTimeout", "m", "p", `{"to": [`+strings.Join(items, ",")+`]}`)
	advice := policytest.Lint(t, policy.NewSnapshot(append(routes, p)...), []*resource.Resource{p}, targetref.New())
	require.NotEmpty(t, advice)
	require.Contains(t, advice[0].String(), "did you mean checkout-of-shop-0?")
}
