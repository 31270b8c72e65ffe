package server

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"meridian/internal/authn"
)

// eventually waits until a metric has a value: gRPC counts a call after its client
// has the answer.
func eventually(t *testing.T, want float64, metric prometheus.Collector) {
	t.Helper()
	require.Eventually(t, func() bool { return testutil.ToFloat64(metric) >= want }, time.Minute, time.Millisecond)
	require.InDelta(t, want, testutil.ToFloat64(metric), 0)
}

func (r *testServer) ended(method string, code codes.Code) prometheus.Collector {
	return r.requests.ended.WithLabelValues(method[1:], code.String())
}

// Every call counts when it ends, unary or not, by how it ends; and how long it took,
// unless it lasts for as long as its caller stays.
func TestRequestsAreCounted(t *testing.T) {
	r := newTestServer(t)
	require.NoError(t, r.stream("user", part(t), 2))
	for range 2 {
		require.NoError(t, answer(r.send("user", getMethod, []byte{}), true))
	}
	require.NoError(t, answer(r.send("", listMethod, []byte{}), true))
	require.Error(t, answer(r.send("forger", getMethod, nil), false))
	require.Error(t, answer(r.send("user", "/meridian.v1.AdminService/NoSuchMethod", []byte{}), true))
	require.Error(t, answer(r.send("user", "/no.such.Service/Get", nil), true))

	ctx, leave := context.WithCancel(t.Context())
	watch, err := healthv1.NewHealthClient(r.dial()).Watch(ctx, &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	require.NoError(t, err)
	leave()

	eventually(t, 1, r.ended(applyMethod, codes.OK))
	eventually(t, 2, r.ended(getMethod, codes.OK))
	eventually(t, 1, r.ended(listMethod, codes.OK))
	eventually(t, 1, r.ended(getMethod, codes.Unauthenticated))
	eventually(t, 1, r.ended(healthv1.Health_Watch_FullMethodName, codes.Canceled))
	eventually(t, 1, r.requests.denials.WithLabelValues(authn.ReasonBadToken))
	require.Equal(t, 1, testutil.CollectAndCount(r.requests.denials))
	require.Equal(t, 5, testutil.CollectAndCount(r.requests.ended), "calls of methods that there are not")

	require.Equal(t, 3, testutil.CollectAndCount(r.requests.duration), "apply, get and list")
	registry := prometheus.NewRegistry()
	registry.MustRegister(r.requests)
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Equal(t, "meridian_request_duration_seconds", families[1].GetName())
	for _, metric := range families[1].GetMetric() {
		if metric.GetLabel()[0].GetValue() == getMethod[1:] {
			require.Equal(t, uint64(3), metric.GetHistogram().GetSampleCount())
			require.Positive(t, metric.GetHistogram().GetSampleSum())
		}
	}
}

// Labels have a bounded number of values, whatever the errors say.
func TestLabelsOfRequestsAreBounded(t *testing.T) {
	r := newRequests()
	require.Equal(t, otherReason, r.bounded(""))
	for i := range maxReasons {
		reason := fmt.Sprintf("REASON_%d", i)
		require.Equal(t, reason, r.bounded(reason))
	}
	require.Equal(t, otherReason, r.bounded("ONE_MORE"))
	require.Equal(t, "REASON_7", r.bounded("REASON_7"))

	r.end(t.Context(), &stats.End{}) // of no method that is registered
	require.Zero(t, testutil.CollectAndCount(r))

	require.Equal(t, "OK", codeName(nil))
	require.Equal(t, "PermissionDenied", codeName(status.Error(codes.PermissionDenied, "")))
	require.Equal(t, "Unknown", codeName(status.Error(4711, "")))
	require.Equal(t, "Unknown", codeName(errors.New("of no code")))
}
