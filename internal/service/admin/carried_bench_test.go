package admin

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/resource"
)

// largestTests are tests of the mesh demo with as many cases as there may be, on 100
// dataplanes: connections, values and invariants over all pairs.
func largestTests(tb testing.TB, over, invariant string, invariants int) *meridianv1.Resource {
	tb.Helper()
	spec := resource.MeshTest{}
	for i := range 100 {
		name := fmt.Sprintf("dp-%d", i)
		d := resource.TestDataplane{Name: name}
		d.Networking.Address = fmt.Sprintf("10.0.0.%d", i)
		for port := range 2 {
			d.Networking.Inbound = append(d.Networking.Inbound, resource.Inbound{Port: uint32(8080 + port), Tags: resource.Tags{resource.ServiceTag: fmt.Sprintf("s%d", i%20)}})
		}
		d.Networking.Outbound = []resource.Outbound{{Port: 9000, Tags: resource.Tags{resource.ServiceTag: fmt.Sprintf("s%d", (i+1)%20)}}}
		spec.Dataplanes = append(spec.Dataplanes, d)
	}
	for i := range 1000 {
		c := resource.TestCase{Name: fmt.Sprintf("case %d", i)}
		switch {
		case i < invariants:
			c.Invariant, c.Over = invariant, over
		case i%2 == 0:
			c.Connection, c.Expect = &resource.TestConnection{From: fmt.Sprintf("dp-%d", i%100), To: fmt.Sprintf("dp-%d", (i*7+1)%100)}, json.RawMessage(`"allowed"`)
		default:
			c.Dataplane, c.Kind, c.To, c.Field = fmt.Sprintf("dp-%d", i%100), resource.KindTimeout, fmt.Sprintf("s%d", (i%100+1)%20), "connectTimeout"
			c.Expect = json.RawMessage(`"<= 30s"`)
		}
		spec.Cases = append(spec.Cases, c)
	}
	data, err := json.Marshal(&spec)
	require.NoError(tb, err)
	return carriedTests(string(data))
}

// BenchmarkCarriedTests is a write to a mesh of so many policies, without tests and with as
// many as there may be.
func BenchmarkCarriedTests(b *testing.B) {
	for _, policies := range []int{10, 1000} {
		for _, tests := range []string{"none", "few", "cases", "most"} {
			b.Run(fmt.Sprintf("policies=%d/tests=%s", policies, tests), func(b *testing.B) {
				s := newSecured(b)
				batch := []*meridianv1.Resource{message("Mesh", "", "demo", "{}"), lasting("soon", "5s")}
				for i := range policies {
					batch = append(batch, allow(fmt.Sprintf("p%d", i), "*", fmt.Sprintf("s%d", i%20)))
				}
				s.must("mesh", batch...)
				switch tests {
				case "few":
					s.must("tests", carriedTests(carriedSpec[:len(carriedSpec)-len(`,
		{"name": "no others", "invariant": "c.to.name != 'web-1' || !c.allowed", "over": "connections"}]}`)]+"]}"))
				case "cases":
					s.must("tests", largestTests(b, "", "", 0))
				case "most":
					s.must("tests", largestTests(b, resource.OverConnections, "c.allowed", 1))
				}
				for i := 0; b.Loop(); i++ {
					s.must(fmt.Sprint("w", i), lasting("soon", fmt.Sprintf("%ds", 5+i%2)))
				}
			})
		}
	}
}
