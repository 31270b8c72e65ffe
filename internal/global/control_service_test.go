package global

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/authz"
	"meridian/internal/authz/authztest"
	"meridian/internal/resource"
	zonesync "meridian/internal/sync"
)

// §6.1: the list of zones has nothing of what its reader may not read, neither in its
// data nor in prose, and no other server is asked for who may read no zone.
func TestZonesForRestrictedReaders(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{Restricted: true})
	p.ReadGranted()
	p.Seed(`
type: AccessRole
name: east
rules: [{types: [Zone], names: [east], access: [READ]}]
---
type: AccessRoleBinding
name: east
subjects: [{type: User, name: ann}]
roles: [east]
`)
	known := fleetStatus{
		zones:  []zonesync.ZoneStatus{{Name: "east", LastError: "policy hidden"}, {Name: "west"}},
		silent: []silentServer{{name: "server-b", err: errors.New("cut off")}},
	}
	asked := 0
	survey := func(context.Context) fleetStatus {
		asked++
		return known
	}
	none := readableZones(authztest.As("eve"), p.Authorizer, resource.Revision(7), survey)
	require.Equal(t, uint64(7), none.GetRevision())
	require.Empty(t, none.GetZones())
	require.Zero(t, asked)

	some := readableZones(authztest.As("ann"), p.Authorizer, 7, survey)
	require.Len(t, some.GetZones(), 1)
	require.Equal(t, "east", some.GetZones()[0].GetName())
	require.Empty(t, some.GetZones()[0].GetLastError())
	require.Equal(t, []string{"some servers could not be asked for their zones"}, some.GetNotes())

	all := readableZones(authztest.Admin(), p.Authorizer, 7, survey)
	require.Len(t, all.GetZones(), 2)
	require.Equal(t, "policy hidden", all.GetZones()[0].GetLastError(), "what another reader may not see is still there")
	require.Contains(t, all.GetNotes()[0], "server-b")
}

// A zone that is to drain is shown so where nothing else is wrong with it, with how far
// it is.
func TestADrainingZone(t *testing.T) {
	z := zonesync.ZoneStatus{Name: "east", State: zonesync.ZoneInSync, CanDrain: true, Draining: zonesync.Draining{Begun: true, Dataplanes: 3, Applied: 1}}
	require.Nil(t, encodeZone(z).GetDrain(), "enabled again, and not told yet")
	require.Equal(t, "in-sync", encodeZone(z).GetState())
	z.ToDrain = true
	require.Equal(t, "draining", encodeZone(z).GetState())
	require.Equal(t, uint64(3), encodeZone(z).GetDrain().GetDataplanes())
	require.Equal(t, uint64(1), encodeZone(z).GetDrain().GetDataplanesApplied())
	require.False(t, encodeZone(z).GetDrain().GetUnsupported())
	z.State, z.CanDrain = zonesync.ZoneLagging, false
	require.False(t, encodeZone(z).GetDrain().GetUnsupported(), "it has never connected")
	z.Instances = []string{"i"}
	require.Equal(t, "lagging", encodeZone(z).GetState())
	require.True(t, encodeZone(z).GetDrain().GetUnsupported())
	require.Len(t, fleetStatus{zones: []zonesync.ZoneStatus{z}}.absent(), 1)
	in := zonesync.Instance{Zone: "east", ID: "i", ServersOfZone: 3, Drains: true, Draining: zonesync.Draining{Begun: true, Dataplanes: 3, Applied: 1, OfZone: true}}
	report := decodeReport(encodeReport(zonesync.Report{Instances: []zonesync.Instance{in}}, nil, true))
	require.True(t, report.Instances[0].Drains)
	require.Equal(t, in.Draining, report.Instances[0].Draining)
	require.Equal(t, 3, report.Instances[0].ServersOfZone)
}
