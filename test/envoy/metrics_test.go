package envoy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metricsv1 "go.opentelemetry.io/proto/otlp/metrics/v1"

	"meridian/internal/agent"
	"meridian/internal/meshca/meshcatest"
	"meridian/internal/policy"
	"meridian/internal/resource"
	meridianxds "meridian/internal/xds"
)

// exposing has an agent answer who reads the metrics of an Envoy.
func exposing(t *testing.T, e *envoy) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(e.cmd.Dir, meridianxds.EnvoyMetrics))
	require.NoError(t, err)
	metrics := agent.NewMetrics(e.admin)
	server := &http.Server{Handler: metrics, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // it ends by Close
	}()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		<-done
		metrics.Close()
	})
}

// pages serves a text at each of some paths, and returns the port.
func pages(t *testing.T, texts map[string]string) int {
	t.Helper()
	listener := local(t)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, texts[r.URL.Path])
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // it ends by Close
	}()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		<-done
	})
	return listener.Addr().(*net.TCPAddr).Port
}

// observed is an Envoy whose metrics are exposed, after a request, and a policy that says
// so; %d is a port, where reads reads metrics.
func observed(t *testing.T) (z *zone, policy func(conf string, values ...any), reads *client) {
	t.Helper()
	z = newZone(t)
	port, exposed := free(t), free(t)
	one := start(t, "one")
	z.apply(z.put(resource.KindDataplane, "m", "in-1", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"servicePort":%d,
		"tags":{"kuma.io/service":"in","kuma.io/protocol":"http"}}]}}`, port, one.port)))
	exposing(t, z.launch("in-1"))
	require.Empty(t, z.settle("in-1"))
	newClient(t, port).get("/")
	return z, func(conf string, values ...any) {
		t.Helper()
		z.apply(z.put(resource.KindMeshMetrics, "m", "p", `{"targetRef":{"kind":"Mesh"},"default":{`+fmt.Sprintf(conf, append([]any{exposed}, values...)...)+`}}`))
		require.Empty(t, z.settle("in-1"))
	}, newClient(t, exposed)
}

const (
	exposedAt = `"backends":[{"type":"Prometheus","prometheus":{"port":%d}}]`
	// seen is a metric that an Envoy has after a request, unseen one that stays 0.
	seen, unseen = "\nenvoy_http_downstream_rq_total{", "\nenvoy_http_downstream_rq_rejected_via_ip_detection{"
)

// upTo waits until what is at a path holds, and returns it.
func (c *client) upTo(path string, holds func(string) bool) string {
	c.t.Helper()
	for {
		if a, err := c.try(http.MethodGet, path); err == nil && a.status == http.StatusOK && holds("\n"+a.body) {
			return "\n" + a.body
		}
		require.NoError(c.t, c.t.Context().Err())
	}
}

func thatSays(text string) func(string) bool {
	return func(body string) bool { return strings.Contains(body, text) }
}

// Metrics are read at the port and the path that are written; another port takes the place
// of it without a restart, and so do other filters.
func TestMetricsAreRead(t *testing.T) {
	_, policy, reads := observed(t)
	policy(exposedAt)
	body := reads.upTo("/metrics", thatSays(seen))
	require.NotContains(t, body, unseen)
	require.Equal(t, http.StatusNotFound, reads.get("/").status)
	a, err := reads.try(http.MethodPost, "/metrics")
	require.NoError(t, err)
	require.Equal(t, http.StatusNotFound, a.status)

	policy(`"backends":[{"type":"Prometheus","prometheus":{"port":%d,"path":"/m"}}],"sidecar":{"includeUnused":true}`)
	reads.upTo("/m", thatSays(unseen))
	require.Equal(t, http.StatusNotFound, reads.get("/metrics").status)

	// What a caller writes in the header of the agent has no effect.
	require.NotEqual(t, http.StatusBadRequest, reads.get("/m", meridianxds.MetricsHeader, "x").status)

	policy(exposedAt + `,"sidecar":{"profiles":{"appendProfiles":[{"name":"None"}],"include":[{"type":"Exact","match":"envoy_server_live"}]}}`)
	body = reads.upTo("/metrics", func(body string) bool { return !strings.Contains(body, seen) })
	require.Contains(t, body, "\nenvoy_server_live{} 1\n")
	require.Equal(t, 1, strings.Count(body, "# TYPE"), body)

	policy(exposedAt + `,"sidecar":{"profiles":{"appendProfiles":[{"name":"Basic"}],"exclude":[{"type":"Regex","match":"^envoy_server_(live|uptime)$"},{"type":"Contains","match":"stream_rq_t"}]}}`)
	body = reads.upTo("/metrics", thatSays("\nenvoy_http_downstream_rq_xx{"))
	for _, gone := range []string{"envoy_server_live", "envoy_server_uptime", seen, "envoy_listener_manager"} {
		require.NotContains(t, body, gone)
	}

	other := free(t)
	policy(`"sidecar":{},"backends":[{"type":"Prometheus","prometheus":{"port":%[2]d}}]`, other)
	newClient(t, other).upTo("/metrics", thatSays(seen))
	for {
		if _, err := reads.try(http.MethodGet, "/metrics"); err != nil {
			break
		}
		require.NoError(t, t.Context().Err())
		reads.http.CloseIdleConnections()
	}
}

// The metrics of applications are among those of Envoy, with their names; one that says
// none is reported.
func TestMetricsOfApplicationsAreRead(t *testing.T) {
	_, policy, reads := observed(t)
	const same = "# TYPE requests counter\nrequests{a=\"b\",application=\"x\"} "
	port := pages(t, map[string]string{"/metrics": same + "1\n# TYPE envoy_server_live gauge\nenvoy_server_live 7\n", "/two": same + "2\n", "/three": "this is no metric\n"})
	policy(exposedAt+`,"applications":[{"name":"one","port":%[2]d,"address":"127.0.0.1"},{"name":"two","path":"/two","port":%[2]d},{"name":"three","path":"/three","port":%[2]d}]`, port)
	body := reads.upTo("/metrics", thatSays("\nrequests{"))
	require.Contains(t, body, "\nrequests{a=\"b\",application=\"one\"} 1\nrequests{a=\"b\",application=\"two\"} 2\n")
	require.Contains(t, body, "\nmeridian_application_up{application=\"two\"} 1\n")
	require.Contains(t, body, "\nmeridian_application_up{application=\"three\"} 0\n")
	require.NotContains(t, body, "this is")
	require.Equal(t, 1, strings.Count(body, "# TYPE envoy_server_live "))
	require.NotContains(t, body, "envoy_server_live 7")
}

// Where no policy names backends, the one that is enabled in the Mesh holds.
func TestMetricsOfTheMeshAreRead(t *testing.T) {
	z, policy, reads := observed(t)
	port, other := pages(t, map[string]string{"/a": "x 1\n"}), free(t)
	mesh := func(enabled string) {
		z.mesh(fmt.Sprintf(`{"metrics":{"enabledBackend":%q,"backends":[
			{"name":"one","type":"prometheus","conf":{"port":%s,"path":"/one","aggregate":[{"name":"a","path":"/a","port":%d},{"name":"b","port":1,"enabled":false}]}},
			{"name":"two","type":"prometheus","conf":{"port":%d}}]}}`, enabled, reads.url[strings.LastIndex(reads.url, ":")+1:], port, other))
		require.Empty(t, z.settle("in-1"))
	}
	mesh("one")
	body := reads.upTo("/one", thatSays(seen))
	require.Contains(t, body, "\nx{application=\"a\"} 1\n")
	require.NotContains(t, body, `application="b"`)
	z.mesh(fmt.Sprintf(`{"metrics":{"enabledBackend":"one","backends":[{"name":"one","type":"prometheus","conf":{"port":%s,"path":"/one","envoy":{"filterRegex":"downstream_rq_(total|rejected)","usedOnly":false}}}]}}`, reads.url[strings.LastIndex(reads.url, ":")+1:]))
	require.Empty(t, z.settle("in-1"))
	body = reads.upTo("/one", thatSays(unseen))
	require.Contains(t, body, seen)
	require.NotContains(t, body, "envoy_server_live")
	mesh("two")
	newClient(t, other).upTo("/metrics", thatSays(seen))
	policy(`"backends":[{"name":"one"}],"sidecar":{"includeUnused":%[2]t}`, true)
	reads.upTo("/one", thatSays(unseen))
	// Nothing is exposed with a type that is not known.
	z.mesh(fmt.Sprintf(`{"metrics":{"enabledBackend":"one","backends":[{"name":"one","type":"other","conf":{"port":%s,"path":"/one"}}]}}`, reads.url[strings.LastIndex(reads.url, ":")+1:]))
	require.Empty(t, z.settle("in-1"))
	for {
		reads.http.CloseIdleConnections()
		if _, err := reads.try(http.MethodGet, "/one"); err != nil {
			return
		}
		require.NoError(t, t.Context().Err())
	}
}

// Metrics are sent to the collector that is written, again and again: those of Envoy that are
// chosen, and those of applications.
func TestMetricsAreSentToACollector(t *testing.T) {
	_, policy, _ := observed(t)
	listener := local(t)
	got := make(chan map[string]bool, 1)
	exports(t, listener, agent.ExportMetrics, func(data *metricsv1.MetricsData) {
		names := map[string]bool{}
		for _, r := range data.GetResourceMetrics() {
			for _, s := range r.GetScopeMetrics() {
				for _, m := range s.GetMetrics() {
					names[m.GetName()] = true
				}
			}
		}
		select {
		case got <- names:
		default:
		}
	})
	until := func(holds func(names map[string]bool) bool) {
		t.Helper()
		for !holds(<-got) {
			require.NoError(t, t.Context().Err())
		}
	}
	port := pages(t, map[string]string{"/metrics": "x 1\n"})
	const sent = `"backends":[{"type":"OpenTelemetry","openTelemetry":{"endpoint":%[2]q,"refreshInterval":"1s"}}],"applications":[{"name":"a","port":%[3]d}]`
	policy(sent, listener.Addr(), port)
	until(func(names map[string]bool) bool { return names["envoy_http_downstream_rq_total"] && names["x"] })
	policy(sent+`,"sidecar":{"profiles":{"appendProfiles":[{"name":"None"}],"include":[{"type":"Exact","match":"envoy_server_live"}]}}`, listener.Addr(), port)
	until(func(names map[string]bool) bool {
		return names["envoy_server_live"] && !names["envoy_http_downstream_rq_total"] && names["x"]
	})
}

// A port that another process has, or an inbound, is not shared: it is said who has it.
func TestAPortOfMetricsThatIsTaken(t *testing.T) {
	z, policy, reads := observed(t)
	taken := local(t)
	t.Cleanup(func() { _ = taken.Close() })
	port := taken.Addr().(*net.TCPAddr).Port
	z.apply(z.put(resource.KindMeshMetrics, "m", "p", fmt.Sprintf(`{"targetRef":{"kind":"Mesh"},"default":{`+exposedAt+`}}`, port)))
	var refused []string
	z.waitFor(func() bool { refused = z.settle("in-1"); return len(refused) > 0 })
	require.Contains(t, refused[0], "metrics_"+strconv.Itoa(port))
	require.Contains(t, refused[0], "Address already in use")
	policy(exposedAt)
	reads.upTo("/metrics", thatSays(seen))

	// Another Envoy of this user does not share it either.
	z.apply(z.put(resource.KindDataplane, "m", "in-2", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"servicePort":%d,"tags":{"kuma.io/service":"in"}}]}}`, free(t), free(t))))
	z.launch("in-2")
	refused = z.settle("in-2")
	require.Len(t, refused, 1)
	require.Contains(t, refused[0], "Address already in use")
}

