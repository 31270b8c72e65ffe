package inherit

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// told prints conditions: "Accepted=True/Accepted Enforced=…".
func told(conditions []policy.Condition) string {
	var parts []string
	for _, c := range conditions {
		parts = append(parts, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
	}
	return strings.Join(parts, " ")
}

func conditionsOf(t *testing.T, x *Index, kind resource.Kind, name string) []policy.Condition {
	t.Helper()
	conditions, ok := x.Conditions(resource.Key{Kind: kind, Mesh: "default", Name: name})
	require.True(t, ok)
	return conditions
}

// affectionsOf are the conditions about how policies affect a target.
func affectionsOf(t *testing.T, x *Index, kind resource.Kind, name string) []policy.Condition {
	t.Helper()
	return slices.DeleteFunc(conditionsOf(t, x, kind, name), func(c policy.Condition) bool { return !strings.HasSuffix(c.Type, "Affected") })
}

const accepted = "Accepted=True/Accepted "

// §5.8: Enforced, with its published messages. The stacks are explained
// in stack_test.go; rule-1 and rule-2 of route r are the paths.
func TestEnforced(t *testing.T) {
	tests := []struct{ name, stack, policy, reason, message string }{
		{"alone", "R =(a)", "r", "True/Enforced", saidEnforced},
		{"A1 the default", "G d(a,zb); R =(c)", "g", "False/Overridden", "Policy has been overridden by r"},
		{"A1 the route", "G d(a,zb); R =(c)", "r", "True/Enforced", saidEnforced},
		{"B1 the default", "G D(a,zb); R =(c)", "g", "True/Enforced", saidEnforced},
		{"B1 the route", "G D(a,zb); R =(c)", "r", "True/Enforced", saidEnforced + ". The following defaults have been added by g: authentication.a, authorization.zb"},
		{"B2 the default", "G D(a,zb); R =(a)", "g", "True/PartiallyEnforced", saidEnforced + ". The following rules have been overridden by r: authentication.a"},
		{"B2 the route", "G D(a,zb); R =(a)", "r", "True/Enforced", saidEnforced + ". The following defaults have been added by g: authorization.zb"},
		{"C1 the override", "G o(a,zb); R =(c)", "g", "True/Enforced", saidEnforced},
		{"C1 the route", "G o(a,zb); R =(c)", "r", "False/Overridden", "Policy has been overridden by g"},
		{"D1 the route", "G O(a); R =(c)", "r", "True/Enforced", saidEnforced + ". The following overrides have been added by g: authentication.a"},
		{"D2 the route", "G O(a,zb); R =(a,zd)", "r", "True/PartiallyEnforced", saidEnforced + ". The following rules have been overridden by g: authentication.a; the following overrides have been added by g: authorization.zb"},
		{"overridden and added", "G D(x) O(a); R =(a,b)", "r", "True/PartiallyEnforced", saidEnforced + ". The following rules have been overridden by g: authentication.a; the following defaults have been added by g: authentication.x"},
		{"overridden by two", "G O(a); L O(b); R =(a,b,c)", "r", "True/PartiallyEnforced", saidEnforced + ". The following rules have been overridden by g: authentication.a; by l: authentication.b"},
		{"overridden entirely by two", "G O(a); L O(b); R =(a,b)", "r", "False/Overridden", "Policy has been overridden by g, l"},
		{"on one path only", "R D(a); U =(a)", "r", "True/PartiallyEnforced", saidEnforced + ". The following rules have been overridden by u: authentication.a"},
		{"F1 the default", "G D(a); R =(b) -a", "g", "False/Overridden", "Policy has been overridden by r"},
		{"partly unset", "G D(a,b); R =(c) -a", "g", "True/PartiallyEnforced", saidEnforced + ". The following rules have been unset by r: authentication.a"},
		{"unsets only", "G D(a); R -a", "r", "True/Enforced", saidEnforced},
		{"own override above own default", "G D(a) O(a)", "g", "True/Enforced", saidEnforced},
		{"complied with", "G O(a)?f; R =(a)", "g", "True/Enforced", saidEnforced + ". It asks for nothing at the moment: the condition of its overrides does not hold on any path"},
		{
			"failed and nothing else", "G O(a)?e; R =(b)", "g", "False/Unknown ConditionFailed=True/EvaluationFailed",
			saidIssues + ": the condition could not be decided: overrides.when on g/http/r/rule-1: division by zero (left out); overrides.when on g/http/r/rule-2: division by zero (left out)",
		},
		{"failed and enforced besides", "G D(c) O(a)?e; R =(b)", "g", "True/Enforced ConditionFailed=True/EvaluationFailed", saidEnforced},
		{"failed closed", "G O(a)?e!; R =(b)", "g", "True/Enforced ConditionFailed=True/EvaluationFailed", saidEnforced},
		{"several of one level are never in conflict", "R1@1 O(a); R2@2 O(a,b)", "r1", "True/Enforced", saidEnforced},
		{"the newer of one level", "R1@1 O(a); R2@2 O(a,b)", "r2", "True/PartiallyEnforced", saidEnforced + ". The following rules have been overridden by r1: authentication.a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			conditions := conditionsOf(t, indexOf(t, parseStack(t, tt.stack).resources(t)...), "AuthPolicy", tt.policy)
			require.Equal(t, accepted+"Enforced="+tt.reason, told(conditions))
			require.Equal(t, saidAccepted, conditions[0].Message)
			require.Equal(t, tt.message, conditions[1].Message)
		})
	}
}

