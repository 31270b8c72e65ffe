package rollout

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/rollout/overlay"
	"meridian/internal/store"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func timeouts(t require.TestingT, names ...string) []resource.RolloutChange {
	var out []resource.RolloutChange
	for _, name := range names {
		r := resourcetest.Build(t, resource.KindNamespace, "", name, "{}")
		out = append(out, resource.RolloutChange{Put: resource.NewRolloutDocument(r)})
	}
	return out
}

// started begins a rollout and stores it, as version 1.
func started(t require.TestingT, stages string, b Begin, zones ...resource.ZoneName) *resource.Resource {
	var err error
	b.Name = "r"
	b.Stages, err = ParseStages(stages)
	require.NoError(t, err)
	if b.Changes == nil {
		b.Changes = timeouts(t, "web")
	}
	r, err := New(b, zones, epoch)
	require.NoError(t, err)
	return stored(r, 1)
}

func stored(r *resource.Resource, version uint64) *resource.Resource {
	m := r.Meta()
	m.Version, m.Revision = version, resource.Revision(10*version)
	return r.WithMeta(m)
}

func status(r *resource.Resource) *resource.RolloutStatus {
	return &r.Spec().(*resource.Rollout).Status
}

// having is an observation in which these zones are connected and have the rollout.
func having(at time.Duration, names ...resource.ZoneName) Observation {
	o := Observation{Now: epoch.Add(at)}
	for _, name := range names {
		o.Zones = append(o.Zones, Zone{Name: name, Applied: true, Health: Health{Connected: true, State: "in-sync"}})
	}
	return o
}

func decide(t require.TestingT, r *resource.Resource, o Observation) Step {
	step, err := Decide(r, o, func(*Zone) Verdict { return Verdict{} })
	require.NoError(t, err)
	return step
}

func TestARolloutGoesThroughItsStages(t *testing.T) {
	zones := []resource.ZoneName{"a", "b", "c", "canary"}
	r := started(t, "zones=canary,then=50%,then=all", Begin{Interval: 5 * time.Minute, Author: "ann"}, zones...)
	require.Equal(t, []resource.ZoneName{"canary"}, status(r).Zones)

	o := having(time.Second, zones...)
	o.Zones[3].Applied = false
	require.Equal(t, "zone canary", decide(t, r, o).Waiting)
	o.Zones[3].Refuses = "unknown kind"
	require.Equal(t, "zone canary (unknown kind)", decide(t, r, o).Waiting)

	r = stored(decide(t, r, having(2*time.Second, zones...)).Next, 2)
	require.Equal(t, epoch.Add(2*time.Second), status(r).SettledSince())
	require.Equal(t, uint32(1), status(r).Stage)
	require.Contains(t, decide(t, r, having(5*time.Minute, zones...)).Waiting, "the interval, until 2026-01-02T03:09:07Z")

	r = stored(decide(t, r, having(5*time.Minute+2*time.Second, zones...)).Next, 3)
	require.Equal(t, uint32(2), status(r).Stage)
	require.Len(t, status(r).Zones, 2)
	require.Contains(t, status(r).Zones, resource.ZoneName("canary"))
	require.True(t, status(r).SettledSince().IsZero())

	// A zone is added: the share is one of more zones now, and begins to settle again.
	r = stored(decide(t, r, having(6*time.Minute, zones...)).Next, 4)
	more := append([]resource.ZoneName{"a0"}, zones...)
	before := status(r).Zones
	r = stored(decide(t, r, having(7*time.Minute, more...)).Next, 5)
	require.Len(t, status(r).Zones, 3)
	require.Subset(t, status(r).Zones, before)
	require.True(t, status(r).SettledSince().IsZero())

	r = stored(decide(t, r, having(8*time.Minute, more...)).Next, 6)
	r = stored(decide(t, r, having(13*time.Minute, more...)).Next, 7)
	require.True(t, status(r).All)
	require.Equal(t, uint32(3), status(r).Stage)
	r = stored(decide(t, r, having(14*time.Minute, more...)).Next, 8)
	next := decide(t, r, having(19*time.Minute, more...)).Next
	require.Equal(t, resource.RolloutCompleted, status(next).Phase)
	require.Empty(t, status(next).Zones)
	require.Equal(t, "ann", status(next).Author)

	txn := Txn(r, next, epoch)
	require.Len(t, txn.Ops, 2, "the change and the end of the rollout are one batch")
	require.Equal(t, store.Precondition{Key: Key("r"), Version: 8, Revision: 80}, txn.Preconditions[0])
	require.Equal(t, uint64(0), txn.Preconditions[1].Version)
	require.Len(t, Txn(started(t, "zones=all", Begin{}, "a"), r, epoch).Ops, 1)
	require.Nil(t, decide(t, stored(next, 9), having(time.Hour, more...)).Next)
}

