package envoy

import (
	"encoding/base64"
	"encoding/hex"
	"math"
	"slices"
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/world"
)

// breakerFields are the places of what both generations of circuit breakers have.
type breakerFields struct {
	limits, outlier, total, gateway, local, successRate, deviation, failure policy.Pointer
}

func fieldsOfBreaker(kind resource.Kind) breakerFields {
	if kind == resource.KindCircuitBreaker {
		const d = "/detectors"
		return breakerFields{"/thresholds", "", d + "/totalErrors", d + "/gatewayErrors", d + "/localErrors", d + "/standardDeviation", "/factor", d + "/failure"}
	}
	const d = "/outlierDetection/detectors"
	return breakerFields{
		"/connectionLimits", "/outlierDetection", d + "/totalFailures", d + "/gatewayFailures", d + "/localOriginFailures",
		d + "/successRate", "/standardDeviationFactor", d + "/failurePercentage",
	}
}

// setter notes numbers and durations of a configuration in a message.
type setter struct {
	c       *generate.Conf
	at      string
	origins []xds.Origin
}

func (s *setter) from(name string, field policy.Pointer) {
	s.origins = append(s.origins, s.c.Origin(s.at+"/"+name, field)...)
}

// largest bounds a number that is scaled up.
const largest = math.MaxInt32

func (s *setter) number(into **wrapperspb.UInt32Value, name string, field policy.Pointer, factor float64) {
	if n, ok := s.c.Number(field); ok {
		*into = wrapperspb.UInt32(uint32(min(n*factor, largest)))
		s.from(name, field)
	}
}

func (s *setter) span(into **durationpb.Duration, name string, field policy.Pointer) {
	if d, ok := s.c.Duration(field); ok && d > 0 {
		*into = durationpb.New(max(d, time.Millisecond))
		s.from(name, field)
	}
}

// consecutive is how many failures in a row eject an endpoint when nothing is written.
const consecutive = 5

