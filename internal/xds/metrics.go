package xds

import "meridian/internal/resource"

const (
	// EnvoyMetrics is the unix socket, in the directory in which an agent runs its Envoy,
	// at which the agent answers requests for metrics by HTTP.
	EnvoyMetrics = "metrics"
	// MetricsHeader is the header of such a request in which Envoy says what to answer: a
	// MetricsSettings as JSON.
	MetricsHeader = "X-Meridian-Metrics"
)

// MetricsSettings are which metrics of a dataplane its agent exposes.
type MetricsSettings struct {
	// Sidecar chooses among those of Envoy; nil for all that were used.
	Sidecar *resource.MetricsSidecar `json:"sidecar,omitzero"`
	// Applications are those whose metrics are exposed, too. Each has an address.
	Applications []resource.MetricsApp `json:"applications,omitzero"`
	// Filter is a regular expression that Envoy compares with the names that it has for its
	// statistics; empty for all.
	Filter string `json:"filter,omitzero"`
	// Unused exposes those of Envoy that never changed too.
	Unused bool `json:"unused,omitzero"`
	// Collector is the HOST:PORT of the OpenTelemetry collector to which the agent sends
	// them, in place of an answer; empty to answer.
	Collector string `json:"collector,omitzero"`
}
