package serve

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"meridian/internal/xds"
)

// Next returns the next response to send, if there is one at the moment. Call it
// again until there is none.
func (s *Stream) Next(now time.Time) (Response, bool) {
	s.now, s.wake = now, time.Time{}
	if s.begun.IsZero() {
		s.begin(now)
	}
	if s.set == nil {
		return Response{}, false
	}
	s.doubt()
	defer func() { s.used = [len(xds.Types)]*usage{} }()
	var plans [len(xds.Types)]plan
	pending := false
	for _, typ := range xds.Types {
		plans[typ] = s.upserts(typ)
		s.types[typ].waiting = plans[typ].waiting
		if typ == xds.Listener || typ == xds.Route {
			pending = pending || plans[typ].waiting || len(plans[typ].changes) > 0 || s.types[typ].out != nil
		}
	}
	for _, typ := range xds.Types {
		if r, ok := s.send(typ, plans[typ].changes); ok {
			return r, true
		}
	}
	pending = pending || s.types[xds.Cluster].out != nil
	for _, typ := range []xds.Type{xds.Listener, xds.Route, xds.Cluster, xds.Endpoints} {
		if r, ok := s.send(typ, s.removals(typ, pending, now)); ok {
			return r, true
		}
	}
	for _, typ := range xds.Types {
		t := &s.types[typ]
		if t.due && t.out == nil && !plans[typ].waiting && (typ != xds.Cluster || !s.keepsClusters()) {
			if r, ok := s.answer(typ); ok {
				return r, true
			}
		}
		if t.asked && t.out == nil && len(plans[typ].changes) == 0 && !plans[typ].waiting && !s.rejectedAny(typ) {
			t.synced, t.taken = s.set.AsOf, s.targets
		}
	}
	return Response{}, false
}

// Wake returns when Next may have something to send although nothing has happened;
// zero for never.
func (s *Stream) Wake() time.Time { return s.wake }

