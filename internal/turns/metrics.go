package turns

import "github.com/prometheus/client_golang/prometheus"

var (
	descRunning = prometheus.NewDesc("meridian_request_work_running", "Pieces of work of requests that run now: decoding, checking, deciding.", nil, nil)
	descWaiting = prometheus.NewDesc("meridian_request_work_waiting", "Pieces of work of requests that wait for their turn, and large requests that wait for memory.", nil, nil)
	descRefused = prometheus.NewDesc("meridian_request_work_refused_total", "Requests that were refused because too many of their caller, or of all, waited for their turn.", nil, nil)
)

// collector reports a Turns.
type collector struct{ turns *Turns }

// Collector returns the metrics of the queues.
func (t *Turns) Collector() prometheus.Collector { return collector{t} }

// Describe implements prometheus.Collector.
func (collector) Describe(out chan<- *prometheus.Desc) {
	out <- descRunning
	out <- descWaiting
	out <- descRefused
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	work, held := c.turns.Stats()
	out <- prometheus.MustNewConstMetric(descRunning, prometheus.GaugeValue, float64(work.Running))
	out <- prometheus.MustNewConstMetric(descWaiting, prometheus.GaugeValue, float64(work.Waiting+held.Waiting))
	out <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(work.Refused+held.Refused))
}
