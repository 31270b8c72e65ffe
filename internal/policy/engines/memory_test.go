package engines_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
)

// Policies that concern no dataplane take a place in the matcher's index and no more: a
// zone has all of a million, and few of them reach its dataplanes. They are found all the
// same once there is a dataplane.
func TestPoliciesWithoutDataplanesTakeLittleMemory(t *testing.T) {
	const n = 10_000
	resources := []*resource.Resource{resource.Stored(resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "default"}}, []byte(`{}`))}
	for i := range n / 2 {
		service := fmt.Sprintf("service-%d", i)
		put := func(kind resource.Kind, spec string) {
			meta := resource.Meta{Key: resource.Key{Kind: kind, Mesh: "default", Name: service}, Version: 1, Revision: 1}
			resources = append(resources, resource.Stored(meta, fmt.Appendf(nil, spec, service)))
		}
		put(resource.KindTimeout, `{"conf":{"connectTimeout":"5s","http":{"requestTimeout":"15s"}},"destinations":[{"match":{"kuma.io/service":%q}}],"sources":[{"match":{"kuma.io/service":"*"}}]}`)
		put(resource.KindMeshUpstreamTimeout, `{"targetRef":{"kind":"Mesh"},"to":[{"default":{"connectTimeout":"5s"},"targetRef":{"kind":"MeshService","name":%q}}]}`)
	}
	view := policy.NewSnapshot(resources...)
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for _, r := range resources { // fills what is remembered of specs
		r.Spec()
	}
	before := heap()
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	m := engines.NewMatcher(compiler)
	m.Reset(view)
	require.Less(t, float64(heap()-before)/n, 600.0, "bytes for each policy, where a compiled one takes more than a thousand")

	meta := resource.Meta{Key: policy.DataplaneKey("default", "d")}
	dataplane := resource.Stored(meta, []byte(`{"networking":{"address":"10.0.0.1","inbound":[{"port":1,"tags":{"kuma.io/service":"web"}}],"outbound":[{"port":2,"tags":{"kuma.io/service":"service-7"}}]}}`))
	m.Update(policy.NewSnapshot(append(resources, dataplane)...), []resource.Key{meta.Key})
	rules, err := m.Effective(meta.Key)
	require.NoError(t, err)
	require.Len(t, rules, 1)
	require.Equal(t, resource.KindMeshUpstreamTimeout, rules[0].Kind)
	runtime.KeepAlive(m)
}
