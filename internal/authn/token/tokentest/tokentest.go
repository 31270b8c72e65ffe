// Package tokentest makes signing keys for tests.
package tokentest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/authn/token"
)

// Key makes the signing key of a use with a serial number.
func Key(tb testing.TB, use token.Use, serial uint64) token.SigningKey {
	tb.Helper()
	key, err := token.GenerateSigningKey(token.KeyID{Use: use, Serial: serial})
	require.NoError(tb, err)
	return key
}
