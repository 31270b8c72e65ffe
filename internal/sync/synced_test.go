package zonesync

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// §6.10, I11: a zone is sent no roles, no secrets, nothing of another
// zone's; and it is sent what it needs.
func TestSyncedKinds(t *testing.T) {
	for _, kind := range []resource.Kind{"AccessRole", "AccessRoleBinding", "GlobalSecret", "Zone", "Dataplane", "Secret", "NoSuchKind"} {
		require.False(t, SyncedKinds(kind), kind)
	}
	for _, kind := range []resource.Kind{"Mesh", "TrafficPermission", "MeshUpstreamTimeout", "AuthPolicy", "SigningKey", "TokenRevocation"} {
		require.True(t, SyncedKinds(kind), kind)
	}
}
