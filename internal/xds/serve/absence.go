package serve

import (
	"maps"
	"slices"
	"time"

	"meridian/internal/xds"
)

// maxLeft bounds how many streams' resources of a type are kept for their client.
const maxLeft = 128

// left is what a client of the variant state of the world had of a type when its stream
// ended. Such a client names only the version of the last response.
type left struct {
	// version is that of the last response that led to it.
	version string
	held    map[string]had
	since   time.Time
	bytes   int
}

// had is what a client had under a name.
type had struct {
	held    *xds.Resource
	variant variant
}

// Leave says that the stream has ended. What its client has is kept in Memory: over its
// next stream calls continue as over this one, also when what they use has gone
// meanwhile. A client of the incremental variant says itself what it has.
func (s *Stream) Leave(now time.Time) {
	if s.cfg.Delta {
		return
	}
	for i := range s.types {
		t := &s.types[i]
		last := left{version: t.version, held: map[string]had{}, since: now}
		for name, e := range t.entries {
			if r := known(e.held); r != nil && r != e.none {
				last.held[name] = had{r, e.variant}
			}
		}
		if t.version != "" {
			s.cfg.Memory.leave(xds.Type(i), s.sized(last))
		}
		if t.out == nil {
			continue
		}
		// Its answer may have been lost.
		next := left{version: t.out.version, held: maps.Clone(last.held), since: now}
		for _, c := range t.out.changes {
			switch {
			case t.entries[c.name] != c.entry:
			case c.to == nil, c.to == c.entry.none:
				delete(next.held, c.name)
			default:
				next.held[c.name] = had{c.to, c.variant}
			}
		}
		s.cfg.Memory.leave(xds.Type(i), s.sized(next))
	}
}

// sized counts what is kept: what the set has is shared with it.
func (s *Stream) sized(l left) left {
	for name, h := range l.held {
		l.bytes += perEntry + len(name) + s.own(h.held) + h.variant.bytes(s)
	}
	return l
}

// leave keeps what a stream leaves of a type.
func (m *Memory) leave(typ xds.Type, l left) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.left[typ]) == maxLeft {
		m.dropLeft(typ, 0)
	}
	m.left[typ] = append(m.left[typ], l)
	m.bytes += l.bytes
}

// resume takes what a stream left whose client has a version; nil for nothing.
func (m *Memory) resume(typ xds.Type, version string) map[string]had {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, l := range m.left[typ] {
		if l.version == version {
			m.dropLeft(typ, i)
			return l.held
		}
	}
	return nil
}

func (m *Memory) dropLeft(typ xds.Type, i int) {
	m.bytes -= m.left[typ][i].bytes
	m.left[typ] = slices.Delete(m.left[typ], i, i+1)
}

// ForgetLeft forgets what streams left until a time, whose clients have not come back.
func (m *Memory) ForgetLeft(until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.left {
		for len(m.left[i]) > 0 && !m.left[i][0].since.After(until) {
			m.dropLeft(xds.Type(i), 0)
		}
	}
}

// early reports whether a client may not have said yet what it asks for.
func (s *Stream) early() bool {
	due := s.begun.Add(patience)
	if s.now.Before(due) {
		s.wakeAt(due)
		return true
	}
	return false
}

// keepsClusters reports whether a client is sent no clusters for now: it brought routes
// along that are not known here, after a restart of the zone, and clusters that do not
// exist any more. Each response has all clusters, so that it would lose those while its
// calls go there. It is sent its routes first.
func (s *Stream) keepsClusters() bool {
	routes := &s.types[xds.Route]
	if s.cfg.Delta || !s.lacks() {
		return false
	}
	unknown := !routes.asked
	for _, e := range routes.entries {
		unknown = unknown || e.brought
	}
	return unknown && s.early()
}
