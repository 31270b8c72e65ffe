package envoy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// An Envoy takes IP addresses only: it does not listen on a host name, and calls no endpoint
// that has one.
func TestHostNamesAreNoAddresses(t *testing.T) {
	t.Run("endpoint", func(t *testing.T) {
		one, two := start(t, "one"), start(t, "two")
		z, c := outbound(t, "http", one, two)
		of := func(dataplane, inbound string) {
			z.apply(z.put(resource.KindDataplane, "m", "one", fmt.Sprintf(`{"networking":{"address":%q,"inbound":[{"port":%d,"address":%q,
				"tags":{"kuma.io/service":"backend","kuma.io/protocol":"http"}}]}}`, dataplane, one.port, inbound)))
			require.Empty(t, z.settle("web-1"))
		}
		for _, named := range [][2]string{{"localhost", ""}, {"127.0.0.1", "localhost"}} {
			of("127.0.0.1", "127.0.0.1")
			c.until("/", func(a answer) bool { return a.body == "one" })
			of(named[0], named[1])
			c.until("/", func(answer) bool { return c.bodies(10)["two"] == 10 })
			require.Equal(t, map[string]int{"two": 50}, c.answered(50, "/"))
		}
	})
	t.Run("outbound", func(t *testing.T) {
		z, c := outbound(t, "http", start(t, "one"))
		at := func(address string) {
			z.apply(z.put(resource.KindDataplane, "m", "web-1", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"servicePort":%d,"tags":{"kuma.io/service":"web"}}],
				"outbound":[{"address":%q,"port":%s,"tags":{"kuma.io/service":"backend"}}]}}`, free(t), free(t), address, c.url[strings.LastIndex(c.url, ":")+1:])))
			require.Empty(t, z.settle("web-1"))
		}
		at("127.0.0.1")
		c.until("/", func(a answer) bool { return a.status == http.StatusOK })
		at("localhost")
		for { // the listener drains
			if _, err := c.try(http.MethodGet, "/"); err != nil {
				break
			}
			c.http.CloseIdleConnections()
			require.NoError(t, t.Context().Err())
		}
	})
}

// What the backends of a Mesh configure is loaded, with the types that Envoy is configured
// for, and nothing with others.
func TestBackendsOfAMeshAreLoaded(t *testing.T) {
	z, _, e := outboundOf(t, "http", start(t, "one"))
	const traces, logs = `"tracing":{"defaultBackend":"b","backends":[{"name":"b",%s}]}`, `"logging":{"defaultBackend":"b","backends":[{"name":"b",%s}]}`
	of := func(config string) string {
		return fmt.Sprintf(`{"typed_config":{"@type":"type.googleapis.com/envoy.%s"}}`, config)
	}
	zipkin, datadog, tcp := of("config.trace.v3.ZipkinConfig"), of("config.trace.v3.DatadogConfig"), of("extensions.access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig")
	for _, tt := range []struct {
		kind           resource.Kind
		section, with  string
		loaded, absent string
	}{
		{
			resource.KindTrafficTrace, traces, `"type":"zipkin","conf":{"url":"http://h.test:9411/z","traceId128bit":true,"apiVersion":"httpProto","sharedSpanContext":false}`,
			`{"typed_config":{"collector_hostname":"h.test:9411","collector_endpoint":"/z","trace_id_128bit":true,"collector_endpoint_version":"HTTP_PROTO","shared_span_context":false}}`, "",
		},
		{resource.KindTrafficTrace, traces, `"type":"zipkin","conf":{"url":"https://h.test/z"}`, "", zipkin},
		{
			resource.KindTrafficTrace, traces, `"type":"datadog","conf":{"address":"127.0.0.1","port":8126,"splitService":true}`,
			`{"typed_config":{"collector_hostname":"127.0.0.1:8126","service_name":"web_OUTBOUND_backend"}}`, zipkin,
		},
		{resource.KindTrafficTrace, traces, `"type":"other","conf":{"address":"127.0.0.1","port":8126}`, "", datadog},
		{resource.KindTrafficLog, logs, `"type":"file","conf":{"path":"/dev/null"}`, `{"typed_config":{"path":"/dev/null"}}`, ""},
		{resource.KindTrafficLog, logs, `"type":"other","conf":{"path":"/dev/null"}`, "", `{"typed_config":{"path":"/dev/null"}}`},
		{resource.KindTrafficLog, logs, `"type":"tcp","conf":{"address":"127.0.0.1:9"}`, tcp, ""},
		{resource.KindTrafficLog, logs, `"type":"tcp","conf":{}`, "", tcp},
	} {
		z.mesh(fmt.Sprintf("{"+tt.section+"}", tt.with))
		z.set(tt.kind, `{}`)
		if tt.loaded != "" {
			require.True(t, e.loads(tt.loaded), tt.with)
		}
		if tt.absent != "" {
			require.False(t, e.loads(tt.absent), tt.with)
		}
	}
}
