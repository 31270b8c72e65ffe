package grpc

import (
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
)

// timeoutOf returns the bound of a call, 0 for none, and its origin. A client has one
// bound for a whole call: of several that are written the shortest holds. What is not
// written bounds nothing, since a call may be a stream that lasts.
func timeoutOf(c *generate.Conf) (time.Duration, policy.Pointer) {
	var shortest time.Duration
	var from policy.Pointer
	try := func(at policy.Pointer) bool {
		d, written := c.Duration(at)
		if d > 0 && (shortest == 0 || d < shortest) {
			shortest, from = d, at
		}
		return written
	}
	try("/http/requestTimeout")
	if !try("/http/maxStreamDuration") {
		try("/grpc/maxStreamDuration") // the field of http is preferred
	}
	return shortest, from
}

// The defaults of retries that the specs name.
const (
	retriesOfRetry = 5 // Retry: numRetries
	baseInterval   = 25 * time.Millisecond
)

// grpcStatuses are the statuses of retryOn in both generations, as xDS spells them.
var grpcStatuses = map[string]string{
	"cancelled": "cancelled", "deadline_exceeded": "deadline-exceeded", "internal": "internal",
	"resource_exhausted": "resource-exhausted", "unavailable": "unavailable",
	"Canceled": "cancelled", "DeadlineExceeded": "deadline-exceeded", "Internal": "internal",
	"ResourceExhausted": "resource-exhausted", "Unavailable": "unavailable",
}

// everyStatus is what is retried when retryOn is absent.
const everyStatus = "cancelled,deadline-exceeded,internal,resource-exhausted,unavailable"

// retryOf returns the retries of calls, and their origins, with paths inside the
// retry policy; nil for none.
func retryOf(c *generate.Conf) (*routev3.RetryPolicy, []xds.Origin) {
	if !c.Has("/grpc") {
		return nil, nil
	}
	retries := uint32(1)
	if c.Kind == resource.KindRetry {
		retries = retriesOfRetry
	}
	p := &routev3.RetryPolicy{RetryOn: everyStatus}
	var origins []xds.Origin
	if n, ok := c.Number("/grpc/numRetries"); ok {
		if n == 0 {
			return nil, nil
		}
		retries = uint32(n)
		origins = append(origins, c.Origin("/numRetries", "/grpc/numRetries")...)
	}
	p.NumRetries = wrapperspb.UInt32(retries)
	if value, ok := c.Get("/grpc/retryOn"); ok {
		list, _ := value.([]any)
		var on []string
		for _, status := range list {
			if text, ok := status.(string); ok && grpcStatuses[text] != "" {
				on = append(on, grpcStatuses[text])
			}
		}
		if len(on) == 0 {
			return nil, nil // an empty list is a list: nothing is retried
		}
		p.RetryOn = strings.Join(on, ",")
		origins = append(origins, c.Origin("/retryOn", "/grpc/retryOn")...)
	}
	base, hasBase := c.Duration("/grpc/backOff/baseInterval")
	longest, hasLongest := c.Duration("/grpc/backOff/maxInterval")
	if hasBase || hasLongest {
		if base <= 0 {
			base = baseInterval
		}
		backOff := &routev3.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(base)}
		if hasBase {
			origins = append(origins, c.Origin("/retryBackOff/baseInterval", "/grpc/backOff/baseInterval")...)
		}
		if hasLongest {
			// Two policies may have written one each.
			backOff.MaxInterval = durationpb.New(max(base, longest))
			origins = append(origins, c.Origin("/retryBackOff/maxInterval", "/grpc/backOff/maxInterval")...)
		}
		p.RetryBackOff = backOff
	}
	return p, origins
}

// breakerFields are the places of what both generations of circuit breakers have.
type breakerFields struct {
	maxRequests, outlier, successRate, deviation, failure policy.Pointer
}

func fieldsOfBreaker(kind resource.Kind) breakerFields {
	if kind == resource.KindCircuitBreaker {
		return breakerFields{"/thresholds/maxRequests", "", "/detectors/standardDeviation", "/factor", "/detectors/failure"}
	}
	return breakerFields{
		"/connectionLimits/maxRequests", "/outlierDetection", "/outlierDetection/detectors/successRate",
		"/standardDeviationFactor", "/outlierDetection/detectors/failurePercentage",
	}
}

