package envoy

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
	meridianxds "meridian/internal/xds"
	"meridian/test/traffic"
)

// under is an outbound of web-1 under load, with servers of backend.
type under struct {
	*zone
	load     *traffic.Load
	client   *client
	protocol string
	servers  map[string]*server
}

// server starts a server, whose version is its name, and returns its dataplane.
func (u *under) server(name string) store.Op {
	u.servers[name] = start(u.t, name)
	return u.backend(name, u.servers[name].port, u.protocol, name)
}

// change writes a batch, which Envoy takes on.
func (u *under) change(ops ...store.Op) {
	u.t.Helper()
	u.apply(ops...)
	require.Empty(u.t, u.settle("web-1"))
	u.load.Pass(3)
}

// reach waits until a server answers.
func (u *under) reach(name string) {
	u.t.Helper()
	u.client.until("/", func(a answer) bool {
		if u.load != nil {
			u.load.Pass(0)
		}
		u.client.http.CloseIdleConnections()
		return a.body == name
	})
}

// leave waits until no request reaches a server any more, and stops it.
func (u *under) leave(name string) {
	u.t.Helper()
	s := u.servers[name]
	for before := int32(-1); before != s.requests.Load(); {
		before = s.requests.Load()
		u.load.Pass(20)
	}
	require.NoError(u.t, s.web.Close())
	u.load.Pass(20)
}

// flip writes two batches in turn, each as soon as requests reach the server that the last
// one leads to.
func (u *under) flip(there, back []store.Op, name string) {
	u.t.Helper()
	write := func(ops []store.Op, name string) {
		u.apply(ops...)
		_, err := u.feed.Resources(policy.DataplaneKey("m", "web-1"), meridianxds.Envoy) // changes are matched when they are asked for
		require.NoError(u.t, err)
		u.reach(name)
	}
	for range 40 {
		write(there, name)
		write(back, "base")
	}
	require.Empty(u.t, u.settle("web-1"))
	u.load.Pass(3)
}

// to is a route to one version.
func (u *under) to(version string) store.Op {
	return u.policy(resource.KindTrafficRoute, `{`+v(version)+`}`)
}

func gone(name string) store.Op { return store.Delete(policy.DataplaneKey("m", name)) }

