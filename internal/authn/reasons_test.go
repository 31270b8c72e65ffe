package authn_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/authn"
)

type rule string

func (r rule) String() string { return string(r) }

// What a request was exempted from is recorded however many rules permit it, before them,
// and as the last decision has it.
func TestExceptionsAreRecordedFirst(t *testing.T) {
	authn.SetExceptions(t.Context(), "without a place for it")
	ctx := authn.CollectReasons(t.Context())
	for i := range 100 {
		authn.AddReason(ctx, rule(fmt.Sprint(i)))
	}
	authn.SetExceptions(ctx, "an earlier decision")
	authn.SetExceptions(ctx, "one", "two")
	require.Equal(t, []string{"one", "two", "0"}, authn.Reasons(ctx)[:3])
	authn.SetExceptions(ctx)
	require.Equal(t, "0", authn.Reasons(ctx)[0])
}
