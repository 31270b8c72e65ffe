// Package overlay says what a zone shows while rollouts are under way: the resources as
// a rollout changes them, where the zone has the change, in place of what the global has.
//
// It is a function of what the zone has received and of the zone's name, so that a zone
// shows the same after a restart, a snapshot or a repair, with and without its global.
// It has no state, clock or I/O.
package overlay

import (
	"bytes"
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"meridian/internal/resource"
)

// Base is what a zone has received of a resource, whether it can be used or not. The
// zero value stands for none.
type Base struct {
	Version uint64
	Created time.Time
}

// Overlay is what the rollouts of a zone change. The zero value changes nothing. It is
// immutable.
type Overlay struct {
	// shown are the resources as they are changed, nil where they are deleted.
	shown map[resource.Key]*resource.Resource
	// named are all keys of the rollouts that the zone takes part in.
	named map[resource.Key]struct{}
}

// Of returns what rollouts, which may be in any order and over, change in a zone, given
// what the zone has received of each resource. before, unless nil, is the overlay until
// now, whose resources are kept where they are the same.
//
// A rollout is shown whole or not at all. It is not shown where the zone has another
// version of some resource than the one that it was made for: what was written since is
// never hidden. Nor is it where an earlier one changes the same resource.
func Of(zone resource.ZoneName, rollouts iter.Seq[*resource.Resource], base func(resource.Key) Base, before *Overlay) *Overlay {
	var of []*resource.Resource
	for r := range rollouts {
		if spec, ok := r.Spec().(*resource.Rollout); ok && spec.Status.Shows(zone) {
			of = append(of, r)
		}
	}
	if len(of) == 0 {
		return &Overlay{}
	}
	slices.SortFunc(of, func(a, b *resource.Resource) int {
		return cmp.Or(a.Meta().CreationTime.Compare(b.Meta().CreationTime), cmp.Compare(a.Key().Name, b.Key().Name))
	})
	o := &Overlay{shown: map[resource.Key]*resource.Resource{}, named: map[resource.Key]struct{}{}}
	for _, r := range of {
		o.add(r, base, before)
	}
	return o
}

func (o *Overlay) add(rollout *resource.Resource, base func(resource.Key) Base, before *Overlay) {
	changes := rollout.Spec().(*resource.Rollout).Changes
	holds := true
	for i := range changes {
		key := changes[i].Key()
		o.named[key] = struct{}{}
		if _, taken := o.shown[key]; taken || base(key).Version != changes[i].Replaces {
			holds = false
		}
	}
	if !holds {
		return
	}
	for i := range changes {
		key := changes[i].Key()
		after := After(&changes[i], rollout.Meta(), base(key).Created)
		if old := before.at(key); same(old, after) {
			after = old
		}
		o.shown[key] = after
	}
}

// After returns a resource as a change of a rollout leaves it, nil where the change
// deletes it. created is when the resource that it replaces was created, the zero time
// where there is none.
//
// The times are those of the rollout, which decide between policies (§3.4): they are the
// same in all zones, in every stage, and in what completes the rollout.
func After(change *resource.RolloutChange, rollout resource.Meta, created time.Time) *resource.Resource {
	if change.Put == nil {
		return nil
	}
	r := change.Put.Resource()
	meta := r.Meta()
	meta.CreationTime, meta.ModificationTime = created, rollout.CreationTime
	if change.Replaces == 0 || created.IsZero() {
		meta.CreationTime = rollout.CreationTime
	}
	meta.Version, meta.Revision, meta.Rollout = change.Replaces+1, rollout.Revision, rollout.Name
	return r.WithMeta(meta)
}

func (o *Overlay) at(key resource.Key) *resource.Resource {
	if o == nil {
		return nil
	}
	return o.shown[key]
}

func same(a, b *resource.Resource) bool {
	if a == nil || b == nil {
		return false
	}
	x, y := a.Meta(), b.Meta()
	return x.Version == y.Version && x.Revision == y.Revision && x.Rollout == y.Rollout &&
		x.CreationTime.Equal(y.CreationTime) && x.ModificationTime.Equal(y.ModificationTime) &&
		maps.Equal(x.Labels, y.Labels) && bytes.Equal(a.Canonical(), b.Canonical())
}

// Get returns what is shown in place of a resource, nil where it is shown as deleted. ok
// is false where no rollout changes it.
func (o *Overlay) Get(key resource.Key) (r *resource.Resource, ok bool) {
	r, ok = o.shown[key]
	return r, ok
}

// All yields everything that is shown in place of something else, in no order.
func (o *Overlay) All() iter.Seq2[resource.Key, *resource.Resource] { return maps.All(o.shown) }

// Follows reports whether a change of a resource may change the overlay.
func (o *Overlay) Follows(key resource.Key) bool {
	_, named := o.named[key]
	return named || key.Kind == resource.KindRollout
}
