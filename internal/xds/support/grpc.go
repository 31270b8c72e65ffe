package support

import (
	"meridian/internal/resource"
)

// group is fields of a kind with one answer.
type group struct {
	kind      resource.Kind
	direction string
	status    Status
	note      string
	fields    []string
}

func on(kind resource.Kind, status Status, note string, fields ...string) group {
	return group{kind, "", status, note, fields}
}

func onFrom(kind resource.Kind, status Status, note string, fields ...string) group {
	if len(fields) == 0 {
		fields = []string{""}
	}
	return group{kind, "from", status, note, fields}
}

// Notes that several rows share.
const (
	wholeCall   = "a client has one bound for a whole call, retries and streams included: the shortest of several holds"
	httpOnly    = "a gRPC client takes the settings of grpc"
	noModify    = "gRPC changes neither requests nor answers"
	noConnect   = "gRPC manages its connections itself"
	noHealth    = "gRPC sends no health checks of the zone's; an endpoint whose dataplane says that it is not ready is left out"
	withMTLS    = "in a mesh with mutual TLS whose mode is STRICT; elsewhere it is not known who calls"
	noInbound   = "gRPC servers apply no limits"
	byClients   = "by gRPC clients of the same zone, after their own: where all inbounds that a call can go to do the same with its caller, and no Envoy serves one of them; four in all"
	noTelemetry = "gRPC sends no logs, traces or metrics to backends of the mesh"
	auditLine   = "with mode STRICT, as a line of gRPC's audit log for each call to the standard output of the server, whatever the receivers and formats; an entry for some callers has no effect"
	inTurns     = "gRPC has no such balancer: endpoints are taken in turns"
	noGateway   = "a gRPC client is no gateway"
)

