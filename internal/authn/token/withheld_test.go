package token_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/authn/token"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
)

// Answers show signing keys and authorities without their data, and other secrets as they
// are.
func TestWithheldSecrets(t *testing.T) {
	for _, c := range []struct {
		kind     resource.Kind
		mesh     resource.MeshName
		name     string
		withheld bool
	}{
		{resource.KindSecret, "m", "certificate-authority.ours", true},
		{resource.KindSecret, "m", "ours", false},
		{resource.KindGlobalSecret, "", "certificate-authority.ours", false},
		{resource.KindGlobalSecret, "", "mesh-certificate-authority.m", true},
		{resource.KindGlobalSecret, "", "user-token-signing-key-1", true},
	} {
		shown := token.Withheld(resourcetest.Build(t, c.kind, c.mesh, c.name, `{"data":"c2VjcmV0"}`))
		require.Equal(t, c.withheld, shown.Spec().(*resource.Secret).Data == "", c.name)
		require.Equal(t, c.withheld, token.LeavesInBackups(shown.Key()), c.name)
	}
}
