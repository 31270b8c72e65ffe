package resource

// MeshCircuitBreaker bounds load and ejects failing endpoints.
type MeshCircuitBreaker struct {
	BothPolicy[MeshCircuitBreakerItem, *MeshCircuitBreakerItem]
}

// MeshCircuitBreakerItem does so for what it targets.
type MeshCircuitBreakerItem struct {
	ItemRef
	BreakerConf
	Default *BreakerConf `json:"default,omitzero" doc:"Another place for the configuration beside targetRef."`
}

// BreakerConf is the configuration of a MeshCircuitBreaker.
type BreakerConf struct {
	ConnectionLimits *ConnectionLimits `json:"connectionLimits,omitzero" doc:"Bounds on what is open at once."`
	OutlierDetection *OutlierDetection `json:"outlierDetection,omitzero" doc:"What makes an endpoint be ejected."`
}

// ConnectionLimits bound what is open at once.
type ConnectionLimits struct {
	MaxConnectionPools *uint32 `json:"maxConnectionPools,omitzero" doc:"Highest number of connection pools."`
	MaxConnections     *uint32 `json:"maxConnections,omitzero" doc:"Highest number of open connections."`
	MaxPendingRequests *uint32 `json:"maxPendingRequests,omitzero" doc:"Highest number of requests that wait for a connection."`
	MaxRetries         *uint32 `json:"maxRetries,omitzero" doc:"Highest number of retries at once."`
	MaxRequests        *uint32 `json:"maxRequests,omitzero" doc:"Highest number of requests at once."`
}

// OutlierDetection ejects endpoints that do worse than others.
type OutlierDetection struct {
	Disabled                    *bool             `json:"disabled,omitzero" doc:"Ejects nothing."`
	Interval                    *Duration         `json:"interval,omitzero" doc:"Time between two evaluations of the endpoints."`
	BaseEjectionTime            *Duration         `json:"baseEjectionTime,omitzero" doc:"How long an endpoint is ejected, times the number of its ejections."`
	MaxEjectionPercent          *uint32           `json:"maxEjectionPercent,omitzero" doc:"Share of endpoints, from 0 to 100, that may be ejected at once."`
	SplitExternalAndLocalErrors *bool             `json:"splitExternalAndLocalErrors,omitzero" doc:"Counts failures on the way to an endpoint apart from the endpoint's own errors."`
	HealthyPanicThreshold       *Percentage       `json:"healthyPanicThreshold,omitzero" doc:"Share of healthy endpoints, from 0 to 100, below which health is ignored."`
	Detectors                   *OutlierDetectors `json:"detectors,omitzero" doc:"What counts as failing."`
}

// OutlierDetectors say what counts as failing.
type OutlierDetectors struct {
	TotalFailures       *ConsecutiveErrors `json:"totalFailures,omitzero" doc:"Failures of any kind in a row."`
	GatewayFailures     *ConsecutiveErrors `json:"gatewayFailures,omitzero" doc:"Answers 502, 503 and 504 in a row."`
	LocalOriginFailures *ConsecutiveErrors `json:"localOriginFailures,omitzero" doc:"Failures on the way to the endpoint in a row; needs splitExternalAndLocalErrors."`
	SuccessRate         *SuccessRate       `json:"successRate,omitzero" doc:"Success rate far below that of the other endpoints."`
	FailurePercentage   *FailureShare      `json:"failurePercentage,omitzero" doc:"Share of failed requests above a bound."`
}

// SuccessRate compares endpoints by success rate.
type SuccessRate struct {
	MinimumHosts            *uint32  `json:"minimumHosts,omitzero" doc:"Endpoints with enough requests that are needed to compare."`
	RequestVolume           *uint32  `json:"requestVolume,omitzero" doc:"Requests in an interval that an endpoint needs to be judged."`
	StandardDeviationFactor *float64 `json:"standardDeviationFactor,omitzero" doc:"How many standard deviations below the mean ejects."`
}

func (c *BreakerConf) check(at Path, r *Report) {
	if l := c.ConnectionLimits; l != nil {
		limits := at.Field("connectionLimits")
		checkAtLeastOne(limits.Field("maxConnectionPools"), l.MaxConnectionPools, r)
		checkAtLeastOne(limits.Field("maxConnections"), l.MaxConnections, r)
		checkAtLeastOne(limits.Field("maxPendingRequests"), l.MaxPendingRequests, r)
		checkAtLeastOne(limits.Field("maxRequests"), l.MaxRequests, r)
	}
	if o := c.OutlierDetection; o != nil {
		outlier := at.Field("outlierDetection")
		checkAbove(outlier.Field("interval"), o.Interval, r)
		checkAbove(outlier.Field("baseEjectionTime"), o.BaseEjectionTime, r)
		checkBetween(outlier.Field("maxEjectionPercent"), o.MaxEjectionPercent, 0, 100, r)
		o.Detectors.check(outlier.Field("detectors"), r)
	}
}

