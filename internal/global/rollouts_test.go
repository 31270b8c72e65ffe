package global

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/rollout"
	"meridian/internal/service/admin"
	"meridian/internal/store"
)

// rolloutLog is a log of one store that servers share. It is safe for concurrent use.
type rolloutLog struct {
	store *store.Store

	mu     sync.Mutex
	states []resource.RolloutStatus // of every rollout that was stored, in order
	lost   int                      // so many answers are lost, of writes that are made
	before func()                   // called once, before the next write
}

func (l *rolloutLog) Propose(_ context.Context, txn store.Txn) (store.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.before != nil {
		l.before()
		l.before = nil
	}
	result := l.store.Apply(l.store.Revision()+1, txn)
	for _, op := range txn.Ops {
		if result.Err == nil && !result.Duplicate && op.Key.Kind == resource.KindRollout && op.Resource != nil {
			l.states = append(l.states, op.Resource.Spec().(*resource.Rollout).Status)
		}
	}
	if l.lost > 0 {
		l.lost--
		return store.Result{}, context.DeadlineExceeded
	}
	return result, result.Err
}

func (l *rolloutLog) Read(context.Context) (resource.Revision, error) { return l.store.Revision(), nil }

func (l *rolloutLog) seen() []resource.RolloutStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.states)
}

// rolloutServers are servers that carry rollouts on, of which one leads.
type rolloutServers struct {
	*rolloutLog
	conditions *rollout.Conditions
	ctx        context.Context

	mu     sync.Mutex
	leader int
	zones  []rollout.Zone
}

func (s *rolloutServers) lead(server int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leader = server
}

func (s *rolloutServers) change(to func(zones []rollout.Zone)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zones = slices.Clone(s.zones)
	to(s.zones)
}

func (s *rolloutServers) observe(_ context.Context, all []*resource.Resource) []rollout.Observation {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]rollout.Observation, len(all))
	for i := range all {
		out[i] = rollout.Observation{Zones: slices.Clone(s.zones), Now: time.Now()}
	}
	return out
}

// testsOn runs the tests that meshes carry on a store.
func testsOn(st *store.Store) func(context.Context, *resource.Resource) (admin.RolloutTests, error) {
	return admin.New(admin.Config{
		Preview: admin.PreviewOf(st),
		Stores:  func() []*store.Store { return []*store.Store{st} },
		Now:     time.Now,
	}).TestRollout
}

// startRollouts runs three servers and three zones, z1 to z3, that have all they are sent.
func startRollouts(t *testing.T) *rolloutServers {
	t.Helper()
	conditions, err := rollout.NewConditions()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	s := &rolloutServers{rolloutLog: &rolloutLog{store: store.New(store.DefaultOptions())}, conditions: conditions, ctx: ctx}
	for _, name := range []resource.ZoneName{"z1", "z2", "z3"} {
		s.zones = append(s.zones, rollout.Zone{Name: name, Applied: true, Health: rollout.Health{Connected: true}})
	}
	var running sync.WaitGroup
	for i := range 3 {
		c := &rolloutController{
			store: s.store, log: s.rolloutLog, observe: s.observe, conditions: conditions, tests: testsOn(s.store), now: time.Now, logger: slog.New(slog.DiscardHandler),
			leads: func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.leader == i
			},
		}
		running.Go(func() { _ = c.run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return s
}

// begin stores a rollout that creates the namespace of its name.
func (s *rolloutServers) begin(t *testing.T, name, stages string, b rollout.Begin) {
	t.Helper()
	var err error
	b.Name = name
	b.Stages, err = rollout.ParseStages(stages)
	require.NoError(t, err)
	b.Changes = []resource.RolloutChange{{Put: resource.NewRolloutDocument(resourcetest.Build(t, resource.KindNamespace, "", name, "{}"))}}
	r, err := rollout.New(b, []resource.ZoneName{"z1", "z2", "z3"}, time.Now())
	require.NoError(t, err)
	_, err = s.Propose(t.Context(), store.Txn{Time: time.Now(), Ops: []store.Op{store.Put(r)}})
	require.NoError(t, err)
}

func (s *rolloutServers) has(name string) bool {
	_, ok := s.store.View().Get(resource.Key{Kind: resource.KindNamespace, Name: name})
	return ok
}

func (s *rolloutServers) stages() (out []uint32) {
	for _, st := range s.seen() {
		if len(out) == 0 || out[len(out)-1] != st.Stage {
			out = append(out, st.Stage)
		}
	}
	return out
}

func (s *rolloutServers) last() resource.RolloutStatus {
	all := s.seen()
	return all[len(all)-1]
}

// However often another server leads, and answers are lost, every stage begins once, for
// its time, and the change is written with the end of the rollout.
func TestRolloutsContinueUnderAnotherLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startRollouts(t)
		s.begin(t, "n", "zones=z1,then=z2,then=all", rollout.Begin{Interval: time.Minute})
		began := time.Now()
		s.mu.Lock()
		s.rolloutLog.lost = 3
		s.mu.Unlock()
		for i := 1; s.last().Phase != resource.RolloutCompleted && i < 1000; i++ {
			s.lead(i % 4) // 3: none leads for a while
			<-time.After(1700 * time.Millisecond)
			synctest.Wait() // a step may be due at this instant
			require.Equal(t, s.last().Phase == resource.RolloutCompleted, s.has("n"), "the global has the change when the rollout is completed")
		}
		require.Equal(t, []uint32{1, 2, 3}, s.stages())
		require.Equal(t, resource.RolloutCompleted, s.last().Phase)
		require.GreaterOrEqual(t, time.Since(began), 3*time.Minute)
		require.Less(t, time.Since(began), 4*time.Minute)
		ends := 0
		for _, st := range s.seen() {
			if st.Phase == resource.RolloutCompleted {
				ends++
			}
		}
		require.Equal(t, 1, ends)
	})
}

func TestRolloutsHaltOnTheirCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startRollouts(t)
		s.begin(t, "n", "zones=z1,then=all", rollout.Begin{Interval: time.Minute, HaltOn: "zone.proxiesRejected > 2"})
		<-time.After(10 * time.Second)
		s.change(func(zones []rollout.Zone) { zones[1].Health.ProxiesRejected = 3 })
		<-time.After(10 * time.Second)
		require.Equal(t, resource.RolloutProgressing, s.last().Phase, "z2 does not have the change")
		s.change(func(zones []rollout.Zone) { zones[0].Health.ProxiesRejected = 3 })
		<-time.After(10 * time.Second)
		require.Equal(t, resource.RolloutHalted, s.last().Phase)
		require.Contains(t, s.last().Reason, "zone.proxiesRejected > 2 is true of zone z1")
		require.Equal(t, []resource.ZoneName{"z1"}, s.last().Zones)
		s.change(func(zones []rollout.Zone) { zones[0].Health.ProxiesRejected = 0 })
		<-time.After(time.Hour)
		require.Equal(t, resource.RolloutHalted, s.last().Phase, "only an operator has it continue")
		require.False(t, s.has("n"))
	})
}

// A rollout that cannot be completed halts and says why, and the change is not half there.
func TestARolloutThatCannotBeCompletedHalts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startRollouts(t)
		s.lead(3)
		s.begin(t, "n", "zones=all", rollout.Begin{})
		// Only a restored backup could bring this about: while the rollout is there, n is held.
		r, ok := s.store.View().Get(rollout.Key("n"))
		require.True(t, ok)
		other := store.New(store.DefaultOptions())
		require.NoError(t, other.Apply(1, store.Txn{Ops: []store.Op{store.Put(resourcetest.Build(t, resource.KindNamespace, "", "n", "{}"))}}).Err)
		require.NoError(t, other.Apply(2, store.Txn{Ops: []store.Op{store.Put(r)}}).Err)
		log := &rolloutLog{store: other}
		c := &rolloutController{
			store: other, log: log, observe: s.observe, conditions: s.conditions, tests: testsOn(other), now: time.Now, logger: slog.New(slog.DiscardHandler),
			leads: func() bool { return true },
		}
		c.step(t.Context(), other.View())
		states := log.seen()
		require.Len(t, states, 1)
		require.Equal(t, resource.RolloutHalted, states[0].Phase)
		require.Contains(t, states[0].Reason, "exists already, at version 1")
	})
}

