package proxyless

import (
	"slices"
	"testing"

	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/test/rows"
)

// byTests are rows that a test of this package asserts by what calls meet.
var byTests = []rows.Claim{
	rows.By(TestForgedCertificatesAreRejected, resource.KindMesh, "mtls.enabledBackend mtls.backends[].name mtls.backends[].type"),
	rows.By(TestEndpointsOfTheOwnZoneAreCalledFirst, resource.KindMesh, "routing.localityAwareLoadBalancing"),
	rows.By(TestRoutesSplitAndMatch, resource.KindDataplane, "networking.address networking.inbound[].port networking.inbound[].tags networking.outbound[].port networking.outbound[].tags"),
	rows.By(TestEndpointsHaveTheAddressOfTheirInbound, resource.KindDataplane, "networking.inbound[].address"),
	rows.By(TestInstancesThatAreNotReadyTakeNoCalls, resource.KindDataplane, "networking.inbound[].health.ready"),
	rows.By(TestStockServersDecideAsTheAnswerSays, resource.KindTrafficPermission, ""),
	rows.By(TestStockServersDecideAsTheAnswerSays, resource.KindMeshTrafficPermission, "from action"),
	rows.By(TestFaults, resource.KindMeshHTTPFault, "http[].delay.percentage http[].delay.value http[].abort.percentage http[].abort.httpStatus"),
	rows.By(TestPermissiveIsPlaintextUntilStrict, resource.KindMesh, "mtls.backends[].mode"),
	rows.By(TestFaultsOfWhomIsCalled, resource.KindFaultInjection, "delay abort"),
	rows.By(TestFaultsOfWhomIsCalled, resource.KindMeshHTTPFault, "from http[].delay http[].abort"),
	rows.By(TestAStockServerLogsDenials, resource.KindMeshLogging, "from"),
	rows.By(TestABreakerBoundsCalls, resource.KindCircuitBreaker, "thresholds.maxRequests"),
}

// Every row of the table that calls a field enforced or approximated on gRPC is asserted.
func TestEveryEnforcedRowIsAsserted(t *testing.T) {
	behaves := slices.Clone(byTests)
	for _, b := range behaviours() {
		behaves = append(behaves, rows.Claim{Kind: b.kind, Fields: b.fields})
	}
	var loads []rows.Claim
	for _, a := range accepts() {
		loads = append(loads, rows.Claim{Kind: a.kind, Fields: a.fields})
	}
	rows.Check(t, xds.GRPC, behaves, loads, []rows.Claim{
		{Kind: resource.KindMesh, Fields: "mtls.backends[].dpCert.rotation.expiration"}, // the zone issues certificates
	})
}
