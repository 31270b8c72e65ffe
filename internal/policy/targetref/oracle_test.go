package targetref_test

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

// The oracle below reads §4 as plainly as it can be written: no index,
// no sharing, no fold; every policy is looked at for every attachment, and every
// field is set by the first claim that has it. It knows bare configuration and
// merged blocks; atomic blocks and conditions are told by example.

type oracle struct {
	view  policy.View
	rules resource.MeshMatching
}

// claim is what one item of one policy says about an attachment.
type claim struct {
	key     resource.Key
	spec    resource.TargetRefSpec
	created int64
	over    bool
	place   int
	target  resource.Target
	leaves  map[string]any
}

// flatten lists the leaf fields of a tree by pointer.
func flatten(into map[string]any, at string, v any) map[string]any {
	if o, ok := v.(map[string]any); ok && len(o) > 0 {
		for name, member := range o {
			flatten(into, at+"/"+name, member)
		}
	} else if at != "" {
		into[at] = v
	}
	return into
}

func selectorOf(t resource.Target) resource.TagSelector {
	s := maps.Clone(t.Tags)
	if s == nil {
		s = resource.TagSelector{}
	}
	if t.Kind == resource.TargetService || t.Kind == resource.TargetServiceSubset {
		s[resource.ServiceTag] = t.Name
	}
	return s
}

// onRoute says whether a route is on an outbound (§4.2).
func (o *oracle) onRoute(dp *resource.Resource, kind resource.TargetKind, name string, tags resource.Tags) bool {
	gateway := dp.Spec().(*resource.Dataplane).GatewayTags()
	if kind == resource.TargetMeshGatewayRoute {
		r, ok := o.view.Get(resource.Key{Kind: "MeshGatewayRoute", Mesh: mesh, Name: name})
		if !ok || gateway == nil {
			return false
		}
		spec := r.Spec().(*resource.MeshGatewayRoute)
		to := spec.Conf.TCP.Rules[0].Backends[0].Destination
		for tag, value := range to {
			if got, has := tags[tag]; has && got != value {
				return false
			}
		}
		return spec.DataplaneSelectors()[0].Matches(gateway) && tags[resource.ServiceTag] == to[resource.ServiceTag]
	}
	r, ok := o.view.Get(resource.Key{Kind: "HTTPRoute", Mesh: mesh, Name: name})
	if !ok {
		return false
	}
	spec := r.Spec().(*resource.HTTPRoute)
	parent := spec.ParentRefs[0]
	if parent.ParentKind() == "Service" {
		return parent.Name == tags[resource.ServiceTag]
	}
	_, exists := o.view.Get(resource.Key{Kind: "MeshGateway", Mesh: mesh, Name: parent.Name})
	return exists && gateway != nil && gateway[resource.ServiceTag] == "a" &&
		spec.Rules[0].BackendRefs[0].Name == tags[resource.ServiceTag]
}

// selects says whether a policy is about a dataplane's attachment, or the route
// of it that is named (§4.2).
func (o *oracle) selects(dp *resource.Resource, at *policy.Attachment, kind resource.TargetKind, t resource.Target) bool {
	members := dp.Spec().(*resource.Dataplane).TagSets()
	switch t.Kind {
	case resource.TargetMesh:
		return true
	case resource.TargetProxy:
		return t.Name == dp.Key().Name
	case resource.TargetHTTPRoute, resource.TargetMeshGatewayRoute:
		if at.Route != t.Name || kind != t.Kind {
			return false
		}
		if at.Type == policy.OnDataplane {
			return o.onDataplane(dp, t)
		}
		return o.onRoute(dp, t.Kind, t.Name, at.Tags)
	default:
		return slices.ContainsFunc(members, selectorOf(t).Matches)
	}
}

// onDataplane says whether a route is on some outbound, or on the gateway.
func (o *oracle) onDataplane(dp *resource.Resource, t resource.Target) bool {
	spec := dp.Spec().(*resource.Dataplane)
	if gateway := spec.GatewayTags(); t.Kind == resource.TargetMeshGatewayRoute && gateway != nil {
		r, ok := o.view.Get(resource.Key{Kind: "MeshGatewayRoute", Mesh: mesh, Name: t.Name})
		return ok && r.Spec().(*resource.MeshGatewayRoute).DataplaneSelectors()[0].Matches(gateway)
	} else if gateway != nil {
		if r, ok := o.view.Get(resource.Key{Kind: "HTTPRoute", Mesh: mesh, Name: t.Name}); ok {
			parent := r.Spec().(*resource.HTTPRoute).ParentRefs[0]
			_, exists := o.view.Get(resource.Key{Kind: "MeshGateway", Mesh: mesh, Name: parent.Name})
			if parent.ParentKind() == "MeshGateway" {
				return exists && gateway[resource.ServiceTag] == "a"
			}
		}
	}
	return slices.ContainsFunc(spec.Outbounds(), func(out resource.Outbound) bool { return o.onRoute(dp, t.Kind, t.Name, out.Tags) })
}

