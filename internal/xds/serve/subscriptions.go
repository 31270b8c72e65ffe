package serve

import (
	"meridian/internal/xds"
)

// subscribe makes names the client's whole subscription.
func (s *Stream) subscribe(typ xds.Type, names []string) {
	t := &s.types[typ]
	t.due = t.due || !t.asked
	if len(names) == 0 && !t.named {
		t.wildcard = typ.Implied()
		return
	}
	t.named = true
	now := make(map[string]struct{}, len(names))
	for _, name := range names {
		now[name] = struct{}{}
	}
	_, t.wildcard = now[wildcard]
	t.wildcard = t.wildcard && typ.Implied()
	delete(now, wildcard)
	for name := range now {
		if _, before := t.names[name]; !before {
			t.due = true
			t.entries[name] = &entry{} // whatever it had before, it waits for an answer
		}
	}
	gone := t.names
	t.names = now
	for name := range gone {
		s.drop(typ, name)
	}
	s.dropAll(typ)
}

// subscribeDelta adds to the client's subscription and takes from it.
func (s *Stream) subscribeDelta(typ xds.Type, r Request) {
	t := &s.types[typ]
	if !t.asked {
		t.due = len(r.Initial) == 0
		t.wildcard = typ.Implied() && len(r.Subscribe) == 0
		for name, version := range r.Initial {
			_, owed := t.owed[name]
			t.entries[name] = &entry{held: s.brought(typ, name, version), told: true, force: owed}
		}
		t.owed = nil
	}
	for _, name := range r.Subscribe {
		if name == wildcard {
			t.wildcard, t.due = typ.Implied(), true
			continue
		}
		t.names[name] = struct{}{}
		if _, brought := r.Initial[name]; brought && !t.asked {
			continue
		}
		if e := t.entries[name]; e != nil {
			e.force = true // it asks again for what it has
		} else {
			t.entries[name] = &entry{}
		}
	}
	for _, name := range r.Unsubscribe {
		if name == wildcard {
			t.wildcard = false
			s.dropAll(typ)
			continue
		}
		if _, named := t.names[name]; !named {
			continue
		}
		delete(t.names, name)
		if e := t.entries[name]; e != nil && t.wildcard {
			e.force = true // the client cannot know that it keeps it
		}
		s.drop(typ, name)
	}
}

// brought returns what a client says it has.
func (s *Stream) brought(typ xds.Type, name, version string) *xds.Resource {
	if s.set != nil {
		if r := s.set.Get(xds.Ref{Type: typ, Name: name}); r != nil && r.Version == version {
			return r
		}
	}
	return &xds.Resource{Type: typ, Name: name, Version: version}
}

// drop forgets a name that the client no longer subscribes to. Of one that only the
// wildcard covers it keeps what the client has, or may have, and what it is to have:
// whatever names a client has asked for, they are forgotten with its subscription.
func (s *Stream) drop(typ xds.Type, name string) {
	t := &s.types[typ]
	e := t.entries[name]
	if e == nil {
		return
	}
	_, named := t.names[name]
	if named || t.wildcard && (s.concerns(t, name, e) || s.exists(typ, name)) {
		return
	}
	s.released(e)
	delete(t.entries, name)
	delete(t.suspects, name)
}

func (s *Stream) dropAll(typ xds.Type) {
	t := &s.types[typ]
	for name := range t.entries {
		s.drop(typ, name)
	}
}

// concerns reports whether the client has something under a name, or may have.
func (*Stream) concerns(t *typeState, name string, e *entry) bool {
	return e.held != nil || e.maybe != nil || t.out != nil && t.out.sends(name)
}

// exists reports whether the set has a resource.
func (s *Stream) exists(typ xds.Type, name string) bool {
	return s.set != nil && s.set.Get(xds.Ref{Type: typ, Name: name}) != nil
}

func (s *Stream) subscribed(t *typeState, name string) bool {
	_, named := t.names[name]
	return named || t.wildcard
}