// wanted are the names of a type that the client is to be sent something about,
// in order.
func (s *Stream) wanted(typ xds.Type) []string {
	t := &s.types[typ]
	names := make([]string, 0, len(t.names))
	for name := range t.names {
		names = append(names, name)
	}
	if t.wildcard {
		for _, r := range s.set.Of(typ) {
			names = append(names, r.Name)
		}
		for name := range t.entries {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// upserts returns what the client has to be sent to have what it should.
func (s *Stream) upserts(typ xds.Type) plan {
	t := &s.types[typ]
	var p plan
	if !t.asked {
		return p
	}
	if typ == xds.Cluster && s.keepsClusters() {
		p.waiting = true
		return p
	}
	for _, name := range s.wanted(typ) {
		e := t.entries[name]
		target, exists := s.best(xds.Ref{Type: typ, Name: name})
		if !exists {
			target = s.absent(typ, name, e)
		}
		if target == nil {
			continue
		}
		if e != nil && e.held != nil && e.held.Version == target.Version {
			e.held, e.awaits = target, time.Time{} // of what a client brought along, only the version was known
			if !e.force && e.maybe == nil && (!e.again || !exists) {
				continue
			}
		}
		if typ == xds.Route && exists && e != nil && s.follows() && (known(e.held) != nil || e.brought) {
			plan := s.reroute
			if known(e.held) == nil {
				plan = s.startOver
			}
			c, wait := plan(name, e, target)
			p.waiting = p.waiting || wait
			if c != nil {
				p.changes = append(p.changes, *c)
			}
			continue
		}
		ready, stuck := s.ready(target)
		if !ready {
			p.waiting = p.waiting || !stuck
			continue
		}
		p.changes = append(p.changes, change{name: name, entry: e, to: target})
	}
	if s.full(typ) && t.out == nil { // what is unanswered counts once it is answered
		p.changes = s.fitting(typ, p.changes)
	}
	if len(t.suspects) == 0 {
		return p
	}
	for i, c := range p.changes {
		if _, suspect := t.suspects[c.name]; suspect {
			p.waiting = p.waiting || len(p.changes) > 1
			p.changes = p.changes[i : i+1]
			return p
		}
	}
	clear(t.suspects) // they are as they should be, or gone
	return p
}

// absent returns what the client is to have under a name that the set does not have:
// endpoints that are none, or again what it has until that is removed; nil for nothing.
func (s *Stream) absent(typ xds.Type, name string, e *entry) *xds.Resource {
	if e == nil {
		return nil
	}
	switch {
	case typ == xds.Endpoints && e.brought && (s.inUse(xds.Ref{Type: typ, Name: name}, xds.Cluster) || !s.types[xds.Cluster].asked && s.early()):
		return nil // requests may still go there
	case e.held != nil && typ == xds.Endpoints && (e.again && !s.types[xds.Cluster].asked || s.inUse(xds.Ref{Type: typ, Name: name}, xds.Cluster)) && (known(e.held) != nil || !e.force):
		// Requests may still go there, also to what it brought along, which is not known
		// here and can be repeated to no cluster that waits for it.
		return known(e.held)
	case typ != xds.Endpoints && known(e.held) != nil:
		return e.held
	case typ != xds.Endpoints:
		return nil
	case e.none == nil:
		r, err := xds.New(&endpointv3.ClusterLoadAssignment{ClusterName: name})
		if err != nil {
			return nil // the empty name
		}
		e.none = r
	}
	return e.none
}

// full reports whether each response of a type has everything.
func (s *Stream) full(typ xds.Type) bool { return !s.cfg.Delta && typ.Implied() }

// send makes the response with changes, unless there are none or the last one is
// unanswered.
func (s *Stream) send(typ xds.Type, changes []change) (Response, bool) {
	t := &s.types[typ]
	if len(changes) == 0 || t.out != nil {
		return Response{}, false
	}
	if !s.full(typ) {
		changes = bounded(changes)
	}
	if !s.cfg.Delta && typ == xds.Route {
		// This variant cannot say that routes are gone; nothing refers to them.
		s.used[typ] = nil
		changes = slices.DeleteFunc(changes, func(c change) bool {
			if c.to == nil {
				c.entry.held, c.entry.maybe, c.entry.variant = nil, nil, variant{}
			}
			return c.to == nil
		})
		if len(changes) == 0 {
			return Response{}, false
		}
	}
	return s.respond(typ, changes), true
}

// bounded returns as many changes as fit into a response, at least one.
func bounded(changes []change) []change {
	size := 0
	for i, c := range changes {
		if c.to != nil {
			size += len(c.to.Body)
		}
		if size > maxResponseBytes && i > 0 {
			return changes[:i]
		}
	}
	return changes
}

// answer makes the response to a client that waits for one, though nothing that it
// asked for exists or differs.
func (s *Stream) answer(typ xds.Type) (Response, bool) {
	t := &s.types[typ]
	t.due = false
	for name := range t.names {
		if e := t.entries[name]; e != nil && s.set.Get(xds.Ref{Type: typ, Name: name}) == nil {
			e.told = true
		}
	}
	if !typ.Implied() || s.cfg.Delta && t.sent {
		return Response{}, false
	}
	return s.respond(typ, nil), true
}

// respond makes a response and notes it as unanswered.
func (s *Stream) respond(typ xds.Type, changes []change) Response {
	t := &s.types[typ]
	r := Response{Type: typ, Nonce: rand.Text()}
	sent := map[string]struct{}{}
	for i, c := range changes {
		if c.entry == nil {
			c.entry = &entry{}
			t.entries[c.name], changes[i].entry = c.entry, c.entry
		}
		c.entry.force, c.entry.again = false, false
		if c.introduces() {
			c.entry.awaits = s.now
		}
		if c.to == nil {
			r.Removed = append(r.Removed, c.name)
			continue
		}
		r.Resources = append(r.Resources, c.to)
		sent[c.name] = struct{}{}
		s.resend(c.to)
	}
	if s.full(typ) {
		r.Resources, r.Removed = s.world(typ, changes), nil
	}
	hash := versionOf(r.Resources, r.Removed)
	r.Version = hash + s.carried(typ, changes)
	t.out = &unanswered{nonce: r.Nonce, version: hash, changes: changes, sent: sent, since: s.now}
	t.due, t.sent = false, true
	return r
}

// resend has what a cluster or listener refers to sent after it.
func (s *Stream) resend(r *xds.Resource) {
	for _, used := range r.Uses {
		if r.Type == xds.Cluster && used.Type == xds.Endpoints || r.Type == xds.Listener && used.Type == xds.Route {
			t := &s.types[used.Type]
			if e := t.entries[used.Name]; e != nil {
				e.force = true
			} else if s.cfg.Delta && !t.asked {
				if t.owed == nil {
					t.owed = map[string]struct{}{}
				}
				t.owed[used.Name] = struct{}{}
			}
		}
	}
}

// world returns everything that the client is to have of a type once it has taken
// on some changes.
func (s *Stream) world(typ xds.Type, changes []change) []*xds.Resource {
	t := &s.types[typ]
	have := make(map[string]*xds.Resource, len(t.entries))
	for name, e := range t.entries {
		if e.held != nil {
			have[name] = e.held
		}
	}
	for _, c := range changes {
		if c.to == nil {
			delete(have, c.name)
		} else {
			have[c.name] = c.to
		}
	}
	all := make([]*xds.Resource, 0, len(have))
	for _, name := range slices.Sorted(maps.Keys(have)) {
		all = append(all, have[name])
	}
	return all
}

// versionOf returns what the version of a response begins with: a hash of its content.
func versionOf(resources []*xds.Resource, removed []string) string {
	h := sha256.New()
	for _, r := range resources {
		fmt.Fprintf(h, "%q %q\n", r.Name, r.Version)
	}
	for _, name := range removed {
		fmt.Fprintf(h, "%q\n", name)
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16])
}
