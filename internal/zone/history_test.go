package zone

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/store"
)

// Proxies that come and go by thousands leave a bounded past behind.
func TestPastOfRegistrationsIsBounded(t *testing.T) {
	const registrations = 4000
	oldest := func(federated bool) resource.Revision {
		s := store.New(localOptions(federated))
		mesh := resourcetest.Build(t, resource.KindMesh, "", "default", "{}")
		require.NoError(t, s.Apply(1, store.Txn{Ops: []store.Op{store.Put(mesh)}}).Err)
		empty := s.View()
		for i := range registrations {
			r := resourcetest.Build(t, resource.KindDataplane, "default", fmt.Sprintf("web-%d", i), `{"networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "web"}}]}}`)
			require.NoError(t, s.Apply(s.Revision()+1, store.Txn{Ops: []store.Op{store.Put(r)}}).Err)
		}
		for revision := empty.Revision(); ; revision++ {
			if _, err := s.ViewAt(revision); !errors.Is(err, store.ErrCompacted) {
				require.NoError(t, err)
				return revision
			}
		}
	}
	require.EqualValues(t, 1, oldest(false), "a standalone zone has a global's past")
	kept := registrations - int(oldest(true))
	require.Greater(t, kept, 500, "enough for who reads along to come back")
	require.Less(t, kept, 1500)
}
