package envoy

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/support"
)

// place is a row of the table of package support.
type place struct {
	kind  resource.Kind
	from  bool
	field string
}

func (p place) String() string {
	if p.from {
		return string(p.kind) + " from " + p.field
	}
	return string(p.kind) + " " + p.field
}

// places are rows as they are named beside what asserts them: fields separated by spaces,
// after from for those of its items. No field stands for all of a kind.
func places(kind resource.Kind, fields string) []place {
	names := strings.Fields(fields)
	from := len(names) > 0 && names[0] == "from"
	if from {
		names = names[1:]
	}
	if len(names) == 0 {
		names = []string{""}
	}
	var all []place
	for _, name := range names {
		all = append(all, place{kind, from, name})
	}
	return all
}

// tested are rows that a test of this package asserts by what requests meet.
type tested struct {
	by     func(*testing.T)
	kind   resource.Kind
	fields string
}

var byTests = []tested{
	{TestForgedCertificatesAreRejected, resource.KindMesh, "mtls.enabledBackend mtls.backends[].name mtls.backends[].type"},
	{TestAnEnvoyDecidesAsTheAnswerSays, resource.KindMeshTrafficPermission, "from action"},
	{TestRequestsAreLoggedToAFile, resource.KindMesh, "logging.defaultBackend"},
	{TestRequestsAreLoggedOverTCP, resource.KindMesh, "logging.backends[].name"},
	{TestRequestsAreLoggedOverTCP, resource.KindTrafficLog, "backend"},
	{TestRequestsAreTracedToZipkin, resource.KindMesh, "tracing.defaultBackend"},
	{TestRequestsAreLoggedAsObjects, resource.KindMeshLogging, below("backends[].", "type file.path file.format.type file.format.json[].key file.format.omitEmptyValues")},
	{TestRequestsAreLoggedOverTCP, resource.KindMeshLogging, below("backends[].tcp.", "address format.type format.json[].key format.omitEmptyValues")},
	{TestRequestsAreLoggedToACollector, resource.KindMeshLogging, below("backends[].openTelemetry.", "endpoint attributes[].key")},
	{TestRequestsAreTracedToACollector, resource.KindMeshTracing, "backends[].openTelemetry.endpoint"},
	{TestRequestsAreTracedToDatadog, resource.KindMeshTracing, "backends[].datadog.splitService"},
	{TestSpansHaveTags, resource.KindMeshTracing, "backends[].zipkin.traceId128bit sampling.overall tags[].name tags[].literal tags[].header.default"},
	{TestProtocols, resource.KindDataplane, "networking.inbound[].tags networking.outbound[].port networking.outbound[].tags"},
	{TestInboundsAreLogged, resource.KindDataplane, "networking.inbound[].port networking.inbound[].servicePort"},
	{TestATimeoutCuts, resource.KindTimeout, "http.requestTimeout"},
	{TestRetries, resource.KindRetry, "http.numRetries http.retryOn"},
	{TestABreakerEjects, resource.KindCircuitBreaker, "detectors.totalErrors.consecutive maxEjectionPercent"},
	{TestAnEnvoyDecidesAsTheAnswerSays, resource.KindTrafficPermission, ""},
	{TestABreakerBoundsRequests, resource.KindCircuitBreaker, "thresholds.maxRequests"},
}

// Every row of the table that calls a field enforced on Envoy is asserted: by a behaviour
// or a test, or, where a short test cannot observe what it does, by the configuration that
// Envoy has loaded. The rows that have none of these are listed, and no other can join.
func TestEveryEnforcedRowIsAsserted(t *testing.T) {
	rows := map[place]support.Status{}
	for r := range support.Rows(xds.Envoy) {
		rows[place{r.Kind, r.From, r.Field}] = r.Status
	}
	behaves, loads, lacks := map[place]bool{}, map[place]bool{}, map[place]bool{}
	note := func(into map[place]bool, kind resource.Kind, fields string) {
		for _, p := range places(kind, fields) {
			require.Contains(t, rows, p, "no row of the table is about it")
			into[p] = true
		}
	}
	for _, g := range groups() {
		for i := range g.list {
			note(behaves, g.list[i].kind, g.list[i].fields)
		}
	}
	for _, b := range byTests {
		note(behaves, b.kind, b.fields)
	}
	for _, l := range loadedGroups() {
		for i := range l.list {
			note(loads, l.list[i].kind, l.list[i].fields)
		}
	}
	for kind, fields := range unasserted {
		for _, one := range fields {
			note(lacks, kind, one)
		}
	}
	count := map[string]int{}
	for _, p := range slices.SortedFunc(maps.Keys(rows), func(a, b place) int { return strings.Compare(a.String(), b.String()) }) {
		if rows[p] != support.Enforced {
			if lacks[p] {
				t.Errorf("%s is %s: it needs no assertion, take it from the list", p, rows[p])
			}
			continue
		}
		switch {
		case (behaves[p] || loads[p]) && lacks[p]:
			t.Errorf("%s is asserted: take it from the list of rows that are not", p)
		case behaves[p] && loads[p]:
			t.Errorf("%s is asserted by a behaviour: the configuration is not needed", p)
		case behaves[p]:
			count["by behaviour"]++
		case loads[p]:
			count["by configuration"]++
		case lacks[p]:
			count["not"]++
		default:
			t.Errorf("%s is enforced: assert it by a behaviour", p)
		}
	}
	t.Logf("rows asserted: %v", count)
	require.LessOrEqual(t, count["not"], mostUnasserted, "a row that is new has an assertion")
}
