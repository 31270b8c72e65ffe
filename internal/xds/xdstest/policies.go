package xdstest

import "meridian/internal/resource"

// Policy is what a policy configures, or the spec of another kind.
type Policy struct {
	Kind resource.Kind
	Conf string
}

// Policies use every field that has a meaning for the outbounds of a proxy, with values
// at the bounds of what is accepted.
func Policies() []Policy {
	const to = `"destination":{"kuma.io/service":"backend","version":"v1"}`
	return []Policy{
		{resource.KindTimeout, `{"connectTimeout":"1ns","tcp":{"idleTimeout":"0s"},"http":{"requestTimeout":"0s","idleTimeout":"0s","streamIdleTimeout":"0s","maxStreamDuration":"0s"},"grpc":{"streamIdleTimeout":"0s","maxStreamDuration":"0s"}}`},
		{resource.KindTimeout, `{"connectTimeout":"9000h","tcp":{"idleTimeout":"1ns"},"http":{"requestTimeout":"1ns","idleTimeout":"1ns","streamIdleTimeout":"1ns","maxStreamDuration":"1ns"},"grpc":{"streamIdleTimeout":"1h","maxStreamDuration":"1h"}}`},
		{resource.KindMeshUpstreamTimeout, `{"connectTimeout":"1s","idleTimeout":"1s","http":{"requestTimeout":"1s","requestHeadersTimeout":"1s","streamIdleTimeout":"1s","idleTimeout":"1s","maxStreamDuration":"1s","maxConnectionDuration":"1s"}}`},
		{resource.KindMeshUpstreamTimeout, `{"idleTimeout":"0s","http":{"requestHeadersTimeout":"0s","idleTimeout":"0s","maxConnectionDuration":"0s"}}`},
		{resource.KindRetry, `{"http":{"numRetries":0,"perTryTimeout":"1ns","backOff":{"baseInterval":"1ns","maxInterval":"1ns"},"retriableStatusCodes":[],"retriableMethods":[],"retryOn":[]},"grpc":{"retryOn":[]},"tcp":{"maxConnectAttempts":1}}`},
		{resource.KindRetry, `{"http":{"numRetries":4294967295,"perTryTimeout":"1h","backOff":{"baseInterval":"1h","maxInterval":"2h"},"retriableStatusCodes":[100,599],"retriableMethods":["GET","TRACE"],"retryOn":["all_5xx","gateway_error","reset","connect_failure","envoy_ratelimited","retriable_4xx","refused_stream","retriable_status_codes","retriable_headers","http3_post_connect_failure"]},
			"grpc":{"numRetries":3,"perTryTimeout":"1s","backOff":{"baseInterval":"1s"},"retryOn":["cancelled","deadline_exceeded","internal","resource_exhausted","unavailable"]},"tcp":{"maxConnectAttempts":4294967295}}`},
		{resource.KindMeshRequestRetry, `{"http":{"numRetries":2,"perTryTimeout":"0s","backOff":{"maxInterval":"1s"},"rateLimitedBackOff":{"resetHeaders":[{"name":"Retry-After","format":"Seconds"},{"name":"x-reset","format":"UnixTimestamp"}],"maxInterval":"10s"},
			"retryOn":["5XX","GatewayError","Reset","Retriable4xx","ConnectFailure","EnvoyRatelimited","RefusedStream","Http3PostConnectFailure","HttpMethodGet","503"],
			"retriableResponseHeaders":[{"name":"x-again","type":"Present"}],"retriableRequestHeaders":[{"name":"x-user","value":"a"}],
			"hostSelection":[{"predicate":"OmitPreviousHosts"},{"predicate":"OmitPreviousPriorities","updateFrequency":2},{"predicate":"OmitHostsWithTags","tags":{"a":"b"}}],"hostSelectionMaxAttempts":3},
			"grpc":{"numRetries":1,"retryOn":["Canceled","DeadlineExceeded","Internal","ResourceExhausted","Unavailable"]},"tcp":{"maxConnectAttempt":3}}`},
		{resource.KindMeshRequestRetry, `{"http":{"rateLimitedBackOff":{"resetHeaders":[]},"retryOn":["HttpMethodPost"],"hostSelectionMaxAttempts":0}}`},
		{resource.KindCircuitBreaker, `{"interval":"1ns","baseEjectionTime":"1ns","maxEjectionPercent":0,"splitExternalAndLocalErrors":true,"thresholds":{"maxConnections":0,"maxPendingRequests":0,"maxRequests":0,"maxRetries":0},
			"detectors":{"totalErrors":{},"gatewayErrors":{"consecutive":1},"localErrors":{"consecutive":4294967295},"standardDeviation":{"requestVolume":0,"minimumHosts":0,"factor":0.0001},"failure":{"requestVolume":0,"minimumHosts":0,"threshold":0}}}`},
		{resource.KindCircuitBreaker, `{"interval":"9000h","baseEjectionTime":"9000h","maxEjectionPercent":100,"thresholds":{"maxConnections":4294967295},"detectors":{"standardDeviation":{"factor":1e300},"failure":{"threshold":100}}}`},
		{resource.KindMeshCircuitBreaker, `{"connectionLimits":{"maxConnectionPools":1,"maxConnections":1,"maxPendingRequests":1,"maxRetries":0,"maxRequests":1},"outlierDetection":{"interval":"1s","baseEjectionTime":"1s","maxEjectionPercent":50,"splitExternalAndLocalErrors":true,"healthyPanicThreshold":0,
			"detectors":{"totalFailures":{"consecutive":2},"gatewayFailures":{},"localOriginFailures":{},"successRate":{"minimumHosts":1,"requestVolume":1,"standardDeviationFactor":1.9},"failurePercentage":{"requestVolume":1,"minimumHosts":1,"threshold":1}}}}`},
		{resource.KindMeshCircuitBreaker, `{"outlierDetection":{"disabled":true,"healthyPanicThreshold":99.9,"detectors":{"totalFailures":{}}}}`},
		{resource.KindHealthCheck, `{"interval":"1ns","timeout":"1ns","unhealthyThreshold":1,"healthyThreshold":1,"initialJitter":"0s","intervalJitter":"1s","intervalJitterPercent":100,"healthyPanicThreshold":0,"failTrafficOnPanic":true,"noTrafficInterval":"1s","alwaysLogHealthCheckFailures":true,"reuseConnection":false,
			"tcp":{"send":"UElORw==","receive":["UE9ORw==","AA=="]}}`},
		{resource.KindHealthCheck, `{"interval":"1h","healthyPanicThreshold":100,"http":{"path":"/health","requestHeadersToAdd":[{"header":{"key":"x-check","value":"100%"}},{"header":{"key":"Host","value":"h"},"append":false}],"expectedStatuses":[100,200,599]}}`},
		{resource.KindHealthCheck, `{"tcp":{}}`},
		{resource.KindMeshHealthCheck, `{"interval":"1h","timeout":"1s","tcp":{},"http":{"path":"/h","requestHeadersToAdd":{"set":[{"name":"a","value":"b"}],"add":[{"name":"c","value":""}],"remove":["d"]},"expectedStatuses":[204]},"grpc":{"serviceName":"a.S","authority":"a"}}`},
		{resource.KindMeshHealthCheck, `{"tcp":{"disabled":true},"http":{"disabled":true},"grpc":{"disabled":true}}`},
		{resource.KindMeshHTTPFault, `{"http":[{"delay":{"percentage":0.0001,"value":"1ns"},"abort":{"percentage":100,"httpStatus":599},"responseBandwidth":{"percentage":50,"limit":"50 mbps"}},{"abort":{"percentage":0,"httpStatus":200}},{"abort":{"percentage":1,"httpStatus":100}},{"responseBandwidth":{"percentage":0.5,"limit":"0.1kbps"}},{"delay":{"percentage":1,"value":"9000h"}},{"responseBandwidth":{"percentage":1,"limit":"99999999999 gbps"}}]}`},
		{resource.KindMeshRateLimit, `{"local":{"http":{"requestRate":{"num":4294967295,"interval":"50ms"},"onRateLimit":{"status":418,"headers":{"set":[{"name":"x-a","value":"50%"}],"add":[{"name":"x-b","value":""},{"name":":status","value":"1"}],"remove":["x-c"]}}},"tcp":{"connectionRate":{"num":1,"interval":"50ms"}}}}`},
		{resource.KindMeshRateLimit, `{"local":{"http":{"requestRate":{"num":1},"onRateLimit":{"status":599}},"tcp":{"disabled":true}}}`},
		{resource.KindMeshRateLimit, `{"local":{"http":{"requestRate":{"num":1,"interval":"9000h"},"onRateLimit":{"status":503}}}}`},
		{resource.KindTrafficRoute, `{"loadBalancer":{"roundRobin":{}},"http":[{"match":{"path":{"prefix":"/a"}},"modify":{"path":{"rewritePrefix":""},"host":{"value":"h"},"requestHeaders":{"add":[{"name":"X-A","value":"50% off"},{"name":":path","value":"/"},{"name":"x-b","value":"","append":true}],"remove":[{"name":"host"},{"name":"x-c"}]},"responseHeaders":{"add":[{"name":"x-d","value":"%REQ(x)%"}]}},` + to + `},
			{"match":{"path":{"regex":"/b/(.*)"},"method":{"regex":"GET|PUT"},"headers":{"X-E":{"prefix":""},"x-f":{"regex":"a.*"},"x-g":{"exact":""}}},"modify":{"path":{"regex":{"pattern":"^/b/(.*)$","substitution":"/\\1"}},"host":{"fromPath":{"pattern":"^/b/(.*)$","substitution":"\\1.test"}}},"split":[{"weight":1,` + to + `},{"weight":4294967295,"destination":{"kuma.io/service":"other"}}]},
			{"match":{"path":{"exact":"/c"}},"split":[{"weight":0,` + to + `},{"weight":1,"destination":{"kuma.io/service":"none"}}]}],` + to + `}`},
		{resource.KindTrafficRoute, `{"loadBalancer":{"ringHash":{"hashFunction":"MURMUR_HASH_2","minRingSize":18446744073709551615,"maxRingSize":18446744073709551615}},` + to + `}`},
		{resource.KindTrafficRoute, `{"loadBalancer":{"leastRequest":{"choiceCount":4294967295}},"split":[{"weight":4294967295,` + to + `},{"weight":4294967295,"destination":{"kuma.io/service":"*","version":"v2"}}]}`},
		{resource.KindTrafficRoute, `{"loadBalancer":{"random":{}},` + to + `}`},
		{resource.KindTrafficRoute, `{"loadBalancer":{"maglev":{}},` + to + `}`},
		{resource.KindMeshTrafficRoute, `{"rules":[
			{"matches":[{"path":{"type":"Exact","value":"/a"},"method":"GET","headers":[{"name":"a","type":"Absent"},{"name":"b","type":"Prefix","value":"x"}],"queryParams":[{"name":"q","value":"1"},{"name":"r","type":"RegularExpression","value":"a+"}]}],"default":{"filters":[
				{"type":"RequestHeaderModifier","requestHeaderModifier":{"set":[{"name":"a","value":"1"}],"add":[{"name":"b","value":"2"}],"remove":["c"]}},
				{"type":"ResponseHeaderModifier","responseHeaderModifier":{"set":[{"name":"a","value":"1"}]}},
				{"type":"RequestMirror","requestMirror":{"backendRef":{"name":"other"},"percentage":0.5}},
				{"type":"URLRewrite","urlRewrite":{"hostname":"h.test","path":{"type":"ReplaceFullPath","replaceFullPath":"/x\\1"}}}],"backendRefs":[{"kind":"Service","name":"backend"},{"kind":"ServiceSubset","name":"other","tags":{"v":"1"},"weight":0}]}},
			{"matches":[{"path":{"value":"/p/"}}],"default":{"filters":[{"type":"URLRewrite","urlRewrite":{"path":{"type":"ReplacePrefixMatch","replacePrefixMatch":"/"}}}]}},
			{"matches":[{"path":{"value":"/r"}}],"default":{"filters":[{"type":"RequestRedirect","requestRedirect":{"scheme":"https","hostname":"h.test","port":8443,"statusCode":308,"path":{"type":"ReplacePrefixMatch","replacePrefixMatch":"/s"}}}]}},
			{"matches":[{"path":{"value":"/f"}}],"default":{"filters":[{"type":"RequestRedirect","requestRedirect":{"path":{"type":"ReplaceFullPath","replaceFullPath":"/s"}}}]}},
			{"matches":[{"path":{"type":"RegularExpression","value":"/e.*"}}],"default":{"filters":[{"type":"ExtensionRef","extensionRef":{"kind":"X","name":"x"}}]}}]}`},
		{resource.KindTrafficLog, `{"backend":"none"}`},
		{resource.KindTrafficTrace, `{"backend":"none"}`},
		{resource.KindMeshTracing, `{"backends":[],"sampling":{"overall":0}}`},
		{resource.KindMeshTracing, `{"backends":[{"name":"none"},{"type":"Zipkin","zipkin":{"url":"https://h.test/"}},{"type":"Zipkin","zipkin":{"url":"http://h.test/api/v2/spans?a=b","traceId128bit":true,"apiVersion":"httpProto","sharedSpanContext":false}}],
			"sampling":{"overall":100,"client":0,"random":0.01},"tags":[{"name":"a","literal":""},{"name":"b","literal":"%"},{"name":"c","header":{"name":"x c"}},{"name":"d","header":{"name":":path","default":"none"}}]}`},
		{resource.KindMeshTracing, `{"backends":[{"type":"Datadog","datadog":{"url":"http://127.0.0.1:8126","splitService":true}}]}`},
		{resource.KindMeshTracing, `{"backends":[{"type":"OpenTelemetry","openTelemetry":{"endpoint":"h.test"}}]}`},
		{resource.KindMeshLogging, `{"backends":[]}`},
		{resource.KindMeshLogging, `{"backends":[{"name":"none"},{"type":"File","file":{"path":"/dev/null"}},{"type":"File","file":{"path":"/dev/null","format":{"type":"Json","omitEmptyValues":true,"json":[{"key":"","value":"%"},{"key":"a","value":"%REQ(a)%"}]}}},
			{"type":"File","file":{"path":"/dev/null","format":{"type":"Plain","plain":""}}},{"type":"Tcp","tcp":{"address":"no address"}},{"type":"Tcp","tcp":{"address":"h.test:1","format":{"type":"Json","json":[{"key":"a","value":"%PROTOCOL%"}]}}},
			{"type":"Tcp","tcp":{"address":"[::1]:1","format":{"type":"Plain","plain":"%NONE% %KUMA_SOURCE_SERVICE%\n"}}},{"type":"OpenTelemetry","openTelemetry":{"endpoint":"127.0.0.1:4317","attributes":[{"key":"","value":"%"}],"body":{"a":[1,true,null,"%REQ(a)%",{"b":{}}],"":1e9}}},
			{"type":"OpenTelemetry","openTelemetry":{"endpoint":"h.test","body":[]}},{"type":"OpenTelemetry","openTelemetry":{"endpoint":"h.test:99999"}}]}`},
	}
}

