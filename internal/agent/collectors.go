package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	metricsv1 "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcev1 "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"meridian/internal/rpcerr"
	"meridian/internal/version"
	"meridian/internal/xds"
)

// ExportMetrics is the method by which collectors take metrics. Its request is encoded as
// MetricsData is.
const ExportMetrics = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"

const (
	// maxCollectors bounds the collectors that are known at a time.
	maxCollectors = 16
	// sending bounds a report, from its turn to be read until it is taken.
	sending = 20 * time.Second
	// maxReport bounds a message to a collector, which takes 4 MiB if nothing else is set,
	// and maxPoints the values of one metric that are added to it at once.
	maxReport, maxPoints = 1 << 20, 100
)

// maxBound is above every bound of a bucket but that of the last one, which has none.
var maxBound = math.Inf(1)

// collectors are those that an agent sends metrics to.
type collectors struct {
	log *slog.Logger
	// dataplane is what reports are of.
	dataplane *resourcev1.Resource
	ctx       context.Context
	cancel    context.CancelFunc
	running   sync.WaitGroup

	mu    sync.Mutex
	ended bool
	known map[string]*collector // by settings: an address may be that of several
}

// collector is one that metrics are sent to, by some settings.
type collector struct {
	busy bool
	// failed is why it did not take the last report; empty if it did.
	failed string
}

func newCollectors() *collectors {
	ctx, cancel := context.WithCancel(context.Background())
	return &collectors{log: slog.New(slog.DiscardHandler), ctx: ctx, cancel: cancel, known: map[string]*collector{}}
}

// Of says of what dataplane metrics that are sent are, and where to log why they cannot be
// sent.
func (m *Metrics) Of(mesh, name, service string, log *slog.Logger) {
	m.collectors.log = log
	m.collectors.dataplane = &resourcev1.Resource{Attributes: []*commonv1.KeyValue{
		attributeOf("service.name", service), attributeOf("service.namespace", mesh), attributeOf("service.instance.id", name),
	}}
}

// Close ends what is being sent.
func (m *Metrics) Close() {
	c := m.collectors
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
}

