package resource_test

import (
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

const timeoutSpec = `{"conf":{"connectTimeout":"5s"},"destinations":[{"match":{"kuma.io/service":"b"}}],"sources":[{"match":{"kuma.io/service":"a"}}]}`

func timeoutKey(name string) resource.Key {
	return resource.Key{Kind: resource.KindTimeout, Mesh: "default", Name: name}
}

// What is stored has the spec that was written, however it came to be stored.
func TestStoredResourcesHaveTheirSpecs(t *testing.T) {
	meta := resource.Meta{Key: timeoutKey("t"), Version: 3}
	built, _, err := resource.Build(meta, []byte(timeoutSpec))
	require.NoError(t, err)
	for _, r := range []*resource.Resource{
		built.Store(meta), resource.Stored(meta, built.Canonical()), resource.Stored(meta, built.Canonical()).WithMeta(meta),
		resource.Stored(meta, built.Canonical()).Store(meta),
	} {
		require.Equal(t, built.Spec(), r.Spec())
		require.Equal(t, built.Canonical(), r.Canonical())
		require.Equal(t, meta, r.Meta())
		require.Equal(t, meta.Key, *r.KeyRef())
	}
	mesh := resource.Stored(resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "default"}}, []byte(`{}`))
	first := mesh.Spec()
	require.Same(t, first, mesh.Spec(), "what is no policy is decoded once")
}

// A spec that this release cannot decode is Unreadable, also where it was decoded late.
func TestStoredSpecsThatCannotBeDecoded(t *testing.T) {
	for _, key := range []resource.Key{timeoutKey("t"), {Kind: resource.KindMesh, Name: "m"}, {Kind: "Unknown", Name: "u"}} {
		r := resource.Stored(resource.Meta{Key: key}, []byte(`{"unknown":1}`))
		for _, r := range []*resource.Resource{r, r.Store(resource.Meta{Key: key})} {
			require.IsType(t, &resource.Unreadable{}, r.Spec(), "%s", key)
			require.Equal(t, `{"unknown":1}`, string(r.Canonical()))
		}
	}
}

// A large spec takes long to decode: it is kept.
func TestLargeSpecsAreKept(t *testing.T) {
	value := strings.Repeat("x", 200)
	var selectors []string
	for range 100 {
		selectors = append(selectors, `{"match":{"kuma.io/service":"`+value+`"}}`)
	}
	large := `{"destinations":[{"match":{"kuma.io/service":"b"}}],"sources":[` + strings.Join(selectors, ",") + `]}`
	r := resource.Stored(resource.Meta{Key: timeoutKey("t")}, []byte(large))
	others(t)
	decoded := r.Spec()
	require.Same(t, decoded, r.Spec())
	first := r.Spec()
	others(t)
	require.Same(t, first, r.Spec())
}

// others has so many specs decoded that none is remembered from before.
func others(t *testing.T) (all []*resource.Resource) {
	t.Helper()
	for range 5_000 {
		r := resource.Stored(resource.Meta{Key: timeoutKey("o")}, []byte(timeoutSpec))
		require.IsType(t, &resource.Timeout{}, r.Spec())
		all = append(all, r)
	}
	return all
}

// A stored policy takes no more memory for having been looked into.
func TestSpecsOfStoredPoliciesAreNotKept(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	others(t) // fills what is remembered
	before := heap()
	all := others(t)
	held := float64(heap()-before) / float64(len(all))
	require.Less(t, held, 350.0, "bytes for each, where a decoded spec takes more than 800")
	runtime.KeepAlive(all)
}

func TestStoredSpecsAreDecodedConcurrently(t *testing.T) {
	r := resource.Stored(resource.Meta{Key: timeoutKey("t")}, []byte(timeoutSpec))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if _, ok := r.Spec().(*resource.Timeout); !ok {
					panic("not a Timeout")
				}
			}
		})
	}
	wg.Wait()
}

func TestSharedKeyIsEqual(t *testing.T) {
	for _, key := range []resource.Key{timeoutKey("t"), {Kind: "Unknown", Mesh: "m", Name: "u"}, {Kind: resource.KindMesh, Name: "m"}, {}} {
		require.Equal(t, key, resource.SharedKey(key))
	}
}
