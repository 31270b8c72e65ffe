package policy_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
)

// counting advises once on each resource, and calls at after so many.
type counting struct {
	advised, after int
	at             func()
}

func (c *counting) Survey(policy.View) policy.Adviser { return c }

func (c *counting) Advise(_ policy.View, _ *resource.Resource) []resource.Problem {
	if c.advised++; c.advised == c.after {
		c.at()
	}
	return []resource.Problem{{Severity: resource.Info, Message: "said"}}
}

// Advice ends with its caller: nothing more is looked at, and a part of it is not
// taken for all.
func TestLintEndsWithItsCaller(t *testing.T) {
	batch := make([]*resource.Resource, 100)
	for i := range batch {
		batch[i] = resourcetest.Build(t, "Mesh", "", fmt.Sprintf("m%d", i), "{}")
	}
	for _, after := range []int{1, 7, len(batch) - 1} {
		ctx, leave := context.WithCancel(t.Context())
		s := &counting{after: after, at: leave}
		advice, err := policy.Lint(ctx, policy.NewSnapshot(batch...), batch, s)
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, advice)
		require.Equal(t, after, s.advised)
	}
	s := &counting{}
	advice, err := policy.Lint(t.Context(), policy.NewSnapshot(batch...), batch, s)
	require.NoError(t, err)
	require.Len(t, advice, len(batch))
	require.Equal(t, len(batch), s.advised)
}
