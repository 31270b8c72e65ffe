package zonesync

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meridian/internal/store"
)

// What `meridian zones` shows of a zone that is gone says who ended it, and that a
// zone follows another global or a later incarnation.
func TestWhyAZoneIsGone(t *testing.T) {
	ours := store.Epoch{ClusterID: "x", Incarnation: 2, Random: 1}
	canceled := status.Error(codes.Canceled, "context canceled")
	for want, c := range map[string]struct {
		err    error
		theirs store.Epoch
	}{
		"the zone closed the connection":                     {context.Canceled, ours},
		"or it was lost":                                     {canceled, store.Epoch{}},
		"it follows cluster y, this is cluster x":            {canceled, store.Epoch{ClusterID: "y", Incarnation: 2}},
		"an earlier incarnation, 2, and the zone has seen 3": {canceled, store.Epoch{ClusterID: "x", Incarnation: 3}},
		"the server is shutting down":                        {errors.New("the server is shutting down"), store.Epoch{ClusterID: "y"}},
	} {
		require.ErrorContains(t, closeReason(c.err, c.theirs, ours), want)
	}
	require.NoError(t, closeReason(nil, ours, ours))
}
