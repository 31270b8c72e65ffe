package envoy

import (
	"net/http"
	"slices"
	"strconv"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	matchingv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	sslv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/ssl/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/identity"
	"meridian/internal/policy"
	"meridian/internal/policy/permission"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/world"
)

// What the permissions of one inbound may come to. One with more denies every caller.
const (
	// maxEntries bounds the entries of all its lists.
	maxEntries = 20_000
	// maxBytes bounds them as they are sent.
	maxBytes = 3 << 20
	// maxNamed bounds them with the names that are allowed in the handshake, which are in
	// the same listener.
	maxNamed = maxBytes + 512<<10
	// nameBytes is what a name takes in a listener besides its expression.
	nameBytes = 16
	// maxEarly bounds what a caller may send before it is decided on and the application
	// is connected to, in bytes.
	maxEarly = 64 << 10
)

// permissionsFilter is the name of the filter that decides about callers by the list of an
// inbound. Where inbounds share an address, there is one for each, and all have to allow.
func permissionsFilter(n int) string {
	if n == 0 {
		return "permissions"
	}
	return "permissions_" + strconv.Itoa(n)
}

// attachmentsAt are the inbounds that share an address and port.
func attachmentsAt(spec *resource.Dataplane, at place) (found []policy.Attachment) {
	for i := range spec.Inbounds() {
		if in := &spec.Networking.Inbound[i]; placeOf(spec, in) == at {
			found = append(found, attachmentOf(in))
		}
	}
	return found
}

// compiler makes what Envoy decides by of the lists of an inbound.
type compiler struct {
	mesh resource.MeshName
	// revoked are denied before anything else; nil for no caller.
	revoked *world.Revoked
	// callers is the input that all comparisons have: the name in the caller's certificate.
	callers *xdscorev3.TypedExtensionConfig
}

func newCompiler(mesh resource.MeshName, revoked *world.Revoked) (*compiler, error) {
	packed, err := xds.Pack(&sslv3.UriSanInput{})
	return &compiler{mesh, revoked, &xdscorev3.TypedExtensionConfig{Name: "caller", TypedConfig: packed}}, err
}

// lists makes a list of each list: the first entry that holds for a caller decides, and its
// action has the name of the policy.
func (c *compiler) lists(lists []permission.List) ([]*matchingv3.Matcher, error) {
	entries, bytes := 0, 0
	var made []*matchingv3.Matcher
	for i := range lists {
		if entries += size(&lists[i]); entries > maxEntries {
			return c.closed(lists)
		}
		m, err := c.list(&lists[i])
		if err != nil {
			return nil, err
		}
		if bytes += proto.Size(m); bytes > maxBytes {
			return c.closed(lists)
		}
		made = append(made, m)
	}
	return made, nil
}

// withNames makes a list of each list as lists does, and the expressions of allowedNames: none
// where every caller is denied because the two are too large.
func (c *compiler) withNames(lists []permission.List) ([]*matchingv3.Matcher, []string, error) {
	names := allowedNames(c.mesh, lists)
	made, err := c.lists(lists)
	if err != nil || names == nil {
		return made, nil, err
	}
	bytes := 0
	for _, n := range names {
		bytes += len(n) + nameBytes
	}
	for _, m := range made {
		bytes += proto.Size(m)
	}
	if size(&lists[0]) > maxEntries || bytes > maxNamed {
		made, err = c.closed(lists)
		return made, nil, err
	}
	return made, names, nil
}

// size is how many comparisons a list comes to.
func size(l *permission.List) int {
	n := 0
	for i := range l.Entries {
		n += 1 + len(l.Entries[i].Except)
	}
	return n
}

// closed denies every caller.
func (c *compiler) closed(lists []permission.List) ([]*matchingv3.Matcher, error) {
	made := make([]*matchingv3.Matcher, len(lists))
	for i := range made {
		end, err := decision(generate.TooMany, false)
		if err != nil {
			return nil, err
		}
		made[i] = &matchingv3.Matcher{OnNoMatch: end}
	}
	return made, nil
}

