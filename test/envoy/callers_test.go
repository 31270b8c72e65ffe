package envoy

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// With mutual TLS, each caller meets the faults and limits that the policies come to for
// it: of several that hold for one, the merge, with the first that has a field.
func TestFaultsAndLimitsByCaller(t *testing.T) {
	c, ca := joined(t, "http", mutualTLS)
	z := c.zone
	z.apply(z.put(resource.KindMeshTrafficPermission, "m", "all", everyone))
	web := member(t, ca, "web-1", resource.Tags{resource.ServiceTag: "web", "version": "v1"})
	next := member(t, ca, "web-2", resource.Tags{resource.ServiceTag: "web", "version": "v2"})
	api := member(t, ca, "api-1", resource.Tags{resource.ServiceTag: "api"})
	statuses := func(want ...int) func() bool {
		return func() bool {
			for i, of := range []caller{web, next, api} {
				if a, err := of.get(c.at); err != nil || a.status != want[i] {
					return false
				}
			}
			return true
		}
	}
	eventually := func(holds func() bool) {
		t.Helper()
		require.Empty(t, z.settle("backend-1"))
		for !holds() {
			require.NoError(t, t.Context().Err())
		}
		require.True(t, holds())
	}
	eventually(statuses(200, 200, 200))
	abort := func(status string) string {
		return `{"http":[{"abort":{"percentage":100,"httpStatus":` + status + `}}]}`
	}
	z.apply(z.from(resource.KindMeshHTTPFault,
		[2]string{`{"kind":"ServiceSubset","name":"web","tags":{"version":"v2"}}`, `{"http":[]}`},
		[2]string{`{"kind":"Service","name":"web"}`, abort("418")},
		[2]string{`{"kind":"Mesh"}`, abort("501")}))
	eventually(statuses(418, 200, 501))
	// The older generation: one policy, for its sources.
	z.apply(z.put(resource.KindMeshHTTPFault, "m", "p", `{"targetRef":{"kind":"Service","name":"other"},"from":[{"targetRef":{"kind":"Mesh"},"default":`+abort("500")+`}]}`),
		z.put(resource.KindFaultInjection, "m", "f", `{"sources":[{"match":{"kuma.io/service":"web","version":"v2"}},{"match":{"kuma.io/service":"api"}}],
			"destinations":[{"match":{"kuma.io/service":"backend"}}],"conf":{"abort":{"percentage":100,"httpStatus":418}}}`))
	eventually(statuses(200, 418, 418))
	z.apply(z.put(resource.KindFaultInjection, "m", "f", `{"sources":[{"match":{"kuma.io/service":"none"}}],"destinations":[{"match":{"kuma.io/service":"backend"}}],"conf":{}}`))
	eventually(statuses(200, 200, 200))
	// Each class has a count of its own; what one configures and another limits, merges.
	z.apply(z.from(resource.KindMeshRateLimit,
		[2]string{`{"kind":"Service","name":"web"}`, `{"local":{"http":{"onRateLimit":{"status":503}}}}`},
		[2]string{`{"kind":"ServiceSubset","name":"web","tags":{"version":"v2"}}`, `{"local":{"http":{"disabled":true}}}`},
		[2]string{`{"kind":"Mesh"}`, `{"local":{"http":{"requestRate":{"num":2,"interval":"9000h"}}}}`}))
	eventually(statuses(http.StatusServiceUnavailable, 200, http.StatusTooManyRequests))
	z.apply(z.put(resource.KindRateLimit, "m", "l", `{"sources":[{"match":{"kuma.io/service":"api"}}],"destinations":[{"match":{"kuma.io/service":"backend"}}],"conf":{"http":{"requests":1,"interval":"9000h"}}}`),
		z.put(resource.KindMeshRateLimit, "m", "p", `{"targetRef":{"kind":"Service","name":"other"},"from":[]}`))
	eventually(statuses(200, 200, http.StatusTooManyRequests))
}