// connectWithin has mesh m carry a test of the timeout that its proxy web has.
func connectWithin(t *testing.T, most string) store.Op {
	t.Helper()
	return store.Put(resourcetest.Build(t, resource.KindMeshTest, "m", "m", `{
		"dataplanes": [{"name": "web", "networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "web"}}], "outbound": [{"port": 9000, "tags": {"kuma.io/service": "api"}}]}}],
		"cases": [{"name": "answers come soon", "dataplane": "web", "kind": "Timeout", "to": "api", "field": "connectTimeout", "expect": "<= `+most+`"}]}`))
}

func connectTimeout(t *testing.T, name, value string) *resource.Resource {
	t.Helper()
	return resourcetest.Build(t, resource.KindTimeout, "m", name, `{"sources": [{"match": {"kuma.io/service": "*"}}], "destinations": [{"match": {"kuma.io/service": "*"}}], "conf": {"connectTimeout": "`+value+`"}}`)
}

// testedRollout begins the rollout of a change to mesh m, which carries a test. The
// controller has one zone, z1, which has applied all that it was sent.
func testedRollout(t *testing.T, stages string, change *resource.Resource, skipped bool) (*rolloutController, *rolloutLog, *bytes.Buffer) {
	t.Helper()
	st := store.New(store.DefaultOptions())
	require.NoError(t, st.Apply(1, store.Txn{Ops: []store.Op{store.Put(resourcetest.Build(t, resource.KindMesh, "", "m", "{}")), connectWithin(t, "30s"), store.Put(connectTimeout(t, "soon", "5s"))}}).Err)
	parsed, err := rollout.ParseStages(stages)
	require.NoError(t, err)
	r, err := rollout.New(rollout.Begin{Name: "r", Stages: parsed, Changes: []resource.RolloutChange{{Put: resource.NewRolloutDocument(change)}}}, []resource.ZoneName{"z1", "z2"}, time.Now())
	require.NoError(t, err)
	if skipped {
		r, err = rollout.SkipTests(r, []resource.MeshName{"m"})
		require.NoError(t, err)
	}
	require.NoError(t, st.Apply(2, store.Txn{Ops: []store.Op{store.Put(r)}, Time: time.Now()}).Err)
	conditions, err := rollout.NewConditions()
	require.NoError(t, err)
	log, logged := &rolloutLog{store: st}, &bytes.Buffer{}
	servers := &rolloutServers{zones: []rollout.Zone{{Name: "z1", Applied: true, Health: rollout.Health{Connected: true}}}}
	return &rolloutController{
		store: st, log: log, observe: servers.observe, conditions: conditions, tests: testsOn(st), now: time.Now, logger: slog.New(slog.NewTextHandler(logged, nil)),
		leads: func() bool { return true },
	}, log, logged
}

// A rollout waits while what its tests depend on changes each time they have run, and
// says so once.
func TestARolloutWaitsForAMeshThatChanges(t *testing.T) {
	change := connectTimeout(t, "late", "20s")
	c, log, logged := testedRollout(t, "zones=all", change, false)
	for i := range 3 {
		log.before = func() {
			other := connectTimeout(t, "other-"+string(rune('a'+i)), "6s")
			require.NoError(t, c.store.Apply(c.store.Revision()+1, store.Txn{Ops: []store.Op{store.Put(other)}}).Err)
		}
		c.step(t.Context(), c.store.View())
	}
	require.Empty(t, log.seen())
	require.Equal(t, 1, strings.Count(logged.String(), "\n"), logged.String())
	require.Contains(t, logged.String(), "changed since the write was decided")
	c.step(t.Context(), c.store.View())
	_, written := c.store.View().Get(change.Key())
	require.True(t, written)
}

