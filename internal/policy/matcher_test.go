package policy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// The engine below has toy policies and every way to reach a dataplane, so that
// the core is tested on its own.

const (
	toyKind   resource.Kind = "Toy"
	routeKind resource.Kind = "ToyRoute"
)

// toySpec is a policy that takes effect wherever its reaches say. With a Route
// it takes effect on that route of the attachment, while the route exists.
type toySpec struct {
	Reach []policy.Reach
	Route string
	Conf  policy.Tree
}

func (*toySpec) Validate(resource.Path, *resource.Report) {}

type toyEngine struct{}

func (toyEngine) Kinds() []resource.Kind { return []resource.Kind{toyKind} }

func (toyEngine) Compile(view policy.View, r *resource.Resource) *policy.Policy {
	spec := r.Spec().(*toySpec)
	p := &policy.Policy{Resource: r, Reach: spec.Reach}
	if spec.Route != "" {
		route := resource.Key{Kind: routeKind, Mesh: r.Key().Mesh, Name: spec.Route}
		p.Depends = []resource.Key{route}
		if _, ok := view.Get(route); !ok {
			p.Reach = nil
		}
	}
	return p
}

func (toyEngine) Rules(q *policy.Query) []policy.Rule {
	byRoute := map[string]*policy.Rule{}
	slices.SortFunc(q.Candidates, func(a, b *policy.Policy) int { return strings.Compare(a.Key().Name, b.Key().Name) })
	for i, p := range q.Candidates {
		if !p.Reaches(q.Dataplane, q.Attachment) {
			continue
		}
		spec := p.Resource.Spec().(*toySpec)
		rule := byRoute[spec.Route]
		if rule == nil {
			rule = &policy.Rule{Target: policy.Target{Attachment: *q.Attachment, Kind: q.Kind}}
			rule.Attachment.Route = spec.Route
			byRoute[spec.Route] = rule
		}
		rule.Steps = append(rule.Steps, policy.Step{
			Op: policy.Fill, Conf: spec.Conf, Origin: p.Key(), Precedence: precedence{p.Key().Name, i},
		})
	}
	var rules []policy.Rule
	for _, route := range slices.Sorted(maps.Keys(byRoute)) {
		rules = append(rules, *byRoute[route])
	}
	return rules
}

// toys is a world of toy resources.
type toys map[resource.Key]*resource.Resource

func (w toys) put(kind resource.Kind, mesh, name string, spec resource.Spec) resource.Key {
	key := resource.Key{Kind: kind, Mesh: resource.MeshName(mesh), Name: name}
	w[key] = resource.New(resource.Meta{Key: key}, spec, nil)
	return key
}

func (w toys) view() policy.View {
	return policy.NewSnapshot(slices.Collect(maps.Values(w))...)
}

func (w toys) matcher() *policy.Matcher {
	m := policy.NewMatcher(toyEngine{})
	m.Reset(w.view())
	return m
}

func tags(rt *rapid.T) resource.Tags {
	t := resource.Tags{resource.ServiceTag: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "service")}
	if rapid.Bool().Draw(rt, "more") {
		t["v"] = rapid.SampledFrom([]string{"1", "2"}).Draw(rt, "v")
	}
	return t
}

func selector(rt *rapid.T) resource.TagSelector {
	s := resource.TagSelector{}
	for _, tag := range []string{resource.ServiceTag, "v"} {
		if v := rapid.SampledFrom([]string{"", "", "*", "a", "1"}).Draw(rt, tag); v != "" {
			s[tag] = v
		}
	}
	return s
}

func (w toys) drawDataplane(rt *rapid.T) resource.Key {
	spec := &resource.Dataplane{}
	if rapid.IntRange(0, 2).Draw(rt, "gateway") == 0 {
		spec.Networking.Gateway = &resource.DataplaneGateway{Tags: tags(rt)}
	} else {
		for range rapid.IntRange(1, 2).Draw(rt, "inbounds") {
			spec.Networking.Inbound = append(spec.Networking.Inbound, resource.Inbound{Port: 1, Tags: tags(rt)})
		}
	}
	for range rapid.IntRange(0, 2).Draw(rt, "outbounds") {
		spec.Networking.Outbound = append(spec.Networking.Outbound, resource.Outbound{Port: 1, Tags: tags(rt)})
	}
	return w.put("Dataplane", "m", fmt.Sprintf("d%d", rapid.IntRange(1, 4).Draw(rt, "dataplane")), spec)
}

