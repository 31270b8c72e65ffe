package envoy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const bare = `{"admin": {"address": {"pipe": {"path": "ADMIN", "mode": 384}}}, "node": {"id": "m/web-1", "cluster": "m"}}`

func TestAnEnvoyStarts(t *testing.T) {
	e := launch(t, bare)
	require.Equal(t, "LIVE\n", e.ask("/ready"))
}

func TestAnEnvoyValidates(t *testing.T) {
	require.Empty(t, validate(t, bare))
	require.Contains(t, validate(t, `{"static_resources": {"clusters": [{}]}}`), "Proto constraint validation failed")
}
