package generate_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/world"
)

// A proxy of which one resource is larger than clients receive is sent nothing, and it is
// said why: with the message it would be disconnected again and again.
func TestAResourceThatIsTooLarge(t *testing.T) {
	none := func(resource.TagSelector) *world.Endpoints { return nil }
	for size, withheld := range map[int]string{
		4<<20 - 64<<10:     "",
		4<<20 - 64<<10 + 1: "LDS large has 4128769 bytes, and clients receive at most 4128768",
	} {
		own := []*xds.Resource{{Type: xds.Listener, Name: "large", Body: make([]byte, size)}}
		set, err := generate.Assemble(7, own, &generate.Outbounds{}, xds.GRPC, none)
		require.NoError(t, err)
		require.Equal(t, withheld, set.Withheld)
		require.Equal(t, withheld == "", set.Len() == 1)
	}
}
