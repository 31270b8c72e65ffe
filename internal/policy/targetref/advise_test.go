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

// §4.10: a condition that asks for what no more specific policy sets, an unset that
// takes nothing out, and permissions that leave no caller are said, and are conditions
// of the stored policy.
func TestGuardsThatDoNothing(t *testing.T) {
	const owner = "\n---\ntype: MeshUpstreamTimeout\nmesh: m\nname: owner\ntargetRef: {kind: Service, name: web}\nto:\n  - {targetRef: {kind: Mesh}, connectTimeout: 60s}\n"
	const base = "\n---\ntype: MeshUpstreamTimeout\nmesh: m\nname: base\nto:\n  - {targetRef: {kind: Mesh}, connectTimeout: 60s, http: {requestTimeout: 5s}}\n"
	const enforced = "\n---\ntype: MeshUpstreamTimeout\nmesh: m\nname: enforced\noverrides:\n  strategy: merge\n  to:\n  - {targetRef: {kind: Mesh}, connectTimeout: 60s}\n"
	capped := func(when string) string {
		return "type: MeshUpstreamTimeout\nmesh: m\nname: p\noverrides:\n  strategy: merge\n  when: " + when + "\n  to:\n  - {targetRef: {kind: Mesh}, idleTimeout: 1s}\n"
	}
	unsets := func(field string) string {
		return "type: MeshUpstreamTimeout\nmesh: m\nname: p\ntargetRef: {kind: Service, name: web}\nunset: [" + field + "]\n"
	}
	denies := "type: MeshTrafficPermission\nmesh: m\nname: p\nfrom:\n  - {targetRef: {kind: Mesh}, action: DENY}\n"
	allows := "\n---\ntype: MeshTrafficPermission\nmesh: m\nname: some\nfrom:\n  - {targetRef: {kind: Service, name: web}, action: ALLOW}\n"
	for name, tt := range map[string]struct{ documents, said, condition string }{
		"a field that is set":              {capped("spec.connectTimeout == '60s'") + owner, "", ""},
		"a field of its own defaults":      {strings.Replace(capped("spec.connectTimeout == '60s'"), "overrides:", "defaults:\n  strategy: merge\n  to:\n  - {targetRef: {kind: Mesh}, connectTimeout: 1s}\noverrides:", 1), "", ""},
		"a field inside one that is set":   {capped("has(self.http.requestTimeout)") + base, "", ""},
		"an object of which a part is set": {capped("has(spec.http)") + base, "", ""},
		"a field that none sets": {
			capped("spec.connectTimeout == '60s'"), "overrides.when: asks for /connectTimeout, which no more specific policy sets",
			"UnknownField NoSuchField No more specific policy sets a field that is asked for: overrides.when asks for /connectTimeout",
		},
		"a field that none sets, of self.spec": {capped("self.spec.http.requestTimeout == '5s'") + owner, "asks for /http/requestTimeout", "UnknownField"},
		"a field that only less specific policies set": {
			strings.Replace(capped("spec.connectTimeout == '60s'"), "overrides:", "targetRef: {kind: Service, name: web}\noverrides:", 1) + base, "asks for /connectTimeout", "UnknownField",
		},
		"what is no field":      {capped("self.kind == 'MeshUpstreamTimeout' && target.kind == 'Mesh'"), "", ""},
		"an unset of a default": {unsets("/connectTimeout") + base, "", ""},
		"an unset of nothing": {
			unsets("/idleTimeout") + base, "unset[0]: no less specific policy has a default for /idleTimeout: nothing is taken out",
			"UnsetWithoutEffect NoDefault No less specific policy has a default that is unset: /idleTimeout",
		},
		"an unset of what is more specific": {
			strings.Replace(unsets("/connectTimeout"), "targetRef: {kind: Service, name: web}\n", "", 1) + owner, "unset[0]: no less specific policy", "UnsetWithoutEffect NoDefault",
		},
		"an unset of an override": {
			unsets("/connectTimeout") + base + enforced, "unset[0]: does not take /connectTimeout out of the overrides of enforced",
			"UnsetWithoutEffect Override An unset takes no override out; overridden: /connectTimeout by enforced",
		},
		"a permission that denies all": {denies, "from[0]: denies every caller, and no MeshTrafficPermission of mesh m allows one", ""},
		"beside one that allows some":  {denies + allows, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			said := slices.DeleteFunc(advised(t, tt.documents), func(s string) bool { return strings.HasPrefix(s, "note: ") })
			if tt.said == "" {
				require.Empty(t, said)
			} else {
				require.Len(t, said, 1)
				require.Contains(t, said[0], tt.said)
			}
			view := viewOf(t, tt.documents)
			kind, _, _ := strings.Cut(strings.TrimPrefix(tt.documents, "type: "), "\n")
			p, ok := view.Get(resource.Key{Kind: resource.Kind(kind), Mesh: "m", Name: "p"})
			require.True(t, ok)
			_, _, conditions := policy.Standing(view, p, targetref.New())
			if tt.condition == "" {
				require.Empty(t, conditions)
				return
			}
			require.Len(t, conditions, 1)
			require.Contains(t, fmt.Sprintf("%s %s %s", conditions[0].Type, conditions[0].Reason, conditions[0].Message), tt.condition)
		})
	}
}

// What surprises people is said when a policy is written.
func TestAdvice(t *testing.T) {
	timeout := func(rest string) string { return "type: MeshUpstreamTimeout\nmesh: m\nname: p\n" + rest }
	const (
		fromWeb = "from:\n  - {targetRef: {kind: Service, name: web}, action: ALLOW}\n"
		tried   = "labels: {meridian.io/enforcement: shadow}\n"
	)
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
		"a permission in effect and one that is only tried do not tie": {
			documents: permission(fromWeb) + "\n---\ntype: MeshTrafficPermission\nmesh: m\nname: z\n" + tried + fromWeb + someDataplanes,
		},
		"one that is tried ties with others that are": {
			documents: permission(tried+fromWeb) + "\n---\ntype: MeshTrafficPermission\nmesh: m\nname: z\n" + tried + fromWeb + someDataplanes,
			want:      []string{"note: targetRef: has lower priority than z, which targets Mesh too and sets /action for Service web: the name that sorts later has priority"},
		},
		"what is only tried allows no caller": {
			documents: permission("from:\n  - {targetRef: {kind: Mesh}, action: DENY}\n") + "\n---\ntype: MeshTrafficPermission\nmesh: m\nname: z\n" + tried + fromWeb + someDataplanes,
			want:      []string{"warning: from[0]: denies every caller, and no MeshTrafficPermission of mesh m allows one: nothing can connect to what the policy selects"},
		},
		"what is only tried denies no caller": {
			documents: permission(tried+"from:\n  - {targetRef: {kind: Mesh}, action: DENY}\n") + someDataplanes,
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
