package consensus

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// TestRefusalsReachOtherServers: who writes through a server that does not lead is told
// every refusal of the store as the leader is, and not that the outcome is unknown.
func TestRefusalsReachOtherServers(t *testing.T) {
	key := resource.Key{Kind: resource.KindMesh, Name: "m"}
	for _, refusal := range []error{
		&store.ConflictError{Key: key, Want: 1, Have: 2, WantRevision: 3, HaveRevision: 4},
		&store.AccessChangedError{Decided: 1, Current: 2},
		&store.MeshMissingError{Key: key},
		&store.MeshNotEmptyError{Mesh: "m", Example: key, Count: 2},
		&store.InvalidOpError{Key: key, Reason: "no"},
		&store.ChangedError{Decided: 1, Current: 2},
		&store.PartChangedError{Mesh: "m"},
		&store.HeldError{Key: key, Rollout: "r"},
		&store.RolloutsError{},
	} {
		t.Run(fmt.Sprintf("%T", refusal), func(t *testing.T) {
			message, err := refusalToPeer(refusal)
			require.NoError(t, err)
			wire, err := proto.Marshal(message)
			require.NoError(t, err)
			var read peerv1.Refusal
			require.NoError(t, proto.Unmarshal(wire, &read))
			require.Equal(t, refusal, refusalFromPeer(&read))
		})
	}
}
