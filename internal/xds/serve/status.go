package serve

import (
	"time"

	"meridian/internal/resource"
	"meridian/internal/xds"
)

// State is where a client stands with one type.
type State string

// The states, from docs/contract.md.
const (
	// Synced: the client has accepted everything it asked for.
	Synced State = "SYNCED"
	// Sent: a response is not answered yet, or one of several resources was rejected and they
	// are about to be sent one by one.
	Sent State = "SENT"
	// Stale: a response has not been answered for longer than a client needs.
	Stale State = "STALE"
	// Warming: what follows waits for resources that it refers to.
	Warming State = "WARMING"
	// Rejected: the client refused something that it is to have.
	Rejected State = "NACK"
	// NotSent: the client has not asked, there is nothing that may be sent, or there is no
	// space for some of it.
	NotSent State = "NOT SENT"
)

// staleAfter is how long a client may take to answer a response before it is Stale.
const staleAfter = 5 * time.Second

// TypeStatus is where a client stands with one type.
type TypeStatus struct {
	Type  xds.Type
	State State
	// Revision is the newest that the client had in full; zero for none.
	Revision resource.Revision
	// Resources is how many the client has, Behind how many of those that it asked for it
	// has not, or in another version than it is to have.
	Resources, Behind int
	// Detail is the client's last rejection, until it accepts a response.
	Detail string
	// Rejections are the resources that it refused and is to have.
	Rejections []Rejection
	// Withheld are the resources that it is to have and there is no space for.
	Withheld []Withheld
}

// Status returns where the client stands with each type, in the order of xds.Types. What
// waits is as the last Next found it.
func (s *Stream) Status(now time.Time) []TypeStatus {
	out := make([]TypeStatus, len(xds.Types))
	for i, typ := range xds.Types {
		t := &s.types[typ]
		status := TypeStatus{Type: typ, State: NotSent, Revision: t.synced, Detail: t.detail, Rejections: s.rejections(typ), Withheld: s.withheldOf(typ)}
		for _, e := range t.entries {
			if e.held != nil {
				status.Resources++
			}
		}
		if s.set != nil {
			for _, r := range s.set.Of(typ) {
				if d := s.Delivery(r); d == Pending || d == Refused {
					status.Behind++
				}
			}
		}
		switch {
		case !t.asked || s.set == nil:
		case len(status.Rejections) > 0 || t.detail != "" && t.out == nil && len(t.suspects) == 0:
			status.State = Rejected
		case t.out != nil && now.Sub(t.out.since) > staleAfter:
			status.State = Stale
		case t.out != nil:
			status.State = Sent
		case t.waiting:
			status.State = Warming
		case len(t.suspects) > 0:
			status.State = Sent
		case len(status.Withheld) > 0:
		case status.Resources > 0 || t.accepted && s.set.Withheld == "":
			status.State = Synced
		}
		out[i] = status
	}
	return out
}

// AsOf returns the revision of the set that the proxy is to have; zero before the first.
func (s *Stream) AsOf() resource.Revision {
	if s.set == nil {
		return 0
	}
	return s.set.AsOf
}

// Progress returns how many targets there were, up to which of them the client has all
// that it asked for, and whether it has rejected something of the last one, or is not
// sent something of it for its size.
func (s *Stream) Progress() (targets, taken uint64, rejected bool) {
	taken = s.targets
	for i := range s.types {
		if t := &s.types[i]; t.asked {
			taken = min(taken, t.taken)
			rejected = rejected || s.rejectedAny(xds.Type(i))
		}
	}
	return s.targets, taken, rejected
}

// Asked reports whether the client has asked for resources of a type.
func (s *Stream) Asked(typ xds.Type) bool { return s.types[typ].asked }

// Listening reports whether the client has a listener with TLS in the place of each that it
// is to have, and there is at least one.
func (s *Stream) Listening() bool {
	if s.set == nil {
		return false
	}
	some := false
	for _, r := range s.set.Of(xds.Listener) {
		if !r.Secure {
			continue
		}
		e := s.types[xds.Listener].entries[r.Name]
		if e == nil || e.held == nil || !e.held.Secure {
			return false
		}
		some = true
	}
	return some
}

// Delivery is how far one version of a resource has come to a client. Of several
// clients, the greatest is that with the most to be looked at.
type Delivery int

// The deliveries.
const (
	// NotAsked: the client does not subscribe to the resource.
	NotAsked Delivery = iota
	// Accepted: the client has this version.
	Accepted
	// Pending: the client does not have this version yet.
	Pending
	// Refused: the client rejected this version, or is not sent it for its size.
	Refused
)

// Delivery returns how far a resource has come, in the version that it has there.
func (s *Stream) Delivery(r *xds.Resource) Delivery {
	t := &s.types[r.Type]
	if !t.asked || !s.subscribed(t, r.Name) {
		return NotAsked
	}
	if e := t.entries[r.Name]; e != nil && e.has(r) {
		return Accepted
	}
	if _, refused := s.cfg.Memory.get(r); refused || t.withholds(r) {
		return Refused
	}
	return Pending
}
