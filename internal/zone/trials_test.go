package zone

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/generate/envoy"
	"meridian/internal/xds/world"
)

// Of what a proxy has counted, what is of permissions that are tried now is shown, with the
// policy on whose word.
func TestTrialsOfNow(t *testing.T) {
	w := policytest.NewWorld()
	put := func(kind resource.Kind, mesh resource.MeshName, name, spec string, labels map[string]string) {
		w.Put(t, resource.Meta{Key: resource.Key{Kind: kind, Mesh: mesh, Name: name}, Labels: labels}, spec)
	}
	put(resource.KindMesh, "", "m", `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`, nil)
	put(resource.KindDataplane, "m", "backend-1", `{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"servicePort":81,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east"}}]}}`, nil)
	try := func(caller string) {
		put(resource.KindMeshTrafficPermission, "m", "p", `{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"MeshService","name":"`+caller+`"},"default":{"action":"ALLOW"}}]}`,
			map[string]string{resource.EnforcementLabel: resource.EnforcementShadow})
	}
	try("web")
	state := world.New("east")
	m := policy.NewMatcher(engines.All()...).Following(state).Following(engines.Trial())
	m.Reset(w.View())
	key := policy.DataplaneKey("m", "backend-1")
	r, _ := state.Dataplane(key)
	tried, err := generate.TriedOn(m, key)
	require.NoError(t, err)
	now, err := envoy.Trials(state.Mesh("m"), r.Spec().(*resource.Dataplane), nil, tried)
	require.NoError(t, err)
	require.Len(t, now, 1)
	require.Equal(t, "backend", now[0].Service)

	told := &meridianv1.DataplaneTrial{Counts: []*meridianv1.DataplaneTrialCount{
		{Port: 80, Stamp: now[0].Stamp, Caller: "web", By: "MeshTrafficPermission p", Calls: 7, First: 1000, Last: 2000},
		{Port: 80, Stamp: now[0].Stamp, Caller: "api", Denied: true, By: "TrafficPermission a, b", Calls: 2},
		{Port: 80, Stamp: now[0].Stamp, Caller: "db", Denied: true, By: "mtls-default", Calls: 3},
		{Port: 80, Stamp: "of-before", Caller: "web", By: "MeshTrafficPermission p", Calls: 9},
		{Port: 81, Stamp: now[0].Stamp, Caller: "web", By: "MeshTrafficPermission p", Calls: 9},
		{Others: true, Calls: 5},
	}}
	items, err := trialsOf(m, state, key, told)
	require.NoError(t, err)
	a := &answer.TrialsAnswer{Items: items}
	a.Sort()
	require.Len(t, a.Items, 4)
	require.Equal(t, answer.TrialItem{
		Mesh: "m", Dataplane: "backend-1", Port: 80, Service: "backend", Caller: "web", Would: answer.WouldAllow, Kind: resource.KindMeshTrafficPermission, Policies: []string{"p"},
		Calls: 7, First: "1970-01-01T00:00:01Z", Last: "1970-01-01T00:00:02Z",
	}, a.Items[0])
	require.Equal(t, answer.WouldDiffer, a.Items[1].Would)
	require.Equal(t, "mtls-default", a.Items[2].By)
	require.Equal(t, []string{"a", "b"}, a.Items[3].Policies)

	// Who may not read a policy is not told of it.
	a.Restrict(func(key resource.Key) (bool, bool) { return key.Name != "b" && key.Name != "p", true })
	require.Len(t, a.Items, 2)
	a.Restrict(func(key resource.Key) (bool, bool) { return key.Kind != resource.KindDataplane, true })
	require.Empty(t, a.Items)

	// Once something else is tried, nothing of it is.
	try("other")
	m.Reset(w.View())
	told.Counts = told.Counts[:5]
	items, err = trialsOf(m, state, key, told)
	require.NoError(t, err)
	require.Empty(t, items)
	delete(w.Resources, resource.Key{Kind: resource.KindMeshTrafficPermission, Mesh: "m", Name: "p"})
	m.Reset(w.View())
	items, err = trialsOf(m, state, key, told)
	require.NoError(t, err)
	require.Empty(t, items)

	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(trialMetrics{func(resource.MeshName) map[resource.Key]*meridianv1.DataplaneTrial {
		return map[resource.Key]*meridianv1.DataplaneTrial{key: told}
	}})
	n, err := testutil.GatherAndCount(registry)
	require.NoError(t, err)
	require.Equal(t, 2, n, "denied and allowed")
}
