package generate

import (
	"cmp"
	"net/http"
	"regexp"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"meridian/internal/resource"
)

// Traffic says which requests an outbound carries, and so which conditions of policies
// hold for none of them.
type Traffic int

const (
	// Calls are gRPC calls: POSTs without query parameters.
	Calls Traffic = iota
	// Requests are those of HTTP, gRPC calls among them.
	Requests
)

// Everything matches every request.
func Everything() []*routev3.RouteMatch {
	return []*routev3.RouteMatch{{PathSpecifier: &routev3.RouteMatch_Prefix{}}}
}

// ofRoute is the match of a rule of TrafficRoute's http; false when no request meets it.
func (t Traffic) ofRoute(m *resource.RouteMatch) (*routev3.RouteMatch, bool) {
	match := Everything()[0]
	if m == nil {
		return match, true
	}
	if m.Path != nil {
		var ok bool
		if match, ok = pathOf(m.Path); !ok {
			return nil, false
		}
	}
	switch {
	case m.Method == nil:
	case t == Calls && !matchesText(m.Method, http.MethodPost):
		return nil, false
	case t == Requests:
		method, ok := Header(":method", m.Method)
		if !ok {
			return nil, false
		}
		match.Headers = append(match.Headers, method)
	}
	for _, name := range sortedKeys(m.Headers) {
		condition := m.Headers[name]
		header, ok := Header(name, &condition)
		if !ok {
			return nil, false
		}
		match.Headers = append(match.Headers, header)
	}
	return match, true
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
	return Everything()[0], true
}

func regexMatch(pattern string) *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: pattern}}}
}

// headerName is what a header may be called, by the validation of xDS.
var headerName = regexp.MustCompile("^:?[0-9a-z!#$%&'*+\\-.^_|~`]+$")

// Header is a condition on a header; false when no request meets it.
func Header(name string, m *resource.StringMatch) (*routev3.HeaderMatcher, bool) {
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

// HeaderMatch is a condition in the form of the Gateway API; false when no request meets
// it.
func HeaderMatch(m *resource.HeaderMatch) (*routev3.HeaderMatcher, bool) {
	value := ""
	if m.Value != nil {
		value = *m.Value
	}
	switch kind := textOr(m.Type, "Exact"); kind {
	case "Present", "Absent":
		h, ok := Header(m.Name, &resource.StringMatch{})
		if kind == "Absent" {
			h.InvertMatch = true
		}
		return h, ok
	case "Prefix":
		return Header(m.Name, &resource.StringMatch{Prefix: &value})
	case "RegularExpression":
		return Header(m.Name, &resource.StringMatch{Regex: &value})
	default:
		return Header(m.Name, &resource.StringMatch{Exact: &value})
	}
}

func textOr(s *string, otherwise string) string {
	if s == nil {
		return otherwise
	}
	return *s
}

// headersOf adds conditions on headers to every match; nothing is left when no request
// meets them.
func headersOf(matches []*routev3.RouteMatch, headers []resource.HeaderMatch) []*routev3.RouteMatch {
	for i := range headers {
		h, ok := HeaderMatch(&headers[i])
		if !ok {
			return nil
		}
		for _, m := range matches {
			m.Headers = append(m.Headers, h)
		}
	}
	return matches
}

// ofHTTP are the conditions of a rule in the shape of HTTPRoute that a request can meet.
// None written matches every request.
func (t Traffic) ofHTTP(written []resource.HTTPMatch) []*routev3.RouteMatch {
	if len(written) == 0 {
		return Everything()
	}
	var matches []*routev3.RouteMatch
	for i := range written {
		matches = append(matches, t.one(&written[i])...)
	}
	return matches
}

// one is one condition: nothing when no request can meet it. A prefix holds for whole
// segments, so that it is a path and what begins with it and a slash.
func (t Traffic) one(m *resource.HTTPMatch) []*routev3.RouteMatch {
	if t == Calls && (len(m.QueryParams) > 0 || (m.Method != nil && *m.Method != http.MethodPost)) {
		return nil
	}
	matches := Everything()
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
	if t == Requests && m.Method != nil {
		method, _ := Header(":method", &resource.StringMatch{Exact: m.Method})
		for _, match := range matches {
			match.Headers = append(match.Headers, method)
		}
	}
	for i := range m.QueryParams {
		for _, match := range matches {
			match.QueryParameters = append(match.QueryParameters, queryOf(&m.QueryParams[i]))
		}
	}
	return headersOf(matches, m.Headers)
}

// queryOf is a condition on a query parameter.
func queryOf(q *resource.QueryMatch) *routev3.QueryParameterMatcher {
	text := &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: q.Value}}
	if textOr(q.Type, "Exact") == "RegularExpression" && q.Value != "" {
		text.MatchPattern = &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: q.Value}}
	}
	return &routev3.QueryParameterMatcher{
		Name: q.Name, QueryParameterMatchSpecifier: &routev3.QueryParameterMatcher_StringMatch{StringMatch: text},
	}
}

// ofGRPC is one condition of a GRPCRoute.
func (t Traffic) ofGRPC(m *resource.GRPCMatch) []*routev3.RouteMatch {
	matches := t.calls()
	if method := m.Method; method != nil {
		service, name := textOr(method.Service, ""), textOr(method.Method, "")
		switch {
		case textOr(method.Type, "Exact") == "RegularExpression":
			matches[0].PathSpecifier = regexMatch("/" + pattern(service) + "/" + pattern(name)).PathSpecifier
		case service == "":
			matches[0].PathSpecifier = regexMatch("/[^/]+/" + regexp.QuoteMeta(name)).PathSpecifier
		case name == "":
			matches[0].PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: "/" + service + "/"}
		default:
			matches[0].PathSpecifier = &routev3.RouteMatch_Path{Path: "/" + service + "/" + name}
		}
	}
	return headersOf(matches, m.Headers)
}

// calls matches every gRPC call.
func (t Traffic) calls() []*routev3.RouteMatch {
	matches := Everything()
	if t == Requests {
		matches[0].Grpc = &routev3.RouteMatch_GrpcRouteMatchOptions{}
	}
	return matches
}

// pattern is a regular expression as a part of another; an absent one is any name.
func pattern(p string) string {
	if p == "" {
		return "[^/]+"
	}
	return "(?:" + p + ")"
}

// precedence is the place of a match among those of all routes of a service, as the
// Gateway API orders them: the exact path first, then the longest prefix, then a method,
// then more headers, then more query parameters, then the older route.
type precedence struct {
	exact, method               bool
	length, headers, parameters int
}

func precedenceOf(m *routev3.RouteMatch) precedence {
	p := precedence{headers: len(m.GetHeaders()), parameters: len(m.GetQueryParameters())}
	if p.method = slices.ContainsFunc(m.GetHeaders(), func(h *routev3.HeaderMatcher) bool { return h.GetName() == ":method" }); p.method {
		p.headers--
	}
	switch path := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Path:
		p.exact, p.length = true, len(path.Path)
	case *routev3.RouteMatch_Prefix:
		p.length = len(path.Prefix)
	}
	return p
}

func (p precedence) compare(o precedence) int {
	first := func(has bool) int {
		if has {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(first(p.exact), first(o.exact)), cmp.Compare(o.length, p.length), cmp.Compare(first(p.method), first(o.method)),
		cmp.Compare(o.headers, p.headers), cmp.Compare(o.parameters, p.parameters),
	)
}

func sortedKeys(m map[string]resource.StringMatch) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
