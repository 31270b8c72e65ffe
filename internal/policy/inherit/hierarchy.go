package inherit

import (
	"cmp"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// object is what both ends of the hierarchy have in common.
type object struct {
	key      resource.Key
	resource *resource.Resource
	tree     map[string]any // what conditions see as target; made when asked for
}

// asTarget is the object as a condition sees it (§5.6), with the
// section that the policy targets.
func (o *object) asTarget(section string) map[string]any {
	if o.tree == nil {
		spec, err := policy.ParseTree(o.resource.Canonical())
		if err != nil {
			spec = policy.Tree{} // canonical JSON is an object: it was decoded from one
		}
		o.tree = map[string]any{"kind": string(o.key.Kind), "metadata": metadata(o.resource.Meta()), "spec": spec}
	}
	if section == "" {
		return o.tree
	}
	return map[string]any{
		"kind": o.tree["kind"], "metadata": o.tree["metadata"], "spec": o.tree["spec"], "sectionName": section,
	}
}

// gateway is the root of a hierarchy.
type gateway struct {
	object
	listeners []resource.GatewayListener
}

// route is an HTTPRoute or GRPCRoute and the ways that lead to it.
type route struct {
	object
	parents   []resource.ParentRef
	hostnames []string
	rules     []string
	// legs are the listeners it is attached to, in order.
	legs []*leg
}

// leg is a route on one listener. It keeps what has been computed for its rules
// until a change touches it; kinds are numbered as in schemas.
type leg struct {
	gateway  *gateway
	listener int
	route    *route
	// virtual is what rules without policies of their own get (§5.1).
	virtual [len(schemas)]*outcome
	// own is what the others get, by the place of the rule.
	own map[int]*[len(schemas)]*outcome
}

// path is the way through the leg to one of the route's rules.
func (l *leg) path(rule int) policy.Path {
	return policy.Path{
		Gateway: l.gateway.key.Name, Listener: l.gateway.listeners[l.listener].Name,
		Route: l.route.key, Rule: l.route.rules[rule],
	}
}

func newGateway(r *resource.Resource) *gateway {
	return &gateway{object: object{key: r.Key(), resource: r}, listeners: r.Spec().(*resource.Gateway).Listeners}
}

// implicitRule is the one rule of a route that writes none: it matches every
// request, as in the Gateway API.
const implicitRule = "rule-1"

func newRoute(r *resource.Resource) *route {
	spec := r.Spec().(resource.RouteSpec)
	made := &route{object: object{key: r.Key(), resource: r}, parents: slices.Clone(spec.Parents()), rules: spec.RuleNames()}
	meta := r.Meta()
	for i := range made.parents {
		if p := &made.parents[i]; p.ParentKind() == string(resource.KindGateway) {
			p.Name = meta.Refer(p.Name, p.Namespace)
		}
	}
	if len(made.rules) == 0 {
		made.rules = []string{implicitRule}
	}
	for _, name := range spec.HostNames() {
		made.hostnames = append(made.hostnames, normalHost(name))
	}
	return made
}

// parentGateways names the gateways that the route asks for, each once. A
// parent of another kind, such as a Service, leads to no gateway.
func (r *route) parentGateways() []string {
	var names []string
	for i := range r.parents {
		if p := &r.parents[i]; p.ParentKind() == string(resource.KindGateway) && !slices.Contains(names, p.Name) {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// attach finds the listeners that take the route (§5.1).
func (m *mesh) attach(r *route) {
	r.legs = nil
	parents := r.gatewayParents()
	for _, name := range r.parentGateways() {
		g := m.gateways[name]
		if g == nil {
			continue
		}
		for i := range g.listeners {
			asked := slices.ContainsFunc(parents, func(p policy.ParentRef) bool { return p.Name == name && asksFor(p, &g.listeners[i]) })
			if asked && m.namespaces.judge(g, &g.listeners[i], r) == taken {
				r.legs = append(r.legs, &leg{gateway: g, listener: i, route: r})
			}
		}
	}
}

// asksFor reports whether a parent means a listener.
func asksFor(p policy.ParentRef, l *resource.GatewayListener) bool {
	return (p.SectionName == "" || p.SectionName == l.Name) && (p.Port == 0 || p.Port == l.Port)
}

// namespaces are the labels of namespaces by their names.
type namespaces map[string]map[string]string

// judgement is whether a listener takes a route that asks for it, and if not, why. Of
// several, the largest is the nearest to being taken.
type judgement int

const (
	notHTTP judgement = iota
	kindNotAllowed
	namespaceNotAllowed
	namespaceUnknown // there is no Namespace to judge a selector by
	hostsApart
	taken
)

// judge decides whether a listener takes a route that asks for it: its protocol speaks
// HTTP, it allows the kind and the namespace, and some host name is served by both.
func (n namespaces) judge(g *gateway, l *resource.GatewayListener, r *route) judgement {
	if l.Protocol != "HTTP" && l.Protocol != "HTTPS" {
		return notHTTP
	}
	if rule := l.AllowedRoutes; rule != nil {
		ofKind := func(k resource.RouteGroupKind) bool { return k.Kind == string(r.key.Kind) }
		if len(rule.Kinds) > 0 && !slices.ContainsFunc(rule.Kinds, ofKind) {
			return kindNotAllowed
		}
	}
	if allowed := n.allows(g, l, r); allowed != taken {
		return allowed
	}
	if l.Hostname == nil || *l.Hostname == "" || len(r.hostnames) == 0 {
		return taken
	}
	served := normalHost(*l.Hostname)
	if !slices.ContainsFunc(r.hostnames, func(wanted string) bool { return hostsMeet(served, wanted) }) {
		return hostsApart
	}
	return taken
}

// allows judges the route's namespace (§5.1): Same, the default, compares it with the
// gateway's, and Selector selects by the labels of its Namespace. One that is not there
// cannot be judged, and is not allowed.
func (n namespaces) allows(g *gateway, l *resource.GatewayListener, r *route) judgement {
	from, rule := "Same", (*resource.RouteNamespaces)(nil)
	if l.AllowedRoutes != nil && l.AllowedRoutes.Namespaces != nil {
		if rule = l.AllowedRoutes.Namespaces; rule.From != nil {
			from = *rule.From
		}
	}
	allowed := false
	switch from {
	case "All":
		allowed = true
	case "Same":
		allowed = g.namespace() == r.namespace()
	case "Selector":
		labels, known := n[r.namespace()]
		if !known && rule.Selector != nil {
			return namespaceUnknown
		}
		allowed = rule.Selector != nil && rule.Selector.Matches(labels)
	}
	if !allowed {
		return namespaceNotAllowed
	}
	return taken
}

// namespace is the object's Kubernetes namespace; without one it is in default
// (§1.1).
func (o *object) namespace() string {
	return cmp.Or(o.resource.Meta().Labels[resource.LabelNamespace], resource.DefaultNamespace)
}

// normalHost is a host name as it is compared: in small letters, without the
// dot of the root.
func normalHost(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

// hostsMeet reports whether some host is meant by both names. A name that begins
// with *. means every host below it, at any depth, but not the domain itself.
func hostsMeet(a, b string) bool {
	below, wildA := strings.CutPrefix(a, "*")
	under, wildB := strings.CutPrefix(b, "*")
	switch {
	case wildA && wildB:
		return strings.HasSuffix(below, under) || strings.HasSuffix(under, below)
	case wildA:
		return len(b) > len(below) && strings.HasSuffix(b, below)
	case wildB:
		return len(a) > len(under) && strings.HasSuffix(a, under)
	default:
		return a == b
	}
}

// compareLegs orders the ways to routes of one name: by gateway, listener, and
// kind of route as listed in routeKinds.
func compareLegs(a, b *leg) int {
	return cmp.Or(
		strings.Compare(a.gateway.key.Name, b.gateway.key.Name),
		cmp.Compare(a.listener, b.listener),
		cmp.Compare(slices.Index(routeKinds, a.route.key.Kind), slices.Index(routeKinds, b.route.key.Kind)),
	)
}
