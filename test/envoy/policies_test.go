package envoy

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

func v(version string) string {
	return `"destination":{"kuma.io/service":"backend","version":"` + version + `"}`
}

// outbound starts the Envoy of web-1 with servers of backend, one for each protocol that
// is given, whose versions are v1, v2 and so on.
func outbound(t *testing.T, protocol string, servers ...*server) (*zone, *client) {
	z := newZone(t)
	port := free(t)
	z.apply(z.web(port))
	for i, s := range servers {
		z.apply(z.backend(s.name, s.port, protocol, fmt.Sprintf("v%d", i+1)))
	}
	z.launch("web-1")
	require.Empty(t, z.settle("web-1"))
	return z, newClient(t, port)
}

// set applies a policy and waits until Envoy has it.
func (z *zone) set(kind resource.Kind, conf string) {
	z.t.Helper()
	z.apply(z.policy(kind, conf))
	require.Empty(z.t, z.settle("web-1"))
}

func TestRoutesSplitAndMatch(t *testing.T) {
	one, two := start(t, "one"), start(t, "two")
	z, c := outbound(t, "http", one, two)
	z.set(resource.KindTrafficRoute, `{
		"http":[{"match":{"path":{"exact":"/two"}},`+v("v2")+`},
			{"match":{"method":{"exact":"PUT"},"headers":{"to":{"prefix":"t"}}},`+v("v2")+`}],
		"split":[{"weight":90,`+v("v1")+`},{"weight":10,`+v("v2")+`}]}`)
	c.until("/two", func(a answer) bool { return a.body == "two" })
	counts := c.answered(1000, "/")
	// The deviation is 9.5: more than six times as far happens once in a thousand million runs.
	require.InDelta(t, 100, counts["two"], 60, "%v", counts)
	require.Equal(t, map[string]int{"two": 50}, c.answered(50, "/two"))
	for range 20 {
		a, err := c.try(http.MethodPut, "/", "to", "two")
		require.NoError(t, err)
		require.Equal(t, "two", a.body)
	}
}