// claims lists what policies say about an attachment, the highest priority
// first, and which of them name its route. kind is that of the route.
func (o *oracle) claims(policyKind resource.Kind, dp *resource.Resource, at *policy.Attachment, kind resource.TargetKind) (list []claim, named bool) {
	unset := map[string][]claim{} // by pointer: who takes it out, and where
	for r := range o.view.List(policyKind, mesh) {
		spec := r.Spec().(resource.TargetRefSpec)
		top := spec.TopTarget()
		if !o.selects(dp, at, kind, top) {
			continue
		}
		base := claim{key: r.Key(), spec: spec, created: r.Meta().CreationTime.Unix()}
		isRoute := top.Kind == resource.TargetHTTPRoute || top.Kind == resource.TargetMeshGatewayRoute
		count := 0
		add := func(over bool, block *resource.TargetBlock) {
			if block == nil {
				return
			}
			c := base
			c.over = over
			items := block.To
			switch at.Type {
			case policy.OnDataplane:
				items = nil
				if block.Own != nil {
					items = []resource.TargetItem{{Conf: block.Own}}
				}
			case policy.OnInbound:
				items = block.From
			}
			for i, it := range items {
				routed := it.Kind == resource.TargetHTTPRoute
				if routed && (at.Route != it.Name || kind != it.Kind || !o.onRoute(dp, kind, it.Name, at.Tags)) {
					continue
				}
				if at.Type == policy.OnOutbound && it.Kind == resource.TargetService && it.Name != at.Service {
					continue
				}
				named = named || routed || isRoute
				c.place, c.target, c.leaves = i, it.Target, flatten(map[string]any{}, "", it.Conf)
				list = append(list, c)
				count++
				for _, p := range spec.UnsetPointers() {
					unset[p] = append(unset[p], c)
				}
			}
		}
		if spec.Defaults() == nil && spec.Overrides() == nil {
			add(false, &resource.TargetBlock{To: spec.ToItems(), From: spec.FromItems(), Own: spec.OwnConf()})
		}
		add(false, spec.Defaults())
		add(true, spec.Overrides())
		alone := spec.Defaults() == nil && spec.Overrides() == nil && spec.ToItems() == nil && spec.FromItems() == nil && spec.OwnConf() == nil
		if alone {
			named = named || isRoute
			for _, p := range spec.UnsetPointers() {
				unset[p] = append(unset[p], base)
			}
		}
	}
	slices.SortStableFunc(list, o.compare)
	if o.rules.Unset == resource.UnsetForbidden {
		return list, named
	}
	kept := list[:0]
	for _, c := range list {
		had := len(c.leaves)
		for p, by := range unset {
			if c.over || !slices.ContainsFunc(by, func(u claim) bool { return o.takesFrom(u, c, at) }) {
				continue
			}
			maps.DeleteFunc(c.leaves, func(leaf string, _ any) bool { return leaf == p || strings.HasPrefix(leaf, p+"/") })
		}
		if len(c.leaves) > 0 || had == 0 {
			kept = append(kept, c)
		}
	}
	return kept, named
}

// takesFrom says whether what u unsets is taken out of c (§4.10): c is a less
// specific default and, among callers, about the same target.
func (o *oracle) takesFrom(u, c claim, at *policy.Attachment) bool {
	if u.key == c.key || o.priority(u, c) >= 0 {
		return false
	}
	return at.Type != policy.OnInbound || u.leaves == nil || u.target.String() == c.target.String()
}

// priority orders policies by §4.3.
func (o *oracle) priority(a, b claim) int {
	byName := strings.Compare(b.key.Name, a.key.Name)
	if o.rules.TargetRef == resource.LastWins {
		byName = -byName
	}
	return cmp.Or(b.spec.TopTarget().Kind.Priority()-a.spec.TopTarget().Kind.Priority(), byName)
}

