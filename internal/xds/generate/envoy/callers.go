package envoy

import (
	"slices"
	"strconv"

	cncfcorev3 "github.com/cncf/xds/go/xds/core/v3"
	cncfmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	compositev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/composite/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	sslv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/ssl/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meridian/internal/identity"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/world"
)

// maxClasses bounds the classes of callers of one kind on one inbound: each is compared
// with every request in turn.
const maxClasses = 64

// class is callers of an inbound for which the policies of a kind come to the same.
type class struct {
	// match are selectors of which each matches the callers, who are in no class before.
	// None: all others.
	match []resource.TagSelector
	conf  *generate.Conf
}

// classesOf lists the classes of callers of a rule, in the order in which they are to be
// looked for; callers in none have no configuration. It returns false if they are too many.
//
// A caller's configuration is the merge of the steps that match it (§4.7). Whether a step
// does is asked in order, and first for those of whom it is true: a caller is of the first
// class all of whose selectors match it. Nothing is asked where the answer follows from
// answers before, or changes nothing.
func classesOf(rule *policy.Rule) ([]class, bool) {
	w := &walk{rule: rule}
	ok := w.from(0, nil, nil, nil)
	return w.classes, ok
}

// walk goes through the steps of a rule.
type walk struct {
	rule    *policy.Rule
	classes []class
}

// from decides the steps from the i-th on. taken are the steps that match, with the
// selectors of these that were asked for, and not those that do not.
func (w *walk) from(i int, taken []policy.Step, match, not []resource.TagSelector) bool {
	for ; i < len(w.rule.Steps); i++ {
		s := &w.rule.Steps[i]
		if slices.ContainsFunc(not, func(n resource.TagSelector) bool { return covers(n, s.Match) }) || !w.changes(taken, s) {
			continue
		}
		with := append(slices.Clip(taken), *s)
		if everyone(s.Match) || slices.ContainsFunc(match, func(m resource.TagSelector) bool { return covers(s.Match, m) }) {
			taken = with
			continue
		}
		// Every question that is open on the way leads to a class of its own.
		if len(match)+len(not) >= maxClasses || !w.from(i+1, with, append(slices.Clip(match), s.Match), not) {
			return false
		}
		not = append(slices.Clip(not), s.Match)
	}
	if len(taken) == 0 {
		return true
	}
	mine := *w.rule
	mine.Steps = taken
	w.classes = append(w.classes, class{match, generate.NewConf(&mine)})
	return len(w.classes) <= maxClasses
}

// changes reports whether a step does anything after others.
func (w *walk) changes(taken []policy.Step, s *policy.Step) bool {
	f := policy.NewFold(w.rule.Units)
	for _, t := range taken {
		f.Add(t)
	}
	e := f.Add(*s)
	// A step that sets nothing may still keep those after it out.
	return len(e.Set)+len(e.Displaced) > 0 || e.Used && len(taken) == 0
}

// everyone reports whether a selector matches every dataplane: all have a service and a
// zone.
func everyone(s resource.TagSelector) bool {
	for tag, value := range s {
		if value != resource.AnyValue || tag != resource.ServiceTag && tag != resource.ZoneTag {
			return false
		}
	}
	return true
}

// covers reports whether every caller that narrow matches is matched by wide too.
func covers(wide, narrow resource.TagSelector) bool {
	for tag, value := range wide {
		if got, ok := narrow[tag]; !ok || value != resource.AnyValue && got != value {
			return false
		}
	}
	return true
}

// forEveryone is what a rule comes to for a caller of whom nothing is known; nil for
// nothing.
func forEveryone(rule *policy.Rule) *generate.Conf {
	mine := *rule
	mine.Steps = slices.DeleteFunc(slices.Clone(rule.Steps), func(s policy.Step) bool { return !everyone(s.Match) })
	if len(mine.Steps) == 0 {
		return nil
	}
	return generate.NewConf(&mine)
}

// callers lists the classes of callers of an inbound for a kind and its successor; none
// where they are too many. Without mutual TLS, nothing is known of any.
func (b *builder) callers(rules generate.Rules, kind, successor resource.Kind) []class {
	rule := inEffect(rules, kind, successor)
	if rule == nil {
		return nil
	}
	if !b.settings.Secure() {
		if c := forEveryone(rule); c != nil {
			return []class{{conf: c}}
		}
		return nil
	}
	classes, ok := classesOf(rule)
	if !ok {
		return nil
	}
	return classes
}

// inEffect is the rule of a kind, or of its successor, which supersedes it (§4.11); nil
// for none.
func inEffect(rules generate.Rules, kind, successor resource.Kind) *policy.Rule {
	var found *policy.Rule
	for i := range rules {
		if r := &rules[i]; len(r.Steps) > 0 && (r.Kind == successor || r.Kind == kind && found == nil) {
			found = r
		}
	}
	return found
}

