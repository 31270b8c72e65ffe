package resource

import (
	"slices"

	"meridian/internal/doctree"
)

// MeshTrafficPermission decides about callers of inbounds (§4.7).
type MeshTrafficPermission struct {
	FromPolicy[PermissionConf, *PermissionConf]
}

// The two decisions of a MeshTrafficPermission, as TargetItem.Conf holds them.
const (
	ActionAllow = "ALLOW"
	ActionDeny  = "DENY"
)

// PermissionConf is a decision.
type PermissionConf struct {
	Action string `json:"action,omitzero" enum:"ALLOW|DENY|Allow|Deny" doc:"Whether the callers are allowed: ALLOW or DENY."`
}

func (*PermissionConf) check(Path, *Report) {}

// normalizeTree makes the spellings of later releases one with ALLOW and DENY.
func (*PermissionConf) normalizeTree(tree map[string]any) {
	switch tree["action"] {
	case "Allow":
		tree["action"] = ActionAllow
	case "Deny":
		tree["action"] = ActionDeny
	}
}

// MeshTrafficRoute sends the traffic of outbounds elsewhere.
type MeshTrafficRoute struct {
	ToPolicy[MeshTrafficRouteConf, *MeshTrafficRouteConf]
}

// MeshTrafficRouteConf routes as TrafficRoute does, or by rules in the shape of
// later releases.
type MeshTrafficRouteConf struct {
	RouteDestinations
	LoadBalancer *LoadBalancer `json:"loadBalancer,omitzero" doc:"How an endpoint is chosen; round robin when absent."`
	HTTP         []RouteHTTP   `json:"http,omitzero" doc:"Rules for HTTP requests, tried in order; requests that match none go to split or destination."`
	Rules        []RouteRule   `json:"rules,omitzero" doc:"Rules for HTTP requests in the shape of HTTPRoute; instead of http."`
}

// RouteRule is one rule in the shape of HTTPRoute.
type RouteRule struct {
	Matches []HTTPMatch   `json:"matches,omitzero" doc:"Requests that the rule is for; one matching entry is enough, none matches every request."`
	Default RouteRuleConf `json:"default" required:"true" doc:"What happens to them."`
}

// RouteRuleConf is what happens to the requests of a rule.
type RouteRuleConf struct {
	Filters     []HTTPFilter   `json:"filters,omitzero" doc:"Changes to requests and answers, in order."`
	BackendRefs []RouteBackend `json:"backendRefs,omitzero" doc:"Services that share the requests by weight."`
}

// RouteBackend is one share of a rule's requests.
type RouteBackend struct {
	Kind   TargetKind  `json:"kind" required:"true" enum:"Service|ServiceSubset|MeshService|MeshServiceSubset" doc:"Service, or ServiceSubset with tags."`
	Name   string      `json:"name" required:"true" doc:"Name of the service."`
	Tags   TagSelector `json:"tags,omitzero" doc:"Tags that narrow a ServiceSubset."`
	Port   *uint32     `json:"port,omitzero" min:"1" max:"65535" doc:"Port of the service."`
	Weight *uint32     `json:"weight,omitzero" doc:"Share of the requests, relative to the sum of all weights; 1 when absent."`
}

func (c *MeshTrafficRouteConf) check(at Path, r *Report) {
	c.RouteDestinations.check(at, false, r)
	if c.LoadBalancer != nil {
		c.LoadBalancer.check(at.Field("loadBalancer"), r)
	}
	if c.HTTP != nil && c.Rules != nil {
		r.Errorf(at, "has http and rules; keep one of them")
	}
	for i := range c.HTTP {
		c.HTTP[i].check(at.Field("http").Index(i), r)
	}
	for i, rule := range c.Rules {
		path := at.Field("rules").Index(i)
		checkHTTPMatches(path.Field("matches"), rule.Matches, r)
		checkHTTPFilters(path.Field("default").Field("filters"), rule.Default.Filters, r)
		checkRouteBackends(path.Field("default").Field("backendRefs"), rule.Default.BackendRefs, r)
	}
}

func checkRouteBackends(at Path, backends []RouteBackend, r *Report) {
	sum := uint64(0)
	for i, b := range backends {
		ref := Target{Kind: b.Kind, Name: b.Name, Tags: b.Tags}
		ref.check(at.Index(i), []TargetKind{TargetService, TargetServiceSubset}, r)
		sum += weightOf(b.Weight)
	}
	if len(backends) > 0 && sum == 0 {
		r.Errorf(at, "the weights add up to 0, so that no traffic goes anywhere")
	}
}