func TestWhatAStageWaitsFor(t *testing.T) {
	r := started(t, "zones=a,b,then=all", Begin{}, "a", "b", "c")
	o := having(0, "a", "b", "c")
	o.Zones[1].Health.Connected, o.Zones[1].Applied = false, false
	require.Equal(t, uint32(2), status(decide(t, r, o).Next).Stage, "a zone that is away is not waited for")

	o.Unknown = "server g2"
	require.Equal(t, "server g2", decide(t, r, o).Waiting, "it may be connected to a server that does not answer")
	o.Unknown = ""
	o.Zones[0].Health.Connected = false
	require.Equal(t, "a zone of this stage to connect", decide(t, r, o).Waiting)

	manual := started(t, "zones=a,then=all", Begin{Manual: true}, "a", "b")
	require.Contains(t, decide(t, manual, having(0, "a", "b")).Waiting, "rollout promote")
	none := started(t, "zones=all", Begin{})
	require.Equal(t, resource.RolloutCompleted, status(decide(t, none, having(0)).Next).Phase)
}

func TestARolloutHalts(t *testing.T) {
	r := started(t, "zones=a,then=all", Begin{HaltOn: "x"}, "a", "b")
	halts := func(of resource.ZoneName) func(*Zone) Verdict {
		return func(z *Zone) Verdict {
			if z.Name == of {
				return Verdict{Halts: "because of " + string(z.Name)}
			}
			return Verdict{}
		}
	}
	step, err := Decide(r, having(0, "a", "b"), halts("b"))
	require.NoError(t, err)
	require.Equal(t, resource.RolloutProgressing, status(step.Next).Phase, "b has nothing of the change")
	step, err = Decide(r, having(time.Minute, "a", "b"), halts("a"))
	require.NoError(t, err)
	halted := stored(step.Next, 2)
	require.Equal(t, resource.RolloutHalted, status(halted).Phase)
	require.Equal(t, "because of a", status(halted).Reason)
	require.Equal(t, []resource.ZoneName{"a"}, status(halted).Zones, "they keep it")
	require.Nil(t, decide(t, halted, having(time.Hour, "a", "b", "c")).Next)

	next, err := Promote(halted, []resource.ZoneName{"a", "b"}, epoch, "ann")
	require.NoError(t, err)
	require.Equal(t, resource.RolloutProgressing, status(next).Phase)
	require.Equal(t, uint32(2), status(next).Stage)
	next, err = Promote(stored(next, 3), []resource.ZoneName{"a", "b"}, epoch, "ann")
	require.NoError(t, err)
	require.Equal(t, resource.RolloutCompleted, status(next).Phase)

	next, err = Abort(halted, epoch, "ann")
	require.NoError(t, err)
	require.Equal(t, resource.RolloutAborted, status(next).Phase)
	require.Empty(t, status(next).Zones)
	_, err = Abort(next, epoch, "ann")
	require.ErrorIs(t, err, ErrFinished)
	_, err = Promote(next, nil, epoch, "ann")
	require.ErrorIs(t, err, ErrFinished)
}

func TestWhatCannotBegin(t *testing.T) {
	stages, err := ParseStages("zones=cnary,then=all")
	require.NoError(t, err)
	_, err = New(Begin{Name: "r", Stages: stages, Changes: timeouts(t, "a")}, []resource.ZoneName{"canary"}, epoch)
	require.ErrorContains(t, err, "no zone that may connect is called cnary")
	stages, err = ParseStages("zones=10%,then=all")
	require.NoError(t, err)
	_, err = New(Begin{Name: "r", Stages: stages, Changes: timeouts(t, "a")}, nil, epoch)
	require.ErrorContains(t, err, "the first stage has no zone")
	_, err = New(Begin{Name: "R!", Stages: stages, Changes: timeouts(t, "a")}, []resource.ZoneName{"canary"}, epoch)
	require.ErrorContains(t, err, "cannot hold")
	_, err = New(Begin{Name: "r", Stages: stages, Changes: timeouts(t, "a"), Interval: 1000 * time.Hour}, []resource.ZoneName{"canary"}, epoch)
	require.ErrorContains(t, err, "720h")
}

