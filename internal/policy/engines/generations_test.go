package engines_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

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

// sibling is the kind that each Mesh kind of these worlds supersedes (§4.11), and
// where the two meet.
var siblings = map[resource.Kind]resource.Kind{
	"MeshTrafficPermission": "TrafficPermission",
	"MeshUpstreamTimeout":   "Timeout",
	"MeshLogging":           "TrafficLog",
	"MeshTracing":           "TrafficTrace",
}

var worldKinds = []resource.Kind{
	"MeshTrafficPermission", "MeshUpstreamTimeout", "MeshLogging", "MeshTracing",
	"TrafficPermission", "Timeout", "TrafficLog", "TrafficTrace",
}

var services = []string{"a", "b", "c"}

// generations is a world of both generations.
type generations struct{ policytest.World }

func (w generations) put(rt *rapid.T, kind resource.Kind, name string, spec any) resource.Key {
	meta := resource.Meta{
		Key:              resource.Key{Kind: kind, Mesh: "m", Name: name},
		ModificationTime: time.Unix(int64(rapid.IntRange(0, 2).Draw(rt, "modified")), 0),
	}
	if kind == resource.KindMesh {
		meta.Key = resource.Key{Kind: kind, Name: name}
	}
	return w.Put(rt, meta, policytest.Spell(rt, spec))
}

type object = map[string]any

func (w generations) drawPolicy(rt *rapid.T) resource.Key {
	kind := rapid.SampledFrom(worldKinds).Draw(rt, "kind")
	service := rapid.SampledFrom(services)
	n := rapid.IntRange(1, 2).Draw(rt, "value")
	match := func(label string) []any {
		return []any{object{"match": object{resource.ServiceTag: rapid.SampledFrom(append([]string{"*"}, services...)).Draw(rt, label)}}}
	}
	target := func(label string, kinds ...string) object {
		t := object{"kind": rapid.SampledFrom(append(kinds, "Mesh")).Draw(rt, label)}
		switch t["kind"] {
		case "Service":
			t["name"] = service.Draw(rt, label+" service")
		case "Proxy":
			t["name"] = fmt.Sprintf("d%d", rapid.IntRange(1, 3).Draw(rt, "proxy"))
		case "HTTPRoute":
			t["name"] = "r1"
		}
		return t
	}
	spec := object{}
	if _, mesh := siblings[kind]; mesh {
		spec["targetRef"] = target("target", "Service", "Proxy")
	}
	backend := fmt.Sprintf("b%d", n)
	item := func(conf object, at object) []any { conf["targetRef"] = at; return []any{conf} }
	switch kind {
	case "MeshTrafficPermission":
		action := rapid.SampledFrom([]string{"ALLOW", "DENY"}).Draw(rt, "action")
		spec["from"] = item(object{"action": action}, target("from", "Service"))
	case "MeshUpstreamTimeout":
		spec["to"] = item(object{"connectTimeout": fmt.Sprintf("%ds", n)}, target("to", "Service", "HTTPRoute"))
	case "MeshLogging":
		spec["to"] = item(object{"backends": []any{object{"name": backend}}}, target("to", "Service"))
		if rapid.Bool().Draw(rt, "from too") {
			spec["from"] = item(object{"backends": []any{object{"name": backend}}}, target("from", "Service"))
		}
	case "MeshTracing":
		spec["conf"] = object{"backends": []any{object{"name": backend}}}
	case "TrafficTrace":
		spec["selectors"], spec["conf"] = match("selector"), object{"backend": backend}
	default:
		spec["sources"], spec["destinations"] = match("source"), match("destination")
		switch kind {
		case "Timeout":
			spec["conf"] = object{"connectTimeout": fmt.Sprintf("%ds", n)}
		case "TrafficLog":
			spec["conf"] = object{"backend": backend}
		}
	}
	return w.put(rt, kind, fmt.Sprintf("p%d", rapid.IntRange(1, 3).Draw(rt, "name")), spec)
}

func (w generations) drawDataplane(rt *rapid.T) resource.Key {
	ports := func(label string, least int) []any {
		var ports []any
		for range rapid.IntRange(least, 2).Draw(rt, label) {
			ports = append(ports, object{
				"port": rapid.IntRange(1, 2).Draw(rt, "port"),
				"tags": object{resource.ServiceTag: rapid.SampledFrom(services).Draw(rt, "service")},
			})
		}
		return ports
	}
	networking := object{"address": "10.0.0.1", "inbound": ports("inbounds", 1)}
	if out := ports("outbounds", 0); len(out) > 0 {
		networking["outbound"] = out
	}
	return w.put(rt, resource.KindDataplane, fmt.Sprintf("d%d", rapid.IntRange(1, 3).Draw(rt, "dataplane")), object{"networking": networking})
}

func drawGenerations(rt *rapid.T) generations {
	w := generations{policytest.NewWorld()}
	rules := rapid.SampledFrom([]string{"KongMesh", "Kuma2020"}).Draw(rt, "rules")
	w.put(rt, resource.KindMesh, "m", object{"matching": object{"sourceDestination": rules}})
	w.put(rt, resource.KindHTTPRoute, "r1", object{
		"parentRefs": []any{object{"kind": "Service", "name": "a"}}, "rules": []any{object{"backendRefs": []any{object{"name": "a"}}}},
	})
	for range rapid.IntRange(1, 3).Draw(rt, "dataplanes") {
		w.drawDataplane(rt)
	}
	for range rapid.IntRange(1, 8).Draw(rt, "policies") {
		w.drawPolicy(rt)
	}
	return w
}

func (w generations) drawChange(rt *rapid.T) resource.Key {
	switch rapid.IntRange(0, 4).Draw(rt, "change") {
	case 0:
		return w.drawDataplane(rt)
	case 1:
		var policies []resource.Key
		for _, key := range w.Keys() {
			if slices.Contains(worldKinds, key.Kind) {
				policies = append(policies, key)
			}
		}
		if len(policies) > 0 {
			key := rapid.SampledFrom(policies).Draw(rt, "removed")
			delete(w.Resources, key)
			return key
		}
	}
	return w.drawPolicy(rt)
}

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
		view := drawGenerations(rt).View()
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
		w := drawGenerations(rt)
		followed := engines.NewMatcher(compiler)
		followed.Reset(w.View())
		before := outcomes(rt, followed, w.View())
		for range rapid.IntRange(1, 4).Draw(rt, "batches") {
			var changed []resource.Key
			for range rapid.IntRange(1, 3).Draw(rt, "changes") {
				changed = append(changed, w.drawChange(rt))
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
		view := drawGenerations(rt).View()
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
