package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/rollout"
	"meridian/internal/store"
	"meridian/test/history"
)

const (
	// maxRollouts bounds the rollouts that clients have at a time, so that most keys can
	// be written.
	maxRollouts = 2
	// keptRollouts are the finished ones that are kept: every observer reads them again
	// at every revision.
	keptRollouts = 1
	// firstController is the number of a client that is the controller of server 0.
	firstController = 100
)

// rolloutsOf are the stored rollouts that are not over, and those that are, oldest first.
func rolloutsOf(v *store.View) (open, over []*resource.Resource) {
	for r := range v.List(resource.KindRollout, "") {
		if spec, ok := rollout.SpecOf(r); ok && spec.Status.Phase.Finished() {
			over = append(over, r)
		} else {
			open = append(open, r)
		}
	}
	slices.SortFunc(over, func(a, b *resource.Resource) int { return cmp.Compare(a.Meta().Revision, b.Meta().Revision) })
	return open, over
}

// rolloutState is a stored rollout as it is checked.
func rolloutState(r *resource.Resource) history.RolloutState {
	spec, ok := rollout.SpecOf(r)
	if !ok {
		return history.RolloutState{Name: r.Key().Name}
	}
	out := history.RolloutState{
		Name: r.Key().Name, Stage: int(spec.Status.Stage), Stages: len(spec.Stages), All: spec.Status.All,
		Completed: spec.Status.Phase == resource.RolloutCompleted, Aborted: spec.Status.Phase == resource.RolloutAborted,
	}
	for _, zone := range spec.Status.Zones {
		out.Zones = append(out.Zones, string(zone))
	}
	for i := range spec.Changes {
		change := history.RolloutChange{Key: spec.Changes[i].Key(), Replaces: spec.Changes[i].Replaces}
		if put := spec.Changes[i].Put; put != nil {
			change.Value = stateOf(put.Resource()).Value
		}
		out.Changes = append(out.Changes, change)
	}
	return out
}

// shownOf is what the zones show of a state that have the change of a rollout, taken once
// per state, which every server comes to. It is made from the stored rollouts, apart from how the product does it: a zone shows, in the place
// of the version that is replaced, the next one, written when the rollout was begun, under
// the revision at which it was written last.
func (w *world) shownOf(v *store.View) map[string]history.Shown {
	open, _ := rolloutsOf(v)
	if len(open) == 0 {
		return nil
	}
	of := state{v.Epoch(), v.Changed(), v.DigestOf(nil)}
	if known, ok := w.shown.Load(of); ok {
		return known.(map[string]history.Shown) //nolint:forcetypeassert // nothing else is stored
	}
	zones := map[string]bool{}
	for _, r := range open {
		for _, zone := range rolloutState(r).Zones {
			zones[zone] = true
		}
	}
	out := map[string]history.Shown{}
	for zone := range zones {
		out[zone] = shownIn(zone, v, open)
	}
	w.shown.Store(of, out)
	return out
}

// state identifies a state of the global.
type state struct {
	epoch   store.Epoch
	changed resource.Revision
	sum     store.Digest
}

func shownIn(zone string, v *store.View, open []*resource.Resource) history.Shown {
	state := map[resource.Key]*resource.Resource{}
	for r := range v.All() {
		state[r.Key()] = r
	}
	var shown history.Shown
	for _, r := range open {
		if s := rolloutState(r); !s.All && !slices.Contains(s.Zones, zone) {
			continue
		}
		spec, _ := rollout.SpecOf(r)
		for i := range spec.Changes {
			c := &spec.Changes[i]
			if c.Put == nil {
				delete(state, c.Key())
				shown.Hidden = append(shown.Hidden, c.Key())
				continue
			}
			created := r.Meta().CreationTime
			if before := state[c.Key()]; before != nil {
				created = before.Meta().CreationTime
			}
			state[c.Key()] = c.Put.Resource().WithMeta(resource.Meta{
				Key: c.Key(), Version: c.Replaces + 1, Revision: r.Meta().Revision, CreationTime: created, ModificationTime: r.Meta().CreationTime,
			})
		}
	}
	sorted := make([]*resource.Resource, 0, len(state))
	for _, r := range state {
		sorted = append(sorted, r)
	}
	slices.SortFunc(sorted, func(a, b *resource.Resource) int { return a.Key().Compare(b.Key()) })
	shown.Synced = history.ImageOf(slices.Values(sorted), synced)
	return shown
}

// showsWhat says whether a zone shows what it is to show of a state of the global.
func (w *world) showsWhat(zone string, shows, global *store.View) bool {
	if in, ok := w.shownOf(global)[zone]; ok {
		return history.ImageOf(shows.All(), synced) == in.Synced
	}
	return shows.DigestOf(nil) == global.DigestOf(synced)
}

// enabledZones are the zones that may connect.
func (w *world) enabledZones() []resource.ZoneName {
	var names []resource.ZoneName
	for _, z := range w.followers() {
		names = append(names, resource.ZoneName(z.name))
	}
	slices.Sort(names)
	return names
}

