package envoy

import (
	"slices"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	previousprioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/world"
)

// The defaults of timeouts that the specs name. The one of a request is not for gRPC,
// whose calls may be streams that last.
const (
	connectTimeout    = 10 * time.Second
	requestTimeout    = 15 * time.Second
	streamIdleTimeout = 30 * time.Minute
)

// setTimeouts bounds the requests of a route, and returns the origins with paths inside
// its action.
func setTimeouts(action *routev3.RouteAction, c *generate.Conf, protocol world.Protocol, e *generate.Entry) (origins []xds.Origin) {
	first := func(fields ...policy.Pointer) (time.Duration, policy.Pointer, bool) {
		for _, field := range fields {
			if d, ok := c.Duration(field); ok && (protocol == world.GRPC || !strings.HasPrefix(string(field), "/grpc")) {
				return d, field, true
			}
		}
		return 0, "", false
	}
	action.Timeout = durationpb.New(requestTimeout)
	if protocol == world.GRPC {
		action.Timeout = durationpb.New(0)
	}
	switch d, field, ok := first("/http/requestTimeout"); {
	case e.Timeouts != nil && e.Timeouts.Request != nil:
		action.Timeout = durationpb.New(e.Timeouts.Request.Value())
		origins = append(origins, e.At("/timeout", "/timeouts/request")...)
	case ok:
		action.Timeout = durationpb.New(d)
		origins = append(origins, c.Origin("/timeout", field)...)
	}
	action.IdleTimeout = durationpb.New(streamIdleTimeout)
	if d, field, ok := first("/http/streamIdleTimeout", "/grpc/streamIdleTimeout"); ok {
		action.IdleTimeout = durationpb.New(d)
		origins = append(origins, c.Origin("/idleTimeout", field)...)
	}
	if d, field, ok := first("/http/maxStreamDuration", "/grpc/maxStreamDuration"); ok && d > 0 {
		action.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: durationpb.New(d)}
		origins = append(origins, c.Origin("/maxStreamDuration/maxStreamDuration", field)...)
	}
	return origins
}

// The defaults of retries that the specs name.
const (
	retriesOfRetry = 5
	perTryOfRetry  = 16 * time.Second
	baseInterval   = 25 * time.Millisecond
)

// conditions are the failures of retryOn in both generations, as Envoy spells them.
var conditions = map[string]string{
	"all_5xx": "5xx", "gateway_error": "gateway-error", "reset": "reset", "connect_failure": "connect-failure",
	"envoy_ratelimited": "envoy-ratelimited", "retriable_4xx": "retriable-4xx", "refused_stream": "refused-stream",
	"retriable_status_codes": "retriable-status-codes", "retriable_headers": "retriable-headers",
	"http3_post_connect_failure": "http3-post-connect-failure",
	"5XX":                        "5xx", "GatewayError": "gateway-error", "Reset": "reset", "ConnectFailure": "connect-failure",
	"EnvoyRatelimited": "envoy-ratelimited", "Retriable4xx": "retriable-4xx", "RefusedStream": "refused-stream",
	"Http3PostConnectFailure": "http3-post-connect-failure",
	"cancelled":               "cancelled", "deadline_exceeded": "deadline-exceeded", "internal": "internal",
	"resource_exhausted": "resource-exhausted", "unavailable": "unavailable",
	"Canceled": "cancelled", "DeadlineExceeded": "deadline-exceeded", "Internal": "internal",
	"ResourceExhausted": "resource-exhausted", "Unavailable": "unavailable",
}

// What is retried when retryOn is absent.
const (
	everyStatus   = "cancelled,deadline-exceeded,internal,resource-exhausted,unavailable"
	everyFailure  = "gateway-error,connect-failure,refused-stream"
	methodPrefix  = "HttpMethod"
	statusCodes   = "retriable-status-codes"
	answerHeaders = "retriable-headers"
)

// setRetry has failed requests of a route repeated, and returns the origins with paths
// inside the retry policy.
func setRetry(action *routev3.RouteAction, c *generate.Conf, protocol world.Protocol, e *generate.Entry) []xds.Origin {
	p, origins := retryOf(c, protocol)
	if r := e.Retry; r != nil {
		p, origins = ruleRetry(r), e.At("", "/retry")
	}
	if t := e.Timeouts; t != nil && t.BackendRequest != nil {
		if p == nil {
			p = &routev3.RetryPolicy{NumRetries: wrapperspb.UInt32(0)}
		}
		p.PerTryTimeout = durationpb.New(t.BackendRequest.Value())
		origins = append(origins, e.At("/perTryTimeout", "/timeouts/backendRequest")...)
	}
	action.RetryPolicy = p
	return origins
}