// slots are the filters that routes fill in, and that do nothing by themselves. All are on
// every connection manager of HTTP, so that no change of a policy changes a listener. What
// is limited costs nothing more, so that limits come first.
func slots() ([]*httpv3.HttpFilter, error) {
	packed, err := xds.Pack(&compositev3.Composite{})
	if err != nil {
		return nil, err
	}
	var filters []*httpv3.HttpFilter
	for _, f := range fills {
		filters = append(filters, &httpv3.HttpFilter{Name: f.slot, ConfigType: &httpv3.HttpFilter_TypedConfig{TypedConfig: packed}})
	}
	return filters, nil
}

// fill is what one of the slots does with the requests of a host or a route: for each
// class of callers, in order, the filters of its configuration.
type fill struct {
	slot    string
	filters func(*generate.Conf) ([]proto.Message, []policy.Pointer)
	// from are the kinds that hold for callers, the newer last; to is the one that holds
	// for the requests of an outbound.
	from [2]resource.Kind
	to   resource.Kind
}

// fills are those of all slots, in order.
var fills = append([]fill{{
	limitsFilter, limitsOf, [2]resource.Kind{resource.KindRateLimit, resource.KindMeshRateLimit}, resource.KindMeshRateLimit,
}}, faultFills()...)

// into puts what classes come to into the configuration of filters of a host or a route.
// It returns the origins, with paths inside that configuration.
func (f fill) into(config map[string]*anypb.Any, mesh resource.MeshName, classes []class) ([]xds.Origin, error) {
	var origins []xds.Origin
	m := &cncfmatcherv3.Matcher{}
	list := &cncfmatcherv3.Matcher_MatcherList{}
	some := false
	for _, c := range classes {
		filters, fields := f.filters(c.conf)
		some = some || len(filters) > 0
		on, err := run(filters)
		if err != nil {
			return nil, err
		}
		for _, field := range fields {
			for _, o := range c.conf.Origin("/"+f.slot, field) {
				if !slices.Contains(origins, o) {
					origins = append(origins, o)
				}
			}
		}
		if len(c.match) == 0 {
			m.OnNoMatch = on
			break
		}
		p, err := allOf(mesh, c.match)
		if err != nil {
			return nil, err
		}
		list.Matchers = append(list.Matchers, &cncfmatcherv3.Matcher_MatcherList_FieldMatcher{Predicate: p, OnMatch: on})
	}
	if !some {
		return nil, nil
	}
	if len(list.GetMatchers()) > 0 {
		m.MatcherType = &cncfmatcherv3.Matcher_MatcherList_{MatcherList: list}
	}
	packed, err := xds.Pack(&compositev3.CompositePerRoute{Matcher: m})
	if err != nil {
		return nil, err
	}
	config[f.slot] = packed
	return origins, nil
}

// run has requests go through filters, one after the other.
func run(filters []proto.Message) (*cncfmatcherv3.Matcher_OnMatch, error) {
	if len(filters) == 0 {
		filters = []proto.Message{&faultv3.HTTPFault{}} // it does nothing, and none is not accepted
	}
	chain := &compositev3.FilterChainConfiguration{}
	for i, f := range filters {
		packed, err := xds.Pack(f)
		if err != nil {
			return nil, err
		}
		chain.TypedConfig = append(chain.TypedConfig, &corev3.TypedExtensionConfig{Name: strconv.Itoa(i), TypedConfig: packed})
	}
	packed, err := xds.Pack(&compositev3.ExecuteFilterAction{FilterChain: chain})
	if err != nil {
		return nil, err
	}
	return &cncfmatcherv3.Matcher_OnMatch{OnMatch: &cncfmatcherv3.Matcher_OnMatch_Action{
		Action: &cncfcorev3.TypedExtensionConfig{Name: "run", TypedConfig: packed},
	}}, nil
}

