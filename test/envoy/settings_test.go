package envoy

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"meridian/internal/resource"
)

// counted is the sum of counters of Envoy whose names end so.
func (s *scene) counted(ending string) (n int) {
	s.Helper()
	for line := range strings.Lines(s.envoy.ask("/stats?filter=" + ending + "$")) {
		_, count, _ := strings.Cut(line, ": ")
		more, err := strconv.Atoi(strings.TrimSpace(count))
		require.NoError(s, err)
		n += more
	}
	return n
}

// counts expects that requests have Envoy count what a counter is of.
func counts(ending string) func(*scene) {
	return func(s *scene) {
		before := s.counted(ending)
		s.eventually(func() bool { s.get("/"); return s.counted(ending) > before })
	}
}

// givesUp expects that Envoy ends requests that nothing answers.
func givesUp(s *scene) {
	s.Helper()
	s.one.block.Store(true)
	s.two.block.Store(true)
	s.until("/", func(a answer) bool { return a.header.Get("served-by") == "" })
	require.Empty(s, s.get("/").header.Get("served-by"))
}

const patient = `"requestTimeout":"0s"`

// ofTimeouts are what Timeout and MeshUpstreamTimeout have in common.
func ofTimeouts(kind resource.Kind) []behaviour {
	return []behaviour{
		{kind, "http.requestTimeout", `{"http":{"requestTimeout":"20ms"}}`, func(s *scene) { s.cut() }},
		{kind, "http.streamIdleTimeout", `{"http":{` + patient + `,"streamIdleTimeout":"20ms"}}`, givesUp},
		{kind, "http.maxStreamDuration", `{"http":{` + patient + `,"maxStreamDuration":"20ms"}}`, givesUp},
		{kind, "http.idleTimeout", `{"http":{"idleTimeout":"1ms"}}`, counts("upstream_cx_idle_timeout")},
	}
}

var timeouts = slices.Concat(ofTimeouts(resource.KindTimeout), ofTimeouts(resource.KindMeshUpstreamTimeout), []behaviour{
	{resource.KindMeshUpstreamTimeout, "http.maxConnectionDuration", `{"http":{"maxConnectionDuration":"1ms"}}`, counts("upstream_cx_max_duration_reached")},
})

var timeoutsOfCalls = []behaviour{
	{resource.KindTimeout, "grpc.streamIdleTimeout", `{"http":{` + patient + `},"grpc":{"streamIdleTimeout":"20ms"}}`, givesUp},
	{resource.KindTimeout, "grpc.maxStreamDuration", `{"http":{` + patient + `},"grpc":{"maxStreamDuration":"20ms"}}`, givesUp},
}

var timeoutsOfConnections = []behaviour{
	{resource.KindTimeout, "tcp.idleTimeout", `{"tcp":{"idleTimeout":"1ms"}}`, func(s *scene) { s.hangsUp() }},
	{resource.KindMeshUpstreamTimeout, "idleTimeout", `{"idleTimeout":"1ms"}`, func(s *scene) { s.hangsUp() }},
}

// hangsUp expects that Envoy ends connections on which nothing happens.
func (s *scene) hangsUp() {
	s.Helper()
	before := s.counted("idle_timeout")
	s.eventually(func() bool {
		s.http.CloseIdleConnections()
		_, _ = s.try(http.MethodGet, "/") // its connection may end before
		return s.counted("idle_timeout") > before
	})
}

// slowTries expects that one that does not answer is given up, and the request sent to
// two.
func (s *scene) slowTries() {
	s.Helper()
	s.one.block.Store(true)
	before := s.counted("upstream_rq_per_try_timeout")
	s.eventually(func() bool {
		return s.get("/").header.Get("served-by") == "two" && s.counted("upstream_rq_per_try_timeout") > before
	})
}

// repeatsCalls expects that calls are sent again once after a status of gRPC, and not
// after another.
func (s *scene) repeatsCalls(again, other codes.Code) {
	s.Helper()
	both := func(status codes.Code, times int32) {
		for _, of := range []*server{s.one, s.two} {
			of.status.Store(int32(status))
			of.fail.Store(times)
		}
	}
	fails := func(status codes.Code) bool {
		return s.get("/a.S/M").header.Get("Grpc-Status") == strconv.Itoa(int(status))
	}
	left := func() int32 { return s.one.fail.Load() + s.two.fail.Load() }
	s.eventually(func() bool {
		both(again, 100)
		require.True(s, fails(again))
		return left() == 198 // one try was followed by another
	})
	both(other, 100)
	require.True(s, fails(other))
	require.EqualValues(s, 199, left())
}

