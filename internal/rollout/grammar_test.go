package rollout

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

func TestParseStages(t *testing.T) {
	percent := func(n uint32) resource.RolloutStage { return resource.RolloutStage{Percent: &n} }
	zones := func(names ...string) resource.RolloutStage { return resource.RolloutStage{Zones: names} }
	all := resource.RolloutStage{All: true}
	for text, want := range map[string][]resource.RolloutStage{
		"zones=all":                             {all},
		"zones=canary,then=25%,then=all":        {zones("canary"), percent(25), all},
		"zones=a,b-*, c,then=all":               {zones("a", "b-*", "c"), all},
		"zones=1%,then=100%,then=*-x*,then=all": {percent(1), percent(100), zones("*-x*"), all},
	} {
		stages, err := ParseStages(text)
		require.NoError(t, err, text)
		require.Equal(t, want, stages, text)
		require.Equal(t, strings.ReplaceAll(text, " ", ""), FormatStages(stages))
	}
	for text, says := range map[string]string{
		"":                         "begin with zones=",
		"canary":                   "begin with zones=",
		"then=all":                 "begin with zones=",
		"zones=canary":             "the last stage must be all",
		"zones=canary,all":         "the last stage must be all",
		"zones=all,then=canary":    "nothing comes after it",
		"zones=0%,then=all":        "1% to 100%",
		"zones=101%,then=all":      "1% to 100%",
		"zones=25%,west,then=all":  "write then= before another stage",
		"zones=Canary,then=all":    "lower-case",
		"zones=,then=all":          "a name is required",
		"zones=a,zones=b,then=all": "a further stage is written then=",
		"zones=a" + strings.Repeat(",then=a", 16) + ",then=all": "at most 16 stages",
		"zones=" + strings.Repeat("a,", 20<<10) + "then=all":    "at most 32768",
	} {
		_, err := ParseStages(text)
		require.ErrorContains(t, err, says, "%.40s", text)
	}
}

func FuzzParseStages(f *testing.F) {
	f.Add("zones=canary,then=25%,then=all")
	f.Add("zones=a,b*,then=all")
	f.Fuzz(func(t *testing.T, text string) {
		stages, err := ParseStages(text)
		if err != nil {
			return
		}
		require.NoError(t, CheckStages(stages))
		again, err := ParseStages(FormatStages(stages))
		require.NoError(t, err)
		require.Equal(t, stages, again)
	})
}

func TestMatches(t *testing.T) {
	for _, row := range []struct {
		pattern, name string
		want          bool
	}{
		{"east", "east", true},
		{"east", "east1", false},
		{"*", "", true},
		{"e*", "east", true},
		{"e*t", "east", true},
		{"e*t", "et", true},
		{"ab*ba", "aba", false},
		{"*a*", "east", true},
		{"*a*a*", "east", false},
		{"a*b*c", "a-c-b-c", true},
		{"**", "x", true},
	} {
		require.Equal(t, row.want, matches(row.pattern, row.name), "%s %s", row.pattern, row.name)
	}
}

func TestConditionsAreCheckedWhenWritten(t *testing.T) {
	c, err := NewConditions()
	require.NoError(t, err)
	for _, text := range []string{
		"", "!zone.connected", "zone.lag > 100 && zone.state != 'in-sync'", "zone.proxiesRejected > 0 || zone.proxiesPending >= 3",
		"zone.silentSeconds > 5.5", "zone.name.startsWith('c') && zone.lastError != ''", "zone.quarantined > 0", "zone.instances < 2",
	} {
		require.NoError(t, c.Check(text), text)
	}
	for text, says := range map[string]string{
		"zone.lagg > 1":      "the variables are zone.connected",
		"zone":               "undeclared",
		"zone.lag":           "true or false",
		"zone.connected > 1": "no matching overload",
		"zone.lag >":         "Syntax error",
		"now() > 1":          "undeclared",
		strings.Repeat("!", 5000) + "zone.connected": "at most 4096",
	} {
		require.ErrorContains(t, c.Check(text), says, "%.40s", text)
	}
}

