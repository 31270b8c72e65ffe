package envoy

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/test/rows"
)

// loaded is what Envoy says that it has loaded because of fields of a kind: a weaker
// assertion than a behaviour, for what takes long, chance or a network that fails to be
// seen.
type loaded struct {
	kind resource.Kind
	// fields and conf are as in behaviour.
	fields, conf string
	// want is contained in the configuration.
	want string
}

// loadedGroup is assertions about one Envoy.
type loadedGroup struct {
	name     string
	protocol string
	inbound  bool
	list     []loaded
}

// loads reports whether the configuration of an Envoy contains something.
func (e *envoy) loads(want string) bool {
	e.t.Helper()
	var dump, wanted any
	require.NoError(e.t, json.Unmarshal([]byte(e.ask("/config_dump")), &dump))
	require.NoError(e.t, json.Unmarshal([]byte(want), &wanted), want)
	return rows.Contains(dump, wanted)
}

func TestSettingsAreLoaded(t *testing.T) {
	for _, g := range loadedGroups() {
		t.Run(g.name, func(t *testing.T) {
			var s *scene
			of, put := "web-1", func(l *loaded) store.Op { return s.zone.document(l.kind, l.conf) }
			if g.inbound {
				s = inbound(t, g.protocol)
				of, put = "one", func(l *loaded) store.Op { return s.zone.fromEveryone(l.kind, l.conf) }
			} else {
				z, c, e := outboundOf(t, g.protocol, start(t, "one"))
				s = &scene{T: t, client: c, zone: z, envoy: e}
			}
			for i := range g.list {
				l := &g.list[i]
				t.Run(fmt.Sprintf("%s %.60s", l.kind, l.fields), func(t *testing.T) {
					s.zone.t, s.envoy.t = t, t
					require.False(t, s.envoy.loads(l.want), "it is there without the policy")
					op := put(l)
					s.zone.apply(op)
					require.Empty(t, s.zone.settle(of))
					s.zone.waitFor(func() bool { return s.envoy.loads(l.want) })
					s.zone.apply(store.Delete(op.Key))
					require.Empty(t, s.zone.settle(of))
					s.zone.waitFor(func() bool { return !s.envoy.loads(l.want) })
				})
				s.zone.t, s.envoy.t = t, t
			}
		})
	}
}

const detectorsOff = `"enforcing_consecutive_5xx":0,"enforcing_consecutive_gateway_failure":0,"enforcing_success_rate":%s,"enforcing_failure_percentage":%s,`

var (
	successRateOn = fmt.Sprintf(detectorsOff, "100", "0")
	failuresOn    = fmt.Sprintf(detectorsOff, "0", "100")
)

// ofTiming are the settings that HealthCheck and MeshHealthCheck have in common.
func ofTiming(kind resource.Kind) []loaded {
	return []loaded{
		{
			kind, "interval timeout unhealthyThreshold healthyThreshold initialJitter intervalJitter intervalJitterPercent noTrafficInterval alwaysLogHealthCheckFailures reuseConnection",
			`{"interval":"61s","timeout":"14s","unhealthyThreshold":4,"healthyThreshold":3,"initialJitter":"2s","intervalJitter":"3s","intervalJitterPercent":7,"noTrafficInterval":"65s","alwaysLogHealthCheckFailures":true,"reuseConnection":false,"tcp":{}}`,
			`{"interval":"61s","timeout":"14s","unhealthy_threshold":4,"healthy_threshold":3,"initial_jitter":"2s","interval_jitter":"3s","interval_jitter_percent":7,"no_traffic_interval":"65s","always_log_health_check_failures":true,"reuse_connection":false}`,
		},
		{
			kind, "healthyPanicThreshold failTrafficOnPanic", `{"healthyPanicThreshold":17,"failTrafficOnPanic":true,"tcp":{}}`,
			`{"common_lb_config":{"healthy_panic_threshold":{"value":17},"zone_aware_lb_config":{"fail_traffic_on_panic":true}}}`,
		},
	}
}