var retries = []behaviour{
	{resource.KindRetry, "http.retriableStatusCodes", `{"http":{"numRetries":2,"retriableStatusCodes":[418],"backOff":{"baseInterval":"1ms"}}}`, func(s *scene) { s.again(http.MethodGet) }},
	{resource.KindRetry, "http.retriableMethods", `{"http":{"numRetries":2,"retriableMethods":["PUT"],"retriableStatusCodes":[418],"backOff":{"baseInterval":"1ms"}}}`, func(s *scene) {
		s.again(http.MethodPut)
		s.failing(1)
		require.Equal(s, http.StatusTeapot, s.get("/").status)
	}},
	{resource.KindRetry, "http.perTryTimeout", `{"http":{"numRetries":3,"perTryTimeout":"20ms","retryOn":["gateway_error"],"backOff":{"baseInterval":"1ms"}}}`, func(s *scene) { s.slowTries() }},
	{resource.KindMeshRequestRetry, "http.numRetries", `{"http":{"numRetries":2,"retryOn":["418"],"backOff":{"baseInterval":"1ms"}}}`, func(s *scene) { s.again(http.MethodGet) }},
	{resource.KindMeshRequestRetry, "http.perTryTimeout", `{"http":{"numRetries":3,"perTryTimeout":"20ms","retryOn":["GatewayError"],"backOff":{"baseInterval":"1ms"}}}`, func(s *scene) { s.slowTries() }},
	{
		resource.KindMeshRequestRetry, "http.retryOn http.retriableRequestHeaders",
		`{"http":{"numRetries":2,"retryOn":["418","HttpMethodPut"],"backOff":{"baseInterval":"1ms"},"retriableRequestHeaders":[{"name":"x-again","value":"yes"}]}}`,
		func(s *scene) {
			s.again(http.MethodPut)
			s.failing(1)
			require.Equal(s, http.StatusTeapot, s.get("/").status)
			s.headers = []string{"X-Again", "yes"} // one of the two is enough
			s.again(http.MethodGet)
			s.headers = nil
		},
	},
	{
		resource.KindMeshRequestRetry, "http.hostSelection[].predicate http.hostSelection[].tags",
		`{"http":{"numRetries":2,"retryOn":["418"],"backOff":{"baseInterval":"1ms"},"hostSelection":[{"predicate":"OmitHostsWithTags","tags":{"version":"v1"}}]}}`,
		func(s *scene) {
			s.again(http.MethodGet)
			s.one.requests.Store(0)
			for range 100 {
				s.failing(100)
				s.get("/")
			}
			require.Greater(s, s.one.requests.Load(), int32(100), "of 300 tries, as many as of a server that is not to be avoided") // 50 if repetitions avoided it
		},
	},
	{
		resource.KindMeshRequestRetry, below("http.retriableResponseHeaders[].", "type name value"),
		`{"http":{"numRetries":5,"retryOn":[],"backOff":{"baseInterval":"1ms"},"retriableResponseHeaders":[{"name":"served-by","type":"Exact","value":"one"}]}}`,
		func(s *scene) { s.eventually(func() bool { return s.streak("two", "GET /") }) },
	},
}

// failing has as many requests fail, of those that come to any server.
func (s *scene) failing(times int32) {
	for _, of := range []*server{s.one, s.two} {
		of.status.Store(http.StatusTeapot)
		of.fail.Store(times)
	}
}

// again expects that requests of a method are sent three times and no more.
func (s *scene) again(method string) {
	s.Helper()
	left := func() int32 {
		s.failing(100)
		a, err := s.try(method, "/")
		require.NoError(s, err)
		require.Equal(s, http.StatusTeapot, a.status)
		return s.one.fail.Load() + s.two.fail.Load()
	}
	s.eventually(func() bool { return left() == 197 })
	require.EqualValues(s, 197, left())
}

var retriesOfCalls = []behaviour{
	{resource.KindRetry, "grpc.numRetries grpc.retryOn", `{"grpc":{"numRetries":1,"retryOn":["unavailable"],"backOff":{"baseInterval":"1ms"}}}`, func(s *scene) { s.repeatsCalls(codes.Unavailable, codes.Internal) }},
	{resource.KindMeshRequestRetry, "grpc.numRetries grpc.retryOn", `{"grpc":{"numRetries":1,"retryOn":["Internal"],"backOff":{"baseInterval":"1ms"}}}`, func(s *scene) { s.repeatsCalls(codes.Internal, codes.Unavailable) }},
	{resource.KindRetry, "grpc.perTryTimeout", `{"grpc":{"numRetries":3,"perTryTimeout":"20ms","retryOn":["deadline_exceeded","unavailable"],"backOff":{"baseInterval":"1ms"}}}`, counting("upstream_rq_per_try_timeout")},
	{resource.KindMeshRequestRetry, "grpc.perTryTimeout", `{"grpc":{"numRetries":3,"perTryTimeout":"20ms","retryOn":["DeadlineExceeded","Unavailable"],"backOff":{"baseInterval":"1ms"}}}`, counting("upstream_rq_per_try_timeout")},
}

// counting is counts while one does not answer.
func counting(ending string) func(*scene) {
	return func(s *scene) {
		s.one.block.Store(true)
		s.two.block.Store(true)
		counts(ending)(s)
	}
}

