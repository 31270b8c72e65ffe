package specificity_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/policytest"
	"meridian/internal/policy/specificity"
	"meridian/internal/resource"
)

var specificityEngine = specificity.Engine{}

// The oracle below reads §3 as plainly as it can be written: no
// index, no sharing, no steps, every policy looked at for every attachment.

type oracle struct {
	view  policy.View
	rules string // KongMesh or Kuma2020
}

// score is (tags, exact values) of the best selector that matches one of the
// tag sets; false when none does (§3.2, §3.3).
func score(selectors []resource.TagSelector, sets []resource.Tags) ([2]int, bool) {
	best, found := [2]int{}, false
	for _, s := range selectors {
		for _, tags := range sets {
			if s.Matches(tags) {
				got := [2]int{len(s), s.Exact()}
				if !found || got[0] > best[0] || (got[0] == best[0] && got[1] > best[1]) {
					best, found = got, true
				}
			}
		}
	}
	return best, found
}

type candidate struct {
	r     *resource.Resource
	score [2]int
}

// better says which of two policies is more specific (§3.3, §3.4).
func (o *oracle) better(a, b candidate) int {
	for i := range a.score {
		if a.score[i] != b.score[i] {
			return b.score[i] - a.score[i]
		}
	}
	if o.rules == resource.KongMesh {
		if c := b.r.Meta().ModificationTime.Compare(a.r.Meta().ModificationTime); c != 0 {
			return c
		}
	}
	return strings.Compare(a.r.Key().Name, b.r.Key().Name)
}

// ranked lists what matches an attachment, the best first. caller is nil until
// a connection is asked about.
func (o *oracle) ranked(kind resource.Kind, dp *resource.Resource, at *policy.Attachment, caller []resource.Tags) []candidate {
	var found []candidate
	members := dp.Spec().(*resource.Dataplane).TagSets()
	for r := range o.view.List(kind, dp.Key().Mesh) {
		var from, to [2]int
		matches, also := false, true
		switch spec := r.Spec().(type) {
		case resource.DataplaneSpec:
			from, matches = score(spec.DataplaneSelectors(), members)
		case resource.ConnectionSpec:
			to, matches = score(spec.DestinationSelectors(), []resource.Tags{at.Tags})
			if at.Type == policy.OnOutbound {
				from, also = score(spec.SourceSelectors(), members)
			} else if caller != nil {
				from, also = score(spec.SourceSelectors(), caller)
			}
		}
		if matches && also {
			found = append(found, candidate{r, [2]int{from[0] + to[0], from[1] + to[1]}})
		}
	}
	slices.SortFunc(found, o.better)
	return found
}

// selecting lists the policies of a kind that select a dataplane, wherever they
// reach on it: what an explanation has to account for.
func (o *oracle) selecting(kind resource.Kind, dp *resource.Resource) []string {
	var list []string
	d, _ := resource.Describe(kind)
	members := dp.Spec().(*resource.Dataplane).TagSets()
	for r := range o.view.List(kind, dp.Key().Mesh) {
		selectors := []resource.TagSelector{}
		switch spec := r.Spec().(type) {
		case resource.DataplaneSpec:
			selectors = spec.DataplaneSelectors()
		case resource.ConnectionSpec:
			selectors = spec.SourceSelectors()
			if d.Direction == resource.OnInbound {
				selectors = spec.DestinationSelectors()
			}
		}
		if _, ok := score(selectors, members); ok {
			list = append(list, r.Key().Name)
		}
	}
	return list
}

// forCaller lists the policies that hold for a caller on an inbound (§3.5,
// §3.6).
func (o *oracle) forCaller(kind resource.Kind, dp *resource.Resource, at *policy.Attachment, caller []resource.Tags) []string {
	allows := func(c candidate) bool {
		_, ok := score(c.r.Spec().(resource.ConnectionSpec).SourceSelectors(), caller)
		return ok
	}
	all := o.ranked(kind, dp, at, nil)
	switch {
	case len(all) == 0:
		return nil
	case o.rules == resource.KongMesh:
		if allows(all[0]) {
			return []string{all[0].r.Key().Name}
		}
		return nil
	case kind == "TrafficPermission":
		return nameList(slices.DeleteFunc(all, func(c candidate) bool { return !allows(c) }))
	default:
		return nameList(o.ranked(kind, dp, at, caller))[:min(1, len(o.ranked(kind, dp, at, caller)))]
	}
}

func nameList(found []candidate) []string {
	var list []string
	for _, c := range found {
		list = append(list, c.r.Key().Name)
	}
	return list
}

func policyNames(keys []resource.Key) []string {
	var list []string
	for _, k := range keys {
		list = append(list, k.Name)
	}
	return list
}

