package serve

import (
	"meridian/internal/xds"
)

// What is kept beside texts and bodies, in bytes, as measured on a stream with as many
// names as it may have.
const (
	perName   = 32  // a name in a subscription
	perEntry  = 176 // where the client stands with one resource
	perChange = 96  // a change in a response that is not answered
	// perResource is a resource that the set does not have, beside its texts and body,
	// perRejection what is kept of a rejection.
	perResource, perRejection = 192, 224
	perUse                    = 40 // what a resource refers to
)

// Bytes returns how much memory the stream takes, about: what the client has named, and
// what it has, or was sent, that the set does not have. The set, which streams share, is
// left out, and so are Memory and encoded responses.
func (s *Stream) Bytes() int64 {
	total := 0
	for i := range s.types {
		t := &s.types[i]
		total += len(t.detail)
		total += perName * len(t.names) // the texts are those of entries
		for name, e := range t.entries {
			total += perEntry + len(name) + s.own(e.held) + s.own(e.maybe) + s.own(e.none) + e.variant.bytes(s) + len(e.refused)
		}
		if t.out == nil {
			continue
		}
		for _, c := range t.out.changes {
			total += perChange + s.own(c.to) + s.own(c.target) + c.variant.bytes(s)
		}
	}
	return int64(total)
}

// bytes returns how much memory the routes take that the variant is of.
func (v *variant) bytes(s *Stream) int {
	total := s.own(v.base)
	for name := range v.spares {
		total += perName + len(name)
	}
	return total
}

// own returns how much memory a resource takes that is not the set's.
func (s *Stream) own(r *xds.Resource) int {
	if r == nil || s.set != nil && s.set.Get(r.Ref()) == r {
		return 0
	}
	return sizeOf(r)
}

func sizeOf(r *xds.Resource) int {
	if r == nil {
		return 0
	}
	return perResource + len(r.Name) + len(r.Version) + len(r.Body) + perUse*len(r.Uses)
}

// Bytes returns how much memory the rejections take, and what streams left, about.
func (m *Memory) Bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int64(m.bytes)
}

func (r *Rejection) size() int {
	return perRejection + len(r.Detail) + sizeOf(r.Resource) + sizeOf(r.good)
}
