package generate

import (
	"errors"
	"fmt"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds/world"
)

// Callees returns the faults on the inbounds behind a selector.
type Callees func(selector resource.TagSelector) (Called, error)

// Called are the faults on the inbounds that calls can go to.
type Called struct {
	// Rules are those of inbounds that no Envoy serves, each once; nil for an inbound
	// without any.
	Rules []*policy.Rule
	// Mixed is whether clients make none of them: there are other inbounds of which an Envoy
	// makes the faults, or whose faults are not known here.
	Mixed bool
}

// Same reports whether two are the same, from one state of matching.
func (c Called) Same(other Called) bool {
	return c.Mixed == other.Mixed && slices.EqualFunc(c.Rules, other.Rules, Same)
}

// SelectorCalled is what Callees returned for a selector.
type SelectorCalled struct {
	Selector resource.TagSelector
	Called   Called
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
		return func(resource.TagSelector) (Called, error) { return Called{}, nil }
	}
	return func(s resource.TagSelector) (Called, error) {
		var found Called
		for _, l := range endpoints(s).Localities {
			for i := range l.Endpoints {
				at := &l.Endpoints[i]
				if l.Zone != "" && l.Zone != w.Zone() || at.Envoy {
					found.Mixed = true
					continue
				}
				rules, err := m.Effective(policy.DataplaneKey(mesh, at.Dataplane))
				if errors.Is(err, policy.ErrNoDataplane) {
					found.Mixed = true
					continue
				}
				if err != nil {
					return Called{}, fmt.Errorf("the faults of dataplane %s: %w", at.Dataplane, err)
				}
				rule := faultsAt(rules, at.Port, s)
				if !slices.ContainsFunc(found.Rules, func(r *policy.Rule) bool { return Same(r, rule) }) {
					found.Rules = append(found.Rules, rule)
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
