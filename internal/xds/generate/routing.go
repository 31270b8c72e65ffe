package generate

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
)

// Entry is one rule of routing: requests that match go to its destinations.
type Entry struct {
	Matches []*routev3.RouteMatch
	// Destinations share the requests; none means that they fail.
	Destinations []Destination
	// Modify and Filters are what the rule changes in requests and answers; one of them
	// is written at most.
	Modify  *resource.RouteModify
	Filters []resource.HTTPFilter
	// Route is the HTTPRoute or GRPCRoute that the entry is of, "" when none.
	Route string
	// Timeouts and Retry are those of an HTTPRoute's rule, over any policy; nil when
	// nothing is written.
	Timeouts *resource.HTTPRouteTimeouts
	Retry    *resource.HTTPRouteRetry
	// from is the HTTPRoute or GRPCRoute that the entry is of; nil when none.
	from *resource.Resource
	// Origins are of the entry; their paths begin at its place in the list of routes.
	Origins []xds.Origin
}

// Destination is one share of the requests.
type Destination struct {
	// Selector is nil for a destination that cannot be: its share fails.
	Selector resource.TagSelector
	Weight   uint64
	// Filters change the requests of this share, and their answers.
	Filters []resource.HTTPFilter
}

// Select is what a reference in the entry's rule selects; nil for what cannot be.
func (e *Entry) Select(b *resource.RouteBackendRef) resource.TagSelector {
	if e.from != nil {
		return selectorOf(e.from, b)
	}
	return subset(b.Name, b.Tags)
}

// At is the origin of a field inside the entry's rule.
func (e *Entry) At(path, field string) []xds.Origin {
	var origins []xds.Origin
	for _, o := range e.Origins {
		origins = append(origins, xds.Origin{Path: path, Source: o.Source, Field: o.Field + field})
	}
	return origins
}

// Entries returns the routing of an outbound, in the order in which rules are tried:
// that of the routes whose parent the service is, else of its MeshTrafficRoute, else of
// its TrafficRoute. Requests that no rule matches fail.
func (t Traffic) Entries(a *policy.Attachment, rules Rules, routes []*resource.Resource) ([]Entry, error) {
	if len(routes) > 0 {
		return t.routeEntries(routes), nil
	}
	c := rules.On("", resource.KindTrafficRoute, resource.KindMeshTrafficRoute)
	var entries []Entry
	var list []resource.RouteHTTP
	if _, err := c.Decode("/http", &list); err != nil {
		return nil, err
	}
	for i := range list {
		at := policy.Pointer("/http/" + strconv.Itoa(i))
		if e, ok := t.httpEntry(a, &list[i]); ok {
			e.Origins = c.Origin("", at)
			entries = append(entries, e)
		}
	}
	var ruleList []resource.RouteRule
	if _, err := c.Decode("/rules", &ruleList); err != nil {
		return nil, err
	}
	for i := range ruleList {
		rule := &ruleList[i]
		e := Entry{Matches: t.ofHTTP(rule.Matches), Filters: rule.Default.Filters, Origins: c.Origin("", policy.Pointer("/rules/"+strconv.Itoa(i)))}
		for _, b := range rule.Default.BackendRefs {
			e.Destinations = append(e.Destinations, Destination{Selector: subset(b.Name, b.Tags), Weight: weightOf(b.Weight)})
		}
		if len(e.Destinations) == 0 && !Answers(rule.Default.Filters) {
			e.Destinations = []Destination{{Selector: ownSelector(a), Weight: 1}}
		}
		if len(e.Matches) > 0 {
			entries = append(entries, e)
		}
	}
	last := Entry{Matches: Everything()}
	var otherwise resource.RouteDestinations
	if _, err := c.Decode("", &otherwise); err != nil {
		return nil, err
	}
	last.Destinations = destinationsOf(a, &otherwise)
	switch {
	case otherwise.Split != nil:
		last.Origins = c.Origin("", "/split")
	case otherwise.Destination != nil:
		last.Origins = c.Origin("", "/destination")
	default:
		last.Destinations = []Destination{{Selector: ownSelector(a), Weight: 1}}
	}
	return append(entries, last), nil
}

// Connections is the routing of an outbound whose requests are not looked into: all of
// them go to the same destinations.
func Connections(a *policy.Attachment, rules Rules) (*Entry, error) {
	entries, err := Requests.Entries(a, rules, nil)
	if err != nil {
		return nil, err
	}
	return &entries[len(entries)-1], nil
}

// ownSelector selects what an outbound stands for when nothing routes it.
func ownSelector(a *policy.Attachment) resource.TagSelector { return resource.TagSelector(a.Tags) }

// destinationsOf reads a split or a destination; nothing when neither is written.
func destinationsOf(a *policy.Attachment, d *resource.RouteDestinations) []Destination {
	if d.Destination != nil {
		return []Destination{{Selector: resolved(a, d.Destination), Weight: 1}}
	}
	var all []Destination
	for _, s := range d.Split {
		all = append(all, Destination{Selector: resolved(a, s.Destination), Weight: uint64(s.Weight)})
	}
	return all
}

