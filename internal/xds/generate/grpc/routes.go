package grpc

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
)

// entry is one rule of routing: calls that match go to its destinations.
type entry struct {
	matches []*routev3.RouteMatch
	// destinations share the calls; none means that they fail.
	destinations []destination
	// route is the HTTPRoute or GRPCRoute that the entry is of, "" when none.
	route string
	// request bounds the call, over any policy; nil when nothing is written.
	request *time.Duration
	// origins are of the entry; their paths begin at its place in the list of routes.
	origins []xds.Origin
	// timeout is the origin of request.
	timeout []xds.Origin
}

// destination is one share of the calls.
type destination struct {
	// selector is nil for a destination that cannot be: its share fails.
	selector resource.TagSelector
	weight   uint64
}

// everything matches every call.
func everything() []*routev3.RouteMatch {
	return []*routev3.RouteMatch{{PathSpecifier: &routev3.RouteMatch_Prefix{}}}
}

// entriesOf returns the routing of an outbound, in the order in which rules are tried:
// that of the routes whose parent the service is, else of its MeshTrafficRoute, else of
// its TrafficRoute. Calls that no rule matches fail.
func entriesOf(a *policy.Attachment, rules outboundRules, routes []*resource.Resource) ([]entry, error) {
	if len(routes) > 0 {
		return routeEntries(routes), nil
	}
	c := rules.on("", resource.KindTrafficRoute, resource.KindMeshTrafficRoute)
	var entries []entry
	var list []resource.RouteHTTP
	if _, err := c.decode("/http", &list); err != nil {
		return nil, err
	}
	for i := range list {
		at := policy.Pointer("/http/" + strconv.Itoa(i))
		if e, ok := httpEntry(a, &list[i]); ok {
			e.origins = c.origin("", at)
			entries = append(entries, e)
		}
	}
	var ruleList []resource.RouteRule
	if _, err := c.decode("/rules", &ruleList); err != nil {
		return nil, err
	}
	for i := range ruleList {
		e := entry{matches: httpMatches(ruleList[i].Matches), origins: c.origin("", policy.Pointer("/rules/"+strconv.Itoa(i)))}
		for _, b := range ruleList[i].Default.BackendRefs {
			e.destinations = append(e.destinations, destination{subset(b.Name, b.Tags), weightOf(b.Weight)})
		}
		if len(e.destinations) == 0 && !answers(ruleList[i].Default.Filters) {
			e.destinations = []destination{{selector: ownSelector(a), weight: 1}}
		}
		if len(e.matches) > 0 {
			entries = append(entries, e)
		}
	}
	last := entry{matches: everything()}
	var otherwise resource.RouteDestinations
	if _, err := c.decode("", &otherwise); err != nil {
		return nil, err
	}
	last.destinations = destinationsOf(a, &otherwise)
	switch {
	case otherwise.Split != nil:
		last.origins = c.origin("", "/split")
	case otherwise.Destination != nil:
		last.origins = c.origin("", "/destination")
	default:
		last.destinations = []destination{{selector: ownSelector(a), weight: 1}}
	}
	return append(entries, last), nil
}

// ownSelector selects what an outbound stands for when nothing routes it.
func ownSelector(a *policy.Attachment) resource.TagSelector { return resource.TagSelector(a.Tags) }

