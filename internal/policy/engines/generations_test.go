package engines_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/policy/specificity"
	"meridian/internal/policy/targetref"
	"meridian/internal/resource"
)

var (
	siblings   = policytest.Siblings
	worldKinds = policytest.GenerationKinds
)

// spelled is what takes effect on a dataplane, without the reasons.
func spelled(t require.TestingT, rules []policy.Rule) map[string]string {
	all := map[string]string{}
	for i := range rules {
		rule := &rules[i]
		at := policytest.Spell(t, rule.Attachment) + string(rule.Kind)
		if !rule.PerCaller {
			all[at] += policytest.Spell(t, []any{rule.Fold().Conf(), rule.Policies()})
			continue
		}
		for _, s := range rule.Steps {
			all[at] += policytest.Spell(t, []any{s.Match, s.Conf, s.Origin.Name})
		}
	}
	return all
}

func effective(t require.TestingT, m *policy.Matcher, key resource.Key) []policy.Rule {
	rules, err := m.Effective(key)
	require.NoError(t, err)
	return rules
}

// plainly is §4.11 as it is written: what each generation does alone, without the
// siblings on attachments on which the Mesh kind does something, be it for one
// route.
func plainly(t require.TestingT, view policy.View, key resource.Key) (both, superseded []policy.Rule) {
	alone := func(e policy.Engine) []policy.Rule {
		m := policy.NewMatcher(e)
		m.Reset(view)
		return effective(t, m, key)
	}
	newer := alone(targetref.New())
	for _, old := range alone(specificity.Engine{}) {
		if slices.ContainsFunc(newer, func(next policy.Rule) bool {
			next.Attachment.Route = ""
			return siblings[next.Kind] == old.Kind && next.Attachment.Compare(&old.Attachment) == 0
		}) {
			superseded = append(superseded, old)
		} else {
			both = append(both, old)
		}
	}
	return append(both, newer...), superseded
}

// Where both generations take effect on one attachment, the Mesh kind holds for all
// of it, and every answer says the same (§4.11).
func TestGenerationsEqualPlainReading(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		view := policytest.DrawGenerations(rt).View()
		m := policy.NewMatcher(engines.All()...)
		m.Reset(view)
		placed := map[string]bool{}
		for dp := range view.List(resource.KindDataplane, "m") {
			want, superseded := plainly(rt, view, dp.Key())
			require.Equal(rt, spelled(rt, want), spelled(rt, effective(rt, m, dp.Key())))
			a, err := answer.Dataplane(m, "m", dp.Key().Name, "z", 0)
			require.NoError(rt, err)
			for i := range superseded {
				old := &superseded[i]
				at := slices.IndexFunc(a.Effective, func(e answer.Effective) bool {
					return e.Kind == old.Kind && e.Attachment.Compare(&old.Attachment) == 0
				})
				require.GreaterOrEqual(rt, at, 0, "inspect shows what is superseded")
				e := a.Effective[at]
				require.NotNil(rt, e.SupersededBy)
				require.Equal(rt, old.Kind, siblings[e.SupersededBy.Kind])
				require.NotEmpty(rt, e.SupersededBy.Policies)
				require.Empty(rt, e.Policies)
				why, err := answer.Why(m, answer.WhyQuestion{Mesh: "m", Dataplane: dp.Key().Name, Kind: old.Kind}, "z", 0)
				require.NoError(rt, err)
				entry := why.Entries[slices.IndexFunc(why.Entries, func(e answer.WhyEntry) bool { return e.Attachment.Compare(&old.Attachment) == 0 })]
				require.Equal(rt, e.SupersededBy, entry.SupersededBy, "why says the same")
				require.Empty(rt, entry.Fields)
				require.Empty(rt, entry.Rules)
				require.False(rt, slices.ContainsFunc(entry.Considered, func(c answer.Considered) bool { return c.Used }))
				for _, p := range old.Policies() {
					placed[policytest.Spell(rt, []any{p, dp.Key().Name, old.Attachment, e.SupersededBy})] = true
				}
			}
			count := 0
			for _, e := range a.Effective {
				if e.SupersededBy != nil {
					count++
				}
			}
			require.Equal(rt, len(superseded), count, "and nothing else is")
		}
		// inspect policy names the same attachments.
		shown := map[string]bool{}
		for _, kind := range worldKinds {
			for p := range view.List(kind, "m") {
				a, err := answer.Policy(m, kind, "m", p.Key().Name, "z", 0)
				require.NoError(rt, err)
				for _, d := range a.Superseded {
					for _, at := range d.Attachments {
						shown[policytest.Spell(rt, []any{p.Key(), d.Name, at, d.By})] = true
					}
				}
			}
		}
		require.Equal(rt, placed, shown)
	})
}

