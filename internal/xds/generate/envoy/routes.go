package envoy

import (
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
)

// routes makes the routes of one entry, of which the first is the n-th of the list.
func (b *builder) routes(a *policy.Attachment, rules generate.Rules, e *generate.Entry, n int) ([]*routev3.Route, []xds.Origin, error) {
	shares, err := b.Shares(a, rules, e)
	if err != nil {
		return nil, nil, err
	}
	mirrors, err := b.mirrors(a, rules, e)
	if err != nil {
		return nil, nil, err
	}
	var config map[string]*anypb.Any
	var configured []xds.Origin
	if e.Route != "" {
		if config, configured, err = b.onRoute(rules, e.Route); err != nil {
			return nil, nil, err
		}
	}
	var made []*routev3.Route
	var origins []xds.Origin
	for i, m := range e.Matches {
		r := &routev3.Route{Name: e.Route, Match: m, TypedPerFilterConfig: config}
		at := "/virtualHosts/0/routes/" + strconv.Itoa(n+i)
		origins = generate.AppendAt(origins, at, e.Origins)
		origins = generate.AppendAt(origins, at+"/typedPerFilterConfig", configured)
		if action := b.action(r, e, shares); action != nil {
			action.RequestMirrorPolicies = mirrors
			origins = generate.AppendAt(origins, at+"/route", setTimeouts(action, rules.On(e.Route, resource.KindTimeout, resource.KindMeshUpstreamTimeout), b.own, e))
			origins = generate.AppendAt(origins, at+"/route/retryPolicy", setRetry(action, rules.On(e.Route, resource.KindRetry, resource.KindMeshRequestRetry), b.own, e))
		}
		modify(r, e)
		made = append(made, r)
	}
	return made, origins, nil
}

// action sets what a route does with requests, and returns where it sends them; nil when
// it answers them itself. What cannot be done as it is written fails.
func (b *builder) action(r *routev3.Route, e *generate.Entry, shares []generate.Share) *routev3.RouteAction {
	for i := range e.Filters {
		switch f := &e.Filters[i]; {
		case f.RequestRedirect != nil:
			r.Action = &routev3.Route_Redirect{Redirect: redirect(f.RequestRedirect, r.GetMatch())}
			return nil
		case f.ExtensionRef != nil:
			fail(r, "this route has a filter that is not supported")
			return nil
		}
	}
	if len(shares) == 0 {
		fail(r, "no valid destination")
		return nil
	}
	action := &routev3.RouteAction{}
	r.Action = &routev3.Route_Route{Route: action}
	if len(shares) == 1 && len(shares[0].Filters) == 0 {
		action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: shares[0].Cluster}
		return action
	}
	weighted := &routev3.WeightedCluster{}
	for _, s := range shares {
		w := &routev3.WeightedCluster_ClusterWeight{Name: s.Cluster, Weight: wrapperspb.UInt32(uint32(s.Weight))}
		for i := range s.Filters {
			f := &s.Filters[i]
			headers(f.RequestHeaderModifier, &w.RequestHeadersToAdd, &w.RequestHeadersToRemove)
			headers(f.ResponseHeaderModifier, &w.ResponseHeadersToAdd, &w.ResponseHeadersToRemove)
			if f.URLRewrite != nil && f.URLRewrite.Hostname != nil {
				w.HostRewriteSpecifier = &routev3.WeightedCluster_ClusterWeight_HostRewriteLiteral{HostRewriteLiteral: *f.URLRewrite.Hostname}
			}
		}
		weighted.Clusters = append(weighted.Clusters, w)
	}
	action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: weighted}
	return action
}

// fail has a route answer requests with an error.
func fail(r *routev3.Route, why string) {
	r.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
		Status: http.StatusInternalServerError,
		Body:   &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: why}},
	}}
}