const (
	backOff       = `"backOff":{"baseInterval":"11ms","maxInterval":"13s"}`
	backOffLoaded = `{"retry_back_off":{"base_interval":"0.011s","max_interval":"13s"}}`

	reset       = `"rateLimitedBackOff":{"resetHeaders":[{"name":"x-after","format":"Seconds"},{"name":"x-at","format":"UnixTimestamp"}],"maxInterval":"17s"}`
	resetLoaded = `{"rate_limited_retry_back_off":{"reset_headers":[{"name":"x-after"},{"name":"x-at","format":"UNIX_TIMESTAMP"}],"max_interval":"17s"}}`
	resetFields = "rateLimitedBackOff.resetHeaders[].name rateLimitedBackOff.resetHeaders[].format rateLimitedBackOff.maxInterval"
)

func loadedGroups() []loadedGroup {
	const limits = `{"circuit_breakers":{"thresholds":[{"max_connections":3,"max_pending_requests":5,"max_requests":7,"max_retries":9%s}]}}`
	const ring, ringLoaded = `{"loadBalancer":{"ringHash":{"minRingSize":5,"maxRingSize":7}},"http":[]}`, `{"lb_policy":"RING_HASH","ring_hash_lb_config":{"minimum_ring_size":"5","maximum_ring_size":"7"}}`
	const hash, hashLoaded = `{"loadBalancer":{"ringHash":{"hashFunction":"MURMUR_HASH_2"}},"http":[]}`, `{"lb_policy":"RING_HASH","ring_hash_lb_config":{"hash_function":"MURMUR_HASH_2"}}`
	return []loadedGroup{
		{"http", "http", false, append(append(ofTiming(resource.KindHealthCheck), ofTiming(resource.KindMeshHealthCheck)...), []loaded{
			{resource.KindCircuitBreaker, "interval", `{"interval":"1ns","detectors":{"totalErrors":{}}}`, `{"outlier_detection":{"interval":"0.001s"}}`},
			{resource.KindMeshCircuitBreaker, "outlierDetection.interval", `{"outlierDetection":{"interval":"1ns","detectors":{"totalFailures":{}}}}`, `{"outlier_detection":{"interval":"0.001s"}}`},
			{resource.KindTrafficRoute, "loadBalancer.ringHash.minRingSize loadBalancer.ringHash.maxRingSize", ring, ringLoaded},
			{resource.KindMeshTrafficRoute, "loadBalancer.ringHash.minRingSize loadBalancer.ringHash.maxRingSize", ring, ringLoaded},
			{resource.KindTrafficRoute, "loadBalancer.ringHash.hashFunction", hash, hashLoaded},
			{resource.KindMeshTrafficRoute, "loadBalancer.ringHash.hashFunction", hash, hashLoaded},
			{resource.KindTrafficRoute, "loadBalancer.maglev", `{"loadBalancer":{"maglev":{}},"http":[]}`, `{"lb_policy":"MAGLEV"}`},
			{resource.KindMeshTrafficRoute, "loadBalancer.maglev", `{"loadBalancer":{"maglev":{}},"http":[]}`, `{"lb_policy":"MAGLEV"}`},
			{resource.KindTimeout, "connectTimeout", `{"connectTimeout":"123s"}`, `{"connect_timeout":"123s"}`},
			{resource.KindMeshUpstreamTimeout, "connectTimeout", `{"connectTimeout":"124s"}`, `{"connect_timeout":"124s"}`},
			{resource.KindMeshUpstreamTimeout, "http.requestHeadersTimeout", `{"http":{"requestHeadersTimeout":"21s"}}`, `{"request_headers_timeout":"21s"}`},
			{resource.KindRetry, "http.backOff.baseInterval http.backOff.maxInterval", `{"http":{` + backOff + `}}`, backOffLoaded},
			{
				resource.KindHTTPRoute, "rules[].retry.backoff",
				`{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[{"retry":{"attempts":2,"backoff":"19ms"},"backendRefs":[{"name":"backend"}]}]}`,
				`{"retry_back_off":{"base_interval":"0.019s"}}`,
			},
			{resource.KindMeshRequestRetry, "http.backOff.baseInterval http.backOff.maxInterval", `{"http":{` + backOff + `}}`, backOffLoaded},
			{resource.KindMeshRequestRetry, below("http.", resetFields), `{"http":{` + reset + `}}`, resetLoaded},
			{
				resource.KindMeshTracing, "backends backends[].zipkin.url",
				`{"backends":[{"type":"Zipkin","zipkin":{"url":"https://a.test/z"}},{"type":"Zipkin","zipkin":{"url":"http://b.test:9411/z"}},{"type":"Zipkin","zipkin":{"url":"http://c.test/z"}}]}`,
				`{"provider":{"typed_config":{"collector_hostname":"b.test:9411","collector_endpoint":"/z"}}}`,
			},
			{
				resource.KindMeshTracing, "backends[].datadog.url",
				`{"backends":[{"type":"Datadog","datadog":{"url":"https://a.test:8126"}},{"type":"Datadog","datadog":{"url":"http://b.test:8126"}}]}`,
				`{"provider":{"typed_config":{"collector_hostname":"b.test:8126"}}}`,
			},
			{
				resource.KindMeshTracing, "backends[].zipkin.apiVersion backends[].zipkin.sharedSpanContext sampling.client sampling.random tags[].header.name",
				`{"backends":[{"type":"Zipkin","zipkin":{"url":"http://h.test/z","apiVersion":"httpProto","sharedSpanContext":false}}],"sampling":{"client":21,"random":22},"tags":[{"name":"team","header":{"name":"x-team"}}]}`,
				`{"client_sampling":{"value":21},"random_sampling":{"value":22},"custom_tags":[{"tag":"team","request_header":{"name":"x-team"}}],
					"provider":{"typed_config":{"collector_endpoint_version":"HTTP_PROTO","shared_span_context":false}}}`,
			},
			{
				resource.KindMeshRequestRetry, "http.hostSelection[].updateFrequency http.hostSelectionMaxAttempts",
				`{"http":{"hostSelection":[{"predicate":"OmitPreviousPriorities","updateFrequency":3}],"hostSelectionMaxAttempts":6}}`,
				`{"retry_priority":{"typed_config":{"update_frequency":3}},"host_selection_retry_max_attempts":"6"}`,
			},
			{
				resource.KindCircuitBreaker, "thresholds.maxConnections thresholds.maxPendingRequests thresholds.maxRetries",
				`{"thresholds":{"maxConnections":3,"maxPendingRequests":5,"maxRequests":7,"maxRetries":9}}`, fmt.Sprintf(limits, ""),
			},
			{
				resource.KindMeshCircuitBreaker, below("connectionLimits.", "maxConnections maxPendingRequests maxRetries maxRequests maxConnectionPools"),
				`{"connectionLimits":{"maxConnections":3,"maxPendingRequests":5,"maxRequests":7,"maxRetries":9,"maxConnectionPools":11}}`, fmt.Sprintf(limits, `,"max_connection_pools":11`),
			},
			{
				resource.KindCircuitBreaker, "splitExternalAndLocalErrors baseEjectionTime detectors.localErrors.consecutive",
				`{"splitExternalAndLocalErrors":true,"baseEjectionTime":"31s","detectors":{"localErrors":{"consecutive":4}}}`,
				`{"outlier_detection":{"split_external_local_origin_errors":true,"base_ejection_time":"31s","enforcing_consecutive_local_origin_failure":100,"consecutive_local_origin_failure":4}}`,
			},
			{
				resource.KindCircuitBreaker, below("detectors.standardDeviation.", "requestVolume minimumHosts factor"),
				`{"detectors":{"standardDeviation":{"requestVolume":12,"minimumHosts":3,"factor":1.5}}}`,
				`{"outlier_detection":{` + successRateOn + `"success_rate_minimum_hosts":3,"success_rate_request_volume":12,"success_rate_stdev_factor":1500}}`,
			},
			{
				resource.KindCircuitBreaker, below("detectors.failure.", "requestVolume minimumHosts threshold"),
				`{"detectors":{"failure":{"requestVolume":12,"minimumHosts":3,"threshold":44}}}`,
				`{"outlier_detection":{` + failuresOn + `"failure_percentage_minimum_hosts":3,"failure_percentage_request_volume":12,"failure_percentage_threshold":44}}`,
			},
			{
				resource.KindMeshCircuitBreaker, below("outlierDetection.", "splitExternalAndLocalErrors baseEjectionTime detectors.localOriginFailures.consecutive healthyPanicThreshold"),
				`{"outlierDetection":{"splitExternalAndLocalErrors":true,"baseEjectionTime":"31s","healthyPanicThreshold":19,"detectors":{"localOriginFailures":{"consecutive":4}}}}`,
				`{"common_lb_config":{"healthy_panic_threshold":{"value":19}},"outlier_detection":{"split_external_local_origin_errors":true,"base_ejection_time":"31s","enforcing_consecutive_local_origin_failure":100,"consecutive_local_origin_failure":4}}`,
			},
			{
				resource.KindMeshCircuitBreaker, below("outlierDetection.detectors.successRate.", "requestVolume minimumHosts standardDeviationFactor"),
				`{"outlierDetection":{"detectors":{"successRate":{"requestVolume":12,"minimumHosts":3,"standardDeviationFactor":1.5}}}}`,
				`{"outlier_detection":{` + successRateOn + `"success_rate_minimum_hosts":3,"success_rate_request_volume":12,"success_rate_stdev_factor":1500}}`,
			},
			{
				resource.KindMeshCircuitBreaker, below("outlierDetection.detectors.failurePercentage.", "requestVolume minimumHosts threshold"),
				`{"outlierDetection":{"detectors":{"failurePercentage":{"requestVolume":12,"minimumHosts":3,"threshold":44}}}}`,
				`{"outlier_detection":{` + failuresOn + `"failure_percentage_minimum_hosts":3,"failure_percentage_request_volume":12,"failure_percentage_threshold":44}}`,
			},
		}...)},
		{"grpc", "grpc", false, []loaded{
			{resource.KindRetry, "grpc.backOff.baseInterval grpc.backOff.maxInterval", `{"grpc":{` + backOff + `}}`, backOffLoaded},
			{resource.KindMeshRequestRetry, "grpc.backOff.baseInterval grpc.backOff.maxInterval", `{"grpc":{` + backOff + `}}`, backOffLoaded},
			{resource.KindMeshRequestRetry, below("grpc.", resetFields), `{"grpc":{` + reset + `}}`, resetLoaded},
			{resource.KindMeshHealthCheck, "grpc.serviceName", `{"grpc":{"serviceName":"a.S"}}`, `{"grpc_health_check":{"service_name":"a.S"}}`},
		}},
		{"tcp", "tcp", false, []loaded{
			{resource.KindRetry, "tcp.maxConnectAttempts", `{"tcp":{"maxConnectAttempts":6}}`, `{"max_connect_attempts":6}`},
			{resource.KindMeshRequestRetry, "tcp.maxConnectAttempt", `{"tcp":{"maxConnectAttempt":6}}`, `{"max_connect_attempts":6}`},
		}},
		{"inbound", "http", true, []loaded{
			{
				resource.KindMeshCircuitBreaker, "from " + below("connectionLimits.", "maxRetries maxRequests maxConnectionPools"),
				`{"connectionLimits":{"maxConnections":3,"maxPendingRequests":5,"maxRequests":7,"maxRetries":9,"maxConnectionPools":11}}`, fmt.Sprintf(limits, `,"max_connection_pools":11`),
			},
		}},
	}
}
