package zone

import (
	"github.com/prometheus/client_golang/prometheus"

	"meridian/internal/meshca"
	"meridian/internal/service/identities"
)

// meshAuthorities reports as metrics on the certificate authorities of a zone's meshes,
// those of meshes whose certificates the zone issues.
type meshAuthorities struct {
	status func() []identities.Status

	expires, failing, phase, unacknowledged *prometheus.Desc
}

func newMeshAuthorities(status func() []identities.Status) *meshAuthorities {
	mesh := []string{"mesh"}
	return &meshAuthorities{
		status: status,
		expires: prometheus.NewDesc("meridian_mesh_ca_expires_timestamp_seconds",
			"When the root expires that signs the certificates of a mesh's dataplanes.", mesh, nil),
		failing: prometheus.NewDesc("meridian_mesh_ca_failing",
			"1 while the certificate authority of a mesh cannot be used: its dataplanes get no certificates.", mesh, nil),
		phase: prometheus.NewDesc("meridian_mesh_ca_phase",
			"1 for the phase of the replacement of a mesh's certificate authority: stable, publishing or retiring.", []string{"mesh", "phase"}, nil),
		unacknowledged: prometheus.NewDesc("meridian_mesh_ca_unacknowledged",
			"Dataplanes that a replacement of a mesh's certificate authority waits for, connected or away.", []string{"mesh", "state"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (a *meshAuthorities) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{a.expires, a.failing, a.phase, a.unacknowledged} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (a *meshAuthorities) Collect(ch chan<- prometheus.Metric) {
	for _, s := range a.status() {
		report := func(d *prometheus.Desc, value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{string(s.Mesh)}, labels...)...)
		}
		report(a.failing, bit(s.Err != nil))
		if s.Err != nil {
			continue
		}
		report(a.expires, float64(s.Expires.Unix()))
		for _, phase := range meshca.Phases() {
			report(a.phase, bit(s.Phase == phase), string(phase))
		}
		report(a.unacknowledged, float64(s.Waiting.Connected), "connected")
		report(a.unacknowledged, float64(s.Waiting.Away), "away")
	}
}
