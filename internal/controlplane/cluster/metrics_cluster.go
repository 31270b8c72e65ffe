package cluster

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meridian/internal/consensus"
)

// clusterFigures is what a server knows about itself and the others, at the
// moment of a scrape.
type clusterFigures struct {
	leads   bool // ready to serve, too
	status  consensus.Status
	figures consensus.Figures
	health  consensus.Health
	servers []consensus.Server
	// silent and differing count the other servers that cannot be asked, and
	// those that hold something else.
	silent, differing int
	// changes counts how often the leader changed; cutOff says that this server
	// cannot tell whether it is up to date.
	changes uint64
	stale   bool
}

// clusterCollector reports how the servers of a cluster stand. What only the
// leader knows, only the leader reports.
type clusterCollector struct {
	read  func() clusterFigures
	plain []plainMetric
	// of members, in the eyes of the leader
	silence, lag, healthy *prometheus.Desc
	tolerance             *prometheus.Desc
}

// plainMetric is a metric without labels.
type plainMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(clusterFigures) float64
}

func newClusterCollector(read func() clusterFigures) *clusterCollector {
	c := &clusterCollector{read: read}
	add := func(kind prometheus.ValueType, name, help string, value func(clusterFigures) float64) {
		c.plain = append(c.plain, plainMetric{prometheus.NewDesc(name, help, nil, nil), kind, value})
	}
	gauge := func(name, help string, value func(clusterFigures) float64) {
		add(prometheus.GaugeValue, name, help, value)
	}
	counter := func(name, help string, value func(clusterFigures) float64) {
		add(prometheus.CounterValue, name, help, value)
	}
	gauge("meridian_leader", "1 on the server that leads.", func(f clusterFigures) float64 { return bit(f.leads) })
	gauge("meridian_leader_known", "1 while this server knows of a leader.", func(f clusterFigures) float64 { return bit(f.status.Leader != "") })
	gauge("meridian_leader_silence_seconds", "For how long this server has heard nothing of a leader; 0 on the leader.",
		func(f clusterFigures) float64 { return f.figures.Heard.Seconds() })
	counter("meridian_leader_changes_total", "How often this server saw another server come to lead.", func(f clusterFigures) float64 { return float64(f.changes) })
	gauge("meridian_current", "1 while this server makes sure, every second, that it is up to date; 0 after 5 seconds without: its zones are sent to other servers.",
		func(f clusterFigures) float64 { return bit(!f.stale) })
	gauge("meridian_term", "The term of the log: it rises with every election.", func(f clusterFigures) float64 { return float64(f.status.Term) })
	gauge("meridian_members", "Servers of this cluster.", func(f clusterFigures) float64 { return float64(len(f.servers)) })
	gauge("meridian_voters", "Servers of this cluster that have a vote.", func(f clusterFigures) float64 { return float64(voters(f.servers)) })
	gauge("meridian_committed_revision", "The newest revision that a majority has on disk, as far as this server knows.",
		func(f clusterFigures) float64 { return float64(f.status.Committed) })
	gauge("meridian_apply_lag", "Revisions that a majority has and this server has yet to apply.",
		func(f clusterFigures) float64 {
			return float64(max(f.status.Committed, f.status.Applied) - f.status.Applied)
		})
	counter("meridian_forwarded_total", "Writes that this server has sent to the leader.", func(f clusterFigures) float64 { return float64(f.figures.Forwarded) })
	gauge("meridian_snapshot_revision", "The revision of the newest snapshot on this server's disk; 0 when there is none.",
		func(f clusterFigures) float64 { return float64(f.figures.Snapshot) })
	gauge("meridian_log_since_snapshot", "Entries of the log after the newest snapshot: a snapshot is taken after 16384.",
		func(f clusterFigures) float64 {
			return float64(max(f.status.Last, f.figures.Snapshot) - f.figures.Snapshot)
		})
	gauge("meridian_unreachable_servers", "Other servers of this cluster that this one cannot ask.",
		func(f clusterFigures) float64 { return float64(f.silent) })
	gauge("meridian_differing_servers", "Other servers of this cluster that hold something else than this one as of the same revision; always 0 unless one is broken.",
		func(f clusterFigures) float64 { return float64(f.differing) })
	member := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"member"}, nil)
	}
	c.silence = member("meridian_member_silence_seconds", "For how long a server has not answered the leader's heartbeats; reported by the leader.")
	c.lag = member("meridian_member_lag", "Entries of the log that a server has yet to receive; reported by the leader.")
	c.healthy = member("meridian_member_healthy", "1 while a server answers the leader and keeps up; reported by the leader.")
	c.tolerance = prometheus.NewDesc("meridian_failure_tolerance", "How many servers may fail now without the cluster ceasing to take writes; reported by the leader.", nil, nil)
	return c
}

