package envoy

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/agent"
	"meridian/internal/policy"
	policyanswer "meridian/internal/policy/answer"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/internal/xds/generate"
	generated "meridian/internal/xds/generate/envoy"
	"meridian/internal/xds/world"
)

// tried labels a policy as one that is only tried.
func tried(op store.Op) store.Op {
	meta := op.Resource.Meta()
	meta.Labels = map[string]string{resource.EnforcementLabel: resource.EnforcementShadow}
	return store.Put(op.Resource.WithMeta(meta))
}

// trialsOf counts what the Envoys of a zone tell their agents.
func trialsOf(t *testing.T, z *zone) *agent.Trials {
	t.Helper()
	trials := agent.NewTrials(slog.New(slog.DiscardHandler))
	exports(t, z.agent, agent.ExportLogs, trials.Take)
	return trials
}

// outcome is what calls that are counted together have in common.
type outcome struct {
	caller string
	denied bool
}

// counted returns the calls of what is tried now, and on whose word.
func counted(z *zone, trials *agent.Trials) (calls map[outcome]uint64, by map[outcome]string) {
	z.t.Helper()
	told, _ := trials.Told(0)
	m, w := matched(z)
	key := policy.DataplaneKey("m", "backend-1")
	r, ok := w.Dataplane(key)
	require.True(z.t, ok)
	would, err := generate.TriedOn(m, key)
	require.NoError(z.t, err)
	rules, err := m.Effective(key)
	require.NoError(z.t, err)
	now, err := generated.Trials(w.Mesh("m"), r.Spec().(*resource.Dataplane), rules, would)
	require.NoError(z.t, err)
	calls, by = map[outcome]uint64{}, map[outcome]string{}
	for _, c := range told.GetCounts() {
		for _, trial := range now {
			if trial.Stamp == c.GetStamp() && trial.Port == c.GetPort() {
				of := outcome{c.GetCaller(), c.GetDenied()}
				calls[of] += c.GetCalls()
				by[of] += c.GetBy() + "; "
			}
		}
	}
	return calls, by
}

// matched matches what a zone has.
func matched(z *zone) (*policy.Matcher, *world.World) {
	w := world.New("east")
	m := policy.NewMatcher(engines.All()...).Following(w).Following(engines.Trial())
	m.Reset(z.store.View())
	return m, w
}