func TestConditionsOfAZone(t *testing.T) {
	c, err := NewConditions()
	require.NoError(t, err)
	zone := &Zone{Name: "east", Health: Health{State: "lagging", Connected: true, Instances: 1, Lag: 7, Quarantined: 1, SilentSeconds: 2.5, ProxiesRejected: 3}}
	for text, want := range map[string]string{
		"":                         "",
		"!zone.connected":          "",
		"zone.lag > 7":             "",
		"zone.lag > 6":             "zone.lag > 6 is true of zone east (zone.lag = 7)",
		"zone.proxiesRejected > 2": "zone.proxiesRejected > 2 is true of zone east (zone.proxiesRejected = 3)",
		"zone.state == 'lagging'":  `zone.state == 'lagging' is true of zone east (zone.state = "lagging")`,
		"zone.lag / 0 > 1":         "could not be decided for zone east: division by zero",
		"zone.silentSeconds > 2.0": "zone.silentSeconds > 2.0 is true of zone east (zone.silentSeconds = 2.5)",
	} {
		verdict := c.Halts(t.Context(), text, zone)
		require.Equal(t, want != "", verdict.Halts != "", text)
		require.Contains(t, verdict.Halts, want)
		require.Empty(t, verdict.Unknown)
	}
	list := "[" + strings.TrimSuffix(strings.Repeat("0,", 40), ",") + "]"
	loop := list + ".all(a, " + list + ".all(b, " + list + ".all(c, " + list + ".all(d, a == b && c == d && zone.connected))))"
	require.NoError(t, c.Check(loop))
	require.Contains(t, c.Halts(t.Context(), loop, zone).Halts, "exceeds the cost limit")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.Empty(t, c.Halts(ended, loop, zone), "a server that stops halts nothing")
}

// What is unknown of a zone is no number: a condition that needs it is not decided. One
// that the other values decide is.
func TestConditionsOnWhatIsUnknown(t *testing.T) {
	c, err := NewConditions()
	require.NoError(t, err)
	zone := &Zone{Name: "east", Health: Health{Lag: 7, ProxiesUnknown: "not connected"}}
	for text, want := range map[string]struct {
		asks, halts, unknown bool
	}{
		"zone.lag > 7": {},
		"zone.lag > 6": {halts: true},
		"zone.lastError == 'zone.proxiesPending'":          {},
		"zone.proxiesRejected > 0":                         {asks: true, unknown: true},
		"zone . proxiesRejected > 0":                       {asks: true, unknown: true},
		"zone.proxiesRejected == 0":                        {asks: true, unknown: true},
		"zone.proxiesPending > 3 && zone.connected":        {asks: true},
		"zone.proxiesPending > 3 || !zone.connected":       {asks: true, halts: true},
		"zone.proxiesPending > 3 || zone.connected":        {asks: true, unknown: true},
		"zone.connected ? zone.proxiesPending > 3 : false": {asks: true},
	} {
		verdict := c.Halts(t.Context(), text, zone)
		require.Equal(t, want.asks, c.AsksProxies(text), text)
		require.Equal(t, want.halts, verdict.Halts != "", "%s: %s", text, verdict.Halts)
		require.Equal(t, want.unknown, verdict.Unknown != "", "%s: %s", text, verdict.Unknown)
		if want.unknown {
			require.Equal(t, "the proxies of zone east (not connected)", verdict.Unknown)
		}
	}
}

func FuzzConditions(f *testing.F) {
	c, err := NewConditions()
	require.NoError(f, err)
	f.Add("zone.lag > 100 || !zone.connected", uint64(3), "x")
	f.Add("zone.lastError.matches('a+')", uint64(3), "aaa")
	f.Fuzz(func(t *testing.T, text string, lag uint64, lastError string) {
		if c.Check(text) != nil {
			return
		}
		zone := &Zone{Name: "z", Health: Health{Lag: lag, LastError: lastError}}
		require.Empty(t, c.Halts(t.Context(), text, zone).Unknown)
		zone.Health.ProxiesUnknown = "not asked"
		verdict := c.Halts(t.Context(), text, zone)
		require.True(t, verdict.Halts == "" || verdict.Unknown == "")
	})
}
