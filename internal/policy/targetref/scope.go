package targetref

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// routeID tells routes apart: one of each kind may have the same name.
type routeID struct {
	kind resource.TargetKind
	name string
}

// route is a route that policies target, and where it is.
type route struct {
	routeID
	places []place
}

// place is one outbound of some dataplanes that a route is on (§4.2).
type place struct {
	// member must match the gateway's tags; nil for routes of a service, which
	// are on every dataplane that sends to it.
	member  resource.TagSelector
	gateway bool
	// outbound are the destination's tags, kuma.io/service among them; nil when
	// the route leads nowhere.
	outbound resource.TagSelector
}

// on reports whether the route is on an outbound of a dataplane.
func (r *route) on(dp *policy.Dataplane, a *policy.Attachment) bool {
	return slices.ContainsFunc(r.places, func(p place) bool { return p.holds(dp) && p.leads(a) })
}

// selects reports whether the route is on a dataplane at all. A gateway's route
// is, even without a destination.
func (r *route) selects(dp *policy.Dataplane) bool {
	return slices.ContainsFunc(r.places, func(p place) bool {
		if p.gateway {
			return p.holds(dp)
		}
		for i := range dp.Attachments {
			if a := &dp.Attachments[i]; a.Type == policy.OnOutbound && p.leads(a) {
				return true
			}
		}
		return false
	})
}

func (p *place) holds(dp *policy.Dataplane) bool {
	return !p.gateway || (dp.Gateway && slices.ContainsFunc(dp.Members, p.member.Matches))
}

// leads reports whether an outbound goes to the place's destination: it is to
// the same service, and has no tag that contradicts.
func (p *place) leads(a *policy.Attachment) bool {
	if p.outbound == nil {
		return false
	}
	for tag, want := range p.outbound {
		got, ok := a.Tags[tag]
		if !ok && tag != resource.ServiceTag {
			continue
		}
		if !ok || (want != resource.AnyValue && got != want) {
			return false
		}
	}
	return true
}

// reach is the place as an area for the index. Its attachment part may be wider
// than the truth.
func (p *place) reach() policy.Reach {
	r := policy.Reach{On: policy.OnOutbound, Member: p.member, GatewayOnly: p.gateway, Attachment: nowhere}
	if p.outbound != nil {
		r.Attachment = service(p.outbound[resource.ServiceTag])
	}
	if !p.gateway {
		r.Sends = r.Attachment
	}
	return r
}

// nowhere is a selector that no outbound matches: no document can hold a tag
// name with NUL.
var nowhere = resource.TagSelector{"\x00nowhere": "-"}

func service(name string) resource.TagSelector {
	return resource.TagSelector{resource.ServiceTag: name}
}

// both returns the selector that matches what a and b both match, for a single
// tag set; false when nothing can.
func both(a, b resource.TagSelector) (resource.TagSelector, bool) {
	switch {
	case len(a) == 0:
		return b, true
	case len(b) == 0:
		return a, true
	}
	merged := maps.Clone(a)
	for tag, value := range b {
		switch have, ok := merged[tag]; {
		case !ok || have == resource.AnyValue:
			merged[tag] = value
		case value != resource.AnyValue && value != have:
			return nil, false
		}
	}
	return merged, true
}

// resolver looks up what targets point to, and remembers what it looked at.
type resolver struct {
	view    policy.View
	mesh    resource.MeshName
	from    resource.Meta // of the policy whose targets are resolved
	depends []resource.Key
	looked  map[resource.Key]bool // what depends has
	routes  map[routeID]*route
}

func (v *resolver) get(kind resource.Kind, name string) (*resource.Resource, bool) {
	key := resource.Key{Kind: kind, Mesh: v.mesh, Name: name}
	if !v.looked[key] {
		if v.looked == nil {
			v.looked = map[resource.Key]bool{}
		}
		v.looked[key] = true
		v.depends = append(v.depends, key)
	}
	return v.view.Get(key)
}

