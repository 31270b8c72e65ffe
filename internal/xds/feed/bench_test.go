package feed

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/internal/xds"
)

var bothDialects = []xds.Dialect{xds.GRPC, xds.Envoy}

// BenchmarkColdProxy makes everything for a dataplane with 10 outbounds of which nothing is
// known, in a mesh with mutual TLS and with a timeout, retries, a circuit breaker and three
// endpoints for each. Target: at most 1 ms.
func BenchmarkColdProxy(b *testing.B) {
	const outbounds = 10
	for _, dialect := range bothDialects {
		b.Run(string(dialect), func(b *testing.B) {
			z := fleet(b, 0)
			var ports []string
			var ops []store.Op
			for i := range outbounds {
				service := fmt.Sprint("s", i)
				ports = append(ports, fmt.Sprintf(`{"port":%d,"tags":{"kuma.io/service":%q}}`, 4000+i, service))
				for j := range 3 {
					ops = append(ops, z.put(resource.KindDataplane, "m", fmt.Sprint(service, "-", j), member(fmt.Sprintf("10.1.%d.%d", i, j), service, "")))
				}
				for kind, conf := range map[resource.Kind]string{
					resource.KindTimeout:        `{"connectTimeout":"1s","http":{"requestTimeout":"15s"}}`,
					resource.KindRetry:          `{"http":{"numRetries":5,"perTryTimeout":"1s","retriableStatusCodes":[500,504]}}`,
					resource.KindCircuitBreaker: `{"thresholds":{"maxConnections":100,"maxRequests":100},"detectors":{"totalErrors":{"consecutive":20}}}`,
				} {
					ops = append(ops, z.put(kind, "m", service, fmt.Sprintf(
						`{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":%q}}],"conf":%s}`, service, conf)))
				}
			}
			ops = append(ops, z.put(resource.KindDataplane, "m", "cold", member("10.0.0.1", "web", strings.Join(ports, ","))))
			z.apply(ops...)
			b.ReportAllocs()
			for b.Loop() {
				set, err := z.feed.Resources(policy.DataplaneKey("m", "cold"), dialect) // nothing is kept of it
				require.NoError(b, err)
				require.Len(b, set.Of(xds.Endpoints), outbounds)
			}
		})
	}
}

// BenchmarkPermissionChanges changes a permission that 1,000 dataplanes of one shape have,
// and makes the sets of all of them: made/op is how often it was worked out.
func BenchmarkPermissionChanges(b *testing.B) {
	const many = 1000
	for _, dialect := range bothDialects {
		b.Run(string(dialect), func(b *testing.B) {
			z := fleet(b, many)
			for i := range many {
				z.follow(fmt.Sprint("backend-", i))
			}
			z.sets(dialect, many)
			began, i := z.feed.Made(), 0
			for b.Loop() {
				i++
				z.apply(z.permit(fmt.Sprint("caller-", i)))
				z.sets(dialect, many)
			}
			b.ReportMetric(float64(z.feed.Made()-began)/float64(i), "made/op")
		})
	}
}
