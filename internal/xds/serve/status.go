package serve

import (
	"meridian/internal/resource"
	"meridian/internal/xds"
)

// State is where a client stands with one type.
type State string

// The states, from docs/contract.md.
const (
	// Synced: the client has accepted everything it asked for.
	Synced State = "SYNCED"
	// Sent: a response is not answered yet.
	Sent State = "SENT"
	// Warming: what follows waits for resources that it refers to.
	Warming State = "WARMING"
	// Rejected: the client refused something that it is to have.
	Rejected State = "NACK"
	// NotSent: the client has not asked, or there is nothing that may be sent.
	NotSent State = "NOT SENT"
)

// TypeStatus is where a client stands with one type.
type TypeStatus struct {
	Type  xds.Type
	State State
	// Revision is the newest that the client had in full; zero for none.
	Revision resource.Revision
	// Resources is how many the client has.
	Resources int
	// Detail is the client's last rejection, until it accepts a response.
	Detail string
	// Rejections are the resources that it refused and is to have.
	Rejections []Rejection
}

// Status returns where the client stands with each type, in the order of xds.Types. What
// waits is as the last Next found it.
func (s *Stream) Status() []TypeStatus {
	out := make([]TypeStatus, len(xds.Types))
	for i, typ := range xds.Types {
		t := &s.types[typ]
		status := TypeStatus{Type: typ, State: NotSent, Revision: t.synced, Detail: t.detail, Rejections: s.rejections(typ)}
		for _, e := range t.entries {
			if e.held != nil {
				status.Resources++
			}
		}
		switch {
		case !t.asked || s.set == nil:
		case len(status.Rejections) > 0 || t.detail != "" && t.out == nil:
			status.State = Rejected
		case t.out != nil:
			status.State = Sent
		case t.waiting:
			status.State = Warming
		case status.Resources > 0 || t.accepted && s.set.Withheld == "":
			status.State = Synced
		}
		out[i] = status
	}
	return out
}
