package resource

// Retry repeats failed requests and connection attempts on outbounds.
type Retry struct {
	Connection[RetryConf, *RetryConf]
}

func (*Retry) fieldHint(name string) string { return successorHint(name, KindMeshRequestRetry) }

// RetryConf is the published configuration of Retry, by protocol.
type RetryConf struct {
	HTTP *RetryHTTP `json:"http,omitzero" doc:"Retries of HTTP requests."`
	GRPC *RetryGRPC `json:"grpc,omitzero" doc:"Retries of gRPC calls."`
	TCP  *RetryTCP  `json:"tcp,omitzero" doc:"Retries of TCP connection attempts."`
}

// RetryAttempts is what retries of requests have in common.
type RetryAttempts struct {
	NumRetries    *uint32   `json:"numRetries,omitzero" doc:"How often a request is repeated; 5 when absent."`
	PerTryTimeout *Duration `json:"perTryTimeout,omitzero" above:"0s" doc:"Longest time for one attempt; 16s when absent."`
	BackOff       *BackOff  `json:"backOff,omitzero" doc:"Growing, random pauses between attempts."`
}

// BackOff is a growing pause between attempts.
type BackOff struct {
	BaseInterval Duration  `json:"baseInterval" required:"true" above:"0s" doc:"Bound of the first pause; 25ms is usual."`
	MaxInterval  *Duration `json:"maxInterval,omitzero" doc:"Bound of all pauses; ten times baseInterval when absent."`
}

func (a *RetryAttempts) check(at Path, r *Report) {
	if a.BackOff != nil {
		checkOrder(at.Field("backOff").Field("maxInterval"), &a.BackOff.BaseInterval, a.BackOff.MaxInterval, "baseInterval", r)
	}
}

// RetryHTTP repeats HTTP requests.
type RetryHTTP struct {
	RetryAttempts
	RetriableStatusCodes []uint32 `json:"retriableStatusCodes,omitzero" min:"100" max:"599" doc:"HTTP statuses that are retried."`
	RetriableMethods     []string `json:"retriableMethods,omitzero" enum:"CONNECT|DELETE|GET|HEAD|OPTIONS|PATCH|POST|PUT|TRACE" doc:"Methods whose requests are retried; all when absent."`
	RetryOn              []string `json:"retryOn,omitzero" enum:"all_5xx|gateway_error|reset|connect_failure|envoy_ratelimited|retriable_4xx|refused_stream|retriable_status_codes|retriable_headers|http3_post_connect_failure" doc:"Failures that are retried; gateway_error, connect_failure and refused_stream when absent."`
}

// RetryGRPC repeats gRPC calls.
type RetryGRPC struct {
	RetryAttempts
	RetryOn []string `json:"retryOn,omitzero" enum:"cancelled|deadline_exceeded|internal|resource_exhausted|unavailable" doc:"gRPC statuses that are retried; all of these when absent."`
}

// RetryTCP repeats connection attempts.
type RetryTCP struct {
	MaxConnectAttempts *uint32 `json:"maxConnectAttempts,omitzero" min:"1" doc:"How often a connection is attempted."`
}

func (c *RetryConf) check(at Path, r *Report) {
	if c.HTTP != nil {
		c.HTTP.RetryAttempts.check(at.Field("http"), r)
	}
	if c.GRPC != nil {
		c.GRPC.RetryAttempts.check(at.Field("grpc"), r)
	}
}
