package inherit

import (
	"fmt"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Types and reasons of the conditions of routes, in the words of the Gateway API
// (§5.8).
const (
	typeResolvedRefs = "ResolvedRefs"

	reasonNoMatchingParent   = "NoMatchingParent"
	reasonNotAllowed         = "NotAllowedByListeners"
	reasonNoMatchingHostname = "NoMatchingListenerHostname"
	reasonResolvedRefs       = "ResolvedRefs"
	reasonInvalidKind        = "InvalidKind"
	reasonRefNotPermitted    = "RefNotPermitted"
)

// routeConditions are the conditions of a route about its parents, each gateway that
// it asks for, and about the services that it names.
func (m *mesh) routeConditions(r *route, d detail) []policy.Condition {
	var conditions []policy.Condition
	for _, p := range r.gatewayParents() {
		conditions = append(conditions, m.accepts(r, p, d))
	}
	return append(conditions, r.resolvedRefs())
}

// gatewayParents are the gateways, or parts of them, that the route asks for, each
// once.
func (r *route) gatewayParents() (parents []policy.ParentRef) {
	for i := range r.parents {
		if p := parentOf(&r.parents[i]); r.parents[i].ParentKind() == string(resource.KindGateway) && !slices.Contains(parents, p) {
			parents = append(parents, p)
		}
	}
	return parents
}

func parentOf(p *resource.ParentRef) policy.ParentRef {
	parent := policy.ParentRef{Name: p.Name, SectionName: p.Section()}
	if p.Port != nil {
		parent.Port = *p.Port
	}
	return parent
}

// accepts says whether a parent takes the route: some listener of it does.
func (m *mesh) accepts(r *route, p policy.ParentRef, d detail) policy.Condition {
	c := policy.Condition{Type: typeAccepted, Status: isFalse, ParentRef: p}
	g := m.gateways[p.Name]
	if g == nil {
		c.Reason, c.Message = reasonNoMatchingParent, "there is no Gateway "+p.Name
		if d == inFull {
			c.Message += meant(p.Name, m.objects(resource.KindGateway))
		}
		return c
	}
	c.Reason, c.Message = m.namespaces.refusal(g, r, p)
	if c.Reason == "" {
		c.Status, c.Reason, c.Message = isTrue, reasonAccepted, "Route has been accepted"
	}
	return c
}

// refusal says why no listener of a gateway takes a route that asks for it; nothing
// when one does.
func (n namespaces) refusal(g *gateway, r *route, p policy.ParentRef) (reason, why string) {
	best, asked := notHTTP, false
	for i := range g.listeners {
		if asksFor(p, &g.listeners[i]) {
			asked = true
			best = max(best, n.judge(g, &g.listeners[i], r))
		}
	}
	which := askedFor(p)
	if !asked {
		return reasonNoMatchingParent, fmt.Sprintf("Gateway %s has no listener%s", p.Name, which)
	}
	none := fmt.Sprintf("no listener of Gateway %s%s", p.Name, which)
	switch best {
	case taken:
		return "", ""
	case notHTTP:
		return reasonNotAllowed, none + " has the protocol HTTP or HTTPS"
	case kindNotAllowed:
		return reasonNotAllowed, fmt.Sprintf("%s allows routes of kind %s; its allowedRoutes.kinds decides", none, r.key.Kind)
	case namespaceNotAllowed:
		return reasonNotAllowed, fmt.Sprintf("%s allows routes of namespace %s; its allowedRoutes.namespaces decides", none, r.namespace())
	case namespaceUnknown:
		return reasonNotAllowed, fmt.Sprintf("%s allows routes of namespace %s: it selects namespaces by their labels, and there is no Namespace %s; apply it", none, r.namespace(), r.namespace())
	default:
		return reasonNoMatchingHostname, none + " serves a host name of the route"
	}
}

// askedFor says which listeners a parent means, after "listener".
func askedFor(p policy.ParentRef) string {
	text := ""
	if p.SectionName != "" {
		text += " named " + p.SectionName
	}
	if p.Port != 0 {
		text += fmt.Sprintf(" on port %d", p.Port)
	}
	return text
}

// badRef is a reference of a route that leads to nothing.
type badRef struct {
	at          resource.Path
	reason, why string
}

// badRefs are the services that the route names and that cannot be. A service is a
// value of the tag kuma.io/service and in no namespace, so there is nothing that
// could permit the one of another.
func (r *route) badRefs() (bad []badRef) {
	for _, b := range r.resource.Spec().(resource.RouteSpec).Backends() {
		_, service := b.ServiceKind()
		switch {
		case !service && b.Kind != nil:
			bad = append(bad, badRef{b.Path.Field("kind"), reasonInvalidKind, fmt.Sprintf("%s is no kind of service; use Service or ServiceSubset", *b.Kind)})
		case !service:
			bad = append(bad, badRef{b.Path.Field("group"), reasonInvalidKind, fmt.Sprintf("%s has no services", *b.Group)})
		case b.Namespace != nil && *b.Namespace != "" && *b.Namespace != r.namespace():
			bad = append(bad, badRef{b.Path.Field("namespace"), reasonRefNotPermitted, fmt.Sprintf(
				"services are in no namespace: %s is the value of %s, and nothing permits a reference to namespace %s; leave it out", b.Name, resource.ServiceTag, *b.Namespace)})
		}
	}
	return bad
}

// resolvedRefs is the condition about the services that the route names.
func (r *route) resolvedRefs() policy.Condition {
	c := policy.Condition{Type: typeResolvedRefs, Status: isTrue, Reason: reasonResolvedRefs, Message: "All references are of a kind and namespace that can be"}
	bad := r.badRefs()
	if len(bad) == 0 {
		return c
	}
	c.Status, c.Reason = isFalse, bad[0].reason
	var told []string
	for i := range bad {
		if i == maxTold {
			told = append(told, fmt.Sprintf("and %d more", len(bad)-i))
			break
		}
		told = append(told, fmt.Sprintf("%s: %s", bad[i].at, bad[i].why))
	}
	c.Message = strings.Join(told, "; ")
	return c
}

// rejected are the routes that ask for a gateway and that it does not take, in order
// of their keys.
func (m *mesh) rejected(gateway string) (refused []policy.RejectedRoute) {
	for _, r := range m.asking[gateway] {
		for _, p := range r.gatewayParents() {
			if p.Name != gateway {
				continue
			}
			if c := m.accepts(r, p, brief); c.Status == isFalse {
				refused = append(refused, policy.RejectedRoute{Route: r.key, Condition: c})
			}
		}
	}
	slices.SortStableFunc(refused, func(a, b policy.RejectedRoute) int { return a.Route.Compare(b.Route) })
	return refused
}

// detached says why no route leads through the target of a policy; nothing when that
// is for want of a route.
func (m *mesh) detached(t target) string {
	if t.kind == resource.KindGateway {
		return ""
	}
	r := m.routes[resource.Key{Kind: t.kind, Mesh: m.name, Name: t.name}]
	if r == nil {
		return ""
	}
	for _, p := range r.gatewayParents() {
		if c := m.accepts(r, p, brief); c.Status == isFalse {
			return c.Message
		}
	}
	return fmt.Sprintf("%s %s has no Gateway among its parentRefs", t.kind, t.name)
}
