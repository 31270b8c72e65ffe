package global

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/service/admin"
	zonesync "meridian/internal/sync"
)

// A wait for proxies ends when every zone says that none is left, and counts a zone that
// cannot be asked.
func TestWaitForProxies(t *testing.T) {
	const (
		none     = `{"items": [], "behind": {"asOf": 9, "count": 0, "rejected": 0, "some": []}}`
		pending  = `{"items": [], "behind": {"asOf": 9, "count": 2, "rejected": 1, "some": [{"mesh": "m", "name": "web-1", "state": "rejected"}]}}`
		rejected = `{"items": [], "behind": {"asOf": 9, "count": 1, "rejected": 1, "some": [{"mesh": "m", "name": "web-1", "state": "rejected"}]}}`
		awaited  = `{"items": [], "behind": {"asOf": 9, "count": 1, "rejected": 0, "some": [{"mesh": "m", "name": "web-1", "state": "pending"}]}}`
		older    = `{"items": [], "behind": {"asOf": 8, "count": 0, "rejected": 0, "some": []}}`
		unknown  = `{"items": []}`
	)
	silent := rpcerr.New(rpcerr.Timeout, reasonZoneTimeout, "no answer")
	type reply struct {
		json string
		err  error
	}
	for name, c := range map[string]struct {
		replies []reply // of the zone east, the last one for good
		want    []admin.PendingZone
		notes   int
		err     error
	}{
		"none is left":       {replies: []reply{{none, nil}}},
		"until they have it": {replies: []reply{{pending, nil}, {pending, nil}, {none, nil}}, want: []admin.PendingZone{{Name: "east", State: "in-sync", ProxiesBehind: 2, Proxies: []admin.PendingProxy{{Mesh: "m", Name: "web-1", State: "rejected"}}}}},
		"not applied there":  {replies: []reply{{older, nil}, {none, nil}}, want: []admin.PendingZone{{Name: "east", State: "in-sync"}}},
		"no answer":          {replies: []reply{{"", silent}, {none, nil}}, want: []admin.PendingZone{{Name: "east", State: "in-sync", LastError: "connected, without an answer in time"}}},
		"only rejections":    {replies: []reply{{rejected, nil}}, err: admin.ErrProxiesRejected, want: []admin.PendingZone{{Name: "east", State: "in-sync", ProxiesBehind: 1, Proxies: []admin.PendingProxy{{Mesh: "m", Name: "web-1", State: "rejected"}}}}},
		"rejected later": {replies: []reply{{awaited, nil}, {rejected, nil}}, err: admin.ErrProxiesRejected, want: []admin.PendingZone{
			{Name: "east", State: "in-sync", ProxiesBehind: 1, Proxies: []admin.PendingProxy{{Mesh: "m", Name: "web-1", State: "pending"}}},
			{Name: "east", State: "in-sync", ProxiesBehind: 1, Proxies: []admin.PendingProxy{{Mesh: "m", Name: "web-1", State: "rejected"}}},
		}},
		"a zone that is older": {replies: []reply{{unknown, nil}}, notes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			s := zonesThat(func(zone resource.ZoneName) (string, uint64, error) {
				if zone == "west" {
					return none, 9, nil
				}
				r := c.replies[min(asked, len(c.replies)-1)]
				asked++
				return r.json, 9, r.err
			}, "east", "west")
			var told []admin.PendingZone
			notes, err := s.waitForProxies(t.Context(), admin.ZoneWait{Revision: 9}, func(p []admin.PendingZone) error {
				told = append(told, p...)
				return nil
			})
			require.ErrorIs(t, err, c.err)
			require.Len(t, notes, c.notes)
			require.Equal(t, c.want, told)
		})
	}
}

// A zone that has gone away is waited for, unless only connected ones are.
func TestWaitForProxiesOfAnOfflineZone(t *testing.T) {
	s := &inspectService{proxies: newProxyRounds(), zones: func(context.Context) fleetStatus {
		return fleetStatus{servers: map[resource.ZoneName]string{}, zones: []zonesync.ZoneStatus{{Name: "east", State: zonesync.ZoneOffline}, {Name: "old", State: stateDisabled}}}
	}}
	notes, err := s.waitForProxies(t.Context(), admin.ZoneWait{Revision: 9, ConnectedOnly: true}, nil)
	require.NoError(t, err)
	require.Len(t, notes, 1)
	ctx, cancel := context.WithCancel(t.Context())
	_, err = s.waitForProxies(ctx, admin.ZoneWait{Revision: 9}, func(p []admin.PendingZone) error {
		require.Equal(t, []admin.PendingZone{{Name: "east", State: "offline"}}, p)
		cancel()
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
}

// An answer for all servers of a zone needs no such note.
func TestWaitForProxiesOfAllServersOfAZone(t *testing.T) {
	s := zonesThat(func(resource.ZoneName) (string, uint64, error) {
		return `{"items": [], "behind": {"asOf": 9, "count": 0, "rejected": 0, "servers": 2, "some": []}}`, 9, nil
	}, "east")
	zones := s.zones
	s.zones = func(ctx context.Context) fleetStatus {
		known := zones(ctx)
		known.zones[0].Instances = []string{"a", "b"}
		return known
	}
	notes, err := s.waitForProxies(t.Context(), admin.ZoneWait{Revision: 9}, nil)
	require.NoError(t, err)
	require.Empty(t, notes)
}

// Of several instances of a zone, one is asked: the answer says so.
func TestWaitForProxiesOfSeveralInstances(t *testing.T) {
	s := zonesThat(func(resource.ZoneName) (string, uint64, error) {
		return `{"items": [], "behind": {"asOf": 9, "count": 0, "rejected": 0, "some": []}}`, 9, nil
	}, "east", "west")
	zones := s.zones
	s.zones = func(ctx context.Context) fleetStatus {
		known := zones(ctx)
		known.zones[0].Instances, known.zones[1].Instances = []string{"a", "b"}, []string{"a"}
		return known
	}
	notes, err := s.waitForProxies(t.Context(), admin.ZoneWait{Revision: 9}, nil)
	require.NoError(t, err)
	require.Len(t, notes, 1)
	require.Contains(t, notes[0], "zone east has 2 instances")
}