// compare orders claims: overrides first, the least specific and oldest of them
// first (§4.10), then defaults (§4.3), then by place in the policy (§4.4, §4.5).
func (o *oracle) compare(a, b claim) int {
	place := a.place - b.place
	if o.rules.TargetRef == resource.LastWins {
		place = -place
	}
	switch {
	case a.over != b.over:
		if a.over {
			return -1
		}
		return 1
	case a.over:
		return cmp.Or(a.spec.TopTarget().Kind.Priority()-b.spec.TopTarget().Kind.Priority(),
			cmp.Compare(a.created, b.created), strings.Compare(a.key.Name, b.key.Name), place)
	default:
		return cmp.Or(o.priority(a, b), place)
	}
}

// merge gives every field to the first claim that has it (§4.5).
func merge(claims []claim) (values map[string]any, from map[string]string) {
	values, from = map[string]any{}, map[string]string{}
	for _, c := range claims {
		for leaf, v := range c.leaves {
			if _, set := values[leaf]; !set {
				values[leaf], from[leaf] = v, c.key.Name
			}
		}
	}
	return values, from
}

func provenance(f *policy.Fold) map[string]string {
	from := map[string]string{}
	for p, key := range f.Fields() {
		from[string(p)] = key.Name
	}
	return from
}

// entry is one (attachment, route, kind) of a dataplane.
type entry struct {
	at   policy.Attachment
	kind resource.TargetKind // of the route
}

// entries lists every attachment and every route it could have.
func entries(shape *policy.Shape) []entry {
	var list []entry
	for _, at := range shape.Attachments {
		list = append(list, entry{at: at})
		for _, kind := range []resource.TargetKind{resource.TargetHTTPRoute, resource.TargetMeshGatewayRoute} {
			for _, name := range routes {
				routed := at
				routed.Route = name
				list = append(list, entry{routed, kind})
			}
		}
	}
	return list
}

// The engine decides as the plain reading of §4 does: on every
// attachment and route, for every field, and for random callers.
func TestEngineEqualsPlainReading(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt, true)
		view := w.View()
		m := matcher(view)
		o := &oracle{view: view, rules: policy.MeshOf(view, mesh).Matching}
		caller := []resource.Tags{drawTags(rt), drawTags(rt)}
		for dp := range view.List("Dataplane", mesh) {
			rules := effective(rt, m, dp.Key())
			seen := 0
			for _, e := range entries(shapeOf(rt, m, dp.Key())) {
				for _, kind := range kinds {
					claims, named := o.claims(resource.Kind(kind), dp, &e.at, e.kind)
					if len(claims) == 0 || (e.at.Route != "" && (!named || e.at.Type == policy.OnInbound)) {
						continue
					}
					seen++
					rule := findRule(rt, rules, e.at, kind, claims)
					requireMerged(rt, rule, claims, caller)
				}
			}
			require.Equal(rt, seen, countWithFields(rules), "as many entries as the plain reading has: %s", policytest.Spell(rt, rules))
		}
	})
}

// countWithFields counts the rules to which some policy has something to say.
func countWithFields(rules []policy.Rule) int {
	n := 0
	for i := range rules {
		if slices.ContainsFunc(rules[i].Steps, func(s policy.Step) bool { return len(s.Conf) > 0 }) {
			n++
		}
	}
	return n
}

// findRule finds the rule of an entry. Routes of two kinds with one name have
// one entry each; the one with the same claims is meant.
func findRule(t require.TestingT, rules []policy.Rule, at policy.Attachment, kind string, claims []claim) *policy.Rule {
	values, _ := merge(claims)
	var found *policy.Rule
	for i := range rules {
		if r := &rules[i]; string(r.Kind) == kind && r.Attachment.Compare(&at) == 0 {
			found = r
			if reflect.DeepEqual(values, flatten(map[string]any{}, "", r.Fold().Conf())) {
				return r
			}
		}
	}
	require.NotNil(t, found, "%s on %s", kind, &at)
	return found
}

func requireMerged(t require.TestingT, rule *policy.Rule, claims []claim, caller []resource.Tags) {
	if rule.PerCaller {
		rule = rule.ForCaller(caller)
		claims = slices.DeleteFunc(slices.Clone(claims), func(c claim) bool {
			return !slices.ContainsFunc(caller, selectorOf(c.target).Matches)
		})
	}
	values, from := merge(claims)
	fold := rule.Fold()
	require.Equal(t, values, flatten(map[string]any{}, "", fold.Conf()))
	require.Equal(t, from, provenance(fold))
}
