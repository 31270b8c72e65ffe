package authn

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
)

// The same caller, id and request make the same attempt; anything else does not.
func TestAttempts(t *testing.T) {
	as := func(p Principal) context.Context { return WithPrincipal(t.Context(), p) }
	mesh := func(name string) *meridianv1.ApplyRequest {
		return &meridianv1.ApplyRequest{Resources: []*meridianv1.Resource{{Kind: "Mesh", Name: name}}}
	}
	attempt := func(ctx context.Context, id string, r *meridianv1.ApplyRequest) string {
		t.Helper()
		out, err := ScopedRequestID(ctx, id, r)
		require.NoError(t, err)
		return out
	}
	bob := as(UserPrincipal("bob", []string{"team-a"}))
	first := attempt(bob, "r", mesh("a"))
	require.Regexp(t, "^r#[0-9a-f]{32}$", first)
	require.Equal(t, first, attempt(as(UserPrincipal("bob", []string{"team-a"})), "r", mesh("a")))
	require.Empty(t, attempt(bob, "", mesh("a")))
	require.Equal(t, "r", CallerRequestID(first))
	for _, id := range []string{"", "r", "epoch/0123456789abcdef0123456789abcdef", "r#0123456789abcdef0123456789abcdeX", "0123456789abcdef0123456789abcdef"} {
		require.Equal(t, id, CallerRequestID(id))
		if id != "" {
			require.Equal(t, id, CallerRequestID(attempt(bob, id, mesh("a"))))
		}
	}
	for _, other := range []string{
		attempt(bob, "r", mesh("b")),
		attempt(bob, "s", mesh("a")),
		attempt(as(UserPrincipal("eve", []string{"team-a"})), "r", mesh("a")),
		attempt(as(UserPrincipal("bob", nil)), "r", mesh("a")),
		attempt(t.Context(), "r", mesh("a")),
	} {
		require.NotEqual(t, first, other)
	}
}
