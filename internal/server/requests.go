package server

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"meridian/internal/rpcerr"
)

const (
	// maxReasons bounds the reasons that denials are counted by; the product has
	// fewer. Beyond that, and without a reason, a denial counts as otherReason.
	maxReasons  = 64
	otherReason = "OTHER"
)

// requests counts calls when they end. gRPC tells it of that: nothing of it is on the
// stack of a call, nor kept for one, of which a zone has ten thousand (see
// docs/adr/0028). It is a prometheus.Collector and safe for concurrent use once every
// service is registered.
type requests struct {
	// methods are those of the server, true where a call takes as long as its work;
	// others last for as long as their caller stays.
	methods  map[string]bool
	ended    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	denials  *prometheus.CounterVec

	mu      sync.Mutex // guards reasons
	reasons map[string]bool
}

func newRequests() *requests {
	return &requests{
		methods: map[string]bool{}, reasons: map[string]bool{},
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "meridian_requests_total",
			Help: "Calls of the gRPC API that have ended, by method and code. A stream counts when it ends; calls that a limit refuses before they begin do not.",
		}, []string{"method", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "meridian_request_duration_seconds",
			Help:    "How long calls of the gRPC API took, from their first byte on, by method; without those that last until their caller leaves.",
			Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30},
		}, []string{"method"}),
		denials: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "meridian_request_denials_total",
			Help: "Calls of the gRPC API that were refused because of who the caller is or is not, by the reason of the error.",
		}, []string{"reason"}),
	}
}

// service adds the methods of a service.
func (r *requests) service(desc *grpc.ServiceDesc) {
	prefix := "/" + desc.ServiceName + "/"
	for _, m := range desc.Methods {
		r.methods[prefix+m.MethodName] = true
	}
	for _, m := range desc.Streams {
		method := prefix + m.StreamName
		r.methods[method] = (!m.ClientStreams || !m.ServerStreams) && !strings.HasSuffix(method, watchSuffix)
	}
}

// end counts a call that has ended.
func (r *requests) end(ctx context.Context, end *stats.End) {
	method, _ := grpc.Method(ctx)
	timed, known := r.methods[method]
	if !known {
		return // labels have values of this product only
	}
	method = strings.TrimPrefix(method, "/")
	r.ended.WithLabelValues(method, codeName(end.Error)).Inc()
	if timed {
		r.duration.WithLabelValues(method).Observe(end.EndTime.Sub(end.BeginTime).Seconds())
	}
	var e *rpcerr.Error
	if errors.As(rpcerr.FromStatus(end.Error), &e) && (e.Code == rpcerr.Denied || e.Code == rpcerr.Unauthenticated) {
		r.denials.WithLabelValues(r.bounded(e.Reason)).Inc()
	}
}

// codeName is the name of the code of an error, of those that gRPC defines: an error
// of another server could have any number.
func codeName(err error) string {
	code := status.Code(err)
	if code > codes.Unauthenticated { // the highest
		code = codes.Unknown
	}
	return code.String()
}

// bounded returns a reason as the value of a label.
func (r *requests) bounded(reason string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.reasons[reason]:
		return reason
	case reason == "" || len(r.reasons) >= maxReasons:
		return otherReason
	}
	r.reasons[reason] = true
	return reason
}

// Describe implements prometheus.Collector.
func (r *requests) Describe(to chan<- *prometheus.Desc) {
	r.ended.Describe(to)
	r.duration.Describe(to)
	r.denials.Describe(to)
}

// Collect implements prometheus.Collector.
func (r *requests) Collect(to chan<- prometheus.Metric) {
	r.ended.Collect(to)
	r.duration.Collect(to)
	r.denials.Collect(to)
}
