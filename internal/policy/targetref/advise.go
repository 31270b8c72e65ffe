package targetref

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Advise implements policy.Adviser: targets that select nothing, items that can
// never take effect, policies that tie on kind, and an unset that the mesh
// forbids.
func (s *survey) Advise(_ policy.View, r *resource.Resource) []resource.Problem {
	spec, ok := r.Spec().(resource.TargetRefSpec)
	if !ok {
		return nil
	}
	a := &advice{survey: s, compiled: s.policy(r).Data.(*compiled)}
	a.matching = policy.MeshOf(s.view, a.key.Mesh).Matching
	a.top()
	for _, b := range a.blocks() {
		for i := range b.to {
			a.toItem(&b.to[i])
		}
		for i := range b.from {
			a.fromItem(&b.from[i])
		}
		a.shadowed(b.to)
		a.shadowed(b.from)
	}
	if len(a.unset) > 0 && a.matching.Unset == resource.UnsetForbidden {
		a.Findf(resource.CodeNoEffect, "unset", "has no effect: mesh %s forbids unsetting", a.key.Mesh)
	}
	a.guards(spec)
	a.deniesAll(r)
	a.ties(r)
	return a.Problems
}

// advice is an Advise under way.
type advice struct {
	*survey
	*compiled
	resource.Report
	matching resource.MeshMatching
}

// top warns of a top-level target that selects nothing.
func (a *advice) top() {
	const at resource.Path = "targetRef"
	switch a.target.Kind {
	case resource.TargetMesh:
	case resource.TargetProxy:
		a.lostProxy(at.Field("name"))
	case resource.TargetHTTPRoute, resource.TargetMeshGatewayRoute:
		a.lost(at.Field("name"), a.compiled.route)
	default:
		member, never := memberOf(a.target)
		if never {
			a.Findf(resource.CodeNeverMatches, at.Field("tags"), "selects nothing: %s stands against the service %s", resource.ServiceTag, a.target.Name)
		} else if c := a.dps.Of(a.key.Mesh); len(c.Specs) > 0 {
			if message, _ := c.Lacks(member); message != "" {
				a.Findf(resource.CodeSelectsNothing, at, "%s", message)
			}
		}
	}
}

func (a *advice) lostProxy(at resource.Path) {
	if _, exists := a.view.Get(policy.DataplaneKey(a.key.Mesh, a.target.Name)); exists {
		return
	}
	if names := a.named(resource.KindDataplane, a.key.Mesh); len(names) > 0 {
		guess, _ := a.dps.DidYouMean(a.target.Name, maps.Keys(names))
		a.Findf(resource.CodeTargetNotFound, at, "there is no dataplane %s%s", a.target.Name, guess)
	}
}

// lost warns of a route that does not exist, or is on nothing.
func (a *advice) lost(at resource.Path, r *route) {
	kind := resource.KindHTTPRoute
	if r.kind == resource.TargetMeshGatewayRoute {
		kind = resource.KindMeshGatewayRoute
	}
	_, exists := a.view.Get(resource.Key{Kind: kind, Mesh: a.key.Mesh, Name: r.name})
	switch c := a.dps.Of(a.key.Mesh); {
	case !exists:
		guess, _ := a.dps.DidYouMean(r.name, maps.Keys(a.named(kind, a.key.Mesh)))
		a.Findf(resource.CodeTargetNotFound, at, "there is no %s %s%s", kind, r.name, guess)
	case len(r.places) == 0:
		a.Findf(resource.CodeSelectsNothing, at, "%s %s is attached to no service and to no mesh gateway with destinations", kind, r.name)
	case len(c.Specs) > 0 && !slices.ContainsFunc(r.places, a.reaches(a.key.Mesh)):
		a.Findf(resource.CodeSelectsNothing, at, "no outbound leads to what %s %s is attached to", kind, r.name)
	}
}

func (a *advice) toItem(it *item) {
	at := it.path.Field("targetRef").Field("name")
	switch {
	case it.route != nil && a.compiled.route != nil && it.route.routeID != a.compiled.route.routeID:
		a.Findf(resource.CodeNeverMatches, at, "can never take effect: the policy holds for %s only", a.target)
	case it.route != nil:
		a.lost(at, it.route)
	case it.target.Kind == resource.TargetService:
		if consumed := a.dps.Of(a.key.Mesh).Consumed(); len(consumed) > 0 && !consumed[it.target.Name] {
			guess, _ := a.dps.DidYouMean(it.target.Name, maps.Keys(consumed))
			a.Findf(resource.CodeSelectsNothing, at, "no outbound has %s=%s%s", resource.ServiceTag, it.target.Name, guess)
		}
	}
}