func (w toys) drawPolicy(rt *rapid.T) resource.Key {
	spec := &toySpec{Conf: drawTree(rt, 1)}
	for range rapid.IntRange(1, 3).Draw(rt, "reaches") {
		r := policy.Reach{
			On:          rapid.SampledFrom([]policy.AttachmentType{policy.OnDataplane, policy.OnInbound, policy.OnOutbound}).Draw(rt, "on"),
			Member:      selector(rt),
			GatewayOnly: rapid.IntRange(0, 3).Draw(rt, "gateways only") == 0,
		}
		if rapid.IntRange(0, 2).Draw(rt, "sends") == 0 {
			r.Sends = selector(rt)
		}
		if rapid.IntRange(0, 2).Draw(rt, "named") == 0 {
			r.Name = fmt.Sprintf("d%d", rapid.IntRange(1, 4).Draw(rt, "name"))
		}
		if r.On != policy.OnDataplane {
			r.Attachment = selector(rt)
		}
		spec.Reach = append(spec.Reach, r)
	}
	if rapid.IntRange(0, 2).Draw(rt, "routed") == 0 {
		spec.Route = fmt.Sprintf("r%d", rapid.IntRange(1, 2).Draw(rt, "route"))
	}
	return w.put(toyKind, "m", fmt.Sprintf("p%d", rapid.IntRange(1, 5).Draw(rt, "policy")), spec)
}

func (w toys) drawChange(rt *rapid.T) resource.Key {
	switch rapid.IntRange(0, 9).Draw(rt, "change") {
	case 0:
		return w.put("Mesh", "", "m", &resource.Mesh{})
	case 1, 2:
		return w.put(routeKind, "m", fmt.Sprintf("r%d", rapid.IntRange(1, 2).Draw(rt, "route")), &toySpec{})
	case 3, 4, 5:
		return w.drawDataplane(rt)
	case 6:
		if len(w) > 0 {
			key := rapid.SampledFrom(slices.SortedFunc(maps.Keys(w), resource.Key.Compare)).Draw(rt, "delete")
			delete(w, key)
			return key
		}
	}
	return w.drawPolicy(rt)
}

// naive works everything out by asking the engine about every policy for every
// attachment: no index, no shapes.
func (w toys) naive(t require.TestingT) map[string]map[string]string {
	view := w.view()
	all := map[string]map[string]string{}
	mesh := policy.MeshOf(view, "m")
	var compiled []*policy.Policy
	for r := range view.List(toyKind, "m") {
		compiled = append(compiled, toyEngine{}.Compile(view, r))
	}
	m := policy.NewMatcher()
	m.Reset(view)
	for r := range view.List("Dataplane", "m") {
		all[r.Key().Name] = map[string]string{}
		var shape *policy.Shape
		require.NoError(t, m.Read(func(reading *policy.Reading) (err error) {
			shape, err = reading.Dataplane(r.Key())
			return err
		}))
		for i := range shape.Attachments {
			q := &policy.Query{
				Mesh: mesh, Dataplane: &policy.Dataplane{Name: r.Key().Name, Shape: shape},
				Attachment: &shape.Attachments[i], Kind: toyKind, Candidates: slices.Clone(compiled),
			}
			if mesh.Exists {
				record(all[r.Key().Name], toyEngine{}.Rules(q))
			}
		}
	}
	return all
}

// record spells what rules come to, by target.
func record(into map[string]string, rules []policy.Rule) {
	for i := range rules {
		fold := rules[i].Fold()
		outcome, err := json.Marshal([]any{fold.Conf(), fold.Fields(), rules[i].Policies()})
		if err != nil {
			panic(err) // trees of strings and numbers always encode
		}
		into[targetName(&rules[i].Target)] = string(outcome)
	}
}

