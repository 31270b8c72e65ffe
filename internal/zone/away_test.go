package zone

import (
	"testing"

	"github.com/stretchr/testify/require"

	zonesync "meridian/internal/sync"
)

// A zone is ready with the global away, and says what keeps changes from it.
func TestAZoneThatIsReadySaysThatTheGlobalIsAway(t *testing.T) {
	require.Empty(t, disconnectedNote(zonesync.ClientStatus{Connected: true, Address: "g:5685"}))
	require.Empty(t, disconnectedNote(zonesync.ClientStatus{}), "it has not tried yet")
	require.Equal(t, "what is here is served, and no changes arrive: not connected to the global: g:5685: connection refused",
		disconnectedNote(zonesync.ClientStatus{Address: "g:5685", LastError: "connection refused"}))
}