func (d *OutlierDetectors) check(at Path, r *Report) {
	if d == nil {
		return
	}
	for _, f := range []struct {
		name   string
		errors *ConsecutiveErrors
	}{{"totalFailures", d.TotalFailures}, {"gatewayFailures", d.GatewayFailures}, {"localOriginFailures", d.LocalOriginFailures}} {
		if f.errors != nil {
			checkAtLeastOne(at.Field(f.name).Field("consecutive"), f.errors.Consecutive, r)
		}
	}
	if s := d.SuccessRate; s != nil && s.StandardDeviationFactor != nil && *s.StandardDeviationFactor <= 0 {
		r.Errorf(at.Field("successRate").Field("standardDeviationFactor"), "must be greater than 0")
	}
	if f := d.FailurePercentage; f != nil {
		checkBetween(at.Field("failurePercentage").Field("threshold"), f.Threshold, 0, 100, r)
	}
}

func (i *MeshCircuitBreakerItem) parts() itemParts {
	return partsOf(&i.ItemRef, &i.BreakerConf, i.Default)
}

// MeshHealthCheck probes the endpoints behind outbounds.
type MeshHealthCheck struct {
	ToPolicy[MeshHealthCheckItem, *MeshHealthCheckItem]
}

// MeshHealthCheckItem probes the endpoints of what it targets.
type MeshHealthCheckItem struct {
	ItemRef
	MeshHealthCheckConf
	Default *MeshHealthCheckConf `json:"default,omitzero" doc:"Another place for the configuration beside targetRef."`
}

// MeshHealthCheckConf is the configuration of a MeshHealthCheck.
type MeshHealthCheckConf struct {
	HealthCheckTiming
	TCP  *MeshHealthCheckTCP  `json:"tcp,omitzero" doc:"Checks by bytes over TCP."`
	HTTP *MeshHealthCheckHTTP `json:"http,omitzero" doc:"Checks by an HTTP request."`
	GRPC *MeshHealthCheckGRPC `json:"grpc,omitzero" doc:"Checks by the gRPC health protocol."`
}

// MeshHealthCheckTCP is a check by bytes.
type MeshHealthCheckTCP struct {
	Disabled *bool `json:"disabled,omitzero" doc:"Turns the check off."`
	HealthCheckTCP
}

// MeshHealthCheckHTTP is a check by a request.
type MeshHealthCheckHTTP struct {
	Disabled            *bool           `json:"disabled,omitzero" doc:"Turns the check off."`
	Path                *string         `json:"path,omitzero" doc:"Path of the request."`
	RequestHeadersToAdd *HeaderModifier `json:"requestHeadersToAdd,omitzero" doc:"Headers of the request."`
	ExpectedStatuses    []uint32        `json:"expectedStatuses,omitzero" doc:"HTTP statuses that count as healthy."`
}

// MeshHealthCheckGRPC is a check by the gRPC health protocol.
type MeshHealthCheckGRPC struct {
	Disabled    *bool   `json:"disabled,omitzero" doc:"Turns the check off."`
	ServiceName *string `json:"serviceName,omitzero" doc:"Name of the service to ask about."`
	Authority   *string `json:"authority,omitzero" doc:"Authority of the request."`
}

func (c *MeshHealthCheckConf) check(at Path, r *Report) {
	c.HealthCheckTiming.check(at, r)
	if c.TCP != nil {
		c.TCP.HealthCheckTCP.check(at.Field("tcp"), r)
	}
	if h := c.HTTP; h != nil {
		http := at.Field("http")
		if h.Path != nil {
			checkPath(http.Field("path"), *h.Path, r)
		}
		h.RequestHeadersToAdd.check(http.Field("requestHeadersToAdd"), r)
		checkStatuses(http.Field("expectedStatuses"), h.ExpectedStatuses, r)
	}
}

func (i *MeshHealthCheckItem) parts() itemParts {
	return partsOf(&i.ItemRef, &i.MeshHealthCheckConf, i.Default)
}

