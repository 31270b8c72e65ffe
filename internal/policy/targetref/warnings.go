package targetref

import (
	"fmt"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// successors are the Mesh kinds by the sibling that they supersede (§4.11).
func successors() map[resource.Kind]resource.Kind {
	return map[resource.Kind]resource.Kind{
		resource.KindTrafficPermission: resource.KindMeshTrafficPermission,
		resource.KindTrafficRoute:      resource.KindMeshTrafficRoute,
		resource.KindCircuitBreaker:    resource.KindMeshCircuitBreaker,
		resource.KindHealthCheck:       resource.KindMeshHealthCheck,
		resource.KindFaultInjection:    resource.KindMeshHTTPFault,
		resource.KindRetry:             resource.KindMeshRequestRetry,
		resource.KindTimeout:           resource.KindMeshUpstreamTimeout,
		resource.KindRateLimit:         resource.KindMeshRateLimit,
		resource.KindTrafficTrace:      resource.KindMeshTracing,
		resource.KindTrafficLog:        resource.KindMeshLogging,
		resource.KindProxyTemplate:     resource.KindMeshEnvoyTemplate,
		resource.KindVirtualOutbound:   resource.KindMeshVirtualOutbound,
	}
}

// Warnings implements policy.Warner: attachments on which policies of two
// generations with one purpose meet.
func (*Engine) Warnings(_ *policy.Dataplane, rules []policy.Rule) []string {
	var warnings []string
	successor := successors()
	for i := range rules {
		old := &rules[i]
		kind, ok := successor[old.Kind]
		if !ok || len(old.Steps) == 0 {
			continue
		}
		for j := range rules {
			if next := &rules[j]; next.Kind == kind && len(next.Steps) > 0 && sameAttachment(&old.Attachment, &next.Attachment) {
				warnings = append(warnings, meeting(old, next))
			}
		}
	}
	return warnings
}

// sameAttachment compares without the route.
func sameAttachment(a, b *policy.Attachment) bool {
	bare := *b
	bare.Route = a.Route
	return a.Compare(&bare) == 0
}

func meeting(old, next *policy.Rule) string {
	pair := fmt.Sprintf("%s: %s %s and its successor %s %s both take effect", &next.Attachment,
		old.Kind, listed(old.Policies()), next.Kind, listed(next.Policies()))
	if next.Kind == resource.KindMeshTrafficPermission {
		return pair + "; the MeshTrafficPermission decides alone"
	}
	return pair + "; keep one of them"
}

func listed(keys []resource.Key) string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.Name
	}
	return strings.Join(names, ", ")
}

// partly warns of policies whose from items hold on inbounds that their target
// does not speak of (§4.7).
func (w *walk) partly(line []*compiled) []string {
	members := w.Dataplane.Members
	if !w.perCaller() || len(members) < 2 {
		return nil
	}
	var warnings []string
	for _, c := range line {
		if c.member == nil || !c.has(policy.OnInbound) {
			continue
		}
		matching := 0
		for _, tags := range members {
			if c.member.Matches(tags) {
				matching++
			}
		}
		if matching < len(members) {
			warnings = append(warnings, fmt.Sprintf("%s %s targets %s, which is %d of the %d inbounds; its from items hold on all of them",
				c.key.Kind, c.key.Name, c.target, matching, len(members)))
		}
	}
	return warnings
}