// §5.8: policies that are not accepted, and those that are and reach
// nothing.
func TestAccepted(t *testing.T) {
	rules := `"rules": {"authentication": {"a": 1}}}`
	tests := []struct{ name, spec, want, message string }{
		{
			"no such gateway", `{"targetRef": {"kind": "Gateway", "name": "gg"}, ` + rules, "Accepted=False/TargetNotFound Enforced=False/Unknown",
			`Policy target gg was not found: mesh "default" has no Gateway of that name`,
		},
		{
			"no such route", `{"targetRef": {"kind": "HTTPRoute", "name": "elsewhere"}, ` + rules, "Accepted=False/TargetNotFound Enforced=False/Unknown",
			`Policy target elsewhere was not found: mesh "default" has no HTTPRoute of that name`,
		},
		{
			"a route of the other kind", `{"targetRef": {"kind": "GRPCRoute", "name": "r"}, ` + rules, "Accepted=False/TargetNotFound Enforced=False/Unknown",
			`Policy target r was not found: mesh "default" has no GRPCRoute of that name`,
		},
		{
			"no such listener", `{"targetRef": {"kind": "Gateway", "name": "g", "sectionName": "htp"}, ` + rules, "Accepted=False/TargetNotFound Enforced=False/Unknown",
			`Policy target g/htp was not found: Gateway g has no listener of that name; did you mean "http"?`,
		},
		{
			"no such rule", `{"targetRef": {"kind": "HTTPRoute", "name": "r", "sectionName": "rule-3"}, ` + rules, "Accepted=False/TargetNotFound Enforced=False/Unknown",
			`Policy target r/rule-3 was not found: HTTPRoute r has no rule of that name; did you mean "rule-1"?`,
		},
		{
			"no name", `{"targetRef": {"kind": "Gateway"}, ` + rules, "Accepted=False/TargetNotFound Enforced=False/Unknown",
			`Policy target Gateway was not found: targetRef has no name`,
		},
		{
			"condition that cannot be used", `{"targetRef": {"kind": "Gateway", "name": "g"}, "overrides": {"when": "spek.a", ` + rules + `}`, "Accepted=False/Invalid Enforced=False/Unknown",
			`Policy is invalid: overrides.when: at character 1: undeclared reference to 'spek' (in container '')`,
		},
		{
			"condition that is no truth value", `{"targetRef": {"kind": "Gateway", "name": "g"}, "defaults": {"when": "1 + 1", ` + rules + `}`, "Accepted=False/Invalid Enforced=False/Unknown",
			`Policy is invalid: defaults.when: the expression gives a int; a condition must be true or false`,
		},
		{"no traffic", `{"targetRef": {"kind": "Gateway", "name": "idle"}, ` + rules, "Accepted=True/Accepted Enforced=False/Unknown", saidAccepted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := indexOf(t, append(parseStack(t, "R =(b)").resources(t),
				build(t, "Gateway", "idle", `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}`),
				build(t, "AuthPolicy", "p", tt.spec))...)
			conditions := conditionsOf(t, x, "AuthPolicy", "p")
			require.Equal(t, tt.want, told(conditions))
			require.Equal(t, tt.message, conditions[0].Message)
			require.Equal(t, "b:R", short(pathOf(t, x, "rule-1")), "it has no effect at all")
		})
	}
}

