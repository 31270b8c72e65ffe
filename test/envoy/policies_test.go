package envoy

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

func v(version string) string {
	return `"destination":{"kuma.io/service":"backend","version":"` + version + `"}`
}

// outbound starts the Envoy of web-1 with servers of backend, one for each protocol that
// is given, whose versions are v1, v2 and so on.
func outbound(t *testing.T, protocol string, servers ...*server) (*zone, *client) {
	t.Helper()
	z, c, _ := outboundOf(t, protocol, servers...)
	return z, c
}

func outboundOf(t *testing.T, protocol string, servers ...*server) (*zone, *client, *envoy) {
	z := newZone(t)
	port := free(t)
	z.apply(z.web(port))
	for i, s := range servers {
		z.apply(z.backend(s.name, s.port, protocol, fmt.Sprintf("v%d", i+1)))
	}
	e := z.launch("web-1")
	require.Empty(t, z.settle("web-1"))
	return z, newClient(t, port), e
}

// set applies a policy and waits until Envoy has it.
func (z *zone) set(kind resource.Kind, conf string) {
	z.t.Helper()
	z.apply(z.policy(kind, conf))
	require.Empty(z.t, z.settle("web-1"))
}

func TestRoutesSplitAndMatch(t *testing.T) {
	one, two := start(t, "one"), start(t, "two")
	z, c := outbound(t, "http", one, two)
	z.set(resource.KindTrafficRoute, `{
		"http":[{"match":{"path":{"exact":"/two"}},`+v("v2")+`},
			{"match":{"method":{"exact":"PUT"},"headers":{"to":{"prefix":"t"}}},`+v("v2")+`}],
		"split":[{"weight":90,`+v("v1")+`},{"weight":10,`+v("v2")+`}]}`)
	c.until("/two", func(a answer) bool { return a.body == "two" })
	counts := c.answered(1000, "/")
	// The deviation is 9.5: more than six times as far happens once in a thousand million runs.
	require.InDelta(t, 100, counts["two"], 60, "%v", counts)
	require.Equal(t, map[string]int{"two": 50}, c.answered(50, "/two"))
	for range 20 {
		a, err := c.try(http.MethodPut, "/", "to", "two")
		require.NoError(t, err)
		require.Equal(t, "two", a.body)
	}
}

func TestATimeoutCuts(t *testing.T) {
	one := start(t, "one")
	z, c := outbound(t, "http", one)
	one.block.Store(true)
	z.set(resource.KindTimeout, `{"http":{"requestTimeout":"20ms"}}`)
	c.until("/", func(a answer) bool { return a.status == http.StatusGatewayTimeout })
}

func TestRetries(t *testing.T) {
	one := start(t, "one")
	z, c := outbound(t, "http", one)
	one.status.Store(http.StatusServiceUnavailable)
	z.set(resource.KindRetry, `{"http":{"numRetries":2,"retryOn":["all_5xx"],"backOff":{"baseInterval":"1ms"}}}`)
	one.fail.Store(2)
	c.until("/", func(a answer) bool {
		one.fail.Store(2)
		return a.status == http.StatusOK
	})
	one.fail.Store(2)
	require.Equal(t, http.StatusOK, c.get("/").status)
	one.fail.Store(3)
	require.Equal(t, http.StatusServiceUnavailable, c.get("/").status, "two retries are not three")
	require.EqualValues(t, 0, one.fail.Load())
}

func TestABreakerEjects(t *testing.T) {
	one, two := start(t, "one"), start(t, "two")
	z, c := outbound(t, "http", one, two)
	z.set(resource.KindCircuitBreaker, `{"interval":"1h","baseEjectionTime":"1h","maxEjectionPercent":100,"detectors":{"totalErrors":{"consecutive":2}}}`)
	one.status.Store(http.StatusInternalServerError)
	one.fail.Store(1 << 30)
	// The new cluster has to see two failures in a row.
	c.until("/", func(answer) bool { return one.requests.Load() > 0 && c.bodies(10)["two"] == 10 })
	require.Equal(t, map[string]int{"two": 50}, c.answered(50, "/"))
}

// bodies are what some requests are answered.
func (c *client) bodies(requests int) map[string]int {
	counts := map[string]int{}
	for range requests {
		counts[c.get("/").body]++
	}
	return counts
}

