package print

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A resource with many selectors takes one line of a table that can be read.
func TestManySelectors(t *testing.T) {
	require.Equal(t, "a=1", alternatives("a=1", false))
	require.Equal(t, "a=1 | a=2 | a=3 | a=4", alternatives("a=1 | a=2 | a=3 | a=4", false))
	require.Equal(t, "a=1 | a=2 | a=3 | 2 more", alternatives("a=1 | a=2 | a=3 | a=4 | a=5", false))
	require.Equal(t, "a=1 | a=2 | a=3 | a=4 | a=5", alternatives("a=1 | a=2 | a=3 | a=4 | a=5", true))
}