// report sends metrics to a collector, and does not wait for that. One that has not taken the
// report before by the same settings is sent none.
func (m *Metrics) report(settings xds.MetricsSettings) {
	c := m.collectors
	key, err := json.Marshal(settings)
	if err != nil {
		return // what was decoded can be encoded
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	to := c.known[string(key)]
	if to == nil && len(c.known) == maxCollectors {
		maps.DeleteFunc(c.known, func(_ string, other *collector) bool { return !other.busy })
	}
	if c.ended || to != nil && to.busy || to == nil && len(c.known) == maxCollectors {
		return
	}
	if to == nil {
		to = &collector{}
		c.known[string(key)] = to
	}
	to.busy = true
	c.running.Go(func() {
		err := m.send(c.ctx, &settings)
		c.mu.Lock()
		defer c.mu.Unlock()
		to.busy = false
		c.took(to, settings.Collector, err)
	})
}

// took notes whether a report was taken, and logs where that is new.
func (c *collectors) took(to *collector, address string, err error) {
	was := to.failed
	if to.failed = ""; err != nil {
		to.failed = rpcerr.FromStatus(err).Error()
	}
	switch {
	case to.failed == was || c.ended:
	case err != nil:
		c.log.Warn("a collector does not take the metrics", "collector", address, "error", to.failed)
	default:
		c.log.Info("the collector takes the metrics again", "collector", address)
	}
}

// send reads metrics and sends them to a collector.
func (m *Metrics) send(ctx context.Context, settings *xds.MetricsSettings) error {
	ctx, cancel := context.WithTimeout(ctx, sending)
	defer cancel()
	select {
	case m.turns <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	var text bytes.Buffer
	err := m.write(ctx, &text, settings)
	at := time.Now()
	<-m.turns
	if err != nil {
		return err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	all, err := parser.TextToMetricFamilies(&text)
	if err != nil {
		return fmt.Errorf("the metrics of Envoy cannot be understood: %w", err)
	}
	conn, err := grpc.NewClient("dns:///"+settings.Collector, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithUserAgent("meridian-proxy/"+version.String()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return reports(all, at, func(metrics []*metricsv1.Metric) error {
		var answer emptypb.Empty
		err := conn.Invoke(ctx, ExportMetrics, &metricsv1.MetricsData{ResourceMetrics: []*metricsv1.ResourceMetrics{{
			Resource: m.collectors.dataplane,
			ScopeMetrics: []*metricsv1.ScopeMetrics{{
				Scope: &commonv1.InstrumentationScope{Name: "meridian", Version: version.String()}, Metrics: metrics,
			}},
		}}}, &answer)
		if err != nil {
			return err
		}
		return refusal(answer.ProtoReflect().GetUnknown())
	})
}

// refusal is what an answer of a collector says that it did not take: the first field of an
// ExportMetricsServiceResponse has how many values, and why.
func refusal(answer []byte) error {
	var partial, why []byte
	var values uint64
	read := func(data []byte, take func(number protowire.Number, record []byte)) {
		for len(data) > 0 {
			number, _, n := protowire.ConsumeField(data)
			if n < 0 {
				return // the rest says nothing
			}
			_, _, tag := protowire.ConsumeTag(data)
			take(number, data[tag:n])
			data = data[n:]
		}
	}
	read(answer, func(number protowire.Number, record []byte) {
		if number == 1 {
			partial, _ = protowire.ConsumeBytes(record)
		}
	})
	read(partial, func(number protowire.Number, record []byte) {
		switch number {
		case 1:
			values, _ = protowire.ConsumeVarint(record)
		case 2:
			why, _ = protowire.ConsumeBytes(record)
		}
	})
	if values == 0 {
		return nil
	}
	return fmt.Errorf("it refuses %d values: %s", values, clean(string(why)))
}

// reports divides metrics into messages that a collector takes.
func reports(all families, at time.Time, send func([]*metricsv1.Metric) error) error {
	var next []*metricsv1.Metric
	size := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for some := range slices.Chunk(all[name].GetMetric(), maxPoints) {
			m := metricOf(all[name], some, uint64(at.UnixNano())) //nolint:gosec // it is after 1970
			n := proto.Size(m)
			if size > 0 && size+n > maxReport {
				if err := send(next); err != nil {
					return err
				}
				next, size = nil, 0
			}
			next, size = append(next, m), size+n
		}
	}
	if len(next) == 0 {
		return errors.New("there are no metrics that could be sent")
	}
	return send(next)
}

// metricOf makes values of one name what collectors take. Prometheus counts since a start
// that it does not tell.
func metricOf(f *dto.MetricFamily, values []*dto.Metric, at uint64) *metricsv1.Metric {
	const cumulative = metricsv1.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE
	m := &metricsv1.Metric{Name: f.GetName(), Description: f.GetHelp()}
	numbers := func(value func(*dto.Metric) float64) (points []*metricsv1.NumberDataPoint) {
		for _, v := range values {
			points = append(points, &metricsv1.NumberDataPoint{Attributes: labelsOf(v), TimeUnixNano: at, Value: &metricsv1.NumberDataPoint_AsDouble{AsDouble: value(v)}})
		}
		return points
	}
	switch f.GetType() {
	case dto.MetricType_COUNTER:
		m.Data = &metricsv1.Metric_Sum{Sum: &metricsv1.Sum{
			AggregationTemporality: cumulative, IsMonotonic: true,
			DataPoints: numbers(func(v *dto.Metric) float64 { return v.GetCounter().GetValue() }),
		}}
	case dto.MetricType_HISTOGRAM, dto.MetricType_GAUGE_HISTOGRAM:
		h := &metricsv1.Histogram{AggregationTemporality: cumulative}
		for _, v := range values {
			h.DataPoints = append(h.DataPoints, histogramOf(v, at))
		}
		m.Data = &metricsv1.Metric_Histogram{Histogram: h}
	case dto.MetricType_SUMMARY:
		s := &metricsv1.Summary{}
		for _, v := range values {
			p := &metricsv1.SummaryDataPoint{Attributes: labelsOf(v), TimeUnixNano: at, Count: v.GetSummary().GetSampleCount(), Sum: v.GetSummary().GetSampleSum()}
			for _, q := range v.GetSummary().GetQuantile() {
				p.QuantileValues = append(p.QuantileValues, &metricsv1.SummaryDataPoint_ValueAtQuantile{Quantile: q.GetQuantile(), Value: q.GetValue()})
			}
			s.DataPoints = append(s.DataPoints, p)
		}
		m.Data = &metricsv1.Metric_Summary{Summary: s}
	case dto.MetricType_GAUGE:
		m.Data = &metricsv1.Metric_Gauge{Gauge: &metricsv1.Gauge{DataPoints: numbers(func(v *dto.Metric) float64 { return v.GetGauge().GetValue() })}}
	case dto.MetricType_UNTYPED:
		m.Data = &metricsv1.Metric_Gauge{Gauge: &metricsv1.Gauge{DataPoints: numbers(func(v *dto.Metric) float64 { return v.GetUntyped().GetValue() })}}
	}
	return m
}

// histogramOf makes buckets, of which each of Prometheus has those below it too, what they
// are by themselves.
func histogramOf(v *dto.Metric, at uint64) *metricsv1.HistogramDataPoint {
	h := v.GetHistogram()
	sum := h.GetSampleSum()
	p := &metricsv1.HistogramDataPoint{Attributes: labelsOf(v), TimeUnixNano: at, Count: h.GetSampleCount(), Sum: &sum}
	below := uint64(0)
	for _, b := range h.GetBucket() {
		if bound := b.GetUpperBound(); bound < maxBound {
			p.ExplicitBounds = append(p.ExplicitBounds, bound)
			count := max(b.GetCumulativeCount(), below)
			p.BucketCounts = append(p.BucketCounts, count-below)
			below = count
		}
	}
	p.Count = max(p.GetCount(), below)
	p.BucketCounts = append(p.BucketCounts, p.GetCount()-below)
	return p
}

func labelsOf(v *dto.Metric) []*commonv1.KeyValue {
	var all []*commonv1.KeyValue
	for _, l := range v.GetLabel() {
		all = append(all, attributeOf(l.GetName(), l.GetValue()))
	}
	return all
}

func attributeOf(key, value string) *commonv1.KeyValue {
	return &commonv1.KeyValue{Key: key, Value: &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: value}}}
}
