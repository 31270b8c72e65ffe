package global

import (
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/inherit"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
	zonesync "meridian/internal/sync"
	"meridian/internal/turns"
)

// gatewayStore holds a gateway, a route and a policy on each.
func gatewayStore(t *testing.T) *store.Store {
	t.Helper()
	build := func(kind resource.Kind, mesh resource.MeshName, name, spec string) store.Op {
		return store.Put(resourcetest.Build(t, kind, mesh, name, spec))
	}
	s := store.New(store.DefaultOptions())
	require.NoError(t, s.Apply(7, store.Txn{Ops: []store.Op{
		build("Mesh", "", "default", `{}`),
		build("Gateway", "default", "g", `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}`),
		build("HTTPRoute", "default", "r1", `{"parentRefs": [{"name": "g"}], "rules": [{}]}`),
		build("AuthPolicy", "default", "gw", `{"targetRef": {"kind": "Gateway", "name": "g"},
			"defaults": {"strategy": "merge", "rules": {"authentication": {"a": {}, "b": {}}}}}`),
		build("AuthPolicy", "default", "own", `{"targetRef": {"kind": "HTTPRoute", "name": "r1"},
			"rules": {"authentication": {"a": 1}}}`),
	}}).Err)
	return s
}

// service answers about a store with one zone connected that answers nothing.
func service(t *testing.T, s *store.Store, zones ...zonesync.ZoneStatus) *inspectService {
	t.Helper()
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	service := zonesThat(notFound, "east")
	service.matching, service.turns = livematch.New(policy.NewMatcher().Following(inherit.New(compiler)), s), turns.NewServer()
	service.zones = func(context.Context) fleetStatus {
		c := connectedTo("a", "east")
		c.zones = zones
		return c
	}
	return service
}

func aboutRoute(name string) *meridianv1.InspectRequest {
	return &meridianv1.InspectRequest{Mesh: "default", Question: &meridianv1.InspectRequest_Route{
		Route: &meridianv1.RouteQuestion{Name: name},
	}}
}

func aboutGateway(name string) *meridianv1.InspectRequest {
	return &meridianv1.InspectRequest{Mesh: "default", Question: &meridianv1.InspectRequest_Gateway{
		Gateway: &meridianv1.GatewayQuestion{Name: name},
	}}
}

func aboutPolicy(kind, name, rule string) *meridianv1.InspectRequest {
	return &meridianv1.InspectRequest{Mesh: "default", Question: &meridianv1.InspectRequest_Policy{
		Policy: &meridianv1.PolicyQuestion{Kind: kind, Name: name, Rule: rule},
	}}
}

// §5.8: the global computes the state of inherited policies itself,
// and follows its own store.
func TestGlobalAnswersForInheritedPolicies(t *testing.T) {
	s := gatewayStore(t)
	inspect := service(t, s)
	response, err := inspect.Inspect(t.Context(), aboutRoute("r1"))
	require.NoError(t, err)
	var route answer.RouteAnswer
	require.NoError(t, answer.Unmarshal(response.GetJson(), &route))
	require.Equal(t, resource.Revision(7), route.AsOf)
	require.Equal(t, map[string]string{"authentication.a": "own", "authentication.b": "gw"}, route.Paths[0].Origins)
	require.Equal(t, map[string]string{"authentication.a": "own"}, route.Paths[0].Overridden)

	response, err = inspect.Inspect(t.Context(), aboutGateway("g"))
	require.NoError(t, err)
	var gateway answer.GatewayAnswer
	require.NoError(t, answer.Unmarshal(response.GetJson(), &gateway))
	require.Equal(t, resource.Revision(7), gateway.AsOf)
	require.Equal(t, "r1", gateway.Paths[0].Route)
	require.Equal(t, route.Paths[0].Origins, gateway.Paths[0].Origins)
	require.Equal(t, map[string][]string{"authentication.a": {"gw"}}, gateway.Paths[0].OverriddenOf)

	key := resource.Key{Kind: "AuthPolicy", Mesh: "default", Name: "own"}
	require.NoError(t, s.Apply(9, store.Txn{Ops: []store.Op{{Key: key}}}).Err)
	response, err = inspect.Inspect(t.Context(), aboutRoute("r1"))
	require.NoError(t, err)
	require.NoError(t, answer.Unmarshal(response.GetJson(), &route))
	require.Equal(t, uint64(9), response.GetAsOf())
	require.Equal(t, map[string]string{"authentication.a": "gw", "authentication.b": "gw"}, route.Paths[0].Origins)

	_, err = inspect.Inspect(t.Context(), aboutRoute("r2"))
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, `route "r2" in mesh "default": not found; did you mean "r1"?`)
	_, err = inspect.Inspect(t.Context(), aboutGateway("h"))
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, `gateway "h" in mesh "default": not found`)
}

func TestGlobalAnswersForARule(t *testing.T) {
	inspect := service(t, gatewayStore(t))
	response, err := inspect.Inspect(t.Context(), aboutPolicy("auth-policies", "gw", "authentication.a"))
	require.NoError(t, err)
	var rules answer.RuleAnswer
	require.NoError(t, answer.Unmarshal(response.GetJson(), &rules))
	require.Len(t, rules.Rules, 1)
	require.Equal(t, policy.RuleOverridden, rules.Rules[0].State)
	require.Equal(t, "own", rules.Rules[0].By)

	_, err = inspect.Inspect(t.Context(), aboutPolicy("AuthPolicy", "gw", "authentication.c"))
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
	_, err = inspect.Inspect(t.Context(), aboutPolicy("Gateway", "g", "authentication.c"))
	require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err))
}