// destinationsOf reads a split or a destination; nothing when neither is written.
func destinationsOf(a *policy.Attachment, d *resource.RouteDestinations) []destination {
	if d.Destination != nil {
		return []destination{{selector: resolved(a, d.Destination), weight: 1}}
	}
	var all []destination
	for _, s := range d.Split {
		all = append(all, destination{resolved(a, s.Destination), uint64(s.Weight)})
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

// answers reports whether filters answer a request themselves, which gRPC cannot.
func answers(filters []resource.HTTPFilter) bool {
	return slices.ContainsFunc(filters, func(f resource.HTTPFilter) bool { return f.RequestRedirect != nil })
}

// httpEntry is a rule of TrafficRoute's http; false when no gRPC call can match it.
func httpEntry(a *policy.Attachment, h *resource.RouteHTTP) (entry, bool) {
	e := entry{destinations: destinationsOf(a, &h.RouteDestinations)}
	m := h.Match
	if m == nil {
		e.matches = everything()
		return e, true
	}
	if m.Method != nil && !matchesText(m.Method, http.MethodPost) {
		return entry{}, false
	}
	match := everything()[0]
	if m.Path != nil {
		var ok bool
		if match, ok = pathOf(m.Path); !ok {
			return entry{}, false
		}
	}
	for _, name := range sortedKeys(m.Headers) {
		condition := m.Headers[name]
		header, ok := headerOf(name, &condition)
		if !ok {
			return entry{}, false
		}
		match.Headers = append(match.Headers, header)
	}
	e.matches = []*routev3.RouteMatch{match}
	return e, true
}

// matchesText decides a condition on a text that is known.
func matchesText(m *resource.StringMatch, text string) bool {
	switch {
	case m.Prefix != nil:
		return strings.HasPrefix(text, *m.Prefix)
	case m.Exact != nil:
		return text == *m.Exact
	case m.Regex != nil:
		re, err := regexp.Compile("^(?:" + *m.Regex + ")$")
		return err == nil && re.MatchString(text)
	}
	return true
}

// pathOf is a condition on the path; false when no path meets it.
func pathOf(m *resource.StringMatch) (*routev3.RouteMatch, bool) {
	switch {
	case m.Prefix != nil:
		return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: *m.Prefix}}, true
	case m.Exact != nil:
		return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: *m.Exact}}, *m.Exact != ""
	case m.Regex != nil:
		return regexMatch(*m.Regex), *m.Regex != ""
	}
	return everything()[0], true
}

func regexMatch(pattern string) *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: pattern}}}
}

// headerName is what a header may be called, by the validation of xDS.
var headerName = regexp.MustCompile("^:?[0-9a-z!#$%&'*+\\-.^_|~`]+$")

// headerOf is a condition on a header; false when no call meets it.
func headerOf(name string, m *resource.StringMatch) (*routev3.HeaderMatcher, bool) {
	h := &routev3.HeaderMatcher{Name: strings.ToLower(name)}
	text := &matcherv3.StringMatcher{}
	switch {
	case m.Prefix != nil && *m.Prefix != "":
		text.MatchPattern = &matcherv3.StringMatcher_Prefix{Prefix: *m.Prefix}
	case m.Exact != nil:
		text.MatchPattern = &matcherv3.StringMatcher_Exact{Exact: *m.Exact}
	case m.Regex != nil && *m.Regex == "":
		text.MatchPattern = &matcherv3.StringMatcher_Exact{}
	case m.Regex != nil:
		text.MatchPattern = &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: *m.Regex}}
	default:
		h.HeaderMatchSpecifier = &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}
		return h, headerName.MatchString(h.Name)
	}
	h.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: text}
	return h, headerName.MatchString(h.Name)
}

// headerMatch is a condition in the form of the Gateway API; false when no call meets
// it.
func headerMatch(m *resource.HeaderMatch) (*routev3.HeaderMatcher, bool) {
	value := ""
	if m.Value != nil {
		value = *m.Value
	}
	switch kind := textOr(m.Type, "Exact"); kind {
	case "Present", "Absent":
		h, ok := headerOf(m.Name, &resource.StringMatch{})
		if kind == "Absent" {
			h.InvertMatch = true
		}
		return h, ok
	case "Prefix":
		return headerOf(m.Name, &resource.StringMatch{Prefix: &value})
	case "RegularExpression":
		return headerOf(m.Name, &resource.StringMatch{Regex: &value})
	default:
		return headerOf(m.Name, &resource.StringMatch{Exact: &value})
	}
}

