package policy

import (
	"sync"

	"meridian/internal/parallel"
	"meridian/internal/resource"
)

// preparedKinds are policies that were compiled and filed for a Reset to come.
type preparedKinds map[resource.Kind]map[resource.MeshName]*kindIndex

// preparation gathers such policies. It is safe for concurrent use.
type preparation struct {
	none View

	mu    sync.Mutex
	kinds preparedKinds // guarded by mu; nil once they were taken
}

// Expect has Prepare compile and file policies for the next Reset.
func (m *Matcher) Expect() {
	m.prepared.Store(&preparation{none: NewSnapshot(), kinds: preparedKinds{}})
}

// Prepare compiles and files a policy for the Reset that Expect has announced, whose view
// may have it, and does nothing without one: who decodes very many resources has each
// compiled while its spec is available, in place of decoding it again. It is safe for
// concurrent use.
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
	key := f.resource.KeyRef()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kinds == nil {
		return
	}
	meshes := p.kinds[key.Kind]
	if meshes == nil {
		meshes = map[resource.MeshName]*kindIndex{}
		p.kinds[key.Kind] = meshes
	}
	x := meshes[key.Mesh]
	if x == nil {
		x = newKindIndex()
		meshes[key.Mesh] = x
	}
	x.remove(key.Name)
	x.insert(f)
}

// take returns what was prepared, to be changed by the caller alone.
func (p *preparation) take() preparedKinds {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	kinds := p.kinds
	p.kinds = nil
	return kinds
}

// adoptLocked takes over what was prepared of a kind and is among the resources, which are
// all that the view has of it. It returns the others.
func (m *Matcher) adoptLocked(meshes map[resource.MeshName]*kindIndex, kind resource.Kind, resources []*resource.Resource) []*resource.Resource {
	if len(meshes) == 0 {
		return resources
	}
	has := make([]bool, len(resources))
	parallel.For(len(resources), func(from, to int) {
		for i := from; i < to; i++ {
			x := meshes[resources[i].KeyRef().Mesh]
			has[i] = x != nil && x.holds(resources[i])
		}
	})
	var others []*resource.Resource
	for i, r := range resources {
		if !has[i] {
			others = append(others, r)
		}
	}
	filed := 0
	for mesh, x := range meshes {
		m.meshLocked(mesh).kinds[kind] = x
		filed += len(x.byName)
	}
	if filed > len(resources)-len(others) {
		m.dropOthersLocked(kind, meshes)
	}
	return others
}

// dropOthersLocked removes what was prepared of a kind and is not in the view.
func (m *Matcher) dropOthersLocked(kind resource.Kind, meshes map[resource.MeshName]*kindIndex) {
	for mesh, x := range meshes {
		for name, f := range x.byName {
			if r, ok := m.view.Get(*f.resource.KeyRef()); !ok || r != f.resource {
				x.remove(name)
			}
		}
		if len(x.byName) == 0 {
			delete(m.meshes[mesh].kinds, kind)
			m.dropMeshLocked(mesh)
		}
	}
}
