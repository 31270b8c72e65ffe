package generate

import (
	"errors"
	"fmt"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds/world"
)

// Callees returns the rules of faults on the inbounds behind a selector, each once; nil for
// an inbound without any. It is empty where no client is to make them: where there are no
// inbounds, where an Envoy makes them, and where one is in another zone.
type Callees func(selector resource.TagSelector) ([]*policy.Rule, error)

// SelectorRules are what Callees returned for a selector.
type SelectorRules struct {
	Selector resource.TagSelector
	Rules    []*policy.Rule
}

// Same reports whether two rules are the same one, from one state of matching.
func Same(a, b *policy.Rule) bool {
	return a == b || a != nil && b != nil && a.Kind == b.Kind && &a.Steps[0] == &b.Steps[0]
}

// FaultKinds are the kinds of faults that hold on inbounds, the newer last.
var FaultKinds = []resource.Kind{resource.KindFaultInjection, resource.KindMeshHTTPFault}

// CalleesOf returns the Callees of a mesh.
func CalleesOf(m *policy.Matcher, w *world.World, mesh resource.MeshName, endpoints func(resource.TagSelector) *world.Endpoints) Callees {
	if !slices.ContainsFunc(FaultKinds, func(kind resource.Kind) bool { return w.Any(kind, mesh) }) {
		return func(resource.TagSelector) ([]*policy.Rule, error) { return nil, nil }
	}
	return func(s resource.TagSelector) ([]*policy.Rule, error) {
		var found []*policy.Rule
		for _, l := range endpoints(s).Localities {
			for i := range l.Endpoints {
				at := &l.Endpoints[i]
				if l.Zone != "" && l.Zone != w.Zone() || at.Envoy {
					return nil, nil
				}
				rules, err := m.Effective(policy.DataplaneKey(mesh, at.Dataplane))
				if errors.Is(err, policy.ErrNoDataplane) {
					return nil, nil
				}
				if err != nil {
					return nil, fmt.Errorf("the faults of dataplane %s: %w", at.Dataplane, err)
				}
				rule := faultsAt(rules, at.Port, s)
				if !slices.ContainsFunc(found, func(r *policy.Rule) bool { return Same(r, rule) }) {
					found = append(found, rule)
				}
			}
		}
		return found, nil
	}
}

// faultsAt is the rule of faults in effect on the inbound at a port that a selector matches;
// nil for none.
func faultsAt(rules []policy.Rule, port uint32, s resource.TagSelector) (found *policy.Rule) {
	for i := range rules {
		r := &rules[i]
		kind := slices.Index(FaultKinds, r.Kind)
		if kind < 0 || len(r.Steps) == 0 || r.Attachment.Type != policy.OnInbound || r.Attachment.Port != port || !s.Matches(r.Attachment.Tags) {
			continue
		}
		if found == nil || slices.Index(FaultKinds, found.Kind) < kind { // it supersedes the other (§4.11)
			found = r
		}
	}
	return found
}
