package resource

// TrafficPermission allows callers of the inbounds it matches (§3.6).
// It has no conf: being chosen is what it configures.
type TrafficPermission struct {
	ConnectionMatch
}

// ConfTree implements ConfSpec; a permission has none.
func (*TrafficPermission) ConfTree() map[string]any { return nil }

func (*TrafficPermission) fieldHint(name string) string {
	return successorHint(name, KindMeshTrafficPermission)
}

// TrafficLog sends the access log of outbounds to a backend of the Mesh.
type TrafficLog struct {
	Connection[TrafficLogConf, *TrafficLogConf]
}

// TrafficLogConf names the backend.
type TrafficLogConf struct {
	Backend *string `json:"backend,omitzero" notEmpty:"true" doc:"Name of a logging backend of the Mesh; without it the Mesh's default backend is used."`
}

func (*TrafficLogConf) check(Path, *Report) {}

// BackendRefs implements BackendReferrer.
func (p *TrafficLog) BackendRefs() []BackendRef {
	if p.Conf == nil {
		return nil
	}
	return oneBackend(p.Conf.Backend, LoggingBackend)
}

func (*TrafficLog) fieldHint(name string) string { return successorHint(name, KindMeshLogging) }

// TrafficTrace sends the traces of dataplanes to a backend of the Mesh.
type TrafficTrace struct {
	DataplanePolicy[TrafficTraceConf, *TrafficTraceConf]
}

// TrafficTraceConf names the backend.
type TrafficTraceConf struct {
	Backend *string `json:"backend,omitzero" notEmpty:"true" doc:"Name of a tracing backend of the Mesh; without it the Mesh's default backend is used."`
}

func (*TrafficTraceConf) check(Path, *Report) {}

// BackendRefs implements BackendReferrer.
func (p *TrafficTrace) BackendRefs() []BackendRef {
	if p.Conf == nil {
		return nil
	}
	return oneBackend(p.Conf.Backend, TracingBackend)
}

func (*TrafficTrace) fieldHint(name string) string { return successorHint(name, KindMeshTracing) }

// oneBackend is the reference list of a kind whose conf names one backend.
func oneBackend(name *string, use BackendUse) []BackendRef {
	if name == nil {
		return nil
	}
	return []BackendRef{{Path: Root.Field("conf").Field("backend"), Use: use, Name: *name}}
}

// successorHint points an author who writes a targetRef on a kind of the first
// generation to the kind that takes one (§4.1).
func successorHint(field string, successor Kind) string {
	if field != "targetRef" {
		return ""
	}
	return "the kind that takes a targetRef is `" + string(successor) + "`"
}

// FaultInjection makes inbounds fail on purpose for the callers it names.
type FaultInjection struct {
	Connection[FaultInjectionConf, *FaultInjectionConf]
}

func (*FaultInjection) fieldHint(name string) string { return successorHint(name, KindMeshHTTPFault) }

// FaultInjectionConf holds the faults; each strikes on its own.
type FaultInjectionConf struct {
	Delay             *FaultDelay     `json:"delay,omitzero" doc:"Holds requests back before they are answered."`
	Abort             *FaultAbort     `json:"abort,omitzero" doc:"Answers requests with an error instead of passing them on."`
	ResponseBandwidth *FaultBandwidth `json:"responseBandwidth,omitzero" doc:"Slows responses down."`
}

// FaultDelay holds requests back.
type FaultDelay struct {
	Percentage Percentage `json:"percentage" required:"true" doc:"Share of requests that are delayed, from 0 to 100."`
	Value      Duration   `json:"value" required:"true" above:"0s" doc:"How long a request is held back."`
}

// FaultAbort answers requests with an error.
type FaultAbort struct {
	Percentage Percentage `json:"percentage" required:"true" doc:"Share of requests that are aborted, from 0 to 100."`
	HTTPStatus uint32     `json:"httpStatus" required:"true" min:"100" max:"599" doc:"HTTP status of the answer, from 100 to 599."`
}

// FaultBandwidth slows responses down.
type FaultBandwidth struct {
	Percentage Percentage `json:"percentage" required:"true" doc:"Share of responses that are slowed down, from 0 to 100."`
	Limit      string     `json:"limit" required:"true" format:"bandwidth" doc:"Highest speed of a response, in kbps, mbps or gbps, such as '50 mbps'."`
}

func (*FaultInjectionConf) check(Path, *Report) {}

// RateLimit bounds how many requests inbounds accept from the callers it names.
type RateLimit struct {
	Connection[RateLimitConf, *RateLimitConf]
}

func (*RateLimit) fieldHint(name string) string { return successorHint(name, KindMeshRateLimit) }

// RateLimitConf holds the limits by protocol.
type RateLimitConf struct {
	HTTP *RateLimitHTTP `json:"http,omitzero" doc:"Limit on HTTP requests."`
}

// RateLimitHTTP is a number of requests in an interval.
type RateLimitHTTP struct {
	Requests    uint32       `json:"requests" required:"true" min:"1" doc:"How many requests are accepted in one interval."`
	Interval    Duration     `json:"interval" required:"true" min:"50ms" doc:"Length of the interval, at least 50ms."`
	OnRateLimit *OnRateLimit `json:"onRateLimit,omitzero" doc:"What requests above the limit are answered."`
}

// OnRateLimit is the answer to a request above the limit.
type OnRateLimit struct {
	Status  *uint32       `json:"status,omitzero" min:"100" max:"599" doc:"HTTP status of the answer; 429 when absent."`
	Headers []LimitHeader `json:"headers,omitzero" doc:"Headers of the answer."`
}

// LimitHeader is a header of the answer to a request above the limit.
type LimitHeader struct {
	Key    string `json:"key" required:"true" notEmpty:"true" doc:"Name of the header."`
	Value  string `json:"value" required:"true" doc:"Value of the header."`
	Append *bool  `json:"append,omitzero" doc:"Adds to a header that is already there instead of replacing it; false when absent."`
}

func (*RateLimitConf) check(Path, *Report) {}