// §5.6: a failure is told for its own path only, and the paths are
// named.
func TestFailuresNameTheirPaths(t *testing.T) {
	gw := build(t, "AuthPolicy", "gw", `{"targetRef": {"kind": "Gateway", "name": "g"}, "overrides": {"strategy": "merge",
		"when": "spec.rules.authentication.a > 50", "rules": {"authentication": {"a": 50}}}}`)
	all := append(world(t), gw,
		build(t, "AuthPolicy", "text", `{"targetRef": {"kind": "HTTPRoute", "name": "r", "sectionName": "rule-2"}, "rules": {"authentication": {"a": "high"}}}`),
		build(t, "AuthPolicy", "number", `{"targetRef": {"kind": "HTTPRoute", "name": "r", "sectionName": "rule-1"}, "rules": {"authentication": {"a": 70}}}`))
	x := indexOf(t, all...)
	require.Equal(t, "a:GW | lost a:GW", short(pathOf(t, x, "rule-1")))
	require.Equal(t, "a:TEXT | skip GW.overrides", short(pathOf(t, x, "rule-2")))
	conditions := conditionsOf(t, x, "AuthPolicy", "gw")
	require.Len(t, conditions, 3)
	require.Equal(t, "the condition could not be decided: overrides.when on g/http/r/rule-2: no such overload (left out)", conditions[2].Message)

	for i := range 5 {
		name := fmt.Sprintf("more-%d", i)
		all = append(all, build(t, "HTTPRoute", name, `{"parentRefs": [{"name": "g"}]}`), build(t, "AuthPolicy", name, fmt.Sprintf(
			`{"targetRef": {"kind": "HTTPRoute", "name": %q}, "rules": {"authentication": {"a": "high"}}}`, name)))
	}
	message := conditionsOf(t, indexOf(t, all...), "AuthPolicy", "gw")[2].Message
	require.Contains(t, message, "g/http/more-0/rule-1")
	require.True(t, strings.HasSuffix(message, "; and on 3 more"), message)
}

