package controlplane

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meridian/internal/analysis"
	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// The findings are counted again after findingsShare times as long as that took the last
// time, and findingsEvery at most: with very many policies it takes about a second.
const (
	findingsShare = 100
	findingsEvery = 5 * time.Minute
)

// findings counts what an analysis of everything that is stored finds. It is counted when
// it is asked for, where something has changed.
type findings struct {
	matching *livematch.Matching
	now      func() time.Time
	changed  atomic.Bool

	mu     sync.Mutex        // guards what is below, and is held while it is counted
	next   time.Time         // when it may be counted again
	counts map[[2]string]int // by code and severity
}

var findingsDesc = prometheus.NewDesc("meridian_findings",
	"What is stored, valid and probably not meant, by the codes of `meridian analyze`; counted again after a change, in one hundredth of the time.",
	[]string{"code", "severity"}, nil)

func newFindings(matching *livematch.Matching, now func() time.Time) *findings {
	f := &findings{matching: matching, now: now}
	f.changed.Store(true)
	matching.OnUpdate(func([]policy.Touch) { f.changed.Store(true) })
	return f
}

// Describe implements prometheus.Collector.
func (f *findings) Describe(descs chan<- *prometheus.Desc) { descs <- findingsDesc }

// Collect implements prometheus.Collector.
func (f *findings) Collect(metrics chan<- prometheus.Metric) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); !now.Before(f.next) {
		var view policy.View
		err := f.matching.Read(func(m *policy.Matcher, _ resource.Revision) error {
			return m.Read(func(r *policy.Reading) error {
				view = r.View()
				return nil
			})
		})
		if err == nil && f.changed.Swap(false) {
			f.count(view)
			end := f.now()
			f.next = end.Add(min(findingsShare*end.Sub(now), findingsEvery))
		}
	}
	for by, n := range f.counts {
		metrics <- prometheus.MustNewConstMetric(findingsDesc, prometheus.GaugeValue, float64(n), by[0], by[1])
	}
}

func (f *findings) count(view policy.View) {
	report, err := analysis.Stored(context.Background(), view)
	if err != nil {
		return // which only the end of the context is
	}
	f.counts = map[[2]string]int{}
	for _, advice := range report.Findings {
		found := answer.FindingOf(advice)
		f.counts[[2]string{found.Code, found.Severity}]++
	}
}