// isClosed reports whether closed made what the lists come to.
func isClosed(lists []permission.List, made []*matchingv3.Matcher) bool {
	for i := range lists {
		if len(lists[i].Entries) > 0 && made[i].GetMatcherList() == nil {
			return true
		}
	}
	return false
}

// Oversized lists the inbounds whose permissions are more than an Envoy takes, so that every
// caller is denied, and those on which for that reason nothing is tried.
func Oversized(mesh resource.MeshName, settings world.Mesh, spec *resource.Dataplane, rules []policy.Rule, tried *generate.Tried) ([]xds.Omission, error) {
	if !settings.Certified() {
		return nil, nil
	}
	c, err := newCompiler(mesh, settings.Revoked)
	if err != nil {
		return nil, err
	}
	var found []xds.Omission
	all := listenersOf(spec)
	for i := range all.inbounds {
		in := &all.inbounds[i]
		at := attachmentOf(in.Inbound)
		lists := generate.Permissions(true, rules, attachmentsAt(spec, in.place))
		compile := func(lists []permission.List) ([]*matchingv3.Matcher, []string, error) {
			made, err := c.lists(lists)
			return made, nil, err
		}
		if world.ProtocolOf(in.Tags) == world.TCP {
			compile = c.withNames
		}
		decide, names, err := compile(lists)
		if err != nil {
			return nil, err
		}
		note := func(why string, lists, but []permission.List) {
			o := xds.Omission{Attachment: at.String(), Why: why}
			known := sources(but, "")
			for _, origin := range sources(lists, "") {
				if !slices.Contains(known, origin) {
					o.Sources = append(o.Sources, origin.Source)
				}
			}
			found = append(found, o)
		}
		if isClosed(lists, decide) {
			note(generate.Closed, lists, nil)
		}
		trying, err := generate.TrialOf(true, lists, tried, attachmentsAt(spec, in.place))
		if err != nil {
			return nil, err
		}
		if trying == nil {
			continue
		}
		made, err := c.trial(lists, decide, names, tried, attachmentsAt(spec, in.place))
		if err != nil {
			return nil, err
		}
		if made == nil {
			note(untried, trying.Lists, lists)
		}
	}
	return found, nil
}

// untried says why nothing is tried on an inbound.
const untried = "the permissions of this inbound leave no space to try others: nothing is tried there, and `meridian proxy shadow` counts nothing of it; write fewer or shorter entries"

func (c *compiler) list(l *permission.List) (*matchingv3.Matcher, error) {
	end, err := decision(generate.Ending(l), l.Allow)
	if err != nil {
		return nil, err
	}
	m := &matchingv3.Matcher{OnNoMatch: end}
	if len(l.Entries) == 0 && c.revoked == nil {
		return m, nil
	}
	entries := &matchingv3.Matcher_MatcherList{}
	if c.revoked != nil {
		regex, err := identity.CredentialsPattern(c.mesh, c.revoked.Credentials)
		if err != nil {
			return nil, err
		}
		denied, err := decision(generate.RevokedToken, false)
		if err != nil {
			return nil, err
		}
		entries.Matchers = append(entries.Matchers, &matchingv3.Matcher_MatcherList_FieldMatcher{Predicate: c.matching(regex), OnMatch: denied})
	}
	for i := range l.Entries {
		e := &l.Entries[i]
		holds, err := c.holds(e)
		if err != nil {
			return nil, err
		}
		then, err := decision(generate.Title(e.Policy), e.Allow)
		if err != nil {
			return nil, err
		}
		entries.Matchers = append(entries.Matchers, &matchingv3.Matcher_MatcherList_FieldMatcher{Predicate: holds, OnMatch: then})
	}
	m.MatcherType = &matchingv3.Matcher_MatcherList_{MatcherList: entries}
	return m, nil
}

type predicate = matchingv3.Matcher_MatcherList_Predicate

