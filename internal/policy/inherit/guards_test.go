package inherit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

const (
	ofGateway = `"targetRef": {"kind": "Gateway", "name": "g"}`
	ofRoute   = `"targetRef": {"kind": "HTTPRoute", "name": "r"}`
)

// §5.6, §5.8: what asks for nothing that there is, is told: when it is written, and
// in its conditions for as long as it holds.
func TestGuardsThatDoNothing(t *testing.T) {
	guard := func(when string) string {
		return `{` + ofGateway + `, "overrides": {"strategy": "merge", "when": "` + when + `", "rules": {"authentication": {"a": 1}}}}`
	}
	for name, tt := range map[string]struct {
		written, below, above string
		// told is the condition after Accepted and Enforced, advice the warning.
		told, message, advice string
	}{
		"a rule below":         {written: guard("spec.rules.authentication.own > 1"), below: `"rules": {"authentication": {"own": 2}}`},
		"a rule in no policy":  {written: guard("spec.rules.authentication.oen > 1"), below: `"rules": {"authentication": {"own": 2}}`, told: "UnknownRule=True/NoSuchRule", message: `No policy below has a rule on any path: overrides.when asks for authentication.oen; did you mean "authentication.own"?`, advice: `overrides.when: asks for authentication.oen, which no policy of the mesh has: until one does, the condition sees nothing there; did you mean "authentication.own"?`},
		"a rule by an index":   {written: guard("'own' in spec.rules.metadata"), below: `"rules": {"authentication": {"own": 2}}`, told: "UnknownRule=True/NoSuchRule", message: "No policy below has a rule on any path: overrides.when asks for metadata.own", advice: "overrides.when: asks for metadata.own, which no policy of the mesh has: until one does, the condition sees nothing there"},
		"a rule of one's own":  {written: guard("spec.rules.authentication.a > 1"), below: `"rules": {"authentication": {"own": 2}}`, told: "UnknownRule=True/NoSuchRule", message: "No policy below has a rule on any path: overrides.when asks for authentication.a"},
		"own defaults":         {written: `{` + ofGateway + `, "defaults": {"strategy": "merge", "rules": {"authentication": {"b": 3}}}, "overrides": {"strategy": "merge", "when": "spec.rules.authentication.b > 1", "rules": {"authentication": {"a": 1}}}}`, below: `"rules": {"authentication": {"own": 2}}`},
		"unset of a default":   {written: `{` + ofRoute + `, "rules": {"authentication": {"own": 2}}, "unset": ["rules.authentication.x"]}`, above: `"defaults": {"strategy": "merge", "rules": {"authentication": {"x": 1}}}`},
		"unset of an override": {written: `{` + ofRoute + `, "rules": {"authentication": {"own": 2}}, "unset": ["rules.authentication.x"]}`, above: `"overrides": {"strategy": "merge", "rules": {"authentication": {"x": 1}}}`, told: "UnsetWithoutEffect=True/Override", message: "An unset takes no override out; overridden: authentication.x by above"},
		"unset of nothing":     {written: `{` + ofRoute + `, "rules": {"authentication": {"own": 2}}, "unset": ["rules.authentication.y"]}`, above: `"defaults": {"strategy": "merge", "rules": {"authentication": {"x": 1}}}`, told: "UnsetWithoutEffect=True/NoDefault", message: "No policy above has a default that is unset: authentication.y", advice: "unset[0]: no policy of the mesh has authentication.y: nothing is taken out"},
	} {
		t.Run(name, func(t *testing.T) {
			written := build(t, "AuthPolicy", "written", tt.written)
			others := world(t)
			if tt.below != "" {
				others = append(others, build(t, "AuthPolicy", "below", `{`+ofRoute+`, `+tt.below+`}`))
			}
			if tt.above != "" {
				others = append(others, build(t, "AuthPolicy", "above", `{`+ofGateway+`, `+tt.above+`}`))
			}
			require.Equal(t, tt.advice, adviceOn(t, written, others...))
			conditions := conditionsOf(t, indexOf(t, append(others, written)...), "AuthPolicy", "written")[2:]
			if tt.told == "" {
				require.Empty(t, conditions)
				return
			}
			require.Equal(t, tt.told, told(conditions))
			require.Equal(t, tt.message, conditions[0].Message)
		})
	}
}

// §5.8: an object is affected in part where one of its paths has no policy, although
// each of its sections has one on another path.
func TestAnOpenPathIsNotAffected(t *testing.T) {
	gateway := func(name string) *resource.Resource {
		return build(t, "Gateway", name, `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}`)
	}
	route := build(t, "HTTPRoute", "r", `{"parentRefs": [{"name": "g"}, {"name": "h"}]}`)
	on := build(t, "AuthPolicy", "on-g", `{`+ofGateway+`, "rules": {"authentication": {"a": 1}}}`)
	of := func(more ...*resource.Resource) policy.Condition {
		return affectionsOf(t, indexOf(t, append(more, gateway("g"), gateway("h"), route, on)...), "HTTPRoute", "r")[0]
	}
	c := of()
	require.Equal(t, "PartiallyAffected", c.Reason)
	require.Equal(t, "The object is affected by AuthPolicy on-g. No AuthPolicy is effective on h/http/r/rule-1", c.Message)
	c = of(build(t, "AuthPolicy", "on-h", `{"targetRef": {"kind": "Gateway", "name": "h"}, "rules": {"authentication": {"a": 1}}}`))
	require.Equal(t, "Affected", c.Reason)
	c = of(build(t, "AuthPolicy", "idle", `{"targetRef": {"kind": "Gateway", "name": "h"}, "overrides": {"when": "false", "rules": {"authentication": {"a": 1}}}}`))
	require.Equal(t, "PartiallyAffected", c.Reason, "a policy that asks for nothing leaves the path open")
}

