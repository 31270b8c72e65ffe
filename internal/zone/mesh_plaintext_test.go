package zone

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"meridian/internal/policy/answer"
	"meridian/internal/service/dataplane"
)

func TestMetricsOfPlaintext(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newMeshPlaintext(func() []dataplane.MeshPlaintext {
		return []dataplane.MeshPlaintext{{Mesh: "a", Connections: 9, Open: 2, Counting: 3}}
	}))
	const want = `
# HELP meridian_mesh_plaintext_connections_total Connections without TLS that Envoys of a mesh in mode PERMISSIVE have taken.
# TYPE meridian_mesh_plaintext_connections_total counter
meridian_mesh_plaintext_connections_total{mesh="a"} 9
# HELP meridian_mesh_plaintext_counting Dataplanes of a mesh in mode PERMISSIVE whose agents count the connections without TLS.
# TYPE meridian_mesh_plaintext_counting gauge
meridian_mesh_plaintext_counting{mesh="a"} 3
# HELP meridian_mesh_plaintext_open Connections without TLS that are open to Envoys of a mesh in mode PERMISSIVE.
# TYPE meridian_mesh_plaintext_open gauge
meridian_mesh_plaintext_open{mesh="a"} 2
`
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(want)))
}

// What a proxy counted is in the answer: each number in its place, and times in UTC.
func TestPlaintextInAnAnswer(t *testing.T) {
	require.Nil(t, plaintextOf(dataplane.State{Connected: true}))
	last := time.Date(2026, 1, 2, 4, 4, 5, 6, time.FixedZone("", int(time.Hour/time.Second)))
	require.Equal(t, &answer.ProxyPlaintext{Connections: 7, Open: 2, Last: "2026-01-02T03:04:05Z", AsOf: "2026-01-02T05:04:05Z"},
		plaintextOf(dataplane.State{Plaintext: &dataplane.Plaintext{Connections: 7, Open: 2, Last: last, AsOf: last.Add(2 * time.Hour)}}))
}