// mirrors makes the clusters that copies of an entry's requests go to.
func (b *builder) mirrors(a *policy.Attachment, rules generate.Rules, e *generate.Entry) ([]*routev3.RouteAction_RequestMirrorPolicy, error) {
	var all []*routev3.RouteAction_RequestMirrorPolicy
	for i := range e.Filters {
		m := e.Filters[i].RequestMirror
		if m == nil {
			continue
		}
		selector := e.Select(&m.BackendRef)
		if selector == nil {
			continue // copies to what cannot be are lost, as others are
		}
		cluster, err := b.Cluster(a, rules, e, selector)
		if err != nil {
			return nil, err
		}
		share := 100.0
		if m.Percentage != nil {
			share = float64(*m.Percentage)
		}
		all = append(all, &routev3.RouteAction_RequestMirrorPolicy{
			Cluster: cluster,
			RuntimeFraction: &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{
				Numerator: uint32(math.Round(share * 10_000)), Denominator: typev3.FractionalPercent_MILLION,
			}},
		})
	}
	return all, nil
}

// modify sets what an entry changes in requests and answers.
func modify(r *routev3.Route, e *generate.Entry) {
	for i := range e.Filters {
		f := &e.Filters[i]
		headers(f.RequestHeaderModifier, &r.RequestHeadersToAdd, &r.RequestHeadersToRemove)
		headers(f.ResponseHeaderModifier, &r.ResponseHeadersToAdd, &r.ResponseHeadersToRemove)
		if action := r.GetRoute(); action != nil && f.URLRewrite != nil {
			if f.URLRewrite.Hostname != nil {
				action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: *f.URLRewrite.Hostname}
			}
			rewrite(action, f.URLRewrite.Path, r.GetMatch())
		}
	}
	if e.Modify == nil {
		return
	}
	addHeaders(e.Modify.RequestHeaders, &r.RequestHeadersToAdd, &r.RequestHeadersToRemove)
	addHeaders(e.Modify.ResponseHeaders, &r.ResponseHeadersToAdd, &r.ResponseHeadersToRemove)
	action := r.GetRoute()
	if action == nil {
		return
	}
	if p := e.Modify.Path; p != nil && p.RewritePrefix != nil {
		action.PrefixRewrite = *p.RewritePrefix
		if action.PrefixRewrite == "" {
			action.PrefixRewrite = "/"
		}
	} else if p != nil && p.Regex != nil {
		action.RegexRewrite = regexRewrite(p.Regex)
	}
	if h := e.Modify.Host; h != nil && h.Value != nil {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: *h.Value}
	} else if h != nil && h.FromPath != nil {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewritePathRegex{HostRewritePathRegex: regexRewrite(h.FromPath)}
	}
}

func regexRewrite(r *resource.RegexReplace) *matcherv3.RegexMatchAndSubstitute {
	return &matcherv3.RegexMatchAndSubstitute{Pattern: &matcherv3.RegexMatcher{Regex: r.Pattern}, Substitution: r.Substitution}
}

// rewrite replaces the path of requests, or the prefix that matched. A rule with a prefix
// is two matches: the path itself, and what is below it.
func rewrite(action *routev3.RouteAction, p *resource.PathRewrite, match *routev3.RouteMatch) {
	switch {
	case p == nil:
	case p.ReplaceFullPath != nil:
		action.RegexRewrite = wholePath(*p.ReplaceFullPath)
	case p.ReplacePrefixMatch != nil:
		action.PrefixRewrite = prefix(*p.ReplacePrefixMatch, match)
	}
}

