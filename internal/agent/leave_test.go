package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/rpcerr"
	"meridian/internal/service/dataplane"
)

// While the zone at one address drains, the agent registers at another: only then do
// the streams that it relays move, which continue until there is one.
func TestAnAgentLeavesAZoneThatDrains(t *testing.T) {
	require.Equal(t, dataplane.ReasonDraining, reasonDraining)
	draining := rpcerr.New(rpcerr.Unavailable, dataplane.ReasonDraining, "the zone is draining").GRPCStatus().Err()
	first, second := startZone(t), startZone(t)
	second.refuse = draining // both, at first
	r := start(t, first, func(c *Config) { c.Addresses = []string{first.address, second.address} })
	r.bootstrapped(t)
	stream := r.dial(t)
	exchange(t, stream, "a")
	first.mu.Lock()
	first.refuse = draining
	end := first.end
	first.mu.Unlock()
	end(draining)
	second.await(t, func() bool { return len(second.tokens) > 0 })
	exchange(t, stream, "b") // nothing has moved

	second.mu.Lock()
	second.refuse = nil
	second.mu.Unlock()
	second.await(t, func() bool { return second.hello != nil })
	_, err := stream.Recv()
	require.Error(t, err, "a client calls again")
	again := r.dial(t)
	exchange(t, again, "c")
	again.gone()
	stream.gone()
	r.stop()
	require.NoError(t, <-r.ended)
	second.await(t, func() bool { return second.left })
}

// An agent that has left a zone that drained comes back when the other one goes away.
func TestAnAgentComesBack(t *testing.T) {
	draining := rpcerr.New(rpcerr.Unavailable, dataplane.ReasonDraining, "the zone is draining").GRPCStatus().Err()
	first, second := startZone(t), startZone(t)
	first.refuse = draining
	r := start(t, first, func(c *Config) { c.Addresses = []string{first.address, second.address} })
	r.bootstrapped(t)
	second.await(t, func() bool { return second.hello != nil })
	first.mu.Lock()
	require.Nil(t, first.hello)
	first.refuse = nil
	first.mu.Unlock()
	second.stop()
	first.await(t, func() bool { return first.hello != nil })
	r.stop()
	require.NoError(t, <-r.ended)
	first.await(t, func() bool { return first.left })
}