// §5.8: what is told of the objects that policies target.
func TestAffected(t *testing.T) {
	const unaffected = "The object is not affected by any AuthPolicy"
	tests := []struct{ name, stack, kind, object, reason, message string }{
		{"a route of its own policy", "R =(a)", "HTTPRoute", "r", "True/Affected", "The object is affected by AuthPolicy r"},
		{"a route under a gateway's policy", "G D(a)", "HTTPRoute", "r", "True/Affected", "The object is affected by AuthPolicy g"},
		{"of both", "G D(a); R =(b)", "HTTPRoute", "r", "True/Affected", "The object is affected by AuthPolicy g, r"},
		{"one that lost does not affect", "G d(a); R =(b)", "HTTPRoute", "r", "True/Affected", "The object is affected by AuthPolicy r"},
		{"a rule", "U =(a)", "HTTPRoute", "r", "True/PartiallyAffected", "The following sections of the object are affected by AuthPolicy u: rules.0"},
		{
			"a rule and the rest", "G d(a); U =(b)", "HTTPRoute", "r", "True/Affected",
			"The following sections of the object are affected by AuthPolicy g: rules.1. The following sections of the object are affected by AuthPolicy u: rules.0",
		},
		{
			"a whole and a rule", "G D(a); U =(b)", "HTTPRoute", "r", "True/Affected",
			"The object is affected by AuthPolicy g. The following sections of the object are affected by AuthPolicy u: rules.0",
		},
		{"nothing is in effect", "G O(a)?f", "HTTPRoute", "r", "False/Unaffected", unaffected},
		{"a gateway", "G D(a); R =(b)", "Gateway", "g", "True/Affected", "The object is affected by AuthPolicy g"},
		{"a gateway whose policy lost", "G d(a); R =(b)", "Gateway", "g", "False/Unaffected", unaffected},
		{"a gateway is not affected by its routes' policies", "R =(b)", "Gateway", "g", "False/Unaffected", unaffected},
		{"the one listener of a gateway", "L D(a)", "Gateway", "g", "True/Affected", "The object is affected by AuthPolicy l"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := indexOf(t, parseStack(t, tt.stack).resources(t)...)
			conditions := affectionsOf(t, x, resource.Kind(tt.kind), tt.object)
			require.Equal(t, "kuadrant.io/AuthPolicyAffected="+tt.reason, told(conditions))
			require.Equal(t, tt.message, conditions[0].Message)
		})
	}
}

// A gateway of several listeners: sections, and listeners without traffic.
func TestAffectedListeners(t *testing.T) {
	gateway := build(t, "Gateway", "g", `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"},
		{"name": "https", "port": 443, "protocol": "HTTPS"}, {"name": "unused", "port": 444, "protocol": "HTTPS", "hostname": "x.y"}]}`)
	route := build(t, "HTTPRoute", "r", `{"parentRefs": [{"name": "g"}], "hostnames": ["a.b"]}`)
	of := func(resources ...*resource.Resource) policy.Condition {
		x := indexOf(t, append(resources, gateway, route)...)
		return conditionsOf(t, x, "Gateway", "g")[0]
	}
	on := func(section string) *resource.Resource {
		return build(t, "AuthPolicy", "on-"+section, fmt.Sprintf(
			`{"targetRef": {"kind": "Gateway", "name": "g", "sectionName": %q}, "defaults": {"strategy": "merge", "rules": {"authentication": {%[1]q: 1}}}}`, section))
	}
	c := of(on("https"))
	require.Equal(t, "PartiallyAffected", c.Reason)
	require.Equal(t, "The following sections of the object are affected by AuthPolicy on-https: listeners.1", c.Message)
	c = of(onGateway(t, "g"))
	require.Equal(t, "Affected", c.Reason, "a listener without traffic does not make the whole a part")
	require.Equal(t, "The object is affected by AuthPolicy on-g", c.Message)
	c = of(on("unused"))
	require.Equal(t, "Unaffected", c.Reason)
}

// §5.8: policies are named by namespace/name where they have a
// namespace, and tied by it (§5.5).
func TestNamespaces(t *testing.T) {
	in := func(namespace string, r *resource.Resource) *resource.Resource {
		meta := r.Meta()
		meta.Labels = map[string]string{resource.LabelNamespace: namespace}
		return r.WithMeta(meta)
	}
	s := parseStack(t, "R1 O(a); R2 O(a)").resources(t)
	s[2], s[3] = in("zone-b", s[2]), in("zone-a", s[3])
	x := indexOf(t, s...)
	require.Equal(t, "a:R2 | lost a:R2", short(pathOf(t, x, "rule-1")), "zone-a/r2 sorts before zone-b/r1")
	require.Equal(t, "Policy has been overridden by zone-a/r2", conditionsOf(t, x, "AuthPolicy", "r1")[1].Message)
}

