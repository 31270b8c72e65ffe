package question

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/rollout/overlay"
	"meridian/internal/store"
)

// surveyor is a policy.Surveyor that calls a function first.
type surveyor struct{ called func(policy.View) }

func (s surveyor) Survey(view policy.View) policy.Adviser {
	s.called(view)
	return silent{}
}

type silent struct{}

func (silent) Advise(policy.View, *resource.Resource) []resource.Problem { return nil }

func put(t testing.TB, kind resource.Kind, mesh resource.MeshName, name, spec string) store.Op {
	t.Helper()
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: kind, Mesh: mesh, Name: name}}, []byte(spec))
	require.NoError(t, err)
	return store.Put(r)
}

// matchingOf is a matching over a store with a mesh and policies.
func matchingOf(t testing.TB, policies ...store.Op) (*livematch.Matching, *store.Store) {
	t.Helper()
	s := store.New(store.DefaultOptions())
	ops := append([]store.Op{put(t, "Mesh", "", "m", "{}")}, policies...)
	require.NoError(t, s.Apply(1, store.Txn{Ops: ops}).Err)
	conditions, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	return livematch.New(engines.NewMatcher(conditions), s), s
}

func permission(t testing.TB, name, action string) store.Op {
	t.Helper()
	return put(t, "TrafficPermission", "m", name, fmt.Sprintf(
		`{"sources":[{"match":{"meridian.io/service":"*"}}],"destinations":[{"match":{"meridian.io/service":%q}}]}`, action))
}

// While a question looks at every policy of a mesh, policies change, others are asked,
// and the answer is that of the revision that it names.
func TestChangesDoNotWaitForSurveys(t *testing.T) {
	for _, q := range []Policy{
		{Kind: "TrafficPermission", Name: "p"},
		{Kind: "TrafficPermission", Name: "p", Brief: true},
	} {
		t.Run(fmt.Sprintf("brief=%t", q.Brief), func(t *testing.T) {
			matching, s := matchingOf(t, permission(t, "p", "old"))
			surveyed := 0
			stored := surveyors
			defer func() { surveyors = stored }()
			surveyors = func() []policy.Surveyor {
				return []policy.Surveyor{surveyor{func(view policy.View) {
					surveyed++
					// This is a change and a question of another: they would wait here for ever.
					at := s.Revision() + 1
					require.NoError(t, s.Apply(at, store.Txn{Ops: []store.Op{permission(t, "p", "new"), permission(t, fmt.Sprint("other-", at), "new")}}).Err)
					require.NoError(t, matching.Read(func(_ *policy.Matcher, asOf resource.Revision) error {
						require.Equal(t, at, asOf)
						return nil
					}))
					_, exists := view.Get(resource.Key{Kind: "TrafficPermission", Mesh: "m", Name: fmt.Sprint("other-", at)})
					require.False(t, exists, "what is looked at does not change")
				}}}
			}
			answered, err := Answer(q, matching, At{Mesh: "m"})
			require.NoError(t, err)
			require.Positive(t, surveyed)
			require.EqualValues(t, 1, answered.AsOf)
			var document answer.PolicyAnswer
			require.NoError(t, json.Unmarshal(answered.Document, &document))
			require.EqualValues(t, 1, document.AsOf)
		})
	}
}

// timed is a Source that counts how long it is held.
type timed struct {
	Source
	held time.Duration
}

func (s *timed) Read(ask func(m *policy.Matcher, asOf resource.Revision) error) error {
	return s.Source.Read(func(m *policy.Matcher, asOf resource.Revision) error {
		begun := time.Now()
		defer func() { s.held += time.Since(begun) }()
		return ask(m, asOf)
	})
}

