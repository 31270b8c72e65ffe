package resource

import (
	"hash/maphash"
	"sync/atomic"
	"unique"

	"meridian/internal/doctree"
)

// Unreadable is the spec of a resource whose stored bytes this release cannot
// decode: a kind it does not know, or content that an earlier release accepted
// and this one does not. The bytes are kept, count in every digest and are
// replaced by the next valid write; the resource has no effect until then.
type Unreadable struct {
	// Err says why.
	Err error
}

// Validate reports why the spec cannot be read.
func (u *Unreadable) Validate(at Path, r *Report) {
	r.Errorf(at, "this release cannot read the stored spec: %s", u.Err)
}

// maxUndecoded is the largest canonical JSON whose spec is decoded when it is asked for: a
// spec takes several times as much memory, and a larger one too long to decode each time.
const maxUndecoded = 16 << 10

// Stored makes a resource from stored bytes, which are kept as they are, whatever this
// release would make of them, so that digests agree between releases. A spec that cannot
// be decoded becomes Unreadable.
//
// There may be a million policies, few of which are looked into at any time: their specs
// are decoded when they are asked for, and not kept. Those of other kinds are.
func Stored(meta Meta, canonical []byte) *Resource {
	r := &Resource{meta: meta, canonical: canonical, spec: undecoded{}}
	if !r.mayForget() {
		r.spec = r.decode()
	}
	return r
}

// BuildStored is Build of content that is stored, without warnings and advice: what Store
// makes of the result.
func BuildStored(meta Meta, specJSON []byte) (*Resource, error) {
	spec, canonical, report := check(meta, specJSON, nil)
	if report.Failed() {
		return nil, &DocumentError{Key: meta.Key, Problems: report.Problems}
	}
	r := New(meta, spec, canonical)
	r.forget()
	return r, nil
}

// Store returns a copy of the resource with another envelope, as Stored makes it. The spec
// of the resource is remembered for the next caller that asks for it.
func (r *Resource) Store(meta Meta) *Resource {
	stored := r.WithMeta(meta)
	stored.forget()
	return stored
}

// forget has the spec of a new resource decoded when it is asked for, where that may be.
func (r *Resource) forget() {
	spec := r.spec
	switch spec.(type) {
	case *Unreadable, undecoded:
		return
	}
	if !r.mayForget() {
		return
	}
	r.spec = undecoded{valid: true}
	if _, later := spec.(deferred); !later {
		decodedSpecs.remember(r, spec)
	}
}

// undecoded is in place of a spec that is decoded when it is asked for.
type undecoded struct {
	// valid: this release has decoded and validated it before.
	valid bool
}

// Validate implements Spec. It is never called: Resource.Spec returns no undecoded.
func (undecoded) Validate(Path, *Report) {}

// mayForget reports whether the spec is decoded when it is asked for.
func (r *Resource) mayForget() bool {
	if len(r.canonical) > maxUndecoded || len(r.canonical) == 0 {
		return false
	}
	d, ok := Describe(r.meta.Kind)
	return ok && (d.Class == SourceDestination || d.Class == TargetRef)
}

func (r *Resource) decode() Spec {
	if u, ok := r.spec.(undecoded); ok && u.valid {
		if spec := r.decodeValid(); spec != nil {
			return spec
		}
	}
	spec, err := decodeStored(r.meta, r.canonical)
	if err != nil {
		return &Unreadable{Err: err}
	}
	return spec
}

// decodeValid decodes a spec that was validated, nil where that fails all the same.
func (r *Resource) decodeValid() (spec Spec) {
	d, ok := Describe(r.meta.Kind)
	if !ok {
		return nil
	}
	doctree.ReadJSON(r.canonical, func(values []*doctree.Node, _ bool, err error) {
		if err != nil || len(values) != 1 {
			return
		}
		decoded, dec := d.New(), &decoder{}
		if dec.into(decoded, values[0], Root); !dec.report.Failed() {
			spec = decoded
		}
	})
	return spec
}

// SharedKey returns an equal key that shares its kind and mesh with all others that it
// returned.
func SharedKey(k Key) Key {
	if d, ok := Describe(k.Kind); ok {
		k.Kind = d.Kind
	}
	if k.Mesh != "" {
		k.Mesh = unique.Make(k.Mesh).Value()
	}
	return k
}

// recentSpecs are how many decoded specs are remembered: work on a policy asks for its
// spec several times.
const recentSpecs = 1024

// specMemory remembers specs that were decoded lately. The zero value is empty; it is safe
// for concurrent use.
type specMemory struct {
	recent [recentSpecs]atomic.Pointer[decodedSpec]
}

type decodedSpec struct {
	of   *Resource
	spec Spec
}

// decodedSpecs are those of all resources in the process: a pure function's memory, as
// shared is.
var decodedSpecs specMemory

func (m *specMemory) of(r *Resource) Spec {
	if d := m.place(r).Load(); d != nil && d.of == r {
		return d.spec
	}
	spec := r.decode()
	m.remember(r, spec)
	return spec
}

func (m *specMemory) remember(r *Resource, spec Spec) { m.place(r).Store(&decodedSpec{r, spec}) }

func (m *specMemory) place(r *Resource) *atomic.Pointer[decodedSpec] {
	return &m.recent[maphash.Comparable(tagSeed, r)%recentSpecs]
}
