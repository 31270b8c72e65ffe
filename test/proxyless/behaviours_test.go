package proxyless

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
	meridianxds "meridian/internal/xds"
	"meridian/internal/xds/xdstest"
	"meridian/test/rows"
)

// behaviour is what a stock client does because of fields of a kind: a row of the table of
// package support that is shown by what calls meet.
type behaviour struct {
	kind resource.Kind
	// fields are as in the table of package support, separated by spaces.
	fields string
	// conf is what a policy configures, or the spec of another kind.
	conf string
	// shown makes calls, after the client has accepted the policy.
	shown func(*scene)
}

// scene is a client and the servers one and two of the service backend, with the versions
// v1 and v2.
type scene struct {
	*testing.T

	zone     *zone
	conn     *grpc.ClientConn
	one, two *backend
}

// document is a policy from web to backend, or with its whole spec what is none.
func (z *zone) document(kind resource.Kind, conf string) store.Op {
	if d, _ := resource.Describe(kind); d.Class == resource.TargetRef || d.Class == resource.SourceDestination {
		return z.put(kind, "m", "p", xdstest.Spec(kind, conf))
	}
	return z.put(kind, "m", "r", conf)
}

// stage starts a zone, the servers, and a client that has called them.
func stage(t *testing.T) *scene {
	s := &scene{T: t, zone: newZone(t), one: start(t, "one"), two: start(t, "two")}
	s.zone.apply(s.zone.dataplane(s.one, "v1"), s.zone.dataplane(s.two, "v2"))
	s.conn = s.zone.dial("xds:///backend")
	answered(t, s.conn, 2, "/a.S/M")
	return s
}

// with runs a function in a test of its own while a document is there. A client accepts
// a configuration before its calls obey it, so it ends when calls are in turns again: those
// of the next document would meet this one's.
func (s *scene) with(name string, op store.Op, run func(*scene)) {
	s.Run(name, func(t *testing.T) {
		s.zone.t = t
		s.zone.apply(op)
		require.Empty(t, s.zone.xds.Settle())
		run(&scene{t, s.zone, s.conn, s.one, s.two})
		for _, b := range []*backend{s.one, s.two} {
			b.fail.Store(0)
			b.code.Store(0)
		}
		s.zone.apply(store.Delete(op.Key))
		require.Empty(t, s.zone.xds.Settle())
		s.eventually(s.inTurns)
	})
	s.zone.t = s.T
}

func TestBehaviours(t *testing.T) {
	s := stage(t)
	for _, b := range behaviours() {
		s.with(fmt.Sprintf("%s %.60s", b.kind, b.fields), s.zone.document(b.kind, b.conf), b.shown)
	}
}

// eventually waits until calls show that something holds.
func (s *scene) eventually(holds func() bool) {
	s.Helper()
	for !holds() {
		require.NoError(s, s.Context().Err())
	}
}

// try makes a call: a method, and pairs of a header and a value.
func (s *scene) try(request string) (string, error) {
	s.Helper()
	parts := strings.Fields(request)
	return call(metadata.AppendToOutgoingContext(s.Context(), parts[1:]...), s.conn, parts[0])
}

// byTwo is how many of 400 calls two answers.
func (s *scene) byTwo() (n int) {
	s.Helper()
	for range 400 {
		if name, err := s.try("/a.S/M"); err == nil && name == "two" {
			n++
		}
	}
	return n
}

// streak makes the same call until one is answered by another server than expected, and
// reports whether enough were. Turns never come to as many.
func (s *scene) streak(server, request string) bool {
	s.Helper()
	for range 6 {
		if name, err := s.try(request); err != nil || name != server {
			return false
		}
	}
	return true
}

// routed expects that calls are answered by two, and others by one.
func (s *scene) routed(matched []string, others ...string) {
	s.Helper()
	s.eventually(func() bool { return s.streak("two", matched[0]) })
	for _, request := range matched {
		require.True(s, s.streak("two", request), request)
	}
	for _, request := range others {
		require.True(s, s.streak("one", request), request)
	}
}

// fails expects that calls come to fail with a status.
func (s *scene) fails(want codes.Code) {
	s.Helper()
	failed := func() bool {
		_, err := s.try("/a.S/M")
		return status.Code(err) == want
	}
	s.eventually(failed)
	require.True(s, failed())
}

