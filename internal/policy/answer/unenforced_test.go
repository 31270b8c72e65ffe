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