// ejects expects that one is ejected after failures with a status.
func ejects(status int) func(*scene) {
	return func(s *scene) {
		s.one.status.Store(int32(status))
		s.one.fail.Store(1 << 30)
		s.eventually(func() bool { return s.bodies(10)["two"] == 10 && s.one.requests.Load() > 0 })
		require.Equal(s, map[string]int{"two": 50}, s.answered(50, "/"))
	}
}

const ejection = `"interval":"1h","baseEjectionTime":"1h","maxEjectionPercent":100`

var breakers = []behaviour{
	{resource.KindCircuitBreaker, "detectors.gatewayErrors.consecutive", `{` + ejection + `,"detectors":{"gatewayErrors":{"consecutive":2}}}`, ejects(http.StatusBadGateway)},
	{resource.KindMeshCircuitBreaker, below("outlierDetection.", "detectors.totalFailures.consecutive maxEjectionPercent"), `{"outlierDetection":{` + ejection + `,"detectors":{"totalFailures":{"consecutive":2}}}}`, ejects(http.StatusInternalServerError)},
	{resource.KindMeshCircuitBreaker, "outlierDetection.detectors.gatewayFailures.consecutive", `{"outlierDetection":{` + ejection + `,"detectors":{"gatewayFailures":{"consecutive":2}}}}`, ejects(http.StatusBadGateway)},
	{resource.KindMeshCircuitBreaker, "outlierDetection.disabled", `{"outlierDetection":{"disabled":true,` + ejection + `,"detectors":{"totalFailures":{"consecutive":1}}}}`, func(s *scene) {
		s.one.status.Store(http.StatusInternalServerError)
		s.one.fail.Store(1 << 30)
		require.InDelta(s, 20, s.bodies(40)["one"], 2)
	}},
}

// unhealthy expects that the checks of one and two fail, so that nothing is called.
func unhealthy(s *scene) {
	s.Helper()
	s.until("/", status(http.StatusServiceUnavailable))
}

const often = `"interval":"20ms","timeout":"60s","unhealthyThreshold":1,"healthyPanicThreshold":0`

var olderChecks = []behaviour{
	{resource.KindHealthCheck, "http.path http.expectedStatuses", `{` + often + `,"http":{"path":"/health","expectedStatuses":[500]}}`, unhealthy},
	{resource.KindHealthCheck, "tcp.send tcp.receive", `{"interval":"20ms","timeout":"50ms","unhealthyThreshold":1,"healthyPanicThreshold":0,"tcp":{"send":"eA0KDQo=","receive":["UE9ORw=="]}}`, unhealthy},
	{
		resource.KindHealthCheck, below("http.requestHeadersToAdd[].", "header.key header.value append"),
		`{` + often + `,"http":{"path":"/health","requestHeadersToAdd":[{"header":{"key":"x-check","value":"1"}},{"header":{"key":"x-check","value":"2"}},{"header":{"key":"user-agent","value":"m"},"append":false}]}}`,
		func(s *scene) {
			r := s.checked("/health")
			require.Equal(s, []string{"1", "2"}, r.Header.Values("x-check"))
			require.Equal(s, []string{"m"}, r.Header.Values("User-Agent"))
		},
	},
	{
		resource.KindMeshHealthCheck, below("http.requestHeadersToAdd.", "set[].name set[].value add[].name add[].value remove"),
		`{` + often + `,"http":{"path":"/mesh","requestHeadersToAdd":{"set":[{"name":"x-set","value":"1"}],"add":[{"name":"x-set","value":"2"}],"remove":["user-agent"]}}}`,
		func(s *scene) {
			r := s.checked("/mesh")
			require.Equal(s, []string{"1", "2"}, r.Header.Values("x-set"))
			require.Empty(s, r.Header.Values("User-Agent"))
		},
	},
	{resource.KindMeshHealthCheck, "tcp.disabled", `{` + often + `,"tcp":{"disabled":true,"send":"eA0KDQo=","receive":["UE9ORw=="]},"http":{"path":"/"}}`, func(s *scene) {
		s.checked("/")
		require.Equal(s, http.StatusOK, s.get("/other").status)
	}},
}

// checked waits for a check of one and returns it.
func (s *scene) checked(path string) *http.Request {
	s.Helper()
	s.zone.waitFor(func() bool { r := s.one.seen.Load(); return r != nil && r.URL.Path == path })
	return s.one.seen.Load()
}

const checkOfCalls = "/grpc.health.v1.Health/Check"

var checksOfCalls = []behaviour{
	{resource.KindMeshHealthCheck, "grpc.authority", `{` + often + `,"grpc":{"authority":"h.test"}}`, func(s *scene) {
		require.Equal(s, "h.test", s.checked(checkOfCalls).Host)
	}},
	{resource.KindMeshHealthCheck, "grpc.disabled", `{` + often + `,"grpc":{"disabled":true},"http":{"path":"/health"}}`, func(s *scene) {
		s.checked("/health")
		for range 20 {
			require.NotEqual(s, checkOfCalls, s.one.seen.Load().URL.Path)
			s.get("/health")
		}
	}},
}