// below puts fields below a place, separated by spaces.
func below(at, fields string) string {
	return at + strings.Join(strings.Fields(fields), " "+at)
}

// ofTrafficRoutes are behaviours of the parts that TrafficRoute and MeshTrafficRoute have
// in common.
func ofTrafficRoutes(kind resource.Kind) []behaviour {
	one, two := v("v1"), v("v2")
	rule := func(match string) string { return `{"match":{` + match + `},` + two + `},` }
	http := func(matches ...string) string {
		var list strings.Builder
		for _, m := range matches {
			list.WriteString(rule(m))
		}
		return `{"http":[` + strings.TrimSuffix(list.String(), ",") + `],` + one + `}`
	}
	return []behaviour{
		{kind, "destination", `{` + two + `}`, func(s *scene) { s.routed([]string{"/a.S/M"}) }},
		{kind, "split[].weight split[].destination", `{"split":[{"weight":3,` + one + `},{"weight":1,` + two + `}]}`, func(s *scene) {
			// In turns, it is a half; the deviation is less than 9. Calls go to one alone
			// until there is a connection to two.
			s.eventually(func() bool { n := s.byTwo(); return n > 50 && n < 150 })
		}},
		{
			kind, "http[].match.path.prefix http[].match.path.exact http[].match.path.regex http[].destination",
			http(`"path":{"prefix":"/p"}`, `"path":{"exact":"/e/M"}`, `"path":{"regex":"/r[0-9]+/M"}`), func(s *scene) {
				s.routed([]string{"/pa/M", "/e/M", "/r12/M"}, "/a.S/M", "/e/Ma", "/r/M", "/r1/Ma")
			},
		},
		{
			kind, "http[].match.method.prefix http[].match.method.exact http[].match.method.regex",
			http(`"path":{"prefix":"/a"},"method":{"prefix":"PO"}`, `"path":{"prefix":"/b"},"method":{"exact":"POST"}`, `"path":{"prefix":"/c"},"method":{"regex":"P.*"}`,
				`"path":{"prefix":"/d"},"method":{"prefix":"GE"}`, `"path":{"prefix":"/e"},"method":{"exact":"GET"}`, `"path":{"prefix":"/f"},"method":{"regex":"G.*"}`),
			func(s *scene) { s.routed([]string{"/a/M", "/b/M", "/c/M"}, "/d/M", "/e/M", "/f/M") },
		},
		{
			kind, "http[].match.headers.*.prefix http[].match.headers.*.exact http[].match.headers.*.regex",
			http(`"headers":{"a":{"prefix":"x"}}`, `"headers":{"b":{"exact":"y"}}`, `"headers":{"c":{"regex":"z+"}}`), func(s *scene) {
				s.routed([]string{"/a.S/M a xx", "/a.S/M b y", "/a.S/M c zz"}, "/a.S/M", "/a.S/M a y", "/a.S/M b yy", "/a.S/M c zza")
			},
		},
		{kind, "http[].split[].weight http[].split[].destination", `{"http":[{"match":{"path":{"prefix":"/s"}},"split":[{"weight":0,` + one + `},{"weight":7,` + two + `}]}],` + one + `}`, func(s *scene) {
			s.routed([]string{"/s/M"}, "/a.S/M")
		}},
		{kind, "loadBalancer.roundRobin", `{"loadBalancer":{"roundRobin":{}},"http":[]}`, func(s *scene) { s.eventually(s.inTurns) }},
	}
}

// inTurns reports whether one and two answer in turns.
func (s *scene) inTurns() bool {
	last := ""
	for range 40 {
		name, err := s.try("/a.S/M")
		if err != nil || name == last {
			return false
		}
		last = name
	}
	return true
}

const (
	toOne = `{"kind":"ServiceSubset","name":"backend","tags":{"version":"v1"}`
	toTwo = `{"kind":"ServiceSubset","name":"backend","tags":{"version":"v2"}`
)

// shape is how a kind of route writes a rule.
type shape struct{ kind resource.Kind }

// at is the place of destinations.
func (h shape) at() string {
	if h.kind == resource.KindMeshTrafficRoute {
		return "rules[].default.backendRefs[]."
	}
	return "rules[].backendRefs[]."
}

