package rollout

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"meridian/internal/doctree"
	"meridian/internal/resource"
	"meridian/internal/rollout/overlay"
	"meridian/internal/store"
)

// MaxUnfinished bounds the rollouts that are not finished, and KeptFinished those that
// are: the newest are kept.
const (
	MaxUnfinished = store.MaxRollouts
	KeptFinished  = 32
)

// Zone is what is known of an enabled zone.
type Zone struct {
	Name resource.ZoneName
	// Applied: every connected instance has applied the Rollout as it is stored, and
	// persisted it.
	Applied bool
	// Refuses is why the zone cannot have the change; empty where nothing is known to
	// prevent it.
	Refuses string
	Health  Health
}

// Observation is what is known of the zones at one time.
type Observation struct {
	// Zones are the enabled zones, by name.
	Zones []Zone
	// Unknown is why zones may be connected that Zones has as not connected; empty where
	// all is known. No stage ends meanwhile.
	Unknown string
	Now     time.Time
}

// enabled are the names of the zones that may connect.
func (o *Observation) enabled() []resource.ZoneName {
	names := make([]resource.ZoneName, len(o.Zones))
	for i := range o.Zones {
		names[i] = o.Zones[i].Name
	}
	return names
}

// Begin describes a new rollout: its stages, pauses and conditions.
type Begin struct {
	Name     string
	Stages   []resource.RolloutStage
	Interval time.Duration
	Manual   bool
	HaltOn   string
	// Author is who begins it.
	Author  string
	Changes []resource.RolloutChange
}

// New returns a rollout in its first stage, which the zones of that stage get as soon as
// it is stored. The error is for the author: a stage names a zone that does not exist, or
// the first stage has no zone; a *resource.DocumentError where the rollout is too large.
func New(b Begin, enabled []resource.ZoneName, now time.Time) (*resource.Resource, error) {
	if err := CheckStages(b.Stages); err != nil {
		return nil, err
	}
	for i, stage := range b.Stages {
		for _, zone := range stage.Zones {
			if !slices.ContainsFunc(enabled, func(z resource.ZoneName) bool { return matches(zone, string(z)) }) {
				return nil, fmt.Errorf("stage %d: no zone that may connect is called %s; `meridian zones` lists them", i+1, doctree.Clip(zone))
			}
		}
	}
	spec := &resource.Rollout{Stages: b.Stages, Manual: b.Manual, HaltOn: b.HaltOn, Changes: b.Changes}
	if b.Interval != 0 {
		interval, err := resource.ParseDuration(b.Interval.String())
		if err != nil {
			return nil, fmt.Errorf("the interval: %w", err)
		}
		spec.Interval = interval
	}
	spec.Status = resource.RolloutStatus{Phase: resource.RolloutProgressing, Author: b.Author}
	stage := &spec.Stages[0]
	spec.Status.Zones = choose(b.Name, stage, enabled, nil)
	if len(spec.Status.Zones) == 0 && !stage.All {
		return nil, errors.New("the first stage has no zone: there is none that may connect")
	}
	begin(spec, 1, now)
	return build(b.Name, nil, spec)
}

// begin makes a stage the current one; the zones of it are those in the status.
func begin(spec *resource.Rollout, stage uint32, now time.Time) {
	spec.Status.Phase, spec.Status.Stage = resource.RolloutProgressing, stage
	spec.Status.All = spec.Stages[stage-1].All
	spec.Status.Since, spec.Status.Settled, spec.Status.Reason = stamp(now), "", ""
}

// stamp is a time in a status.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// build returns the resource of a spec.
func build(name string, labels map[string]string, spec *resource.Rollout) (*resource.Resource, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode rollout %s: %w", name, err)
	}
	r, _, err := resource.Build(resource.Meta{Key: Key(name), Labels: labels}, text)
	return r, err
}

// Key is the identity of a rollout.
func Key(name string) resource.Key { return resource.Key{Kind: resource.KindRollout, Name: name} }

// SpecOf returns the spec of a stored rollout; false where this release cannot read it.
func SpecOf(r *resource.Resource) (*resource.Rollout, bool) {
	spec, ok := r.Spec().(*resource.Rollout)
	return spec, ok
}

// Step is what is to be done about a rollout.
type Step struct {
	// Next is the rollout as it is to be stored; nil where nothing is to be done.
	Next *resource.Resource
	// Waiting says what the next stage waits for, where nothing is to be done.
	Waiting string
}

