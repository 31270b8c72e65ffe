package batch

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
)

// TestAge: the age arrives, and what is no age is none.
func TestAge(t *testing.T) {
	sent, _ := metadata.FromOutgoingContext(WithAge(t.Context(), 90*time.Second))
	require.Equal(t, 90*time.Second, Age(metadata.NewIncomingContext(t.Context(), sent)))
	require.Zero(t, Age(t.Context()))
	for text, want := range map[string]time.Duration{"": 0, "soon": 0, "-5": 0, "1.5": 0, strconv.FormatInt(math.MaxInt64, 10): 10 * 365 * 24 * time.Hour} {
		require.Equal(t, want, Age(metadata.NewIncomingContext(t.Context(), metadata.Pairs(ageHeader, text))), text)
	}
}