// rule is a rule with conditions and destinations.
func (h shape) rule(matches, backends string) string {
	does := `"backendRefs":[` + backends + `]`
	if h.kind == resource.KindMeshTrafficRoute {
		does = `"default":{` + does + `}`
	}
	return `{"matches":[` + matches + `],` + does + `}`
}

// spec is a route of a service with rules.
func (h shape) spec(parent string, rules ...string) string {
	list := `"rules":[` + strings.Join(rules, ",") + `]}`
	if h.kind == resource.KindMeshTrafficRoute {
		return "{" + list
	}
	return `{"parentRefs":[` + parent + `],` + list
}

const ofBackend = `{"kind":"Service","name":"backend"}`

// on is a route to two of what satisfies conditions, and to one of the rest.
func (h shape) on(matches string) string {
	return h.spec(ofBackend, h.rule(matches, toTwo+`}`), h.rule("", toOne+`}`))
}

// destinations are the behaviours of the destinations of rules.
func (h shape) destinations() []behaviour {
	return []behaviour{{
		h.kind, below(h.at(), "kind name tags weight"), h.spec(ofBackend, h.rule("", toOne+`,"weight":0},`+toTwo+`,"weight":3}`)),
		func(s *scene) { s.routed([]string{"/a.S/M"}) },
	}}
}

// ofRoutes are what HTTPRoute and GRPCRoute have in common: the service that they are of,
// and destinations that cannot be, to which calls fail.
func (h shape) ofRoutes() []behaviour {
	list := append(h.destinations(), behaviour{
		h.kind, "parentRefs[].kind parentRefs[].name", h.spec(ofBackend, h.rule("", toTwo+`}`)), func(s *scene) {
			for _, other := range []string{`{"kind":"Service","name":"other"}`, `{"kind":"Gateway","name":"backend"}`} {
				s.routed([]string{"/a.S/M"})
				s.zone.apply(s.zone.document(h.kind, h.spec(other, h.rule("", toTwo+`}`))))
				s.eventually(s.inTurns)
				s.zone.apply(s.zone.document(h.kind, h.spec(ofBackend, h.rule("", toTwo+`}`))))
			}
		},
	})
	for field, to := range map[string]string{"group": `"group":"other"`, "namespace": `"namespace":"elsewhere"`} {
		list = append(list, behaviour{h.kind, h.at() + field, h.spec(ofBackend, h.rule("", `{`+to+`,"name":"backend"}`)), func(s *scene) { s.fails(codes.Unavailable) }})
	}
	return list
}

// conditions are those of rules in the shape of HTTPRoute.
func (h shape) conditions() []behaviour {
	return []behaviour{
		{
			h.kind, below("rules[].matches[].", "path.type path.value method"),
			h.on(`{"path":{"value":"/p"}},{"path":{"type":"PathPrefix","value":"/q/"}},{"path":{"type":"Exact","value":"/e/M"}},{"path":{"type":"RegularExpression","value":"/r[0-9]+/M"}},
				{"path":{"value":"/post"},"method":"POST"},{"path":{"value":"/get"},"method":"GET"}`),
			func(s *scene) {
				s.routed([]string{"/p/M", "/q/M", "/e/M", "/r12/M", "/post/M"}, "/a.S/M", "/pa/M", "/e/Ma", "/r/M", "/r1/Ma", "/get/M")
			},
		},
		{
			h.kind, below("rules[].matches[].headers[].", "type name value"),
			h.on(`{"headers":[{"name":"a","value":"x"}]},{"headers":[{"name":"b","type":"RegularExpression","value":"y+"}]},{"headers":[{"name":"c","type":"Exact","value":"z"},{"name":"d","value":"z"}]}`),
			func(s *scene) {
				s.routed([]string{"/a.S/M a x", "/a.S/M b yy", "/a.S/M c z d z"}, "/a.S/M", "/a.S/M a xx", "/a.S/M b yyz", "/a.S/M c z")
			},
		},
		{ // a call has no query parameters
			h.kind, below("rules[].matches[].queryParams[].", "type name value"),
			h.on(`{"queryParams":[{"name":"a","value":"x"}]},{"queryParams":[{"name":"b","type":"RegularExpression","value":".*"}]},{"path":{"value":"/q"}}`),
			func(s *scene) { s.routed([]string{"/q/M"}, "/a.S/M") },
		},
	}
}