// Whatever zones come, go and say, and whichever server decides: stages begin in order,
// each once, no zone loses the change, and completion comes after the last stage.
func TestStagesAreNeitherSkippedNorRepeated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zones := []resource.ZoneName{"z0", "z1", "z2"}
		stages := rapid.SampledFrom([]string{"zones=z1,then=40%,then=z0*,then=all", "zones=1%,then=50%,then=100%,then=all", "zones=all"}).Draw(t, "stages")
		r := started(t, stages, Begin{Interval: time.Duration(rapid.IntRange(0, 2).Draw(t, "interval")) * time.Minute}, zones...)
		now := time.Duration(0)
		for i := range 60 {
			if rapid.IntRange(0, 9).Draw(t, "zone") == 0 {
				zones = append(zones, resource.ZoneName(fmt.Sprintf("z%d", len(zones))))
			}
			now += time.Duration(rapid.IntRange(0, 90).Draw(t, "seconds")) * time.Second
			o := having(now, zones...)
			for j := range o.Zones {
				o.Zones[j].Applied = rapid.IntRange(0, 4).Draw(t, "applied") > 0
				o.Zones[j].Health.Connected = rapid.IntRange(0, 4).Draw(t, "connected") > 0
			}
			before := status(r)
			step := decide(t, r, o)
			require.Equal(t, step, decide(t, r, o), "two servers decide alike")
			if step.Next == nil {
				require.NotEmpty(t, step.Waiting)
				continue
			}
			after := status(step.Next)
			if after.Phase == resource.RolloutCompleted {
				require.True(t, before.All)
				return
			}
			require.Contains(t, []uint32{before.Stage, before.Stage + 1}, after.Stage)
			require.Subset(t, after.Zones, before.Zones)
			require.True(t, slices.IsSorted(after.Zones))
			if after.Stage > before.Stage && status(r).Settled == "" {
				require.Zero(t, r.Spec().(*resource.Rollout).Interval.Value())
			}
			r = stored(step.Next, uint64(i)+2)
		}
	})
}

// A share adds zones in an order of its own: a further zone moves none out of its stage,
// and a larger share has the zones of a smaller one.
func TestSharesOfZones(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var zones []resource.ZoneName
		for i := range rapid.IntRange(1, 40).Draw(t, "zones") {
			zones = append(zones, resource.ZoneName(fmt.Sprintf("z%d", i)))
		}
		percent := uint32(rapid.IntRange(1, 100).Draw(t, "percent"))
		stage := &resource.RolloutStage{Percent: &percent}
		chosen := choose("r", stage, zones, nil)
		require.Len(t, chosen, (len(zones)*int(percent)+99)/100)
		larger := uint32(rapid.IntRange(int(percent), 100).Draw(t, "larger"))
		require.Subset(t, choose("r", &resource.RolloutStage{Percent: &larger}, zones, nil), chosen)
		require.Subset(t, choose("r", stage, append(slices.Clone(zones), "new"), chosen), chosen)
		have := zones[rapid.IntRange(0, len(zones)-1).Draw(t, "have")]
		require.Len(t, choose("r", stage, zones, []resource.ZoneName{have}), len(chosen), "the share has the zones of the stages before")
	})
}

func TestOldRolloutsAreRemoved(t *testing.T) {
	var all []*resource.Resource
	for i := range KeptFinished + 3 {
		r := started(t, "zones=all", Begin{}, "a")
		next, err := Abort(r, epoch, "ann")
		require.NoError(t, err)
		all = append(all, stored(next, uint64(100-i)))
	}
	all = append(all, started(t, "zones=all", Begin{}, "a"))
	surplus := Surplus(all)
	require.Len(t, surplus, 3)
	require.Equal(t, all[KeptFinished+2], surplus[0])
}

