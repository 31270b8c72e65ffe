package analysis_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/analysis"
	"meridian/internal/policy"
	"meridian/internal/resource"
)

// found are the codes on each resource but the mesh, as KIND/NAME PATH CODE.
func found(t *testing.T, codes []resource.Code, documents string) []string {
	t.Helper()
	decoded, err := resource.Decode("test", []byte(documents), resource.DecodeOptions{Mesh: "default"})
	require.NoError(t, err, "%s", documents)
	var resources []*resource.Resource
	for _, d := range decoded {
		resources = append(resources, d.Resource)
	}
	view, err := policy.Offline(resources, "east", false)
	require.NoError(t, err)
	report, err := analysis.Stored(context.Background(), view)
	require.NoError(t, err)
	got := []string{}
	for _, f := range report.Findings {
		if slices.Contains(codes, f.Code) {
			require.NotEmpty(t, f.Message)
			got = append(got, fmt.Sprintf("%s/%s %s", f.Key.Kind, f.Key.Name, f.Path))
		}
	}
	return got
}

const fleet = `
---
{type: Dataplane, mesh: default, name: web-1, networking: {address: 10.0.0.1, inbound: [{port: 80, tags: {kuma.io/service: web, version: v1}}], outbound: [{port: 90, tags: {kuma.io/service: backend}}]}}
---
{type: Dataplane, mesh: default, name: backend-1, networking: {address: 10.0.0.2, inbound: [{port: 80, tags: {kuma.io/service: backend}}]}}
`

func meshTimeout(name, target, item string) string {
	return fmt.Sprintf("---\n{type: MeshUpstreamTimeout, mesh: default, name: %s, spec: {targetRef: %s, to: [%s]}}\n", name, target, item)
}

func timeout(name, from, to string) string {
	return fmt.Sprintf("---\n{type: Timeout, mesh: default, name: %s, sources: [{match: {kuma.io/service: %s}}], destinations: [{match: {kuma.io/service: %s}}], conf: {connectTimeout: 1s}}\n", name, from, to)
}

func permission(name, items string) string {
	return fmt.Sprintf("---\n{type: MeshTrafficPermission, mesh: default, name: %s, spec: {targetRef: {kind: Mesh}, from: [%s]}}\n", name, items)
}

const (
	wholeMesh = "{kind: Mesh}"
	fromWeb   = "{targetRef: {kind: MeshService, name: web}, default: {action: %s}}"
)