// §5.9: where a rule reaches, and who replaced it.
func TestReach(t *testing.T) {
	x := indexOf(t, parseStack(t, "G D(a,b) O(c)?f; R1@1 D(a); R2@2 D(a); U =(x) -b").resources(t)...)
	reach := func(name, id string) []string {
		places, _, ok := x.Reach(resource.Key{Kind: "AuthPolicy", Mesh: "default", Name: name}, id)
		require.True(t, ok)
		var list []string
		for _, p := range places {
			list = append(list, fmt.Sprintf("%s %s of %s on %s: %s %s (%s %s)", p.ID, p.Block, name, p.Path, p.State, p.By.Name, p.DecidedBy, p.Reason))
		}
		return list
	}
	require.Equal(t, []string{
		"authentication.a defaults of g on g/http/r/rule-1: overridden r2 (5.4 merged default on the gateway is overridden by the merged default of r2 on the route)",
		"authentication.a defaults of g on g/http/r/rule-2: overridden r2 (5.4 merged default on the gateway is overridden by the merged default of r2 on the route)",
	}, reach("g", "authentication.a"))
	require.Equal(t, []string{
		"authentication.b defaults of g on g/http/r/rule-1: unset u (5.4 unset by u on the rule)",
		"authentication.b defaults of g on g/http/r/rule-2: effective  (5.4 merged default on the gateway)",
	}, reach("g", "authentication.b"))
	require.Equal(t, []string{
		"authentication.c overrides of g on g/http/r/rule-1: skipped  (5.6 when: false)",
		"authentication.c overrides of g on g/http/r/rule-2: skipped  (5.6 when: false)",
	}, reach("g", "authentication.c"))
	require.Equal(t, "authentication.a defaults of r1 on g/http/r/rule-1: overridden r2 (5.5 on the route as well, the newer policy r2 wins as merged default)",
		reach("r1", "")[0])
	require.Empty(t, reach("g", "authentication.zz"))

	_, ids, _ := x.Reach(resource.Key{Kind: "AuthPolicy", Mesh: "default", Name: "g"}, "")
	require.Equal(t, []string{"authentication.a", "authentication.b", "authentication.c"}, ids)
	_, _, ok := x.Reach(resource.Key{Kind: "AuthPolicy", Mesh: "default", Name: "absent"}, "")
	require.False(t, ok)

	x = indexOf(t, parseStack(t, "G D(a) O(a)").resources(t)...)
	require.Equal(t, "authentication.a defaults of g on g/http/r/rule-1: overridden g (5.4 is overridden by the policy's own overrides)", reach("g", "")[0])
}

// §5.9: what the metrics count.
func TestStats(t *testing.T) {
	x := indexOf(t, append(parseStack(t, "G D(a,b) O(c)?f; R =(a) -b").resources(t),
		build(t, "RateLimitPolicy", "lost", `{"targetRef": {"kind": "Gateway", "name": "nowhere"}, "limits": {"a": 1}}`))...)
	stats := x.Stats()
	require.Equal(t, map[RuleCount]int{
		{"AuthPolicy", policy.RuleEffective}:  2, // a of the route, on two rules
		{"AuthPolicy", policy.RuleOverridden}: 2,
		{"AuthPolicy", policy.RuleUnset}:      2,
		{"AuthPolicy", policy.RuleSkipped}:    2,
	}, stats.Rules)
	require.Equal(t, map[PolicyCount]int{
		{"AuthPolicy", "Accepted", "True", "Accepted"}:             2,
		{"AuthPolicy", "Enforced", "False", "Overridden"}:          1,
		{"AuthPolicy", "Enforced", "True", "Enforced"}:             1,
		{"RateLimitPolicy", "Accepted", "False", "TargetNotFound"}: 1,
		{"RateLimitPolicy", "Enforced", "False", "Unknown"}:        1,
	}, stats.Policies)
	require.Equal(t, map[TargetCount]int{
		{"AuthPolicy", "Gateway", "Unaffected"}:        1, // the route overrides all of its policy
		{"AuthPolicy", "HTTPRoute", "Affected"}:        1,
		{"RateLimitPolicy", "Gateway", "Unaffected"}:   1,
		{"RateLimitPolicy", "HTTPRoute", "Unaffected"}: 1,
	}, stats.Targets)
}