// TestCompletionWritesWhatZonesShow: what completes a rollout is stored as zones of its
// stages show it, times and versions included, whenever that is.
func TestCompletionWritesWhatZonesShow(t *testing.T) {
	s := store.New(store.DefaultOptions())
	ns := func(name, labels string) *resource.Resource {
		r := resourcetest.Build(t, resource.KindNamespace, "", name, "{}")
		m := r.Meta()
		m.Labels = map[string]string{"team": labels}
		return r.WithMeta(m)
	}
	require.NoError(t, s.Apply(1, store.Txn{Time: epoch, Ops: []store.Op{store.Put(ns("old", "a")), store.Put(ns("gone", "a"))}}).Err)
	r := started(t, "zones=east,then=all", Begin{Changes: []resource.RolloutChange{
		{Put: resource.NewRolloutDocument(ns("old", "b")), Replaces: 1},
		{Put: resource.NewRolloutDocument(ns("new", "b"))},
		{Delete: &resource.RolloutKey{Type: resource.KindNamespace, Name: "gone"}, Replaces: 1},
	}}, "east", "west")
	require.NoError(t, s.Apply(2, store.Txn{Time: epoch.Add(time.Hour), Ops: []store.Op{store.Put(r)}}).Err)
	r, _ = s.View().Get(r.Key())
	shown := overlay.Of("east", slices.Values([]*resource.Resource{r}), func(key resource.Key) overlay.Base {
		if r, ok := s.View().Get(key); ok {
			return overlay.Base{Version: r.Meta().Version, Created: r.Meta().CreationTime}
		}
		return overlay.Base{}
	}, nil)
	next, err := Promote(r, []resource.ZoneName{"east", "west"}, epoch.Add(2*time.Hour), "me")
	require.NoError(t, err)
	require.NoError(t, s.Apply(3, Txn(r, next, epoch.Add(2*time.Hour))).Err)
	r, _ = s.View().Get(r.Key())
	next, err = Promote(r, []resource.ZoneName{"east", "west"}, epoch.Add(3*time.Hour), "me")
	require.NoError(t, err)
	require.NoError(t, s.Apply(4, Txn(r, next, epoch.Add(3*time.Hour))).Err)
	keys := 0
	for key, want := range shown.All() {
		keys++
		got, there := s.View().Get(key)
		require.Equal(t, want != nil, there, key)
		if there {
			m, n := want.Meta(), got.Meta()
			m.Revision, m.Rollout, n.Revision = 0, "", 0
			require.Equal(t, m, n)
			require.Equal(t, want.Hash(), got.Hash())
		}
	}
	require.Equal(t, 3, keys)
}

// While what the condition is about is not known of a zone that has the change, no stage
// ends, and what is waited for names the zone. That it halts for another zone goes first.
func TestNoStageEndsOnWhatIsUnknown(t *testing.T) {
	const text = "zone.proxiesRejected > 0"
	conditions, err := NewConditions()
	require.NoError(t, err)
	halts := func(z *Zone) Verdict { return conditions.Halts(t.Context(), text, z) }
	r := started(t, "zones=a,b,then=all", Begin{HaltOn: text, Interval: time.Minute}, "a", "b", "c")
	o := having(0, "a", "b", "c")
	o.Zones[2].Health.ProxiesUnknown = "not asked" // it does not have the change
	step, err := Decide(r, o, halts)
	require.NoError(t, err)
	r = stored(step.Next, 2)
	require.False(t, status(r).SettledSince().IsZero())

	o = having(time.Hour, "a", "b", "c")
	o.Zones[1].Health.ProxiesUnknown = "connected, without an answer in time"
	step, err = Decide(r, o, halts)
	require.NoError(t, err)
	require.Nil(t, step.Next)
	require.Equal(t, "what the condition is about: the proxies of zone b (connected, without an answer in time)", step.Waiting)
	o.Zones[0].Health.ProxiesRejected = 1
	step, err = Decide(r, o, halts)
	require.NoError(t, err)
	require.Equal(t, resource.RolloutHalted, status(step.Next).Phase)
	step, err = Decide(r, having(time.Hour, "a", "b", "c"), halts)
	require.NoError(t, err)
	require.EqualValues(t, 2, status(step.Next).Stage)
}