func targetName(t *policy.Target) string {
	at, err := json.Marshal(t.Attachment)
	if err != nil {
		panic(err) // an attachment always encodes
	}
	return string(at)
}

func matched(t require.TestingT, m *policy.Matcher) map[string]map[string]string {
	all := map[string]map[string]string{}
	for i := 1; i <= 4; i++ {
		name := fmt.Sprintf("d%d", i)
		rules, err := m.Effective(policy.DataplaneKey("m", name))
		if err != nil {
			require.ErrorIs(t, err, policy.ErrNoDataplane)
			continue
		}
		all[name] = map[string]string{}
		record(all[name], rules)
	}
	return all
}

// The indexed, incremental matcher gives what the naive one gives, after any
// sequence of changes, and names exactly what changed.
func TestMatcherEqualsNaive(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := toys{}
		w.put("Mesh", "", "m", &resource.Mesh{})
		for range rapid.IntRange(0, 8).Draw(rt, "resources") {
			w.drawChange(rt)
		}
		m := w.matcher()
		before := w.naive(rt)
		require.Equal(rt, before, matched(rt, m))
		for range rapid.IntRange(1, 6).Draw(rt, "batches") {
			var changed []resource.Key
			for range rapid.IntRange(1, 3).Draw(rt, "changes") {
				changed = append(changed, w.drawChange(rt))
			}
			touched := m.Update(w.view(), changed)
			after := w.naive(rt)
			require.Equal(rt, after, matched(rt, m))
			require.Equal(rt, changes(before, after), named(touched))
			before = after
		}
	})
}

// changes lists, per dataplane that is new, gone or different, the targets that
// differ; a new dataplane without any is not listed.
func changes(before, after map[string]map[string]string) map[string][]string {
	all := map[string][]string{}
	for name, targets := range after {
		var differ []string
		for at, outcome := range targets {
			if before[name][at] != outcome {
				differ = append(differ, at)
			}
		}
		for at := range before[name] {
			if _, still := targets[at]; !still {
				differ = append(differ, at)
			}
		}
		slices.Sort(differ)
		if len(differ) > 0 {
			all[name] = differ
		}
	}
	for name := range before {
		if _, still := after[name]; !still {
			all[name] = []string{"gone"}
		}
	}
	return all
}

func named(touched []policy.Touch) map[string][]string {
	all := map[string][]string{}
	for _, t := range touched {
		var targets []string
		for i := range t.Targets {
			targets = append(targets, targetName(&t.Targets[i]))
		}
		slices.Sort(targets)
		if t.Gone {
			targets = []string{"gone"}
		}
		all[t.Dataplane.Name] = targets
	}
	return all
}

// Where a policy is used is where dataplanes use it.
func TestPlacementsAreWhereItIsUsed(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := toys{}
		w.put("Mesh", "", "m", &resource.Mesh{})
		for range rapid.IntRange(0, 12).Draw(rt, "resources") {
			w.drawChange(rt)
		}
		m := w.matcher()
		want := map[resource.Key]map[string][]string{}
		for r := range w.view().List("Dataplane", "m") {
			rules, err := m.Effective(r.Key())
			require.NoError(rt, err)
			for i := range rules {
				for _, p := range rules[i].Policies() {
					if want[p] == nil {
						want[p] = map[string][]string{}
					}
					want[p][r.Key().Name] = append(want[p][r.Key().Name], targetName(&rules[i].Target))
				}
			}
		}
		require.NoError(rt, m.Read(func(reading *policy.Reading) error {
			for p := range w.view().List(toyKind, "m") {
				placed, err := reading.Placements(p.Key())
				require.NoError(rt, err)
				got := map[string][]string{}
				for _, at := range placed {
					for i := range at.Attachments {
						got[at.Dataplane.Name] = append(got[at.Dataplane.Name], targetName(&policy.Target{Attachment: at.Attachments[i]}))
					}
				}
				require.Len(rt, got, len(want[p.Key()]))
				for name, targets := range want[p.Key()] {
					require.Equal(rt, targets, got[name])
				}
			}
			return nil
		}))
	})
}