// resolved is a destination with the service that it means: any service stands for the
// outbound's own.
func resolved(a *policy.Attachment, selector resource.TagSelector) resource.TagSelector {
	if selector[resource.ServiceTag] != resource.AnyValue {
		return selector
	}
	own := make(resource.TagSelector, len(selector))
	for tag, value := range selector {
		own[tag] = value
	}
	own[resource.ServiceTag] = a.Service
	return own
}

// subset selects a service, narrowed by tags; nil when the tags contradict the name.
func subset(name string, tags resource.TagSelector) resource.TagSelector {
	selector := resource.TagSelector{resource.ServiceTag: name}
	for tag, value := range tags {
		if tag == resource.ServiceTag && value != resource.AnyValue && value != name {
			return nil
		}
		if tag != resource.ServiceTag {
			selector[tag] = value
		}
	}
	return selector
}

// weightOf is a weight with its default.
func weightOf(w *uint32) uint64 {
	if w == nil {
		return 1
	}
	return uint64(*w)
}

// Answers reports whether filters answer a request themselves.
func Answers(filters []resource.HTTPFilter) bool {
	return slices.ContainsFunc(filters, func(f resource.HTTPFilter) bool { return f.RequestRedirect != nil })
}

// httpEntry is a rule of TrafficRoute's http; false when no request can match it.
func (t Traffic) httpEntry(a *policy.Attachment, h *resource.RouteHTTP) (Entry, bool) {
	match, ok := t.ofRoute(h.Match)
	return Entry{Matches: []*routev3.RouteMatch{match}, Destinations: destinationsOf(a, &h.RouteDestinations), Modify: h.Modify}, ok
}

// routeEntries are the rules of routes, one entry for each match, in order of
// precedence. The routes are in order of age.
func (t Traffic) routeEntries(routes []*resource.Resource) []Entry {
	var entries []Entry
	for _, r := range routes {
		switch spec := r.Spec().(type) {
		case *resource.HTTPRoute:
			for i := range spec.Rules {
				rule := &spec.Rules[i]
				e := ruleEntry(r, i, rule.BackendRefs, rule.Filters)
				e.Timeouts, e.Retry = rule.Timeouts, rule.Retry
				e.Matches = t.ofHTTP(rule.Matches)
				entries = append(entries, e.split()...)
			}
		case *resource.GRPCRoute:
			for i := range spec.Rules {
				rule := &spec.Rules[i]
				e := ruleEntry(r, i, rule.BackendRefs, rule.Filters)
				for j := range rule.Matches {
					e.Matches = append(e.Matches, t.ofGRPC(&rule.Matches[j])...)
				}
				if len(rule.Matches) == 0 {
					e.Matches = t.calls()
				}
				entries = append(entries, e.split()...)
			}
		}
	}
	slices.SortStableFunc(entries, func(a, b Entry) int {
		return precedenceOf(a.Matches[0]).compare(precedenceOf(b.Matches[0]))
	})
	return entries
}

// ruleEntry is the i-th rule of a route, without its matches.
func ruleEntry(r *resource.Resource, i int, backends []resource.WeightedBackend, filters []resource.HTTPFilter) Entry {
	e := Entry{from: r, Filters: filters, Origins: []xds.Origin{{Source: r.Key(), Field: "/rules/" + strconv.Itoa(i)}}}
	if r.Key().Kind == resource.KindHTTPRoute {
		e.Route = r.Key().Name
	}
	if Answers(filters) {
		return e
	}
	for j := range backends {
		b := &backends[j]
		e.Destinations = append(e.Destinations, Destination{Selector: selectorOf(r, &b.RouteBackendRef), Weight: weightOf(b.Weight), Filters: b.Filters})
	}
	return e
}

// selectorOf is what a reference of a route selects; nil for what cannot be.
func selectorOf(r *resource.Resource, b *resource.RouteBackendRef) resource.TagSelector {
	if _, service := b.ServiceKind(); !service || !inNamespace(r, b.Namespace) {
		return nil
	}
	return subset(b.Name, b.Tags)
}

// inNamespace reports whether a route may refer to a service by a namespace: services
// are in none, so that it may only by its own (§5.8).
func inNamespace(r *resource.Resource, namespace *string) bool {
	if namespace == nil || *namespace == "" {
		return true
	}
	return *namespace == cmp.Or(r.Meta().Labels[resource.LabelNamespace], resource.DefaultNamespace)
}

// split returns an entry for each of the matches.
func (e Entry) split() []Entry {
	var entries []Entry
	for _, m := range e.Matches {
		one := e
		one.Matches = []*routev3.RouteMatch{m}
		entries = append(entries, one)
	}
	return entries
}

// Share is one destination as the message has it.
type Share struct {
	Cluster string
	Weight  uint64
	// Filters are those of the destination.
	Filters []resource.HTTPFilter
}

// fit makes weights that add up to no more than a client accepts, in about the same
// proportions: no share disappears.
func fit(shares []Share) {
	sum := uint64(0)
	for _, s := range shares {
		sum += s.Weight
	}
	if sum <= math.MaxUint32 {
		return
	}
	for i := range shares {
		// Half of the range, so that rounding up to 1 cannot pass the bound.
		shares[i].Weight = max(1, uint64(float64(shares[i].Weight)/float64(sum)*(math.MaxUint32/2)))
	}
}
