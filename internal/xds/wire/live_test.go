package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/wire"
	"meridian/internal/xds/world"
)

// What an Envoy says that it runs is compared by resource: versions, and of endpoints the
// addresses, of which Envoy tells no version.
func TestWhatAnEnvoyRuns(t *testing.T) {
	m := policy.NewMatcher(engines.All()...).Following(world.New("east"))
	m.Reset(mesh(t, "{}").View())
	ask := func(kind string, running *wire.Running) map[string]*wire.Live {
		a, err := wire.AskLive(m, "m", "web-1", kind, xds.Envoy, "east", 7, running)
		require.NoError(t, err)
		live := map[string]*wire.Live{}
		for _, r := range a.Resources {
			live[r.Type+" "+r.Name] = r.Live
		}
		for _, e := range a.Extra {
			live["extra "+e.Type+" "+e.Name] = &wire.Live{Version: e.Version}
		}
		return live
	}
	sent, err := wire.Ask(m, "m", "web-1", "", xds.Envoy, "east", 7)
	require.NoError(t, err)
	require.Nil(t, sent.Resources[0].Live)
	same := func() *wire.Running {
		running := &wire.Running{}
		for _, r := range sent.Resources {
			one := wire.RunningResource{Type: r.Type, Name: r.Name, Version: r.Version}
			if r.Type == "EDS" {
				one.Version = ""
				at := map[bool]string{true: "10.0.0.2:80", false: "10.0.0.1:80"}[strings.Contains(r.Name, "secret")]
				one.Endpoints, one.EndpointCount = []string{at}, 1
			}
			running.Resources = append(running.Resources, one)
		}
		return running
	}
	// An Envoy lists the endpoints that are in a cluster under its name.
	inside := same()
	inside.Resources = append(inside.Resources, wire.RunningResource{Type: "EDS", Name: "local_8080", Endpoints: []string{"127.0.0.1:8080"}, EndpointCount: 1})
	all := ask("", inside)
	require.GreaterOrEqual(t, len(all), 5)
	for name, live := range all {
		require.Equal(t, wire.LiveSame, live.State, "%s: %s", name, live.Message)
	}

	running := same()
	of := func(typ string, nth int) *wire.RunningResource {
		for i := range running.Resources {
			if r := &running.Resources[i]; r.Type == typ {
				if nth--; nth == 0 {
					return r
				}
			}
		}
		require.Fail(t, "there is none", typ)
		return nil
	}
	cluster, endpoints, listener, gone := of("CDS", 1), of("EDS", 1), of("LDS", 1), of("LDS", 2)
	cluster.Version, cluster.Warming = "old", cluster.Version
	endpoints.Endpoints, endpoints.EndpointCount = []string{"10.0.0.9:80"}, 1
	listener.Version, listener.Failed = "older", "the port is taken"
	gone.Type = "CDS" // something that is not sent, in place of what is
	got := ask("", running)
	require.Equal(t, &wire.Live{State: wire.LiveWarming, Version: "old"}, got["CDS "+cluster.Name])
	require.Equal(t, wire.LiveOther, got["EDS "+endpoints.Name].State)
	require.Contains(t, got["EDS "+endpoints.Name].Message, "without 10.0.0.")
	require.Equal(t, &wire.Live{State: wire.LiveOther, Version: "older", Message: "the port is taken"}, got["LDS "+listener.Name])
	require.Equal(t, &wire.Live{State: wire.LiveMissing}, got["LDS "+gone.Name])
	require.Contains(t, got, "extra CDS "+gone.Name)
	require.NotContains(t, ask("LDS", running), "extra CDS "+gone.Name)
	running.Left = 1
	require.Equal(t, &wire.Live{State: wire.LiveUnknown}, ask("", running)["LDS "+gone.Name])

	a, err := wire.AskLive(m, "m", "web-1", "", xds.Envoy, "east", 7, running)
	require.NoError(t, err)
	var page strings.Builder
	require.NoError(t, wire.Render(&page, a, answer.Form{}))
	require.Contains(t, page.String(), "other: older")
	require.Contains(t, page.String(), "the port is taken")
	require.Contains(t, page.String(), "The proxy has also, and is not sent:")
	a.Restrict(func(resource.Key) (bool, bool) { return true, true })
	require.Empty(t, a.Extra)
}
