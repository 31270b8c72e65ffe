package serve

import (
	"fmt"
	"testing"

	"meridian/internal/xds"
)

// BenchmarkSmallRequest is an empty request of a client that has subscribed to as many
// names as it may, of one type and of two. It costs what a stream has of each type, not
// the product of two: both take about the same time. The product takes 150 times as
// long.
func BenchmarkSmallRequest(b *testing.B) {
	names := make([]string, MaxNames)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	for name, types := range map[string][]xds.Type{"endpoints": {xds.Endpoints}, "both": {xds.Cluster, xds.Endpoints}} {
		b.Run(name, func(b *testing.B) {
			c := converse(b, true, setOf(b, 1))
			for _, typ := range types {
				c.ask(typ, Request{Subscribe: names[:len(names)/len(types)]})
			}
			for {
				r, ok := c.stream.Next(c.now)
				if !ok {
					break
				}
				if r.Type == xds.Endpoints {
					c.ask(r.Type, Request{Nonce: r.Nonce})
				}
			}
			for b.Loop() {
				c.ask(xds.Listener, Request{})
				c.stream.Next(c.now)
			}
		})
	}
}
