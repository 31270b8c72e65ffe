package zone

import (
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/generate/envoy"
	"meridian/internal/xds/world"
)

// trialList lists what the Envoys of a mesh, or of all, have counted of what is tried now.
func (s *inspectService) trialList(m *policy.Matcher, mesh resource.MeshName, q question.Trials) (any, error) {
	a := &answer.TrialsAnswer{Items: []answer.TrialItem{}}
	told := s.proxies.Trials(mesh)
	if q.Name != "" {
		key := policy.DataplaneKey(mesh, q.Name)
		if !s.known(m, key) {
			return nil, fmt.Errorf("%w: mesh %q has no dataplane %q here", answer.ErrNotFound, mesh, q.Name)
		}
		told = map[resource.Key]*meridianv1.DataplaneTrial{key: told[key]}
	}
	for key, trial := range told {
		if s.others != nil && !s.proxies.State(key).Connected && s.others.report(key) != nil {
			continue // its proxy has moved to another server, which has its counts
		}
		items, err := trialsOf(m, s.world, key, trial)
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			if q.Service == "" || item.Service == q.Service {
				item.Zone = s.zone
				a.Items = append(a.Items, item)
			}
		}
	}
	a.Sort()
	return a, nil
}

// trialsOf are the counts of a dataplane that are of what is tried now.
func trialsOf(m *policy.Matcher, w *world.World, key resource.Key, told *meridianv1.DataplaneTrial) (items []answer.TrialItem, err error) {
	if len(told.GetCounts()) == 0 {
		return nil, nil
	}
	r, ok := w.Dataplane(key)
	if !ok {
		return nil, nil
	}
	tried, err := generate.TriedOn(m, key)
	if err != nil || tried == nil {
		return nil, err
	}
	rules, err := m.Effective(key)
	if err != nil {
		return nil, err
	}
	trials, err := envoy.Trials(w.Mesh(key.Mesh), r.Spec().(*resource.Dataplane), rules, tried)
	if err != nil {
		return nil, err
	}
	at := func(milliseconds int64) string { return time.UnixMilli(milliseconds).UTC().Format(time.RFC3339) }
	for _, c := range told.GetCounts() {
		i := slices.IndexFunc(trials, func(t envoy.Tried) bool { return t.Port == c.GetPort() && t.Stamp == c.GetStamp() })
		if i < 0 && !c.GetOthers() || len(trials) == 0 {
			continue
		}
		item := answer.TrialItem{
			Mesh: key.Mesh, Dataplane: key.Name, Port: c.GetPort(), Caller: c.GetCaller(), Would: wouldBe(c),
			Calls: c.GetCalls(), First: at(c.GetFirst()), Last: at(c.GetLast()),
		}
		if i >= 0 {
			item.Service = trials[i].Service
		}
		item.Name(c.GetBy())
		items = append(items, item)
	}
	return items, nil
}

// trialMetrics reports what proxies have counted of permissions that are tried.
type trialMetrics struct {
	trials func(resource.MeshName) map[resource.Key]*meridianv1.DataplaneTrial
}

var trialCalls = prometheus.NewDesc("meridian_shadow_calls",
	"Calls that connected proxies counted about which permissions that are only tried would decide otherwise, by what they would be.", []string{"mesh", "would"}, nil)

// Describe implements prometheus.Collector.
func (trialMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- trialCalls }

// Collect implements prometheus.Collector.
func (t trialMetrics) Collect(ch chan<- prometheus.Metric) {
	type labels struct {
		mesh  resource.MeshName
		would string
	}
	sums := map[labels]uint64{}
	for key, trial := range t.trials("") {
		for _, c := range trial.GetCounts() {
			sums[labels{key.Mesh, wouldBe(c)}] += c.GetCalls()
		}
	}
	for of, n := range sums {
		ch <- prometheus.MustNewConstMetric(trialCalls, prometheus.GaugeValue, float64(n), string(of.mesh), of.would)
	}
}

// wouldBe is what the calls of a count would be.
func wouldBe(c *meridianv1.DataplaneTrialCount) string {
	switch {
	case c.GetOthers():
		return answer.WouldDiffer
	case c.GetDenied():
		return answer.WouldDeny
	}
	return answer.WouldAllow
}
