package answer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

func about(zone resource.ZoneName, warnings ...answer.Warning) answer.Part {
	document, err := answer.Marshal(&answer.PolicyAnswer{Kind: "Timeout", Mesh: "m", Name: "t", AsOf: 3, MeshDataplanes: 1, Warnings: warnings})
	if err != nil {
		panic(err)
	}
	return answer.Part{Zone: zone, JSON: document}
}

func short(path, note string, zone resource.ZoneName, proxies int) answer.Warning {
	return answer.UnenforcedWarning(path, &answer.Unenforced{Dialect: "grpc", Status: "unsupported", Note: note, Zones: []answer.UnenforcedIn{{Zone: zone, Proxies: proxies}}})
}

func merged(t *testing.T, parts ...answer.Part) *answer.PolicyAnswer {
	t.Helper()
	document, err := answer.MergePolicies(parts, func([]answer.Rejected) []answer.Absence { return []answer.Absence{{Zone: "away"}} })
	require.NoError(t, err)
	var a answer.PolicyAnswer
	require.NoError(t, answer.Unmarshal(document, &a))
	return &a
}

// What proxies do not obey is counted for each zone, and need not be so in all of them.
func TestUnenforcedInSeveralZones(t *testing.T) {
	a := merged(t, about(""), about("west", short("conf.tcp", "", "west", 1)), about("east", short("conf.tcp", "", "east", 8), short("conf.http", "why", "east", 2)), about("quiet"))
	require.Equal(t, []string{
		"conf.tcp: has no effect on 8 gRPC proxies in zone east, 1 in zone west",
		"conf.http: has no effect on 2 gRPC proxies in zone east: why",
	}, a.WarningLines())
	require.Equal(t, "has no effect on gRPC proxies: why", a.Warnings[1].Unenforced.Cause())
	var parts []answer.Part
	for i := range 5 {
		zone := resource.ZoneName(fmt.Sprintf("z%d", i))
		parts = append(parts, about(zone, short("conf.tcp", "", zone, 2)))
	}
	require.Equal(t, []string{"conf.tcp: has no effect on 2 gRPC proxies in zone z0, 2 in zone z1, 2 in zone z2, 4 in 2 other zones"}, merged(t, parts...).WarningLines())
	require.Equal(t, []string{"conf.tcp: has no effect on 2 gRPC proxies in zone z0, 2 in zone z1, 2 in zone z2, 2 in another zone"}, merged(t, parts[:4]...).WarningLines())
}

// A zone speaks for itself, in its own words only to a bound.
func TestUnenforcedOfAHostileZone(t *testing.T) {
	var many []answer.Warning
	for i := range 100 {
		many = append(many, short(fmt.Sprintf("conf.f%d", i), "", "evil", 1))
	}
	long := short("conf.long", strings.Repeat("x", 5000), "evil", 1)
	lying := short("conf.lie", "", "east", 1)
	lying.Message = "east is broken"
	a := merged(t, about("evil", append([]answer.Warning{long, lying}, many...)...), about("east", short("conf.own", "", "east", 3)))
	require.Len(t, a.Warnings, 16)
	require.Equal(t, "conf.lie: has no effect on 1 gRPC proxy in zone evil", a.WarningLines()[0])
}

// Who may not read a zone is not told its name.
func TestUnenforcedInAHiddenZone(t *testing.T) {
	a := merged(t, about("east", short("conf.tcp", "", "east", 8)), about("west", short("conf.tcp", "", "west", 1)))
	a.HideZones(func(key resource.Key) (bool, bool) { return key.Name == "west", true })
	require.Equal(t, []string{"conf.tcp: has no effect on 8 gRPC proxies in zone another, 1 in zone west"}, a.WarningLines())
	document, err := answer.Marshal(a)
	require.NoError(t, err)
	require.NotContains(t, string(document), "east")
}

// How many proxies obey a policy is told of each zone, or of all where there are many.
func TestEnforcedInSeveralZones(t *testing.T) {
	part := func(zone resource.ZoneName, obey, all int) answer.Part {
		document, err := answer.Marshal(&answer.ConditionsAnswer{Kind: "Timeout", AsOf: 3, Items: []answer.ConditionsItem{
			answer.EnforcedItem(resource.Key{Kind: "Timeout", Mesh: "m", Name: "t"}, []answer.ProxiesIn{{Zone: "a lie", Obey: obey, Proxies: all}}),
		}})
		require.NoError(t, err)
		return answer.Part{Zone: zone, JSON: document}
	}
	for _, c := range []struct {
		parts        []answer.Part
		text, reason string
	}{
		{[]answer.Part{part("east", 10, 10)}, "10 of 10 in east", "AllProxies"},
		{[]answer.Part{part("east", 8, 10), part("west", 3, 3)}, "8 of 10 in east, 3 of 3 in west", "SomeProxies"},
		{[]answer.Part{part("a", 0, 2), part("b", 0, 2), part("c", 0, 2), part("d", 0, 2)}, "0 of 8 in 4 zones", "NoProxy"},
	} {
		document, err := answer.MergeConditions(c.parts, func([]answer.Rejected) []answer.Absence { return nil })
		require.NoError(t, err)
		var a answer.ConditionsAnswer
		require.NoError(t, answer.Unmarshal(document, &a))
		require.Len(t, a.Items, 1)
		got := a.Items[0].Conditions[0]
		require.Equal(t, c.text, got.ProxiesText())
		require.Equal(t, c.reason, got.Reason)
		a.HideZones(func(key resource.Key) (bool, bool) { return key.Name != "east", true })
		require.NotContains(t, got.ProxiesText(), "east")
		a.Restrict(func(resource.Key) (bool, bool) { return true, true })
		require.Empty(t, a.Items[0].Conditions[0].Proxies)
	}
}