// ruleRetry are the retries of an HTTPRoute's rule.
func ruleRetry(r *resource.HTTPRouteRetry) *routev3.RetryPolicy {
	p := &routev3.RetryPolicy{RetryOn: everyFailure, NumRetries: wrapperspb.UInt32(1)}
	if len(r.Codes) > 0 {
		p.RetryOn, p.RetriableStatusCodes = statusCodes, r.Codes
	}
	if r.Attempts != nil {
		p.NumRetries = wrapperspb.UInt32(*r.Attempts)
	}
	if r.Backoff != nil && r.Backoff.Value() > 0 {
		p.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(shortest(r.Backoff.Value()))}
	}
	return p
}

// shortest is a pause that Envoy takes: whole milliseconds.
func shortest(d time.Duration) time.Duration { return max(d, time.Millisecond) }

// retryOf returns the retries of policies; nil for none.
func retryOf(c *generate.Conf, protocol world.Protocol) (*routev3.RetryPolicy, []xds.Origin) {
	at := policy.Pointer("/http")
	p := &routev3.RetryPolicy{RetryOn: everyFailure, NumRetries: wrapperspb.UInt32(1)}
	if protocol == world.GRPC {
		at, p.RetryOn = "/grpc", everyStatus
	}
	if !c.Has(at) {
		return nil, nil
	}
	if c.Kind == resource.KindRetry {
		p.NumRetries, p.PerTryTimeout = wrapperspb.UInt32(retriesOfRetry), durationpb.New(perTryOfRetry)
	}
	var origins []xds.Origin
	from := func(path string, field policy.Pointer) { origins = append(origins, c.Origin(path, at+field)...) }
	if n, ok := c.Number(at + "/numRetries"); ok {
		p.NumRetries = wrapperspb.UInt32(uint32(n))
		from("/numRetries", "/numRetries")
	}
	if d, ok := c.Duration(at + "/perTryTimeout"); ok {
		p.PerTryTimeout = durationpb.New(d)
		from("/perTryTimeout", "/perTryTimeout")
	}
	setRetryOn(p, c, at, from)
	base, hasBase := c.Duration(at + "/backOff/baseInterval")
	longest, hasLongest := c.Duration(at + "/backOff/maxInterval")
	if hasBase || hasLongest {
		if base <= 0 {
			base = baseInterval
		}
		p.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(shortest(base))}
		if hasBase {
			from("/retryBackOff/baseInterval", "/backOff/baseInterval")
		}
		if hasLongest {
			// Two policies may have written one each.
			p.RetryBackOff.MaxInterval = durationpb.New(shortest(max(base, longest)))
			from("/retryBackOff/maxInterval", "/backOff/maxInterval")
		}
	}
	if err := setRateLimited(p, c, at, from); err != nil {
		return nil, nil
	}
	if err := setHostSelection(p, c, at, from); err != nil {
		return nil, nil
	}
	return p, origins
}

