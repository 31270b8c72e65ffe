package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// Sums and buckets are spoken between releases: these values never change.
func TestDigestIsFixed(t *testing.T) {
	r := resource.New(resource.Meta{
		Key: retryKey("default", "a"), Version: 3, Labels: map[string]string{"b": "2", "a": "1"},
	}, nil, []byte(`{"conf":{}}`))
	require.Equal(t, "8e305a848252e65b015791d464922391", store.Sum(r).String())
	require.Equal(t, 222, store.BucketOf(r.Key()))
}

func TestSumCoversEverythingOnce(t *testing.T) {
	meta := resource.Meta{Key: resource.Key{Kind: "K", Mesh: "m", Name: "n"}, Version: 1}
	seen := map[store.Digest]string{store.Sum(resource.New(meta, nil, []byte("x"))): "the original"}
	for name, change := range map[string]func(*resource.Meta) string{
		"kind":          func(m *resource.Meta) string { m.Kind = "L"; return "x" },
		"mesh":          func(m *resource.Meta) string { m.Mesh = "mn"; m.Name = ""; return "x" },
		"version":       func(m *resource.Meta) string { m.Version = 2; return "x" },
		"label":         func(m *resource.Meta) string { m.Labels = map[string]string{"a": "bc"}; return "x" },
		"label's split": func(m *resource.Meta) string { m.Labels = map[string]string{"ab": "c"}; return "x" },
		"content":       func(*resource.Meta) string { return "y" },
	} {
		changed := meta
		content := change(&changed)
		sum := store.Sum(resource.New(changed, nil, []byte(content)))
		require.NotContains(t, seen, sum, "%s and %s", name, seen[sum])
		seen[sum] = name
	}
}

func TestDigestArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gen := rapid.Custom(func(t *rapid.T) store.Digest {
			return store.Digest{Hi: rapid.Uint64().Draw(t, "hi"), Lo: rapid.Uint64().Draw(t, "lo")}
		})
		a, b := gen.Draw(t, "a"), gen.Draw(t, "b")
		require.Equal(t, a, a.Add(b).Sub(b))
		require.Equal(t, a.Add(b), b.Add(a))
		back, err := store.DigestFromBytes(a.Bytes())
		require.NoError(t, err)
		require.Equal(t, a, back)
		require.Len(t, a.String(), 32)
	})
	_, err := store.DigestFromBytes(make([]byte, 15))
	require.Error(t, err)
}