// The engine decides as the plain reading of §3 does, on every
// attachment and for every caller.
func TestEngineEqualsPlainReading(t *testing.T) {
	directions := map[policy.AttachmentType]resource.Direction{
		policy.OnDataplane: resource.OnDataplane, policy.OnInbound: resource.OnInbound, policy.OnOutbound: resource.OnOutbound,
	}
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt)
		view := w.View()
		m := matcher(view)
		caller := []resource.Tags{drawTags(rt), drawTags(rt)}
		for dp := range view.List("Dataplane", "") {
			o := &oracle{view: view, rules: policy.MeshOf(view, dp.Key().Mesh).Matching.SourceDestination}
			rules := explain(rt, m, dp.Key())
			got := map[string]*policy.Rule{}
			for i := range rules {
				got[rules[i].Attachment.String()+policytest.Spell(rt, rules[i].Attachment.Tags)+string(rules[i].Kind)] = &rules[i]
			}
			var shape *policy.Shape
			require.NoError(rt, m.Read(func(r *policy.Reading) (err error) {
				shape, err = r.Dataplane(dp.Key())
				return err
			}))
			for i := range shape.Attachments {
				at := &shape.Attachments[i]
				for _, kind := range kinds {
					d, _ := resource.Describe(resource.Kind(kind))
					rule := got[at.String()+policytest.Spell(rt, at.Tags)+kind]
					if d.Direction != directions[at.Type] {
						require.Nil(rt, rule)
						continue
					}
					want := o.ranked(d.Kind, dp, at, nil)
					require.Equal(rt, len(want) > 0, rule != nil, "%s on %s", kind, at)
					if rule == nil {
						continue
					}
					var accounted []string
					for _, v := range rule.Verdicts() {
						accounted = append(accounted, v.Policy.Name)
					}
					slices.Sort(accounted)
					require.Equal(rt, o.selecting(d.Kind, dp), accounted)
					if at.Type == policy.OnInbound {
						mine := rule.ForCaller(caller)
						mine.PerCaller = false
						require.Equal(rt, o.forCaller(d.Kind, dp, at, caller), policyNames(mine.Policies()))
						continue
					}
					require.Equal(rt, nameList(want), policyNames(stepOrigins(rule)))
					require.Equal(rt, nameList(want)[:1], policyNames(rule.Policies()))
				}
			}
		}
	})
}

func explain(t require.TestingT, m *policy.Matcher, key resource.Key) []policy.Rule {
	var rules []policy.Rule
	require.NoError(t, m.Read(func(r *policy.Reading) (err error) {
		rules, err = r.Explain(key)
		return err
	}))
	return rules
}

// What is enforced and what is explained agree.
func TestExplainingDecidesTheSame(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		view := drawWorld(rt).View()
		m := matcher(view)
		for dp := range view.List("Dataplane", "") {
			enforced, err := m.Effective(dp.Key())
			require.NoError(rt, err)
			explained := explain(rt, m, dp.Key())
			require.Len(rt, explained, len(enforced))
			for i := range enforced {
				require.Equal(rt, enforced[i].Target, explained[i].Target)
				require.Equal(rt, enforced[i].Policies(), explained[i].Policies())
				require.Equal(rt, enforced[i].Fold().Conf(), explained[i].Fold().Conf())
				require.Equal(rt, enforced[i].Fold().Fields(), explained[i].Fold().Fields())
				if enforced[i].PerCaller {
					require.Equal(rt, callerList(&enforced[i]), callerList(&explained[i]))
				}
			}
		}
	})
}

func stepOrigins(rule *policy.Rule) []resource.Key {
	var keys []resource.Key
	for _, s := range rule.Steps {
		keys = append(keys, s.Origin)
	}
	return keys
}

// answers spells everything a matcher has to say about some dataplanes.
func answers(t require.TestingT, m *policy.Matcher, keys []resource.Key) map[resource.Key]string {
	all := map[resource.Key]string{}
	for _, key := range keys {
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
	keys := dataplanes(t)
	rapid.Check(t, func(rt *rapid.T) {
		view := drawWorld(rt).View()
		want := answers(rt, matcher(view), keys)
		require.Equal(rt, want, answers(rt, matcher(view), keys))
		require.Equal(rt, want, answers(rt, matcher(policytest.Backwards{View: view}), keys))
	})
}

// outcomes is what takes effect, without the reasons.
func outcomes(t require.TestingT, m *policy.Matcher, keys []resource.Key) map[resource.Key]map[string]string {
	all := map[resource.Key]map[string]string{}
	for _, key := range keys {
		rules, err := m.Effective(key)
		if err != nil {
			require.ErrorIs(t, err, policy.ErrNoDataplane)
			continue
		}
		all[key] = map[string]string{}
		for i := range rules {
			rule := &rules[i]
			at := policytest.Spell(t, rule.Attachment) + string(rule.Kind)
			if rule.PerCaller {
				all[key][at] = policytest.Spell(t, callerList(rule))
				continue
			}
			fold := rule.Fold()
			all[key][at] = policytest.Spell(t, []any{fold.Conf(), policyNames(rule.Policies())})
		}
	}
	return all
}

func callerList(rule *policy.Rule) []any {
	var list []any
	for _, s := range rule.Steps {
		list = append(list, []any{s.Match, s.Conf, s.Origin.Name})
	}
	return list
}

// After any sequence of changes, a matcher that followed them gives the answers
// of one that starts afresh, and has named exactly the dataplanes and targets
// that changed.
func TestFollowingEqualsStartingAfresh(t *testing.T) {
	keys := dataplanes(t)
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt)
		followed := matcher(w.View())
		before := outcomes(rt, followed, keys)
		for range rapid.IntRange(1, 6).Draw(rt, "batches") {
			var changed []resource.Key
			for range rapid.IntRange(1, 3).Draw(rt, "changes") {
				changed = append(changed, w.drawChange(rt))
			}
			touched := followed.Update(w.View(), changed)
			require.Equal(rt, answers(rt, matcher(w.View()), keys), answers(rt, followed, keys))
			after := outcomes(rt, followed, keys)
			policytest.RequireTouched(rt, before, after, touched)
			before = after
		}
	})
}

// Matching writes to no resource it is given.
func TestMatchingNeverWritesToResources(t *testing.T) {
	keys := dataplanes(t)
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt)
		w.RequireUnchanged(rt, func() {
			m := matcher(w.View())
			answers(rt, m, keys)
			m.Update(w.View(), []resource.Key{w.drawChange(rt)})
			answers(rt, m, keys)
		})
	})
}