// setBreaker bounds what is open to a cluster and ejects failing endpoints. A detector is
// on when it is written: Envoy's own defaults are turned off.
func setBreaker(cluster *clusterv3.Cluster, c *generate.Conf) []xds.Origin {
	if c == nil {
		return nil
	}
	f := fieldsOfBreaker(c.Kind)
	limits := &setter{c: c, at: "/circuitBreakers/thresholds/0"}
	t := &clusterv3.CircuitBreakers_Thresholds{Priority: corev3.RoutingPriority_DEFAULT}
	limits.number(&t.MaxConnections, "maxConnections", f.limits+"/maxConnections", 1)
	limits.number(&t.MaxPendingRequests, "maxPendingRequests", f.limits+"/maxPendingRequests", 1)
	limits.number(&t.MaxRequests, "maxRequests", f.limits+"/maxRequests", 1)
	limits.number(&t.MaxRetries, "maxRetries", f.limits+"/maxRetries", 1)
	limits.number(&t.MaxConnectionPools, "maxConnectionPools", f.limits+"/maxConnectionPools", 1)
	if len(limits.origins) > 0 {
		cluster.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{t}}
	}
	origins := limits.origins
	if n, ok := c.Number("/outlierDetection/healthyPanicThreshold"); ok {
		common(cluster).HealthyPanicThreshold = &typev3.Percent{Value: n}
		origins = append(origins, c.Origin("/commonLbConfig/healthyPanicThreshold", "/outlierDetection/healthyPanicThreshold")...)
	}
	if c.Bool(f.outlier+"/disabled") || !slices.ContainsFunc([]policy.Pointer{f.total, f.gateway, f.local, f.successRate, f.failure}, c.Has) {
		return origins
	}
	off := func() *wrapperspb.UInt32Value { return wrapperspb.UInt32(0) }
	o := &clusterv3.OutlierDetection{
		EnforcingConsecutive_5Xx: off(), EnforcingConsecutiveGatewayFailure: off(), EnforcingConsecutiveLocalOriginFailure: off(),
		EnforcingSuccessRate: off(), EnforcingLocalOriginSuccessRate: off(), EnforcingFailurePercentage: off(), EnforcingFailurePercentageLocalOrigin: off(),
	}
	cluster.OutlierDetection = o
	s := &setter{c: c, at: "/outlierDetection"}
	s.span(&o.Interval, "interval", f.outlier+"/interval")
	s.span(&o.BaseEjectionTime, "baseEjectionTime", f.outlier+"/baseEjectionTime")
	s.number(&o.MaxEjectionPercent, "maxEjectionPercent", f.outlier+"/maxEjectionPercent", 1)
	if o.SplitExternalLocalOriginErrors = c.Bool(f.outlier + "/splitExternalAndLocalErrors"); o.SplitExternalLocalOriginErrors {
		s.from("splitExternalLocalOriginErrors", f.outlier+"/splitExternalAndLocalErrors")
	}
	detect := func(field policy.Pointer, enforcing **wrapperspb.UInt32Value, name string) bool {
		if !c.Has(field) {
			return false
		}
		*enforcing = wrapperspb.UInt32(100)
		s.from(name, field)
		return true
	}
	if detect(f.total, &o.EnforcingConsecutive_5Xx, "enforcingConsecutive5xx") {
		o.Consecutive_5Xx = wrapperspb.UInt32(consecutive)
		s.number(&o.Consecutive_5Xx, "consecutive5xx", f.total+"/consecutive", 1)
	}
	if detect(f.gateway, &o.EnforcingConsecutiveGatewayFailure, "enforcingConsecutiveGatewayFailure") {
		o.ConsecutiveGatewayFailure = wrapperspb.UInt32(consecutive)
		s.number(&o.ConsecutiveGatewayFailure, "consecutiveGatewayFailure", f.gateway+"/consecutive", 1)
	}
	if detect(f.local, &o.EnforcingConsecutiveLocalOriginFailure, "enforcingConsecutiveLocalOriginFailure") {
		o.ConsecutiveLocalOriginFailure = wrapperspb.UInt32(consecutive)
		s.number(&o.ConsecutiveLocalOriginFailure, "consecutiveLocalOriginFailure", f.local+"/consecutive", 1)
	}
	if detect(f.successRate, &o.EnforcingSuccessRate, "enforcingSuccessRate") {
		s.number(&o.SuccessRateMinimumHosts, "successRateMinimumHosts", f.successRate+"/minimumHosts", 1)
		s.number(&o.SuccessRateRequestVolume, "successRateRequestVolume", f.successRate+"/requestVolume", 1)
		s.number(&o.SuccessRateStdevFactor, "successRateStdevFactor", f.successRate+f.deviation, 1000)
	}
	if detect(f.failure, &o.EnforcingFailurePercentage, "enforcingFailurePercentage") {
		s.number(&o.FailurePercentageMinimumHosts, "failurePercentageMinimumHosts", f.failure+"/minimumHosts", 1)
		s.number(&o.FailurePercentageRequestVolume, "failurePercentageRequestVolume", f.failure+"/requestVolume", 1)
		s.number(&o.FailurePercentageThreshold, "failurePercentageThreshold", f.failure+"/threshold", 1)
	}
	return append(origins, s.origins...)
}

// common returns the settings of a cluster's load balancer, whatever that is.
func common(cluster *clusterv3.Cluster) *clusterv3.Cluster_CommonLbConfig {
	if cluster.CommonLbConfig == nil {
		cluster.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{}
	}
	return cluster.CommonLbConfig
}

// setLoadBalancer says how a cluster's endpoints are chosen: in turns when nothing else
// is written.
func setLoadBalancer(cluster *clusterv3.Cluster, c *generate.Conf) (origins []xds.Origin) {
	const at = policy.Pointer("/loadBalancer")
	switch {
	case c.Has(at + "/roundRobin"):
		origins = c.Origin("/lbPolicy", at+"/roundRobin")
	case c.Has(at + "/random"):
		cluster.LbPolicy = clusterv3.Cluster_RANDOM
		origins = c.Origin("/lbPolicy", at+"/random")
	case c.Has(at + "/maglev"):
		cluster.LbPolicy = clusterv3.Cluster_MAGLEV
		origins = c.Origin("/lbPolicy", at+"/maglev")
	case c.Has(at + "/leastRequest"):
		origins = generate.LeastRequest(cluster, c)
	case c.Has(at + "/ringHash"):
		origins = generate.RingHash(cluster, c)
		if value, ok := c.Get(at + "/ringHash/hashFunction"); ok && value == "MURMUR_HASH_2" {
			cluster.GetRingHashLbConfig().HashFunction = clusterv3.Cluster_RingHashLbConfig_MURMUR_HASH_2
			origins = append(origins, c.Origin("/ringHashLbConfig/hashFunction", at+"/ringHash/hashFunction")...)
		}
	}
	return origins
}

