package audit

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whose a note is is told from its beginning as from all of it.
func TestWhoseANoteIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := note{server: rapid.SampledFrom([]string{"", "a", "server-1"}).Draw(t, "server"), run: rapid.Uint64().Draw(t, "run"), number: rapid.Uint64().Draw(t, "number")}
		n.asked.method = rapid.StringN(0, 10, -1).Draw(t, "method")
		data := n.encode()
		for _, server := range []string{"", "a", "server-1", "server-2"} {
			require.Equal(t, server == n.server, isOf(data, server), server)
		}
	})
	require.False(t, isOf(nil, "a"))
	require.False(t, isOf([]byte{0xff}, "a"))
	require.False(t, isOf([]byte{0x0a, 0x09, 'a'}, "a"), "a name that is cut off")
}
