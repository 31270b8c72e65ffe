package envoy

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// behaviour is what an Envoy does because of fields of a kind: a row of the table of
// package support that is shown by what requests meet.
type behaviour struct {
	kind resource.Kind
	// fields are as in the table of package support, separated by spaces.
	fields string
	// conf is what a policy configures, or the spec of another kind.
	conf string
	// shown sends requests, after Envoy has accepted the policy.
	shown func(*scene)
}

// scene is an Envoy between a client and the servers one and two of the service backend:
// that of web, or that of one.
type scene struct {
	*testing.T
	*client
	zone     *zone
	envoy    *envoy
	one, two *server
}

// show runs behaviours, one after the other, with a policy that put makes.
func (s *scene) show(of string, put func(*behaviour) store.Op, list []behaviour) {
	z, c := s.zone, s.client
	for i := range list {
		b := &list[i]
		s.Run(fmt.Sprintf("%s %.60s", b.kind, b.fields), func(t *testing.T) {
			s.one.reset()
			s.two.reset()
			z.t, c.t = t, t
			op := put(b)
			z.apply(op)
			require.Empty(t, z.settle(of))
			b.shown(&scene{t, c, z, s.envoy, s.one, s.two})
			z.apply(store.Delete(op.Key))
			require.Empty(t, z.settle(of)) // so that the next one does not meet it
		})
		z.t, c.t = s.T, s.T
	}
}

// reset makes a server as it was started.
func (s *server) reset() {
	s.status.Store(0)
	s.fail.Store(0)
	s.block.Store(false)
	s.requests.Store(0)
	s.size.Store(0)
}

// onOutbounds runs behaviours on the Envoy of web, whose outbound is to backend.
func onOutbounds(t *testing.T, protocol string, list []behaviour) { outbounds(t, protocol, list) }

// onCalls is onOutbounds with requests that are gRPC calls.
func onCalls(t *testing.T, protocol string, list []behaviour) {
	outbounds(t, protocol, list, "Content-Type", "application/grpc")
}

// outbounds is onOutbounds with headers in every request.
func outbounds(t *testing.T, protocol string, list []behaviour, headers ...string) {
	one, two := start(t, "one"), start(t, "two")
	z, c, e := outboundOf(t, protocol, one, two)
	c.headers = headers
	s := &scene{t, c, z, e, one, two}
	s.show("web-1", func(b *behaviour) store.Op { return z.document(b.kind, b.conf) }, list)
}

// document is a policy from web to backend, or with its whole spec what is none.
func (z *zone) document(kind resource.Kind, conf string) store.Op {
	z.t.Helper()
	if d, _ := resource.Describe(kind); d.Class == resource.TargetRef || d.Class == resource.SourceDestination {
		return z.policy(kind, conf)
	}
	return z.put(kind, "m", "r", conf)
}