// holds are the callers that an entry decides about.
func (c *compiler) holds(e *permission.Entry) (*predicate, error) {
	match, err := c.named(e.Match)
	if err != nil || len(e.Except) == 0 {
		return match, err
	}
	all := []*predicate{match}
	for _, except := range e.Except {
		x, err := c.named(except)
		if err != nil {
			return nil, err
		}
		all = append(all, &predicate{MatchType: &matchingv3.Matcher_MatcherList_Predicate_NotMatcher{NotMatcher: x}})
	}
	return &predicate{MatchType: &matchingv3.Matcher_MatcherList_Predicate_AndMatcher{
		AndMatcher: &matchingv3.Matcher_MatcherList_Predicate_PredicateList{Predicate: all},
	}}, nil
}

// named are the callers with a certificate of the mesh whose name a selector matches.
func (c *compiler) named(s resource.TagSelector) (*predicate, error) {
	regex, err := identity.Pattern(c.mesh, s)
	if err != nil {
		return nil, err
	}
	return c.matching(regex), nil
}

// matching are the callers with a certificate whose name an expression matches.
func (c *compiler) matching(regex string) *predicate {
	return &predicate{MatchType: &matchingv3.Matcher_MatcherList_Predicate_SinglePredicate_{
		SinglePredicate: &matchingv3.Matcher_MatcherList_Predicate_SinglePredicate{
			Input: c.callers,
			Matcher: &matchingv3.Matcher_MatcherList_Predicate_SinglePredicate_ValueMatch{ValueMatch: &matchingv3.StringMatcher{
				MatchPattern: &matchingv3.StringMatcher_SafeRegex{SafeRegex: &matchingv3.RegexMatcher{
					EngineType: &matchingv3.RegexMatcher_GoogleRe2{GoogleRe2: &matchingv3.RegexMatcher_GoogleRE2{}}, Regex: regex,
				}},
			}},
		},
	}}
}

// decision allows or denies on the word of a policy.
func decision(by string, allow bool) (*matchingv3.Matcher_OnMatch, error) {
	action := &rbacv3.Action{Name: by, Action: rbacv3.RBAC_DENY}
	if allow {
		action.Action = rbacv3.RBAC_ALLOW
	}
	packed, err := xds.Pack(action)
	if err != nil {
		return nil, err
	}
	return &matchingv3.Matcher_OnMatch{OnMatch: &matchingv3.Matcher_OnMatch_Action{
		Action: &xdscorev3.TypedExtensionConfig{Name: "decision", TypedConfig: packed},
	}}, nil
}

// allowedNames are expressions that match the names of the callers that the lists of an
// inbound allow; nil where that takes more than the names: where a caller is denied whom
// a later entry allows, and where there are several lists.
func allowedNames(mesh resource.MeshName, lists []permission.List) []string {
	if len(lists) != 1 || lists[0].Allow || len(lists[0].Entries) > maxEntries {
		return nil
	}
	l, bytes := &lists[0], 0
	names := make([]string, 0, len(l.Entries))
	for i := range l.Entries {
		e := &l.Entries[i]
		name, err := identity.Pattern(mesh, e.Match)
		if bytes += len(name); err != nil || bytes > maxBytes || !e.Allow || len(e.Except) > 0 {
			return nil
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return []string{identity.Nothing}
	}
	return names
}

// guards are the filters of an inbound that decide about requests, closed: routes open
// them. A denied caller is told on whose word.
func guards(m *httpv3.HttpConnectionManager, lists int) error {
	end, err := decision(generate.NoPolicy, false)
	if err != nil {
		return err
	}
	packed, err := xds.Pack(&httprbacv3.RBAC{Matcher: &matchingv3.Matcher{OnNoMatch: end}})
	if err != nil {
		return err
	}
	var trying, filters []*httpv3.HttpFilter
	for i := range lists {
		tried, err := xds.Pack(&httprbacv3.RBAC{ShadowRulesStatPrefix: triedPrefix(i)})
		if err != nil {
			return err
		}
		trying = append(trying, &httpv3.HttpFilter{Name: triedFilter(i), ConfigType: &httpv3.HttpFilter_TypedConfig{TypedConfig: tried}})
		filters = append(filters, &httpv3.HttpFilter{Name: permissionsFilter(i), ConfigType: &httpv3.HttpFilter_TypedConfig{TypedConfig: packed}})
	}
	filters = append(trying, filters...)
	m.HttpFilters = append(filters, m.GetHttpFilters()...)
	m.LocalReplyConfig = &httpv3.LocalReplyConfig{Mappers: []*httpv3.ResponseMapper{{
		Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_StatusCodeFilter{StatusCodeFilter: &accesslogv3.StatusCodeFilter{
			Comparison: &accesslogv3.ComparisonFilter{Op: accesslogv3.ComparisonFilter_EQ, Value: &corev3.RuntimeUInt32{
				DefaultValue: http.StatusForbidden, RuntimeKey: "meridian.forbidden", // a key is required; nothing sets it
			}},
		}}},
		BodyFormatOverride: &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{
			TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "%LOCAL_REPLY_BODY%: %RESPONSE_CODE_DETAILS%\n"}},
		}},
	}}}
	return nil
}