// MeshHTTPFault makes HTTP requests fail on purpose.
type MeshHTTPFault struct {
	BothPolicy[MeshHTTPFaultItem, *MeshHTTPFaultItem]
}

// MeshHTTPFaultItem does so for what it targets.
type MeshHTTPFaultItem struct {
	ItemRef
	HTTPFaultConf
	Default *HTTPFaultConf `json:"default,omitzero" doc:"Another place for the configuration beside targetRef."`
}

// HTTPFaultConf is the configuration of a MeshHTTPFault.
type HTTPFaultConf struct {
	HTTP []FaultInjectionConf `json:"http,omitzero" doc:"Faults, tried in order; each strikes on its own."`
}

func (c *HTTPFaultConf) check(at Path, r *Report) {
	for i := range c.HTTP {
		path := at.Field("http").Index(i)
		if c.HTTP[i] == (FaultInjectionConf{}) {
			r.Errorf(path, "needs at least one of delay, abort, responseBandwidth")
		}
		c.HTTP[i].check(path, r)
	}
}

func (i *MeshHTTPFaultItem) parts() itemParts {
	return partsOf(&i.ItemRef, &i.HTTPFaultConf, i.Default)
}

// MeshRateLimit bounds how much is accepted.
type MeshRateLimit struct {
	BothPolicy[MeshRateLimitItem, *MeshRateLimitItem]
}

// MeshRateLimitItem does so for what it targets.
type MeshRateLimitItem struct {
	ItemRef
	MeshRateLimitConf
	Default *MeshRateLimitConf `json:"default,omitzero" doc:"Another place for the configuration beside targetRef."`
}

// MeshRateLimitConf is the configuration of a MeshRateLimit.
type MeshRateLimitConf struct {
	Local *LocalRateLimit `json:"local,omitzero" doc:"Limits that every proxy counts on its own."`
}

// LocalRateLimit holds limits by protocol.
type LocalRateLimit struct {
	HTTP *LocalRateLimitHTTP `json:"http,omitzero" doc:"Limit on HTTP requests."`
	TCP  *LocalRateLimitTCP  `json:"tcp,omitzero" doc:"Limit on TCP connections."`
}

// LocalRateLimitHTTP limits HTTP requests.
type LocalRateLimitHTTP struct {
	Disabled    *bool             `json:"disabled,omitzero" doc:"Turns the limit off."`
	RequestRate *Rate             `json:"requestRate,omitzero" doc:"How many requests are accepted."`
	OnRateLimit *LocalOnRateLimit `json:"onRateLimit,omitzero" doc:"What requests above the limit are answered."`
}

// LocalRateLimitTCP limits TCP connections.
type LocalRateLimitTCP struct {
	Disabled       *bool `json:"disabled,omitzero" doc:"Turns the limit off."`
	ConnectionRate *Rate `json:"connectionRate,omitzero" doc:"How many connections are accepted."`
}

// Rate is a number in an interval; its fields merge one by one.
type Rate struct {
	Num      *uint32   `json:"num,omitzero" doc:"How many in one interval."`
	Interval *Duration `json:"interval,omitzero" doc:"Length of the interval, at least 50ms."`
}

// LocalOnRateLimit is the answer to a request above the limit.
type LocalOnRateLimit struct {
	Status  *uint32         `json:"status,omitzero" doc:"HTTP status of the answer; 429 when absent."`
	Headers *HeaderModifier `json:"headers,omitzero" doc:"Headers of the answer."`
}

func (c *MeshRateLimitConf) check(at Path, r *Report) {
	if c.Local == nil {
		return
	}
	if h := c.Local.HTTP; h != nil {
		http := at.Field("local").Field("http")
		h.RequestRate.check(http.Field("requestRate"), r)
		if h.OnRateLimit != nil {
			checkBetween(http.Field("onRateLimit").Field("status"), h.OnRateLimit.Status, 100, 599, r)
			h.OnRateLimit.Headers.check(http.Field("onRateLimit").Field("headers"), r)
		}
	}
	if t := c.Local.TCP; t != nil {
		t.ConnectionRate.check(at.Field("local").Field("tcp").Field("connectionRate"), r)
	}
}

func (l *Rate) check(at Path, r *Report) {
	if l == nil {
		return
	}
	checkAtLeastOne(at.Field("num"), l.Num, r)
	if l.Interval != nil {
		checkInterval(at.Field("interval"), *l.Interval, r)
	}
}

func (i *MeshRateLimitItem) parts() itemParts {
	return partsOf(&i.ItemRef, &i.MeshRateLimitConf, i.Default)
}