// What a health check does when nothing is written.
const (
	checkInterval, checkTimeout        = time.Minute, 15 * time.Second
	checksToUnhealthy, checksToHealthy = 5, 1
	healthyFrom, healthyUntil          = 100, 600
)

// setHealthChecks has the endpoints of a cluster checked: by gRPC, HTTP and TCP, as far as
// they are written and turned on, and the service speaks them. An endpoint has to pass all.
func setHealthChecks(cluster *clusterv3.Cluster, c *generate.Conf, protocol world.Protocol) ([]xds.Origin, error) {
	if c == nil {
		return nil, nil
	}
	on := func(at policy.Pointer) bool { return c.Has(at) && !c.Bool(at+"/disabled") }
	var origins []xds.Origin
	for _, checker := range []struct {
		field  policy.Pointer
		made   string // of it, in the configuration of Envoy
		spoken bool
		set    func(*corev3.HealthCheck) error
	}{
		{"/grpc", "grpcHealthCheck", protocol == world.GRPC || protocol == world.HTTP2, func(check *corev3.HealthCheck) error { setGRPCCheck(check, c); return nil }},
		{"/http", "httpHealthCheck", protocol != world.TCP, func(check *corev3.HealthCheck) error { return setHTTPCheck(check, c, protocol) }},
		{"/tcp", "tcpHealthCheck", true, func(check *corev3.HealthCheck) error { return setTCPCheck(check, c) }},
	} {
		if !checker.spoken || !on(checker.field) {
			continue
		}
		// Several need names.
		check := &corev3.HealthCheck{Name: string(checker.field[1:])}
		if err := checker.set(check); err != nil {
			return nil, err
		}
		at := "/healthChecks/" + strconv.Itoa(len(cluster.GetHealthChecks()))
		origins = append(origins, c.Origin(at+"/"+checker.made, checker.field)...)
		origins = append(origins, setTiming(check, c, at)...)
		cluster.HealthChecks = append(cluster.HealthChecks, check)
	}
	if len(cluster.GetHealthChecks()) == 0 {
		return nil, nil
	}
	if n, ok := c.Number("/healthyPanicThreshold"); ok {
		common(cluster).HealthyPanicThreshold = &typev3.Percent{Value: n}
		origins = append(origins, c.Origin("/commonLbConfig/healthyPanicThreshold", "/healthyPanicThreshold")...)
	}
	if c.Bool("/failTrafficOnPanic") {
		common(cluster).LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig_{
			ZoneAwareLbConfig: &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig{FailTrafficOnPanic: true},
		}
		origins = append(origins, c.Origin("/commonLbConfig/zoneAwareLbConfig/failTrafficOnPanic", "/failTrafficOnPanic")...)
	}
	return origins, nil
}