// Routes are those of the Gateway API, whose parent is the service backend.
func Routes() []Policy {
	return []Policy{
		{resource.KindHTTPRoute, `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[
			{"matches":[{"path":{"value":"/a"}},{"method":"PATCH"}],"timeouts":{"request":"5s","backendRequest":"1s"},"retry":{"codes":[503],"attempts":2,"backoff":"1ns"},
				"filters":[{"type":"URLRewrite","urlRewrite":{"path":{"type":"ReplacePrefixMatch","replacePrefixMatch":"/b"}}}],
				"backendRefs":[{"name":"backend","weight":3,"filters":[{"type":"RequestHeaderModifier","requestHeaderModifier":{"set":[{"name":"x","value":"y"}]}},{"type":"URLRewrite","urlRewrite":{"hostname":"h"}}]},{"name":"other","namespace":"elsewhere"},{"name":"backend"}]},
			{"timeouts":{"request":"0s","backendRequest":"0s"},"backendRefs":[{"name":"backend","kind":"Service"}]}]}`},
		{resource.KindGRPCRoute, `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[
			{"matches":[{"method":{"service":"a.S","method":"M"},"headers":[{"name":"h","value":"v"}]},{"method":{"type":"RegularExpression","service":"a.*"}},{"method":{"method":"N"}},{"method":{"service":"a.T"}}],"backendRefs":[{"name":"backend"}]},{}]}`},
	}
}

// Spec is the spec of a policy of a kind, on the dataplanes of web, and of what it
// configures for calls to backend.
func Spec(kind resource.Kind, conf string) string {
	d, _ := resource.Describe(kind)
	own := d.Direction == resource.OnDataplane
	switch {
	case own && d.Class == resource.TargetRef:
		return `{"targetRef":{"kind":"Service","name":"web"},"default":` + conf + `}`
	case own:
		return `{"selectors":[{"match":{"kuma.io/service":"web"}}],"conf":` + conf + `}`
	case d.Class == resource.TargetRef:
		return `{"targetRef":{"kind":"Service","name":"web"},"to":[{"targetRef":{"kind":"Service","name":"backend"},"default":` + conf + `}]}`
	}
	return `{"sources":[{"match":{"kuma.io/service":"web"}}],"destinations":[{"match":{"kuma.io/service":"backend"}}],"conf":` + conf + `}`
}