// A stage begins, and a rollout is completed, only where the tests that its meshes carry
// pass with the change when that takes effect: it halts otherwise, and names the case.
func TestARolloutThatBreaksTestsHalts(t *testing.T) {
	for name, tt := range map[string]struct {
		stages  string
		strict  func(*rolloutLog, store.Op) // when the tests become strict
		skipped bool
		stage   uint32
	}{
		"before a stage": {"zones=z1,then=all", func(l *rolloutLog, op store.Op) { l.store.Apply(l.store.Revision()+1, store.Txn{Ops: []store.Op{op}}) }, false, 1},
		"before the end": {"zones=all", func(l *rolloutLog, op store.Op) { l.store.Apply(l.store.Revision()+1, store.Txn{Ops: []store.Op{op}}) }, false, 1},
		"as a stage begins": {"zones=z1,then=all", func(l *rolloutLog, op store.Op) {
			l.before = func() { l.store.Apply(l.store.Revision()+1, store.Txn{Ops: []store.Op{op}}) }
		}, false, 1},
		"as it is completed": {"zones=all", func(l *rolloutLog, op store.Op) {
			l.before = func() { l.store.Apply(l.store.Revision()+1, store.Txn{Ops: []store.Op{op}}) }
		}, false, 1},
		"and they are skipped": {"zones=z1,then=all", func(l *rolloutLog, op store.Op) { l.store.Apply(l.store.Revision()+1, store.Txn{Ops: []store.Op{op}}) }, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			slow := connectTimeout(t, "late", "20s")
			c, log, logged := testedRollout(t, tt.stages, slow, tt.skipped)
			tt.strict(log, connectWithin(t, "10s"))
			for range 4 {
				c.step(t.Context(), c.store.View())
			}
			states := log.seen()
			last := states[len(states)-1]
			require.Equal(t, tt.stage, last.Stage)
			_, written := c.store.View().Get(slow.Key())
			require.Equal(t, tt.skipped, written)
			if tt.skipped {
				require.Equal(t, resource.RolloutCompleted, last.Phase)
				return
			}
			require.Len(t, states, 1, "it halts, and nothing else")
			require.Equal(t, resource.RolloutHalted, last.Phase)
			require.Contains(t, last.Reason, `breaks 1 of the 1 tests that mesh m carries; "answers come soon": `)
			require.Contains(t, logged.String(), "a rollout halts")
			require.NotContains(t, logged.String(), "phase=Completed")
		})
	}
}

func TestFinishedRolloutsAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startRollouts(t)
		for i := range rollout.KeptFinished + 5 {
			s.begin(t, "n"+string(rune('a'+i%26))+string(rune('a'+i/26)), "zones=all", rollout.Begin{})
			<-time.After(3 * time.Second)
		}
		<-time.After(3 * time.Second)
		require.Equal(t, rollout.KeptFinished, s.store.View().Count(resource.KindRollout))
		require.False(t, slices.ContainsFunc(slices.Collect(s.store.View().List(resource.KindRollout, "")), func(r *resource.Resource) bool { return r.Key().Name == "naa" }))
		require.True(t, s.has("naa"))
	})
}

// A zone that does not answer, cannot be read or is not connected leaves its proxies
// unknown, and says why.
func TestProxiesOfZonesThatDoNotSay(t *testing.T) {
	o := &rollout.Observation{}
	for _, name := range []resource.ZoneName{"away", "broken", "failing", "fine", "missing", "older"} {
		o.Zones = append(o.Zones, rollout.Zone{Name: name})
	}
	says := func(zone resource.ZoneName, text string) zoneAnswer {
		return zoneAnswer{zone, &meridianv1.InspectResponse{Json: []byte(text)}}
	}
	addProxies(o, replies{
		found:   []zoneAnswer{says("broken", "{"), says("fine", `{"items": [], "behind": {"count": 5, "rejected": 2, "some": []}}`), says("older", `{"items": []}`)},
		missing: map[resource.ZoneName]error{"missing": errors.New("not found")},
		absent:  []answer.Absence{{Zone: "failing", Reason: "cannot answer now"}},
	})
	got := map[resource.ZoneName]rollout.Health{}
	for _, z := range o.Zones {
		got[z.Name] = z.Health
	}
	require.Equal(t, map[resource.ZoneName]rollout.Health{
		"away":    {ProxiesUnknown: "not connected"},
		"broken":  {ProxiesUnknown: "its answer cannot be read: it may be of another release"},
		"failing": {ProxiesUnknown: "cannot answer now"},
		"fine":    {ProxiesRejected: 2, ProxiesPending: 3},
		"missing": {ProxiesUnknown: "not found"},
		"older":   {ProxiesUnknown: "it does not say: it is of an older release"},
	}, got)
}