// route finds a route. One that does not exist is on nothing.
func (v *resolver) route(id routeID) *route {
	if known := v.routes[id]; known != nil {
		return known
	}
	r := &route{routeID: id}
	if id.kind == resource.TargetMeshGatewayRoute {
		r.places = v.meshGatewayRoute(id.name)
	} else {
		r.places = v.httpRoute(id.name)
	}
	if v.routes == nil {
		v.routes = map[routeID]*route{}
	}
	v.routes[id] = r
	return r
}

// httpRoute lists where an HTTPRoute is: on the outbounds to its parent
// services, and on those of its parent gateways to the services it sends to. A
// parentRef with a port means a gateway that has a listener there.
func (v *resolver) httpRoute(name string) []place {
	found, ok := v.get(resource.KindHTTPRoute, name)
	if !ok {
		return nil
	}
	spec, meta := found.Spec().(*resource.HTTPRoute), found.Meta()
	var places []place
	for i := range spec.ParentRefs {
		parent := &spec.ParentRefs[i]
		switch parent.ParentKind() {
		case "Service":
			places = append(places, place{outbound: service(parent.Name)})
		case string(resource.KindMeshGateway):
			if found, ok := v.get(resource.KindMeshGateway, meta.Refer(parent.Name, parent.Namespace)); ok {
				if gateway := found.Spec().(*resource.MeshGateway); parent.Port == nil || gateway.Serves(*parent.Port) {
					places = append(places, onGateways(gateway.DataplaneSelectors(), backendsOf(spec))...)
				}
			}
		}
	}
	return places
}

// backendsOf lists the destinations of an HTTPRoute, each once.
func backendsOf(spec *resource.HTTPRoute) []resource.TagSelector {
	var destinations selectors
	for _, rule := range spec.Rules {
		for _, b := range rule.BackendRefs {
			if to, ok := both(service(b.Name), b.Tags); ok {
				destinations.add(to)
			}
		}
	}
	return destinations.list
}

// meshGatewayRoute lists where a MeshGatewayRoute is: on the gateways that its
// selectors match, on the outbound to each destination.
func (v *resolver) meshGatewayRoute(name string) []place {
	found, ok := v.get(resource.KindMeshGatewayRoute, name)
	if !ok {
		return nil
	}
	spec := found.Spec().(*resource.MeshGatewayRoute)
	return onGateways(spec.DataplaneSelectors(), destinationsOf(spec))
}

// destinationsOf lists the destinations of a MeshGatewayRoute, each once.
func destinationsOf(spec *resource.MeshGatewayRoute) []resource.TagSelector {
	var destinations selectors
	add := func(backends []resource.MeshBackend) {
		for _, b := range backends {
			destinations.add(b.Destination)
		}
	}
	if spec.Conf == nil {
		return nil
	}
	if spec.Conf.TCP != nil {
		for _, rule := range spec.Conf.TCP.Rules {
			add(rule.Backends)
		}
	}
	if spec.Conf.HTTP != nil {
		for _, rule := range spec.Conf.HTTP.Rules {
			add(rule.Backends)
		}
	}
	return destinations.list
}

// selectors is a list in which every selector stands once.
type selectors struct {
	list []resource.TagSelector
	has  map[string]bool
}

func (l *selectors) add(s resource.TagSelector) {
	var key strings.Builder
	for _, tag := range slices.Sorted(maps.Keys(s)) {
		key.WriteString(strconv.Quote(tag) + strconv.Quote(s[tag]))
	}
	if l.has[key.String()] {
		return
	}
	if l.has == nil {
		l.has = map[string]bool{}
	}
	l.has[key.String()] = true
	l.list = append(l.list, s)
}

// onGateways lists every destination on every gateway that a selector matches.
func onGateways(selectors, destinations []resource.TagSelector) []place {
	if len(destinations) == 0 {
		destinations = []resource.TagSelector{nil}
	}
	var places []place
	for _, member := range selectors {
		for _, to := range destinations {
			places = append(places, place{member: member, gateway: true, outbound: to})
		}
	}
	return places
}
