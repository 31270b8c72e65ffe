package serve

import (
	"slices"
	"sync"

	"meridian/internal/xds"
)

// maxRejections bounds how many versions of one resource are remembered as
// rejected: a resource that goes back and forth between as many is sent again.
const maxRejections = 8

// Rejection is a resource that a proxy rejected.
type Rejection struct {
	// Resource is the version that was rejected.
	Resource *xds.Resource
	// Detail is what the proxy said about it, bounded.
	Detail string

	// good is the version that the proxy has instead; nil when it has none.
	good *xds.Resource
}

// Memory is what one proxy has rejected, over all its streams, and what it had when
// those ended. The zero value is empty; it is safe for concurrent use.
type Memory struct {
	mu       sync.Mutex
	rejected map[xds.Ref][]Rejection // the newest last
	left     [len(xds.Types)][]left  // the newest last
	bytes    int                     // what they take
}

// Empty reports whether nothing is remembered.
func (m *Memory) Empty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.left {
		if len(m.left[i]) > 0 {
			return false
		}
	}
	return len(m.rejected) == 0
}

// get returns the rejection of a resource in exactly this version.
func (m *Memory) get(r *xds.Resource) (Rejection, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.rejected) == 0 {
		return Rejection{}, false
	}
	for _, found := range m.rejected[r.Ref()] {
		if found.Resource.Version == r.Version {
			return found, true
		}
	}
	return Rejection{}, false
}

// best returns a resource, or for one that was rejected the version that the proxy
// had then, unless it has rejected that one since; nil for nothing.
func (m *Memory) best(r *xds.Resource) *xds.Resource {
	for range maxRejections + 1 {
		found, rejected := m.get(r)
		if !rejected {
			return r
		}
		if r = found.good; r == nil {
			return nil
		}
	}
	return nil
}

func (m *Memory) reject(r Rejection) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rejected == nil {
		m.rejected = map[xds.Ref][]Rejection{}
	}
	ref := r.Resource.Ref()
	others := slices.DeleteFunc(m.rejected[ref], func(o Rejection) bool {
		again := o.Resource.Version == r.Resource.Version
		if again {
			m.bytes -= o.size()
		}
		return again
	})
	if len(others) == maxRejections {
		m.bytes -= others[0].size()
		others = slices.Delete(others, 0, 1)
	}
	m.bytes += r.size()
	m.rejected[ref] = append(others, r)
}

// ForgetRejected forgets every rejection.
func (m *Memory) ForgetRejected() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, rejections := range m.rejected {
		for i := range rejections {
			m.bytes -= rejections[i].size()
		}
	}
	clear(m.rejected)
}

// retain forgets the rejections of resources that a set no longer has, which bounds
// them by its size.
func (m *Memory) retain(set *xds.Set) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ref, rejections := range m.rejected {
		if set.Get(ref) != nil {
			continue
		}
		for i := range rejections {
			m.bytes -= rejections[i].size()
		}
		delete(m.rejected, ref)
	}
}