// Decide says what is to be done about a stored rollout. halts is asked of the zones that
// have the change, or are to have it. While it cannot say of one, no stage ends.
//
// The error is that the rollout as it is to be stored cannot be built, such as one that
// would be too large with the names of its zones.
func Decide(r *resource.Resource, o Observation, halts func(*Zone) Verdict) (Step, error) {
	stored, ok := SpecOf(r)
	if !ok || stored.Status.Phase.Finished() {
		return Step{}, nil
	}
	if stored.Status.Phase == resource.RolloutHalted {
		return Step{Waiting: "an operator: `meridian rollout promote` begins the next stage, `meridian rollout abort` ends it"}, nil
	}
	var unknown []string
	for i := range o.Zones {
		zone := &o.Zones[i]
		if !stored.Status.Shows(zone.Name) {
			continue
		}
		verdict := halts(zone)
		if verdict.Halts != "" {
			return change(r, func(spec *resource.Rollout) { halt(spec, o.Now, verdict.Halts) })
		}
		if verdict.Unknown != "" {
			unknown = append(unknown, verdict.Unknown)
		}
	}
	stage := &stored.Stages[stored.Status.Stage-1]
	if !stored.Status.All {
		if zones := choose(r.Key().Name, stage, o.enabled(), stored.Status.Zones); len(zones) > len(stored.Status.Zones) {
			return change(r, func(spec *resource.Rollout) { spec.Status.Zones, spec.Status.Settled = zones, "" })
		}
	}
	if waiting := unsettled(stored, &o); waiting != "" {
		return Step{Waiting: waiting}, nil
	}
	if len(unknown) > 0 {
		return Step{Waiting: "what the condition is about: " + some(unknown)}, nil
	}
	if since := stored.Status.SettledSince(); stored.Interval.Value() > 0 {
		if since.IsZero() {
			return change(r, func(spec *resource.Rollout) { spec.Status.Settled = stamp(o.Now) })
		}
		if until := since.Add(stored.Interval.Value()); o.Now.Before(until) {
			return Step{Waiting: "the interval, until " + until.Format(time.RFC3339)}, nil
		}
	}
	switch {
	case stage.All:
		return change(r, func(spec *resource.Rollout) { complete(spec, o.Now, "") })
	case stored.Manual:
		return Step{Waiting: "an operator: `meridian rollout promote` begins the next stage"}, nil
	}
	return change(r, func(spec *resource.Rollout) { advance(r.Key().Name, spec, o.enabled(), o.Now) })
}

// unsettled says why the current stage cannot end yet; empty where it can. Zones that
// are not connected are not waited for, except that one has to be.
func unsettled(spec *resource.Rollout, o *Observation) string {
	connected, covered := 0, 0
	var late []string
	for i := range o.Zones {
		zone := &o.Zones[i]
		if !spec.Status.Shows(zone.Name) {
			continue
		}
		covered++
		if !zone.Health.Connected {
			continue
		}
		connected++
		switch {
		case zone.Refuses != "":
			late = append(late, fmt.Sprintf("zone %s (%s)", zone.Name, zone.Refuses))
		case !zone.Applied:
			late = append(late, "zone "+string(zone.Name))
		}
	}
	switch {
	case len(late) > 0:
		return some(late)
	case o.Unknown != "":
		return o.Unknown
	case connected == 0 && (covered > 0 || !spec.Status.All):
		return "a zone of this stage to connect"
	}
	return ""
}

// some names the first of several things.
func some(all []string) string {
	const shown = 5
	if len(all) <= shown {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:shown], ", "), len(all)-shown)
}

// change returns the step that stores a rollout with another status.
func change(r *resource.Resource, to func(*resource.Rollout)) (Step, error) {
	stored, _ := SpecOf(r)
	spec := *stored
	spec.Status.Zones = slices.Clone(spec.Status.Zones)
	to(&spec)
	next, err := build(r.Key().Name, r.Meta().Labels, &spec)
	return Step{Next: next}, err
}

func advance(name string, spec *resource.Rollout, enabled []resource.ZoneName, now time.Time) {
	next := spec.Status.Stage + 1
	spec.Status.Zones = choose(name, &spec.Stages[next-1], enabled, spec.Status.Zones)
	begin(spec, next, now)
}

func halt(spec *resource.Rollout, now time.Time, reason string) {
	spec.Status.Phase = resource.RolloutHalted
	spec.Status.Since, spec.Status.Settled, spec.Status.Reason = stamp(now), "", clip(reason)
}

func finish(spec *resource.Rollout, phase resource.RolloutPhase, now time.Time, reason string) {
	spec.Status.Phase, spec.Status.Zones, spec.Status.All = phase, nil, false
	spec.Status.Since, spec.Status.Settled, spec.Status.Reason = stamp(now), "", clip(reason)
}

func complete(spec *resource.Rollout, now time.Time, reason string) {
	finish(spec, resource.RolloutCompleted, now, reason)
}

// ErrFinished means that a rollout has ended: nothing can be done about it.
var ErrFinished = errors.New("the rollout has ended")

