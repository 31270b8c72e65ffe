package envoy

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httplimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	netlimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/local_ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
)

// limitsFilter is the slot of what bounds how many requests are accepted.
const limitsFilter = "limits"

// limitFields are the places of what both generations of rate limits have.
type limitFields struct {
	disabled, number, interval, status, headers policy.Pointer
}

func fieldsOfLimit(kind resource.Kind) limitFields {
	if kind == resource.KindRateLimit {
		return limitFields{number: "/http/requests", interval: "/http/interval", status: "/http/onRateLimit/status", headers: "/http/onRateLimit/headers"}
	}
	const at = "/local/http"
	return limitFields{at + "/disabled", at + "/requestRate/num", at + "/requestRate/interval", at + "/onRateLimit/status", at + "/onRateLimit/headers"}
}

// bucket is a number in an interval; nil where either is missing.
func bucket(c *generate.Conf, number, interval policy.Pointer) *typev3.TokenBucket {
	n, ok := c.Number(number)
	d, okInterval := c.Duration(interval)
	if !ok || !okInterval || n < 1 {
		return nil
	}
	return &typev3.TokenBucket{
		MaxTokens: uint32(n), TokensPerFill: wrapperspb.UInt32(uint32(n)), FillInterval: durationpb.New(max(d, shortestFill)),
	}
}

// shortestFill is the shortest interval that Envoy accepts.
const shortestFill = 50 * time.Millisecond

// limitsOf are the filters of a configuration, at most one, and the fields that it is from.
func limitsOf(c *generate.Conf) (filters []proto.Message, fields []policy.Pointer) {
	if c == nil {
		return nil, nil
	}
	f := fieldsOfLimit(c.Kind)
	tokens := bucket(c, f.number, f.interval)
	if tokens == nil || f.disabled != "" && c.Bool(f.disabled) {
		return nil, nil
	}
	always := &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{Numerator: 100}}
	l := &httplimitv3.LocalRateLimit{StatPrefix: limitsFilter, TokenBucket: tokens, FilterEnabled: always, FilterEnforced: always}
	fields = []policy.Pointer{f.number, f.interval}
	if status, ok := c.Number(f.status); ok {
		// Envoy makes 429 of those below 400.
		l.Status = &typev3.HttpStatus{Code: typev3.StatusCode(uint32(status))}
		if _, known := typev3.StatusCode_name[int32(status)]; !known || status < leastError {
			l.Status.Code = typev3.StatusCode_TooManyRequests
		}
		fields = append(fields, f.status)
	}
	if c.Has(f.headers) {
		l.ResponseHeadersToAdd = limitHeaders(c, f.headers)
		fields = append(fields, f.headers)
	}
	return []proto.Message{l}, fields
}

// leastError is the least status of an answer to a request above a limit.
const leastError = 400

// limitHeaders are the headers of the answer to a request above a limit.
func limitHeaders(c *generate.Conf, at policy.Pointer) (add []*corev3.HeaderValueOption) {
	if c.Kind == resource.KindRateLimit {
		var list []resource.LimitHeader
		if _, err := c.Decode(at, &list); err != nil {
			return nil
		}
		for _, h := range list {
			action := replaceHeader
			if h.Append != nil && *h.Append {
				action = appendHeader
			}
			add = appendSome(add, header(h.Key, h.Value, action))
		}
		return add
	}
	var changes resource.HeaderModifier
	if _, err := c.Decode(at, &changes); err != nil {
		return nil
	}
	var removed []string // the answer has nothing else
	headers(&changes, &add, &removed)
	return add
}

// connectionLimit bounds how many connections an inbound accepts of all callers: it counts
// them before it is known who calls. Nil for no bound.
func connectionLimit(name string, rules generate.Rules) (*netlimitv3.LocalRateLimit, []xds.Origin) {
	const disabled, number, interval = "/local/tcp/disabled", "/local/tcp/connectionRate/num", "/local/tcp/connectionRate/interval"
	rule := inEffect(rules, resource.KindMeshRateLimit, resource.KindMeshRateLimit)
	if rule == nil {
		return nil, nil
	}
	c := forEveryone(rule)
	tokens := bucket(c, number, interval)
	if tokens == nil || c.Bool(disabled) {
		return nil, nil
	}
	const at = inFilter + "/tokenBucket"
	origins := append(c.Origin(at+"/maxTokens", number), c.Origin(at+"/fillInterval", interval)...)
	// All chains of the listener share the count.
	return &netlimitv3.LocalRateLimit{StatPrefix: name, TokenBucket: tokens, ShareKey: name}, origins
}

// limitOf is the filter of that bound, or none.
func limitOf(name string, rules generate.Rules) ([]*listenerv3.Filter, []xds.Origin, error) {
	limit, origins := connectionLimit(name, rules)
	if limit == nil {
		return nil, nil, nil
	}
	made, err := filterOf(limit)
	return []*listenerv3.Filter{made}, origins, err
}

// behind moves origins inside the filter of a listener behind n other filters.
func behind(origins []xds.Origin, n int) []xds.Origin {
	moved := slices.Clone(origins)
	for i := range moved {
		if rest, ok := strings.CutPrefix(moved[i].Path, inFilter); ok {
			moved[i].Path = "/filterChains/0/filters/" + strconv.Itoa(n) + "/typedConfig" + rest
		}
	}
	return moved
}
