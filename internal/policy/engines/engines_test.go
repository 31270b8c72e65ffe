package engines_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy/engines"
	"meridian/internal/resource"
)

// Every kind of policy that attaches to dataplanes has exactly one engine.
func TestEveryKindHasOneEngine(t *testing.T) {
	answered := map[resource.Kind]int{}
	for _, e := range engines.All() {
		for _, kind := range e.Kinds() {
			answered[kind]++
		}
	}
	for _, d := range resource.Kinds() {
		want := 0
		if d.Class == resource.SourceDestination || d.Class == resource.TargetRef {
			want = 1
		}
		require.Equal(t, want, answered[d.Kind], "%s", d.Kind)
	}
}