// weightOf is a weight with its default, 1.
func weightOf(weight *uint32) uint64 {
	if weight == nil {
		return 1
	}
	return uint64(*weight)
}

// MeshUpstreamTimeout bounds how long outbounds wait.
type MeshUpstreamTimeout struct {
	ToPolicy[UpstreamTimeoutConf, *UpstreamTimeoutConf]
}

// UpstreamTimeoutConf holds timeouts; one of 0s never strikes, except
// connectTimeout, which has to be longer.
type UpstreamTimeoutConf struct {
	ConnectTimeout *Duration            `json:"connectTimeout,omitzero" above:"0s" doc:"Longest time to open a connection."`
	IdleTimeout    *Duration            `json:"idleTimeout,omitzero" doc:"Closes a connection on which nothing happened for this time."`
	HTTP           *UpstreamTimeoutHTTP `json:"http,omitzero" doc:"Timeouts of HTTP requests, streams and connections."`
}

// UpstreamTimeoutHTTP holds timeouts of HTTP.
type UpstreamTimeoutHTTP struct {
	RequestTimeout        *Duration `json:"requestTimeout,omitzero" doc:"Longest time from the end of a request to the end of its answer."`
	RequestHeadersTimeout *Duration `json:"requestHeadersTimeout,omitzero" doc:"Longest time for the headers of a request to arrive."`
	StreamIdleTimeout     *Duration `json:"streamIdleTimeout,omitzero" doc:"Closes a stream without activity for this time."`
	IdleTimeout           *Duration `json:"idleTimeout,omitzero" doc:"Closes a connection without requests for this time."`
	MaxStreamDuration     *Duration `json:"maxStreamDuration,omitzero" doc:"Longest life of a stream."`
	MaxConnectionDuration *Duration `json:"maxConnectionDuration,omitzero" doc:"Longest life of a connection."`
}

func (*UpstreamTimeoutConf) check(Path, *Report) {}

// MeshRequestRetry repeats failed requests on outbounds.
type MeshRequestRetry struct {
	ToPolicy[RequestRetryConf, *RequestRetryConf]
}

// RequestRetryConf holds retries by protocol.
type RequestRetryConf struct {
	HTTP *RequestRetryHTTP `json:"http,omitzero" doc:"Retries of HTTP requests."`
	GRPC *RequestRetryGRPC `json:"grpc,omitzero" doc:"Retries of gRPC calls."`
	TCP  *RequestRetryTCP  `json:"tcp,omitzero" doc:"Retries of TCP connection attempts."`
}

// RequestRetryAttempts is what retries of requests have in common.
type RequestRetryAttempts struct {
	NumRetries         *uint32             `json:"numRetries,omitzero" doc:"How often a request is repeated."`
	PerTryTimeout      *Duration           `json:"perTryTimeout,omitzero" doc:"Longest time for one attempt; 0s is unbounded."`
	BackOff            *RequestBackOff     `json:"backOff,omitzero" doc:"Growing, random pauses between attempts."`
	RateLimitedBackOff *RateLimitedBackOff `json:"rateLimitedBackOff,omitzero" doc:"Pauses that the answers of a rate-limiting destination ask for."`
}

// RequestBackOff is a growing pause; its fields merge one by one.
type RequestBackOff struct {
	BaseInterval *Duration `json:"baseInterval,omitzero" above:"0s" doc:"Bound of the first pause."`
	MaxInterval  *Duration `json:"maxInterval,omitzero" doc:"Bound of all pauses."`
}

// RateLimitedBackOff is a pause that an answer asks for.
type RateLimitedBackOff struct {
	ResetHeaders []ResetHeader `json:"resetHeaders,omitzero" doc:"Headers to read the pause from, in order."`
	MaxInterval  *Duration     `json:"maxInterval,omitzero" doc:"Longest pause to accept."`
}

// ResetHeader is a header that holds a pause.
type ResetHeader struct {
	Name   string `json:"name" required:"true" notEmpty:"true" doc:"Name of the header."`
	Format string `json:"format" required:"true" enum:"Seconds|UnixTimestamp" doc:"Whether it holds seconds to wait or the time to wait for."`
}

