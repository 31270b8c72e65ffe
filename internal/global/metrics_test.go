package global

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	zonesync "meridian/internal/sync"
)

func TestZoneMetrics(t *testing.T) {
	c := newZoneCollector(func() []zonesync.ZoneStatus {
		return []zonesync.ZoneStatus{
			{Name: "east", State: zonesync.ZoneLagging, Instances: []string{"i"}, Lag: 3, LastSeen: time.Unix(100, 500_000_000), Quarantined: make([]zonesync.Quarantined, 2)},
			{Name: "west", State: zonesync.ZoneOffline},
			{Name: "south", State: stateDisabled},
		}
	})
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP meridian_zone_instances Instances of a zone that are connected to this server; absent for a zone that is disabled.
# TYPE meridian_zone_instances gauge
meridian_zone_instances{zone="east"} 1
meridian_zone_instances{zone="west"} 0
# HELP meridian_zone_lag Synced changes that a zone should have acknowledged and has not.
# TYPE meridian_zone_lag gauge
meridian_zone_lag{zone="east"} 3
# HELP meridian_zone_last_seen_timestamp_seconds When a zone was last in contact.
# TYPE meridian_zone_last_seen_timestamp_seconds gauge
meridian_zone_last_seen_timestamp_seconds{zone="east"} 100.5
# HELP meridian_zone_quarantined Resources that a zone cannot use.
# TYPE meridian_zone_quarantined gauge
meridian_zone_quarantined{zone="east"} 2
# HELP meridian_zone_state 1 for the state that a zone is in: in-sync, draining (and in sync), lagging, stale, offline or disabled; offline also where it is connected to another server.
# TYPE meridian_zone_state gauge
meridian_zone_state{state="disabled",zone="south"} 1
meridian_zone_state{state="lagging",zone="east"} 1
meridian_zone_state{state="offline",zone="west"} 1
`)))
}
