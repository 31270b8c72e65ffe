package global

import (
	"github.com/prometheus/client_golang/prometheus"

	zonesync "meridian/internal/sync"
)

// zoneCollector reports how every zone stands in the eyes of one server
// (§7.4): a zone is connected to one of several servers, and the others
// report it as offline. What holds for the global is in the sums and minima over
// its servers.
type zoneCollector struct {
	zones                                    func() []zonesync.ZoneStatus
	state, instances, lag, quarantined, seen *prometheus.Desc
}

func newZoneCollector(zones func() []zonesync.ZoneStatus) *zoneCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"zone"}, labels...), nil)
	}
	return &zoneCollector{
		zones:       zones,
		state:       desc("meridian_zone_state", "1 for the state that a zone is in: in-sync, draining (and in sync), lagging, stale, offline or disabled; offline also where it is connected to another server.", "state"),
		instances:   desc("meridian_zone_instances", "Instances of a zone that are connected to this server; absent for a zone that is disabled."),
		lag:         desc("meridian_zone_lag", "Synced changes that a zone should have acknowledged and has not."),
		quarantined: desc("meridian_zone_quarantined", "Resources that a zone cannot use."),
		seen:        desc("meridian_zone_last_seen_timestamp_seconds", "When a zone was last in contact."),
	}
}

// Describe implements prometheus.Collector.
func (c *zoneCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.state
	ch <- c.instances
	ch <- c.lag
	ch <- c.quarantined
	ch <- c.seen
}

// Collect implements prometheus.Collector.
func (c *zoneCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for _, z := range c.zones() {
		name := string(z.Name)
		gauge(c.state, 1, name, shownState(z))
		if z.State != stateDisabled {
			gauge(c.instances, float64(len(z.Instances)), name)
		}
		if z.LastSeen.IsZero() {
			continue // nothing is known of its lag
		}
		gauge(c.lag, float64(z.Lag), name)
		gauge(c.quarantined, float64(len(z.Quarantined)), name)
		gauge(c.seen, float64(z.LastSeen.UnixMilli())/1000, name)
	}
}
