package resource

// HealthCheck probes the endpoints behind outbounds and takes failing ones out.
type HealthCheck struct {
	Connection[HealthCheckConf, *HealthCheckConf]
}

func (*HealthCheck) fieldHint(name string) string { return successorHint(name, KindMeshHealthCheck) }

// HealthCheckTiming is what both generations of health checks share.
type HealthCheckTiming struct {
	Interval                     *Duration `json:"interval,omitzero" above:"0s" doc:"Time between two checks of an endpoint."`
	Timeout                      *Duration `json:"timeout,omitzero" above:"0s" doc:"Longest time to wait for the answer to a check."`
	UnhealthyThreshold           *uint32   `json:"unhealthyThreshold,omitzero" min:"1" doc:"Failed checks in a row after which an endpoint is unhealthy."`
	HealthyThreshold             *uint32   `json:"healthyThreshold,omitzero" min:"1" doc:"Successful checks in a row after which an endpoint is healthy again."`
	InitialJitter                *Duration `json:"initialJitter,omitzero" doc:"The first check waits a random time up to this."`
	IntervalJitter               *Duration `json:"intervalJitter,omitzero" doc:"Every interval is extended by a random time up to this."`
	IntervalJitterPercent        *uint32   `json:"intervalJitterPercent,omitzero" min:"0" max:"100" doc:"Every interval is extended by a random share of it up to this percentage; together with intervalJitter both are added."`
	HealthyPanicThreshold        *float64  `json:"healthyPanicThreshold,omitzero" min:"0" max:"100" doc:"Share of healthy endpoints, from 0 to 100, below which health is ignored; 0 never ignores it."`
	FailTrafficOnPanic           *bool     `json:"failTrafficOnPanic,omitzero" doc:"Below the panic threshold, fails requests instead of sending them to all endpoints."`
	NoTrafficInterval            *Duration `json:"noTrafficInterval,omitzero" above:"0s" doc:"Time between two checks of an endpoint that never had traffic."`
	EventLogPath                 *string   `json:"eventLogPath,omitzero" doc:"File on the dataplane's host that records changes of health."`
	AlwaysLogHealthCheckFailures *bool     `json:"alwaysLogHealthCheckFailures,omitzero" doc:"Records every failed check, not only the first of a row."`
	ReuseConnection              *bool     `json:"reuseConnection,omitzero" doc:"Sends checks over one connection; true when absent."`
}

// HealthCheckConf is the published configuration of HealthCheck.
type HealthCheckConf struct {
	HealthCheckTiming
	TCP  *HealthCheckTCP  `json:"tcp,omitzero" doc:"Checks by bytes over TCP; an empty object checks that a connection opens."`
	HTTP *HealthCheckHTTP `json:"http,omitzero" doc:"Checks by an HTTP request."`
}

// HealthCheckTCP is a check by bytes.
type HealthCheckTCP struct {
	Send    *string  `json:"send,omitzero" format:"base64" doc:"Base64 of the bytes to send."`
	Receive []string `json:"receive,omitzero" format:"base64" doc:"Base64 of the blocks of bytes that the answer must contain, in this order."`
}

// HealthCheckHTTP is a check by a request.
type HealthCheckHTTP struct {
	Path                *string             `json:"path,omitzero" format:"path" doc:"Path of the request; / when absent."`
	RequestHeadersToAdd []HealthCheckHeader `json:"requestHeadersToAdd,omitzero" doc:"Headers to add to the request."`
	ExpectedStatuses    []uint32            `json:"expectedStatuses,omitzero" min:"100" max:"599" doc:"HTTP statuses that count as healthy; 200 when absent."`
}

// HealthCheckHeader is a header of a check's request.
type HealthCheckHeader struct {
	Header HeaderValue `json:"header" required:"true" doc:"The header."`
	Append *bool       `json:"append,omitzero" doc:"Adds to a header that is already there instead of replacing it; true when absent."`
}

// HeaderValue is a header by its key.
type HeaderValue struct {
	Key   string  `json:"key" required:"true" notEmpty:"true" doc:"Name of the header."`
	Value *string `json:"value,omitzero" doc:"Value of the header; empty when absent."`
}

func (*HealthCheckConf) check(Path, *Report) {}

// CircuitBreaker bounds the load on outbounds and ejects failing endpoints.
type CircuitBreaker struct {
	Connection[CircuitBreakerConf, *CircuitBreakerConf]
}

func (*CircuitBreaker) fieldHint(name string) string {
	return successorHint(name, KindMeshCircuitBreaker)
}

// CircuitBreakerConf is the published configuration of CircuitBreaker.
type CircuitBreakerConf struct {
	Interval                    *Duration   `json:"interval,omitzero" above:"0s" doc:"Time between two evaluations of the endpoints; 10s when absent."`
	BaseEjectionTime            *Duration   `json:"baseEjectionTime,omitzero" above:"0s" doc:"How long an endpoint is ejected, times the number of its ejections; 30s when absent."`
	MaxEjectionPercent          *uint32     `json:"maxEjectionPercent,omitzero" min:"0" max:"100" doc:"Share of endpoints, from 0 to 100, that may be ejected at once; 10 when absent."`
	SplitExternalAndLocalErrors *bool       `json:"splitExternalAndLocalErrors,omitzero" doc:"Counts failures on the way to an endpoint apart from the endpoint's own errors."`
	Thresholds                  *Thresholds `json:"thresholds,omitzero" doc:"Bounds on what is open to the destination at once."`
	Detectors                   *Detectors  `json:"detectors,omitzero" doc:"What makes an endpoint be ejected; one that is written, even as an empty object, is on."`
}

