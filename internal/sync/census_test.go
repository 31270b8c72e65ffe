package zonesync

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

var thisEpoch = store.Epoch{ClusterID: "c1", Incarnation: 1, Random: 7}

func reportOf(newest resource.Revision, instances ...Instance) Report {
	for i := range instances {
		if instances[i].Epoch == (store.Epoch{}) {
			instances[i].Epoch = thisEpoch
		}
		if instances[i].Zone == "" {
			instances[i].Zone = "east"
		}
	}
	return Report{Epoch: thisEpoch, Newest: newest, Reached: true, Instances: instances}
}

// TestZonesOfSeveralServers is what becomes of the reports of several servers
// (§7.4): this server has applied revision 9, and no zone is connected
// to it.
func TestZonesOfSeveralServers(t *testing.T) {
	quarantined := func(name string) []Quarantined { return []Quarantined{{Key: policyKey(name), Message: name}} }
	up := func(id string, lease uint64, rev resource.Revision) Instance {
		return Instance{ID: id, Lease: lease, Connected: true, Revision: rev}
	}
	gone := func(id string, lease uint64, rev resource.Revision, why string) Instance {
		return Instance{ID: id, Lease: lease, Revision: rev, LastError: why, Quiet: time.Hour}
	}
	for name, c := range map[string]struct {
		reports []Report
		want    ZoneStatus
	}{
		"connected elsewhere": {
			[]Report{reportOf(9, up("i", 1, 9))},
			ZoneStatus{State: ZoneInSync, Revision: 9, Instances: []string{"i"}},
		},
		"the connection wins over what another server remembers": {
			[]Report{reportOf(9, gone("i", 1, 4, "the server is shutting down")), reportOf(9, up("i", 2, 9))},
			ZoneStatus{State: ZoneInSync, Revision: 9, Instances: []string{"i"}},
		},
		"a connection that its server has not given up is not one any more": {
			[]Report{reportOf(9, Instance{ID: "i", Lease: 1, Connected: true, Revision: 4, Lag: 3, Quiet: time.Minute}), reportOf(9, up("i", 2, 9))},
			ZoneStatus{State: ZoneInSync, Revision: 9, Instances: []string{"i"}},
		},
		"gone from where it was last": {
			[]Report{reportOf(9, Instance{ID: "i", Lease: 1, Connected: true, Revision: 4}), reportOf(9, gone("i", 2, 9, "cut"))},
			ZoneStatus{State: ZoneOffline, Revision: 9, LastError: "cut", CanDrain: true}, // none is connected that cannot
		},
		"instances on different servers": {
			[]Report{
				reportOf(9, Instance{ID: "j", Connected: true, Revision: 9, Quarantined: quarantined("b")}),
				reportOf(9, Instance{ID: "i", Connected: true, Revision: 7, Lag: 2, LastError: "slow", Quarantined: quarantined("a")}),
			},
			ZoneStatus{
				State: ZoneLagging, Revision: 7, Lag: 2, Instances: []string{"i", "j"}, LastError: "slow",
				Quarantined: append(quarantined("a"), quarantined("b")...),
			},
		},
		"another disk took the zone's place": {
			[]Report{reportOf(9, gone("old", 8, 3, "cut")), reportOf(9, up("new", 1, 9))},
			ZoneStatus{State: ZoneInSync, Revision: 9, Instances: []string{"new"}},
		},
		"one of them is silent": {
			[]Report{reportOf(9, up("i", 1, 9)), reportOf(9, Instance{ID: "j", Connected: true, Revision: 9, Quiet: staleAfter + 1})},
			ZoneStatus{State: ZoneStale, Revision: 9, Instances: []string{"i", "j"}},
		},
		"a server that is behind knows of no lag": {
			[]Report{reportOf(7, up("i", 1, 7))},
			ZoneStatus{State: ZoneLagging, Revision: 7, Lag: 2, Instances: []string{"i"}},
		},
		"this server is behind itself": {
			[]Report{reportOf(9, up("i", 1, 9)), reportOf(12, Instance{Zone: "east", ID: "j", Connected: true, Revision: 12})},
			ZoneStatus{State: ZoneLagging, Revision: 9, Lag: 1, Instances: []string{"i", "j"}},
		},
		"in another history": {
			[]Report{reportOf(9, Instance{ID: "i", Connected: true, Revision: 9, Epoch: store.Epoch{ClusterID: "c1"}})},
			ZoneStatus{State: ZoneLagging, Revision: 9, Lag: 1, Instances: []string{"i"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewServer(ServerConfig{Store: store.New(memory()), Synced: syncedInTests})
			s.feed.reset(s.cfg.Store.View())
			require.NoError(t, s.feed.append(store.Batch{Revision: 1, Epoch: &thisEpoch}, time.Time{}))
			for at := resource.Revision(2); at <= 9; at++ {
				batch := store.Batch{Revision: at, Prev: at - 1}
				if at > 7 {
					batch.Changes = []store.Change{{After: put(policyKey("p"), `{}`).Resource}}
				}
				require.NoError(t, s.feed.append(batch, time.Time{}))
			}
			zones := s.Zones(c.reports...)
			require.Len(t, zones, 1)
			c.want.Name, c.want.LastSeen = "east", zones[0].LastSeen
			if len(c.want.Instances) > 0 {
				c.want.Servers = []string{""}
			}
			if c.want.Quarantined == nil {
				c.want.Quarantined = zones[0].Quarantined
				require.Empty(t, zones[0].Quarantined)
			}
			require.Equal(t, c.want, zones[0])
		})
	}
}

// TestWaitAcrossServers is --wait=zones over the reports of several servers.
func TestWaitAcrossServers(t *testing.T) {
	late := Instance{ID: "i", Lease: 1, Connected: true}
	away := Instance{ID: "i", Lease: 1}
	elsewhere := Instance{ID: "i", Lease: 2, Connected: true, Applied: true}
	east := []resource.ZoneName{"east"}
	steps := func(rounds ...[]Report) [][]resource.ZoneName {
		var w Wait
		var out [][]resource.ZoneName
		for _, reports := range rounds {
			out = append(out, w.Missing(reports...))
		}
		return out
	}
	none := []resource.ZoneName(nil)
	require.Equal(t, [][]resource.ZoneName{none}, steps([]Report{reportOf(9), reportOf(9)}))
	require.Equal(t, [][]resource.ZoneName{none}, steps([]Report{reportOf(9, away)}), "it was away all the time")
	require.Equal(t, [][]resource.ZoneName{none}, steps([]Report{reportOf(9, elsewhere), reportOf(9, late)}), "a connection that its server has not given up")
	require.Equal(t, [][]resource.ZoneName{east, east, none},
		steps([]Report{reportOf(9, late), reportOf(9)}, []Report{reportOf(9, away), reportOf(9)}, []Report{reportOf(9, away), reportOf(9, elsewhere)}),
		"it goes to another server")
	require.Equal(t, [][]resource.ZoneName{east, east, none},
		steps([]Report{reportOf(9, late)}, []Report{reportOf(9)}, []Report{reportOf(9, elsewhere)}),
		"its server cannot be asked any more")
	saw := reportOf(9, away)
	saw.Late = east
	require.Equal(t, [][]resource.ZoneName{east}, steps([]Report{saw}), "it went away while its server waited for it")
	held := Instance{ID: "i", Lease: 1, Applied: true}
	require.Equal(t, [][]resource.ZoneName{east, none}, steps([]Report{reportOf(9, late)}, []Report{reportOf(9, held)}),
		"it is away and has applied it before")
}

// TestAwait: a server answers when its zones have applied a revision, or says at
// the end how far they are.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, serverA, serverB)
		z := f.zone("east", []string{serverA})
		rev := f.write("one")
		f.reaches(z, rev)
		report := f.servers[serverA].server.Await(t.Context(), rev)
		require.True(t, report.Reached)
		require.Empty(t, report.Late)
		require.True(t, report.Instances[0].Applied)
		require.Equal(t, rev, report.Instances[0].Revision)
		require.Equal(t, rev, report.Newest)

		f.servers[serverB].lags = true
		rev = f.write("two")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		report = f.servers[serverB].server.Await(ctx, rev)
		require.False(t, report.Reached, "the server has not applied it itself")

		z.stop()
		synctest.Wait()
		rev = f.write("three")
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		report = f.servers[serverA].server.Await(ctx, rev)
		require.True(t, report.Reached)
		require.Empty(t, report.Late, "it was away all the time")
	})
}