// changes are what must lose no request, one after the other. Each begins and ends with a
// route to the server base.
var changes = []struct {
	name   string
	change func(*under)
}{
	{"reroute to a destination that is new", func(u *under) {
		u.change(u.server("new"))
		u.change(u.to("new"))
		u.reach("new")
		u.change(u.to("base"))
		u.reach("base")
		u.change(gone("new"))
		u.leave("new")
	}},
	{"reroute to a service that has just appeared", func(u *under) {
		other := start(u.t, "other")
		u.change(
			u.put(resource.KindDataplane, "m", "other", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,
				"tags":{"kuma.io/service":"other","kuma.io/protocol":%q}}]}}`, other.port, u.protocol)),
			u.policy(resource.KindTrafficRoute, `{"split":[{"weight":0,`+v("base")+`},{"weight":1,"destination":{"kuma.io/service":"other"}}]}`),
		)
		u.reach("other")
		u.change(u.to("base"))
		u.reach("base")
	}},
	{"routes that change back at once", func(u *under) {
		u.change(u.server("flip"))
		u.flip([]store.Op{u.to("flip")}, []store.Op{u.to("base")}, "flip")
		weights := func(flip, base int) []store.Op {
			return []store.Op{u.policy(resource.KindTrafficRoute, fmt.Sprintf(`{"split":[{"weight":%d,%s},{"weight":%d,%s}]}`, flip, v("flip"), base, v("base")))}
		}
		u.flip(weights(100, 0), weights(0, 100), "flip")
		u.change(u.to("base"), gone("flip"))
		u.leave("flip")
	}},
	{"tags and services that come and go with their routes", func(u *under) {
		tagged := u.server("tagged")
		u.flip([]store.Op{tagged, u.to("tagged")}, []store.Op{u.to("base"), gone("tagged")}, "tagged")
		other := start(u.t, "other")
		offered := u.put(resource.KindDataplane, "m", "other", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,
			"tags":{"kuma.io/service":"other","kuma.io/protocol":%q}}]}}`, other.port, u.protocol))
		u.flip([]store.Op{offered, u.policy(resource.KindTrafficRoute, `{"destination":{"kuma.io/service":"other"}}`)}, []store.Op{u.to("base"), gone("other")}, "other")
	}},
	{"instances and policies that change back at once", func(u *under) {
		turn := start(u.t, "turn")
		r, exists := u.store.View().Get(policy.DataplaneKey("m", "base"))
		require.True(u.t, exists)
		policies := func(n int) []store.Op {
			return []store.Op{
				u.policy(resource.KindTimeout, fmt.Sprintf(`{"connectTimeout":"%ds"}`, 30+n)),
				u.policy(resource.KindRetry, fmt.Sprintf(`{"http":{"numRetries":%d,"retryOn":["gateway_error"]}}`, 1+n)),
				u.policy(resource.KindCircuitBreaker, fmt.Sprintf(`{"thresholds":{"maxRequests":%d}}`, 1000+n)),
			}
		}
		u.flip(append(policies(0), u.backend("base", turn.port, u.protocol, "base")), append(policies(1), store.Put(r)), "turn")
		u.change(store.Delete(resource.Key{Kind: resource.KindTimeout, Mesh: "m", Name: "p"}),
			store.Delete(resource.Key{Kind: resource.KindRetry, Mesh: "m", Name: "p"}), store.Delete(resource.Key{Kind: resource.KindCircuitBreaker, Mesh: "m", Name: "p"}))
	}},
	{"a route that comes and goes", func(u *under) {
		u.change(u.server("narrow"))
		narrow := u.put(resource.KindTrafficRoute, "m", "narrow", `{"sources":[{"match":{"kuma.io/service":"web"}}],"destinations":[{"match":{"kuma.io/service":"backend"}}],"conf":{`+v("narrow")+`}}`)
		u.flip([]store.Op{narrow}, []store.Op{store.Delete(narrow.Key)}, "narrow")
		u.change(gone("narrow"))
		u.leave("narrow")
	}},
	{"scale up and down", func(u *under) {
		u.change(u.policy(resource.KindTrafficRoute, `{"destination":{"kuma.io/service":"backend"}}`))
		for i := range 5 {
			u.change(u.server(fmt.Sprintf("scaled-%d", i)))
		}
		u.reach("scaled-4")
		for i := range 5 {
			name := fmt.Sprintf("scaled-%d", i)
			u.change(gone(name))
			u.leave(name)
		}
		u.change(u.to("base"))
	}},
	{"an instance that drains", func(u *under) {
		u.change(u.policy(resource.KindTrafficRoute, `{"destination":{"kuma.io/service":"backend"}}`), u.server("leaving"))
		u.reach("leaving")
		r := u.backend("leaving", u.servers["leaving"].port, u.protocol, "leaving").Resource
		u.change(store.Put(r.WithMeta(resource.Meta{Key: r.Key(), Labels: map[string]string{resource.DrainingLabel: resource.Draining}})))
		u.leave("leaving")
		u.change(gone("leaving"), u.to("base"))
	}},
	{"an instance that another one replaces", func(u *under) {
		u.change(u.server("turn"))
		u.change(u.to("turn"))
		u.reach("turn")
		next := start(u.t, "next")
		u.change(u.backend("turn", next.port, u.protocol, "turn")) // the same dataplane elsewhere
		u.reach("next")
		u.leave("turn")
		u.change(u.to("base"))
		u.reach("base")
		u.change(gone("turn"))
	}},
	{"the zone is killed and starts again", func(u *under) {
		u.stop()
		u.load.Pass(20)
		u.serve(u.address)
		u.change(u.server("after"))
		u.change(u.to("after"))
		u.reach("after")
		u.change(u.to("base"))
		u.reach("base")
		u.change(gone("after"))
		u.leave("after")
	}},
	{"everything changes while the zone is away", func(u *under) {
		u.change(u.server("old"))
		u.change(u.to("old"))
		u.reach("old")
		u.stop()
		u.apply(u.server("meanwhile"), u.to("meanwhile"), gone("old"))
		u.load.Pass(20)
		u.serve(u.address)
		u.change()
		u.reach("meanwhile")
		u.leave("old")
		u.change(u.to("base"))
		u.reach("base")
		u.change(gone("meanwhile"))
		u.leave("meanwhile")
	}},
	{"the zone ends the stream", func(u *under) {
		u.service.Close()
		u.stop()
		u.serve(u.address)
		u.change(u.policy(resource.KindTimeout, `{"connectTimeout":"20s"}`))
		u.change(store.Delete(resource.Key{Kind: resource.KindTimeout, Mesh: "m", Name: "p"}))
	}},
}