// setRetryOn says what is retried.
func setRetryOn(p *routev3.RetryPolicy, c *generate.Conf, at policy.Pointer, from func(string, policy.Pointer)) {
	var methods []string
	if texts, ok := textsAt(c, at+"/retryOn"); ok {
		var on []string
		for _, text := range texts {
			switch code, err := strconv.ParseUint(text, 10, 32); {
			case conditions[text] != "":
				on = append(on, conditions[text])
			case strings.HasPrefix(text, methodPrefix):
				methods = append(methods, strings.ToUpper(text[len(methodPrefix):]))
			case err == nil:
				p.RetriableStatusCodes = append(p.RetriableStatusCodes, uint32(code))
			}
		}
		if len(on) > 0 || len(methods) == 0 || len(p.RetriableStatusCodes) > 0 {
			p.RetryOn = strings.Join(on, ",")
		}
		from("/retryOn", "/retryOn")
	}
	if list, ok := c.Get(at + "/retriableStatusCodes"); ok {
		numbers, _ := list.([]any)
		for _, n := range numbers {
			if text, ok := n.(interface{ String() string }); ok {
				if code, err := strconv.ParseUint(text.String(), 10, 32); err == nil {
					p.RetriableStatusCodes = append(p.RetriableStatusCodes, uint32(code))
				}
			}
		}
		from("/retriableStatusCodes", "/retriableStatusCodes")
	}
	if len(p.RetriableStatusCodes) > 0 && !slices.Contains(strings.Split(p.RetryOn, ","), statusCodes) {
		p.RetryOn = strings.TrimPrefix(p.RetryOn+","+statusCodes, ",")
	}
	if texts, ok := textsAt(c, at+"/retriableMethods"); ok {
		methods = append(methods, texts...)
		from("/retriableRequestHeaders", "/retriableMethods")
	}
	for _, m := range methods {
		if h, ok := generate.Header(":method", &resource.StringMatch{Exact: &m}); ok {
			p.RetriableRequestHeaders = append(p.RetriableRequestHeaders, h)
		}
	}
	var wanted []resource.HeaderMatch
	if ok, err := c.Decode(at+"/retriableRequestHeaders", &wanted); ok && err == nil {
		p.RetriableRequestHeaders = append(p.RetriableRequestHeaders, headerMatches(wanted)...)
		from("/retriableRequestHeaders", "/retriableRequestHeaders")
	}
	wanted = nil
	if ok, err := c.Decode(at+"/retriableResponseHeaders", &wanted); ok && err == nil && len(wanted) > 0 {
		p.RetriableHeaders = headerMatches(wanted)
		p.RetryOn = strings.TrimPrefix(p.RetryOn+","+answerHeaders, ",")
		from("/retriableHeaders", "/retriableResponseHeaders")
	}
}

func headerMatches(all []resource.HeaderMatch) (matches []*routev3.HeaderMatcher) {
	for i := range all {
		if h, ok := generate.HeaderMatch(&all[i]); ok {
			matches = append(matches, h)
		}
	}
	return matches
}

// textsAt returns the texts of a list.
func textsAt(c *generate.Conf, at policy.Pointer) ([]string, bool) {
	value, ok := c.Get(at)
	if !ok {
		return nil, false
	}
	list, _ := value.([]any)
	texts := []string{}
	for _, item := range list {
		if text, ok := item.(string); ok {
			texts = append(texts, text)
		}
	}
	return texts, true
}

// setRateLimited has pauses be as long as answers ask for.
func setRateLimited(p *routev3.RetryPolicy, c *generate.Conf, at policy.Pointer, from func(string, policy.Pointer)) error {
	var b resource.RateLimitedBackOff
	if ok, err := c.Decode(at+"/rateLimitedBackOff", &b); !ok || err != nil || len(b.ResetHeaders) == 0 {
		return err
	}
	p.RateLimitedRetryBackOff = &routev3.RetryPolicy_RateLimitedRetryBackOff{}
	for _, h := range b.ResetHeaders {
		if !fieldName.MatchString(h.Name) {
			continue
		}
		format := routev3.RetryPolicy_SECONDS
		if h.Format == "UnixTimestamp" {
			format = routev3.RetryPolicy_UNIX_TIMESTAMP
		}
		p.RateLimitedRetryBackOff.ResetHeaders = append(p.RateLimitedRetryBackOff.ResetHeaders, &routev3.RetryPolicy_ResetHeader{Name: h.Name, Format: format})
	}
	if len(p.RateLimitedRetryBackOff.ResetHeaders) == 0 {
		p.RateLimitedRetryBackOff = nil
		return nil
	}
	if b.MaxInterval != nil && b.MaxInterval.Value() > 0 {
		p.RateLimitedRetryBackOff.MaxInterval = durationpb.New(b.MaxInterval.Value())
	}
	from("/rateLimitedRetryBackOff", "/rateLimitedBackOff")
	return nil
}