// rollOut begins a rollout, or promotes or aborts one.
func (c *client) rollOut(ctx context.Context) {
	p := c.pick()
	if p == nil {
		c.at = nil
		return
	}
	v := p.store.View()
	open, _ := rolloutsOf(v)
	var txn store.Txn
	var what string
	var err error
	switch n := c.rng.IntN(4); {
	case len(open) > 0 && (n > 0 || len(open) == maxRollouts):
		stored := open[c.rng.IntN(len(open))]
		var next *resource.Resource
		if n == 1 {
			what = "abort " + stored.Key().Name
			next, err = rollout.Abort(stored, p.now(), "an operator")
		} else {
			what = "promote " + stored.Key().Name
			next, err = rollout.Promote(stored, c.w.enabledZones(), p.now(), "an operator")
		}
		if err == nil {
			txn = rollout.Txn(stored, next, p.now())
		}
	default:
		c.next++
		name := fmt.Sprintf("r-%d-%d", c.id, c.next)
		what = "begin " + name
		txn, err = c.beginning(name, v, p.now())
	}
	if err != nil {
		c.w.violate("rollout", "%s: %v", what, err)
		return
	}
	if len(txn.Ops) == 0 {
		return
	}
	c.next++
	p.proposeRollout(ctx, c.id, fmt.Sprintf("c%d-%d", c.id, c.next), what, txn, c.w.plan.times(time.Duration(1+c.rng.IntN(8))*time.Second))
}

// beginning is the transaction that begins a rollout of a few keys as they are in a view,
// as the product makes it.
func (c *client) beginning(name string, v *store.View, now time.Time) (store.Txn, error) {
	if _, ok := v.Get(meshKey); !ok {
		return store.Txn{}, nil
	}
	zones := c.w.enabledZones()
	begin := rollout.Begin{
		Name: name, Author: "an operator", Manual: c.rng.IntN(3) == 0, Interval: c.w.plan.times(time.Duration(c.rng.IntN(3)) * 2 * time.Second),
		Stages: []resource.RolloutStage{{Zones: []string{string(zones[c.rng.IntN(len(zones))])}}},
	}
	if half := uint32(50); c.rng.IntN(2) == 0 {
		begin.Stages = append(begin.Stages, resource.RolloutStage{Percent: &half})
	}
	begin.Stages = append(begin.Stages, resource.RolloutStage{All: true})
	txn := store.Txn{Time: now, Preconditions: []store.Precondition{{Key: rollout.Key(name)}}}
	first, count := c.rng.IntN(dataKeys), 1+c.rng.IntN(3)
	for i := range count {
		key := dataKey((first + i) % dataKeys)
		change := resource.RolloutChange{}
		stored, there := v.Get(key)
		if there {
			change.Replaces = stored.Meta().Version
		}
		if there && c.rng.IntN(3) == 0 {
			change.Delete = &resource.RolloutKey{Type: key.Kind, Mesh: key.Mesh, Name: key.Name}
		} else {
			made, _, err := resource.Build(resource.Meta{Key: key}, content(key, fmt.Sprintf("%s-%d", name, i)).Canonical())
			if err != nil {
				return txn, fmt.Errorf("%s: %w", key, err)
			}
			change.Put = resource.NewRolloutDocument(made)
		}
		begin.Changes = append(begin.Changes, change)
		txn.Preconditions = append(txn.Preconditions, store.Precondition{Key: key, Version: change.Replaces})
	}
	r, err := rollout.New(begin, zones, now)
	if err != nil {
		return txn, fmt.Errorf("rollout %s: %w", name, err)
	}
	txn.Ops = []store.Op{store.Put(r)}
	return txn, nil
}

// proposeRollout makes one attempt at writing a rollout, under an id of its own.
func (p *process) proposeRollout(ctx context.Context, client int, id, what string, txn store.Txn, limit time.Duration) {
	w := p.s.w
	txn.RequestID = id
	txn.Ops = append([]store.Op{store.Put(content(markerKey(client), id))}, txn.Ops...)
	record := w.rec.Call(history.Op{Client: client, Kind: history.Rollout, Request: id, Value: what})
	server, result, err := p.propose(ctx, txn, limit)
	var conflict *store.ConflictError
	if errors.As(err, &conflict) && conflict.Key.Kind != resource.KindRollout && txn.Preconditions[0].Version > 0 {
		w.violate("rollout", "%s: what is held was written: %v", what, err)
	}
	w.rec.Return(record, func(op *history.Op) {
		op.Server, op.Outcome, op.Revision = server, history.Done, result.Revision
		if err != nil {
			op.Outcome, op.Err = history.Unknown, err.Error()
			if surelyNothing(err) || conflict != nil {
				op.Outcome = history.Refused
			}
		}
	})
}

