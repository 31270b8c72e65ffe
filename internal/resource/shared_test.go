package resource

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// where tells two equal maps apart.
func where(tags Tags) uintptr { return reflect.ValueOf(tags).Pointer() }

func TestEqualTagSetsAreOneInMemory(t *testing.T) {
	build := func(name, spec string) *Dataplane {
		r, _, err := Build(Meta{Key: Key{Kind: "Dataplane", Mesh: "default", Name: name}}, []byte(spec))
		require.NoError(t, err)
		return r.Spec().(*Dataplane)
	}
	const spec = `{"networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {%s}}],
		"outbound": [{"port": 81, "tags": {"kuma.io/service": "shared-backend"}}]}}`
	one := build("web-1", fmt.Sprintf(spec, `"kuma.io/service": "shared-web", "version": "v1"`))
	two := build("web-2", fmt.Sprintf(spec, `"version": "v1", "kuma.io/service": "shared-web"`))
	other := build("web-3", fmt.Sprintf(spec, `"version": "v2", "kuma.io/service": "shared-web"`))
	require.Equal(t, Tags{"kuma.io/service": "shared-web", "version": "v1"}, one.Inbounds()[0].Tags)
	require.Equal(t, where(one.Inbounds()[0].Tags), where(two.Inbounds()[0].Tags), "in whatever order they were written")
	require.Equal(t, where(one.Outbounds()[0].Tags), where(other.Outbounds()[0].Tags))
	require.Equal(t, Tags{"kuma.io/service": "shared-web", "version": "v2"}, other.Inbounds()[0].Tags)
}

func TestEqualLabelsAreOneInMemory(t *testing.T) {
	labels := func() map[string]string { return SharedLabels(map[string]string{"registered-by": "shared-proxy"}) }
	one, two := labels(), labels()
	require.Equal(t, where(one), where(two))
	require.Equal(t, map[string]string{"registered-by": "shared-proxy"}, two)
}

func TestTagSharing(t *testing.T) {
	numbered := func(i int) Tags { return Tags{"kuma.io/service": fmt.Sprint(i)} }

	t.Run("forgets what was not met lately", func(t *testing.T) {
		var s tagSharing
		kept, lost := s.of(numbered(-1)), s.of(numbered(-2))
		for i := range 3 * sharedSets {
			require.Equal(t, numbered(i), s.of(numbered(i)))
			require.Equal(t, where(kept), where(s.of(numbered(-1))), "met all the time")
		}
		require.LessOrEqual(t, len(s.recent)+len(s.older), 2*sharedSets)
		require.NotEqual(t, where(lost), where(s.of(numbered(-2))))
	})
	t.Run("keeps no large sets", func(t *testing.T) {
		var s tagSharing
		large := Tags{"kuma.io/service": strings.Repeat("x", sharedBytes)}
		require.Equal(t, where(large), where(s.of(large)))
		require.Empty(t, s.recent)
	})
	t.Run("never takes one set for another", func(t *testing.T) {
		var s tagSharing
		s.of(numbered(1))
		for sum := range s.recent {
			s.recent[sum] = numbered(2) // as if their hashes were the same
		}
		require.Equal(t, numbered(1), s.of(numbered(1)))
	})
	t.Run("keeps an empty set one", func(t *testing.T) {
		var s tagSharing
		s.of(Tags{})
		require.NotNil(t, s.of(Tags{}), "[] and {} are values, not absences (§1.2)")
	})
}