// setTiming says how often a check is made, and what its outcome means.
func setTiming(check *corev3.HealthCheck, c *generate.Conf, at string) []xds.Origin {
	check.Interval, check.Timeout = durationpb.New(checkInterval), durationpb.New(checkTimeout)
	check.UnhealthyThreshold, check.HealthyThreshold = wrapperspb.UInt32(checksToUnhealthy), wrapperspb.UInt32(checksToHealthy)
	s := &setter{c: c, at: at}
	s.span(&check.Interval, "interval", "/interval")
	s.span(&check.Timeout, "timeout", "/timeout")
	s.number(&check.UnhealthyThreshold, "unhealthyThreshold", "/unhealthyThreshold", 1)
	s.number(&check.HealthyThreshold, "healthyThreshold", "/healthyThreshold", 1)
	s.span(&check.InitialJitter, "initialJitter", "/initialJitter")
	s.span(&check.IntervalJitter, "intervalJitter", "/intervalJitter")
	s.span(&check.NoTrafficInterval, "noTrafficInterval", "/noTrafficInterval")
	if n, ok := c.Number("/intervalJitterPercent"); ok {
		check.IntervalJitterPercent = uint32(n)
		s.from("intervalJitterPercent", "/intervalJitterPercent")
	}
	if value, ok := c.Get("/reuseConnection"); ok {
		reuse, _ := value.(bool)
		check.ReuseConnection = wrapperspb.Bool(reuse)
		s.from("reuseConnection", "/reuseConnection")
	}
	if c.Has("/alwaysLogHealthCheckFailures") {
		check.AlwaysLogHealthCheckFailures = c.Bool("/alwaysLogHealthCheckFailures")
		s.from("alwaysLogHealthCheckFailures", "/alwaysLogHealthCheckFailures")
	}
	return s.origins
}

func textAt(c *generate.Conf, at policy.Pointer, otherwise string) string {
	value, _ := c.Get(at)
	if text, ok := value.(string); ok {
		return text
	}
	return otherwise
}

func setGRPCCheck(check *corev3.HealthCheck, c *generate.Conf) {
	grpc := &corev3.HealthCheck_GrpcHealthCheck{ServiceName: textAt(c, "/grpc/serviceName", ""), Authority: textAt(c, "/grpc/authority", "")}
	check.HealthChecker = &corev3.HealthCheck_GrpcHealthCheck_{GrpcHealthCheck: grpc}
}

func setHTTPCheck(check *corev3.HealthCheck, c *generate.Conf, protocol world.Protocol) error {
	http := &corev3.HealthCheck_HttpHealthCheck{Path: textAt(c, "/http/path", "/")}
	if protocol != world.HTTP {
		http.CodecClientType = typev3.CodecClientType_HTTP2
	}
	var statuses []uint32
	if _, err := c.Decode("/http/expectedStatuses", &statuses); err != nil {
		return err
	}
	for _, status := range statuses {
		if status >= healthyFrom && status < healthyUntil {
			http.ExpectedStatuses = append(http.ExpectedStatuses, &typev3.Int64Range{Start: int64(status), End: int64(status) + 1})
		}
	}
	if c.Kind == resource.KindHealthCheck {
		var added []resource.HealthCheckHeader
		if _, err := c.Decode("/http/requestHeadersToAdd", &added); err != nil {
			return err
		}
		for _, h := range added {
			action, value := appendHeader, ""
			if h.Append != nil && !*h.Append {
				action = replaceHeader
			}
			if h.Header.Value != nil {
				value = *h.Header.Value
			}
			http.RequestHeadersToAdd = appendSome(http.RequestHeadersToAdd, header(h.Header.Key, value, action))
		}
	} else {
		var changes resource.HeaderModifier
		if _, err := c.Decode("/http/requestHeadersToAdd", &changes); err != nil {
			return err
		}
		headers(&changes, &http.RequestHeadersToAdd, &http.RequestHeadersToRemove)
	}
	check.HealthChecker = &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: http}
	return nil
}

func setTCPCheck(check *corev3.HealthCheck, c *generate.Conf) error {
	tcp := &corev3.HealthCheck_TcpHealthCheck{}
	tcp.Send = payload(textAt(c, "/tcp/send", ""))
	var receive []string
	if _, err := c.Decode("/tcp/receive", &receive); err != nil {
		return err
	}
	for _, text := range receive {
		if p := payload(text); p != nil {
			tcp.Receive = append(tcp.Receive, p)
		}
	}
	check.HealthChecker = &corev3.HealthCheck_TcpHealthCheck_{TcpHealthCheck: tcp}
	return nil
}

// payload is bytes in base64 as Envoy has them; nil for none.
func payload(text string) *corev3.HealthCheck_Payload {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(data) == 0 {
		return nil
	}
	return &corev3.HealthCheck_Payload{Payload: &corev3.HealthCheck_Payload_Text{Text: hex.EncodeToString(data)}}
}