func textOr(s *string, otherwise string) string {
	if s == nil {
		return otherwise
	}
	return *s
}

// headersOf adds conditions on headers to every match; nothing is left when no call
// meets them.
func headersOf(matches []*routev3.RouteMatch, headers []resource.HeaderMatch) []*routev3.RouteMatch {
	for i := range headers {
		h, ok := headerMatch(&headers[i])
		if !ok {
			return nil
		}
		for _, m := range matches {
			m.Headers = append(m.Headers, h)
		}
	}
	return matches
}

// httpMatches are the conditions of a rule in the shape of HTTPRoute that a gRPC call
// can meet. None written matches every call.
func httpMatches(written []resource.HTTPMatch) []*routev3.RouteMatch {
	if len(written) == 0 {
		return everything()
	}
	var matches []*routev3.RouteMatch
	for i := range written {
		matches = append(matches, httpMatch(&written[i])...)
	}
	return matches
}

// httpMatch is one condition: nothing when no gRPC call can meet it. A call is a POST
// without query parameters. A prefix holds for whole segments, so that it is a path
// and what begins with it and a slash.
func httpMatch(m *resource.HTTPMatch) []*routev3.RouteMatch {
	if len(m.QueryParams) > 0 || (m.Method != nil && *m.Method != http.MethodPost) {
		return nil
	}
	matches := everything()
	if m.Path != nil {
		value := textOr(m.Path.Value, "/")
		switch textOr(m.Path.Type, "PathPrefix") {
		case "Exact":
			matches = []*routev3.RouteMatch{{PathSpecifier: &routev3.RouteMatch_Path{Path: value}}}
		case "RegularExpression":
			if value == "" {
				return nil
			}
			matches = []*routev3.RouteMatch{regexMatch(value)}
		default:
			if value = strings.TrimRight(value, "/"); value != "" {
				matches = []*routev3.RouteMatch{
					{PathSpecifier: &routev3.RouteMatch_Path{Path: value}},
					{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: value + "/"}},
				}
			}
		}
	}
	return headersOf(matches, m.Headers)
}

// grpcMatch is one condition of a GRPCRoute.
func grpcMatch(m *resource.GRPCMatch) []*routev3.RouteMatch {
	matches := everything()
	if method := m.Method; method != nil {
		service, name := textOr(method.Service, ""), textOr(method.Method, "")
		switch {
		case textOr(method.Type, "Exact") == "RegularExpression":
			matches[0] = regexMatch("/" + pattern(service) + "/" + pattern(name))
		case service == "":
			matches[0] = regexMatch("/[^/]+/" + regexp.QuoteMeta(name))
		case name == "":
			matches[0] = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/" + service + "/"}}
		default:
			matches[0] = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: "/" + service + "/" + name}}
		}
	}
	return headersOf(matches, m.Headers)
}

// pattern is a regular expression as a part of another; an absent one is any name.
func pattern(p string) string {
	if p == "" {
		return "[^/]+"
	}
	return "(?:" + p + ")"
}

// precedence is the place of a match among those of all routes of a service, as the
// Gateway API orders them: the exact path first, then the longest prefix, then more
// headers, then the older route.
type precedence struct {
	exact           bool
	length, headers int
}

func precedenceOf(m *routev3.RouteMatch) precedence {
	p := precedence{headers: len(m.GetHeaders())}
	switch path := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Path:
		p.exact, p.length = true, len(path.Path)
	case *routev3.RouteMatch_Prefix:
		p.length = len(path.Prefix)
	}
	return p
}

