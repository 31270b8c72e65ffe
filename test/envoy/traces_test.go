package envoy

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"

	"meridian/internal/agent"
	"meridian/internal/resource"
)

// collector takes what is sent to it by HTTP: the paths and bodies, the latest of each
// kind.
func collector(t *testing.T) (string, <-chan *http.Request, <-chan []byte) {
	listener := local(t)
	requests, bodies := make(chan *http.Request, 1), make(chan []byte, 1)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && len(body) > 0 {
			select {
			case requests <- r:
				bodies <- body
			default:
			}
		}
		w.WriteHeader(http.StatusAccepted)
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
	return listener.Addr().String(), requests, bodies
}

// span is one of Zipkin's.
type span struct {
	Kind, Name string
	TraceID    string `json:"traceId"`
	Tags       map[string]string
}

func TestRequestsAreTracedToZipkin(t *testing.T) {
	z, c := outbound(t, "http", start(t, "one"))
	address, requests, bodies := collector(t)
	z.mesh(fmt.Sprintf(`{"tracing":{"defaultBackend":"z","backends":[{"name":"z","type":"zipkin","sampling":100,"conf":{"url":"http://%s/api/v2/spans"}}]}}`, address))
	z.set(resource.KindTrafficTrace, `{}`)
	c.until("/traced", func(answer) bool { return len(bodies) > 0 })
	require.Equal(t, "/api/v2/spans", (<-requests).RequestURI)
	var spans []span
	require.NoError(t, json.Unmarshal(<-bodies, &spans))
	require.Equal(t, "CLIENT", spans[0].Kind)
	require.Len(t, spans[0].TraceID, 16)
	require.Contains(t, spans[0].Tags["http.url"], "/traced")
}

// A policy names a backend of the Mesh, with its share of the requests.
func TestRequestsAreTracedToANamedBackend(t *testing.T) {
	one := start(t, "one")
	z, c := outbound(t, "http", one)
	preferred, _, spans := collector(t)
	other, _, others := collector(t)
	mesh := func(sampling int) {
		z.mesh(fmt.Sprintf(`{"tracing":{"defaultBackend":"z","backends":[{"name":"z","type":"zipkin","conf":{"url":"http://%s/"}},
			{"name":"other","type":"zipkin","sampling":%d,"conf":{"url":"http://%s/"}}]}}`, preferred, sampling, other))
		require.Empty(t, z.settle("web-1"))
	}
	mesh(100)
	z.set(resource.KindTrafficTrace, `{"backend":"other"}`)
	c.until("/", func(answer) bool { return len(others) > 0 })
	require.Empty(t, spans)
	mesh(0) // of no request, which the application is told
	c.until("/", func(answer) bool { return one.seen.Load().Header.Get("x-b3-sampled") == "0" })
}

func TestSpansHaveTags(t *testing.T) {
	one := start(t, "one")
	z, c := outbound(t, "http", one)
	address, requests, bodies := collector(t)
	z.set(resource.KindMeshTracing, fmt.Sprintf(`{"backends":[{"type":"Zipkin","zipkin":{"url":"http://%s/z","traceId128bit":true}}],"sampling":{"random":100},
		"tags":[{"name":"fixed","literal":"v"},{"name":"team","header":{"name":"x-team","default":"none"}}]}`, address))
	c.until("/traced", func(answer) bool { return len(bodies) > 0 })
	require.Equal(t, "/z", (<-requests).RequestURI)
	var spans []span
	require.NoError(t, json.Unmarshal(<-bodies, &spans))
	require.Len(t, spans[0].TraceID, 32)
	require.Equal(t, "v", spans[0].Tags["fixed"])
	require.Equal(t, "none", spans[0].Tags["team"])
	require.NotEmpty(t, one.seen.Load().Header.Get("x-b3-traceid"))
	// Without requests to be traced, the application is told not to.
	z.set(resource.KindMeshTracing, fmt.Sprintf(`{"backends":[{"type":"Zipkin","zipkin":{"url":"http://%s/z"}}],"sampling":{"overall":0}}`, address))
	c.until("/", func(answer) bool { return one.seen.Load().Header.Get("x-b3-sampled") == "0" })
}

