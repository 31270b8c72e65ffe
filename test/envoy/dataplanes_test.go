package envoy

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

func TestInstancesThatAreNotReadyTakeNoRequests(t *testing.T) {
	one, two := start(t, "one"), start(t, "two")
	z, c := outbound(t, "http", one, two)
	ready := func(is bool) {
		z.apply(z.put(resource.KindDataplane, "m", "one", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"health":{"ready":%t},
			"tags":{"kuma.io/service":"backend","kuma.io/protocol":"http"}}]}}`, one.port, is)))
		require.Empty(t, z.settle("web-1"))
	}
	ready(false)
	c.until("/", func(answer) bool { return c.bodies(10)["two"] == 10 })
	require.Equal(t, map[string]int{"two": 50}, c.answered(50, "/"))
	ready(true)
	c.until("/", func(a answer) bool { return a.body == "one" })
}

// Envoy listens at the address of an inbound, and sends what it takes to the application,
// which may listen at the same port of another address.
func TestAnApplicationListensAtAnotherAddress(t *testing.T) {
	const elsewhere = "127.0.0.2"
	z, one := newZone(t), startAt(t, "one", elsewhere)
	z.apply(z.put(resource.KindDataplane, "m", "one", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"serviceAddress":%q,
		"tags":{"kuma.io/service":"backend","kuma.io/protocol":"http"}}]}}`, one.port, elsewhere)))
	z.launch("one")
	require.Empty(t, z.settle("one"))
	require.Equal(t, "one", newClient(t, one.port).get("/").body)
}

// Where the mesh prefers the endpoints of the own zone, others are called when it has none.
func TestEndpointsOfTheOwnZoneAreCalledFirst(t *testing.T) {
	own, other := start(t, "own"), start(t, "other")
	z, c := outbound(t, "http")
	of := func(s *server, zone string) store.Op {
		return z.put(resource.KindDataplane, "m", s.name, fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,
			"tags":{"kuma.io/service":"backend","kuma.io/protocol":"http","kuma.io/zone":%q}}]}}`, s.port, zone))
	}
	apply := func(ops ...store.Op) {
		z.apply(ops...)
		require.Empty(t, z.settle("web-1"))
	}
	apply(of(own, "east"), of(other, "west"))
	c.until("/", func(a answer) bool { return a.body == "own" })
	c.until("/", func(a answer) bool { return a.body == "other" })
	apply(z.put(resource.KindMesh, "", "m", `{"routing":{"localityAwareLoadBalancing":true}}`))
	c.until("/", func(answer) bool { return c.bodies(10)["own"] == 10 })
	require.Equal(t, map[string]int{"own": 50}, c.answered(50, "/"))
	apply(gone("own"))
	c.until("/", func(a answer) bool { return a.body == "other" })
}