// Each kind of finding is made, and not made of what is nearest to it.
func TestFindings(t *testing.T) {
	for _, tc := range []struct {
		code  resource.Code
		on    string // where it is found
		has   string
		lacks string
	}{
		{
			resource.CodeDeadPolicy, "Timeout/old ",
			fleet + timeout("old", "'*'", "backend") + timeout("new", "web", "backend"),
			fleet + timeout("old", "'*'", "'*'") + timeout("new", "backend", "backend"),
		},
		{
			resource.CodeDeadPolicy, "MeshUpstreamTimeout/wide ",
			fleet + meshTimeout("wide", wholeMesh, "{targetRef: {kind: Mesh}, connectTimeout: 1s}") + meshTimeout("web", "{kind: MeshService, name: web}", "{targetRef: {kind: Mesh}, connectTimeout: 2s}"),
			fleet + meshTimeout("wide", wholeMesh, "{targetRef: {kind: Mesh}, connectTimeout: 1s, http: {requestTimeout: 1s}}") + meshTimeout("web", "{kind: MeshService, name: web}", "{targetRef: {kind: Mesh}, connectTimeout: 2s}"),
		},
		{ // without dataplanes, nothing is known to be dead
			resource.CodeDeadPolicy, "Timeout/a ",
			fleet + timeout("a", "other", "backend"),
			timeout("a", "other", "backend"),
		},
		{
			resource.CodeShadowedRule, "MeshTrafficPermission/a from[0]",
			fleet + permission("a", fmt.Sprintf(fromWeb, "ALLOW")+", {targetRef: {kind: MeshService, name: backend}, default: {action: ALLOW}}") + permission("b", fmt.Sprintf(fromWeb, "DENY")),
			fleet + permission("a", fmt.Sprintf(fromWeb, "ALLOW")+", {targetRef: {kind: MeshService, name: backend}, default: {action: ALLOW}}") + permission("b", "{targetRef: {kind: MeshServiceSubset, name: web, tags: {version: v1}}, default: {action: DENY}}"),
		},
		{
			resource.CodeIdleOverride, "MeshUpstreamTimeout/o overrides",
			fleet + "---\n{type: MeshUpstreamTimeout, mesh: default, name: o, spec: {targetRef: {kind: Mesh}, overrides: {strategy: merge, when: 'has(self.connectTimeout)', to: [{targetRef: {kind: Mesh}, connectTimeout: 1s}]}}}\n",
			fleet + "---\n{type: MeshUpstreamTimeout, mesh: default, name: o, spec: {targetRef: {kind: Mesh}, overrides: {strategy: merge, when: '!has(self.connectTimeout)', to: [{targetRef: {kind: Mesh}, connectTimeout: 1s}]}}}\n",
		},
		{
			resource.CodeOverridden, "MeshUpstreamTimeout/wide ",
			fleet + meshTimeout("wide", wholeMesh, "{targetRef: {kind: Mesh}, connectTimeout: 1s}") + "---\n{type: MeshUpstreamTimeout, mesh: default, name: o, spec: {targetRef: {kind: Mesh}, overrides: {strategy: atomic, to: [{targetRef: {kind: Mesh}, connectTimeout: 3s}]}}}\n",
			fleet + meshTimeout("wide", wholeMesh, "{targetRef: {kind: Mesh}, connectTimeout: 1s, http: {requestTimeout: 1s}}") + "---\n{type: MeshUpstreamTimeout, mesh: default, name: o, spec: {targetRef: {kind: Mesh}, overrides: {strategy: merge, when: 'has(self.connectTimeout)', to: [{targetRef: {kind: Mesh}, connectTimeout: 3s}]}}}\n",
		},
		{
			resource.CodeSuperseded, "Timeout/t ",
			fleet + timeout("t", "web", "backend") + meshTimeout("m", wholeMesh, "{targetRef: {kind: Mesh}, connectTimeout: 1s}"),
			fleet + timeout("t", "web", "backend") + meshTimeout("m", wholeMesh, "{targetRef: {kind: MeshService, name: other}, connectTimeout: 1s}"),
		},
		{
			resource.CodeTie, "Timeout/a ",
			timeout("a", "web", "backend") + timeout("b", "web", "backend"),
			timeout("a", "web", "backend") + timeout("b", "'*'", "backend"),
		},
		{
			resource.CodeSelectsNothing, "Timeout/a sources[0].match",
			fleet + timeout("a", "wbe", "backend"),
			fleet + timeout("a", "web", "backend"),
		},
		{
			resource.CodeTargetNotFound, "MeshUpstreamTimeout/a targetRef.name",
			fleet + meshTimeout("a", "{kind: Proxy, name: web-2}", "{targetRef: {kind: Mesh}, connectTimeout: 1s}"),
			fleet + meshTimeout("a", "{kind: Proxy, name: web-1}", "{targetRef: {kind: Mesh}, connectTimeout: 1s}"),
		},
		{
			resource.CodeTargetNotFound, "AccessRoleBinding/b roles[0]",
			"---\n{type: AccessRoleBinding, name: b, subjects: [{type: User, name: a}], roles: [opss]}\n",
			"---\n{type: AccessRoleBinding, name: b, subjects: [{type: User, name: a}], roles: [admin]}\n",
		},
		{
			resource.CodeNeverMatches, "MeshTrafficPermission/a from[0].targetRef.tags",
			permission("a", "{targetRef: {kind: MeshServiceSubset, name: web, tags: {kuma.io/service: backend}}, default: {action: ALLOW}}"),
			permission("a", "{targetRef: {kind: MeshServiceSubset, name: web, tags: {kuma.io/service: web}}, default: {action: ALLOW}}"),
		},
		{
			resource.CodeNoMTLS, "Mesh/m mtls.enabledBackend",
			"---\n{type: Mesh, name: m, mtls: {backends: [{name: ca, type: builtin}]}}\n",
			"---\n{type: Mesh, name: m, mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}}\n",
		},
		{
			resource.CodeUnqualifiedFrom, "MeshTrafficPermission/a from[0].targetRef",
			permission("a", "{targetRef: {kind: Mesh}, default: {action: ALLOW}}"),
			permission("a", "{targetRef: {kind: Mesh}, default: {action: DENY}}"),
		},
		{
			resource.CodeUnqualifiedFrom, "TrafficPermission/p sources[0].match",
			"---\n{type: TrafficPermission, mesh: default, name: p, sources: [{match: {kuma.io/service: '*'}}], destinations: [{match: {kuma.io/service: web}}]}\n",
			"---\n{type: TrafficPermission, mesh: default, name: p, sources: [{match: {kuma.io/service: '*', team: a}}], destinations: [{match: {kuma.io/service: web}}]}\n",
		},
		{
			resource.CodeRoleGrantsNothing, "AccessRole/r rules[0].types[0]",
			"---\n{type: AccessRole, name: r, rules: [{mesh: default, types: [Mesh], access: [UPDATE]}]}\n",
			"---\n{type: AccessRole, name: r, rules: [{mesh: default, types: [Timeout], access: [UPDATE]}]}\n",
		},
		{
			resource.CodeRoleGrantsAll, "AccessRole/r rules[0]",
			"---\n{type: AccessRole, name: r, rules: [{access: [CREATE, UPDATE, DELETE]}]}\n",
			"---\n{type: AccessRole, name: r, rules: [{mesh: default, access: [CREATE, UPDATE, DELETE]}]}\n",
		},
		{
			resource.CodeRoleUnbound, "AccessRole/r ",
			"---\n{type: AccessRole, name: r, rules: [{mesh: default, access: [CREATE]}]}\n",
			"---\n{type: AccessRole, name: r, rules: [{mesh: default, access: [CREATE]}]}\n---\n{type: AccessRoleBinding, name: b, subjects: [{type: User, name: a}], roles: [r]}\n",
		},
		{
			resource.CodeBackendNotFound, "TrafficLog/l conf.backend",
			"---\n{type: Mesh, name: default}\n---\n{type: TrafficLog, mesh: default, name: l, sources: [{match: {kuma.io/service: '*'}}], destinations: [{match: {kuma.io/service: web}}], conf: {backend: none}}\n",
			"---\n{type: Mesh, name: default, logging: {backends: [{name: none, type: file, conf: {path: /dev/stdout}}]}}\n---\n{type: TrafficLog, mesh: default, name: l, sources: [{match: {kuma.io/service: '*'}}], destinations: [{match: {kuma.io/service: web}}], conf: {backend: none}}\n",
		},
		{
			resource.CodeDeniesAll, "MeshTrafficPermission/a from[0]",
			permission("a", "{targetRef: {kind: Mesh}, default: {action: DENY}}"),
			permission("a", "{targetRef: {kind: Mesh}, default: {action: DENY}}") + permission("b", fmt.Sprintf(fromWeb, "ALLOW")),
		},
		{
			resource.CodeNotAttached, "HTTPRoute/r parentRefs[0]",
			"---\n{type: Gateway, mesh: default, name: g, gatewayClassName: x, listeners: [{name: http, port: 80, protocol: HTTP}]}\n---\n{type: HTTPRoute, mesh: default, name: r, parentRefs: [{name: g, sectionName: https}]}\n",
			"---\n{type: Gateway, mesh: default, name: g, gatewayClassName: x, listeners: [{name: http, port: 80, protocol: HTTP}]}\n---\n{type: HTTPRoute, mesh: default, name: r, parentRefs: [{name: g, sectionName: http}]}\n",
		},
		{
			resource.CodeNoEffect, "MeshUpstreamTimeout/a unset",
			"---\n{type: Mesh, name: default, matching: {unset: Forbidden}}\n---\n{type: MeshUpstreamTimeout, mesh: default, name: a, spec: {targetRef: {kind: Mesh}, unset: [/connectTimeout]}}\n",
			"---\n{type: Mesh, name: default}\n---\n{type: MeshUpstreamTimeout, mesh: default, name: a, spec: {targetRef: {kind: MeshService, name: web}, unset: [/connectTimeout]}}\n" + meshTimeout("b", wholeMesh, "{targetRef: {kind: Mesh}, connectTimeout: 1s}"),
		},
		{
			resource.CodeDocument, "MeshUpstreamTimeout/a unset[1]",
			"---\n{type: MeshUpstreamTimeout, mesh: default, name: a, spec: {targetRef: {kind: MeshService, name: web}, unset: [/connectTimeout, /connectTimeout]}}\n",
			"---\n{type: MeshUpstreamTimeout, mesh: default, name: a, spec: {targetRef: {kind: MeshService, name: web}, unset: [/connectTimeout]}}\n",
		},
	} {
		t.Run(string(tc.code)+" "+tc.on, func(t *testing.T) {
			require.Contains(t, found(t, []resource.Code{tc.code}, tc.has), tc.on)
			require.NotContains(t, found(t, []resource.Code{tc.code}, tc.lacks), tc.on)
		})
	}
}

// Every code is explained, and tested above.
func TestCodes(t *testing.T) {
	for _, e := range resource.Explanations() {
		require.NotEmpty(t, e.Title)
		require.NotEmpty(t, e.Fix)
		require.Equal(t, e.Code, e.Code.Explanation().Code)
	}
}

// What takes too long for the caller ends with the caller.
func TestRunEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: "Mesh", Name: "m"}, ModificationTime: time.Unix(1, 0)}, []byte("{}"))
	require.NoError(t, err)
	_, err = analysis.Run(ctx, policy.NewSnapshot(r))
	require.ErrorIs(t, err, context.Canceled)
}
