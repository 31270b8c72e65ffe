package policy

import (
	"hash/maphash"
	"sync"

	"meridian/internal/resource"
)

// preparedParts is how many parts a preparation has, so that goroutines seldom wait for
// one another.
const preparedParts = 64

// preparation is policies that were compiled for a Reset to come. It is safe for concurrent
// use.
type preparation struct {
	none  View
	seed  maphash.Seed
	parts [preparedParts]struct {
		mu    sync.Mutex
		filed map[*resource.Resource]*filed // guarded by mu
	}
}

// Expect has Prepare compile policies for the next Reset.
func (m *Matcher) Expect() {
	p := &preparation{none: NewSnapshot(), seed: maphash.MakeSeed()}
	for i := range p.parts {
		p.parts[i].filed = map[*resource.Resource]*filed{}
	}
	m.prepared.Store(p)
}

// Prepare compiles a policy for the Reset that Expect has announced, whose view may have
// it, and does nothing without one: who decodes very many resources has each compiled while
// its spec is available, in place of decoding it again. It is safe for concurrent use.
func (m *Matcher) Prepare(r *resource.Resource) {
	prepared, engine := m.prepared.Load(), m.byKind[r.KeyRef().Kind]
	if prepared == nil || engine == nil {
		return
	}
	p := engine.Compile(prepared.none, r)
	if len(p.Depends) > 0 || len(namesIn(p)) > 0 {
		return // Reset needs more of them than where they are filed
	}
	prepared.add(newFiled(p, engine, false))
}

func (p *preparation) add(f *filed) {
	part := &p.parts[maphash.Comparable(p.seed, f.resource)%preparedParts]
	part.mu.Lock()
	defer part.mu.Unlock()
	part.filed[f.resource] = f
}

// of returns a policy as it was prepared, nil if it was not.
func (p *preparation) of(r *resource.Resource) *filed {
	if p == nil {
		return nil
	}
	part := &p.parts[maphash.Comparable(p.seed, r)%preparedParts]
	part.mu.Lock()
	defer part.mu.Unlock()
	return part.filed[r]
}
