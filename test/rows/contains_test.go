package rows

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestContains(t *testing.T) {
	dump := map[string]any{"a": []any{map[string]any{"b": map[string]any{"c": 1.0, "d": 2.0}}}}
	require.True(t, Contains(dump, map[string]any{"b": map[string]any{"c": 1.0}}))
	require.False(t, Contains(dump, map[string]any{"b": map[string]any{"c": 2.0}}))
	require.False(t, Contains(dump, map[string]any{"c": 1.0, "e": 1.0}))
}