// What is only tried decides about no caller, and the calls that an Envoy counts are those
// of which the answer about the connection says that something else would be decided.
func TestATrialCountsWhatTheAnswerSays(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 1))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	c, ca := joined(t, "http", mutualTLS)
	z := c.zone
	trials := trialsOf(t, z)
	type known struct {
		caller
		tags resource.Tags
	}
	var callers []known
	for i := range 12 {
		tags := resource.Tags{resource.ServiceTag: pick("web", "a/_/b", "other"), "version": pick("v1", "v2")}
		callers = append(callers, known{member(t, ca, fmt.Sprintf("caller-%d", i), tags), tags})
	}
	const rounds = 14
	var total uint64
	var before []store.Op
	denied, allowed, named := 0, 0, 0
	for n := range rounds {
		ops := before
		before = nil
		put := func(i int, kind resource.Kind, spec string) {
			op := z.put(kind, "m", fmt.Sprintf("p%d-%d", n, i), spec)
			if before = append(before, store.Delete(op.Key)); i%2 == 0 {
				op = tried(op)
			}
			ops = append(ops, op)
		}
		if n == rounds/2 { // two inbounds have one address: both have to allow
			port := c.at[strings.LastIndex(c.at, ":")+1:]
			ops = append(ops, z.put(resource.KindDataplane, "m", "backend-1", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[
				{"port":%[1]s,"servicePort":%[2]d,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east","kuma.io/protocol":"http"}},
				{"port":%[1]s,"servicePort":%[2]d,"tags":{"kuma.io/service":"second","kuma.io/zone":"east","kuma.io/protocol":"http"}}]}}`, port, c.port)))
		}
		for i := range 2 + r.IntN(3) {
			if n%3 == 0 {
				put(i, resource.KindTrafficPermission, fmt.Sprintf(`{"sources":[{"match":{"kuma.io/service":%q}}],"destinations":[{"match":{"kuma.io/service":%q}}]}`,
					pick("web", "a/_/b", "*"), pick("backend", "second", "*")))
				continue
			}
			var from []string
			for range 1 + r.IntN(3) {
				from = append(from, fmt.Sprintf(`{"targetRef":%s,"default":{"action":%q}}`,
					pick(`{"kind":"Mesh"}`, `{"kind":"MeshSubset","tags":{"version":"v1"}}`, `{"kind":"Service","name":"web"}`), pick("ALLOW", "DENY")))
			}
			put(i, resource.KindMeshTrafficPermission, `{"targetRef":{"kind":"Mesh"},"from":[`+strings.Join(from, ",")+`]}`)
		}
		z.apply(ops...)
		require.Empty(t, z.settle("backend-1"))
		for range 3 { // what is accepted is in effect for requests that come after others
			_, err := presenting(t, nil).get(c.at)
			require.Error(t, err)
		}
		m, _ := matched(z)
		ask := func(tags resource.Tags) *policyanswer.ConnectionAnswer {
			a, err := policyanswer.Connection(m, policyanswer.ConnectionQuestion{Mesh: "m", FromTags: tags, To: "backend-1"}, 1)
			require.NoError(t, err)
			return a
		}
		expected := map[outcome]uint64{}
		words := map[outcome]string{}
		call := func(from known) {
			a := ask(from.tags)
			got, err := from.get(c.at)
			require.NoError(t, err)
			require.Equal(t, a.Allowed, got.status == http.StatusOK, "round %d, %v: %d %s", n, from.tags, got.status, got.body)
			if a.Shadow == nil || a.Shadow.Allowed == a.Allowed {
				return
			}
			total++
			of := outcome{from.tags[resource.ServiceTag], !a.Shadow.Allowed}
			expected[of]++
			if len(a.Shadow.DeniedBy) > 0 {
				words[of] = a.Shadow.DeniedBy[0]
				named++
			}
			if of.denied {
				denied++
			} else {
				allowed++
			}
		}
		for _, from := range callers {
			call(from)
		}
		z.waitFor(func() bool {
			_, taken := trials.Told(0)
			return taken >= total
		})
		_, taken := trials.Told(0)
		require.Equal(t, total, taken)
		calls, by := counted(z, trials)
		require.Equal(t, expected, calls, "round %d: %v", n, by)
		for of, word := range words {
			require.Contains(t, by[of], word)
		}
	}
	require.Greater(t, denied, 10)
	require.Greater(t, allowed, 10)
	require.Positive(t, named)
	require.Contains(t, c.envoy.ask("/stats?usedonly&filter=shadow_denied"), ".rbac.tried_.shadow_denied: ")
}

// Connections of inbounds without HTTP are counted when they end.
func TestATrialCountsConnections(t *testing.T) {
	c, ca := joined(t, "tcp", mutualTLS)
	z := c.zone
	trials := trialsOf(t, z)
	rule := func(name, action string) string {
		return fmt.Sprintf(`{"targetRef":{"kind":"Service","name":%q},"default":{"action":%q}}`, name, action)
	}
	list := func(rules ...string) string {
		return `{"targetRef":{"kind":"Mesh"},"from":[` + strings.Join(rules, ",") + `]}`
	}
	web, other := member(t, ca, "web-1", resource.Tags{resource.ServiceTag: "web"}), member(t, ca, "other-1", resource.Tags{resource.ServiceTag: "other"})
	rounds := []struct {
		held, tried string
		servesOther bool
		outcome
	}{
		{list(rule("web", "ALLOW"), rule("other", "ALLOW")), list(rule("web", "DENY")), true, outcome{"web", true}},
		{list(rule("other", "DENY"), rule("web", "ALLOW")), list(rule("other", "ALLOW")), false, outcome{"other", false}},
	}
	for _, round := range rounds {
		z.apply(z.put(resource.KindMeshTrafficPermission, "m", "held", round.held), tried(z.put(resource.KindMeshTrafficPermission, "m", "z-tried", round.tried)))
		require.Empty(t, z.settle("backend-1"))
		z.waitFor(func() bool { // the listener is the new one
			a, err := web.get(c.at)
			require.True(t, err == nil && a.body == "backend-1", "%v", err)
			_, _ = other.get(c.at)
			calls, _ := counted(z, trials)
			return calls[round.outcome] > 0
		})
		a, err := other.get(c.at)
		require.Equal(t, round.servesOther, err == nil && a.body == "backend-1")
		calls, by := counted(z, trials)
		require.Len(t, calls, 1, "%v", calls)
		require.Contains(t, by[round.outcome], "MeshTrafficPermission z-tried")
	}
}
