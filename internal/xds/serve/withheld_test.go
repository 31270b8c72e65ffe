package serve

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"meridian/internal/resource"
	"meridian/internal/xds"
)

// sized returns a resource of a type with a number of bytes.
func sized(typ xds.Type, name string, version, bytes int, uses ...xds.Ref) *xds.Resource {
	return &xds.Resource{
		Type: typ, Name: name, Version: fmt.Sprint(version), Body: make([]byte, bytes), Uses: uses,
		Origins: []xds.Origin{{Source: resource.Key{Kind: resource.KindTimeout, Mesh: "m", Name: name}}},
	}
}

func withheldNames(s TypeStatus) []string {
	var names []string
	for _, w := range s.Withheld {
		names = append(names, w.Resource.Name)
	}
	return names
}

const third = maxWorldBytes / 3

// What does not fit into the one response with everything is withheld by name, with the
// reason; the client keeps what it had, and is sent it once there is space.
func TestWhatDoesNotFitIntoAResponseIsWithheld(t *testing.T) {
	for _, typ := range []xds.Type{xds.Cluster, xds.Listener} {
		t.Run(typ.String(), func(t *testing.T) {
			is := typ.String() + " "
			all := func(revision resource.Revision, sizes ...int) *xds.Set {
				var list []*xds.Resource
				for i, size := range sizes {
					if size > 0 {
						list = append(list, sized(typ, string(rune('a'+i)), size, size))
					}
				}
				return setOf(t, revision, list...)
			}
			names := []string{"a", "b", "c", "d"}
			c := converse(t, false, all(1, third-100, third-100, third-100))
			c.ask(typ, Request{Names: names})
			c.sends(is + "a b c")
			c.acks(typ, names...)
			c.sends()
			require.Equal(t, Synced, c.status(typ).State)
			require.Equal(t, resource.Revision(1), c.status(typ).Revision)

			// One more does not fit, and neither does one that becomes larger.
			c.stream.SetTarget(all(2, third-100, third+1000, third-100, 100))
			c.sends(is + "a b c d")
			c.acks(typ, names...)
			c.sends()
			require.Equal(t, []string{"b"}, withheldNames(c.status(typ)))
			require.Equal(t, fmt.Sprint(third-100), c.stream.types[typ].entries["b"].held.Version, "it keeps what it had")

			c.stream.SetTarget(all(3, third-100, third-100, third-100, third))
			c.sends()
			s := c.status(typ)
			require.Equal(t, NotSent, s.State)
			require.Equal(t, resource.Revision(1), s.Revision, "it does not have all")
			require.Equal(t, []string{"d"}, withheldNames(s))
			require.Equal(t, fmt.Sprintf("with it, all %s of this client would have %d bytes, and a client receives at most %d of them at once: let a client use fewer services, or write fewer or shorter rules",
				typ, 4*third-300+4*perSent, maxWorldBytes), s.Withheld[0].Why)
			require.Equal(t, 1, s.Behind)
			require.Equal(t, Refused, c.stream.Delivery(s.Withheld[0].Resource))
			_, _, refused := c.stream.Progress()
			require.True(t, refused, "who waits for the change is told at once")

			// What a client no longer asks for makes space.
			c.ask(typ, Request{Names: []string{"a", "c", "d"}})
			c.sends(is + "a c d")
			c.acks(typ, "a", "c", "d")
			c.sends()
			require.Empty(t, c.status(typ).Withheld)
			require.Equal(t, Synced, c.status(typ).State)
			require.Equal(t, resource.Revision(3), c.status(typ).Revision)
		})
	}
}

// What needs a cluster that is withheld is not sent either, and holds up nothing else.
func TestWhatNeedsAWithheldClusterIsNotSent(t *testing.T) {
	set := func(revision resource.Revision, large int) *xds.Set {
		return setOf(t, revision,
			sized(xds.Cluster, "a", 1, third), sized(xds.Cluster, "b", large, large), sized(xds.Cluster, "c", 1, third),
			listenerOf(t, "l", 1, "rb"), routesOf(t, "rb", 1, "b"), listenerOf(t, "other", 1, "ra"), routesOf(t, "ra", 1, "a"))
	}
	c := converse(t, false, set(1, 2*third))
	c.ask(xds.Cluster, Request{})
	c.sends("CDS a c")
	c.acks(xds.Cluster)
	c.ask(xds.Listener, Request{})
	c.sends("LDS other")
	c.acks(xds.Listener)
	c.sends()
	require.Equal(t, []string{"b"}, withheldNames(c.status(xds.Cluster)))
	c.stream.SetTarget(set(2, 100))
	c.sends("CDS a b c")
	c.acks(xds.Cluster)
	c.sends("LDS l other")
}

// The encoding of a response has no more bytes than it is counted for, and neither has
// that of the largest response of the incremental variant.
func TestTheEncodingOfResponsesIsBounded(t *testing.T) {
	const limit = 4 << 20 // of stock clients
	name := strings.Repeat("n", 100)
	r := &xds.Resource{Type: xds.Cluster, Name: name, Version: strings.Repeat("v", 22), Body: make([]byte, 200)}
	field := func(bytes int) int { return protowire.SizeTag(1) + protowire.SizeBytes(bytes) }
	require.LessOrEqual(t, field(len(r.Body)), sentBytes(r))
	require.LessOrEqual(t, field(field(len(name))+field(len(r.Version))+field(len(r.Body))), sentBytes(r)+len(name)+len(r.Version))
	var list []*xds.Resource
	for i := range MaxNames {
		list = append(list, sized(xds.Cluster, fmt.Sprintf("%0100d", i), 1, 200))
	}
	for _, delta := range []bool{false, true} {
		c := converse(t, delta, setOf(t, 1, list...))
		c.ask(xds.Cluster, Request{})
		sent, ok := c.stream.Next(c.now)
		require.True(t, ok)
		bytes := 0
		for _, r := range sent.Resources {
			if bytes += field(len(r.Body)); delta {
				bytes += field(len(r.Name)) + field(len(r.Version)) + field(0)
			}
		}
		require.Less(t, bytes, limit)
	}
}
