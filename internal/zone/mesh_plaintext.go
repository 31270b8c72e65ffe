package zone

import (
	"github.com/prometheus/client_golang/prometheus"

	"meridian/internal/service/dataplane"
)

// meshPlaintext reports as metrics on what the Envoys of a zone's meshes take without TLS,
// where a mesh accepts that beside TLS.
type meshPlaintext struct {
	status func() []dataplane.MeshPlaintext

	connections, open, counting *prometheus.Desc
}

func newMeshPlaintext(status func() []dataplane.MeshPlaintext) *meshPlaintext {
	mesh := []string{"mesh"}
	return &meshPlaintext{
		status: status,
		connections: prometheus.NewDesc("meridian_mesh_plaintext_connections_total",
			"Connections without TLS that Envoys of a mesh in mode PERMISSIVE have taken.", mesh, nil),
		open: prometheus.NewDesc("meridian_mesh_plaintext_open",
			"Connections without TLS that are open to Envoys of a mesh in mode PERMISSIVE.", mesh, nil),
		counting: prometheus.NewDesc("meridian_mesh_plaintext_counting",
			"Dataplanes of a mesh in mode PERMISSIVE whose agents count the connections without TLS.", mesh, nil),
	}
}

// Describe implements prometheus.Collector.
func (p *meshPlaintext) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{p.connections, p.open, p.counting} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (p *meshPlaintext) Collect(ch chan<- prometheus.Metric) {
	for _, s := range p.status() {
		mesh := string(s.Mesh)
		ch <- prometheus.MustNewConstMetric(p.connections, prometheus.CounterValue, s.Connections, mesh)
		ch <- prometheus.MustNewConstMetric(p.open, prometheus.GaugeValue, s.Open, mesh)
		ch <- prometheus.MustNewConstMetric(p.counting, prometheus.GaugeValue, float64(s.Counting), mesh)
	}
}
