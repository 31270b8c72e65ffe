package plan_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/analysis"
	"meridian/internal/plan"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

// spelled are findings by what they are about, in order.
func spelled(found []answer.Finding) []string {
	all := []string{}
	for i := range found {
		all = append(all, fmt.Sprintf("%s %s %s", found[i].Key(), found[i].Field, found[i].Code))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func batchOf(w world, keys []resource.Key) *plan.Batch {
	batch := &plan.Batch{}
	for _, key := range keys {
		if r, ok := w.Resources[key]; !ok {
			batch.Deleted = append(batch.Deleted, key)
		} else {
			batch.Written = append(batch.Written, r)
		}
	}
	return batch
}

// The findings of a plan are what an analysis finds after the change and not before it,
// but for what the author of a document is told at once.
func TestFindingsAreThoseOfAnAnalysis(t *testing.T) {
	some := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt)
		before := w.View()
		m := matcherOf(rt, before)
		was, err := analysis.Run(t.Context(), before)
		require.NoError(rt, err)
		var changed []resource.Key
		for range rapid.IntRange(1, 3).Draw(rt, "changes") {
			changed = append(changed, w.change(rt))
		}
		after := w.View()
		is, err := analysis.Run(t.Context(), after)
		require.NoError(rt, err)
		batch := batchOf(w, changed)
		told, err := policy.Lint(t.Context(), after, batch.Written, engines.Surveyors()...)
		require.NoError(rt, err)
		var want []answer.Finding
		for _, a := range analysis.Added(was.Findings, is.Findings) {
			atOnce := slices.ContainsFunc(told, func(b policy.Advice) bool { return a.Key == b.Key && a.Path == b.Path && a.Message == b.Message })
			if !atOnce {
				want = append(want, answer.FindingOf(a))
			}
		}

		p := plan.New()
		require.NoError(rt, p.Dataplanes(t.Context(), m, batch, "z", nil))
		require.NoError(rt, p.RoutesOf(t.Context(), m, batch))
		require.NoError(rt, p.Surveyed(t.Context(), before, batch))
		p.Finish()
		require.Equal(rt, spelled(want), spelled(p.Findings))
		for i := range p.Findings {
			some[p.Findings[i].Code]++
		}
	})
	require.NotZero(t, some[string(resource.CodeDeadPolicy)], "%v", some)
}

// timeouts is a mesh of a service a, which calls a service c, and a timeout of everyone.
type timeouts struct{ policytest.World }

func newTimeouts(t require.TestingT) timeouts {
	w := timeouts{policytest.NewWorld()}
	w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, `{}`)
	w.put(t, "Dataplane", "a1", `{"networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "a"}}], "outbound": [{"port": 81, "tags": {"kuma.io/service": "c"}}]}}`)
	slow := w.timeout(t, "slow", "*")
	w.Resources[slow.Key()] = slow
	return w
}

func (w timeouts) put(t require.TestingT, kind resource.Kind, name, spec string) {
	w.Put(t, resource.Meta{Key: resource.Key{Kind: kind, Mesh: "m", Name: name}}, spec)
}

// timeout is a policy of calls from a service to c.
func (w timeouts) timeout(t require.TestingT, name, from string) *resource.Resource {
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindTimeout, Mesh: "m", Name: name}},
		fmt.Appendf(nil, `{"sources": [{"match": {"kuma.io/service": %q}}], "destinations": [{"match": {"kuma.io/service": "c"}}], "conf": {"connectTimeout": "5s"}}`, from))
	require.NoError(t, err)
	return r
}

