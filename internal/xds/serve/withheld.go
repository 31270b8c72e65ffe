package serve

import (
	"fmt"

	"meridian/internal/xds"
)

const (
	// maxWorldBytes bounds a response that cannot be followed by another, since it has
	// everything of its type: stock gRPC clients receive messages of up to 4 MiB. What is
	// left is for the version and the nonce.
	maxWorldBytes = 4<<20 - maxCarriedBytes - 16<<10
	// perSent is what the encoding of a response adds to a resource, at most, beside its
	// texts: the keys and lengths of the fields.
	perSent = 24
)

// Withheld is a resource that a client is not sent, since its response would become
// larger than clients receive. The client keeps the version that it had.
type Withheld struct {
	Resource *xds.Resource
	// Why is a sentence for operators.
	Why string
}

// fitting returns the changes after which everything that the client has of a type fits
// into one response, by name, and notes the others. What the client has already comes
// first, and what makes the response no larger always fits.
func (s *Stream) fitting(typ xds.Type, changes []change) []change {
	t := &s.types[typ]
	t.withheld = nil
	if len(changes) == 0 {
		return nil
	}
	total := 0
	for _, e := range t.entries {
		total += sentBytes(e.held)
	}
	fit := changes[:0]
	for _, c := range changes {
		after := total + sentBytes(c.to)
		if c.entry != nil {
			after -= sentBytes(c.entry.held)
		}
		if after > maxWorldBytes && after > total {
			if t.withheld == nil {
				t.withheld = map[string]Withheld{}
			}
			t.withheld[c.name] = Withheld{Resource: c.to, Why: fmt.Sprintf(
				"with it, all %s of this client would have %d bytes, and a client receives at most %d of them at once: let a client use fewer services, or write fewer or shorter rules",
				typ, after, maxWorldBytes)}
			continue
		}
		total = after
		fit = append(fit, c)
	}
	return fit
}

// sentBytes is how many bytes a resource has in a response of the variant state of the
// world.
func sentBytes(r *xds.Resource) int {
	if r == nil {
		return 0
	}
	return len(r.Body) + perSent
}

// withholds reports whether a version of a resource is not sent for its size.
func (t *typeState) withholds(r *xds.Resource) bool {
	w, withheld := t.withheld[r.Name]
	return withheld && w.Resource.Version == r.Version
}

// withheldOf are the resources of a type, by name, that the client asked for and is not
// sent.
func (s *Stream) withheldOf(typ xds.Type) []Withheld {
	t := &s.types[typ]
	if s.set == nil || len(t.withheld) == 0 {
		return nil
	}
	var all []Withheld
	for _, r := range s.set.Of(typ) {
		if s.subscribed(t, r.Name) && t.withholds(r) {
			all = append(all, t.withheld[r.Name])
		}
	}
	return all
}
