package cluster

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
)

func TestClusterMetrics(t *testing.T) {
	f := clusterFigures{
		leads:   true,
		status:  consensus.Status{State: "leader", Leader: "a", Term: 7, Last: 20, Committed: 19, Applied: 17},
		figures: consensus.Figures{Forwarded: 5, Snapshot: 8},
		servers: []consensus.Server{{Name: "a", Voter: true}, {Name: "b", Voter: true}, {Name: "c"}},
		health: consensus.Health{Leading: true, FailureTolerance: 0, Members: []consensus.MemberHealth{
			{Name: "b", LastContact: 1500 * time.Millisecond, Lag: 4},
			{Name: "c", Healthy: true},
		}},
		silent: 1, differing: 2, changes: 3,
	}
	c := newClusterCollector(func() clusterFigures { return f })
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	require.Empty(t, problems)
	compare := func(metric string, want map[string]float64) {
		t.Helper()
		registry := prometheus.NewRegistry()
		registry.MustRegister(c)
		families, err := registry.Gather()
		require.NoError(t, err)
		got := map[string]float64{}
		for _, family := range families {
			if family.GetName() != metric {
				continue
			}
			for _, m := range family.GetMetric() {
				label := ""
				if len(m.GetLabel()) > 0 {
					label = m.GetLabel()[0].GetValue()
				}
				got[label] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		require.Equal(t, want, got, metric)
	}
	is := func(value float64) map[string]float64 { return map[string]float64{"": value} }
	for metric, value := range map[string]float64{
		"meridian_leader": 1, "meridian_leader_known": 1, "meridian_leader_changes_total": 3, "meridian_current": 1,
		"meridian_term": 7, "meridian_members": 3, "meridian_voters": 2, "meridian_committed_revision": 19,
		"meridian_apply_lag": 2, "meridian_forwarded_total": 5, "meridian_snapshot_revision": 8, "meridian_log_since_snapshot": 12,
		"meridian_unreachable_servers": 1, "meridian_differing_servers": 2, "meridian_failure_tolerance": 0,
	} {
		compare(metric, is(value))
	}
	compare("meridian_member_silence_seconds", map[string]float64{"b": 1.5, "c": 0})
	compare("meridian_member_lag", map[string]float64{"b": 4, "c": 0})
	compare("meridian_member_healthy", map[string]float64{"b": 0, "c": 1})

	// A follower that is cut off; what only leaders know it does not report.
	f = clusterFigures{status: consensus.Status{State: "candidate", Committed: 5, Applied: 9}, figures: consensus.Figures{Heard: 2 * time.Second, Snapshot: 3}, stale: true}
	compare("meridian_leader", is(0))
	compare("meridian_leader_known", is(0))
	compare("meridian_current", is(0))
	compare("meridian_leader_silence_seconds", is(2))
	compare("meridian_apply_lag", is(0))
	compare("meridian_log_since_snapshot", is(0))
	compare("meridian_member_healthy", map[string]float64{})
	compare("meridian_failure_tolerance", map[string]float64{})
}

// The log has each leader once, and one that returns only after it had said that
// there is none.
func TestWhichLeadersTheLogTellsOf(t *testing.T) {
	var w leaderWatch
	for i, c := range []struct {
		leader                        string
		missed, worthTelling, another bool
	}{
		{leader: ""},
		{leader: "a", worthTelling: true},
		{leader: "a"},
		{leader: ""},
		{leader: "a"},
		{leader: "", missed: true},
		{leader: "a", worthTelling: true},
		{leader: "b", worthTelling: true, another: true},
		{leader: "a", worthTelling: true, another: true},
	} {
		worthTelling, another := w.observe(c.leader)
		require.Equal(t, []bool{c.worthTelling, c.another, c.leader != ""}, []bool{worthTelling, another, w.led}, i)
		w.missed = c.missed
	}
}
