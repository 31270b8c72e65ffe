package livematch

import (
	"github.com/prometheus/client_golang/prometheus"

	"meridian/internal/policy"
	"meridian/internal/policy/inherit"
	"meridian/internal/resource"
)

var (
	policiesDesc = prometheus.NewDesc("meridian_policies",
		"Inherited policies by each of their conditions.", []string{"kind", "condition", "status", "reason"}, nil)
	rulesDesc = prometheus.NewDesc("meridian_policy_rules",
		"Rules of inherited policies, once for every path they could take effect on, by what became of them: effective, overridden, unset or skipped (by when).",
		[]string{"kind", "state"}, nil)
	targetsDesc = prometheus.NewDesc("meridian_policy_targets",
		"Gateways and routes, once for every kind of inherited policy, by how policies of the kind affect them: Affected, PartiallyAffected, Unaffected, or NoPolicies where the mesh has none.",
		[]string{"kind", "target", "reason"}, nil)
	pathsDesc = prometheus.NewDesc("meridian_paths_computed_total",
		"How often the inherited policies of a path were folded.", nil, nil)
)

// Collector reports the state of the inherited policies (§5.9). It
// reports nothing when the matcher has no inherit.Index among its followers.
func (m *Matching) Collector() prometheus.Collector { return collector{m} }

type collector struct{ m *Matching }

// Describe implements prometheus.Collector.
func (collector) Describe(descs chan<- *prometheus.Desc) {
	descs <- policiesDesc
	descs <- targetsDesc
	descs <- rulesDesc
	descs <- pathsDesc
}

// Collect implements prometheus.Collector.
func (c collector) Collect(metrics chan<- prometheus.Metric) {
	var stats inherit.Stats
	var computed uint64
	followed := false
	err := c.m.Read(func(matcher *policy.Matcher, _ resource.Revision) error {
		index, ok := policy.FollowerOf[*inherit.Index](matcher)
		if ok {
			followed, stats, computed = true, index.Stats(), index.Computed()
		}
		return nil
	})
	if err != nil || !followed {
		return
	}
	gauge := func(desc *prometheus.Desc, n int, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), labels...)
	}
	for by, n := range stats.Policies {
		gauge(policiesDesc, n, string(by.Kind), by.Condition, by.Status, by.Reason)
	}
	for by, n := range stats.Targets {
		gauge(targetsDesc, n, string(by.Kind), string(by.Target), by.Reason)
	}
	for by, n := range stats.Rules {
		gauge(rulesDesc, n, string(by.Kind), string(by.State))
	}
	metrics <- prometheus.MustNewConstMetric(pathsDesc, prometheus.CounterValue, float64(computed))
}