func TestRequestsAreTracedToDatadog(t *testing.T) {
	z, c := outbound(t, "http", start(t, "one"))
	address, requests, bodies := collector(t)
	z.set(resource.KindMeshTracing, fmt.Sprintf(`{"backends":[{"type":"Datadog","datadog":{"url":"http://%s","splitService":true}}]}`, address))
	for {
		c.until("/traced", func(answer) bool { return len(bodies) > 0 })
		request, body := <-requests, <-bodies
		if request.URL.Path == "/v0.4/traces" {
			require.Contains(t, string(body), "web_OUTBOUND_backend")
			return
		}
	}
}

func TestRequestsAreTracedToACollector(t *testing.T) {
	z := newZone(t)
	c := z.inbound(start(t, "one"), "http")
	z.relay()
	listener := local(t)
	got := make(chan *tracev1.TracesData, 1)
	exports(t, listener, agent.ExportTraces, func(data *tracev1.TracesData) {
		select {
		case got <- data:
		default:
		}
	})
	host, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	z.apply(z.put(resource.KindMeshTracing, "m", "p", fmt.Sprintf(`{"targetRef":{"kind":"Service","name":"in"},"default":{"backends":[{"type":"OpenTelemetry","openTelemetry":{"endpoint":"%s:%s"}}]}}`, host, port)))
	require.Empty(t, z.settle("in-1"))
	c.until("/", func(answer) bool { return len(got) > 0 })
	spans := (<-got).GetResourceSpans()[0]
	require.Contains(t, spans.GetResource().String(), `"in"`, "the service")
	require.Equal(t, tracev1.Span_SPAN_KIND_SERVER, spans.GetScopeSpans()[0].GetSpans()[0].GetKind())
}

// What one caller sends that is no UTF-8 loses no span at a collector that demands it: neither
// in what spans have at all times, nor in a tag of a policy.
func TestACollectorTakesSpansWithTextsThatAreNoUTF8(t *testing.T) {
	z, c := outbound(t, "http", start(t, "one"))
	z.relay()
	listener := local(t)
	const requests = 20
	got := make(chan map[string]string, 1000)
	exports(t, listener, agent.ExportTraces, func(data *tracev1.TracesData) {
		for _, r := range data.GetResourceSpans() {
			for _, s := range r.GetScopeSpans() {
				for _, span := range s.GetSpans() {
					tags := map[string]string{}
					for _, a := range span.GetAttributes() {
						tags[a.GetKey()] = a.GetValue().GetStringValue()
					}
					select {
					case got <- tags:
					default:
					}
				}
			}
		}
	})
	z.set(resource.KindMeshTracing, fmt.Sprintf(`{"backends":[{"type":"OpenTelemetry","openTelemetry":{"endpoint":%q}}],
		"tags":[{"name":"number","header":{"name":"x-n"}},{"name":"team","header":{"name":"x-team"}}]}`, listener.Addr()))
	c.until("/", func(answer) bool { return len(got) > 0 })
	for i := range requests {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url+"/", nil)
		require.NoError(t, err)
		request.Header.Set("x-n", strconv.Itoa(i))
		if i%2 == 1 {
			request.Header.Set("User-Agent", "evil \xff\xfe")
			request.Header.Set("x-team", "team \xff\xfe")
		}
		response, err := c.http.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
	}
	seen := map[string]bool{}
	for len(seen) < requests {
		select {
		case tags := <-got:
			if tags["number"] == "" {
				continue
			}
			seen[tags["number"]] = true
			n, err := strconv.Atoi(tags["number"])
			require.NoError(t, err)
			require.Equal(t, map[bool]string{false: "", true: "team \ufffd"}[n%2 == 1], tags["team"])
		case <-t.Context().Done():
			t.Fatalf("spans are missing: there are %v", seen)
		}
	}
}