// calledBy are the conditions of GRPCRoute.
func (h shape) calledBy() []behaviour {
	return []behaviour{
		{
			h.kind, below("rules[].matches[].method.", "type service method"),
			h.on(`{"method":{"service":"a.S","method":"M"}},{"method":{"type":"RegularExpression","service":"b\\..*","method":"N|O"}},{"method":{"type":"Exact","service":"c.S"}}`),
			func(s *scene) {
				s.routed([]string{"/a.S/M", "/b.S/O", "/c.S/P"}, "/a.S/N", "/b.S/M", "/d.S/M")
			},
		},
		{
			h.kind, below("rules[].matches[].headers[].", "type name value"),
			h.on(`{"headers":[{"name":"a","value":"x"}]},{"headers":[{"name":"b","type":"RegularExpression","value":"y+"}]}`),
			func(s *scene) {
				s.routed([]string{"/a.S/M a x", "/a.S/M b yy"}, "/a.S/M", "/a.S/M a xx", "/a.S/M b yyz")
			},
		},
	}
}

// repeats expects that calls are made again twice after a status, and not after another.
func (s *scene) repeats(again, other codes.Code) {
	s.Helper()
	tries := func(of codes.Code) int32 {
		for _, b := range []*backend{s.one, s.two} {
			b.code.Store(uint32(of))
			b.fail.Store(100)
		}
		_, err := s.try("/a.S/Fail")
		require.Equal(s, of, status.Code(err), "%v", err)
		return 200 - s.one.fail.Load() - s.two.fail.Load()
	}
	s.eventually(func() bool { return tries(again) == 3 })
	require.EqualValues(s, 1, tries(other))
}

// pauses expects that a call is made again after a pause of 200 ms or so: gRPC takes a
// fifth less at the least.
func (s *scene) pauses() {
	s.Helper()
	took := func() time.Duration {
		s.one.fail.Store(1)
		s.two.fail.Store(1)
		begun := time.Now()
		_, err := s.try("/a.S/Fail")
		if err != nil {
			return 0
		}
		return time.Since(begun)
	}
	s.eventually(func() bool { return took() >= 160*time.Millisecond })
	require.GreaterOrEqual(s, took(), 160*time.Millisecond)
}

// bounded expects that one call at a time is made.
func (s *scene) bounded() {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan error)
	go func() {
		_, err := call(ctx, s.conn, "/a.S/Block")
		done <- err
	}()
	select {
	case <-s.one.entered:
	case <-s.two.entered:
	}
	s.fails(codes.Unavailable)
	cancel()
	require.Equal(s, codes.Canceled, status.Code(<-done))
	answered(s.T, s.conn, 5, "/a.S/M")
}

// ejects expects that one is called no more when its calls fail.
func (s *scene) ejects() {
	s.Helper()
	s.one.fail.Store(1 << 30)
	s.eventually(func() bool { return s.streak("two", "/a.S/Fail") && s.one.fail.Load() < 1<<30 })
	for range 50 {
		name, err := s.try("/a.S/Fail")
		require.NoError(s, err)
		require.Equal(s, "two", name)
	}
}

// Without two of them, a server is not looked at: gRPC does so with five or more.
const (
	byShare   = `"interval":"100ms","baseEjectionTime":"1h","maxEjectionPercent":100`
	deviation = `"minimumHosts":2,"requestVolume":1,`
)