// overrides are what the routes of an inbound set for its guards, and what they try; nil
// for nothing.
func overrides(mesh resource.MeshName, revoked *world.Revoked, lists []permission.List, tried *generate.Tried, at []policy.Attachment) (map[string]*anypb.Any, *trial, error) {
	c, err := newCompiler(mesh, revoked)
	if err != nil {
		return nil, nil, err
	}
	made, err := c.lists(lists)
	if err != nil {
		return nil, nil, err
	}
	trying, err := c.trial(lists, made, nil, tried, at)
	if err != nil {
		return nil, nil, err
	}
	filters := map[string]*anypb.Any{}
	for i, m := range made {
		if filters[permissionsFilter(i)], err = xds.Pack(&httprbacv3.RBACPerRoute{Rbac: &httprbacv3.RBAC{Matcher: m}}); err != nil {
			return nil, nil, err
		}
		if trying == nil {
			continue
		}
		if filters[triedFilter(i)], err = xds.Pack(trying.requests(i)); err != nil {
			return nil, nil, err
		}
	}
	return filters, trying, nil
}

// connections are the filters that decide about the connections of an inbound without
// HTTP, to be put before the proxy t.
//
// Envoy decides when a caller sends something. Where names has expressions, they
// decide in the handshake, and an application that is the first to send something is
// connected to after it. Otherwise it is connected to when the caller has sent something.
// Nothing of it is seen by a caller that is denied, but for one whose token was revoked:
// names in the handshake are of permissions alone, and the filter decides about it only
// when it sends something.
func connections(decide []*matchingv3.Matcher, names []string, statistics string, t *tcpv3.TcpProxy) (before []*listenerv3.Filter, err error) {
	for i, m := range decide {
		packed, err := xds.Pack(&networkrbacv3.RBAC{StatPrefix: statistics + "_", Matcher: m})
		if err != nil {
			return nil, err
		}
		before = append(before, &listenerv3.Filter{Name: permissionsFilter(i), ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed}})
	}
	if names != nil {
		t.UpstreamConnectMode, t.MaxEarlyDataBytes = tcpv3.UpstreamConnectMode_ON_DOWNSTREAM_TLS_HANDSHAKE, wrapperspb.UInt32(0)
		return before, nil
	}
	t.UpstreamConnectMode, t.MaxEarlyDataBytes = tcpv3.UpstreamConnectMode_ON_DOWNSTREAM_DATA, wrapperspb.UInt32(maxEarly)
	return before, nil
}

// sources are the policies that lists are made of.
func sources(lists []permission.List, at string) (origins []xds.Origin) {
	known := map[resource.Key]bool{}
	add := func(p resource.Key) {
		if !known[p] {
			known[p] = true
			origins = append(origins, xds.Origin{Path: at, Source: p})
		}
	}
	for i := range lists {
		for j := range lists[i].Entries {
			add(lists[i].Entries[j].Policy)
		}
		for _, p := range lists[i].Policies {
			add(p)
		}
	}
	return origins
}
