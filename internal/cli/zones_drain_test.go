package cli

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
)

func east(drain *meridianv1.ZoneDrain, state string) *meridianv1.ZoneStatus {
	return &meridianv1.ZoneStatus{Name: "east", State: state, Instances: []string{"a"}, Drain: drain}
}

func west() *meridianv1.ZoneStatus {
	return &meridianv1.ZoneStatus{Name: "west", State: "in-sync", Instances: []string{"b"}}
}

func TestZonesDrain(t *testing.T) {
	h := newHarness(t)
	h.ok("apply", "-f", h.write("z.yaml", "type: Zone\nname: east\nlabels: {team: a}\n"))
	label := func() string { return h.ok("get", "z", "east", "-o", "jsonpath={.labels}") }
	states := []*meridianv1.ZoneStatus{
		east(nil, "in-sync"),
		east(&meridianv1.ZoneDrain{}, "draining"),
		east(&meridianv1.ZoneDrain{Begun: true, Dataplanes: 3, DataplanesApplied: 1}, "draining"),
		east(&meridianv1.ZoneDrain{Begun: true}, "draining"),
	}
	h.server.Before = func(method string) error {
		h.server.Mu.Lock()
		defer h.server.Mu.Unlock()
		if method == "Zones" && len(states) > 0 {
			h.server.AllZones, states = []*meridianv1.ZoneStatus{states[0], west()}, states[1:]
		}
		return nil
	}
	out := h.run("zones", "drain", "east")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Equal(t, "Zone/east updated\nrevision 1842\n", out.stdout)
	require.Equal(t, "Waiting for zone east to begin.\nWaiting for zone east: 3 dataplanes left, 1 applied by operators, which have to be deleted.\nZone east is drained: it has no dataplanes.\n", out.stderr)
	require.Contains(t, label(), `"meridian.io/draining":"true"`)
	require.Contains(t, label(), `"team":"a"`)
	require.Equal(t, uint64(1), h.server.Applies[1].GetIfVersions()[0].GetVersion())
	require.Contains(t, h.ok("zones", "drain", "east", "-o", "json"), `"outcome": "unchanged"`)

	require.Equal(t, "Zone/east\n", h.ok("zones", "enable", "east", "-o", "name"))
	require.NotContains(t, label(), "draining")
	require.Contains(t, label(), `"team":"a"`)
}

// What can keep a drain from its end is named, and the exit code tells it apart.
func TestZonesDrainDoesNotEnd(t *testing.T) {
	h := newHarness(t)
	h.ok("apply", "-f", h.write("z.yaml", "type: Zone\nname: east\n"))
	drained := &meridianv1.ZoneDrain{Begun: true}
	offline := &meridianv1.ZoneStatus{Name: "east", State: "offline", Drain: &meridianv1.ZoneDrain{}}
	away := &meridianv1.ZoneStatus{Name: "west", State: "offline"}
	alsoDrains := west()
	alsoDrains.Drain = &meridianv1.ZoneDrain{}
	for name, c := range map[string]struct {
		zones []*meridianv1.ZoneStatus
		notes []string
		args  []string
		code  int
		says  string
	}{
		"the last zone":           {zones: []*meridianv1.ZoneStatus{east(nil, "in-sync"), away}, code: exit.Conflict, says: "no other zone is connected that takes dataplanes"},
		"the last that takes any": {zones: []*meridianv1.ZoneStatus{east(nil, "in-sync"), alsoDrains}, code: exit.Conflict, says: "--force"},
		"perhaps the last":        {zones: []*meridianv1.ZoneStatus{east(nil, "in-sync")}, notes: []string{"server g2 could not be asked"}, code: exit.Conflict, says: "it may be the last one that takes dataplanes: server g2 could not be asked"},
		"the last, by force":      {zones: []*meridianv1.ZoneStatus{east(drained, "draining")}, args: []string{"--force"}, code: exit.OK, says: "Zone east is drained"},
		"offline":                 {zones: []*meridianv1.ZoneStatus{offline, west()}, code: exit.Timeout, says: "zone east, which is offline: it begins when it connects"},
		"frozen":                  {zones: []*meridianv1.ZoneStatus{east(drained, "stale"), west()}, code: exit.Timeout, says: "does not answer"},
		"an older release":        {zones: []*meridianv1.ZoneStatus{east(&meridianv1.ZoneDrain{Unsupported: true}, "draining"), west()}, code: exit.Timeout, says: "upgrade it"},
		"left":                    {zones: []*meridianv1.ZoneStatus{east(&meridianv1.ZoneDrain{Begun: true, Dataplanes: 1}, "draining"), west()}, code: exit.Timeout, says: "continues draining\n  zone east: 1 dataplane left"},
		"enabled meanwhile":       {zones: []*meridianv1.ZoneStatus{east(nil, "in-sync"), west()}, code: exit.Conflict, says: "drains no more"},
	} {
		t.Run(name, func(t *testing.T) {
			h.server.Mu.Lock()
			h.server.AllZones, h.server.Notes = c.zones, c.notes
			h.server.Mu.Unlock()
			var asked atomic.Int64
			h.server.Before = func(method string) error {
				if method == "Zones" {
					if asked.Add(1) > 1 { // the first is before the write
						h.later.Add(int64(time.Hour))
					}
				}
				return nil
			}
			out := h.run(append([]string{"zones", "drain", "east"}, c.args...)...)
			require.Equal(t, c.code, out.code, out.stderr)
			require.Contains(t, out.stderr, c.says)
		})
	}
	require.Equal(t, exit.No, h.run("zones", "drain", "north").code)
}

func TestADrainingZoneIsShown(t *testing.T) {
	h := newHarness(t)
	h.server.AllMembers = threeServers()
	h.server.AllMembers.Members = h.server.AllMembers.GetMembers()[:2]
	h.server.AllZones = []*meridianv1.ZoneStatus{
		east(&meridianv1.ZoneDrain{Begun: true, Dataplanes: 2}, "draining"),
		{Name: "west", State: "offline", Drain: &meridianv1.ZoneDrain{}},
	}
	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return &meridianv1.InspectResponse{Json: []byte(`{"items":[]}`)}, nil
	}
	require.Contains(t, h.ok("zones"), "offline (draining)")
	require.Equal(t, "draining 2 offline {\"applied\":0,\"begun\":false,\"dataplanes\":0}\n",
		h.ok("zones", "-o", "jsonpath={.items[0].state} {.items[0].drain.dataplanes} {.items[1].state} {.items[1].drain}"))
	out := h.run("status")
	require.Equal(t, exit.No, out.code)
	require.Contains(t, out.stdout, "zone east is draining: 2 dataplanes left\n")
	require.Contains(t, out.stdout, "  zone west is offline (draining), 0 changes behind\n")
	require.NotContains(t, out.stdout, "  zone east")
}