func behaviours() []behaviour {
	httpRoute, grpcRoute, meshRoute := shape{resource.KindHTTPRoute}, shape{resource.KindGRPCRoute}, shape{resource.KindMeshTrafficRoute}
	return slices.Concat(
		ofTrafficRoutes(resource.KindTrafficRoute),
		ofTrafficRoutes(resource.KindMeshTrafficRoute), meshRoute.conditions(), meshRoute.destinations(),
		httpRoute.ofRoutes(), httpRoute.conditions(),
		grpcRoute.ofRoutes(), grpcRoute.calledBy(),
		[]behaviour{
			{resource.KindRetry, "grpc.numRetries grpc.retryOn", `{"grpc":{"numRetries":2,"retryOn":["unavailable"],"backOff":{"baseInterval":"1ms"}}}`, func(s *scene) { s.repeats(codes.Unavailable, codes.Internal) }},
			{resource.KindRetry, "grpc.backOff.baseInterval", `{"grpc":{"numRetries":2,"retryOn":["unavailable"],"backOff":{"baseInterval":"200ms"}}}`, func(s *scene) { s.pauses() }},
			{resource.KindMeshRequestRetry, "grpc.numRetries grpc.retryOn", `{"grpc":{"numRetries":2,"retryOn":["Internal"],"backOff":{"baseInterval":"1ms"}}}`, func(s *scene) { s.repeats(codes.Internal, codes.Unavailable) }},
			{resource.KindMeshRequestRetry, "grpc.backOff.baseInterval", `{"grpc":{"numRetries":2,"retryOn":["Unavailable"],"backOff":{"baseInterval":"200ms"}}}`, func(s *scene) { s.pauses() }},
			{resource.KindMeshCircuitBreaker, "connectionLimits.maxRequests", `{"connectionLimits":{"maxRequests":1}}`, func(s *scene) { s.bounded() }},
			{resource.KindCircuitBreaker, "detectors.failure.minimumHosts", `{` + byShare + `,"detectors":{"failure":{"minimumHosts":2,"requestVolume":1}}}`, func(s *scene) { s.ejects() }},
			{resource.KindCircuitBreaker, "detectors.standardDeviation.minimumHosts detectors.standardDeviation.factor", `{` + byShare + `,"detectors":{"standardDeviation":{` + deviation + `"factor":0.5}}}`, func(s *scene) { s.ejects() }},
			{resource.KindMeshCircuitBreaker, "outlierDetection.detectors.failurePercentage.minimumHosts", `{"outlierDetection":{` + byShare + `,"detectors":{"failurePercentage":{"minimumHosts":2,"requestVolume":1}}}}`, func(s *scene) { s.ejects() }},
			{
				resource.KindMeshCircuitBreaker, below("outlierDetection.detectors.successRate.", "minimumHosts standardDeviationFactor"),
				`{"outlierDetection":{` + byShare + `,"detectors":{"successRate":{` + deviation + `"standardDeviationFactor":0.5}}}}`, func(s *scene) { s.ejects() },
			},
			{resource.KindMeshCircuitBreaker, "outlierDetection.disabled", `{"outlierDetection":{"disabled":true,` + byShare + `,"detectors":{"failurePercentage":{"minimumHosts":2,"requestVolume":1}}}}`, func(s *scene) {
				s.one.fail.Store(1 << 30)
				for begun := time.Now(); time.Since(begun) < 350*time.Millisecond; { // three intervals
					_, _ = s.try("/a.S/Fail") // those to one fail
				}
				require.False(s, s.streak("two", "/a.S/Fail"))
			}},
		},
	)
}

// accepted is what a client has accepted because of fields of a kind: a weaker assertion
// than a behaviour, for what takes long or chance to be seen.
type accepted struct {
	kind         resource.Kind
	fields, conf string
	// want is contained in what the client was sent.
	want string
}

