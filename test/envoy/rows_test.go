package envoy

import (
	"slices"
	"testing"

	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/test/rows"
)

// byTests are rows that a test of this package asserts by what requests meet.
var byTests = []rows.Claim{
	rows.By(TestForgedCertificatesAreRejected, resource.KindMesh, "mtls.enabledBackend mtls.backends[].name mtls.backends[].type"),
	rows.By(TestAnEnvoyDecidesAsTheAnswerSays, resource.KindMeshTrafficPermission, "from action"),
	rows.By(TestRequestsAreLoggedToAFile, resource.KindMesh, "logging.defaultBackend"),
	rows.By(TestRequestsAreLoggedOverTCP, resource.KindMesh, "logging.backends[].name"),
	rows.By(TestRequestsAreLoggedOverTCP, resource.KindTrafficLog, "backend"),
	rows.By(TestRequestsAreTracedToZipkin, resource.KindMesh, "tracing.defaultBackend"),
	rows.By(TestRequestsAreLoggedAsObjects, resource.KindMeshLogging, below("backends[].", "type file.path file.format.type file.format.json[].key file.format.omitEmptyValues")),
	rows.By(TestRequestsAreLoggedOverTCP, resource.KindMeshLogging, below("backends[].tcp.", "address format.type format.json[].key format.omitEmptyValues")),
	rows.By(TestRequestsAreLoggedToACollector, resource.KindMeshLogging, below("backends[].openTelemetry.", "endpoint attributes[].key")),
	rows.By(TestRequestsAreTracedToACollector, resource.KindMeshTracing, "backends[].openTelemetry.endpoint"),
	rows.By(TestRequestsAreTracedToDatadog, resource.KindMeshTracing, "backends[].datadog.splitService"),
	rows.By(TestSpansHaveTags, resource.KindMeshTracing, "backends[].zipkin.traceId128bit sampling.overall tags[].name tags[].literal tags[].header.default"),
	rows.By(TestMetricsAreRead, resource.KindMeshMetrics, "sidecar.includeUnused sidecar.profiles.appendProfiles[].name backends[].prometheus.port backends[].prometheus.path"),
	rows.By(TestMetricsAreRead, resource.KindMeshMetrics, below("sidecar.profiles.", "exclude[].type exclude[].match include[].type include[].match")),
	rows.By(TestMetricsOfApplicationsAreRead, resource.KindMeshMetrics, below("applications[].", "name path port address")),
	rows.By(TestMetricsAreSentToACollector, resource.KindMeshMetrics, "backends[].type backends[].openTelemetry.endpoint backends[].openTelemetry.refreshInterval"),
	rows.By(TestMetricsOfTheMeshAreRead, resource.KindMeshMetrics, "backends[].name"),
	rows.By(TestMetricsOfTheMeshAreRead, resource.KindMesh, "metrics.enabledBackend metrics.backends[].name"),
	rows.By(TestProtocols, resource.KindDataplane, "networking.inbound[].tags networking.outbound[].port networking.outbound[].tags"),
	rows.By(TestInboundsAreLogged, resource.KindDataplane, "networking.inbound[].port networking.inbound[].servicePort"),
	rows.By(TestATimeoutCuts, resource.KindTimeout, "http.requestTimeout"),
	rows.By(TestRetries, resource.KindRetry, "http.numRetries http.retryOn"),
	rows.By(TestABreakerEjects, resource.KindCircuitBreaker, "detectors.totalErrors.consecutive maxEjectionPercent"),
	rows.By(TestAnEnvoyDecidesAsTheAnswerSays, resource.KindTrafficPermission, ""),
	rows.By(TestABreakerBoundsRequests, resource.KindCircuitBreaker, "thresholds.maxRequests"),
	rows.By(TestInstancesThatAreNotReadyTakeNoRequests, resource.KindDataplane, "networking.inbound[].health.ready"),
	rows.By(TestAnApplicationListensAtAnotherAddress, resource.KindDataplane, "networking.inbound[].serviceAddress"),
	rows.By(TestEndpointsOfTheOwnZoneAreCalledFirst, resource.KindMesh, "routing.localityAwareLoadBalancing"),
	rows.By(TestRequestsAreTracedToANamedBackend, resource.KindMesh, "tracing.backends[].name tracing.backends[].sampling"),
	rows.By(TestRequestsAreTracedToANamedBackend, resource.KindTrafficTrace, "backend"),
	rows.By(TestPermissiveAcceptsBoth, resource.KindMesh, "mtls.backends[].mode"),
	rows.By(TestMetricsWithMutualTLS, resource.KindMeshMetrics, "backends[].prometheus.tls.mode"),
	rows.By(TestDenialsAndCallersAreLogged, resource.KindMeshLogging, "from"),
	rows.By(TestRequestsAreLoggedToANamedBackend, resource.KindMeshLogging, "backends[].name"),
	rows.By(TestHostNamesAreNoAddresses, resource.KindDataplane, "networking.address networking.inbound[].address networking.outbound[].address"),
	rows.By(TestBackendsOfAMeshAreLoaded, resource.KindMesh, "logging.backends[].conf logging.backends[].type tracing.backends[].conf tracing.backends[].type"),
	rows.By(TestMetricsOfTheMeshAreRead, resource.KindMesh, "metrics.backends[].conf metrics.backends[].type"),
	rows.By(TestRequestsAreLoggedToAFile, resource.KindMesh, "logging.backends[].format"),
	rows.By(TestRequestsAreLoggedToAFile, resource.KindMeshLogging, "backends[].file.format.plain"),
	rows.By(TestRequestsAreLoggedAsObjects, resource.KindMeshLogging, "backends[].file.format.json[].value"),
	rows.By(TestRequestsAreLoggedOverTCP, resource.KindMeshLogging, "backends[].tcp.format.json[].value backends[].tcp.format.plain"),
	rows.By(TestRequestsAreLoggedToACollector, resource.KindMeshLogging, "backends[].openTelemetry.attributes[].value backends[].openTelemetry.body"),
}

// elsewhere are rows that are approximated and that the tests of packages assert.
var elsewhere = []rows.Claim{
	{Kind: resource.KindMesh, Fields: "mtls.backends[].dpCert.rotation.expiration"}, // the zone issues certificates
}

// Every row of the table that calls a field enforced or approximated on Envoy is asserted.
func TestEveryEnforcedRowIsAsserted(t *testing.T) {
	behaves := slices.Clone(byTests)
	for _, g := range groups() {
		for i := range g.list {
			behaves = append(behaves, rows.Claim{Kind: g.list[i].kind, Fields: g.list[i].fields})
		}
	}
	var loads []rows.Claim
	for _, g := range loadedGroups() {
		for i := range g.list {
			loads = append(loads, rows.Claim{Kind: g.list[i].kind, Fields: g.list[i].fields})
		}
	}
	rows.Check(t, xds.Envoy, behaves, loads, elsewhere)
}