// Promote returns the rollout in its next stage, or completed where it is in the last
// one: now, whatever the zones say. Errors: ErrFinished, and as Decide.
func Promote(r *resource.Resource, enabled []resource.ZoneName, now time.Time, by string) (*resource.Resource, error) {
	stored, ok := SpecOf(r)
	if !ok || stored.Status.Phase.Finished() {
		return nil, ErrFinished
	}
	step, err := change(r, func(spec *resource.Rollout) {
		if int(spec.Status.Stage) == len(spec.Stages) {
			complete(spec, now, "promoted by "+by)
			return
		}
		advance(r.Key().Name, spec, enabled, now)
		spec.Status.Reason = clip("promoted by " + by)
	})
	return step.Next, err
}

// Abort returns the rollout aborted. Errors: as Promote.
func Abort(r *resource.Resource, now time.Time, by string) (*resource.Resource, error) {
	stored, ok := SpecOf(r)
	if !ok || stored.Status.Phase.Finished() {
		return nil, ErrFinished
	}
	step, err := change(r, func(spec *resource.Rollout) { finish(spec, resource.RolloutAborted, now, "aborted by "+by) })
	return step.Next, err
}

// GivesMore reports whether the next state of a rollout begins a stage or completes it.
func GivesMore(stored, next *resource.Resource) bool {
	before, ok := SpecOf(stored)
	after, known := SpecOf(next)
	return ok && known && (after.Status.Stage > before.Status.Stage || after.Status.Phase == resource.RolloutCompleted)
}

// Whole is the transaction that would complete a rollout now, in whichever stage it is:
// what its change does. Errors: as Promote.
func Whole(r *resource.Resource, now time.Time) (store.Txn, error) {
	stored, ok := SpecOf(r)
	if !ok || stored.Status.Phase.Finished() {
		return store.Txn{}, ErrFinished
	}
	step, err := change(r, func(spec *resource.Rollout) { complete(spec, now, "") })
	if err != nil {
		return store.Txn{}, err
	}
	return Txn(r, step.Next, now), nil
}

// SkipTests returns a rollout that the tests of some meshes, too, no longer stop. The
// error is that it cannot be built, as of Decide.
func SkipTests(r *resource.Resource, meshes []resource.MeshName) (*resource.Resource, error) {
	step, err := change(r, func(spec *resource.Rollout) {
		all := slices.Concat(spec.Status.SkippedTests, meshes)
		slices.Sort(all)
		spec.Status.SkippedTests = slices.Compact(all)
	})
	return step.Next, err
}

// Halt returns a rollout halted for a reason that only storing it could tell. Errors: as
// Promote.
func Halt(r *resource.Resource, now time.Time, reason string) (*resource.Resource, error) {
	stored, ok := SpecOf(r)
	if !ok || stored.Status.Phase.Finished() {
		return nil, ErrFinished
	}
	step, err := change(r, func(spec *resource.Rollout) { halt(spec, now, reason) })
	return step.Next, err
}

// Txn is the transaction that stores the next state of a rollout, if it is still as it
// was when that was decided. One that completes it has the whole change with it, if what
// is stored of each resource is what it is to replace.
func Txn(stored, next *resource.Resource, now time.Time) store.Txn {
	m := stored.Meta()
	txn := store.Txn{
		Time: now, Ops: []store.Op{store.Put(next)},
		Preconditions: []store.Precondition{{Key: m.Key, Version: m.Version, Revision: m.Revision}},
	}
	spec, _ := SpecOf(next)
	if spec.Status.Phase != resource.RolloutCompleted {
		return txn
	}
	txn.Ops = append(txn.Ops, operations(m, spec)...)
	for i := range spec.Changes {
		c := &spec.Changes[i]
		txn.Preconditions = append(txn.Preconditions, store.Precondition{Key: c.Key(), Version: c.Replaces})
	}
	return txn
}

// operations write the changes of a rollout with the times by which zones show them
// already: the times decide between policies (§3.4), so that nothing changes where the
// rollout was shown.
func operations(rollout resource.Meta, spec *resource.Rollout) []store.Op {
	ops := make([]store.Op, len(spec.Changes))
	for i := range spec.Changes {
		c := &spec.Changes[i]
		after := overlay.After(c, rollout, time.Time{})
		if after == nil {
			ops[i] = store.Delete(c.Key())
			continue
		}
		meta := after.Meta()
		if c.Replaces > 0 {
			meta.CreationTime = time.Time{} // that of the resource stays
		}
		ops[i] = store.Op{Key: c.Key(), Resource: after.WithMeta(meta), KeepTimes: true}
	}
	return ops
}

// Surplus are the finished rollouts that are not kept, oldest first.
func Surplus(all []*resource.Resource) []*resource.Resource {
	var finished []*resource.Resource
	for _, r := range all {
		if spec, ok := SpecOf(r); ok && spec.Status.Phase.Finished() {
			finished = append(finished, r)
		}
	}
	slices.SortFunc(finished, func(a, b *resource.Resource) int {
		return cmp.Compare(a.Meta().Revision, b.Meta().Revision)
	})
	return finished[:max(0, len(finished)-KeptFinished)]
}
