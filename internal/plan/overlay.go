package plan

import (
	"bytes"
	"iter"
	"maps"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Batch is resources that are written, as they would be stored, and others that are
// deleted.
type Batch struct {
	Written []*resource.Resource
	Deleted []resource.Key
}

// Keys are those of all resources of the batch.
func (b *Batch) Keys() []resource.Key {
	keys := slices.Clone(b.Deleted)
	for _, r := range b.Written {
		keys = append(keys, r.Key())
	}
	return keys
}

// Part is the part of the batch for which keep is true.
func (b *Batch) Part(keep func(resource.Key) bool) *Batch {
	part := &Batch{}
	for _, r := range b.Written {
		if keep(r.Key()) {
			part.Written = append(part.Written, r)
		}
	}
	for _, key := range b.Deleted {
		if keep(key) {
			part.Deleted = append(part.Deleted, key)
		}
	}
	return part
}

// Empty reports whether nothing is written or deleted.
func (b *Batch) Empty() bool { return len(b.Written)+len(b.Deleted) == 0 }

// On is a view once the batch is written.
func (b *Batch) On(view policy.View) policy.View {
	o := &overlay{View: view, changed: map[resource.Key]*resource.Resource{}}
	for _, key := range b.Deleted {
		o.changed[key] = nil
	}
	for _, r := range b.Written {
		o.changed[r.Key()] = r
	}
	for key, r := range o.changed {
		if r != nil {
			o.written = append(o.written, key)
		}
	}
	slices.SortFunc(o.written, resource.Key.Compare)
	return o
}

// Between is the change from one view to another.
func Between(before, after policy.View) *Batch {
	b := &Batch{}
	for _, d := range resource.Kinds() {
		for r := range after.List(d.Kind, "") {
			if old, ok := before.Get(r.Key()); !ok || old != r && !(Same(old, r) && sameTimes(old, r)) {
				b.Written = append(b.Written, r)
			}
		}
		for r := range before.List(d.Kind, "") {
			if _, ok := after.Get(r.Key()); !ok {
				b.Deleted = append(b.Deleted, r.Key())
			}
		}
	}
	return b
}

// Among is Between where all keys that differ are among those given, which may be in any
// order and repeat themselves.
func Among(before, after policy.View, keys []resource.Key) *Batch {
	b := &Batch{}
	sorted := slices.Clone(keys)
	slices.SortFunc(sorted, resource.Key.Compare)
	for _, key := range slices.Compact(sorted) {
		old, had := before.Get(key)
		r, has := after.Get(key)
		switch {
		case has && !(had && (old == r || Same(old, r) && sameTimes(old, r))):
			b.Written = append(b.Written, r)
		case had && !has:
			b.Deleted = append(b.Deleted, key)
		}
	}
	return b
}

// Same reports whether two resources have the same content.
func Same(a, b *resource.Resource) bool {
	return bytes.Equal(a.Canonical(), b.Canonical()) && maps.Equal(a.Meta().Labels, b.Meta().Labels)
}

func sameTimes(a, b *resource.Resource) bool {
	m, n := a.Meta(), b.Meta()
	return m.CreationTime.Equal(n.CreationTime) && m.ModificationTime.Equal(n.ModificationTime)
}

// OnDataplanes reports whether a resource of a kind can change what takes effect on
// dataplanes.
func OnDataplanes(kind resource.Kind) bool {
	switch kind {
	case resource.KindMesh, resource.KindDataplane, resource.KindHTTPRoute, resource.KindMeshGatewayRoute:
		return true
	}
	d, ok := resource.Describe(kind)
	return ok && (d.Class == resource.SourceDestination || d.Class == resource.TargetRef)
}

// OnInbounds reports whether a resource of a kind can change what holds for callers.
func OnInbounds(kind resource.Kind) bool {
	d, ok := resource.Describe(kind)
	return kind == resource.KindMesh || kind == resource.KindDataplane || ok && OnDataplanes(kind) && d.Direction&resource.OnInbound != 0
}

// Concerns reports whether a plan says anything of a resource of a kind: not of secrets,
// tokens, keys and zones.
func Concerns(kind resource.Kind) bool {
	switch kind {
	case resource.KindSecret, resource.KindGlobalSecret, resource.KindSigningKey, resource.KindTokenRevocation,
		resource.KindIssuedToken, resource.KindZone:
		return false
	}
	return true
}

// overlay does not know the terms of policy.TermLister: nothing that plans asks for them.
type overlay struct {
	policy.View
	changed map[resource.Key]*resource.Resource // nil: deleted
	written []resource.Key                      // in order
}

// Get implements policy.View.
func (o *overlay) Get(key resource.Key) (*resource.Resource, bool) {
	if r, changed := o.changed[key]; changed {
		return r, r != nil
	}
	return o.View.Get(key)
}

// List implements policy.View.
func (o *overlay) List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource] {
	var mine []*resource.Resource
	for _, key := range o.written {
		if key.Kind == kind && (mesh == "" || key.Mesh == mesh) {
			mine = append(mine, o.changed[key])
		}
	}
	return func(yield func(*resource.Resource) bool) {
		next := 0
		for r := range o.View.List(kind, mesh) {
			for ; next < len(mine) && mine[next].Key().Compare(r.Key()) < 0; next++ {
				if !yield(mine[next]) {
					return
				}
			}
			if _, changed := o.changed[r.Key()]; !changed && !yield(r) {
				return
			}
		}
		for ; next < len(mine); next++ {
			if !yield(mine[next]) {
				return
			}
		}
	}
}