// inbound starts the Envoy of a server of backend that speaks a protocol. The client
// connects to it without an Envoy of its own.
func inbound(t *testing.T, protocol string) *scene {
	z, one, port := newZone(t), start(t, "one"), free(t)
	z.apply(z.put(resource.KindDataplane, "m", "one", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"servicePort":%d,
		"tags":{"kuma.io/service":"backend","kuma.io/protocol":%q}}]}}`, port, one.port, protocol)))
	e := z.launch("one")
	require.Empty(t, z.settle("one"))
	return &scene{t, newClient(t, port), z, e, one, start(t, "two")}
}

// fromEveryone is a policy about all callers of backend.
func (z *zone) fromEveryone(kind resource.Kind, conf string) store.Op {
	z.t.Helper()
	return z.from(kind, [2]string{`{"kind":"Mesh"}`, conf})
}

// from is a policy about callers of backend: pairs of a target and what it configures.
// The older kinds hold for every caller.
func (z *zone) from(kind resource.Kind, items ...[2]string) store.Op {
	z.t.Helper()
	if d, _ := resource.Describe(kind); d.Class == resource.TargetRef {
		var list []string
		for _, item := range items {
			list = append(list, `{"targetRef":`+item[0]+`,"default":`+item[1]+`}`)
		}
		return z.put(kind, "m", "p", `{"targetRef":{"kind":"Service","name":"backend"},"from":[`+strings.Join(list, ",")+`]}`)
	}
	return z.put(kind, "m", "p", `{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"backend"}}],"conf":`+items[0][1]+`}`)
}

// onInbounds runs behaviours on the Envoy of a server.
func onInbounds(t *testing.T, protocol string, list []behaviour) {
	s := inbound(t, protocol)
	s.show("one", func(b *behaviour) store.Op { return s.zone.fromEveryone(b.kind, b.conf) }, list)
}

// takes returns how long a request takes, which has to be answered with a status.
func (s *scene) takes(status int) time.Duration {
	s.Helper()
	begun := time.Now()
	require.Equal(s, status, s.get("/").status)
	return time.Since(begun)
}

// status holds for answers with a status.
func status(n int) func(answer) bool { return func(a answer) bool { return a.status == n } }

// limited sends requests until one is above a limit of as many as are allowed, and returns
// the answer to another one.
func (s *scene) limited(allowed, status int) answer {
	s.Helper()
	before := s.accepted()
	s.until("/", func(a answer) bool { return a.status == status })
	a := s.get("/")
	require.Equal(s, status, a.status)
	require.Equal(s, allowed, s.accepted()-before)
	return a
}

// accepted is how many requests limits have let through: those before Envoy obeyed a
// policy are not among them.
func (s *scene) accepted() (n int) {
	s.Helper()
	for line := range strings.Lines(s.envoy.ask("/stats?filter=http_local_rate_limit.ok$")) {
		_, count, _ := strings.Cut(line, ": ")
		more, err := strconv.Atoi(strings.TrimSpace(count))
		require.NoError(s, err)
		n += more
	}
	return n
}

var faultsOnOutbounds = []behaviour{
	{resource.KindMeshHTTPFault, "http[].abort.percentage http[].abort.httpStatus", `{"http":[{"abort":{"percentage":100,"httpStatus":418}}]}`, func(s *scene) {
		s.until("/", status(http.StatusTeapot))
		s.one.requests.Store(0)
		s.two.requests.Store(0)
		require.Equal(s, http.StatusTeapot, s.get("/").status)
		require.Zero(s, s.one.requests.Load()+s.two.requests.Load())
	}},
	{resource.KindMeshHTTPFault, "http[].abort.percentage", `{"http":[{"abort":{"percentage":50,"httpStatus":418}}]}`, func(s *scene) { s.half() }},
	// Each entry strikes on its own.
	{resource.KindMeshHTTPFault, "http[].delay.percentage http[].delay.value", `{"http":[{"delay":{"percentage":100,"value":"120ms"}},{"abort":{"percentage":100,"httpStatus":418}},{"delay":{"percentage":0,"value":"1h"}}]}`, func(s *scene) {
		s.until("/", status(http.StatusTeapot))
		require.GreaterOrEqual(s, s.takes(http.StatusTeapot), 100*time.Millisecond)
	}},
	{resource.KindMeshHTTPFault, "http[].responseBandwidth.percentage http[].responseBandwidth.limit", `{"http":[{"responseBandwidth":{"percentage":100,"limit":"1 mbps"}},{"abort":{"percentage":0.0001,"httpStatus":418}}]}`, func(s *scene) { s.slow() }},
}

var faultsOnInbounds = []behaviour{
	{resource.KindMeshHTTPFault, "from http[].abort.percentage http[].abort.httpStatus", `{"http":[{"abort":{"percentage":50,"httpStatus":418}}]}`, func(s *scene) { s.half() }},
	{resource.KindMeshHTTPFault, "from http[].delay.percentage http[].delay.value", `{"http":[{"delay":{"percentage":100,"value":"120ms"}},{"abort":{"percentage":100,"httpStatus":418}}]}`, func(s *scene) {
		s.until("/", status(http.StatusTeapot))
		require.GreaterOrEqual(s, s.takes(http.StatusTeapot), 100*time.Millisecond)
	}},
	{resource.KindMeshHTTPFault, "from http[].responseBandwidth.percentage http[].responseBandwidth.limit", `{"http":[{"responseBandwidth":{"percentage":100,"limit":"1 mbps"}}]}`, func(s *scene) { s.slow() }},
	{resource.KindFaultInjection, "abort.percentage abort.httpStatus", `{"abort":{"percentage":50,"httpStatus":418}}`, func(s *scene) { s.half() }},
	{resource.KindFaultInjection, "delay.percentage delay.value", `{"delay":{"percentage":100,"value":"120ms"},"abort":{"percentage":100,"httpStatus":418}}`, func(s *scene) {
		s.until("/", status(http.StatusTeapot))
		require.GreaterOrEqual(s, s.takes(http.StatusTeapot), 100*time.Millisecond)
	}},
	{resource.KindFaultInjection, "responseBandwidth.percentage responseBandwidth.limit", `{"responseBandwidth":{"percentage":100,"limit":"1 mbps"}}`, func(s *scene) { s.slow() }},
}

// half expects that half of the requests are aborted.
func (s *scene) half() {
	s.Helper()
	s.until("/", status(http.StatusTeapot))
	aborted := 0
	const requests = 400
	for range requests {
		if s.get("/").status == http.StatusTeapot {
			aborted++
		}
	}
	// The deviation is 10: more than seven times as far does not happen.
	require.InDelta(s, requests/2, aborted, 75)
}

// slow expects that answers come with a million bits per second.
func (s *scene) slow() {
	s.Helper()
	// 64 KiB take half a second, of which the first share of the time comes at once.
	s.one.size.Store(64 << 10)
	s.two.size.Store(64 << 10)
	for s.takes(http.StatusOK) < 250*time.Millisecond {
		require.NoError(s, s.Context().Err())
	}
	require.GreaterOrEqual(s, s.takes(http.StatusOK), 250*time.Millisecond)
}

const answered503 = `"onRateLimit":{"status":503,"headers":{"set":[{"name":"x-limit","value":"100%"}],"add":[{"name":"x-more","value":"yes"}]}}`

func limitBehaviours(from string) []behaviour {
	const http3 = `{"local":{"http":{"requestRate":{"num":3,"interval":"9000h"}`
	return []behaviour{
		{
			resource.KindMeshRateLimit, from + "local.http.requestRate.num local.http.requestRate.interval local.http.onRateLimit.status local.http.onRateLimit.headers.set[].name local.http.onRateLimit.headers.set[].value local.http.onRateLimit.headers.add[].name local.http.onRateLimit.headers.add[].value",
			http3 + `,` + answered503 + `}}}`, func(s *scene) {
				a := s.limited(3, http.StatusServiceUnavailable)
				require.Equal(s, "100%", a.header.Get("x-limit"))
				require.Equal(s, "yes", a.header.Get("x-more"))
			},
		},
		{resource.KindMeshRateLimit, from + "local.http.requestRate.interval", `{"local":{"http":{"requestRate":{"num":1,"interval":"50ms"}}}}`, func(s *scene) {
			s.until("/", status(http.StatusTooManyRequests))
			s.until("/", status(http.StatusOK)) // the next interval has begun
		}},
		// A status that is no error becomes 429.
		{resource.KindMeshRateLimit, from + "local.http.onRateLimit.status", http3 + `,"onRateLimit":{"status":200}}}}`, func(s *scene) { s.limited(3, http.StatusTooManyRequests) }},
		{resource.KindMeshRateLimit, from + "local.http.disabled", http3 + `,"disabled":true}}}`, func(s *scene) {
			for range 10 {
				require.Equal(s, http.StatusOK, s.get("/").status)
			}
		}},
	}
}

var limitsOnInbounds = append(limitBehaviours("from "), []behaviour{
	{
		resource.KindRateLimit, "http.requests http.interval http.onRateLimit.status http.onRateLimit.headers[].key http.onRateLimit.headers[].value http.onRateLimit.headers[].append",
		`{"http":{"requests":3,"interval":"9000h","onRateLimit":{"status":503,"headers":[{"key":"x-limit","value":"a"},{"key":"x-limit","value":"b"},{"key":"x-limit","value":"c","append":true}]}}}`, func(s *scene) {
			require.Equal(s, []string{"b", "c"}, s.limited(3, http.StatusServiceUnavailable).header.Values("x-limit"))
		},
	},
	{resource.KindRateLimit, "http.onRateLimit.status", `{"http":{"requests":3,"interval":"9000h","onRateLimit":{"status":302}}}`, func(s *scene) { s.limited(3, http.StatusTooManyRequests) }},
	{resource.KindRateLimit, "http.interval", `{"http":{"requests":1,"interval":"50ms"}}`, func(s *scene) {
		s.until("/", status(http.StatusTooManyRequests))
		s.until("/", status(http.StatusOK))
	}},
}...)

var connectionLimits = []behaviour{
	{resource.KindMeshRateLimit, "from local.tcp.connectionRate.num local.tcp.connectionRate.interval", `{"local":{"tcp":{"connectionRate":{"num":2,"interval":"9000h"}}}}`, func(s *scene) {
		for s.connects() {
			require.NoError(s, s.Context().Err())
		}
		for range 5 {
			require.False(s, s.connects())
		}
	}},
	{resource.KindMeshRateLimit, "from local.tcp.disabled", `{"local":{"tcp":{"disabled":true,"connectionRate":{"num":1,"interval":"9000h"}}}}`, func(s *scene) {
		for !s.connects() {
			require.NoError(s, s.Context().Err())
		}
		for range 5 {
			require.True(s, s.connects())
		}
	}},
}

// connects reports whether a request with a connection of its own is answered.
func (s *scene) connects() bool {
	s.http.CloseIdleConnections()
	a, err := s.try(http.MethodGet, "/")
	return err == nil && a.status == http.StatusOK
}

var breakersOnInbounds = []behaviour{
	{resource.KindMeshCircuitBreaker, "from connectionLimits.maxPendingRequests connectionLimits.maxConnections", `{"connectionLimits":{"maxConnections":1,"maxPendingRequests":1}}`, func(s *scene) { s.bounded() }},
}

// bounded expects that of three requests at once one fails as the other two are all that
// may be under way.
func (s *scene) bounded() {
	s.Helper()
	s.one.block.Store(true)
	answers := make(chan int)
	send := func() {
		a, err := s.try(http.MethodGet, "/")
		if err != nil {
			a.status = 0
		}
		answers <- a.status
	}
	for range 3 {
		go send()
	}
	for got := range answers {
		if got == http.StatusServiceUnavailable {
			break
		}
		go send() // Envoy has not had the policy yet
	}
	s.one.block.Store(false)
	s.one.release()
	for range 2 {
		<-answers
	}
}

// An endpoint is called while it passes every check.
var checks = []behaviour{
	{resource.KindMeshHealthCheck, "http.path http.expectedStatuses", `{"interval":"20ms","timeout":"60s","unhealthyThreshold":1,"tcp":{},"http":{"path":"/","expectedStatuses":[500]},"healthyPanicThreshold":0}`, func(s *scene) {
		s.until("/", status(http.StatusServiceUnavailable))
	}},
	{resource.KindMeshHealthCheck, "tcp.send tcp.receive", `{"interval":"20ms","timeout":"50ms","unhealthyThreshold":1,"tcp":{"send":"eA0KDQo=","receive":["UE9ORw=="]},"http":{"path":"/"},"healthyPanicThreshold":0}`, func(s *scene) {
		s.until("/", status(http.StatusServiceUnavailable))
	}},
	{resource.KindMeshHealthCheck, "http.disabled", `{"interval":"20ms","timeout":"60s","tcp":{},"http":{"disabled":true,"expectedStatuses":[500]},"healthyPanicThreshold":0}`, func(s *scene) {
		s.until("/", status(http.StatusOK))
	}},
}

// group is behaviours that one Envoy shows, one after the other.
type group struct {
	name     string
	show     func(*testing.T, string, []behaviour)
	protocol string
	list     []behaviour
}

// groups are all behaviours.
func groups() []group {
	httpRoute, grpcRoute, meshRoute := shapes[resource.KindHTTPRoute], shapes[resource.KindGRPCRoute], shapes[resource.KindMeshTrafficRoute]
	return []group{
		{"checks", onOutbounds, "http", checks},
		{"faults of callers", onOutbounds, "http", faultsOnOutbounds},
		{"faults of inbounds", onInbounds, "http", faultsOnInbounds},
		{"limits of callers", onOutbounds, "http", limitBehaviours("")},
		{"limits of inbounds", onInbounds, "http", limitsOnInbounds},
		{"limits of connections", onInbounds, "tcp", connectionLimits},
		{"breakers of inbounds", onInbounds, "http", breakersOnInbounds},
		{"TrafficRoute", onOutbounds, "http", ofTrafficRoutes(resource.KindTrafficRoute)},
		{"MeshTrafficRoute", onOutbounds, "http", slices.Concat(meshRoute.filters(), meshRoute.addresses(), meshRoute.destinations(), meshRoute.conditions(), ofTrafficRoutes(resource.KindMeshTrafficRoute))},
		{"HTTPRoute", onOutbounds, "http", slices.Concat(httpRoute.ofRoutes(true), httpRoute.addresses(), httpRoute.conditions(), ruleTimeouts)},
		{"GRPCRoute", onCalls, "grpc", slices.Concat(grpcRoute.ofRoutes(false), grpcRoute.calledBy())},
		{"timeouts", onOutbounds, "http", timeouts},
		{"timeouts of calls", onCalls, "grpc", timeoutsOfCalls},
		{"timeouts of connections", onOutbounds, "tcp", timeoutsOfConnections},
		{"retries", onOutbounds, "http", retries},
		{"retries of calls", onCalls, "grpc", retriesOfCalls},
		{"breakers", onOutbounds, "http", breakers},
		{"checks of both generations", onOutbounds, "http", olderChecks},
		{"checks of calls", onCalls, "grpc", checksOfCalls},
	}
}

func TestBehaviours(t *testing.T) {
	for _, g := range groups() {
		t.Run(g.name, func(t *testing.T) { g.show(t, g.protocol, g.list) })
	}
}

// Without mutual TLS nothing is known of callers: what holds for some of them has no
// effect, also where it comes first.
func TestCallersAreUnknownWithoutMutualTLS(t *testing.T) {
	s := inbound(t, "http")
	z := s.zone
	z.apply(z.from(resource.KindMeshHTTPFault,
		[2]string{`{"kind":"Service","name":"web"}`, `{"http":[{"abort":{"percentage":100,"httpStatus":500}}]}`},
		[2]string{`{"kind":"Mesh"}`, `{"http":[{"abort":{"percentage":100,"httpStatus":418}}]}`}))
	require.Empty(t, z.settle("one"))
	s.until("/", status(http.StatusTeapot))
	z.apply(z.from(resource.KindMeshHTTPFault, [2]string{`{"kind":"Service","name":"web"}`, `{"http":[{"abort":{"percentage":100,"httpStatus":500}}]}`}))
	require.Empty(t, z.settle("one"))
	s.until("/", status(http.StatusOK))
	require.Equal(t, http.StatusOK, s.get("/").status)
	_, err := z.feed.Resources(policy.DataplaneKey("m", "one"), "envoy")
	require.NoError(t, err)
}

// A route with an entry of its own has its own faults and limits, and none where they are
// taken away.
func TestFaultsAndLimitsOfARoute(t *testing.T) {
	z, c := outbound(t, "http", start(t, "one"))
	z.apply(z.put(resource.KindHTTPRoute, "m", "quiet", `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[{"matches":[{"path":{"value":"/quiet"}}],"backendRefs":[{"kind":"Service","name":"backend"}]}]}`))
	z.apply(z.put(resource.KindHTTPRoute, "m", "rest", `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[{"backendRefs":[{"kind":"Service","name":"backend"}]}]}`))
	z.apply(z.put(resource.KindMeshHTTPFault, "m", "p", `{"targetRef":{"kind":"Mesh"},"to":[
		{"targetRef":{"kind":"HTTPRoute","name":"quiet"},"default":{"http":[]}},
		{"targetRef":{"kind":"Service","name":"backend"},"default":{"http":[{"abort":{"percentage":100,"httpStatus":418}}]}}]}`))
	require.Empty(t, z.settle("web-1"))
	c.until("/", status(http.StatusTeapot))
	require.Equal(t, http.StatusOK, c.get("/quiet").status)
	z.apply(z.put(resource.KindMeshRateLimit, "m", "p", `{"targetRef":{"kind":"Mesh"},"to":[
		{"targetRef":{"kind":"HTTPRoute","name":"quiet"},"default":{"local":{"http":{"requestRate":{"num":1,"interval":"9000h"}}}}}]}`))
	require.Empty(t, z.settle("web-1"))
	c.until("/quiet", status(http.StatusTooManyRequests))
	require.Equal(t, http.StatusTeapot, c.get("/").status)
}