// harmless are policies of every kind that concern an outbound, that fail no request; but
// GRPCRoute, which takes gRPC calls alone.
var harmless = []struct {
	kind resource.Kind
	conf string
}{
	{resource.KindTimeout, `{"connectTimeout":"30s","tcp":{"idleTimeout":"1h"},"http":{"requestTimeout":"1h","idleTimeout":"1h","streamIdleTimeout":"1h"}}`},
	{resource.KindMeshUpstreamTimeout, `{"connectTimeout":"31s","idleTimeout":"1h","http":{"requestTimeout":"2h","requestHeadersTimeout":"1h","maxStreamDuration":"1h"}}`},
	{resource.KindRetry, `{"http":{"numRetries":1,"retryOn":["gateway_error"]},"grpc":{"numRetries":1,"retryOn":["internal"]},"tcp":{"maxConnectAttempts":2}}`},
	{resource.KindMeshRequestRetry, `{"http":{"numRetries":2,"retryOn":["GatewayError"]},"tcp":{"maxConnectAttempt":3}}`},
	{resource.KindCircuitBreaker, `{"thresholds":{"maxConnections":1000,"maxRequests":1000},"detectors":{"totalErrors":{"consecutive":5}}}`},
	{resource.KindMeshCircuitBreaker, `{"connectionLimits":{"maxConnections":2000},"outlierDetection":{"detectors":{"totalFailures":{"consecutive":6}}}}`},
	{resource.KindHealthCheck, `{"interval":"1s","timeout":"10s","unhealthyThreshold":100,"healthyThreshold":1,"tcp":{}}`},
	{resource.KindMeshHealthCheck, `{"interval":"1s","timeout":"10s","unhealthyThreshold":100,"healthyThreshold":1,"tcp":{}}`},
	{resource.KindTrafficRoute, `{"loadBalancer":{"leastRequest":{"choiceCount":3}},` + v("base") + `}`},
	{resource.KindTrafficRoute, `{"loadBalancer":{"random":{}},"split":[{"weight":1,` + v("base") + `},{"weight":0,"destination":{"kuma.io/service":"none"}}]}`},
	{resource.KindMeshTrafficRoute, `{"rules":[{"matches":[{"path":{"value":"/"}}],"default":{"filters":[{"type":"RequestHeaderModifier","requestHeaderModifier":{"set":[{"name":"a","value":"1"}]}}],
		"backendRefs":[{"kind":"ServiceSubset","name":"backend","tags":{"version":"base"}}]}}]}`},
	{resource.KindHTTPRoute, `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[{"backendRefs":[{"kind":"ServiceSubset","name":"backend","tags":{"version":"base"}}]}]}`},
	{resource.KindMeshHTTPFault, `{"http":[{"abort":{"percentage":0,"httpStatus":500},"delay":{"percentage":0,"value":"1h"}}]}`},
	{resource.KindMeshRateLimit, enough},
	{resource.KindMeshLogging, `{"backends":[{"type":"File","file":{"path":"/dev/null"}}]}`},
	{resource.KindTrafficLog, `{}`},
	{resource.KindMeshTracing, `{"backends":[{"type":"Zipkin","zipkin":{"url":"http://127.0.0.1:9/"}}]}`},
	{resource.KindTrafficTrace, `{}`},
}

