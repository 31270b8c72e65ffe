package world

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

// The protocol of endpoints is the most that all inbounds speak, also those that take no
// requests: a service that restarts keeps its protocol.
func TestProtocolOfEndpoints(t *testing.T) {
	for tags, want := range map[string]Protocol{
		"": TCP, "http": HTTP, "grpc": GRPC, "http2": HTTP2, "kafka": TCP, "-": TCP,
		"http http": HTTP, "http grpc": HTTP, "grpc http2": HTTP2, "grpc tcp": TCP, "http -": TCP,
	} {
		for _, health := range []string{`{"ready":true}`, `{"ready":false}`} {
			world := policytest.NewWorld()
			w := New("east")
			w.Reset(world.View())
			selector := resource.TagSelector{resource.ServiceTag: "a"}
			require.Equal(t, TCP, w.Follow("m", selector).Protocol)
			var keys []resource.Key
			for i, protocol := range strings.Fields(tags) {
				tag := fmt.Sprintf(`,%q:%q`, resource.ProtocolTag, protocol)
				if protocol == "-" {
					tag = ""
				}
				meta := dataplane(fmt.Sprintf("a-%d", i))
				world.Put(t, meta, fmt.Sprintf(`{"networking":{"address":"10.0.0.%d","inbound":[{"port":80,"health":%s,"tags":{"kuma.io/service":"a"%s}}]}}`, i+1, health, tag))
				keys = append(keys, meta.Key)
			}
			w.Update(world.View(), keys)
			require.Equal(t, want, w.Follow("m", selector).Protocol, "%s, followed", tags)
			fresh := New("east")
			fresh.Reset(world.View())
			require.Equal(t, want, fresh.Endpoints("m", selector).Protocol, tags)
		}
	}
}

// A service that loses its last inbound keeps its protocol for those that follow it, and
// takes that of the next one.
func TestProtocolOfAServiceThatIsAway(t *testing.T) {
	world := policytest.NewWorld()
	w := New("east")
	w.Reset(world.View())
	selector := resource.TagSelector{resource.ServiceTag: "a"}
	meta := dataplane("a-1")
	put := func(protocol string) {
		world.Put(t, meta, fmt.Sprintf(`{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"a","kuma.io/protocol":%q}}]}}`, protocol))
		w.Update(world.View(), []resource.Key{meta.Key})
	}
	remove := func() {
		delete(world.Resources, meta.Key)
		w.Update(world.View(), []resource.Key{meta.Key})
	}
	put("http")
	require.Equal(t, HTTP, w.Follow("m", selector).Protocol)
	remove()
	require.Equal(t, HTTP, w.Follow("m", selector).Protocol)
	require.Empty(t, w.Follow("m", selector).Localities)
	put("tcp")
	require.Equal(t, TCP, w.Follow("m", selector).Protocol)
	put("grpc")
	remove()
	require.Equal(t, GRPC, w.Endpoints("m", selector).Protocol)
	w.Forget(KeyOf("m", selector))
	require.Equal(t, TCP, w.Endpoints("m", selector).Protocol, "nothing remembers it")
}
