package server

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"meridian/internal/rpcerr"
)

// Before it is ready a server answers health and what was named, refuses the
// rest with what it waits for, and refuses nothing once it was ready.
func TestGateKeepsCallsOut(t *testing.T) {
	var g Readiness
	const free = "/meridian.v1.ClusterService/Members"
	call := g.CheckCall(free)
	const other = "/meridian.v1.AdminService/Get"
	require.EqualError(t, call(other), "the server is starting")
	g.SetReason("waiting for a leader")
	err := call(other)
	require.EqualError(t, err, "starting: waiting for a leader")
	require.Equal(t, rpcerr.Unavailable, rpcerr.CodeOf(err))
	require.True(t, rpcerr.HasReason(err, ReasonStarting))
	require.EqualError(t, g.Check(), "starting: waiting for a leader")
	for _, method := range []string{free, "/grpc.health.v1.Health/Check", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"} {
		require.NoError(t, call(method))
	}
	g.SetReady()
	require.NoError(t, call(other))
	require.NoError(t, g.Check())
	g.SetStopping()
	require.EqualError(t, g.Check(), "the server is stopping")
	require.NoError(t, call(other), "what has come in may finish")
	g.SetReady()
	require.Error(t, g.Check(), "it does not open again")
}

func TestChecksAreAddedWhileServing(t *testing.T) {
	h := NewHealth(discard(t), prometheus.NewRegistry())
	require.Empty(t, h.current())
	h.Add(Check{Name: "leader"})
	before := h.current()
	h.Add(Check{Name: "audit"})
	require.Len(t, before, 1)
	require.Len(t, h.current(), 2)
}