// enough is a limit that no load comes to.
const enough = `{"local":{"http":{"requestRate":{"num":4294967295,"interval":"50ms"}},"tcp":{"connectionRate":{"num":4294967295,"interval":"50ms"}}}}`

// harmlessOnInbounds are policies of every kind that concern an inbound, that fail no
// request.
var harmlessOnInbounds = []struct {
	kind resource.Kind
	conf string
}{
	{resource.KindFaultInjection, `{"abort":{"percentage":0,"httpStatus":500}}`},
	{resource.KindMeshHTTPFault, `{"http":[{"abort":{"percentage":0,"httpStatus":500}}]}`},
	{resource.KindRateLimit, `{"http":{"requests":4294967295,"interval":"50ms"}}`},
	{resource.KindMeshRateLimit, enough},
	{resource.KindMeshCircuitBreaker, `{"connectionLimits":{"maxConnections":2000,"maxRequests":2000}}`},
	{resource.KindMeshLogging, `{"backends":[{"type":"File","file":{"path":"/dev/null"}}]}`},
}

// No request fails while what concerns an inbound changes.
func TestNoRequestToAnInboundIsLost(t *testing.T) {
	for _, protocol := range []string{"http", "tcp"} {
		t.Run(protocol, func(t *testing.T) {
			s := inbound(t, protocol)
			l := traffic.New(t)
			l.Worker(traffic.Post(s.url, false, true))
			if protocol != "tcp" { // a connection that lasts stays where it is
				l.Worker(traffic.Post(s.url, false, false))
				l.Worker(traffic.Post(s.url, true, false))
			}
			for _, p := range harmlessOnInbounds {
				t.Run(fmt.Sprintf("%s comes and goes", p.kind), func(t *testing.T) {
					s.zone.t = t
					l.In(t)
					op := s.zone.fromEveryone(p.kind, p.conf)
					for _, change := range []store.Op{op, store.Delete(op.Key)} {
						s.zone.apply(change)
						require.Empty(t, s.zone.settle("one"))
						l.Pass(10)
					}
				})
				s.zone.t = t
				l.In(t)
			}
		})
	}
}

// No request of a caller that is allowed fails while permissions change that are about
// others, or that say the same in another way.
func TestNoAllowedRequestIsLostWhilePermissionsChange(t *testing.T) {
	for _, protocol := range []string{"http", "tcp"} {
		t.Run(protocol, func(t *testing.T) {
			c, ca := joined(t, protocol, mutualTLS)
			z := c.zone
			z.apply(z.put(resource.KindMeshTrafficPermission, "m", "all", everyone))
			require.Empty(t, z.settle("backend-1"))
			web := member(t, ca, "web-1", resource.Tags{resource.ServiceTag: "web"})
			web.until(t, c.at, func(a answer, err error) bool { return err == nil && a.status == http.StatusOK })
			l := traffic.New(t)
			calls := func(of caller) {
				l.Worker(func() error {
					a, err := of.get(c.at)
					if err == nil && a.status != http.StatusOK {
						err = fmt.Errorf("%d: %s", a.status, a.body)
					}
					return err
				})
			}
			calls(web)
			if protocol != "tcp" {
				lasting := member(t, ca, "web-1", resource.Tags{resource.ServiceTag: "web"})
				lasting.Transport.(*http.Transport).DisableKeepAlives = false
				calls(lasting)
			}
			permission := func(name, target, from, action string) store.Op {
				return z.put(resource.KindMeshTrafficPermission, "m", name, `{"targetRef":`+target+`,"from":[{"targetRef":`+from+`,"default":{"action":"`+action+`"}}]}`)
			}
			older := z.put(resource.KindTrafficPermission, "m", "older", `{"sources":[{"match":{"kuma.io/service":"web"}}],"destinations":[{"match":{"kuma.io/service":"backend"}}]}`)
			const backend = `{"kind":"Service","name":"backend"}`
			changes := []store.Op{
				permission("no-api", `{"kind":"Mesh"}`, `{"kind":"Service","name":"api"}`, "DENY"),
				permission("web", backend, `{"kind":"Service","name":"web"}`, "ALLOW"),
				permission("no-api", backend, `{"kind":"Service","name":"api"}`, "DENY"),
				older,
			}
			for _, op := range slices.Clone(changes) {
				if op.Key != changes[0].Key {
					changes = append(changes, store.Delete(op.Key))
				}
			}
			changes = append(changes, store.Delete(changes[0].Key))
			for _, op := range changes {
				z.apply(op)
				require.Empty(t, z.settle("backend-1"))
				l.Pass(10)
			}
		})
	}
}