// now is the time by the clock of the server.
func (p *process) now() time.Time {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return time.Now().Add(p.s.skew)
}

// carryOn carries rollouts on, as the controller of the product does, while the server
// leads, as far as it knows.
func (p *process) carryOn() {
	number, err := strconv.Atoi(strings.TrimPrefix(p.s.name, "g"))
	if err != nil {
		p.s.w.violate("rollout", "server %s has no number: %v", p.s.name, err)
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for written := 0; ; {
		select {
		case <-tick.C:
		case <-p.ctx.Done():
			return
		}
		if !p.node.IsLeader() {
			continue
		}
		for _, step := range p.steps() {
			written++
			client := firstController + number
			p.proposeRollout(p.ctx, client, fmt.Sprintf("c%d-%d-%d", client, p.boot, written), step.what, step.txn, p.s.w.plan.times(5*time.Second))
		}
	}
}

// rolloutStep is something to do about a rollout.
type rolloutStep struct {
	what string
	txn  store.Txn
}

// steps are what is to be done about the rollouts that a server holds.
func (p *process) steps() []rolloutStep {
	v := p.store.View()
	open, over := rolloutsOf(v)
	var steps []rolloutStep
	for _, r := range append(open, over...) { // of those that are over nothing comes
		step, err := rollout.Decide(r, p.observation(r, v.Epoch()), func(*rollout.Zone) rollout.Verdict { return rollout.Verdict{} })
		switch {
		case err != nil:
			p.s.w.violate("rollout", "%s cannot be carried on: %v", r.Key(), err)
		case step.Next != nil:
			steps = append(steps, rolloutStep{"carry on " + r.Key().Name, rollout.Txn(r, step.Next, p.now())})
		}
	}
	for _, r := range over[:max(0, len(over)-keptRollouts)] {
		m := r.Meta()
		steps = append(steps, rolloutStep{"remove " + m.Name, store.Txn{
			Time: p.now(), Ops: []store.Op{store.Delete(m.Key)},
			Preconditions: []store.Precondition{{Key: m.Key, Version: m.Version, Revision: m.Revision}},
		}})
	}
	return steps
}

// observation is what the servers know of the zones with regard to a rollout.
func (p *process) observation(r *resource.Resource, epoch store.Epoch) rollout.Observation {
	o := rollout.Observation{Now: p.now()}
	at := map[resource.ZoneName]*rollout.Zone{}
	for _, name := range p.s.w.enabledZones() {
		o.Zones = append(o.Zones, rollout.Zone{Name: name, Applied: true})
	}
	for i := range o.Zones {
		at[o.Zones[i].Name] = &o.Zones[i]
	}
	for _, s := range p.s.w.members() {
		other := s.process()
		if other == nil {
			continue
		}
		for _, in := range other.zones.Report().Instances {
			if zone := at[in.Zone]; zone != nil && in.Connected {
				zone.Health.Connected = true
				zone.Applied = zone.Applied && in.Epoch == epoch && in.Revision >= r.Meta().Revision
			}
		}
	}
	return o
}

// TestRolloutsOutliveLeaders: a rollout whose leader dies in each of its stages reaches
// the zones stage by stage, and is completed.
func TestRolloutsOutliveLeaders(t *testing.T) {
	scenario(t, plan{servers: 3, zones: 2, slower: 1}, func(t *testing.T, w *world) {
		key := dataKey(0)
		_, err := w.probe(w.ctx, time.Minute, store.Put(content(key, "before")))
		require.NoError(t, err)
		made, _, err := resource.Build(resource.Meta{Key: key}, content(key, "after").Canonical())
		require.NoError(t, err)
		r, err := rollout.New(rollout.Begin{
			Name: "canary", Stages: []resource.RolloutStage{{Zones: []string{"z1"}}, {Zones: []string{"z2"}}, {All: true}}, Interval: 3 * time.Second,
			Changes: []resource.RolloutChange{{Put: resource.NewRolloutDocument(made), Replaces: 1}},
		}, w.enabledZones(), time.Now())
		require.NoError(t, err)
		_, err = w.probe(w.ctx, time.Minute, store.Put(r))
		require.NoError(t, err)
		for stage := 1; stage <= 3; stage++ {
			leader, _ := w.roles(t)
			require.True(t, w.await(2*time.Minute, func() bool {
				stored, ok := leader.process().store.View().Get(r.Key())
				return ok && rolloutState(stored).Stage == stage
			}), "stage %d does not begin", stage)
			leader.crash(false)
			require.True(t, w.await(time.Minute, func() bool { return w.voters() != nil }), "no other server leads")
			leader.start()
			require.True(t, w.await(time.Minute, leader.up), "%s is not back", leader)
		}
		require.True(t, w.await(2*time.Minute, func() bool {
			leader, _ := w.roles(t)
			stored, ok := leader.process().store.View().Get(key)
			return ok && stateOf(stored).Value == "after"
		}), "it is not completed")
	})
}