func TestABreakerBoundsRequests(t *testing.T) {
	one := start(t, "one")
	z, c := outbound(t, "http2", one)
	z.set(resource.KindCircuitBreaker, `{"thresholds":{"maxRequests":0}}`)
	c.until("/", func(a answer) bool { return a.status == http.StatusServiceUnavailable })
}

func TestRequestsAreModified(t *testing.T) {
	one := start(t, "one")
	z, c := outbound(t, "http", one)
	z.set(resource.KindTrafficRoute, `{"http":[{"match":{"path":{"prefix":"/old"}},"modify":{"path":{"rewritePrefix":"/new"},"host":{"value":"h.test"},
		"requestHeaders":{"add":[{"name":"x-share","value":"50% off"}],"remove":[{"name":"x-gone"}]},"responseHeaders":{"add":[{"name":"x-back","value":"yes"}]}},`+v("v1")+`}],`+v("v1")+`}`)
	c.until("/old/a", func(a answer) bool { return a.header.Get("x-back") == "yes" })
	c.get("/old/a?b=c", "x-gone", "1")
	r := one.seen.Load()
	require.Equal(t, "/new/a?b=c", r.RequestURI)
	require.Equal(t, "h.test", r.Host)
	require.Equal(t, "50% off", r.Header.Get("x-share"))
	require.Empty(t, r.Header.Get("x-gone"))
}

// A service that speaks HTTP/2 is spoken to so, whatever the application speaks.
func TestProtocols(t *testing.T) {
	for protocol, want := range map[string]string{"http": "HTTP/1.1", "http2": "HTTP/2.0", "grpc": "HTTP/2.0", "tcp": "HTTP/1.1"} {
		t.Run(protocol, func(t *testing.T) {
			_, c := outbound(t, protocol, start(t, "one"))
			require.Equal(t, want, c.get("/").header.Get("protocol"))
		})
	}
}

func TestConnectionsAreSplit(t *testing.T) {
	one, two := start(t, "one"), start(t, "two")
	z, c := outbound(t, "tcp", one, two)
	z.set(resource.KindTrafficRoute, `{"split":[{"weight":0,`+v("v1")+`},{"weight":1,`+v("v2")+`}]}`)
	c.until("/", func(a answer) bool {
		c.http.CloseIdleConnections()
		return a.body == "two"
	})
	for range 20 {
		c.http.CloseIdleConnections()
		require.Equal(t, "two", c.get("/").body)
	}
}

// No request fails while routes and other policies change under load, to destinations
// that no route had before among them.
func TestARerouteLosesNoRequest(t *testing.T) {
	var servers []*server
	for i := range 6 {
		servers = append(servers, start(t, fmt.Sprintf("s%d", i)))
	}
	z, c := outbound(t, "http", servers...)
	stop := make(chan struct{})
	var load sync.WaitGroup
	var failed atomic.Pointer[string]
	for range 4 {
		load.Go(func() {
			for failed.Load() == nil {
				select {
				case <-stop:
					return
				default:
				}
				if a, err := c.try(http.MethodGet, "/"); err != nil || a.status != http.StatusOK {
					text := fmt.Sprintf("%d %s %v", a.status, a.body, err)
					failed.Store(&text)
				}
			}
		})
	}
	for i := range 3 * len(servers) {
		to := v(fmt.Sprintf("v%d", i%len(servers)+1))
		for _, p := range []struct {
			kind resource.Kind
			conf string
		}{
			{resource.KindTrafficRoute, `{` + to + `}`},
			{resource.KindTimeout, fmt.Sprintf(`{"connectTimeout":"%ds","http":{"requestTimeout":"%dh"}}`, i+5, i+1)},
			{resource.KindRetry, fmt.Sprintf(`{"http":{"numRetries":%d}}`, i)},
			{resource.KindCircuitBreaker, fmt.Sprintf(`{"thresholds":{"maxRequests":%d}}`, i+100)},
		} {
			z.set(p.kind, p.conf)
		}
		c.until("/", func(a answer) bool { return failed.Load() != nil || a.body == servers[i%len(servers)].name })
	}
	close(stop)
	load.Wait()
	if failed.Load() != nil {
		t.Fatalf("a request failed: %s", *failed.Load())
	}
}
