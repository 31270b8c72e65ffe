package support

import (
	"slices"

	"meridian/internal/resource"
)

// Notes that several rows about Envoy share.
const (
	withMTLSEnvoy  = "in a mesh with mutual TLS, about callers who use it; an inbound without HTTP whose list denies a caller connects its application when the caller has sent something"
	allCallers     = "for all callers of an inbound together; an entry for some callers has no effect"
	notYet         = "not configured on Envoy yet"
	byCaller       = "what is for some callers only has effect in a mesh with mutual TLS whose mode is STRICT; on inbounds that speak HTTP"
	realStatus     = "200 and above; a status below is no answer, and aborts nothing"
	errorStatus    = "a status below 400, or one that Envoy does not know, becomes 429"
	wholeKibibytes = "in whole KiB/s, at least one"
	checksByName   = "of those that the service speaks; an endpoint has to pass all of them"
	otherZones     = "there is no traffic between zones yet"
	noInterception = "traffic is not intercepted: an application sends to the ports of its outbounds"
	noHash         = "requests carry no key to hash: each goes to a random place"
	noGatewayEnvoy = "Envoy is not configured as a gateway yet"
	serviceParents = "with kind Service; routes of gateways are not configured on Envoy yet"
	byName         = "a service is known by its name and tags"
	neverHeaders   = "the header host, and names that begin with a colon, are left as they are"
	placeholders   = "a placeholder that Envoy does not know, or that reads its files, secrets or environment, is written as it is"
	failsClosed    = "requests of a rule with such a filter are answered 500"
)

var filterFields = []string{
	"type", "requestHeaderModifier.set[].name", "requestHeaderModifier.set[].value", "requestHeaderModifier.add[].name", "requestHeaderModifier.add[].value",
	"requestHeaderModifier.remove", "responseHeaderModifier.set[].name", "responseHeaderModifier.set[].value", "responseHeaderModifier.add[].name",
	"responseHeaderModifier.add[].value", "responseHeaderModifier.remove",
}

// mirrorPlace are the fields of a mirror that only routes of the Gateway API look at.
var mirrorPlace = []string{"requestMirror.backendRef.group", "requestMirror.backendRef.kind", "requestMirror.backendRef.namespace"}

var mirrorFields = []string{"requestMirror.backendRef.name", "requestMirror.backendRef.tags", "requestMirror.percentage"}

var ruleFilterFields = append(slices.Clone(mirrorFields),
	"requestRedirect.scheme", "requestRedirect.hostname", "requestRedirect.port", "requestRedirect.statusCode",
	"requestRedirect.path.type", "requestRedirect.path.replaceFullPath", "requestRedirect.path.replacePrefixMatch",
	"urlRewrite.hostname", "urlRewrite.path.type", "urlRewrite.path.replaceFullPath", "urlRewrite.path.replacePrefixMatch",
)

var modifyFields = []string{
	"http[].modify.path.rewritePrefix", "http[].modify.path.regex.pattern", "http[].modify.path.regex.substitution", "http[].modify.host.value",
	"http[].modify.host.fromPath.pattern", "http[].modify.host.fromPath.substitution",
}

var modifiedHeaders = []string{
	"http[].modify.requestHeaders.add[].name", "http[].modify.requestHeaders.add[].value", "http[].modify.requestHeaders.add[].append", "http[].modify.requestHeaders.remove[].name",
	"http[].modify.responseHeaders.add[].name", "http[].modify.responseHeaders.add[].value", "http[].modify.responseHeaders.add[].append", "http[].modify.responseHeaders.remove[].name",
}

var timing = []string{
	"interval", "timeout", "unhealthyThreshold", "healthyThreshold", "initialJitter", "intervalJitter", "intervalJitterPercent", "healthyPanicThreshold", "failTrafficOnPanic",
	"noTrafficInterval", "alwaysLogHealthCheckFailures", "reuseConnection",
}

