package specificity_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

const anyToAny = `"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"*"}}]`

// §3.1: the twelve kinds.
func TestKinds(t *testing.T) {
	require.ElementsMatch(t, []resource.Kind{
		"TrafficPermission", "FaultInjection", "RateLimit",
		"TrafficRoute", "TrafficLog", "HealthCheck", "CircuitBreaker", "Retry", "Timeout",
		"TrafficTrace", "ProxyTemplate", "VirtualOutbound",
	}, specificityEngine.Kinds())
}

// §1.4: a backend that is not there is accepted with a warning.
func TestAdviceAboutBackends(t *testing.T) {
	w := newWorld()
	w.put(t, "Mesh", "", "default", `{"logging":{"backends":[{"name":"logstash","type":"tcp","conf":{"address":"127.0.0.1:5000"}}]}}`, time.Time{})
	known := w.put(t, "TrafficLog", "default", "known", `{`+anyToAny+`,"conf":{"backend":"logstash"}}`, time.Time{})
	unknown := w.put(t, "TrafficLog", "default", "unknown", `{`+anyToAny+`,"conf":{"backend":"splunk"}}`, time.Time{})
	none := w.put(t, "TrafficLog", "default", "none", `{`+anyToAny+`}`, time.Time{})
	trace := w.put(t, "TrafficTrace", "default", "trace", `{"selectors":[{"match":{"kuma.io/service":"*"}}],"conf":{"backend":"zipkin"}}`, time.Time{})
	orphan := w.put(t, "TrafficLog", "elsewhere", "orphan", `{`+anyToAny+`,"conf":{"backend":"splunk"}}`, time.Time{})

	var written []*resource.Resource
	for _, key := range []resource.Key{known, unknown, none, trace, orphan} {
		written = append(written, w.Resources[key])
	}
	advice := slices.DeleteFunc(policytest.Lint(t, w.View(), written, specificityEngine), func(a policy.Advice) bool { return a.Severity != resource.Warning })
	require.Len(t, advice, 2)
	require.Equal(t, unknown, advice[0].Key)
	require.Equal(t, resource.Warning, advice[0].Severity)
	require.Equal(t, `conf.backend: mesh default has no logging backend "splunk"; the policy configures nothing until it has`, advice[0].String())
	require.Equal(t, trace, advice[1].Key)
	require.Contains(t, advice[1].Message, `no tracing backend "zipkin"`)
}

// §1.4: a mesh that changes its rules changes its answers, and only
// its own.
func TestMeshChangesItsRules(t *testing.T) {
	w := newWorld()
	for _, mesh := range meshes {
		w.put(t, "Mesh", "", mesh, `{}`, time.Time{})
		w.put(t, "Dataplane", mesh, "d1", `{"networking":{"address":"10.0.0.1",
			"inbound":[{"port":1,"tags":{"kuma.io/service":"a"}}],"outbound":[{"port":2,"tags":{"kuma.io/service":"b"}}]}}`, time.Time{})
		w.put(t, "Timeout", mesh, "first", `{`+anyToAny+`,"conf":{"connectTimeout":"1s"}}`, time.Unix(1, 0))
		w.put(t, "Timeout", mesh, "second", `{`+anyToAny+`,"conf":{"connectTimeout":"2s"}}`, time.Unix(2, 0))
	}
	m := matcher(w.View())
	winner := func(mesh string) string {
		rules, err := m.Effective(policy.DataplaneKey(resource.MeshName(mesh), "d1"))
		require.NoError(t, err)
		require.Len(t, rules, 1)
		return rules[0].Policies()[0].Name
	}
	require.Equal(t, "second", winner("m1"))
	changed := w.put(t, "Mesh", "", "m1", `{"matching":{"sourceDestination":"Kuma2020"}}`, time.Time{})
	touched := m.Update(w.View(), []resource.Key{changed})
	require.Len(t, touched, 1)
	require.Equal(t, policy.DataplaneKey("m1", "d1"), touched[0].Dataplane)
	require.Equal(t, "first", winner("m1"))
	require.Equal(t, "second", winner("m2"))

	// What does not matter to matching touches nothing.
	changed = w.put(t, "Mesh", "", "m2", `{"networking":{"outbound":{"passthrough":false}}}`, time.Time{})
	before := m.Computed()
	require.Empty(t, m.Update(w.View(), []resource.Key{changed}))
	require.Equal(t, before, m.Computed())
}

// §1.5: offline, dataplanes are put in the zone that is asked about.
func TestOfflineZone(t *testing.T) {
	w := newWorld()
	w.put(t, "Dataplane", "default", "d1", `{"networking":{"address":"10.0.0.1","inbound":[{"port":1,"tags":{"kuma.io/service":"a"}}]}}`, time.Time{})
	elsewhere := w.put(t, "Dataplane", "default", "d2",
		`{"networking":{"address":"10.0.0.1","gateway":{"tags":{"kuma.io/service":"a","kuma.io/zone":"west"}}}}`, time.Time{})
	var resources []*resource.Resource
	for _, r := range w.Resources {
		resources = append(resources, r)
	}
	view, err := policy.Offline(resources, "east", false)
	require.NoError(t, err)
	require.True(t, policy.MeshOf(view, "default").Exists, "an undefined mesh is an empty one")
	zones := map[string]resource.ZoneName{}
	require.NoError(t, matcher(view).Read(func(r *policy.Reading) error {
		for key, shape := range r.Dataplanes("") {
			zones[key.Name] = shape.Zone()
		}
		return nil
	}))
	require.Equal(t, map[string]resource.ZoneName{"d1": "east", "d2": "west"}, zones)

	_, err = policy.Offline(resources, "east", true)
	require.ErrorContains(t, err, `says "west", but this is zone "east"`)
	require.ErrorContains(t, err, elsewhere.Name)
}

// §1.1, §3.4: a policy without a modification time counts by its creation.
func TestCreationTimeBreaksTies(t *testing.T) {
	w := newWorld()
	w.put(t, "Mesh", "", "m1", `{}`, time.Time{})
	w.put(t, "Dataplane", "m1", "d1", `{"networking":{"address":"10.0.0.1",
		"inbound":[{"port":1,"tags":{"kuma.io/service":"a"}}],"outbound":[{"port":2,"tags":{"kuma.io/service":"b"}}]}}`, time.Time{})
	for name, times := range map[string]struct{ created, modified time.Time }{
		"a-without-times":  {},
		"b-modified-early": {created: time.Unix(1, 0), modified: time.Unix(2, 0)},
		"c-created-last":   {created: time.Unix(3, 0)},
	} {
		key := w.put(t, "Timeout", "m1", name, `{`+anyToAny+`}`, times.modified)
		meta := w.Resources[key].Meta()
		meta.CreationTime = times.created
		w.Resources[key] = w.Resources[key].WithMeta(meta)
	}
	rules, err := matcher(w.View()).Effective(policy.DataplaneKey("m1", "d1"))
	require.NoError(t, err)
	require.Len(t, rules, 1)
	require.Equal(t, "c-created-last", rules[0].Policies()[0].Name)
}
