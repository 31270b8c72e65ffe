package discovery

import (
	"meridian/internal/resource"
	"meridian/internal/xds/enforce"
)

// Outstanding are streams whose proxies had something to take on at one time, such as
// after a change that has no revision of its own among the resources of proxies.
type Outstanding struct {
	service *Service
	// wanted is by stream which of its targets has to be taken on.
	wanted map[*stream]uint64
}

// Outstanding returns the streams whose proxies have something to take on now. The caller
// has seen to it that every change so far was reported to the service.
func (d *Service) Outstanding() *Outstanding {
	o := &Outstanding{service: d, wanted: map[*stream]uint64{}}
	for s, busy := range d.open() {
		s.mu.Lock()
		if s.machine == nil {
			o.wanted[s] = 1 // it has just come, and nothing is known of it
		} else if target, taken, _ := s.machine.Progress(); busy {
			o.wanted[s] = target + 1
		} else if taken < target {
			o.wanted[s] = target
		}
		s.mu.Unlock()
	}
	return o
}

// Behind returns the dataplanes whose streams have yet to take on what they had to then,
// each with enforce.Pending or enforce.Rejected. Streams that have ended do not count.
func (o *Outstanding) Behind() map[resource.Key]enforce.State {
	behind := map[resource.Key]enforce.State{}
	open := o.service.open()
	for s, wanted := range o.wanted {
		busy, there := open[s]
		if state := s.behindTarget(wanted, busy); there && state != "" {
			behind[s.key] = enforce.Worse(behind[s.key], state)
			continue
		}
		delete(o.wanted, s)
	}
	return behind
}

// behindTarget returns how a stream stands that has yet to take on a target; empty for one
// that has, or that the target did not come to because nothing changed. busy: it may not
// know its newest resources yet.
func (s *stream) behindTarget(wanted uint64, busy bool) enforce.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.machine == nil {
		return enforce.Pending
	}
	target, taken, rejected := s.machine.Progress()
	switch {
	case taken >= wanted, !busy && taken >= target:
		return ""
	case !busy && rejected:
		return enforce.Rejected
	}
	return enforce.Pending
}

// open returns the streams of dataplanes, and of each whether it is busy: whether it may
// not know its newest resources yet.
func (d *Service) open() map[*stream]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	open := make(map[*stream]bool, len(d.all))
	for s := range d.all {
		if s.proxy != nil && !s.ended {
			open[s] = s.stale || s.scheduled
		}
	}
	return open
}