// BenchmarkStandingWarnings asks for the warnings about one of many policies with a
// condition. held-% is for how much of the time a change of a policy waits: before surveys
// were made outside the matching, all of it.
func BenchmarkStandingWarnings(b *testing.B) {
	const policies = 2000
	ops := make([]store.Op, policies)
	for i := range ops {
		ops[i] = put(b, "MeshUpstreamTimeout", "m", fmt.Sprint("p-", i), fmt.Sprintf(
			`{"overrides":{"strategy":"merge","when":"duration(spec.connectTimeout) > duration('%ds')","to":[{"targetRef":{"kind":"Mesh"},"connectTimeout":"10s"}]}}`, i%60+1))
	}
	matching, _ := matchingOf(b, ops...)
	source := &timed{Source: matching}
	for b.Loop() {
		_, err := Answer(Policy{Kind: "MeshUpstreamTimeout", Name: "p-7", Brief: true}, source, At{Mesh: "m"})
		require.NoError(b, err)
	}
	b.ReportMetric(100*source.held.Seconds()/b.Elapsed().Seconds(), "held-%")
}

// TestAnswersNameRollouts: an answer of a zone says which of the resources that it names
// a rollout has the zone show, and which it shows as deleted; merged answers say it of
// each zone, whatever a zone calls itself.
func TestAnswersNameRollouts(t *testing.T) {
	matching, s := matchingOf(t, permission(t, "p", "old"), permission(t, "other", "old"))
	at := question(t, matching)
	require.Empty(t, answer.RolledOutOf(at.Document), "nothing is said without rollouts")

	const spec = `{"stages":[{"all":true}],"changes":[
		{"put":{"type":"TrafficPermission","mesh":"m","name":"p","spec":{"sources":[{"match":{"meridian.io/service":"*"}}],"destinations":[{"match":{"meridian.io/service":"new"}}]}},"replaces":1},
		{"put":{"type":"Mesh","name":"elsewhere","spec":{}}},
		{"delete":{"type":"TrafficPermission","mesh":"m","name":"other"},"replaces":1}],
		"status":{"phase":"Progressing","stage":1,"zones":["east"]}}`
	rollout, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindRollout, Name: "canary"}, Version: 1, Revision: 2}, []byte(spec))
	require.NoError(t, err)
	changes := []store.Change{{After: rollout}}
	made := rollout.Spec().(*resource.Rollout).Changes
	base := func(key resource.Key) overlay.Base {
		if r, ok := s.View().Get(key); ok {
			return overlay.Base{Version: r.Meta().Version}
		}
		return overlay.Base{}
	}
	shown := overlay.Of("east", slices.Values([]*resource.Resource{rollout}), base, nil)
	for _, c := range made {
		after, ok := shown.Get(c.Key())
		require.True(t, ok)
		before, _ := s.View().Get(c.Key())
		changes = append(changes, store.Change{Before: before, After: after})
	}
	require.NoError(t, s.Replicate(store.Batch{Revision: 2, Prev: 1, Changes: changes}))
	at = question(t, matching)
	want := []answer.RolledOut{
		{Kind: "TrafficPermission", Mesh: "m", Name: "other", Deleted: true, Rollout: "canary", Zone: "east"},
		{Kind: "TrafficPermission", Mesh: "m", Name: "p", Rollout: "canary", Zone: "east"},
	}
	require.Equal(t, want, answer.RolledOutOf(at.Document))
	var about answer.PolicyAnswer
	require.NoError(t, answer.Unmarshal(at.Document, &about), "the document is what it was, with a member more: %s", at.Document)
	require.Equal(t, "p", about.Name)
	require.Equal(t, `TrafficPermission/m/other is deleted as Rollout canary changes it in zone "east"`, want[0].String())

	merged, err := answer.MergePolicies([]answer.Part{{Zone: "west", JSON: at.Document}, {Zone: "east", JSON: at.Document}}, func([]answer.Rejected) []answer.Absence { return nil })
	require.NoError(t, err)
	of := answer.RolledOutOf(merged)
	require.Len(t, of, 4)
	require.Equal(t, want, of[:2])
	require.Equal(t, resource.ZoneName("west"), of[2].Zone)
}

// question asks a zone named east about a policy.
func question(t *testing.T, matching Source) Answered {
	t.Helper()
	answered, err := Answer(Policy{Kind: "TrafficPermission", Name: "p"}, matching, At{Mesh: "m", Zone: "east"})
	require.NoError(t, err)
	return answered
}