// shortestInterval bounds how often a client evaluates its endpoints: it does so
// whether there are calls or not.
const shortestInterval = 100 * time.Millisecond

// setBreaker bounds the calls to a cluster and ejects failing endpoints.
func setBreaker(cluster *clusterv3.Cluster, c *generate.Conf) (origins []xds.Origin) {
	if c == nil {
		return nil
	}
	f := fieldsOfBreaker(c.Kind)
	if n, ok := c.Number(f.maxRequests); ok {
		cluster.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			Priority: corev3.RoutingPriority_DEFAULT, MaxRequests: wrapperspb.UInt32(uint32(n)),
		}}}
		origins = append(origins, c.Origin("/circuitBreakers/thresholds/0/maxRequests", f.maxRequests)...)
	}
	if c.Bool(f.outlier + "/disabled") {
		return origins
	}
	rate, share := c.Has(f.successRate), c.Has(f.failure)
	if !rate && !share {
		return origins
	}
	// A client's defaults are on: what is not written is turned off.
	o := &clusterv3.OutlierDetection{EnforcingSuccessRate: wrapperspb.UInt32(0), EnforcingFailurePercentage: wrapperspb.UInt32(0)}
	cluster.OutlierDetection = o
	from := func(name string, field policy.Pointer) {
		origins = append(origins, c.Origin("/outlierDetection/"+name, field)...)
	}
	number := func(into **wrapperspb.UInt32Value, name string, field policy.Pointer, factor float64) {
		if n, ok := c.Number(field); ok {
			*into = wrapperspb.UInt32(uint32(min(n*factor, 1<<31)))
			from(name, field)
		}
	}
	span := func(into **durationpb.Duration, name string, field policy.Pointer) {
		if d, ok := c.Duration(field); ok && d > 0 {
			*into = durationpb.New(d)
			from(name, field)
		}
	}
	span(&o.Interval, "interval", f.outlier+"/interval")
	if o.Interval != nil {
		o.Interval = durationpb.New(max(o.Interval.AsDuration(), shortestInterval))
	}
	span(&o.BaseEjectionTime, "baseEjectionTime", f.outlier+"/baseEjectionTime")
	number(&o.MaxEjectionPercent, "maxEjectionPercent", f.outlier+"/maxEjectionPercent", 1)
	if rate {
		o.EnforcingSuccessRate = wrapperspb.UInt32(100)
		from("enforcingSuccessRate", f.successRate)
		number(&o.SuccessRateMinimumHosts, "successRateMinimumHosts", f.successRate+"/minimumHosts", 1)
		number(&o.SuccessRateRequestVolume, "successRateRequestVolume", f.successRate+"/requestVolume", 1)
		number(&o.SuccessRateStdevFactor, "successRateStdevFactor", f.successRate+f.deviation, 1000)
	}
	if share {
		o.EnforcingFailurePercentage = wrapperspb.UInt32(100)
		from("enforcingFailurePercentage", f.failure)
		number(&o.FailurePercentageMinimumHosts, "failurePercentageMinimumHosts", f.failure+"/minimumHosts", 1)
		number(&o.FailurePercentageRequestVolume, "failurePercentageRequestVolume", f.failure+"/requestVolume", 1)
		number(&o.FailurePercentageThreshold, "failurePercentageThreshold", f.failure+"/threshold", 1)
	}
	return origins
}

// setLoadBalancer says how a cluster's endpoints are chosen: in turns when nothing else
// is written, and for what a client does not have.
func setLoadBalancer(cluster *clusterv3.Cluster, c *generate.Conf) (origins []xds.Origin) {
	const at = policy.Pointer("/loadBalancer")
	switch {
	case c.Has(at + "/roundRobin"):
		origins = c.Origin("/lbPolicy", at+"/roundRobin")
	case c.Has(at + "/leastRequest"):
		origins = generate.LeastRequest(cluster, c)
	case c.Has(at + "/ringHash"):
		origins = generate.RingHash(cluster, c)
	}
	return origins
}
