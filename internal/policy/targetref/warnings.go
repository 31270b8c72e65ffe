package targetref

import (
	"fmt"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Successors implements policy.Superseder: the Mesh kinds by the sibling that each
// supersedes (§4.11).
func (*Engine) Successors() map[resource.Kind]resource.Kind {
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