// What takes effect in one zone is no finding of a fleet, and what a zone does not say is
// not claimed.
func TestFindingsOfZonesAreMerged(t *testing.T) {
	zone := func(dead bool, before bool) *plan.Plan {
		w := newTimeouts(t)
		if !dead {
			w.put(t, "Dataplane", "b1", `{"networking": {"address": "10.0.0.2", "inbound": [{"port": 80, "tags": {"kuma.io/service": "b"}}], "outbound": [{"port": 81, "tags": {"kuma.io/service": "c"}}]}}`)
		}
		m := matcherOf(t, w.View())
		batch := &plan.Batch{Written: []*resource.Resource{w.timeout(t, "special", "a")}}
		if before {
			batch = &plan.Batch{Written: []*resource.Resource{w.timeout(t, "nowhere", "d")}}
		}
		p := plan.New()
		require.NoError(t, p.Dataplanes(t.Context(), m, batch, "z", nil))
		encoded, err := json.Marshal(p) // as the zone sends it
		require.NoError(t, err)
		sent := plan.New()
		require.NoError(t, json.Unmarshal(encoded, sent))
		return sent
	}
	merged := func(parts ...*plan.Plan) []string {
		p := plan.New()
		for i, part := range parts {
			p.Add(resource.ZoneName(fmt.Sprint("z", i)), part)
		}
		p.Finish()
		encoded, err := json.Marshal(p)
		require.NoError(t, err)
		require.NotContains(t, string(encoded), `"found"`, "what zones say is for the global alone")
		return spelled(p.Findings)
	}
	dead := []string{"Timeout/m/slow  dead-policy"}
	require.Equal(t, dead, merged(zone(true, false)))
	require.Equal(t, dead, merged(zone(true, false), zone(true, false)))
	require.Empty(t, merged(zone(true, false), zone(false, false)), "it takes effect in the other zone")
	older := zone(true, false)
	older.Found = nil
	require.Empty(t, merged(zone(true, false), older), "a zone of an older release does not say")
	require.Equal(t, []string{"Timeout/m/nowhere  dead-policy"}, merged(zone(true, true), zone(false, true)))
}

// A mesh with more to compare than is bounded gets no findings, and the plan is made.
func TestFindingsAreBounded(t *testing.T) {
	w := newTimeouts(t)
	for i := range 500 {
		w.put(t, "Dataplane", fmt.Sprint("x", i), fmt.Sprintf(`{"networking": {"address": "10.0.0.2", "inbound": [{"port": 80, "tags": {"kuma.io/service": "a", "n": "%d"}}], "outbound": [{"port": 81, "tags": {"kuma.io/service": "c"}}]}}`, i))
		w.Resources[resource.Key{Kind: "Timeout", Mesh: "m", Name: fmt.Sprint("t", i)}] = w.timeout(t, fmt.Sprint("t", i), "a")
	}
	p := plan.New()
	batch := &plan.Batch{Written: []*resource.Resource{w.timeout(t, "special", "a")}}
	require.NoError(t, p.Dataplanes(t.Context(), matcherOf(t, w.View()), batch, "z", nil))
	p.Finish()
	require.Empty(t, p.Findings)
	require.NotEmpty(t, p.Places)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, plan.New().Dataplanes(ctx, matcherOf(t, w.View()), batch, "z", nil), context.Canceled)
}

// TestFindingLines: findings of one cause are one line, and there is a bounded number.
func TestFindingLines(t *testing.T) {
	p := plan.New()
	for i := range 60 {
		p.Findings = append(p.Findings, answer.Finding{Code: "dead-policy", Severity: answer.SeverityWarning, Kind: "Timeout", Mesh: "m", Name: fmt.Sprint(i), Message: fmt.Sprint("because of ", i)})
	}
	p.Findings = append(p.Findings, answer.Finding{Code: "tie", Severity: answer.SeverityInfo, Kind: "Timeout", Mesh: "m", Name: "a", Message: "a tie"})
	warnings, notes := p.FindingLines()
	require.Len(t, warnings, 51)
	require.Equal(t, "and 10 more", warnings[50])
	require.Equal(t, []string{"Timeout/m/a: a tie"}, notes)
	var b strings.Builder
	require.NoError(t, p.Render(&b))
	require.Contains(t, b.String(), "Note: Timeout/m/a: a tie\n")
}

// The first dataplanes of a mesh are not why its policies match none of them; before, it
// was not known what they match.
func TestFirstDataplanesCauseNoFindings(t *testing.T) {
	w := timeouts{policytest.NewWorld()}
	w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, `{}`)
	slow := w.timeout(t, "slow", "b")
	w.Resources[slow.Key()] = slow
	written, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindDataplane, Mesh: "m", Name: "a1"}},
		[]byte(`{"networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "a"}}]}}`))
	require.NoError(t, err)
	p, batch := plan.New(), &plan.Batch{Written: []*resource.Resource{written}}
	require.NoError(t, p.Dataplanes(t.Context(), matcherOf(t, w.View()), batch, "z", nil))
	require.NoError(t, p.Surveyed(t.Context(), w.View(), batch))
	p.Finish()
	require.Empty(t, p.Findings)

	w.Resources[written.Key()] = written // with one dataplane, a policy that matches none is one that takes effect nowhere
	p, batch = plan.New(), &plan.Batch{Written: []*resource.Resource{w.timeout(t, "fast", "d")}}
	require.NoError(t, p.Dataplanes(t.Context(), matcherOf(t, w.View()), batch, "z", nil))
	p.Finish()
	require.NotEmpty(t, p.Findings)
}