// A matcher that follows changes of either generation names exactly what changed.
func TestFollowingBothGenerations(t *testing.T) {
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	outcomes := func(rt *rapid.T, m *policy.Matcher, view policy.View) map[resource.Key]map[string]string {
		all := map[resource.Key]map[string]string{}
		for dp := range view.List(resource.KindDataplane, "m") {
			all[dp.Key()] = spelled(rt, effective(rt, m, dp.Key()))
		}
		return all
	}
	rapid.Check(t, func(rt *rapid.T) {
		w := policytest.DrawGenerations(rt)
		followed := engines.NewMatcher(compiler)
		followed.Reset(w.View())
		before := outcomes(rt, followed, w.View())
		for range rapid.IntRange(1, 4).Draw(rt, "batches") {
			var changed []resource.Key
			for range rapid.IntRange(1, 3).Draw(rt, "changes") {
				changed = append(changed, w.DrawChange(rt))
			}
			touched := followed.Update(w.View(), changed)
			after := outcomes(rt, followed, w.View())
			afresh := engines.NewMatcher(compiler)
			afresh.Reset(w.View())
			require.Equal(rt, outcomes(rt, afresh, w.View()), after)
			policytest.RequireTouched(rt, before, after, touched)
			before = maps.Clone(after)
		}
	})
}

// A connection shows on either side what is superseded there, and nothing of it as in
// effect.
func TestConnectionOfBothGenerations(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		view := policytest.DrawGenerations(rt).View()
		m := policy.NewMatcher(engines.All()...)
		m.Reset(view)
		for from := range view.List(resource.KindDataplane, "m") {
			for to := range view.List(resource.KindDataplane, "m") {
				a, err := answer.Connection(m, answer.ConnectionQuestion{Mesh: "m", From: from.Key().Name, To: to.Key().Name}, 0)
				require.NoError(rt, err)
				inbounds := to.Spec().(*resource.Dataplane).TagSets()
				want, effective := map[string]int{}, map[string]int{}
				count := func(in map[string]int, rules []policy.Rule, on policy.AttachmentType, reaches func(*policy.Attachment) bool) {
					for i := range rules {
						if at := &rules[i].Attachment; at.Type == on && reaches(at) {
							in[fmt.Sprint(on, at.Port, rules[i].Kind)]++
						}
					}
				}
				routes := func(at *policy.Attachment) bool {
					return slices.ContainsFunc(inbounds, resource.TagSelector(at.Tags).Matches)
				}
				every := func(*policy.Attachment) bool { return true }
				held, gone := plainly(rt, view, from.Key())
				count(want, gone, policy.OnOutbound, routes)
				count(effective, held, policy.OnOutbound, routes)
				_, gone = plainly(rt, view, to.Key())
				count(want, gone, policy.OnInbound, every)
				shown, inEffect := map[string]int{}, map[string]int{}
				for _, s := range a.Superseded {
					shown[fmt.Sprint(s.Side, s.Port, s.Kind)]++
					require.Equal(rt, s.Kind, siblings[s.By.Kind])
				}
				require.Equal(rt, want, shown)
				for _, e := range a.Effective {
					if e.Side == policy.OnOutbound {
						inEffect[fmt.Sprint(e.Side, e.Port, e.Kind)]++
					}
				}
				require.Equal(rt, effective, inEffect)
			}
		}
	})
}
