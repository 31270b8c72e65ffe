package targetref_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

// viewOf reads documents as a zone would hold them.
func viewOf(t testing.TB, documents string) policy.View {
	t.Helper()
	file := filepath.Join(t.TempDir(), "input.yaml")
	require.NoError(t, os.WriteFile(file, []byte(documents), 0o600))
	loaded, err := resource.Load([]string{file}, nil, resource.DecodeOptions{})
	require.NoError(t, err)
	resources := make([]*resource.Resource, len(loaded))
	for i, d := range loaded {
		resources[i] = d.Resource
	}
	view, err := policy.Offline(resources, "east", false)
	require.NoError(t, err)
	return view
}

// answers spells everything a matcher has to say about all dataplanes.
func answers(t require.TestingT, m *policy.Matcher) map[resource.Key]string {
	all := map[resource.Key]string{}
	for _, key := range dataplanes() {
		a, err := answer.Dataplane(m, key.Mesh, key.Name, "z", 0)
		if err != nil {
			require.ErrorIs(t, err, answer.ErrNotFound)
			continue
		}
		text, err := answer.Marshal(a)
		require.NoError(t, err)
		all[key] = string(text)
	}
	return all
}

// The answer depends on the set of resources only (§2.3).
func TestOrderOfResourcesNeverMatters(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		view := drawWorld(rt, true).View()
		want := answers(rt, matcher(view))
		require.Equal(rt, want, answers(rt, matcher(view)))
		require.Equal(rt, want, answers(rt, matcher(policytest.Backwards{View: view})))
	})
}

// outcomes is what takes effect, without the reasons.
func outcomes(t require.TestingT, m *policy.Matcher) map[resource.Key]map[string]string {
	all := map[resource.Key]map[string]string{}
	for _, key := range dataplanes() {
		rules, err := m.Effective(key)
		if err != nil {
			require.ErrorIs(t, err, policy.ErrNoDataplane)
			continue
		}
		all[key] = map[string]string{}
		for i := range rules {
			rule := &rules[i]
			at := policytest.Spell(t, rule.Attachment) + string(rule.Kind)
			if !rule.PerCaller {
				all[key][at] += policytest.Spell(t, []any{rule.Fold().Conf(), provenance(rule.Fold()), rule.Policies()})
				continue
			}
			for _, s := range rule.Steps {
				all[key][at] += policytest.Spell(t, []any{s.Match, s.Conf, s.Origin.Name})
			}
		}
	}
	return all
}

// After any sequence of changes, a matcher that followed them gives the answers
// of one that starts afresh, and has named exactly what changed.
func TestFollowingEqualsStartingAfresh(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt, true)
		followed := matcher(w.View())
		before := outcomes(rt, followed)
		for range rapid.IntRange(1, 5).Draw(rt, "batches") {
			var changed []resource.Key
			for range rapid.IntRange(1, 3).Draw(rt, "changes") {
				changed = append(changed, w.drawChange(rt))
			}
			touched := followed.Update(w.View(), changed)
			require.Equal(rt, answers(rt, matcher(w.View())), answers(rt, followed))
			after := outcomes(rt, followed)
			policytest.RequireTouched(rt, before, after, touched)
			before = after
		}
	})
}

// Matching writes to no resource it is given.
func TestMatchingNeverWritesToResources(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt, true)
		w.RequireUnchanged(rt, func() {
			m := matcher(w.View())
			answers(rt, m)
			m.Update(w.View(), []resource.Key{w.drawChange(rt)})
			answers(rt, m)
		})
	})
}

// Adding a policy of lower priority changes no field that is already set
// (§4.5, FirstWins).
func TestLowerPriorityNeverChangesAField(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt, false)
		w.put(rt, "Mesh", "", mesh, `{}`, 0)
		caller := []resource.Tags{drawTags(rt)}
		before := matcher(w.View())
		kind := pick(rt, kinds)
		// On the Mesh, with a name before all others, nothing stands lower.
		w.put(rt, kind, mesh, "p0", policytest.Spell(rt, object{"conf": drawContent(rt, kind)}), 0)
		after := matcher(w.View())
		for _, key := range dataplanes() {
			rules, err := before.Effective(key)
			if err != nil {
				continue
			}
			later := effective(rt, after, key)
			for i := range rules {
				j := slices.IndexFunc(later, func(r policy.Rule) bool {
					return r.Target.Compare(&rules[i].Target) == 0 && slices.EqualFunc(rules[i].Steps, r.Steps[:min(len(r.Steps), len(rules[i].Steps))],
						func(a, b policy.Step) bool { return a.Origin == b.Origin })
				})
				require.GreaterOrEqual(rt, j, 0, "%s is still there", &rules[i].Attachment)
				old, now := rules[i].ForCaller(caller).Fold(), later[j].ForCaller(caller).Fold()
				set := flatten(map[string]any{}, "", now.Conf())
				for leaf, v := range flatten(map[string]any{}, "", old.Conf()) {
					require.Equal(rt, v, set[leaf])
					require.Equal(rt, provenance(old)[leaf], provenance(now)[leaf])
				}
			}
		}
	})
}

// Every loser is below its winner, and everything that selects a dataplane is
// accounted for once (§2.2).
func TestEveryPolicyIsAccountedFor(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt, true)
		m := matcher(w.View())
		require.NoError(rt, m.Read(func(r *policy.Reading) error {
			for key := range r.Dataplanes(mesh) {
				rules, err := r.Explain(key)
				require.NoError(rt, err)
				for i := range rules {
					var told []resource.Key
					for _, v := range rules[i].Verdicts() {
						told = append(told, v.Policy)
						require.NotEmpty(rt, v.Reason)
						require.Regexp(rt, `^\d\.\d+$`, v.Rule)
					}
					slices.SortFunc(told, resource.Key.Compare)
					require.Equal(rt, r.Selecting(key, rules[i].Kind), told)
					for _, f := range rules[i].ForCaller([]resource.Tags{drawTags(rt)}).FieldVerdicts() {
						for _, loser := range f.Losers {
							require.NotEmpty(rt, loser.Reason)
						}
					}
				}
			}
			return nil
		}))
	})
}

// Asking for the reasons changes nothing: save for entries in which nothing takes
// effect, the rules are those that are enforced.
func TestExplainingChangesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := matcher(drawWorld(rt, true).View())
		require.NoError(rt, m.Read(func(r *policy.Reading) error {
			for key := range r.Dataplanes(mesh) {
				enforced, err := r.Effective(key)
				require.NoError(rt, err)
				explained, err := r.Explain(key)
				require.NoError(rt, err)
				explained = slices.DeleteFunc(explained, func(rule policy.Rule) bool { return len(rule.Steps) == 0 })
				require.Len(rt, explained, len(enforced))
				for i := range enforced {
					require.Zero(rt, enforced[i].Target.Compare(&explained[i].Target))
					require.True(rt, slices.EqualFunc(enforced[i].Steps, explained[i].Steps, func(a, b policy.Step) bool {
						return a.Origin == b.Origin && policytest.Spell(rt, a.Conf) == policytest.Spell(rt, b.Conf) && maps.Equal(a.Match, b.Match)
					}))
				}
			}
			return nil
		}))
	})
}
