package feed

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/internal/xds"
)

// fleet is a zone with mutual TLS, in which many dataplanes of one service are followed
// and have their sets.
func fleet(t require.TestingT, many int) *zone {
	z := newZone(t)
	z.apply(z.put(resource.KindMesh, "", "m", `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`))
	ops := []store.Op{z.permit("web")}
	for i := range many {
		ops = append(ops, z.put(resource.KindDataplane, "m", fmt.Sprint("backend-", i), member(fmt.Sprintf("10.0.%d.%d", i/250, i%250), "backend", "")))
	}
	z.apply(ops...)
	return z
}

// member is a dataplane of a service that may have a certificate, with outbounds.
func member(address, service, outbounds string) string {
	return fmt.Sprintf(`{"networking":{"address":%q,"inbound":[{"port":8080,"tags":{"kuma.io/service":%q,"kuma.io/zone":"east","kuma.io/protocol":"http"}}],"outbound":[%s]}}`,
		address, service, outbounds)
}

// permit lets a service call the fleet.
func (z *zone) permit(source string) store.Op {
	return z.put(resource.KindTrafficPermission, "m", "p", fmt.Sprintf(
		`{"sources":[{"match":{"kuma.io/service":%q}}],"destinations":[{"match":{"kuma.io/service":"backend"}}]}`, source))
}

// sets returns what the first dataplanes of the fleet are sent.
func (z *zone) sets(dialect xds.Dialect, many int) []*xds.Set {
	sets := make([]*xds.Set, many)
	for i := range sets {
		var err error
		sets[i], err = z.feed.Resources(policy.DataplaneKey("m", fmt.Sprint("backend-", i)), dialect)
		require.NoError(z.t, err)
		require.Empty(z.t, sets[i].Withheld)
	}
	return sets
}

// A permission that changes is made once for all dataplanes of one shape: they share one
// resource, and nothing else of theirs is another one than before.
func TestPermissionIsMadeOncePerShape(t *testing.T) {
	const many = 50
	for _, dialect := range []xds.Dialect{xds.GRPC, xds.Envoy} {
		t.Run(string(dialect), func(t *testing.T) {
			z := fleet(t, many)
			for i := range many {
				z.follow(fmt.Sprint("backend-", i))
			}
			before := z.sets(dialect, many)
			require.Equal(t, uint64(1), z.feed.Made())
			require.Len(t, z.apply(z.permit("orders")), many)
			after := z.sets(dialect, many)
			require.Equal(t, uint64(2), z.feed.Made())
			routes := after[0].Of(xds.Route)
			require.Len(t, routes, 1)
			for i := range after {
				require.Equal(t, []string{routes[0].Ref().String()}, changed(before[i], after[i]))
				require.Same(t, routes[0], after[i].Get(routes[0].Ref()))
			}
		})
	}
}