// With the certificates of the mesh, only who has one reads metrics.
func TestMetricsWithMutualTLS(t *testing.T) {
	c, ca := joined(t, "http", mutualTLS)
	exposing(t, c.envoy)
	port := free(t)
	c.zone.apply(c.zone.put(resource.KindMeshMetrics, "m", "p", fmt.Sprintf(`{"targetRef":{"kind":"Mesh"},"default":{"backends":[{"type":"Prometheus","prometheus":{"port":%d,"tls":{"mode":"ActiveMTLSBackend"}}}]}}`, port)))
	require.Empty(t, c.zone.settle("backend-1"))
	at := fmt.Sprintf("127.0.0.1:%d", port)
	mine := meshcatest.Issue(t, ca, "m", "prometheus-1", resource.Tags{resource.ServiceTag: "prometheus"})
	pair := mine.Pair(t)
	presenting(t, &pair).until(t, at+"/metrics", func(a answer, err error) bool {
		return err == nil && a.status == http.StatusOK && strings.Contains(a.body, "envoy_server_live")
	})
	for name, certificate := range meshcatest.Forgeries(t, ca, "m", mine) {
		_, err := presenting(t, &certificate).get(at + "/metrics")
		require.Error(t, err, name)
	}
	_, err := presenting(t, nil).get(at + "/metrics")
	require.Error(t, err, "plaintext")

	// Without certificates there is no such endpoint, rather than one without TLS.
	c.zone.apply(c.zone.put(resource.KindMesh, "", "m", "{}"))
	require.Empty(t, c.zone.settle("backend-1"))
	set, err := c.zone.feed.Resources(policy.DataplaneKey("m", "backend-1"), meridianxds.Envoy)
	require.NoError(t, err)
	require.Nil(t, set.Get(meridianxds.Ref{Type: meridianxds.Listener, Name: "metrics_" + strconv.Itoa(port)}))
}
