package envoy

import "meridian/internal/resource"

// mostUnasserted is how many rows the list may have: it only becomes shorter.
const mostUnasserted = 8

// unasserted are the rows that nothing asserts on Envoy yet. A row leaves the list when it
// gets an assertion.
var unasserted = map[resource.Kind][]string{
	resource.KindDataplane:    {"networking.inbound[].health.ready", "networking.inbound[].serviceAddress"},
	resource.KindHTTPRoute:    {"rules[].retry.backoff"},
	resource.KindMesh:         {"routing.localityAwareLoadBalancing", "tracing.backends[].name", "tracing.backends[].sampling"},
	resource.KindMeshLogging:  {"backends[].name"},
	resource.KindTrafficTrace: {"backend"},
}