// wholePath puts a text in the place of a path. In a substitution, a backslash begins the
// number of a group.
func wholePath(path string) *matcherv3.RegexMatchAndSubstitute {
	return &matcherv3.RegexMatchAndSubstitute{
		Pattern: &matcherv3.RegexMatcher{Regex: "^/.*$"}, Substitution: strings.ReplaceAll(path, `\`, `\\`),
	}
}

// prefix is what takes the place of what a match found.
func prefix(replacement string, match *routev3.RouteMatch) string {
	replacement = strings.TrimRight(replacement, "/")
	if below := match.GetPrefix(); strings.HasSuffix(below, "/") || replacement == "" {
		return replacement + "/"
	}
	return replacement
}

// redirect answers with another address.
func redirect(d *resource.RequestRedirect, match *routev3.RouteMatch) *routev3.RedirectAction {
	r := &routev3.RedirectAction{ResponseCode: routev3.RedirectAction_FOUND}
	if d.StatusCode != nil {
		r.ResponseCode = map[uint32]routev3.RedirectAction_RedirectResponseCode{
			http.StatusMovedPermanently: routev3.RedirectAction_MOVED_PERMANENTLY, http.StatusFound: routev3.RedirectAction_FOUND,
			http.StatusSeeOther: routev3.RedirectAction_SEE_OTHER, http.StatusTemporaryRedirect: routev3.RedirectAction_TEMPORARY_REDIRECT,
			http.StatusPermanentRedirect: routev3.RedirectAction_PERMANENT_REDIRECT,
		}[*d.StatusCode]
	}
	if d.Scheme != nil {
		r.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: *d.Scheme}
	}
	if d.Hostname != nil {
		r.HostRedirect = *d.Hostname
	}
	if d.Port != nil {
		r.PortRedirect = *d.Port
	}
	switch p := d.Path; {
	case p == nil:
	case p.ReplaceFullPath != nil:
		r.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: *p.ReplaceFullPath}
	case p.ReplacePrefixMatch != nil:
		r.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: prefix(*p.ReplacePrefixMatch, match)}
	}
	return r
}

// fieldName is what a header may be called that is added or removed: not those of HTTP/2
// that begin with a colon, which Envoy refuses.
var fieldName = regexp.MustCompile("^[0-9A-Za-z!#$%&'*+\\-.^_|~`]+$")

// changeable reports whether a header may be changed: the host has fields of its own.
func changeable(name string) bool {
	return fieldName.MatchString(name) && !strings.EqualFold(name, "host")
}

// maxHeaderBytes bounds the value of a header that Envoy adds.
const maxHeaderBytes = 16384

// header is a header to set; nil for one that cannot be. A percent sign begins a variable
// of Envoy's, so that it is doubled.
func header(name, value string, action corev3.HeaderValueOption_HeaderAppendAction) *corev3.HeaderValueOption {
	escaped := strings.ReplaceAll(value, "%", "%%")
	if !changeable(name) || strings.ContainsAny(value, "\x00\r\n") || len(escaped) > maxHeaderBytes {
		return nil
	}
	return &corev3.HeaderValueOption{
		Header: &corev3.HeaderValue{Key: name, Value: escaped}, AppendAction: action, KeepEmptyValue: true,
	}
}

const (
	replaceHeader = corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD
	appendHeader  = corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD
)

// headers are the changes of a filter.
func headers(m *resource.HeaderModifier, add *[]*corev3.HeaderValueOption, remove *[]string) {
	if m == nil {
		return
	}
	for _, h := range m.Set {
		*add = appendSome(*add, header(h.Name, h.Value, replaceHeader))
	}
	for _, h := range m.Add {
		*add = appendSome(*add, header(h.Name, h.Value, appendHeader))
	}
	for _, name := range m.Remove {
		if changeable(name) {
			*remove = append(*remove, name)
		}
	}
}

// addHeaders are the changes in the form of TrafficRoute.
func addHeaders(m *resource.ModifyHeaders, add *[]*corev3.HeaderValueOption, remove *[]string) {
	if m == nil {
		return
	}
	for _, h := range m.Add {
		action := replaceHeader
		if h.Append != nil && *h.Append {
			action = appendHeader
		}
		*add = appendSome(*add, header(h.Name, h.Value, action))
	}
	for _, h := range m.Remove {
		if changeable(h.Name) {
			*remove = append(*remove, h.Name)
		}
	}
}

// appendSome appends what is not nil.
func appendSome[M interface {
	comparable
	proto.Message
}](list []M, m M) []M {
	var none M
	if m == none {
		return list
	}
	return append(list, m)
}