var grpcTable = compile(
	on(resource.KindMesh, Enforced, "with types builtin and provided; with others nothing is sent", "mtls.enabledBackend", "mtls.backends[].name", "mtls.backends[].type"),
	on(resource.KindMesh, Approximated, "with PERMISSIVE, gRPC servers use plaintext, without permissions, and clients TLS to services whose endpoints are all Envoys with a certificate", "mtls.backends[].mode"),
	on(resource.KindMesh, Approximated, "at least 1m", "mtls.backends[].dpCert.rotation.expiration"),
	on(resource.KindMesh, Decided, "", "mtls.backends[].conf"),
	on(resource.KindMesh, Unsupported, "the zone issues certificates itself", "mtls"),
	on(resource.KindMesh, Enforced, "", "routing.localityAwareLoadBalancing"),
	on(resource.KindMesh, Unsupported, noTelemetry, "logging", "tracing", "metrics"),
	on(resource.KindMesh, Unsupported, "gRPC has no traffic that is not to a service", "networking"),
	on(resource.KindMesh, Unsupported, "there is no traffic between zones yet", "routing.zoneEgress", "routing.defaultForbidMeshExternalServices"),
	on(resource.KindMesh, Unsupported, "it is not about what is sent to proxies", "constraints"),
	on(resource.KindMesh, Decided, "", "matching"),

	on(resource.KindDataplane, Enforced, "", "networking.address", "networking.inbound[].port", "networking.inbound[].address", "networking.inbound[].tags",
		"networking.inbound[].health.ready", "networking.outbound[].port", "networking.outbound[].tags"),
	on(resource.KindDataplane, Unsupported, "there is no traffic between zones yet", "networking.advertisedAddress"),
	on(resource.KindDataplane, Unsupported, "a gRPC server listens itself: there is nothing behind it", "networking.inbound[].servicePort", "networking.inbound[].serviceAddress"),
	on(resource.KindDataplane, Unsupported, noHealth, "networking.inbound[].serviceProbe"),
	on(resource.KindDataplane, Unsupported, "a gRPC client opens no local port: the target is xds:///SERVICE:PORT", "networking.outbound[].address"),
	on(resource.KindDataplane, Unsupported, noGateway, "networking.gateway"),

	on(resource.KindTrafficPermission, Enforced, withMTLS, ""),
	onFrom(resource.KindMeshTrafficPermission, Enforced, withMTLS, "action"),
	on(resource.KindFaultInjection, Approximated, byClients, "delay", "abort"), on(resource.KindFaultInjection, Unsupported, "gRPC slows no responses down", "responseBandwidth"),
	on(resource.KindMeshHTTPFault, Enforced, "", "http[].delay.percentage", "http[].delay.value", "http[].abort.percentage"),
	on(resource.KindMeshHTTPFault, Enforced, "200 and above; as the gRPC status that gRPC makes of it", "http[].abort.httpStatus"),
	on(resource.KindMeshHTTPFault, Unsupported, "gRPC slows no responses down", "http[].responseBandwidth"),
	onFrom(resource.KindMeshHTTPFault, Approximated, byClients, "http[].delay", "http[].abort"), onFrom(resource.KindMeshHTTPFault, Unsupported, "gRPC slows no responses down", "http[].responseBandwidth"),
	on(resource.KindRateLimit, Unsupported, noInbound, ""),
	on(resource.KindMeshRateLimit, Unsupported, "gRPC clients limit no rates", ""), onFrom(resource.KindMeshRateLimit, Unsupported, noInbound),

	on(resource.KindTrafficRoute, Enforced, "", destinations...),
	on(resource.KindTrafficRoute, Enforced, "", httpRules...),
	on(resource.KindTrafficRoute, Enforced, "a gRPC call is a POST", httpMethod...),
	on(resource.KindTrafficRoute, Unsupported, noModify, "http[].modify"),
	on(resource.KindTrafficRoute, Enforced, "", "loadBalancer.roundRobin"),
	on(resource.KindTrafficRoute, Approximated, "the least busy by the client's own calls", "loadBalancer.leastRequest.choiceCount"),
	on(resource.KindTrafficRoute, Approximated, noHashKey, ringFields...),
	on(resource.KindTrafficRoute, Unsupported, "gRPC has XX_HASH only", "loadBalancer.ringHash.hashFunction"),
	on(resource.KindTrafficRoute, Unsupported, inTurns, "loadBalancer.random", "loadBalancer.maglev"),

	on(resource.KindMeshTrafficRoute, Enforced, "", destinations...),
	on(resource.KindMeshTrafficRoute, Enforced, "", httpRules...),
	on(resource.KindMeshTrafficRoute, Enforced, "a gRPC call is a POST", httpMethod...),
	on(resource.KindMeshTrafficRoute, Unsupported, noModify, "http[].modify", "rules[].default.filters"),
	on(resource.KindMeshTrafficRoute, Enforced, "", matchFields("rules[]")...),
	on(resource.KindMeshTrafficRoute, Enforced, "a gRPC call has no query parameters: it does not match", queryFields("rules[]")...),
	on(resource.KindMeshTrafficRoute, Enforced, "", "rules[].default.backendRefs[].kind", "rules[].default.backendRefs[].name", "rules[].default.backendRefs[].tags", "rules[].default.backendRefs[].weight"),
	on(resource.KindMeshTrafficRoute, Unsupported, "a service is known by its name and tags", "rules[].default.backendRefs[].port"),
	on(resource.KindMeshTrafficRoute, Enforced, "", "loadBalancer.roundRobin"),
	on(resource.KindMeshTrafficRoute, Approximated, "the least busy by the client's own calls", "loadBalancer.leastRequest.choiceCount"),
	on(resource.KindMeshTrafficRoute, Approximated, noHashKey, ringFields...),
	on(resource.KindMeshTrafficRoute, Unsupported, "gRPC has XX_HASH only", "loadBalancer.ringHash.hashFunction"),
	on(resource.KindMeshTrafficRoute, Unsupported, inTurns, "loadBalancer.random", "loadBalancer.maglev"),

	on(resource.KindTimeout, Approximated, wholeCall, "http.requestTimeout", "http.maxStreamDuration", "grpc.maxStreamDuration"),
	on(resource.KindTimeout, Unsupported, noConnect, "connectTimeout", "tcp", "http.idleTimeout"),
	on(resource.KindTimeout, Unsupported, "a gRPC client does not watch for idle streams", "http.streamIdleTimeout", "grpc.streamIdleTimeout"),
	on(resource.KindMeshUpstreamTimeout, Approximated, wholeCall, "http.requestTimeout", "http.maxStreamDuration"),
	on(resource.KindMeshUpstreamTimeout, Unsupported, noConnect, "connectTimeout", "idleTimeout", "http.idleTimeout", "http.maxConnectionDuration"),
	on(resource.KindMeshUpstreamTimeout, Unsupported, "a gRPC client does not watch for idle streams", "http.streamIdleTimeout", "http.requestHeadersTimeout"),

	on(resource.KindRetry, Enforced, "", "grpc.numRetries", "grpc.retryOn", "grpc.backOff.baseInterval", "grpc.backOff.maxInterval"),
	on(resource.KindRetry, Unsupported, "a gRPC client has one bound for a whole call", "grpc.perTryTimeout"),
	on(resource.KindRetry, Unsupported, httpOnly, "http"),
	on(resource.KindRetry, Unsupported, noConnect, "tcp"),
	on(resource.KindMeshRequestRetry, Enforced, "", "grpc.numRetries", "grpc.retryOn", "grpc.backOff.baseInterval", "grpc.backOff.maxInterval"),
	on(resource.KindMeshRequestRetry, Unsupported, "a gRPC client has one bound for a whole call", "grpc.perTryTimeout"),
	on(resource.KindMeshRequestRetry, Unsupported, "a gRPC client reads pauses from no header but its own", "grpc.rateLimitedBackOff"),
	on(resource.KindMeshRequestRetry, Unsupported, httpOnly, "http"),
	on(resource.KindMeshRequestRetry, Unsupported, noConnect, "tcp"),

	on(resource.KindCircuitBreaker, Enforced, "", "thresholds.maxRequests", "baseEjectionTime", "maxEjectionPercent"),
	on(resource.KindCircuitBreaker, Approximated, "at least 100ms", "interval"),
	on(resource.KindCircuitBreaker, Enforced, "", "detectors.standardDeviation.requestVolume", "detectors.standardDeviation.minimumHosts", "detectors.standardDeviation.factor",
		"detectors.failure.requestVolume", "detectors.failure.minimumHosts", "detectors.failure.threshold"),
	on(resource.KindCircuitBreaker, Unsupported, "gRPC counts calls only", "thresholds.maxConnections", "thresholds.maxPendingRequests", "thresholds.maxRetries"),
	on(resource.KindCircuitBreaker, Unsupported, noConsecutive, "detectors.totalErrors", "detectors.gatewayErrors", "detectors.localErrors", "splitExternalAndLocalErrors"),
	on(resource.KindMeshCircuitBreaker, Enforced, "", "connectionLimits.maxRequests", "outlierDetection.disabled", "outlierDetection.baseEjectionTime", "outlierDetection.maxEjectionPercent"),
	on(resource.KindMeshCircuitBreaker, Approximated, "at least 100ms", "outlierDetection.interval"),
	on(resource.KindMeshCircuitBreaker, Enforced, "", "outlierDetection.detectors.successRate.minimumHosts", "outlierDetection.detectors.successRate.requestVolume",
		"outlierDetection.detectors.successRate.standardDeviationFactor", "outlierDetection.detectors.failurePercentage.requestVolume",
		"outlierDetection.detectors.failurePercentage.minimumHosts", "outlierDetection.detectors.failurePercentage.threshold"),
	on(resource.KindMeshCircuitBreaker, Unsupported, "gRPC counts calls only", "connectionLimits.maxConnectionPools", "connectionLimits.maxConnections", "connectionLimits.maxPendingRequests", "connectionLimits.maxRetries"),
	on(resource.KindMeshCircuitBreaker, Unsupported, noConsecutive, "outlierDetection.detectors.totalFailures", "outlierDetection.detectors.gatewayFailures",
		"outlierDetection.detectors.localOriginFailures", "outlierDetection.splitExternalAndLocalErrors"),
	on(resource.KindMeshCircuitBreaker, Unsupported, "gRPC has no such threshold", "outlierDetection.healthyPanicThreshold"),
	onFrom(resource.KindMeshCircuitBreaker, Unsupported, noInbound),

	on(resource.KindHealthCheck, Unsupported, noHealth, ""),
	on(resource.KindMeshHealthCheck, Unsupported, noHealth, ""),
	on(resource.KindTrafficLog, Unsupported, noTelemetry, ""),
	on(resource.KindMeshLogging, Unsupported, noTelemetry, ""), onFrom(resource.KindMeshLogging, Approximated, auditLine),
	on(resource.KindTrafficTrace, Unsupported, noTelemetry, ""),
	on(resource.KindMeshTracing, Unsupported, noTelemetry, ""),
	on(resource.KindMeshMetrics, Unsupported, noTelemetry, ""),
	on(resource.KindProxyTemplate, Unsupported, "there is no Envoy to patch", ""),
	on(resource.KindMeshEnvoyTemplate, Unsupported, "there is no Envoy to patch", ""),
	on(resource.KindVirtualOutbound, Unsupported, "targets are the outbounds of the dataplane", ""),
	on(resource.KindMeshVirtualOutbound, Unsupported, "targets are the outbounds of the dataplane", ""),

	on(resource.KindHTTPRoute, Enforced, "with kind Service; routes of gateways do not concern gRPC clients", "parentRefs[].kind", "parentRefs[].name"),
	on(resource.KindHTTPRoute, Unsupported, "a service is known by its name", "parentRefs[].group", "parentRefs[].namespace", "parentRefs[].port", "parentRefs[].sectionName", "hostnames"),
	on(resource.KindHTTPRoute, Decided, "", "rules[].name"),
	on(resource.KindHTTPRoute, Enforced, "", matchFields("rules[]")...),
	on(resource.KindHTTPRoute, Enforced, "a gRPC call has no query parameters: it does not match", queryFields("rules[]")...),
	on(resource.KindHTTPRoute, Enforced, "", backendFields...),
	on(resource.KindHTTPRoute, Unsupported, "a service is known by its name and tags", "rules[].backendRefs[].port"),
	on(resource.KindHTTPRoute, Unsupported, noModify, "rules[].backendRefs[].filters", "rules[].filters"),
	on(resource.KindHTTPRoute, Approximated, wholeCall, "rules[].timeouts.request"),
	on(resource.KindHTTPRoute, Unsupported, "a gRPC client has one bound for a whole call", "rules[].timeouts.backendRequest"),
	on(resource.KindHTTPRoute, Unsupported, "retries of gRPC calls are by gRPC status: MeshRequestRetry has them", "rules[].retry"),
	on(resource.KindHTTPRoute, Unsupported, "gRPC clients keep no sessions", "rules[].sessionPersistence"),

	on(resource.KindGRPCRoute, Enforced, "with kind Service; routes of gateways do not concern gRPC clients", "parentRefs[].kind", "parentRefs[].name"),
	on(resource.KindGRPCRoute, Unsupported, "a service is known by its name", "parentRefs[].group", "parentRefs[].namespace", "parentRefs[].port", "parentRefs[].sectionName", "hostnames"),
	on(resource.KindGRPCRoute, Decided, "", "rules[].name"),
	on(resource.KindGRPCRoute, Enforced, "", "rules[].matches[].method.type", "rules[].matches[].method.service", "rules[].matches[].method.method",
		"rules[].matches[].headers[].type", "rules[].matches[].headers[].name", "rules[].matches[].headers[].value"),
	on(resource.KindGRPCRoute, Enforced, "", backendFields...),
	on(resource.KindGRPCRoute, Unsupported, "a service is known by its name and tags", "rules[].backendRefs[].port"),
	on(resource.KindGRPCRoute, Unsupported, noModify, "rules[].backendRefs[].filters", "rules[].filters"),
	on(resource.KindGRPCRoute, Unsupported, "gRPC clients keep no sessions", "rules[].sessionPersistence"),

	on(resource.KindGateway, Unsupported, noGateway, ""),
	on(resource.KindMeshGateway, Unsupported, noGateway, ""),
	on(resource.KindMeshGatewayRoute, Unsupported, noGateway, ""),
	on(resource.KindAuthPolicy, Unsupported, noGateway, ""),
	on(resource.KindRateLimitPolicy, Unsupported, noGateway, ""),
)