// allOf holds for callers with a certificate of the mesh that every selector matches.
func allOf(mesh resource.MeshName, selectors []resource.TagSelector) (*cncfmatcherv3.Matcher_MatcherList_Predicate, error) {
	uri, err := xds.Pack(&sslv3.UriSanInput{})
	if err != nil {
		return nil, err
	}
	var all []*cncfmatcherv3.Matcher_MatcherList_Predicate
	for _, s := range selectors {
		regex, err := identity.Pattern(mesh, s)
		if err != nil {
			return nil, err
		}
		all = append(all, &cncfmatcherv3.Matcher_MatcherList_Predicate{MatchType: &cncfmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_{
			SinglePredicate: &cncfmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate{
				Input: &cncfcorev3.TypedExtensionConfig{Name: "uri", TypedConfig: uri},
				Matcher: &cncfmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_ValueMatch{ValueMatch: &cncfmatcherv3.StringMatcher{
					MatchPattern: &cncfmatcherv3.StringMatcher_SafeRegex{SafeRegex: &cncfmatcherv3.RegexMatcher{
						EngineType: &cncfmatcherv3.RegexMatcher_GoogleRe2{GoogleRe2: &cncfmatcherv3.RegexMatcher_GoogleRE2{}}, Regex: regex,
					}},
				}},
			},
		}})
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return &cncfmatcherv3.Matcher_MatcherList_Predicate{MatchType: &cncfmatcherv3.Matcher_MatcherList_Predicate_AndMatcher{
		AndMatcher: &cncfmatcherv3.Matcher_MatcherList_Predicate_PredicateList{Predicate: all},
	}}, nil
}

// forCallers is what an inbound does with the requests of its callers: the configuration of
// filters for its host. The paths of origins begin in the routes.
func (b *builder) forCallers(rules generate.Rules) (map[string]*anypb.Any, []xds.Origin, error) {
	config := map[string]*anypb.Any{}
	var origins []xds.Origin
	for _, f := range fills {
		from, err := f.into(config, b.Mesh, b.callers(rules, f.from[0], f.from[1]))
		if err != nil {
			return nil, nil, err
		}
		origins = generate.AppendAt(origins, hostFilters, from)
	}
	return config, origins, nil
}

// hostFilters is the place of the configuration of filters of a host, in routes.
const hostFilters = "/virtualHosts/0/typedPerFilterConfig"

// onRoute is what an outbound does with its requests, or, of a route with an entry of its
// own, with those of the route: the configuration of filters. The paths of origins begin
// inside of it.
func (b *builder) onRoute(rules generate.Rules, route string) (map[string]*anypb.Any, []xds.Origin, error) {
	config := map[string]*anypb.Any{}
	var origins []xds.Origin
	for _, f := range fills {
		if route != "" && !rules.Named(route, f.to) {
			continue
		}
		var classes []class
		if c := rules.On(route, f.to, f.to); c != nil {
			classes = []class{{conf: c}}
		}
		from, err := f.into(config, b.Mesh, classes)
		if err != nil {
			return nil, nil, err
		}
		origins = append(origins, from...)
		if route != "" && config[f.slot] == nil {
			// The route's entry takes away what holds for the outbound.
			if config[f.slot], err = nothing(); err != nil {
				return nil, nil, err
			}
		}
	}
	return config, origins, nil
}

// nothing is the configuration of a slot that does nothing.
func nothing() (*anypb.Any, error) {
	on, err := run(nil)
	if err != nil {
		return nil, err
	}
	return xds.Pack(&compositev3.CompositePerRoute{Matcher: &cncfmatcherv3.Matcher{OnNoMatch: on}})
}

// byCaller are the kinds whose configuration differs per caller on Envoy, and together the
// one that is for all callers of an inbound together.
var byCaller = []resource.Kind{resource.KindRateLimit, resource.KindMeshRateLimit, resource.KindFaultInjection, resource.KindMeshHTTPFault}

const together = resource.KindMeshCircuitBreaker

// Unheeded lists the policies of a rule on an inbound of which something has no effect
// because of whom it is for, and why.
func Unheeded(settings world.Mesh, rule *policy.Rule) (policies []resource.Key, why string) {
	if rule.PerCaller && rule.Kind == resource.KindMeshLogging {
		return unlogged(settings, rule)
	}
	if !rule.PerCaller || rule.Kind != together && !slices.Contains(byCaller, rule.Kind) {
		return nil, ""
	}
	all := false
	switch {
	case rule.Kind == together:
		why = "it holds for all callers of an inbound together: what is for some callers only has no effect"
	case !settings.Secure():
		why = "who calls is known only in a mesh with mutual TLS whose mode is STRICT: what is for some callers only has no effect"
	default:
		if _, fits := classesOf(rule); fits {
			return nil, ""
		}
		all, why = true, "the policies tell more than "+strconv.Itoa(maxClasses)+" classes of callers apart: none of them has effect on this inbound"
	}
	for i := range rule.Steps {
		s := &rule.Steps[i]
		if (all || !everyone(s.Match)) && !slices.Contains(policies, s.Origin) {
			policies = append(policies, s.Origin)
		}
	}
	return policies, why
}

// unlogged are the policies of a rule of MeshLogging of which entries have no effect because
// there are too many for one inbound.
func unlogged(settings world.Mesh, rule *policy.Rule) (policies []resource.Key, why string) {
	if len(rule.Steps) == 0 {
		return nil, ""
	}
	b := &builder{settings: settings}
	b.Mesh = rule.Steps[0].Origin.Mesh
	_, left, err := b.conditions(rule)
	if err != nil || len(left) == 0 { // where names cannot be compared, nothing is sent at all
		return nil, ""
	}
	return left, "of an inbound, entries of from have effect up to the " + strconv.Itoa(maxLogEntries) + "th, while their conditions have at most " +
		strconv.Itoa(maxLogConditions) + " bytes together: those after them, in the order in which they are looked for, have none; write fewer or shorter ones"
}