// accepts are the settings that are shown so.
func accepts() []accepted {
	const (
		backOff                          = `{"grpc":{"numRetries":1,"backOff":{"baseInterval":"11ms","maxInterval":"13s"}}}`
		backOffLoaded                    = `{"retryBackOff":{"baseInterval":"0.011s","maxInterval":"13s"}}`
		leastRequest, leastRequestLoaded = `{"loadBalancer":{"leastRequest":{"choiceCount":3}},"http":[]}`, `{"lbPolicy":"LEAST_REQUEST","leastRequestLbConfig":{"choiceCount":3}}`
		ring, ringLoaded                 = `{"loadBalancer":{"ringHash":{"minRingSize":5,"maxRingSize":7}},"http":[]}`, `{"lbPolicy":"RING_HASH","ringHashLbConfig":{"minimumRingSize":"5","maximumRingSize":"7"}}`
		ejection                         = `"baseEjectionTime":"31s","maxEjectionPercent":17,`
		loaded                           = `{"outlierDetection":{"baseEjectionTime":"31s","maxEjectionPercent":17,"successRateRequestVolume":12,"failurePercentageRequestVolume":13,"failurePercentageThreshold":44}}`
	)
	return []accepted{
		{resource.KindRetry, "grpc.backOff.maxInterval", backOff, backOffLoaded},
		{resource.KindCircuitBreaker, "interval", `{"interval":"1ms","detectors":{"failure":{}}}`, `{"outlierDetection":{"interval":"0.100s"}}`},
		{resource.KindMeshCircuitBreaker, "outlierDetection.interval", `{"outlierDetection":{"interval":"1ms","detectors":{"failurePercentage":{}}}}`, `{"outlierDetection":{"interval":"0.100s"}}`},
		// The shortest holds.
		{
			resource.KindTimeout, "http.requestTimeout http.maxStreamDuration",
			`{"http":{"requestTimeout":"9s","maxStreamDuration":"8s"}}`, `{"maxStreamDuration":{"maxStreamDuration":"8s"}}`,
		},
		// The field of http is preferred.
		{resource.KindTimeout, "grpc.maxStreamDuration", `{"grpc":{"maxStreamDuration":"7s"}}`, `{"maxStreamDuration":{"maxStreamDuration":"7s"}}`},
		{
			resource.KindMeshUpstreamTimeout, "http.requestTimeout http.maxStreamDuration",
			`{"http":{"requestTimeout":"6s","maxStreamDuration":"8s"}}`, `{"maxStreamDuration":{"maxStreamDuration":"6s"}}`,
		},
		{
			resource.KindHTTPRoute, "rules[].timeouts.request", `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[{"timeouts":{"request":"5s"},"backendRefs":[{"name":"backend"}]}]}`,
			`{"maxStreamDuration":{"maxStreamDuration":"5s"}}`,
		},
		{resource.KindTrafficRoute, "loadBalancer.leastRequest.choiceCount", leastRequest, leastRequestLoaded},
		{resource.KindMeshTrafficRoute, "loadBalancer.leastRequest.choiceCount", leastRequest, leastRequestLoaded},
		{resource.KindTrafficRoute, "loadBalancer.ringHash.minRingSize loadBalancer.ringHash.maxRingSize", ring, ringLoaded},
		{resource.KindMeshTrafficRoute, "loadBalancer.ringHash.minRingSize loadBalancer.ringHash.maxRingSize", ring, ringLoaded},
		{resource.KindMeshRequestRetry, "grpc.backOff.maxInterval", backOff, backOffLoaded},
		{
			resource.KindCircuitBreaker, "baseEjectionTime maxEjectionPercent detectors.standardDeviation.requestVolume detectors.failure.requestVolume detectors.failure.threshold",
			`{` + ejection + `"detectors":{"standardDeviation":{"requestVolume":12},"failure":{"requestVolume":13,"threshold":44}}}`, loaded,
		},
		{
			resource.KindMeshCircuitBreaker, below("outlierDetection.", "baseEjectionTime maxEjectionPercent detectors.successRate.requestVolume detectors.failurePercentage.requestVolume detectors.failurePercentage.threshold"),
			`{"outlierDetection":{` + ejection + `"detectors":{"successRate":{"requestVolume":12},"failurePercentage":{"requestVolume":13,"threshold":44}}}}`, loaded,
		},
	}
}

// sent is what the client was sent last, which it has accepted once it is settled.
func (z *zone) sent() (all []any) {
	z.t.Helper()
	set, err := z.feed.Resources(policy.DataplaneKey("m", "web-1"), meridianxds.GRPC)
	require.NoError(z.t, err)
	for r := range set.All() {
		m, err := r.Message()
		require.NoError(z.t, err)
		text, err := protojson.Marshal(m)
		require.NoError(z.t, err)
		var value any
		require.NoError(z.t, json.Unmarshal(text, &value))
		all = append(all, value)
	}
	return all
}

func TestSettingsAreAccepted(t *testing.T) {
	s := stage(t)
	for _, a := range accepts() {
		var want any
		require.NoError(t, json.Unmarshal([]byte(a.want), &want), a.want)
		require.False(t, rows.Contains(s.zone.sent(), want), "it is there without the policy")
		s.with(fmt.Sprintf("%s %.60s", a.kind, a.fields), s.zone.document(a.kind, a.conf), func(s *scene) {
			require.True(s, rows.Contains(s.zone.sent(), want), "%v", s.zone.sent())
		})
	}
}
