package zonesync

import (
	"slices"

	syncv1 "meridian/api/sync/v1"
)

// featureDrain is the feature of zones that can be told to drain.
const featureDrain = "drain"

// Draining is what a zone that drains says of itself.
type Draining struct {
	// Begun: it drains. The numbers hold only then.
	Begun bool
	// Dataplanes are left in it, Applied of them by an operator.
	Dataplanes, Applied uint64
	// OfZone: these are those of the zone, as each of its servers counts them.
	OfZone bool
}

// maxDataplanes bounds the dataplanes that an instance can say it has left, so that
// those of several can be added.
const maxDataplanes = 1 << 32

// drainingOf is what an acknowledgement says.
func drainingOf(a *syncv1.Ack) Draining {
	if !a.GetDraining() {
		return Draining{}
	}
	all := min(a.GetDataplanes(), maxDataplanes)
	return Draining{Begun: true, Dataplanes: all, Applied: min(a.GetDataplanesApplied(), all), OfZone: a.GetDataplanesOfZone()}
}

// drainLocked tells a zone that was welcomed, and can drain, whether it is to, when it
// has not been told or was told otherwise.
func (c *conn) drainLocked() *syncv1.GlobalFrame {
	if c.server.cfg.Draining == nil || !c.drains {
		return nil
	}
	draining := c.server.cfg.Draining(c.zone)
	if c.toldDraining != nil && *c.toldDraining == draining {
		return nil
	}
	c.toldDraining = &draining
	return &syncv1.GlobalFrame{Body: &syncv1.GlobalFrame_Drain{Drain: &syncv1.Drain{Draining: draining}}}
}

// canDrain reports whether a zone names the feature.
func canDrain(h *syncv1.Hello) bool { return slices.Contains(h.GetFeatures(), featureDrain) }

// sumDraining sums up what the connected instances of a zone say: it drains when all of
// them do. Of servers of one zone the highest count holds: one may not have applied yet what
// the others have. supported: all of them can.
func sumDraining(instances []Instance) (sum Draining, supported bool) {
	var shared Draining
	sum.Begun, supported = len(instances) > 0, true
	for _, in := range instances {
		supported = supported && (!in.Connected || in.Drains)
		sum.Begun = sum.Begun && in.Connected && in.Draining.Begun
		if in.Draining.OfZone {
			shared.Dataplanes = max(shared.Dataplanes, in.Draining.Dataplanes)
			shared.Applied = max(shared.Applied, in.Draining.Applied)
			continue
		}
		sum.Dataplanes += in.Draining.Dataplanes
		sum.Applied += in.Draining.Applied
	}
	if !sum.Begun {
		return Draining{}, supported
	}
	sum.Dataplanes, sum.Applied = sum.Dataplanes+shared.Dataplanes, sum.Applied+shared.Applied
	return sum, supported
}
