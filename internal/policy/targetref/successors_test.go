package targetref

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/docs/semantics"
	"meridian/internal/resource"
)

// The siblings of both generations are those of §4.11.
func TestSiblings(t *testing.T) {
	rule, ok := semantics.Find("§4.11")
	require.True(t, ok)
	table := map[resource.Kind]resource.Kind{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| `(\\w+)` \\|$").FindAllStringSubmatch(rule.Text, -1) {
		table[resource.Kind(m[2])] = resource.Kind(m[1])
	}
	require.Equal(t, table, New().Successors())
	for older, newer := range table {
		for kind, class := range map[resource.Kind]resource.Class{older: resource.SourceDestination, newer: resource.TargetRef} {
			d, ok := resource.Describe(kind)
			require.True(t, ok, kind)
			require.Equal(t, class, d.Class, kind)
		}
	}
}