func voters(servers []consensus.Server) int {
	n := 0
	for _, s := range servers {
		if s.Voter {
			n++
		}
	}
	return n
}

// bit is a condition as a metric.
func bit(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (c *clusterCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.plain {
		ch <- m.desc
	}
	for _, desc := range []*prometheus.Desc{c.silence, c.lag, c.healthy, c.tolerance} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *clusterCollector) Collect(ch chan<- prometheus.Metric) {
	f := c.read()
	for _, m := range c.plain {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(f))
	}
	if !f.health.Leading {
		return
	}
	ch <- prometheus.MustNewConstMetric(c.tolerance, prometheus.GaugeValue, float64(f.health.FailureTolerance))
	for _, m := range f.health.Members {
		ch <- prometheus.MustNewConstMetric(c.silence, prometheus.GaugeValue, m.LastContact.Seconds(), m.Name)
		ch <- prometheus.MustNewConstMetric(c.lag, prometheus.GaugeValue, float64(m.Lag), m.Name)
		ch <- prometheus.MustNewConstMetric(c.healthy, prometheus.GaugeValue, bit(m.Healthy), m.Name)
	}
}

// clusterFigures reads the figures of the moment.
func (c *Server) clusterFigures() clusterFigures {
	return clusterFigures{
		leads: c.Node.IsLeader(), status: c.Node.Status(), figures: c.Node.Figures(), health: c.Node.Health(), servers: c.Node.Servers(),
		silent: c.hooks.Unreachable(), differing: c.hooks.Differing(),
		changes: c.leaders.Load(), stale: c.stale.Load(),
	}
}

// watchLeaders counts how often the leader changes, and writes each change into
// the log, also that there is none for longer than an election takes, until ctx
// ends.
func (c *Server) watchLeaders(ctx context.Context) error {
	tell := time.NewTimer(leaderTimeout)
	defer tell.Stop()
	watch := leaderWatch{led: true}
	for {
		changed := c.Node.LeaderChanged()
		leader, addr := c.Node.Leader()
		if leader == "" && watch.led {
			tell.Reset(leaderTimeout)
		}
		before := watch.last
		worthTelling, another := watch.observe(leader)
		if worthTelling {
			c.Log.Info("a server leads", "leader", leader, "raft", addr, "before", before)
		}
		if another {
			c.leaders.Add(1)
		}
		select {
		case <-changed:
		case <-tell.C:
			if !watch.led && c.started() { // a start says itself what it waits for
				c.Log.Warn("there is no leader: nothing can be written", "reason", c.waitReason(ctx))
				watch.missed = true
			}
			tell.Reset(warnInterval)
		case <-ctx.Done():
			return nil
		}
	}
}

// leaderWatch is what this server has seen of leaders.
type leaderWatch struct {
	// last led last; led says that there is a leader now.
	last string
	led  bool
	// missed says that the log has it that there is no leader.
	missed bool
}

// observe notes the leader, "" for none, and reports whether the log should say so
// and whether it is another server than before.
func (w *leaderWatch) observe(leader string) (worthTelling, another bool) {
	if w.led = leader != ""; !w.led {
		return false, false
	}
	another = w.last != "" && w.last != leader
	worthTelling = w.last != leader || w.missed
	w.last, w.missed = leader, false
	return worthTelling, another
}

// started reports whether the log of this server was ready once.
func (c *Server) started() bool {
	select {
	case <-c.Node.Ready():
		return true
	default:
		return false
	}
}
