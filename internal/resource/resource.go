package resource

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Spec is the typed content of a resource. One Go type per kind implements it;
// the table in kinds.go says which.
//
// A Spec is immutable once it has been decoded: it is shared between every
// reader of the resource.
type Spec interface {
	// Validate reports everything wrong with the spec on its own: what can be
	// said without looking at any other resource. at is the path of the spec in
	// the document, usually Root.
	Validate(at Path, r *Report)
}

// Meta is everything a resource carries besides its spec (§1.1).
type Meta struct {
	Key
	// Labels holds Kubernetes labels and, under LabelNamespace, the Kubernetes
	// namespace, which the name ends in (see Namespaced). Never modified in place.
	Labels map[string]string
	// CreationTime and ModificationTime are chosen by the leader and carried in
	// the command; the zero time means unknown and counts as oldest.
	CreationTime     time.Time
	ModificationTime time.Time
	// Version counts the writes of this resource, from 1. Zero: never stored.
	Version uint64
	// Revision is the store's revision that last wrote the resource.
	Revision Revision
	// Rollout names the Rollout that has a zone show this content in place of what the
	// global has; empty otherwise. It is never stored.
	Rollout string
}

// LabelNamespace is the label that keeps the namespace of a document in
// Kubernetes form.
const LabelNamespace = "k8s.kuma.io/namespace"

// LabelMesh is the label by which a document in Kubernetes form may name its
// mesh.
const LabelMesh = "kuma.io/mesh"

// TokenMeshLabel is the label of a TokenRevocation that names the mesh of the dataplanes
// that could register with the token; without it, those of every mesh could.
const TokenMeshLabel = "meridian.io/token-mesh"

// Resource is one immutable resource: what was written, when, and as what. It
// is shared freely between goroutines; to change one, build another.
type Resource struct {
	meta Meta
	// spec is undecoded where it is decoded when it is asked for (see Stored).
	spec      Spec
	canonical []byte
	hash      atomic.Pointer[[sha256.Size]byte] // filled by Hash
}

// New assembles a resource from its parts: the typed spec and the canonical
// JSON it was decoded from (see Canonicalize). Both are retained, not copied.
func New(meta Meta, spec Spec, canonical []byte) *Resource {
	return &Resource{meta: meta, spec: spec, canonical: canonical}
}

// deferred is a spec that is decoded when it is first asked for.
type deferred func() Spec

// Validate implements Spec.
func (d deferred) Validate(at Path, r *Report) { d().Validate(at, r) }

// Deferred is New for a spec that decode returns, which is called once, when the spec is
// first asked for, and by any goroutine. canonical is retained, not copied.
func Deferred(meta Meta, canonical []byte, decode func() Spec) *Resource {
	return &Resource{meta: meta, spec: deferred(sync.OnceValue(decode)), canonical: canonical}
}

// Meta returns the envelope. Its maps must not be modified.
func (r *Resource) Meta() Meta { return r.meta }

// Key returns the identity.
func (r *Resource) Key() Key { return r.meta.Key }

// KeyRef is Key without a copy. It must not be modified.
func (r *Resource) KeyRef() *Key { return &r.meta.Key }

// Spec returns the typed content. It must not be modified.
func (r *Resource) Spec() Spec {
	switch d := r.spec.(type) {
	case undecoded:
		return decodedSpecs.of(r)
	case deferred:
		return d()
	}
	return r.spec
}

// Canonical returns the spec's canonical JSON: the bytes that stand in the log,
// the store, the sync frame and the zone. They must not be modified.
func (r *Resource) Canonical() []byte { return r.canonical }

// WithMeta returns a copy of the resource with another envelope and the same
// content.
func (r *Resource) WithMeta(meta Meta) *Resource {
	return &Resource{meta: meta, spec: r.spec, canonical: r.canonical}
}

// Hash returns the SHA-256 of what the author wrote: identity, labels and
// canonical spec. Times, version and revision do not count, so that an unchanged
// resource has an unchanged hash wherever it is. It is computed once.
func (r *Resource) Hash() [32]byte {
	if sum := r.hash.Load(); sum != nil {
		return *sum
	}
	b := make([]byte, 0, 256+len(r.canonical))
	put := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	put(string(r.meta.Kind))
	put(string(r.meta.Mesh))
	put(r.meta.Name)
	b = binary.AppendUvarint(b, uint64(len(r.meta.Labels)))
	for _, name := range slices.Sorted(maps.Keys(r.meta.Labels)) {
		put(name)
		put(r.meta.Labels[name])
	}
	b = append(b, r.canonical...)
	sum := sha256.Sum256(b)
	r.hash.Store(&sum)
	return sum
}
