package question

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
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