const (
	noHashKey     = "calls carry no key to hash: each goes to a random place of the ring"
	noConsecutive = "gRPC ejects by success rate and share of failures only"
)

var (
	destinations = []string{"split[].weight", "split[].destination", "destination"}
	httpRules    = []string{
		"http[].match.path.prefix", "http[].match.path.exact", "http[].match.path.regex",
		"http[].match.headers.*.prefix", "http[].match.headers.*.exact", "http[].match.headers.*.regex",
		"http[].split[].weight", "http[].split[].destination", "http[].destination",
	}
	httpMethod    = []string{"http[].match.method.prefix", "http[].match.method.exact", "http[].match.method.regex"}
	ringFields    = []string{"loadBalancer.ringHash.minRingSize", "loadBalancer.ringHash.maxRingSize"}
	backendFields = []string{"rules[].backendRefs[].group", "rules[].backendRefs[].kind", "rules[].backendRefs[].name", "rules[].backendRefs[].namespace", "rules[].backendRefs[].tags", "rules[].backendRefs[].weight"}
)

// matchFields are the conditions of a rule in the shape of HTTPRoute.
func matchFields(rule string) []string {
	var fields []string
	for _, f := range []string{"path.type", "path.value", "headers[].type", "headers[].name", "headers[].value", "method"} {
		fields = append(fields, rule+".matches[]."+f)
	}
	return fields
}

func queryFields(rule string) []string {
	var fields []string
	for _, f := range []string{"type", "name", "value"} {
		fields = append(fields, rule+".matches[].queryParams[]."+f)
	}
	return fields
}

func compile(groups ...group) map[resource.Kind][]row {
	rows := map[resource.Kind][]row{}
	for _, g := range groups {
		for _, f := range g.fields {
			rows[g.kind] = append(rows[g.kind], row{g.kind, g.direction, split(f), Answer{g.status, g.note}})
		}
	}
	return rows
}