var detectorFields = []string{
	"outlierDetection.detectors.totalFailures.consecutive", "outlierDetection.detectors.gatewayFailures.consecutive", "outlierDetection.detectors.localOriginFailures.consecutive",
	"outlierDetection.detectors.successRate.minimumHosts", "outlierDetection.detectors.successRate.requestVolume", "outlierDetection.detectors.successRate.standardDeviationFactor",
	"outlierDetection.detectors.failurePercentage.requestVolume", "outlierDetection.detectors.failurePercentage.minimumHosts", "outlierDetection.detectors.failurePercentage.threshold",
}

var connectionLimitFields = []string{"maxConnectionPools", "maxConnections", "maxPendingRequests", "maxRetries", "maxRequests"}

var httpLimits = under("local.http", []string{
	"disabled", "requestRate.num", "requestRate.interval", "onRateLimit.headers.set[].name", "onRateLimit.headers.set[].value",
	"onRateLimit.headers.add[].name", "onRateLimit.headers.add[].value",
})

var tcpLimits = under("local.tcp", []string{"disabled", "connectionRate.num", "connectionRate.interval"})

// under puts fields below others.
func under(at string, fields []string) (all []string) {
	for _, f := range fields {
		all = append(all, at+"."+f)
	}
	return all
}

var envoyTable = compile(
	on(resource.KindMesh, Enforced, "with types builtin and provided; with others nothing is sent", "mtls.enabledBackend", "mtls.backends[].name", "mtls.backends[].type"),
	on(resource.KindMesh, Approximated, "with PERMISSIVE, Envoy accepts both, and uses TLS to Envoys that have a certificate", "mtls.backends[].mode"),
	on(resource.KindMesh, Approximated, "at least 1m", "mtls.backends[].dpCert.rotation.expiration"),
	on(resource.KindMesh, Decided, "", "mtls.backends[].conf"),
	on(resource.KindMesh, Unsupported, "the zone issues certificates itself", "mtls"),
	on(resource.KindMesh, Enforced, "", "routing.localityAwareLoadBalancing"),
	on(resource.KindMesh, Enforced, "", "logging.defaultBackend", "logging.backends[].name"),
	on(resource.KindMesh, Approximated, "file and tcp, and nothing is logged with another type", "logging.backends[].type"),
	on(resource.KindMesh, Approximated, placeholders, "logging.backends[].format"),
	on(resource.KindMesh, Unsupported, "it is about traces", "logging.backends[].sampling"),
	on(resource.KindMesh, Approximated, "path with type file and address, HOST:PORT, with type tcp; without it nothing is logged", "logging.backends[].conf"),
	on(resource.KindMesh, Enforced, "", "tracing.defaultBackend", "tracing.backends[].name", "tracing.backends[].sampling"),
	on(resource.KindMesh, Approximated, "zipkin and datadog, and no spans are sent with another type", "tracing.backends[].type"),
	on(resource.KindMesh, Unsupported, "it is about logs", "tracing.backends[].format"),
	on(resource.KindMesh, Approximated, "url, traceId128bit, apiVersion and sharedSpanContext with type zipkin; address, port and splitService with datadog; without TLS", "tracing.backends[].conf"),
	on(resource.KindMesh, Enforced, "of policies that name no backends too", "metrics.enabledBackend"),
	on(resource.KindMesh, Enforced, "", "metrics.backends[].name"),
	on(resource.KindMesh, Approximated, "prometheus, and no metrics are exposed with another type", "metrics.backends[].type"),
	on(resource.KindMesh, Unsupported, "it is about logs", "metrics.backends[].format"),
	on(resource.KindMesh, Unsupported, "it is about traces", "metrics.backends[].sampling"),
	on(resource.KindMesh, Approximated, "port, path, skipMTLS, tls.mode, aggregate, envoy.filterRegex and envoy.usedOnly, which is true if it is not written", "metrics.backends[].conf"),
	on(resource.KindMesh, Unsupported, noInterception, "networking"),
	on(resource.KindMesh, Unsupported, otherZones, "routing.zoneEgress", "routing.defaultForbidMeshExternalServices"),
	on(resource.KindMesh, Unsupported, "it is not about what is sent to proxies", "constraints"),
	on(resource.KindMesh, Decided, "", "matching"),

	on(resource.KindDataplane, Approximated, "Envoy takes IP addresses only: it does not listen on a host name, and leaves out endpoints with one", "networking.address", "networking.inbound[].address", "networking.outbound[].address"),
	on(resource.KindDataplane, Enforced, "", "networking.inbound[].port", "networking.inbound[].tags", "networking.inbound[].servicePort", "networking.inbound[].serviceAddress",
		"networking.inbound[].health.ready", "networking.outbound[].port", "networking.outbound[].tags"),
	on(resource.KindDataplane, Unsupported, otherZones, "networking.advertisedAddress"),
	on(resource.KindDataplane, Unsupported, "the application is not probed yet", "networking.inbound[].serviceProbe"),
	on(resource.KindDataplane, Unsupported, noGatewayEnvoy, "networking.gateway"),

	on(resource.KindTrafficPermission, Enforced, withMTLSEnvoy, ""),
	onFrom(resource.KindMeshTrafficPermission, Enforced, withMTLSEnvoy, "action"),
	on(resource.KindFaultInjection, Enforced, byCaller, "delay.percentage", "delay.value", "abort.percentage", "responseBandwidth.percentage"),
	on(resource.KindFaultInjection, Enforced, realStatus, "abort.httpStatus"), on(resource.KindFaultInjection, Enforced, wholeKibibytes, "responseBandwidth.limit"),
	on(resource.KindMeshHTTPFault, Enforced, "", "http[].delay.percentage", "http[].delay.value", "http[].abort.percentage", "http[].responseBandwidth.percentage"),
	on(resource.KindMeshHTTPFault, Enforced, realStatus, "http[].abort.httpStatus"), on(resource.KindMeshHTTPFault, Enforced, wholeKibibytes, "http[].responseBandwidth.limit"),
	onFrom(resource.KindMeshHTTPFault, Enforced, byCaller, "http[].delay.percentage", "http[].delay.value", "http[].abort.percentage", "http[].responseBandwidth.percentage"),
	onFrom(resource.KindMeshHTTPFault, Enforced, realStatus, "http[].abort.httpStatus"), onFrom(resource.KindMeshHTTPFault, Enforced, wholeKibibytes, "http[].responseBandwidth.limit"),
	on(resource.KindRateLimit, Enforced, byCaller, "http.requests", "http.interval", "http.onRateLimit.headers[].key", "http.onRateLimit.headers[].value", "http.onRateLimit.headers[].append"),
	on(resource.KindRateLimit, Approximated, errorStatus, "http.onRateLimit.status"),
	on(resource.KindMeshRateLimit, Enforced, "", httpLimits...), onFrom(resource.KindMeshRateLimit, Enforced, byCaller, httpLimits...),
	on(resource.KindMeshRateLimit, Approximated, errorStatus, "local.http.onRateLimit.status"), onFrom(resource.KindMeshRateLimit, Approximated, errorStatus, "local.http.onRateLimit.status"),
	on(resource.KindMeshRateLimit, Unsupported, "the answer has no other headers", "local.http.onRateLimit.headers.remove"), onFrom(resource.KindMeshRateLimit, Unsupported, "the answer has no other headers", "local.http.onRateLimit.headers.remove"),
	on(resource.KindMeshRateLimit, Unsupported, "connections are limited where they are accepted: on inbounds", "local.tcp"),
	onFrom(resource.KindMeshRateLimit, Enforced, "for all callers of an inbound together, whom connections are not known of yet; an entry for some callers has no effect", tcpLimits...),

	on(resource.KindTrafficRoute, Enforced, "", destinations...),
	on(resource.KindTrafficRoute, Enforced, "", httpRules...),
	on(resource.KindTrafficRoute, Enforced, "", httpMethod...),
	on(resource.KindTrafficRoute, Enforced, "", modifyFields...),
	on(resource.KindTrafficRoute, Enforced, neverHeaders, modifiedHeaders...),
	on(resource.KindTrafficRoute, Enforced, "", "loadBalancer.roundRobin", "loadBalancer.random", "loadBalancer.leastRequest.choiceCount"),
	on(resource.KindTrafficRoute, Approximated, noHash, ringFields...),
	on(resource.KindTrafficRoute, Approximated, noHash, "loadBalancer.ringHash.hashFunction", "loadBalancer.maglev"),

	on(resource.KindMeshTrafficRoute, Enforced, "", destinations...),
	on(resource.KindMeshTrafficRoute, Enforced, "", httpRules...),
	on(resource.KindMeshTrafficRoute, Enforced, "", httpMethod...),
	on(resource.KindMeshTrafficRoute, Enforced, "", modifyFields...),
	on(resource.KindMeshTrafficRoute, Enforced, neverHeaders, modifiedHeaders...),
	on(resource.KindMeshTrafficRoute, Enforced, "", matchFields("rules[]")...),
	on(resource.KindMeshTrafficRoute, Enforced, "", queryFields("rules[]")...),
	on(resource.KindMeshTrafficRoute, Enforced, neverHeaders, under("rules[].default.filters[]", filterFields)...),
	on(resource.KindMeshTrafficRoute, Enforced, "", under("rules[].default.filters[]", ruleFilterFields)...),
	on(resource.KindMeshTrafficRoute, Unsupported, byName, under("rules[].default.filters[]", mirrorPlace)...),
	on(resource.KindMeshTrafficRoute, Unsupported, byName, "rules[].default.filters[].requestMirror.backendRef.port"),
	on(resource.KindMeshTrafficRoute, Unsupported, failsClosed, "rules[].default.filters[].extensionRef"),
	on(resource.KindMeshTrafficRoute, Enforced, "", "rules[].default.backendRefs[].kind", "rules[].default.backendRefs[].name", "rules[].default.backendRefs[].tags", "rules[].default.backendRefs[].weight"),
	on(resource.KindMeshTrafficRoute, Unsupported, byName, "rules[].default.backendRefs[].port"),
	on(resource.KindMeshTrafficRoute, Enforced, "", "loadBalancer.roundRobin", "loadBalancer.random", "loadBalancer.leastRequest.choiceCount"),
	on(resource.KindMeshTrafficRoute, Approximated, noHash, ringFields...),
	on(resource.KindMeshTrafficRoute, Approximated, noHash, "loadBalancer.ringHash.hashFunction", "loadBalancer.maglev"),

	on(resource.KindTimeout, Enforced, "", "connectTimeout", "tcp.idleTimeout", "http.requestTimeout", "http.idleTimeout", "http.streamIdleTimeout", "http.maxStreamDuration"),
	on(resource.KindTimeout, Enforced, "for services that speak gRPC", "grpc.streamIdleTimeout", "grpc.maxStreamDuration"),
	on(resource.KindMeshUpstreamTimeout, Enforced, "", "connectTimeout", "http.requestTimeout", "http.requestHeadersTimeout", "http.streamIdleTimeout", "http.idleTimeout", "http.maxStreamDuration", "http.maxConnectionDuration"),
	on(resource.KindMeshUpstreamTimeout, Enforced, "for services that speak no HTTP; http.idleTimeout is for those that do", "idleTimeout"),

	on(resource.KindRetry, Enforced, "", "http.numRetries", "http.perTryTimeout", "http.backOff.baseInterval", "http.backOff.maxInterval", "http.retriableStatusCodes", "http.retriableMethods", "http.retryOn"),
	on(resource.KindRetry, Enforced, "for services that speak gRPC", "grpc.numRetries", "grpc.perTryTimeout", "grpc.retryOn", "grpc.backOff.baseInterval", "grpc.backOff.maxInterval"),
	on(resource.KindRetry, Enforced, "for services that speak no HTTP", "tcp.maxConnectAttempts"),
	on(resource.KindMeshRequestRetry, Enforced, "", "http.numRetries", "http.perTryTimeout", "http.backOff.baseInterval", "http.backOff.maxInterval",
		"http.rateLimitedBackOff.resetHeaders[].name", "http.rateLimitedBackOff.resetHeaders[].format", "http.rateLimitedBackOff.maxInterval",
		"http.retriableResponseHeaders[].type", "http.retriableResponseHeaders[].name", "http.retriableResponseHeaders[].value", "http.hostSelectionMaxAttempts"),
	on(resource.KindMeshRequestRetry, Approximated, "methods and headers of requests are alternatives: a request with one of them is repeated", "http.retryOn", "http.retriableRequestHeaders"),
	on(resource.KindMeshRequestRetry, Enforced, "", "http.hostSelection[].updateFrequency"),
	on(resource.KindMeshRequestRetry, Approximated, "endpoints have no tags on Envoy: OmitHostsWithTags avoids none", "http.hostSelection[].predicate", "http.hostSelection[].tags"),
	on(resource.KindMeshRequestRetry, Enforced, "for services that speak gRPC", "grpc.numRetries", "grpc.perTryTimeout", "grpc.retryOn", "grpc.backOff.baseInterval", "grpc.backOff.maxInterval",
		"grpc.rateLimitedBackOff.resetHeaders[].name", "grpc.rateLimitedBackOff.resetHeaders[].format", "grpc.rateLimitedBackOff.maxInterval"),
	on(resource.KindMeshRequestRetry, Enforced, "for services that speak no HTTP", "tcp.maxConnectAttempt"),

	on(resource.KindCircuitBreaker, Enforced, "", "thresholds.maxConnections", "thresholds.maxPendingRequests", "thresholds.maxRequests", "thresholds.maxRetries",
		"baseEjectionTime", "maxEjectionPercent", "splitExternalAndLocalErrors",
		"detectors.totalErrors.consecutive", "detectors.gatewayErrors.consecutive", "detectors.localErrors.consecutive",
		"detectors.standardDeviation.requestVolume", "detectors.standardDeviation.minimumHosts", "detectors.standardDeviation.factor",
		"detectors.failure.requestVolume", "detectors.failure.minimumHosts", "detectors.failure.threshold"),
	on(resource.KindCircuitBreaker, Approximated, "at least 1ms", "interval"),
	on(resource.KindMeshCircuitBreaker, Enforced, "", under("connectionLimits", connectionLimitFields)...),
	on(resource.KindMeshCircuitBreaker, Enforced, "", under("outlierDetection", []string{"disabled", "baseEjectionTime", "maxEjectionPercent", "splitExternalAndLocalErrors", "healthyPanicThreshold"})...),
	on(resource.KindMeshCircuitBreaker, Enforced, "", detectorFields...),
	on(resource.KindMeshCircuitBreaker, Approximated, "at least 1ms", "outlierDetection.interval"),
	onFrom(resource.KindMeshCircuitBreaker, Enforced, allCallers, under("connectionLimits", connectionLimitFields)...),
	onFrom(resource.KindMeshCircuitBreaker, Unsupported, "there is one endpoint behind an inbound, the application: nothing is ejected", "outlierDetection"),

	on(resource.KindHealthCheck, Enforced, "", timing...),
	on(resource.KindHealthCheck, Unsupported, "Envoy's own log has changes of health", "eventLogPath"),
	on(resource.KindHealthCheck, Enforced, checksByName, "tcp.send", "tcp.receive", "http.path", "http.requestHeadersToAdd[].header.key", "http.requestHeadersToAdd[].header.value", "http.requestHeadersToAdd[].append", "http.expectedStatuses"),
	on(resource.KindMeshHealthCheck, Enforced, "", timing...),
	on(resource.KindMeshHealthCheck, Unsupported, "Envoy's own log has changes of health", "eventLogPath"),
	on(resource.KindMeshHealthCheck, Enforced, checksByName, "tcp.disabled", "tcp.send", "tcp.receive", "http.disabled", "http.path", "http.expectedStatuses",
		"http.requestHeadersToAdd.set[].name", "http.requestHeadersToAdd.set[].value", "http.requestHeadersToAdd.add[].name", "http.requestHeadersToAdd.add[].value", "http.requestHeadersToAdd.remove",
		"grpc.disabled", "grpc.serviceName", "grpc.authority"),

	on(resource.KindTrafficLog, Enforced, "", "backend"),
	on(resource.KindMeshLogging, Enforced, "", under("backends[]", []string{
		"name", "type", "file.path", "file.format.type", "file.format.json[].key", "file.format.omitEmptyValues", "tcp.format.type", "tcp.format.json[].key",
	})...),
	on(resource.KindMeshLogging, Enforced, "through the agent; addresses are HOST:PORT", "backends[].tcp.address"),
	on(resource.KindMeshLogging, Enforced, "of an object, - is without a value too", "backends[].tcp.format.omitEmptyValues"),
	on(resource.KindMeshLogging, Enforced, "without TLS; port 4317 if none is written", "backends[].openTelemetry.endpoint"),
	on(resource.KindMeshLogging, Enforced, "", "backends[].openTelemetry.attributes[].key"),
	on(resource.KindMeshLogging, Approximated, placeholders, under("backends[]", []string{
		"file.format.plain", "file.format.json[].value", "tcp.format.plain", "tcp.format.json[].value", "openTelemetry.attributes[].value",
	})...),
	on(resource.KindMeshLogging, Approximated, "numbers and truth values are sent as texts; "+placeholders, "backends[].openTelemetry.body"),
	onFrom(resource.KindMeshLogging, Approximated, "entries for some callers in meshes with mutual TLS only, as it is not known who calls without; of an inbound at most 64, with conditions of 64 KiB together"),
	on(resource.KindTrafficTrace, Enforced, "of services that speak HTTP", "backend"),
	on(resource.KindMeshTracing, Approximated, "spans go to the first backend that can be used", "backends"),
	on(resource.KindMeshTracing, Approximated, "http:// only; spans go to the first backend that can be used", "backends[].zipkin.url", "backends[].datadog.url"),
	on(resource.KindMeshTracing, Enforced, "without TLS; port 4317 if none is written", "backends[].openTelemetry.endpoint"),
	on(resource.KindMeshTracing, Enforced, "", "backends[].zipkin.traceId128bit", "backends[].zipkin.apiVersion", "backends[].zipkin.sharedSpanContext", "backends[].datadog.splitService",
		"sampling.overall", "sampling.client", "sampling.random", "tags[].name", "tags[].literal", "tags[].header.name", "tags[].header.default"),
	on(resource.KindMeshMetrics, Enforced, "", under("sidecar", []string{
		"includeUnused", "profiles.exclude[].type", "profiles.exclude[].match", "profiles.include[].type", "profiles.include[].match",
	})...),
	on(resource.KindMeshMetrics, Enforced, "All if none are written; Basic has requests, connections, errors and endpoints by service, and how Envoy is", "sidecar.profiles.appendProfiles[].name"),
	on(resource.KindMeshMetrics, Enforced, "as the label application", "applications[].name"),
	on(resource.KindMeshMetrics, Enforced, "by HTTP without TLS, of at most 16", "applications[].path", "applications[].port", "applications[].address"),
	on(resource.KindMeshMetrics, Enforced, "", "backends[].name"),
	on(resource.KindMeshMetrics, Enforced, "", "backends[].type"),
	on(resource.KindMeshMetrics, Enforced, "of several with one port, the first", "backends[].prometheus.port"),
	on(resource.KindMeshMetrics, Enforced, "", "backends[].prometheus.path"),
	on(resource.KindMeshMetrics, Unsupported, "every Prometheus reads the endpoint", "backends[].prometheus.clientId"),
	on(resource.KindMeshMetrics, Approximated, "with ActiveMTLSBackend, who has a certificate of the mesh reads; with ProvidedTLS no metrics are exposed", "backends[].prometheus.tls.mode"),
	on(resource.KindMeshMetrics, Enforced, "without TLS; port 4317 if none is written", "backends[].openTelemetry.endpoint"),
	on(resource.KindMeshMetrics, Enforced, "1s at least", "backends[].openTelemetry.refreshInterval"),
	on(resource.KindProxyTemplate, Unsupported, notYet, ""),
	on(resource.KindMeshEnvoyTemplate, Unsupported, notYet, ""),
	on(resource.KindVirtualOutbound, Unsupported, noInterception, ""),
	on(resource.KindMeshVirtualOutbound, Unsupported, noInterception, ""),

	on(resource.KindHTTPRoute, Enforced, serviceParents, "parentRefs[].kind", "parentRefs[].name"),
	on(resource.KindHTTPRoute, Unsupported, "a service is known by its name", "parentRefs[].group", "parentRefs[].namespace", "parentRefs[].port", "parentRefs[].sectionName", "hostnames"),
	on(resource.KindHTTPRoute, Decided, "", "rules[].name"),
	on(resource.KindHTTPRoute, Enforced, "", matchFields("rules[]")...),
	on(resource.KindHTTPRoute, Enforced, "", queryFields("rules[]")...),
	on(resource.KindHTTPRoute, Enforced, "", backendFields...),
	on(resource.KindHTTPRoute, Unsupported, byName, "rules[].backendRefs[].port", "rules[].filters[].requestMirror.backendRef.port"),
	on(resource.KindHTTPRoute, Enforced, neverHeaders, under("rules[].filters[]", filterFields)...),
	on(resource.KindHTTPRoute, Enforced, "", under("rules[].filters[]", append(mirrorPlace, ruleFilterFields...))...),
	on(resource.KindHTTPRoute, Unsupported, failsClosed, "rules[].filters[].extensionRef"),
	on(resource.KindHTTPRoute, Enforced, neverHeaders, under("rules[].backendRefs[].filters[]", filterFields)...),
	on(resource.KindHTTPRoute, Enforced, "", "rules[].backendRefs[].filters[].urlRewrite.hostname"),
	on(resource.KindHTTPRoute, Unsupported, "of one share of the requests, Envoy changes headers and the host only", "rules[].backendRefs[].filters[]"),
	on(resource.KindHTTPRoute, Enforced, "", "rules[].timeouts.request", "rules[].timeouts.backendRequest", "rules[].retry.codes", "rules[].retry.attempts", "rules[].retry.backoff"),
	on(resource.KindHTTPRoute, Unsupported, notYet, "rules[].sessionPersistence"),

	on(resource.KindGRPCRoute, Enforced, serviceParents, "parentRefs[].kind", "parentRefs[].name"),
	on(resource.KindGRPCRoute, Unsupported, "a service is known by its name", "parentRefs[].group", "parentRefs[].namespace", "parentRefs[].port", "parentRefs[].sectionName", "hostnames"),
	on(resource.KindGRPCRoute, Decided, "", "rules[].name"),
	on(resource.KindGRPCRoute, Enforced, "", "rules[].matches[].method.type", "rules[].matches[].method.service", "rules[].matches[].method.method",
		"rules[].matches[].headers[].type", "rules[].matches[].headers[].name", "rules[].matches[].headers[].value"),
	on(resource.KindGRPCRoute, Enforced, "", backendFields...),
	on(resource.KindGRPCRoute, Unsupported, byName, "rules[].backendRefs[].port", "rules[].filters[].requestMirror.backendRef.port"),
	on(resource.KindGRPCRoute, Enforced, neverHeaders, under("rules[].filters[]", filterFields)...),
	on(resource.KindGRPCRoute, Enforced, "", under("rules[].filters[]", append(mirrorPlace, mirrorFields...))...),
	on(resource.KindGRPCRoute, Unsupported, "a route with it is refused: it is not for gRPC calls", "rules[].filters[].requestRedirect", "rules[].filters[].urlRewrite"),
	on(resource.KindGRPCRoute, Unsupported, failsClosed, "rules[].filters[].extensionRef"),
	on(resource.KindGRPCRoute, Enforced, neverHeaders, under("rules[].backendRefs[].filters[]", filterFields)...),
	on(resource.KindGRPCRoute, Unsupported, "of one share of the requests, Envoy changes headers only", "rules[].backendRefs[].filters[]"),
	on(resource.KindGRPCRoute, Unsupported, notYet, "rules[].sessionPersistence"),

	on(resource.KindGateway, Unsupported, noGatewayEnvoy, ""),
	on(resource.KindMeshGateway, Unsupported, noGatewayEnvoy, ""),
	on(resource.KindMeshGatewayRoute, Unsupported, noGatewayEnvoy, ""),
	on(resource.KindAuthPolicy, Unsupported, noGatewayEnvoy, ""),
	on(resource.KindRateLimitPolicy, Unsupported, noGatewayEnvoy, ""),
)