// §5.9: what the alerts about conditions that fail and policies that are not accepted
// are made from.
func TestStatsOfFailures(t *testing.T) {
	x := indexOf(t, append(parseStack(t, "G O(a)?e; R =(b)").resources(t),
		build(t, "AuthPolicy", "lost", `{"targetRef": {"kind": "Gateway", "name": "nowhere"}, "rules": {"authentication": {"a": 1}}}`))...)
	policies := x.Stats().Policies
	require.Equal(t, 1, policies[PolicyCount{"AuthPolicy", "ConditionFailed", "True", "EvaluationFailed"}])
	require.Equal(t, 1, policies[PolicyCount{"AuthPolicy", "Accepted", "False", "TargetNotFound"}])
}

// §5.9: targets are counted as their conditions say (§5.8), in every mesh, and again
// after a change.
func TestStatsOfTargets(t *testing.T) {
	gateway := build(t, "Gateway", "g", `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}`)
	route := func(name, rules string) *resource.Resource {
		return build(t, "HTTPRoute", name, fmt.Sprintf(`{"parentRefs": [{"name": "g"}], "rules": %s}`, rules))
	}
	resources := []*resource.Resource{
		gateway, route("whole", `[{}]`), route("part", `[{"name": "a"}, {"name": "b"}]`), route("open", `[{}]`),
		build(t, "GRPCRoute", "away", `{"rules": [{}]}`),
	}
	none := map[TargetCount]int{
		{"AuthPolicy", "Gateway", NoPolicies}: 1, {"RateLimitPolicy", "Gateway", NoPolicies}: 1,
		{"AuthPolicy", "HTTPRoute", NoPolicies}: 3, {"RateLimitPolicy", "HTTPRoute", NoPolicies}: 3,
		{"AuthPolicy", "GRPCRoute", NoPolicies}: 1, {"RateLimitPolicy", "GRPCRoute", NoPolicies}: 1,
	}
	require.Equal(t, none, indexOf(t, resources...).Stats().Targets)

	x := indexOf(t, append(resources,
		build(t, "AuthPolicy", "whole", `{"targetRef": {"kind": "HTTPRoute", "name": "whole"}, "rules": {"authentication": {"a": 1}}}`),
		build(t, "AuthPolicy", "part", `{"targetRef": {"kind": "HTTPRoute", "name": "part", "sectionName": "a"}, "rules": {"authentication": {"a": 1}}}`),
	)...)
	want := map[TargetCount]int{
		{"AuthPolicy", "Gateway", "Unaffected"}: 1, {"RateLimitPolicy", "Gateway", NoPolicies}: 1,
		{"AuthPolicy", "HTTPRoute", "Affected"}: 1, {"AuthPolicy", "HTTPRoute", "PartiallyAffected"}: 1,
		{"AuthPolicy", "HTTPRoute", "Unaffected"}: 1, {"RateLimitPolicy", "HTTPRoute", NoPolicies}: 3,
		{"AuthPolicy", "GRPCRoute", "Unaffected"}: 1, {"RateLimitPolicy", "GRPCRoute", NoPolicies}: 1,
	}
	require.Equal(t, want, x.Stats().Targets)
	for name, reason := range map[string]string{"whole": "Affected", "part": "PartiallyAffected", "open": "Unaffected"} {
		states, ok := x.States(resource.Key{Kind: "HTTPRoute", Mesh: "default", Name: name})
		require.True(t, ok)
		require.Equal(t, reason, states[len(states)-1].Reason, name)
	}
	gone := resource.Key{Kind: "AuthPolicy", Mesh: "default", Name: "part"}
	x.Update(policy.NewSnapshot(resources...), []resource.Key{gone, {Kind: "AuthPolicy", Mesh: "default", Name: "whole"}})
	require.Equal(t, none, x.Stats().Targets)
}

