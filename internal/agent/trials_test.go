package agent

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcev1 "go.opentelemetry.io/proto/otlp/resource/v1"

	"meridian/internal/identity"
	"meridian/internal/resource"
	"meridian/internal/xds"
)

// trialEntry is an entry of an Envoy's log about a call.
func trialEntry(port string, members map[string]string) *logsv1.LogsData {
	text := func(s string) *commonv1.AnyValue {
		return &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: s}}
	}
	list := &commonv1.KeyValueList{}
	for key, value := range members {
		list.Values = append(list.Values, &commonv1.KeyValue{Key: key, Value: text(value)})
	}
	return &logsv1.LogsData{ResourceLogs: []*logsv1.ResourceLogs{{
		Resource: &resourcev1.Resource{Attributes: []*commonv1.KeyValue{{Key: xds.TrialPort, Value: text(port)}}},
		ScopeLogs: []*logsv1.ScopeLogs{{LogRecords: []*logsv1.LogRecord{{
			Body: &commonv1.AnyValue{Value: &commonv1.AnyValue_KvlistValue{KvlistValue: list}},
		}}}},
	}}}
}

func TestTrialsAreCounted(t *testing.T) {
	trials := NewTrials(slog.New(slog.DiscardHandler))
	name, err := identity.Of("east", "m", "web-1", []resource.Tags{{resource.ServiceTag: "web", resource.ZoneTag: "east"}, {resource.ServiceTag: "api", resource.ZoneTag: "east"}})
	require.NoError(t, err)
	take := func(port, details string, results ...string) {
		members := map[string]string{xds.TrialCaller: name, xds.TrialDetails: details, xds.TrialStamp: "s"}
		for i, r := range results {
			members[xds.TrialResult+strconv.Itoa(i)] = r
			members[xds.TrialPolicy+strconv.Itoa(i)] = fmt.Sprintf("p%d", i)
		}
		trials.Take(trialEntry(port, members))
	}
	none, told := trials.Told(0)
	require.Nil(t, none)
	take("80", "via_upstream", xds.TrialAllowed, "denied")
	take("80", "via_upstream", xds.TrialAllowed, "denied")
	take("80", xds.DeniedDetails+"p]", xds.TrialAllowed, xds.TrialAllowed)
	// Of these nothing else would be decided, or nothing is said.
	take("80", "via_upstream", xds.TrialAllowed, xds.TrialAllowed)
	take("80", xds.DeniedDetails+"p]", xds.TrialAllowed, "denied")
	take("80", xds.DeniedDetails+"p]")
	take("80", "via_upstream")
	take("x", "via_upstream", "denied")
	trials.Take(&logsv1.LogsData{ResourceLogs: []*logsv1.ResourceLogs{{}}})

	m, told := trials.Told(told)
	require.Len(t, m.GetCounts(), 2)
	byWord := map[string]uint64{}
	for _, c := range m.GetCounts() {
		require.Equal(t, "api,web", c.GetCaller())
		require.EqualValues(t, 80, c.GetPort())
		require.Equal(t, c.GetDenied(), c.GetBy() == "p1")
		byWord[c.GetBy()] = c.GetCalls()
	}
	require.Equal(t, map[string]uint64{"p1": 2, "p0": 1}, byWord)
	none, told = trials.Told(told)
	require.Nil(t, none, "nothing was counted since")
	take("80", "via_upstream", "denied")
	m, _ = trials.Told(told)
	require.Len(t, m.GetCounts(), 3)
}

// Whatever is tried, and for all callers, an agent keeps a bounded number of counts, each of
// bounded size, and of what was tried on a port before only the last.
func TestTrialsAreBounded(t *testing.T) {
	trials := NewTrials(slog.New(slog.DiscardHandler))
	take := func(stamp, by string) {
		trials.Take(trialEntry("80", map[string]string{xds.TrialStamp: stamp, xds.TrialResult + "0": "denied", xds.TrialPolicy + "0": by}))
	}
	for _, stamp := range []string{"a", "b", "c"} {
		take(stamp, "p")
	}
	m, _ := trials.Told(0)
	require.Len(t, m.GetCounts(), 2)
	for i := range 3 * maxTrialCounts {
		take("c", fmt.Sprint(i)+strings.Repeat("x", 10_000))
	}
	m, taken := trials.Told(0)
	require.Len(t, m.GetCounts(), maxTrialCounts)
	var calls, others uint64
	for _, c := range m.GetCounts() {
		require.LessOrEqual(t, len(c.GetBy())+len(c.GetStamp())+len(c.GetCaller()), 3*maxTrialText)
		if calls += c.GetCalls(); c.GetOthers() {
			others = c.GetCalls()
		}
	}
	require.Greater(t, others, uint64(2*maxTrialCounts))
	require.Equal(t, taken-1, calls, "all but those of what was tried before are there")
}