// §5.8, §7.4: a zone that cannot use a policy is named beside what the
// global says.
func TestGlobalShowsQuarantines(t *testing.T) {
	key := resource.Key{Kind: "AuthPolicy", Mesh: "default", Name: "gw"}
	inspect := service(t, gatewayStore(t), zonesync.ZoneStatus{
		Name: "east", Quarantined: []zonesync.Quarantined{{Key: key, Version: 3, Message: "unknown field"}},
	})
	response, err := inspect.Inspect(t.Context(), aboutPolicy("AuthPolicy", "gw", ""))
	require.NoError(t, err)
	var about answer.PolicyAnswer
	require.NoError(t, answer.Unmarshal(response.GetJson(), &about))
	require.Equal(t, []policy.Condition{
		{Type: "Accepted", Status: "True", Reason: "Accepted", Message: "Policy has been accepted"},
		{
			Type: "Enforced", Status: "True", Reason: "PartiallyEnforced",
			Message: "Policy has been successfuly enforced. The following rules have been overridden by own: authentication.a",
		},
		{Type: "Quarantined", Status: "True", Reason: "ZoneCannotUse", Message: `Zone "east" cannot use version 3: unknown field`},
	}, about.Conditions)
	require.Empty(t, about.Dataplanes)
}

// §5.9: the metrics.
func TestInheritedPolicyMetrics(t *testing.T) {
	inspect := service(t, gatewayStore(t))
	registry := prometheus.NewRegistry()
	registry.MustRegister(inspect.matching.Collector())
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 4)
	n, err := testutil.GatherAndCount(registry, "meridian_policies")
	require.NoError(t, err)
	require.Equal(t, 3, n, "Accepted, Enforced and PartiallyEnforced")
	n, err = testutil.GatherAndCount(registry, "meridian_policy_rules")
	require.NoError(t, err)
	require.Equal(t, 2, n, "effective and overridden")
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP meridian_policy_targets Gateways and routes, once for every kind of inherited policy, by how policies of the kind affect them: Affected, PartiallyAffected, Unaffected, or NoPolicies where the mesh has none.
# TYPE meridian_policy_targets gauge
meridian_policy_targets{kind="AuthPolicy",reason="Affected",target="Gateway"} 1
meridian_policy_targets{kind="AuthPolicy",reason="Affected",target="HTTPRoute"} 1
meridian_policy_targets{kind="RateLimitPolicy",reason="NoPolicies",target="Gateway"} 1
meridian_policy_targets{kind="RateLimitPolicy",reason="NoPolicies",target="HTTPRoute"} 1
`), "meridian_policy_targets"))
}

// §5.8: the conditions of everything of a kind, with the zones that
// cannot use a policy, for `get -o wide`.
func TestGlobalSummarisesConditions(t *testing.T) {
	inspect := service(t, gatewayStore(t), zonesync.ZoneStatus{
		Name: "east", Quarantined: []zonesync.Quarantined{{Key: resource.Key{Kind: "AuthPolicy", Mesh: "default", Name: "own"}}},
	})
	about := func(kind, mesh string) (*answer.ConditionsAnswer, error) {
		response, err := inspect.Inspect(t.Context(), &meridianv1.InspectRequest{Mesh: mesh, Question: &meridianv1.InspectRequest_Conditions{
			Conditions: &meridianv1.ConditionsQuestion{Kind: kind},
		}})
		if err != nil {
			return nil, err
		}
		a := new(answer.ConditionsAnswer)
		return a, answer.Unmarshal(response.GetJson(), a)
	}
	accepted := answer.ConditionSummary{Type: "Accepted", Status: "True", Reason: "Accepted"}
	for _, mesh := range []string{"default", ""} {
		a, err := about("auth-policies", mesh)
		require.NoError(t, err)
		require.Equal(t, []answer.ConditionsItem{
			{Mesh: "default", Name: "gw", Conditions: []answer.ConditionSummary{accepted, {Type: "Enforced", Status: "True", Reason: "PartiallyEnforced"}}},
			{Mesh: "default", Name: "own", Conditions: []answer.ConditionSummary{
				accepted, {Type: "Enforced", Status: "True", Reason: "Enforced"}, {Type: "Quarantined", Status: "True", Reason: "ZoneCannotUse"},
			}},
		}, a.Items)
		require.Equal(t, resource.Revision(7), a.AsOf)
	}
	a, err := about("HTTPRoute", "default")
	require.NoError(t, err)
	var types []string
	for _, c := range a.Items[0].Conditions {
		types = append(types, c.Type)
	}
	require.Equal(t, []string{"Accepted", "ResolvedRefs", "kuadrant.io/AuthPolicyAffected"}, types)
	a, err = about("AuthPolicy", "other")
	require.NoError(t, err)
	require.Empty(t, a.Items)
	for kind, code := range map[string]rpcerr.Code{"TrafficPermission": rpcerr.NotFound, "Zone": rpcerr.Invalid, "nothing": rpcerr.Invalid} {
		_, err = about(kind, "default")
		require.Equal(t, code, rpcerr.CodeOf(err), "%s %v", kind, err) // the zone is asked, which knows its proxies
	}
}
