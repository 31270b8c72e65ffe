package zone

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"meridian/internal/meshca"
	"meridian/internal/service/identities"
)

func TestMetricsOfTheAuthoritiesOfMeshes(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newMeshAuthorities(func() []identities.Status {
		return []identities.Status{
			{Mesh: "a", Expires: time.Unix(2000000000, 0), Phase: meshca.Publishing, Waiting: identities.Waiting{Connected: 3, Away: 2}},
			{Mesh: "b", Err: errors.New("damaged")},
		}
	}))
	const want = `
# HELP meridian_mesh_ca_expires_timestamp_seconds When the root expires that signs the certificates of a mesh's dataplanes.
# TYPE meridian_mesh_ca_expires_timestamp_seconds gauge
meridian_mesh_ca_expires_timestamp_seconds{mesh="a"} 2e+09
# HELP meridian_mesh_ca_failing 1 while the certificate authority of a mesh cannot be used: its dataplanes get no certificates.
# TYPE meridian_mesh_ca_failing gauge
meridian_mesh_ca_failing{mesh="a"} 0
meridian_mesh_ca_failing{mesh="b"} 1
# HELP meridian_mesh_ca_phase 1 for the phase of the replacement of a mesh's certificate authority: stable, publishing or retiring.
# TYPE meridian_mesh_ca_phase gauge
meridian_mesh_ca_phase{mesh="a",phase="publishing"} 1
meridian_mesh_ca_phase{mesh="a",phase="retiring"} 0
meridian_mesh_ca_phase{mesh="a",phase="stable"} 0
# HELP meridian_mesh_ca_unacknowledged Dataplanes that a replacement of a mesh's certificate authority waits for, connected or away.
# TYPE meridian_mesh_ca_unacknowledged gauge
meridian_mesh_ca_unacknowledged{mesh="a",state="away"} 2
meridian_mesh_ca_unacknowledged{mesh="a",state="connected"} 3
`
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(want)))
}