// Where one rule reaches costs no look at the others on every path.
func TestReachOfOneRuleStaysCheap(t *testing.T) {
	var rules []string
	resources := []*resource.Resource{
		build(t, "Gateway", "g", `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}`),
	}
	for i := range 5000 {
		rules = append(rules, fmt.Sprintf(`"a%d": {}`, i))
		resources = append(resources, build(t, "HTTPRoute", fmt.Sprintf("r-%d", i), `{"parentRefs": [{"name": "g"}]}`))
	}
	p := build(t, "AuthPolicy", "p", `{"targetRef": {"kind": "Gateway", "name": "g"}, "rules": {"authentication": {`+strings.Join(rules, ",")+`}}}`)
	x := indexOf(t, append(resources, p)...)
	places, ids, ok := x.Reach(p.Key(), "authentication.a7")
	require.True(t, ok)
	require.Len(t, places, 5000)
	require.Len(t, ids, 5000)
	places, _, _ = x.Reach(p.Key(), "authentication.none")
	require.Empty(t, places)
}

// The metrics and the conditions of everything come without comparing each name
// that is missed with each that there is.
func TestStatesOfManyMissingTargetsStayCheap(t *testing.T) {
	var resources []*resource.Resource
	for i := range 5000 {
		resources = append(resources,
			build(t, "HTTPRoute", fmt.Sprintf("checkout-of-shop-%d", i), `{}`),
			build(t, "AuthPolicy", fmt.Sprintf("p-%d", i),
				fmt.Sprintf(`{"targetRef": {"kind": "HTTPRoute", "name": "chekout-of-shop-%d"}, "rules": {"authentication": {"a": 1}}}`, i)))
	}
	x := indexOf(t, resources...)
	require.Equal(t, 5000, x.Stats().Policies[PolicyCount{"AuthPolicy", "Accepted", "False", "TargetNotFound"}])
	for i := range 5000 {
		states, ok := x.States(resource.Key{Kind: "AuthPolicy", Mesh: "default", Name: fmt.Sprintf("p-%d", i)})
		require.True(t, ok)
		require.Equal(t, policy.Condition{Type: "Accepted", Status: "False", Reason: "TargetNotFound"}, states[0])
	}
	require.Contains(t, conditionsOf(t, x, "AuthPolicy", "p-7")[0].Message, `did you mean "checkout-of-shop-7"?`)
}

// §5.8: a rule counts as overridden only when the winning value differs.
func TestTheSameValueIsNotOverridden(t *testing.T) {
	policyOn := func(name, target, block, a, b string) *resource.Resource {
		return build(t, "AuthPolicy", name, fmt.Sprintf(`{"targetRef": %s, %q: {"strategy": "merge", "rules": {"authentication": {"a": %s, "b": %s}}}}`, target, block, a, b))
	}
	const onGateway, onRoute = `{"kind": "Gateway", "name": "g"}`, `{"kind": "HTTPRoute", "name": "r"}`
	for _, tt := range []struct{ a, b, want string }{
		{`{"x": 1}`, `{"x": 2}`, "True/Enforced"},
		{`{"x": 1}`, `{"x": 3}`, "True/PartiallyEnforced"},
		{`{"x": 0}`, `{"x": 0}`, "False/Overridden"},
	} {
		x := indexOf(t,
			build(t, "Gateway", "g", `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}`),
			build(t, "HTTPRoute", "r", `{"parentRefs": [{"name": "g"}]}`),
			policyOn("g", onGateway, "overrides", `{"x": 1}`, `{"x": 2}`), policyOn("r", onRoute, "defaults", tt.a, tt.b))
		c := conditionsOf(t, x, "AuthPolicy", "r")[1]
		require.Equal(t, tt.want, c.Status+"/"+c.Reason, "%s %s: %s", tt.a, tt.b, c.Message)
		if tt.want == "True/PartiallyEnforced" {
			require.Contains(t, c.Message, "overridden by g: authentication.b")
			require.NotContains(t, c.Message, "authentication.a")
		}
	}
}
