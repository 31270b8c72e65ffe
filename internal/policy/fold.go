package policy

import (
	"maps"
	"slices"

	"meridian/internal/resource"
)

// Op is how a step's configuration joins what earlier steps made.
type Op int

const (
	// Fill adds the fields that are not set yet: a merged default.
	Fill Op = iota
	// Unless takes the whole configuration if nothing came before: an atomic
	// default.
	Unless
	// Overlay sets every field it has, whatever was set before: a merged
	// override.
	Overlay
	// Replace puts its configuration in the place of everything before: an
	// atomic override.
	Replace
)

// String names the op as the blocks of §5.2 would.
func (o Op) String() string {
	switch o {
	case Fill:
		return "merged default"
	case Unless:
		return "atomic default"
	case Overlay:
		return "merged override"
	default:
		return "atomic override"
	}
}

// Units says what a fold treats as indivisible, and what counts as nothing.
type Units struct {
	// Depth is how many levels of objects merge member by member; whatever lies
	// below is one opaque value (§5.3: a rule's body is never merged
	// inside). 0 merges objects at every level (§4.5).
	Depth int
	// EmptyIsNone makes a configuration without any field count as none, so
	// that Unless still takes effect after it (§5.4: "if ep has no rules").
	// When false, a policy that was chosen was chosen, even if it configures
	// nothing, as the HealthCheck of §3.7.
	EmptyIsNone bool
}

// Fold merges steps one after the other, the most specific first, and keeps
// for every leaf field the policy that set it.
//
// It never writes to a step: its own objects are copies, while lists and opaque
// values are shared with the steps. The zero value merges at every depth. Not
// safe for concurrent use.
type Fold struct {
	units  Units
	conf   Tree
	fields map[Pointer]resource.Key
	added  int // steps that took effect
}

// NewFold returns an empty fold.
func NewFold(units Units) *Fold { return &Fold{units: units} }

// Effect is what one step did to the configuration. All pointers are of leaf
// fields, in bytewise order.
type Effect struct {
	// Used is false when the step had no say at all: an Unless that came too late.
	Used bool
	// Set are the fields whose value is now the step's.
	Set []Pointer
	// Lost are the fields of the step that an earlier step keeps.
	Lost []Pointer
	// Displaced are the fields of earlier steps that this step removed or gave
	// another value.
	Displaced []Pointer
}

// Conf returns the configuration so far, never nil. It is shared with the fold:
// read it before the next Add, or Clone it.
func (f *Fold) Conf() Tree {
	if f.conf == nil {
		f.conf = Tree{}
	}
	return f.conf
}

// Clone returns a copy of the configuration that later steps do not change.
func (f *Fold) Clone() Tree { return clone(f.Conf(), 0).(Tree) }

// Fields returns, per leaf field, the policy that set it, never nil. It is
// shared with the fold.
func (f *Fold) Fields() map[Pointer]resource.Key {
	if f.fields == nil {
		f.fields = map[Pointer]resource.Key{}
	}
	return f.fields
}

// Started reports whether an Unless would come too late.
func (f *Fold) Started() bool {
	if f.units.EmptyIsNone {
		return len(f.fields) > 0
	}
	return f.added > 0
}

// Add takes the next step, which is less specific than all before it, and
// says what it changed.
func (f *Fold) Add(s Step) Effect {
	f.Conf()
	f.Fields()
	e := effect{fold: f, origin: s.Origin}
	switch {
	case s.Op == Unless && f.Started():
		e.Lost = Leaves(s.Conf, f.units.Depth)
		return e.Effect
	case s.Op == Fill:
		e.fill(f.conf, s.Conf, "", f.units.Depth)
	case s.Op == Overlay:
		e.overlay(f.conf, s.Conf, "", f.units.Depth)
	default:
		e.clear("")
		clear(f.conf)
		e.fill(f.conf, s.Conf, "", f.units.Depth)
	}
	f.added++
	e.Used = true
	slices.Sort(e.Set)
	slices.Sort(e.Lost)
	slices.Sort(e.Displaced)
	return e.Effect
}

// effect is an Effect under construction.
type effect struct {
	Effect
	fold   *Fold
	origin resource.Key
}

// fill adds to dst what it lacks of src: objects merge member by member,
// scalars and lists are taken unchanged from the first source that has them.
func (e *effect) fill(dst, src Tree, p Pointer, depth int) {
	for name, v := range src {
		at := p.Field(name)
		have, present := dst[name]
		if !present {
			e.put(dst, name, v, at, depth)
			continue
		}
		mine, theirs, both := bothObjects(have, v, depth)
		switch {
		case both:
			e.prepare(mine, theirs, at)
			e.fill(mine, theirs, at, deeper(depth))
		default:
			e.lose(v, at, depth)
		}
	}
}

// overlay sets in dst every field of src.
func (e *effect) overlay(dst, src Tree, p Pointer, depth int) {
	for name, v := range src {
		at := p.Field(name)
		have, present := dst[name]
		if !present {
			e.put(dst, name, v, at, depth)
			continue
		}
		mine, theirs, both := bothObjects(have, v, depth)
		switch {
		case both:
			e.prepare(mine, theirs, at)
			e.overlay(mine, theirs, at, deeper(depth))
		default:
			e.clear(at)
			e.put(dst, name, v, at, depth)
		}
	}
}

// bothObjects returns two values as objects whose members merge.
func bothObjects(a, b any, depth int) (Tree, Tree, bool) {
	x, okX := objectAt(a, depth)
	y, okY := objectAt(b, depth)
	return x, y, okX && okY
}

// prepare readies an object to take members: an empty object is a leaf of its
// own, which ends when it is filled.
func (e *effect) prepare(mine, theirs Tree, at Pointer) {
	if len(mine) == 0 && len(theirs) > 0 {
		delete(e.fold.fields, at)
	}
}

// put gives dst a member it did not have.
func (e *effect) put(dst Tree, name string, v any, at Pointer, depth int) {
	dst[name] = clone(v, depth)
	e.each(v, at, depth, func(leaf Pointer) {
		e.fold.fields[leaf] = e.origin
		e.Set = append(e.Set, leaf)
	})
}

// lose records that the leaves of v did not get in.
func (e *effect) lose(v any, at Pointer, depth int) {
	e.each(v, at, depth, func(leaf Pointer) { e.Lost = append(e.Lost, leaf) })
}

// clear forgets the fields at and below a pointer.
func (e *effect) clear(at Pointer) {
	for leaf := range e.fold.fields {
		if at.Covers(leaf) {
			e.Displaced = append(e.Displaced, leaf)
		}
	}
	maps.DeleteFunc(e.fold.fields, func(leaf Pointer, _ resource.Key) bool { return at.Covers(leaf) })
}

// each calls do with every leaf of the value at a pointer.
func (e *effect) each(v any, at Pointer, depth int, do func(Pointer)) {
	object, ok := objectAt(v, depth)
	if !ok || len(object) == 0 {
		do(at)
		return
	}
	for name, member := range object {
		e.each(member, at.Field(name), deeper(depth), do)
	}
}