// backends are those that TrafficLog and TrafficTrace refer to.
const backends = `{"logging":{"defaultBackend":"f","backends":[{"name":"f","type":"file","conf":{"path":"/dev/null"}}]},
	"tracing":{"defaultBackend":"z","backends":[{"name":"z","type":"zipkin","conf":{"url":"http://127.0.0.1:9/"}}]}}`

// No request fails while anything changes, whatever applications speak.
func TestNoRequestIsLost(t *testing.T) {
	for _, protocol := range []string{"http", "http2", "grpc", "tcp"} {
		t.Run(protocol, func(t *testing.T) {
			u := &under{protocol: protocol, servers: map[string]*server{}}
			base := start(t, "base")
			u.zone, u.client = outbound(t, protocol)
			u.zone.apply(u.backend("base", base.port, protocol, "base"), u.to("base"), u.put(resource.KindMesh, "", "m", backends))
			require.Empty(t, u.settle("web-1"))
			u.reach("base")
			u.load = traffic.New(t)
			switch protocol {
			case "grpc":
				u.load.Worker(traffic.Call(t, u.client.url))
				u.load.Worker(traffic.Post(u.client.url, true, false))
			case "tcp": // a connection that lasts stays where it is
				u.load.Worker(traffic.Post(u.client.url, false, true))
				u.load.Worker(traffic.Post(u.client.url, true, true))
			default:
				u.load.Worker(traffic.Post(u.client.url, false, false))
				u.load.Worker(traffic.Post(u.client.url, true, false))
				u.load.Worker(traffic.Post(u.client.url, false, true))
			}
			for _, c := range changes {
				t.Run(c.name, func(t *testing.T) {
					u.t, u.client.t = t, t
					u.load.In(t)
					c.change(u)
				})
			}
			for _, p := range harmless {
				t.Run(fmt.Sprintf("%s comes and goes", p.kind), func(t *testing.T) {
					u.t, u.client.t = t, t
					u.load.In(t)
					op := u.document(p.kind, p.conf)
					u.change(op)
					if p.kind != resource.KindTrafficRoute {
						u.change(store.Delete(op.Key))
					}
				})
			}
		})
	}
}

// A request to a service whose last instance is gone is answered, as HTTP.
func TestAServiceThatIsAwayAnswers(t *testing.T) {
	one := start(t, "one")
	z, c := outbound(t, "http", one)
	require.Equal(t, http.StatusOK, c.get("/").status)
	z.apply(gone("one"))
	require.Empty(t, z.settle("web-1"))
	c.until("/", func(a answer) bool { return a.status == http.StatusServiceUnavailable })
	for range 5 { // on connections of their own: those of before have the listener of before
		c.http.CloseIdleConnections()
		require.Equal(t, http.StatusServiceUnavailable, c.get("/").status)
	}
	z.apply(z.backend("one", one.port, "http", "v1"))
	require.Empty(t, z.settle("web-1"))
	c.until("/", func(a answer) bool { return a.status == http.StatusOK })
}
