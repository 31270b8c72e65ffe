package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metricsv1 "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"meridian/internal/xds"
)

// takes is a collector that answers as a function says, and its address.
func takes(t *testing.T, answer func(*metricsv1.MetricsData) (proto.Message, error)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(stream); method != ExportMetrics {
			return status.Error(codes.Unimplemented, method)
		}
		m := &metricsv1.MetricsData{}
		if err := stream.RecvMsg(m); err != nil {
			return err
		}
		reply, err := answer(m)
		if err != nil {
			return err
		}
		return stream.SendMsg(reply)
	}))
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return listener.Addr().String()
}

// A collector is sent every kind of metrics as what it is, with what dataplane they are of, in
// messages that it takes.
func TestMetricsAreSent(t *testing.T) {
	var text strings.Builder
	text.WriteString("# TYPE c_total counter\nc_total{a=\"b\"} 3\n# TYPE g gauge\ng{} 2.5\nu 7\n" +
		"# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"5\"} 5\nh_bucket{le=\"+Inf\"} 6\nh_sum{} 30\nh_count{} 6\n" +
		"# TYPE s summary\ns{quantile=\"0.5\"} 4\ns_sum 9\ns_count 3\n# TYPE many gauge\n")
	for i := range 20_000 {
		fmt.Fprintf(&text, "many{i=\"%060d\"} 1\n", i)
	}
	m := metricsOf(text.String())
	m.Of("default", "web-1", "web", slog.New(slog.DiscardHandler))
	defer m.Close()
	var got []*metricsv1.MetricsData
	address := takes(t, func(data *metricsv1.MetricsData) (proto.Message, error) {
		got = append(got, data)
		return &emptypb.Empty{}, nil
	})
	began := uint64(time.Now().UnixNano())
	require.NoError(t, m.send(t.Context(), &xds.MetricsSettings{Collector: address}))
	require.Greater(t, len(got), 1)
	by, many := map[string]*metricsv1.Metric{}, 0
	for _, data := range got {
		require.Less(t, proto.Size(data), 2<<20)
		of := map[string]string{}
		for _, a := range data.GetResourceMetrics()[0].GetResource().GetAttributes() {
			of[a.GetKey()] = a.GetValue().GetStringValue()
		}
		require.Equal(t, map[string]string{"service.name": "web", "service.namespace": "default", "service.instance.id": "web-1"}, of)
		for _, one := range data.GetResourceMetrics()[0].GetScopeMetrics()[0].GetMetrics() {
			by[one.GetName()] = one
			if one.GetName() == "many" {
				many += len(one.GetGauge().GetDataPoints())
			}
		}
	}
	require.Equal(t, 20_000, many)
	sum := by["c_total"].GetSum()
	require.True(t, sum.GetIsMonotonic())
	require.Equal(t, metricsv1.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE, sum.GetAggregationTemporality())
	require.InDelta(t, 3, sum.GetDataPoints()[0].GetAsDouble(), 0)
	require.Equal(t, "a", sum.GetDataPoints()[0].GetAttributes()[0].GetKey())
	require.GreaterOrEqual(t, sum.GetDataPoints()[0].GetTimeUnixNano(), began)
	require.InDelta(t, 2.5, by["g"].GetGauge().GetDataPoints()[0].GetAsDouble(), 0)
	require.InDelta(t, 7, by["u"].GetGauge().GetDataPoints()[0].GetAsDouble(), 0)
	h := by["h"].GetHistogram().GetDataPoints()[0]
	require.Equal(t, []float64{1, 5}, h.GetExplicitBounds())
	require.Equal(t, []uint64{2, 3, 1}, h.GetBucketCounts())
	require.Equal(t, uint64(6), h.GetCount())
	require.InDelta(t, 30, h.GetSum(), 0)
	s := by["s"].GetSummary().GetDataPoints()[0]
	require.Equal(t, uint64(3), s.GetCount())
	require.InDelta(t, 4, s.GetQuantileValues()[0].GetValue(), 0)
}

// locked is a buffer that several goroutines use.
type locked struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Who tells the agent to send metrics does not wait for the collector. One that fails is told
// of once, and again when it takes metrics; one that is slow is sent no second report.
func TestACollectorThatFails(t *testing.T) {
	var log locked
	m := metricsOf("# TYPE g gauge\ng 1\n")
	m.Of("default", "web-1", "web", slog.New(slog.NewTextHandler(&log, nil)))
	partial := protowire.AppendBytes(protowire.AppendTag(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 4), 2, protowire.BytesType), []byte("too old"))
	refuses := &emptypb.Empty{}
	refuses.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), partial))
	called, next := make(chan struct{}), make(chan proto.Message)
	address := takes(t, func(*metricsv1.MetricsData) (proto.Message, error) {
		called <- struct{}{}
		return <-next, nil
	})
	tell := func() {
		code, body := readMetrics(t, m, xds.MetricsSettings{Collector: address})
		require.Equal(t, 200, code)
		require.Empty(t, body)
	}
	idle := func() {
		require.Eventually(t, func() bool {
			m.collectors.mu.Lock()
			defer m.collectors.mu.Unlock()
			for _, to := range m.collectors.known {
				if to.busy {
					return false
				}
			}
			return true
		}, time.Minute, time.Millisecond)
	}
	for range 2 {
		tell()
		<-called
		tell() // it waits for the collector
		next <- refuses
		idle()
	}
	require.Equal(t, 1, strings.Count(log.String(), `a collector does not take the metrics`))
	require.Contains(t, log.String(), "it refuses 4 values: too old")
	tell()
	<-called
	next <- &emptypb.Empty{}
	idle()
	require.Contains(t, log.String(), "the collector takes the metrics again")
	tell()
	<-called
	close(next)
	m.Close()
	tell()
	require.Empty(t, called, "nothing is sent after the end")
}

// Two backends of one address with other settings are both sent their reports, also while
// the other one waits.
func TestTwoReportsToOneCollector(t *testing.T) {
	m := metricsOf("# TYPE g gauge\ng 1\n")
	m.Of("default", "web-1", "web", slog.New(slog.DiscardHandler))
	defer m.Close()
	called, next := make(chan struct{}), make(chan struct{})
	address := takes(t, func(*metricsv1.MetricsData) (proto.Message, error) {
		called <- struct{}{}
		<-next
		return &emptypb.Empty{}, nil
	})
	for _, settings := range []xds.MetricsSettings{{Collector: address}, {Collector: address, Unused: true}} {
		code, _ := readMetrics(t, m, settings)
		require.Equal(t, 200, code)
		<-called
	}
	close(next)
}
