package envoy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	matchingv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	otelv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	otlpv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"meridian/internal/policy"
	"meridian/internal/policy/permission"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/world"
)

// triedFilter is the name of the filter that says what permissions with those that are only
// tried would decide, and decides nothing. It is before the one that decides.
func triedFilter(n int) string {
	if n == 0 {
		return "tried"
	}
	return "tried_" + strconv.Itoa(n)
}

// triedPrefix begins the names of its statistics, and of what it says of a request.
func triedPrefix(n int) string { return triedFilter(n) + "_" }

// trialKind is what is told of trials of requests or of connections.
type trialKind struct {
	// filter is what Envoy calls the filters that say what would be decided.
	filter string
	// details is the placeholder, and attribute the attribute of expressions, with what
	// became of a request or connection.
	details, attribute string
}

var (
	httpTrials = trialKind{"envoy.filters.http.rbac", "%RESPONSE_CODE_DETAILS%", "response.code_details"}
	tcpTrials  = trialKind{"envoy.filters.network.rbac", "%CONNECTION_TERMINATION_DETAILS%", "connection.termination_details"}
)

// The member of a route's metadata with the stamp of what is tried.
const trialMetadata, trialStamp = "meridian", "trial"

// trial is what is tried on an inbound.
type trial struct {
	lists    []permission.List
	matchers []*matchingv3.Matcher
	stamp    string
}

// trial makes what is tried on an inbound of which lists are in effect, as decide and names;
// nil for nothing. It takes no part of what an inbound may come to that decide and names
// need: where there is not enough left, nothing is tried.
func (c *compiler) trial(lists []permission.List, decide []*matchingv3.Matcher, names []string, tried *generate.Tried, at []policy.Attachment) (*trial, error) {
	found, err := generate.TrialOf(true, lists, tried, at)
	if found == nil || err != nil {
		return nil, err
	}
	t := &trial{lists: found.Lists, stamp: found.Stamp}
	if isClosed(lists, decide) {
		return nil, nil
	}
	entries, bytes := 0, 0
	for _, n := range names {
		bytes += len(n) + nameBytes
	}
	for _, m := range decide {
		bytes += proto.Size(m)
	}
	for i := range t.lists {
		if entries += size(&t.lists[i]); entries > maxEntries {
			return nil, nil
		}
		m, err := c.list(&t.lists[i])
		if err != nil {
			return nil, err
		}
		if bytes += proto.Size(m); bytes > maxBytes {
			return nil, nil
		}
		t.matchers = append(t.matchers, m)
	}
	return t, nil
}

// requests is what the routes of an inbound set for its filters.
func (t *trial) requests(n int) *httprbacv3.RBACPerRoute {
	return &httprbacv3.RBACPerRoute{Rbac: &httprbacv3.RBAC{ShadowMatcher: t.matchers[n], ShadowRulesStatPrefix: triedPrefix(n)}}
}

// metadata is that of the routes.
func (t *trial) metadata() *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{trialMetadata: {Fields: map[string]*structpb.Value{trialStamp: structpb.NewStringValue(t.stamp)}}}}
}

// connections are the filters of an inbound without HTTP.
func (t *trial) connections(statistics string) (filters []*listenerv3.Filter, err error) {
	for i, m := range t.matchers {
		packed, err := xds.Pack(&networkrbacv3.RBAC{StatPrefix: statistics + "_", ShadowMatcher: m, ShadowRulesStatPrefix: triedPrefix(i)})
		if err != nil {
			return nil, err
		}
		filters = append(filters, &listenerv3.Filter{Name: triedFilter(i), ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed}})
	}
	return filters, nil
}

// counted tells the agent of calls of an inbound about which the permissions that are tried
// would decide otherwise than those in effect: by whom, and on whose word. stamp is the
// placeholder of that of the trial.
func counted(kind trialKind, port uint32, lists int, stamp string) (*accesslogv3.AccessLog, error) {
	said := func(n int, what string) string { return triedPrefix(n) + what }
	body := &otlpv1.KeyValueList{}
	add := func(key, value string) {
		body.Values = append(body.Values, &otlpv1.KeyValue{Key: key, Value: textValue(value)})
	}
	add(xds.TrialCaller, "%DOWNSTREAM_PEER_URI_SAN%")
	add(xds.TrialDetails, kind.details)
	add(xds.TrialStamp, stamp)
	var allowed []string
	for i := range lists {
		add(xds.TrialResult+strconv.Itoa(i), "%DYNAMIC_METADATA("+kind.filter+":"+said(i, "shadow_engine_result")+")%")
		add(xds.TrialPolicy+strconv.Itoa(i), "%DYNAMIC_METADATA("+kind.filter+":"+said(i, "shadow_effective_policy_id")+")%")
		allowed = append(allowed, fmt.Sprintf("metadata.filter_metadata['%s']['%s'] == 'allowed'", kind.filter, said(i, "shadow_engine_result")))
	}
	l := &logs{}
	// Where nothing is tried the expression has no value, and there is no entry.
	condition := fmt.Sprintf("(%s) == (has(%s) && %s.startsWith('%s'))", strings.Join(allowed, " && "), kind.attribute, kind.attribute, xds.DeniedDetails)
	err := l.append(&otelv3.OpenTelemetryAccessLogConfig{
		GrpcService: grpcService(xds.AgentCluster), DisableBuiltinLabels: true, StatPrefix: "trials.", BufferFlushInterval: durationpb.New(sendLogs),
		ResourceAttributes: &otlpv1.KeyValueList{Values: []*otlpv1.KeyValue{{Key: xds.TrialPort, Value: textValue(strconv.FormatUint(uint64(port), 10))}}},
		Body:               &otlpv1.AnyValue{Value: &otlpv1.AnyValue_KvlistValue{KvlistValue: body}},
	}, condition)
	if err != nil {
		return nil, err
	}
	return l.list[0], nil
}

// Tried is an inbound on which something is tried.
type Tried struct {
	Port    uint32
	Service string
	// Stamp is what its Envoy calls what is tried.
	Stamp string
}

// Trials lists the inbounds of a dataplane on which something is tried, if its Envoy can say
// what it would decide.
func Trials(settings world.Mesh, spec *resource.Dataplane, rules []policy.Rule, tried *generate.Tried) ([]Tried, error) {
	if tried == nil || !settings.Certified() {
		return nil, nil
	}
	var list []Tried
	all := listenersOf(spec)
	for i := range all.inbounds {
		in := &all.inbounds[i]
		at := attachmentsAt(spec, in.place)
		found, err := generate.TrialOf(true, generate.Permissions(true, rules, slices.Clone(at)), tried, at)
		if err != nil {
			return nil, err
		}
		if found != nil {
			list = append(list, Tried{in.port, in.Service(), found.Stamp})
		}
	}
	return list, nil
}
