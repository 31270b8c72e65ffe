package resource_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

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
	stored, err := resource.BuildStored(meta, []byte(" "+timeoutSpec))
	require.NoError(t, err)
	require.Equal(t, built.Spec(), stored.Spec())
	require.Equal(t, built.Canonical(), stored.Canonical())
	require.Equal(t, meta, stored.Meta())
	_, err = resource.BuildStored(meta, []byte(`{"unknown":1}`))
	_, _, want := resource.Build(meta, []byte(`{"unknown":1}`))
	require.Equal(t, want, err)
	mesh := resource.Stored(resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "default"}}, []byte(`{}`))
	first := mesh.Spec()
	require.Same(t, first, mesh.Spec(), "what is no policy is decoded once")
}

// Specs that are decoded one after the other, and at once, have nothing in common: the
// memory of the trees that they are decoded from is used again.
func TestSpecsDoNotShareTheirTrees(t *testing.T) {
	spec := func(i int) string {
		return strings.ReplaceAll(timeoutSpec, `"b"`, fmt.Sprintf(`"b-%d"`, i))
	}
	build := func(t require.TestingT, i int) *resource.Resource {
		r, _, err := resource.Build(resource.Meta{Key: timeoutKey("t")}, []byte(spec(i)))
		require.NoError(t, err)
		return r
	}
	var group errgroup.Group
	for part := range 4 {
		group.Go(func() error {
			var all []*resource.Resource
			for i := range 100 {
				all = append(all, build(t, part*100+i))
			}
			for i, r := range all {
				to := r.Spec().(resource.ConnectionSpec).DestinationSelectors()
				if want := fmt.Sprintf("b-%d", part*100+i); to[0][resource.ServiceTag] != want || string(r.Canonical()) != spec(part*100+i) {
					return fmt.Errorf("%s has become %v, %s", want, to, r.Canonical())
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
}

// To decode and validate a policy allocates little beside what stays: a server that starts
// with a million of them does so for each.
func TestDecodingAllocatesLittle(t *testing.T) {
	content := []byte(timeoutSpec)
	allocated := testing.AllocsPerRun(100, func() {
		if _, _, err := resource.Build(resource.Meta{Key: timeoutKey("t")}, content); err != nil {
			panic(err)
		}
	})
	require.Less(t, allocated, 40.0)
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
