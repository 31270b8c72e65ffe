package serve

import (
	"time"

	"meridian/internal/xds"
)

// usage is what the resources of one type refer to that the client has, or was sent.
type usage struct {
	refs map[xds.Ref]struct{}
	// unknown: it has some of which only the version is known, which may refer to all.
	unknown bool
}

func (u *usage) add(r *xds.Resource) {
	if r == nil {
		return
	}
	u.unknown = u.unknown || r.Body == nil
	for _, ref := range r.Uses {
		u.refs[ref] = struct{}{}
	}
}

// inUse reports whether something that the client has, or was sent, of some types
// refers to a resource, or may.
func (s *Stream) inUse(ref xds.Ref, by ...xds.Type) bool {
	for _, typ := range by {
		u := s.usage(typ)
		if _, used := u.refs[ref]; used || u.unknown {
			return true
		}
	}
	return false
}

// usage returns what a type refers to. It is made once for each Next, however many
// names are looked up in it.
func (s *Stream) usage(typ xds.Type) *usage {
	if s.used[typ] != nil {
		return s.used[typ]
	}
	u := &usage{refs: map[xds.Ref]struct{}{}}
	t := &s.types[typ]
	for _, e := range t.entries {
		u.add(e.held)
		u.add(e.maybe)
		u.unknown = u.unknown || e.brought
	}
	if t.out != nil {
		for _, c := range t.out.changes {
			u.add(c.to)
		}
	}
	s.used[typ] = u
	return u
}

// removals returns what the client has and is to have no longer. pending means that
// there is something to be accepted first.
func (s *Stream) removals(typ xds.Type, pending bool, now time.Time) []change {
	t := &s.types[typ]
	if !t.asked || t.out != nil {
		return nil
	}
	if typ == xds.Cluster && s.anew {
		s.anew = false
		for _, e := range t.entries {
			e.unused = time.Time{}
		}
	}
	var changes []change
	for _, name := range s.wanted(typ) {
		e, ref := t.entries[name], xds.Ref{Type: typ, Name: name}
		if e == nil || s.set.Get(ref) != nil || typ == xds.Endpoints {
			continue
		}
		if e.held == nil && e.maybe == nil {
			if s.cfg.Delta && !e.told {
				changes = append(changes, change{name: name, entry: e})
			}
			continue
		}
		if s.removable(ref, e, pending, now) {
			changes = append(changes, change{name: name, entry: e})
		}
	}
	return changes
}

// released has the clusters drain anew that the client had routes to, or may have had,
// until now.
func (s *Stream) released(by *entry) {
	clusters := s.types[xds.Cluster].entries
	for _, r := range []*xds.Resource{by.held, by.maybe} {
		switch {
		case r == nil || r.Type == xds.Cluster || r.Type == xds.Endpoints:
		case r.Body == nil: // it may have led anywhere
			s.anew = true
		default:
			for _, used := range r.Uses {
				if e := clusters[used.Name]; used.Type == xds.Cluster && e != nil {
					e.unused = time.Time{}
				}
			}
		}
	}
}

// removable reports whether the time has come to remove a resource.
func (s *Stream) removable(ref xds.Ref, e *entry, pending bool, now time.Time) bool {
	switch {
	case pending:
		return false
	case ref.Type == xds.Listener:
		return true
	case ref.Type == xds.Route:
		return !s.inUse(ref, xds.Listener)
	case s.inUse(ref, xds.Listener, xds.Route):
		e.unused = time.Time{}
		return false
	}
	if e.unused.IsZero() {
		e.unused = now
	}
	due := e.unused.Add(s.cfg.Drain)
	if now.Before(due) {
		s.wakeAt(due)
		return false
	}
	return true
}