// An update works out what its change can touch, not what exists.
func TestUpdateLeavesTheRestAlone(t *testing.T) {
	w := toys{}
	w.put("Mesh", "", "m", &resource.Mesh{})
	for i := range 100 {
		service := resource.Tags{resource.ServiceTag: fmt.Sprintf("s%d", i)}
		w.put("Dataplane", "m", fmt.Sprintf("d%d", i), &resource.Dataplane{Networking: resource.Networking{
			Inbound: []resource.Inbound{{Port: 1, Tags: service}},
		}})
		w.put(toyKind, "m", fmt.Sprintf("p%d", i), &toySpec{Reach: []policy.Reach{{
			On: policy.OnInbound, Member: resource.TagSelector(service), Attachment: resource.TagSelector(service),
		}}})
	}
	m := w.matcher()
	key := w.put(toyKind, "m", "p7", &toySpec{
		Reach: []policy.Reach{{On: policy.OnInbound, Attachment: resource.TagSelector{resource.ServiceTag: "s7"}}},
		Conf:  policy.Tree{"x": "y"},
	})
	before := m.Computed()
	touched := m.Update(w.view(), []resource.Key{key})
	require.Len(t, touched, 1)
	require.Equal(t, "d7", touched[0].Dataplane.Name)
	require.Equal(t, uint64(2), m.Computed()-before, "one attachment, before and after")
}

// Dataplanes of equal shape share one computation.
func TestEqualShapesShareTheirRules(t *testing.T) {
	w := toys{}
	w.put("Mesh", "", "m", &resource.Mesh{})
	for i := range 10 {
		w.put("Dataplane", "m", fmt.Sprintf("d%d", i), &resource.Dataplane{Networking: resource.Networking{
			Inbound: []resource.Inbound{{Port: 1, Tags: resource.Tags{resource.ServiceTag: "s"}}},
		}})
	}
	w.put(toyKind, "m", "p", &toySpec{Reach: []policy.Reach{{On: policy.OnInbound}}})
	m := w.matcher()
	for i := range 10 {
		_, err := m.Effective(policy.DataplaneKey("m", fmt.Sprintf("d%d", i)))
		require.NoError(t, err)
	}
	require.Equal(t, uint64(1), m.Computed())

	// A policy that names one of them separates it from the others.
	key := w.put(toyKind, "m", "named", &toySpec{Reach: []policy.Reach{{On: policy.OnInbound, Name: "d3"}}, Conf: policy.Tree{"x": "y"}})
	touched := m.Update(w.view(), []resource.Key{key})
	require.Len(t, touched, 1)
	require.Equal(t, "d3", touched[0].Dataplane.Name)
}

// recorder is a follower that notes what it is told.
type recorder struct{ told []string }

func (r *recorder) Reset(policy.View) { r.told = append(r.told, "reset") }

func (r *recorder) Update(_ policy.View, changed []resource.Key) {
	r.told = append(r.told, fmt.Sprint("update ", len(changed)))
}

func TestFollowersAreKeptUpToDate(t *testing.T) {
	r := &recorder{}
	m := policy.NewMatcher(toyEngine{}).Following(r)
	m.Reset(policy.NewSnapshot())
	m.Update(policy.NewSnapshot(), []resource.Key{{Kind: "Mesh", Name: "m"}})
	require.Equal(t, []string{"reset", "update 1"}, r.told)
	found, ok := policy.FollowerOf[*recorder](m)
	require.True(t, ok)
	require.Same(t, r, found)
	_, ok = policy.FollowerOf[policy.Conditioner](m)
	require.False(t, ok)
}

func TestTwoEnginesForOneKind(t *testing.T) {
	require.PanicsWithValue(t, "policy: two engines for kind Toy", func() { policy.NewMatcher(toyEngine{}, toyEngine{}) })
}
