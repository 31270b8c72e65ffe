package envoy

import (
	"fmt"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
	meridianxds "meridian/internal/xds"
	"meridian/internal/xds/serve"
)

// responses are how many responses of a type the zone has sent.
func (z *zone) responses(typ meridianxds.Type) int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.sent[typ.URL()]
}

// found waits until exactly one resource of a type is known to be at fault, and Envoy has
// answered about all others.
func (z *zone) found(typ meridianxds.Type) serve.Rejection {
	z.t.Helper()
	for {
		_, err := z.feed.Resources(policy.DataplaneKey("m", "web-1"), meridianxds.Envoy)
		require.NoError(z.t, err)
		for _, s := range z.service.Status(policy.DataplaneKey("m", "web-1")) {
			if len(s.Types) > 0 && len(s.Types[typ].Rejections) == 1 && s.Types[typ].Behind == 1 {
				return s.Types[typ].Rejections[0]
			}
		}
		z.pause()
	}
}

// web2 is the dataplane web-1 with outbounds to backend and to other.
func (z *zone) web2(backend, other int) store.Op {
	return z.put(resource.KindDataplane, "m", "web-1", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"servicePort":%d,"tags":{"kuma.io/service":"web"}}],
		"outbound":[{"port":%d,"tags":{"kuma.io/service":"backend"}},{"port":%d,"tags":{"kuma.io/service":"other"}}]}}`, free(z.t), free(z.t), backend, other))
}

func (z *zone) other(port int) store.Op {
	return z.put(resource.KindDataplane, "m", "other-1", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,
		"tags":{"kuma.io/service":"other","kuma.io/protocol":"http","version":"v1"}}]}}`, port))
}

// A listener whose port another program has is found among those it was sent with, with
// one response more than there are listeners; the others serve.
func TestAPortThatIsTakenIsFound(t *testing.T) {
	z := newZone(t)
	one, two := start(t, "one"), start(t, "two")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	port, busy := free(t), taken.Addr().(*net.TCPAddr).Port
	z.apply(z.backend("one", one.port, "http", "v1"), z.other(two.port), z.web2(port, busy))
	z.launch("web-1")
	at := z.found(meridianxds.Listener)
	require.Equal(t, fmt.Sprintf("out_other_%d", busy), at.Resource.Name)
	require.Contains(t, at.Detail, "Address already in use")
	require.LessOrEqual(t, z.responses(meridianxds.Listener), 3+1)
	require.Equal(t, map[string]int{"one": 5}, newClient(t, port).answered(5, "/"))

	// It is not sent again, until it is another one.
	sent := z.responses(meridianxds.Listener)
	z.apply(z.policy(resource.KindTimeout, `{"http":{"requestTimeout":"1h"}}`))
	require.Len(t, z.settle("web-1"), 1)
	require.Equal(t, sent, z.responses(meridianxds.Listener))
	again := free(t)
	z.apply(z.web2(port, again))
	require.Empty(t, z.settle("web-1"))
	require.Equal(t, map[string]int{"two": 5}, newClient(t, again).answered(5, "/"))
}

// Routes that Envoy cannot take on, because of the expression in a policy, are found
// among those they were sent with, and show that policy; others of the same change hold.
func TestABadExpressionIsFound(t *testing.T) {
	z := newZone(t)
	z.programs = 100
	one, two := start(t, "one"), start(t, "two")
	port, other := free(t), free(t)
	z.apply(z.backend("one", one.port, "http", "v1"), z.other(two.port), z.web2(port, other))
	z.launch("web-1")
	require.Empty(t, z.settle("web-1"))
	sent := z.responses(meridianxds.Route)
	route := func(name, service, path string) store.Op {
		return z.put(resource.KindTrafficRoute, "m", name, `{"sources":[{"match":{"kuma.io/service":"web"}}],"destinations":[{"match":{"kuma.io/service":"`+service+`"}}],
			"conf":{"http":[{"match":{"path":`+path+`},"modify":{"responseHeaders":{"add":[{"name":"x-by","value":"`+name+`"}]}},"destination":{"kuma.io/service":"`+service+`"}}],
			"destination":{"kuma.io/service":"`+service+`"}}}`)
	}
	z.apply(route("large", "backend", `{"regex":"/((a{1,9}){1,9}){1,9}"}`), route("small", "other", `{"prefix":"/"}`))
	at := z.found(meridianxds.Route)
	require.Equal(t, fmt.Sprintf("out_backend_%d", port), at.Resource.Name)
	require.Contains(t, at.Detail, "program size")
	var policies []string
	for _, o := range at.Resource.Origins {
		policies = append(policies, o.Source.Name)
	}
	require.Contains(t, policies, "large")
	require.NotContains(t, policies, "small")
	require.LessOrEqual(t, z.responses(meridianxds.Route)-sent, 2+1)
	newClient(t, other).until("/", func(a answer) bool { return a.header.Get("x-by") == "small" })
	require.Equal(t, http.StatusOK, newClient(t, port).get("/").status, "it keeps the routes that it had")
}
