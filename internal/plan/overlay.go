package plan

import (
	"iter"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Overlay is a view with some resources written and others deleted. What is written is not
// deleted.
func Overlay(view policy.View, written []*resource.Resource, deleted []resource.Key) policy.View {
	o := &overlay{View: view, changed: map[resource.Key]*resource.Resource{}}
	for _, key := range deleted {
		o.changed[key] = nil
	}
	for _, r := range written {
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
