package envoy_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate/envoy"
	"meridian/internal/xds/world"
	"meridian/internal/xds/xdstest"
)

const builtin = `"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}`

// What cannot be exposed as it is written is not exposed otherwise, and told of with the
// policy or the Mesh that says so.
func TestWhereMetricsAreExposed(t *testing.T) {
	prometheus := func(conf string) string {
		return `"backends":[{"type":"Prometheus","prometheus":{` + conf + `}}]`
	}
	backend := func(typ, conf string) string {
		return `"metrics":{"enabledBackend":"b","backends":[{"name":"b","type":"` + typ + `","conf":` + conf + `}]}`
	}
	for name, c := range map[string]struct {
		// mesh are members of the Mesh, and conf those of a policy; none without it.
		mesh, conf, address string
		// ports are those of the listeners, with whether TLS is demanded.
		ports string
		told  string
	}{
		"by default":             {"", prometheus(""), "", "5670", ""},
		"nothing":                {"", `"sidecar":{}`, "", "", ""},
		"two":                    {"", `"backends":[{"type":"Prometheus","prometheus":{"port":1}},{"type":"Prometheus","prometheus":{"port":2}}]`, "", "1 2", ""},
		"two with one port":      {"", `"backends":[{"type":"Prometheus","prometheus":{"port":1}},{"type":"Prometheus","prometheus":{"port":1,"path":"/m"}}]`, "", "1", "MeshMetrics /backends/1 a backend before it has port 1"},
		"the port of an inbound": {"", prometheus(`"port":80`), "", "", "MeshMetrics /backends/0 an inbound or outbound of the dataplane listens at port 80"},
		"a host name":            {"", prometheus(""), "host", "", "MeshMetrics /backends/0 Envoy listens on IP addresses, and host is a host name"},
		"the mesh's":             {backend("prometheus", `{}`), "", "", "5670", ""},
		"an unknown type":        {backend("statsd", `{}`), "", "", "", "Mesh /metrics/enabledBackend no metrics are exposed with type statsd"},
		"no expression":          {backend("prometheus", `{"envoy":{"filterRegex":"("}}`), "", "", "", "envoy.filterRegex is no regular expression"},
		"a wrong conf":           {backend("prometheus", `{"port":"x"}`), "", "", "", "Mesh /metrics/enabledBackend its conf is not that of a backend of type prometheus"},
		"no port":                {backend("prometheus", `{"port":65536}`), "", "", "", "65536 is no port"},
		"no path":                {backend("prometheus", `{"path":"m"}`), "", "", "", "the path of metrics begins with a slash"},
		"turned off":             {backend("prometheus", `{}`), `"backends":[]`, "", "", ""},
		"of no such name":        {backend("prometheus", `{}`), `"backends":[{"name":"x"}]`, "", "", "MeshMetrics /backends/0 the mesh has no such metrics backend"},
		"with mutual TLS":        {builtin, prometheus(`"tls":{"mode":"ActiveMTLSBackend"}`), "", "5670+TLS", ""},
		"by the mesh's":          {builtin + "," + backend("prometheus", `{}`), "", "", "5670+TLS", ""},
		"skipped":                {builtin + "," + backend("prometheus", `{"skipMTLS":true}`), "", "", "5670", ""},
		"turned off by mode":     {builtin + "," + backend("prometheus", `{"tls":{"mode":"disabled"}}`), "", "", "5670", ""},
		"turned on by mode":      {builtin + "," + backend("prometheus", `{"skipMTLS":true,"tls":{"mode":"activeMTLSBackend"}}`), "", "", "5670+TLS", ""},
		"PERMISSIVE":             {strings.Replace(builtin, `"builtin"`, `"builtin","mode":"PERMISSIVE"`, 1) + "," + backend("prometheus", `{}`), "", "", "5670+TLS", ""},
		"without certificates":   {"", prometheus(`"tls":{"mode":"ActiveMTLSBackend"}`), "", "", "MeshMetrics /backends/0 dataplanes of the mesh have no certificates"},
		"provided certificates":  {builtin, prometheus(`"tls":{"mode":"ProvidedTLS"}`), "", "", "MeshMetrics /backends/0 there is no certificate for TLS mode ProvidedTLS"},
		"too much":               {"", prometheus("") + `,"sidecar":{"profiles":{"include":[{"type":"Exact","match":"` + strings.Repeat("é", 4000) + `"}]}}`, "", "", "no metrics are exposed; write fewer"},
		"many applications":      {"", prometheus("") + `,"applications":[` + strings.Repeat(`{"port":1},`, 16) + `{"port":2}]`, "", "5670", "MeshMetrics /applications of the applications beside a dataplane the metrics of the first 16 are exposed, and there are 17"},
	} {
		t.Run(name, func(t *testing.T) {
			w := callee(t, "STRICT", httpInbound)
			w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, "{"+c.mesh+"}")
			if c.address != "" {
				put(t, w, resource.KindDataplane, "backend-1", `{"networking":{"address":"`+c.address+`","inbound":[`+httpInbound+`]}}`)
			}
			if c.conf != "" {
				put(t, w, resource.KindMeshMetrics, "p", `{"targetRef":{"kind":"Mesh"},"default":{`+c.conf+`}}`)
			}
			set := generate(t, w, "backend-1")
			require.Empty(t, set.Withheld)
			var ports []string
			for _, r := range set.Of(xds.Listener) {
				if port, ok := strings.CutPrefix(r.Name, "metrics_"); ok {
					l := listener(t, set, r.Name)
					xdstest.RequireRules(t, l)
					if l.GetFilterChains()[0].GetTransportSocket() != nil {
						port += "+TLS"
					}
					ports = append(ports, port)
				}
			}
			require.Equal(t, c.ports, strings.Join(ports, " "))

			state := world.New("east")
			m := policy.NewMatcher(engines.All()...).Following(state)
			m.Reset(w.View())
			key := policy.DataplaneKey("m", "backend-1")
			rules, err := m.Effective(key)
			require.NoError(t, err)
			r, _ := state.Dataplane(key)
			unexposed, err := envoy.NotExposed("m", state.Mesh("m"), r.Spec().(*resource.Dataplane), rules)
			require.NoError(t, err)
			if c.told == "" {
				require.Empty(t, unexposed)
				return
			}
			require.Len(t, unexposed, 1)
			require.Contains(t, fmt.Sprint(unexposed[0].Source.Kind, " ", unexposed[0].Field, " ", unexposed[0].Why), c.told)
		})
	}
}