// §5.6: self has the metadata and the target of the nearest policy below.
func TestSelfIsTheNearestBelow(t *testing.T) {
	for when, want := range map[string]bool{
		`self.metadata.name == 'route'`:                true,
		`self.spec.targetRef.kind == 'HTTPRoute'`:      true,
		`has(self.spec.targetRef.sectionName)`:         false,
		`spec.targetRef.name == 'r'`:                   true,
		`self.spec == spec && spec.rules.size() == 6`:  true,
		`self.spec.targetRef.group.startsWith('gate')`: true,
	} {
		x := indexOf(t, append(world(t),
			build(t, "AuthPolicy", "rule", `{"targetRef": {"kind": "HTTPRoute", "name": "r", "sectionName": "rule-1"}, "defaults": {"strategy": "merge", "rules": {"authentication": {"x": 1}}}}`),
			build(t, "AuthPolicy", "route", `{`+ofRoute+`, "defaults": {"strategy": "merge", "rules": {"authentication": {"y": 1}}}}`),
			build(t, "AuthPolicy", "gw", `{`+ofGateway+`, "overrides": {"strategy": "merge", "when": "`+when+`", "rules": {"patterns": {"p": 1}}}}`))...)
		decided := pathOf(t, x, "rule-1").Decided
		require.Len(t, decided, 1)
		require.Equal(t, want, decided[0].Used, "%s: %s", when, decided[0].Reason)
	}
}

// §1.1: a policy and a route refer to objects of their own namespace, and a route to
// a gateway of another one by naming it: no policy takes effect in the namespace of
// another team because the names are equal.
func TestReferencesStayInTheirNamespace(t *testing.T) {
	in := func(namespace, kind, name, spec string) *resource.Resource {
		r := build(t, resource.Kind(kind), resource.Namespaced(namespace, name), spec)
		meta := r.Meta()
		meta.Labels = map[string]string{resource.LabelNamespace: namespace}
		return r.WithMeta(meta)
	}
	const (
		gateway = `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "All"}}}]}`
		route   = `{"parentRefs": [{"name": "g", "namespace": "infra"}]}`
		policy  = `{` + ofRoute + `, "rules": {"authentication": {"a": 1}}}`
	)
	x := indexOf(t, in("infra", "Gateway", "g", gateway), build(t, "Gateway", "g", gateway),
		in("team-a", "HTTPRoute", "r", route), in("team-b", "HTTPRoute", "r", route), build(t, "HTTPRoute", "r", `{"parentRefs": [{"name": "g"}]}`),
		in("team-a", "AuthPolicy", "p", policy), in("infra", "AuthPolicy", "lost", policy))
	origins := func(name string) map[string]string {
		state, ok := x.Route("default", name)
		require.True(t, ok)
		found := map[string]string{}
		for _, p := range state.Paths {
			for _, by := range p.Origins {
				found[p.Gateway] = by.Name
			}
		}
		return found
	}
	require.Equal(t, map[string]string{"g.infra": "p.team-a"}, origins("r.team-a"))
	require.Empty(t, origins("r.team-b"))
	require.Empty(t, origins("r"))
	require.Equal(t, "TargetNotFound", conditionsOf(t, x, "AuthPolicy", "lost.infra")[0].Reason)
}

// §5.8: routes of two kinds that share a name have conditions of their own.
func TestConditionsOfRoutesThatShareAName(t *testing.T) {
	policy := build(t, "AuthPolicy", "p", `{`+ofRoute+`, "rules": {"authentication": {"a": 1}}}`)
	told := func(more ...*resource.Resource) map[resource.Kind]string {
		state, ok := indexOf(t, append(append(world(t), policy), more...)...).Route("default", "r")
		require.True(t, ok)
		reasons, seen := map[resource.Kind]string{}, map[string]bool{}
		for _, c := range state.Conditions {
			require.False(t, seen[c.Type+string(c.RouteKind)], "unique per kind of route")
			seen[c.Type+string(c.RouteKind)] = true
			reasons[c.RouteKind] = c.Reason // the last is about the policies
		}
		return reasons
	}
	require.Equal(t, map[resource.Kind]string{"": "Affected"}, told())
	require.Equal(t, map[resource.Kind]string{"HTTPRoute": "Affected", "GRPCRoute": "Unaffected"},
		told(build(t, "GRPCRoute", "r", `{"parentRefs": [{"name": "g"}]}`)))
}
