package proxyless

import (
	"fmt"
	"testing"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// instance is the dataplane of a server of backend, whose inbound has members of its own.
func (z *zone) instance(b *backend, address, inbound string) store.Op {
	return z.put(resource.KindDataplane, "m", b.name, fmt.Sprintf(`{"networking":{"address":%q,"inbound":[{"port":%d,%s}]}}`, address, b.port, inbound))
}

func TestEndpointsHaveTheAddressOfTheirInbound(t *testing.T) {
	z, one, two := newZone(t), start(t, "one"), start(t, "two")
	// Nothing answers at the address of the first dataplane.
	z.apply(z.instance(one, "127.0.0.9", `"address":"127.0.0.1","tags":{"kuma.io/service":"backend"}`), z.instance(two, "127.0.0.1", `"tags":{"kuma.io/service":"backend"}`))
	until(t, z.dial("xds:///backend"), func(n map[string]int) bool { return n["one"] == 10 && n["two"] == 10 })
}

func TestInstancesThatAreNotReadyTakeNoCalls(t *testing.T) {
	z, one, two := newZone(t), start(t, "one"), start(t, "two")
	ready := func(is bool) {
		z.apply(z.instance(one, "127.0.0.1", fmt.Sprintf(`"health":{"ready":%t},"tags":{"kuma.io/service":"backend"}`, is)))
	}
	z.apply(z.dataplane(two, "v2"))
	ready(true)
	conn := z.dial("xds:///backend")
	until(t, conn, func(n map[string]int) bool { return n["one"] == 10 })
	ready(false)
	until(t, conn, func(n map[string]int) bool { return n["two"] == 20 })
	ready(true)
	until(t, conn, func(n map[string]int) bool { return n["one"] == 10 })
}

// Where the mesh prefers the endpoints of the own zone, others are called when it has none.
func TestEndpointsOfTheOwnZoneAreCalledFirst(t *testing.T) {
	z, own, other := newZone(t), start(t, "own"), start(t, "other")
	in := func(b *backend, zone string) store.Op {
		return z.instance(b, "127.0.0.1", fmt.Sprintf(`"tags":{"kuma.io/service":"backend","kuma.io/zone":%q}`, zone))
	}
	z.apply(in(own, "east"), in(other, "west"))
	conn := z.dial("xds:///backend")
	until(t, conn, func(n map[string]int) bool { return n["own"] > 0 && n["other"] > 0 })
	z.apply(z.put(resource.KindMesh, "", "m", `{"routing":{"localityAwareLoadBalancing":true}}`))
	until(t, conn, func(n map[string]int) bool { return n["own"] == 20 })
	z.apply(store.Delete(policy.DataplaneKey("m", "own")))
	until(t, conn, func(n map[string]int) bool { return n["other"] == 20 })
}