func (p precedence) compare(o precedence) int {
	exact := func(p precedence) int {
		if p.exact {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(exact(p), exact(o)), cmp.Compare(o.length, p.length), cmp.Compare(o.headers, p.headers))
}

// routeEntries are the rules of routes, one entry for each match, in order of
// precedence. The routes are in order of age.
func routeEntries(routes []*resource.Resource) []entry {
	var entries []entry
	for _, r := range routes {
		switch spec := r.Spec().(type) {
		case *resource.HTTPRoute:
			for i := range spec.Rules {
				rule := &spec.Rules[i]
				e := ruleEntry(r, i, rule.BackendRefs)
				if answers(rule.Filters) {
					e.destinations = nil
				}
				if rule.Timeouts != nil && rule.Timeouts.Request != nil {
					d := rule.Timeouts.Request.Value()
					e.request = &d
					e.timeout = []xds.Origin{{Source: r.Key(), Field: fmt.Sprintf("/rules/%d/timeouts/request", i)}}
				}
				e.matches = httpMatches(rule.Matches)
				entries = append(entries, e.split()...)
			}
		case *resource.GRPCRoute:
			for i := range spec.Rules {
				rule := &spec.Rules[i]
				e := ruleEntry(r, i, rule.BackendRefs)
				for j := range rule.Matches {
					e.matches = append(e.matches, grpcMatch(&rule.Matches[j])...)
				}
				if len(rule.Matches) == 0 {
					e.matches = everything()
				}
				entries = append(entries, e.split()...)
			}
		}
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		return precedenceOf(a.matches[0]).compare(precedenceOf(b.matches[0]))
	})
	return entries
}

// ruleEntry is the i-th rule of a route, without its matches.
func ruleEntry(r *resource.Resource, i int, backends []resource.WeightedBackend) entry {
	e := entry{origins: []xds.Origin{{Source: r.Key(), Field: "/rules/" + strconv.Itoa(i)}}}
	if r.Key().Kind == resource.KindHTTPRoute {
		e.route = r.Key().Name
	}
	for _, b := range backends {
		d := destination{weight: weightOf(b.Weight)}
		if _, service := b.ServiceKind(); service && inNamespace(r, b.Namespace) {
			d.selector = subset(b.Name, b.Tags)
		}
		e.destinations = append(e.destinations, d)
	}
	return e
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
func (e entry) split() []entry {
	var entries []entry
	for _, m := range e.matches {
		one := e
		one.matches = []*routev3.RouteMatch{m}
		entries = append(entries, one)
	}
	return entries
}

// share is one destination as the message has it.
type share struct {
	cluster string
	weight  uint64
}

// action sends calls to clusters by weight. Without any, the calls fail: a client has
// no other way to say so than an action that it does not support.
func setAction(r *routev3.Route, shares []share, timeout time.Duration, retry *routev3.RetryPolicy) {
	if len(shares) == 0 {
		r.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
			Status: http.StatusInternalServerError,
			Body:   &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "no valid destination"}},
		}}
		return
	}
	action := &routev3.RouteAction{RetryPolicy: retry}
	if timeout > 0 {
		action.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: durationpb.New(timeout)}
	}
	if len(shares) == 1 {
		action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: shares[0].cluster}
	} else {
		clusters := make([]*routev3.WeightedCluster_ClusterWeight, len(shares))
		for i, s := range shares {
			clusters[i] = &routev3.WeightedCluster_ClusterWeight{Name: s.cluster, Weight: wrapperspb.UInt32(uint32(s.weight))}
		}
		action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{Clusters: clusters}}
	}
	r.Action = &routev3.Route_Route{Route: action}
}

// fit makes weights that add up to no more than a client accepts, in about the same
// proportions: no share disappears.
func fit(shares []share) {
	sum := uint64(0)
	for _, s := range shares {
		sum += s.weight
	}
	if sum <= math.MaxUint32 {
		return
	}
	for i := range shares {
		// Half of the range, so that rounding up to 1 cannot pass the bound.
		shares[i].weight = max(1, uint64(float64(shares[i].weight)/float64(sum)*(math.MaxUint32/2)))
	}
}

func sortedKeys(m map[string]resource.StringMatch) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