// Metrics are sent to collectors at an interval: what cannot be sent as it is written is told
// of with the policy.
func TestWhereMetricsAreSent(t *testing.T) {
	to := func(conf string) string {
		return `"backends":[{"type":"OpenTelemetry","openTelemetry":{` + conf + `}}]`
	}
	for name, c := range map[string]struct {
		conf, want, told string
	}{
		"by default":        {to(`"endpoint":"collector"`), "collector:4317 1m0s", ""},
		"as written":        {to(`"endpoint":"[::1]:1","refreshInterval":"15s"`), "[::1]:1 15s", ""},
		"too often":         {to(`"endpoint":"a:1","refreshInterval":"1ms"`), "a:1 1s", ""},
		"no address":        {to(`"endpoint":"a:b"`), "", "the endpoint of a collector is HOST:PORT"},
		"beside Prometheus": {`"backends":[{"type":"Prometheus","prometheus":{}},{"type":"OpenTelemetry","openTelemetry":{"endpoint":"a:1"}}]`, "a:1 1m0s", ""},
		"twice":             {`"backends":[{"type":"OpenTelemetry","openTelemetry":{"endpoint":"a"}},{"type":"OpenTelemetry","openTelemetry":{"endpoint":"a:4317"}}]`, "a:4317 1m0s", "a backend before it has the same endpoint"},
		"too much":          {to(`"endpoint":"a"`) + `,"sidecar":{"profiles":{"include":[{"type":"Exact","match":"` + strings.Repeat("é", 4000) + `"}]}}`, "", "no metrics are exposed; write fewer"},
	} {
		t.Run(name, func(t *testing.T) {
			w := callee(t, "STRICT", httpInbound)
			w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, "{}")
			put(t, w, resource.KindMeshMetrics, "p", `{"targetRef":{"kind":"Mesh"},"default":{`+c.conf+`}}`)
			set := generate(t, w, "backend-1")
			require.Empty(t, set.Withheld)
			var got []string
			for _, r := range set.Of(xds.Cluster) {
				if !strings.HasPrefix(r.Name, "metrics_to_") {
					continue
				}
				m, err := r.Message()
				require.NoError(t, err)
				xdstest.RequireRules(t, m)
				check := m.(*clusterv3.Cluster).GetHealthChecks()[0]
				require.Equal(t, check.GetInterval().AsDuration(), check.GetNoTrafficInterval().AsDuration())
				var settings xds.MetricsSettings
				require.NoError(t, json.Unmarshal([]byte(check.GetHttpHealthCheck().GetRequestHeadersToAdd()[0].GetHeader().GetValue()), &settings))
				got = append(got, settings.Collector+" "+check.GetInterval().AsDuration().String())
			}
			require.Equal(t, c.want, strings.Join(got, ", "))
			state := world.New("east")
			m := policy.NewMatcher(engines.All()...).Following(state)
			m.Reset(w.View())
			key := policy.DataplaneKey("m", "backend-1")
			rules, err := m.Effective(key)
			require.NoError(t, err)
			r, _ := state.Dataplane(key)
			unexposed, err := envoy.NotExposed("m", state.Mesh("m"), r.Spec().(*resource.Dataplane), rules)
			require.NoError(t, err)
			if c.told == "" {
				require.Empty(t, unexposed)
				return
			}
			require.Len(t, unexposed, 1)
			require.Contains(t, unexposed[0].Why, c.told)
		})
	}
}

// An agent is told in a header what to expose, whatever is in it.
func TestSettingsOfMetricsAreAHeader(t *testing.T) {
	w := callee(t, "STRICT", httpInbound)
	w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, "{}")
	const match = "100% é 😀 \\n \" %REQ(a)%"
	text, err := json.Marshal(match)
	require.NoError(t, err)
	put(t, w, resource.KindMeshMetrics, "p", `{"targetRef":{"kind":"Mesh"},"default":{"backends":[{"type":"Prometheus","prometheus":{}}],"applications":[{"port":1}],"sidecar":{"profiles":{"appendProfiles":[],"include":[{"type":"Exact","match":`+string(text)+`}]}}}}`)
	l := listener(t, generate(t, w, "backend-1"), "metrics_5670")
	value := managerOf(t, l.GetFilterChains()[0]).GetRouteConfig().GetVirtualHosts()[0].GetRoutes()[0].GetRequestHeadersToAdd()[0].GetHeader().GetValue()
	for _, c := range value {
		require.True(t, c >= ' ' && c < 0x7f, "%q", c)
	}
	require.NotContains(t, strings.ReplaceAll(value, "%%", ""), "%")
	var got xds.MetricsSettings
	require.NoError(t, json.Unmarshal([]byte(strings.ReplaceAll(value, "%%", "%")), &got))
	require.Equal(t, match, got.Sidecar.Profiles.Include[0].Match)
	require.NotNil(t, got.Sidecar.Profiles.AppendProfiles)
	require.Equal(t, "10.0.0.1", *got.Applications[0].Address)
}