// setHostSelection has repetitions avoid endpoints.
func setHostSelection(p *routev3.RetryPolicy, c *generate.Conf, at policy.Pointer, from func(string, policy.Pointer)) error {
	var predicates []resource.HostPredicate
	if _, err := c.Decode(at+"/hostSelection", &predicates); err != nil {
		return err
	}
	for _, wanted := range predicates {
		switch wanted.Predicate {
		case "OmitPreviousHosts":
			packed, err := xds.Pack(&previoushostsv3.PreviousHostsPredicate{})
			if err != nil {
				return err
			}
			p.RetryHostPredicate = append(p.RetryHostPredicate, &routev3.RetryPolicy_RetryHostPredicate{
				Name: "envoy.retry_host_predicates.previous_hosts", ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: packed},
			})
			from("/retryHostPredicate", "/hostSelection")
		case "OmitPreviousPriorities":
			frequency := uint32(1)
			if wanted.UpdateFrequency != nil {
				frequency = max(1, *wanted.UpdateFrequency)
			}
			packed, err := xds.Pack(&previousprioritiesv3.PreviousPrioritiesConfig{UpdateFrequency: int32(min(frequency, 1<<30))})
			if err != nil {
				return err
			}
			p.RetryPriority = &routev3.RetryPolicy_RetryPriority{
				Name: "envoy.retry_priorities.previous_priorities", ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{TypedConfig: packed},
			}
			from("/retryPriority", "/hostSelection")
		}
	}
	if n, ok := c.Number(at + "/hostSelectionMaxAttempts"); ok {
		p.HostSelectionRetryMaxAttempts = int64(n)
		from("/hostSelectionRetryMaxAttempts", "/hostSelectionMaxAttempts")
	}
	return nil
}

// configure sets what policies say about a cluster.
func (b *builder) configure(c *clusterv3.Cluster, _ *policy.Attachment, rules generate.Rules, route string, selector resource.TagSelector) ([]xds.Origin, error) {
	c.IgnoreHealthOnHostRemoval = true
	c.ConnectTimeout = durationpb.New(connectTimeout)
	timeouts := rules.On(route, resource.KindTimeout, resource.KindMeshUpstreamTimeout)
	var origins []xds.Origin
	if d, ok := timeouts.Duration("/connectTimeout"); ok && d > 0 {
		c.ConnectTimeout = durationpb.New(d)
		origins = timeouts.Origin("/connectTimeout", "/connectTimeout")
	}
	protocol := b.protocol(selector)
	if b.own != world.TCP {
		if protocol == world.TCP {
			protocol = b.own // nothing is known of it
		}
		common := &corev3.HttpProtocolOptions{}
		for field, into := range map[policy.Pointer]**durationpb.Duration{
			"/http/idleTimeout": &common.IdleTimeout, "/http/maxConnectionDuration": &common.MaxConnectionDuration,
		} {
			if d, ok := timeouts.Duration(field); ok && (d > 0 || field == "/http/idleTimeout") {
				*into = durationpb.New(d)
			}
		}
		const at = "/typedExtensionProtocolOptions"
		if common.IdleTimeout != nil {
			origins = append(origins, timeouts.Origin(at, "/http/idleTimeout")...)
		}
		if common.MaxConnectionDuration != nil {
			origins = append(origins, timeouts.Origin(at, "/http/maxConnectionDuration")...)
		}
		if common.IdleTimeout == nil && common.MaxConnectionDuration == nil {
			common = nil
		}
		if err := setProtocol(c, protocol, common); err != nil {
			return nil, err
		}
	}
	origins = append(origins, setLoadBalancer(c, rules.On(route, resource.KindTrafficRoute, resource.KindMeshTrafficRoute))...)
	origins = append(origins, setBreaker(c, rules.On(route, resource.KindCircuitBreaker, resource.KindMeshCircuitBreaker))...)
	checked, err := setHealthChecks(c, rules.On(route, resource.KindHealthCheck, resource.KindMeshHealthCheck), b.own)
	if err != nil || !b.settings.Secure() && !b.settings.Offers {
		return append(origins, checked...), err
	}
	if b.own == world.TCP {
		protocol = world.TCP
	}
	secured, err := b.secure(c, protocol, selector)
	return slices.Concat(origins, checked, secured), err
}

// optionsName is the extension with the protocol of a cluster.
const optionsName = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// setProtocol says which version of HTTP the endpoints of a cluster speak; nothing where
// they speak none.
func setProtocol(c *clusterv3.Cluster, protocol world.Protocol, common *corev3.HttpProtocolOptions) error {
	explicit := &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{}
	switch protocol {
	case world.HTTP2, world.GRPC:
		explicit.ProtocolConfig = &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{}}
	case world.HTTP:
		explicit.ProtocolConfig = &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &corev3.Http1ProtocolOptions{}}
	default:
		return nil
	}
	packed, err := xds.Pack(&upstreamv3.HttpProtocolOptions{
		CommonHttpProtocolOptions: common,
		UpstreamProtocolOptions:   &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: explicit},
	})
	if err != nil {
		return err
	}
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{optionsName: packed}
	return nil
}
