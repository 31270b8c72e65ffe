package resource

// MeshCircuitBreaker bounds load and ejects failing endpoints.
type MeshCircuitBreaker struct {
	BothPolicy[BreakerConf, *BreakerConf]
}

// BreakerConf is the configuration of a MeshCircuitBreaker.
type BreakerConf struct {
	ConnectionLimits *ConnectionLimits `json:"connectionLimits,omitzero" doc:"Bounds on what is open at once."`
	OutlierDetection *OutlierDetection `json:"outlierDetection,omitzero" doc:"What makes an endpoint be ejected."`
}

// ConnectionLimits bound what is open at once.
type ConnectionLimits struct {
	MaxConnectionPools *uint32 `json:"maxConnectionPools,omitzero" min:"1" doc:"Highest number of connection pools."`
	MaxConnections     *uint32 `json:"maxConnections,omitzero" min:"1" doc:"Highest number of open connections."`
	MaxPendingRequests *uint32 `json:"maxPendingRequests,omitzero" min:"1" doc:"Highest number of requests that wait for a connection."`
	MaxRetries         *uint32 `json:"maxRetries,omitzero" doc:"Highest number of retries at once."`
	MaxRequests        *uint32 `json:"maxRequests,omitzero" min:"1" doc:"Highest number of requests at once."`
}

// OutlierDetection ejects endpoints that do worse than others.
type OutlierDetection struct {
	Disabled                    *bool             `json:"disabled,omitzero" doc:"Ejects nothing."`
	Interval                    *Duration         `json:"interval,omitzero" above:"0s" doc:"Time between two evaluations of the endpoints."`
	BaseEjectionTime            *Duration         `json:"baseEjectionTime,omitzero" above:"0s" doc:"How long an endpoint is ejected, times the number of its ejections."`
	MaxEjectionPercent          *uint32           `json:"maxEjectionPercent,omitzero" min:"0" max:"100" doc:"Share of endpoints, from 0 to 100, that may be ejected at once."`
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
	StandardDeviationFactor *float64 `json:"standardDeviationFactor,omitzero" above:"0" doc:"How many standard deviations below the mean ejects."`
}

func (*BreakerConf) check(Path, *Report) {}

// MeshHealthCheck probes the endpoints behind outbounds.
type MeshHealthCheck struct {
	ToPolicy[MeshHealthCheckConf, *MeshHealthCheckConf]
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
	Path                *string         `json:"path,omitzero" format:"path" doc:"Path of the request."`
	RequestHeadersToAdd *HeaderModifier `json:"requestHeadersToAdd,omitzero" doc:"Headers of the request."`
	ExpectedStatuses    []uint32        `json:"expectedStatuses,omitzero" min:"100" max:"599" doc:"HTTP statuses that count as healthy."`
}

// MeshHealthCheckGRPC is a check by the gRPC health protocol.
type MeshHealthCheckGRPC struct {
	Disabled    *bool   `json:"disabled,omitzero" doc:"Turns the check off."`
	ServiceName *string `json:"serviceName,omitzero" doc:"Name of the service to ask about."`
	Authority   *string `json:"authority,omitzero" doc:"Authority of the request."`
}

func (*MeshHealthCheckConf) check(Path, *Report) {}

// MeshHTTPFault makes HTTP requests fail on purpose.
type MeshHTTPFault struct {
	BothPolicy[HTTPFaultConf, *HTTPFaultConf]
}

// HTTPFaultConf is the configuration of a MeshHTTPFault.
type HTTPFaultConf struct {
	HTTP []FaultInjectionConf `json:"http,omitzero" doc:"Faults, tried in order; each strikes on its own."`
}

func (c *HTTPFaultConf) check(at Path, r *Report) {
	for i := range c.HTTP {
		if c.HTTP[i] == (FaultInjectionConf{}) {
			r.Errorf(at.Field("http").Index(i), "needs at least one of delay, abort, responseBandwidth")
		}
	}
}

// MeshRateLimit bounds how much is accepted.
type MeshRateLimit struct {
	BothPolicy[MeshRateLimitConf, *MeshRateLimitConf]
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
	Num      *uint32   `json:"num,omitzero" min:"1" doc:"How many in one interval."`
	Interval *Duration `json:"interval,omitzero" min:"50ms" doc:"Length of the interval, at least 50ms."`
}

// LocalOnRateLimit is the answer to a request above the limit.
type LocalOnRateLimit struct {
	Status  *uint32         `json:"status,omitzero" min:"100" max:"599" doc:"HTTP status of the answer; 429 when absent."`
	Headers *HeaderModifier `json:"headers,omitzero" doc:"Headers of the answer."`
}

func (*MeshRateLimitConf) check(Path, *Report) {}