// fromItem warns of callers that cannot exist, and of probable misspellings.
// Other unknown callers may be in other zones.
func (a *advice) fromItem(it *item) {
	at := it.path.Field("targetRef")
	switch c := a.dps.Of(a.key.Mesh); {
	case it.never:
		a.Findf(resource.CodeNeverMatches, at.Field("tags"), "can never take effect: %s stands against the service %s", resource.ServiceTag, it.target.Name)
	case len(it.callers) > 0 && len(c.Specs) > 0:
		if message, near := c.Lacks(it.callers); near {
			a.Findf(resource.CodeSelectsNothing, at, "%s", message)
		}
	}
}

// shadowed warns of items that an earlier one of the same list leaves nothing to
// do.
func (a *advice) shadowed(items []item) {
	ordered := make([]*item, len(items))
	for i := range items {
		ordered[i] = &items[i]
	}
	first := "first"
	if a.matching.TargetRef == resource.LastWins {
		slices.Reverse(ordered)
		first = "last"
	}
	rule := policy.Rule{PerCaller: true}
	for _, it := range ordered {
		rule.Steps = append(rule.Steps, policy.Step{Op: policy.Fill, Conf: it.conf, Match: it.about()})
	}
	for i, by := range rule.Shadows() {
		if by >= 0 && !ordered[i].never {
			a.Findf(resource.CodeShadowedRule, ordered[i].path, "can never take effect: %s targets %s and sets the same, and the %s item that has a field sets it",
				ordered[by].path, ordered[by].target, first)
		}
	}
}

// about is the item's target as a selector: one covers another as the targets
// do.
func (it *item) about() resource.TagSelector {
	switch {
	case it.route != nil:
		return resource.TagSelector{"\x00route": it.target.Name}
	case it.target.Kind == resource.TargetService:
		return service(it.target.Name)
	default:
		return it.callers
	}
}

// maxNeighbours bounds how many policies that tie with one are compared with it,
// to either side, and maxPairs how many of their items.
const (
	maxNeighbours = 8
	maxPairs      = 4096
)

// ties tells which policy has priority over which, where only their names decide
// (§4.3) and they set the same.
func (a *advice) ties(r *resource.Resource) {
	peers := a.peersOf(r)
	i, found := slices.BinarySearchFunc(peers, a.key.Name, func(r *resource.Resource, name string) int {
		return strings.Compare(r.Key().Name, name)
	})
	if !found {
		return
	}
	earlier := slices.Clone(peers[max(0, i-maxNeighbours):i])
	slices.Reverse(earlier)
	a.tie(earlier, a.matching.TargetRef != resource.LastWins)
	a.tie(peers[i+1:min(len(peers), i+1+maxNeighbours)], a.matching.TargetRef == resource.LastWins)
}

// tie reports the first of some policies, the nearest name first, that sets what
// this one sets.
func (a *advice) tie(peers []*resource.Resource, above bool) {
	sorts := "later"
	if a.matching.TargetRef == resource.LastWins {
		sorts = "first"
	}
	for _, r := range peers {
		other := a.policy(r).Data.(*compiled)
		field, both := a.contest(other)
		if !both {
			continue
		}
		verb := "has priority over"
		if !above {
			verb = "has lower priority than"
		}
		a.Tie("targetRef", fmt.Sprintf("policies that target %s and set %s: the name that sorts %s has priority", other.target, field, sorts),
			"%s %s, which targets %s too and sets %s: the name that sorts %s has priority",
			verb, other.key.Name, other.target, field, sorts)
		return
	}
}

// contest returns a field that both policies set, by default, for the same.
func (c *compiled) contest(other *compiled) (string, bool) {
	if c.under == nil || other.under == nil {
		return "", false
	}
	for _, on := range []policy.AttachmentType{policy.OnDataplane, policy.OnOutbound, policy.OnInbound} {
		mine, theirs := c.under.items(on), other.under.items(on)
		if len(mine)*len(theirs) > maxPairs {
			continue
		}
		for i := range mine {
			for j := range theirs {
				if field, ok := mine[i].contest(&theirs[j]); ok {
					return field, true
				}
			}
		}
	}
	return "", false
}

func (it *item) contest(other *item) (string, bool) {
	if _, meet := both(it.about(), other.about()); !meet || it.never || other.never {
		return "", false
	}
	for _, leaf := range policy.Leaves(it.conf, 0) {
		if _, has := policy.At(other.conf, leaf); has {
			if it.target.Kind == "" || it.target.Kind == resource.TargetMesh {
				return string(leaf), true
			}
			return fmt.Sprintf("%s for %s", leaf, it.target), true
		}
	}
	return "", false
}