// Thresholds bound what a proxy has open to a destination.
type Thresholds struct {
	MaxConnections     *uint32 `json:"maxConnections,omitzero" doc:"Highest number of open connections; 1024 when absent."`
	MaxPendingRequests *uint32 `json:"maxPendingRequests,omitzero" doc:"Highest number of requests that wait for a connection; 1024 when absent."`
	MaxRequests        *uint32 `json:"maxRequests,omitzero" doc:"Highest number of requests at once; 1024 when absent."`
	MaxRetries         *uint32 `json:"maxRetries,omitzero" doc:"Highest number of retries at once; 3 when absent."`
}

// Detectors say which endpoints count as failing.
type Detectors struct {
	TotalErrors       *ConsecutiveErrors `json:"totalErrors,omitzero" doc:"Errors of any kind in a row: 5xx answers and failures on the way."`
	GatewayErrors     *ConsecutiveErrors `json:"gatewayErrors,omitzero" doc:"Gateway errors in a row: answers 502, 503 and 504."`
	LocalErrors       *ConsecutiveErrors `json:"localErrors,omitzero" doc:"Failures on the way to the endpoint in a row; needs splitExternalAndLocalErrors."`
	StandardDeviation *StandardDeviation `json:"standardDeviation,omitzero" doc:"Success rate far below that of the other endpoints."`
	Failure           *FailureShare      `json:"failure,omitzero" doc:"Share of failed requests above a bound."`
}

// ConsecutiveErrors counts errors in a row.
type ConsecutiveErrors struct {
	Consecutive *uint32 `json:"consecutive,omitzero" min:"1" doc:"How many errors in a row eject an endpoint; 5 when absent."`
}

// StandardDeviation compares endpoints by success rate.
type StandardDeviation struct {
	RequestVolume *uint32  `json:"requestVolume,omitzero" doc:"Requests in an interval that an endpoint needs to be judged; 100 when absent."`
	MinimumHosts  *uint32  `json:"minimumHosts,omitzero" doc:"Endpoints with that volume that are needed to compare; 5 when absent."`
	Factor        *float64 `json:"factor,omitzero" above:"0" doc:"How many standard deviations below the mean ejects; 1.9 when absent."`
}

// FailureShare judges endpoints by their share of failures.
type FailureShare struct {
	RequestVolume *uint32 `json:"requestVolume,omitzero" doc:"Requests in an interval that an endpoint needs to be judged; 50 when absent."`
	MinimumHosts  *uint32 `json:"minimumHosts,omitzero" doc:"Endpoints with that volume that are needed; 5 when absent."`
	Threshold     *uint32 `json:"threshold,omitzero" min:"0" max:"100" doc:"Share of failed requests, from 0 to 100, that ejects; 85 when absent."`
}

func (*CircuitBreakerConf) check(Path, *Report) {}

// Timeout bounds how long outbounds wait.
type Timeout struct {
	Connection[TimeoutConf, *TimeoutConf]
}

func (*Timeout) fieldHint(name string) string { return successorHint(name, KindMeshUpstreamTimeout) }

// TimeoutConf is the published configuration of Timeout. A timeout of 0s never
// strikes.
type TimeoutConf struct {
	ConnectTimeout *Duration    `json:"connectTimeout,omitzero" above:"0s" doc:"Longest time to open a connection; 10s when absent."`
	TCP            *TimeoutTCP  `json:"tcp,omitzero" doc:"Timeouts of TCP connections."`
	HTTP           *TimeoutHTTP `json:"http,omitzero" doc:"Timeouts of HTTP requests and connections."`
	GRPC           *TimeoutGRPC `json:"grpc,omitzero" doc:"Timeouts of gRPC streams; the fields of http are preferred."`
}

// TimeoutTCP holds timeouts of TCP connections.
type TimeoutTCP struct {
	IdleTimeout *Duration `json:"idleTimeout,omitzero" doc:"Closes a connection on which no bytes flowed for this time; 1h when absent."`
}

// TimeoutHTTP holds timeouts of HTTP.
type TimeoutHTTP struct {
	RequestTimeout    *Duration `json:"requestTimeout,omitzero" doc:"Longest time from the end of a request to the end of its answer; 15s when absent."`
	IdleTimeout       *Duration `json:"idleTimeout,omitzero" doc:"Closes a connection without requests for this time; 1h when absent."`
	StreamIdleTimeout *Duration `json:"streamIdleTimeout,omitzero" doc:"Closes a stream without activity for this time; 30m when absent."`
	MaxStreamDuration *Duration `json:"maxStreamDuration,omitzero" doc:"Longest life of a stream; unbounded when absent."`
}

// TimeoutGRPC holds timeouts of gRPC.
type TimeoutGRPC struct {
	StreamIdleTimeout *Duration `json:"streamIdleTimeout,omitzero" doc:"Closes a stream without activity for this time."`
	MaxStreamDuration *Duration `json:"maxStreamDuration,omitzero" doc:"Longest life of a stream."`
}

func (*TimeoutConf) check(Path, *Report) {}