// RequestRetryHTTP repeats HTTP requests.
type RequestRetryHTTP struct {
	RequestRetryAttempts
	RetryOn                  []string        `json:"retryOn,omitzero" doc:"Failures, methods and statuses that are retried: 5XX, GatewayError, Reset, Retriable4xx, ConnectFailure, EnvoyRatelimited, RefusedStream, Http3PostConnectFailure, HttpMethodGet and its like, or a status such as 503."`
	RetriableResponseHeaders []HeaderMatch   `json:"retriableResponseHeaders,omitzero" doc:"Answers with one of these headers are retried."`
	RetriableRequestHeaders  []HeaderMatch   `json:"retriableRequestHeaders,omitzero" doc:"Only requests with one of these headers are retried."`
	HostSelection            []HostPredicate `json:"hostSelection,omitzero" doc:"Which endpoints a repetition avoids."`
	HostSelectionMaxAttempts *uint32         `json:"hostSelectionMaxAttempts,omitzero" doc:"How often to look for an endpoint that is not to be avoided."`
}

// HostPredicate says which endpoints a repetition avoids.
type HostPredicate struct {
	Predicate       string      `json:"predicate" required:"true" enum:"OmitPreviousHosts|OmitHostsWithTags|OmitPreviousPriorities" doc:"What to avoid."`
	Tags            TagSelector `json:"tags,omitzero" doc:"Tags of endpoints to avoid with OmitHostsWithTags."`
	UpdateFrequency *uint32     `json:"updateFrequency,omitzero" doc:"After how many attempts priorities are computed anew with OmitPreviousPriorities."`
}

// RequestRetryGRPC repeats gRPC calls.
type RequestRetryGRPC struct {
	RequestRetryAttempts
	RetryOn []string `json:"retryOn,omitzero" enum:"Canceled|DeadlineExceeded|Internal|ResourceExhausted|Unavailable" doc:"gRPC statuses that are retried."`
}

// RequestRetryTCP repeats connection attempts.
type RequestRetryTCP struct {
	MaxConnectAttempt *uint32 `json:"maxConnectAttempt,omitzero" min:"1" doc:"How often a connection is attempted."`
}

// retryConditions are the words that retryOn takes besides statuses.
var retryConditions = []string{
	"5XX", "GatewayError", "Reset", "Retriable4xx", "ConnectFailure", "EnvoyRatelimited", "RefusedStream", "Http3PostConnectFailure",
	"HttpMethodConnect", "HttpMethodDelete", "HttpMethodGet", "HttpMethodHead", "HttpMethodOptions", "HttpMethodPatch", "HttpMethodPost", "HttpMethodPut", "HttpMethodTrace",
}

func (c *RequestRetryConf) check(at Path, r *Report) {
	if h := c.HTTP; h != nil {
		http := at.Field("http")
		h.RequestRetryAttempts.check(http, r)
		for i, word := range h.RetryOn {
			if !slices.Contains(retryConditions, word) && !isStatus(word) {
				hint := didYouMean(word, retryConditions)
				if hint == "" {
					hint = "; use a status such as 503 or a condition such as 5XX, GatewayError, Reset, ConnectFailure"
				}
				r.Errorf(http.Field("retryOn").Index(i), "unknown condition %q%s", doctree.Clip(word), hint)
			}
		}
		checkHeaderMatches(http.Field("retriableResponseHeaders"), h.RetriableResponseHeaders, r)
		checkHeaderMatches(http.Field("retriableRequestHeaders"), h.RetriableRequestHeaders, r)
		for i, p := range h.HostSelection {
			p.check(http.Field("hostSelection").Index(i), r)
		}
	}
	if c.GRPC != nil {
		c.GRPC.RequestRetryAttempts.check(at.Field("grpc"), r)
	}
}

func (a *RequestRetryAttempts) check(at Path, r *Report) {
	if b := a.BackOff; b != nil {
		checkOrder(at.Field("backOff").Field("maxInterval"), b.BaseInterval, b.MaxInterval, "baseInterval", r)
	}
}

func (p *HostPredicate) check(at Path, r *Report) {
	if (p.Predicate == "OmitHostsWithTags") != (len(p.Tags) > 0) {
		r.Errorf(at.Field("tags"), "belongs to OmitHostsWithTags, which needs at least one tag")
	}
	if p.UpdateFrequency != nil && p.Predicate != "OmitPreviousPriorities" {
		r.Errorf(at.Field("updateFrequency"), "belongs to OmitPreviousPriorities")
	}
}

// isStatus reports whether a word is an HTTP status.
func isStatus(word string) bool {
	return len(word) == 3 && word[0] >= '1' && word[0] <= '5' && word[1] >= '0' && word[1] <= '9' && word[2] >= '0' && word[2] <= '9'
}
