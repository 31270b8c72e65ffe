package agent

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/proto"

	"meridian/internal/resource"
	"meridian/internal/xds"
)

const (
	// maxReadings bounds the requests for metrics that are answered at the same time.
	maxReadings = 2
	// maxExposed bounds the metrics of Envoy in an answer, and maxApplied those that are
	// read of all applications together, in bytes.
	maxExposed, maxApplied = 16 << 20, 8 << 20
	// maxMetricLine bounds a line of Envoy's metrics, in bytes.
	maxMetricLine = 1 << 20
	// reading bounds the time in which Envoy and the applications say their metrics.
	reading = 5 * time.Second
	// writing bounds the time for an answer as a whole.
	writing = 30 * time.Second
	// applicationLabel is the label with the name of an application.
	applicationLabel = "application"
	// applicationUp is a metric that says whether an application has said its metrics: 1,
	// or 0 if it has not.
	applicationUp = "meridian_application_up"
)

// basic begins the names of the metrics of the profile Basic: requests, connections, errors
// and endpoints by service, and how Envoy itself is.
var basic = []string{
	"envoy_cluster_upstream_rq", "envoy_cluster_upstream_cx_active", "envoy_cluster_upstream_cx_total", "envoy_cluster_upstream_cx_connect_fail", "envoy_cluster_upstream_cx_connect_timeout",
	"envoy_cluster_upstream_cx_rx_bytes_total", "envoy_cluster_upstream_cx_tx_bytes_total", "envoy_cluster_membership_", "envoy_cluster_health_check_", "envoy_cluster_outlier_detection_ejections_",
	"envoy_http_downstream_rq", "envoy_http_downstream_cx_active", "envoy_http_downstream_cx_total", "envoy_http_rbac_", "envoy_rbac_", "envoy_tcp_downstream_cx_",
	"envoy_listener_ssl_connection_error", "envoy_listener_ssl_fail_verify_", "envoy_server_live", "envoy_server_uptime", "envoy_server_memory_", "envoy_server_days_until_first_cert_expiring",
}

// Metrics answers who reads the metrics of a dataplane: with those of its Envoy, and of the
// applications beside it, as Prometheus' text.
type Metrics struct {
	// envoy reaches the administration interface of Envoy, whatever the host of a URL.
	envoy, applications *http.Client
	turns               chan struct{}
	within              time.Duration
	// collectors are those that metrics are sent to.
	collectors *collectors
}

// NewMetrics returns the metrics of an Envoy, with a client that reaches its administration
// interface whatever the host of a URL.
func NewMetrics(envoy *http.Client) *Metrics {
	return &Metrics{
		envoy: envoy, turns: make(chan struct{}, maxReadings), within: reading, collectors: newCollectors(),
		applications: &http.Client{
			// What is asked is what is written, not what an application or the environment says.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport:     &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 16 << 10},
		},
	}
}

// ServeHTTP implements http.Handler. What to answer is in xds.MetricsHeader: who is told to
// send metrics to a collector answers at once, with nothing.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var settings xds.MetricsSettings
	if err := json.Unmarshal([]byte(r.Header.Get(xds.MetricsHeader)), &settings); err != nil {
		http.Error(w, xds.MetricsHeader+" does not say which metrics: it is for Envoy to write", http.StatusBadRequest)
		return
	}
	if settings.Collector != "" {
		m.report(settings)
		return
	}
	select {
	case m.turns <- struct{}{}:
		defer func() { <-m.turns }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the metrics are being read by others: try again", http.StatusServiceUnavailable)
		return
	}
	var out bytes.Buffer
	if err := m.write(r.Context(), &out, &settings); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(out.Bytes()) // who asked may have gone
}

// write writes metrics of Envoy and of applications.
func (m *Metrics) write(ctx context.Context, out *bytes.Buffer, settings *xds.MetricsSettings) error {
	ctx, cancel := context.WithTimeout(ctx, m.within)
	defer cancel()
	taken, err := m.ofEnvoy(ctx, out, settings)
	if err != nil {
		return fmt.Errorf("the metrics of Envoy cannot be read: %w", err)
	}
	if err := m.ofApplications(ctx, out, settings.Applications, taken); err != nil {
		return fmt.Errorf("the metrics of the applications cannot be written: %w", err)
	}
	return nil
}

// ofEnvoy writes the metrics of Envoy that are chosen, and returns the names of those that
// it has.
func (m *Metrics) ofEnvoy(ctx context.Context, out *bytes.Buffer, settings *xds.MetricsSettings) (map[string]bool, error) {
	choice := settings.Sidecar
	chosen, err := chooser(choice)
	if err != nil {
		return nil, err
	}
	query := url.Values{}
	if !settings.Unused && (choice == nil || choice.IncludeUnused == nil || !*choice.IncludeUnused) {
		query.Set("usedonly", "")
	}
	if settings.Filter != "" {
		query.Set("filter", settings.Filter)
	}
	body, err := get(ctx, m.envoy, "http://envoy/stats/prometheus?"+query.Encode())
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxMetricLine)
	names, keep := map[string]bool{}, false
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "# TYPE "); ok {
			name, _, _ := strings.Cut(rest, " ")
			names[name], keep = true, chosen(name)
		}
		if !keep || len(lines.Bytes()) == 0 {
			continue
		}
		if out.Len()+len(lines.Bytes()) >= maxExposed {
			return nil, fmt.Errorf("they have more than %d bytes: leave some out with sidecar.profiles", maxExposed)
		}
		out.Write(lines.Bytes())
		out.WriteByte('\n')
	}
	return names, lines.Err()
}

// get asks for a page.
func get(ctx context.Context, client *http.Client, url string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "text/plain;version=0.0.4")
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, fmt.Errorf("it answers %s", response.Status)
	}
	return response.Body, nil
}

// chooser tells by name which metrics of Envoy are exposed.
func chooser(choice *resource.MetricsSidecar) (func(name string) bool, error) {
	if choice == nil || choice.Profiles == nil {
		return func(string) bool { return true }, nil
	}
	p := choice.Profiles
	include, err := filters(p.Include)
	if err != nil {
		return nil, err
	}
	exclude, err := filters(p.Exclude)
	if err != nil {
		return nil, err
	}
	has := func(name string) bool {
		return slices.ContainsFunc(p.AppendProfiles, func(p resource.MetricsProfile) bool { return p.Name == name })
	}
	all, some := p.AppendProfiles == nil || has("All"), has("Basic")
	return func(name string) bool {
		in := all || some && slices.ContainsFunc(basic, func(begin string) bool { return strings.HasPrefix(name, begin) })
		return in && !exclude(name) || include(name)
	}, nil
}

// filters tells by name whether one of some filters selects a metric.
func filters(list []resource.MetricsFilter) (func(name string) bool, error) {
	var all []func(string) bool
	for _, f := range list {
		switch f.Type {
		case "Regex":
			regex, err := regexp.Compile(f.Match)
			if err != nil {
				return nil, err
			}
			all = append(all, regex.MatchString)
		case "Prefix":
			all = append(all, func(name string) bool { return strings.HasPrefix(name, f.Match) })
		case "Contains":
			all = append(all, func(name string) bool { return strings.Contains(name, f.Match) })
		default:
			all = append(all, func(name string) bool { return name == f.Match })
		}
	}
	return func(name string) bool {
		return slices.ContainsFunc(all, func(selects func(string) bool) bool { return selects(name) })
	}, nil
}

// families are metrics by name.
type families = map[string]*dto.MetricFamily

// ofApplications writes the metrics of applications. Those with a name that is taken are
// left out.
func (m *Metrics) ofApplications(ctx context.Context, out *bytes.Buffer, list []resource.MetricsApp, taken map[string]bool) error {
	if len(list) == 0 {
		return nil
	}
	answers, failures := make([]families, len(list)), make([]error, len(list))
	var left atomic.Int64
	left.Store(maxApplied)
	var asked sync.WaitGroup
	for i := range list {
		asked.Go(func() { answers[i], failures[i] = m.ofApplication(ctx, &list[i], &left) })
	}
	asked.Wait()
	up := &dto.MetricFamily{Name: proto.String(applicationUp), Help: proto.String("Whether an application has said its metrics."), Type: dto.MetricType_GAUGE.Enum()}
	together := families{applicationUp: up}
	seen := map[string]bool{}
	for i := range list {
		says := 1.0
		if err := failures[i]; err != nil {
			says = 0
			fmt.Fprintf(out, "# the metrics of %q cannot be read: %q\n", addressOf(&list[i]), err.Error())
		}
		name := addressOf(&list[i])
		if list[i].Name != nil {
			name = *list[i].Name
		}
		merge(together, seen, families{applicationUp: {Type: up.Type, Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: &says}}}}}, &name)
		for taking := range taken {
			delete(answers[i], taking)
		}
		delete(answers[i], applicationUp)
		merge(together, seen, answers[i], list[i].Name)
	}
	for _, name := range slices.Sorted(maps.Keys(together)) {
		if _, err := expfmt.MetricFamilyToText(out, together[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func addressOf(a *resource.MetricsApp) string {
	host := ""
	if a.Address != nil {
		host = *a.Address
	}
	return net.JoinHostPort(host, strconv.FormatUint(uint64(a.Port), 10))
}

// ofApplication reads the metrics of an application.
func (m *Metrics) ofApplication(ctx context.Context, a *resource.MetricsApp, left *atomic.Int64) (families, error) {
	at := url.URL{Scheme: "http", Host: addressOf(a), Path: "/metrics"}
	if a.Path != nil {
		at.Path = cmp.Or(*a.Path, at.Path)
	}
	body, err := get(ctx, m.applications, at.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	all, err := parser.TextToMetricFamilies(&counted{body, left})
	if err != nil {
		return nil, err // it has those before the error
	}
	return all, nil
}

// counted is a reader of bytes that several readers have together.
type counted struct {
	io.Reader
	left *atomic.Int64
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if c.left.Add(-int64(n)) < 0 {
		return 0, errTooManyMetrics
	}
	return n, err
}

var errTooManyMetrics = errors.New("the applications' metrics have more than " + strconv.Itoa(maxApplied) + " bytes together")

// merge adds metrics to others, with the name of their application as a label. Of two with
// the same labels the first stays, and so does the type of the first of a name.
func merge(into families, seen map[string]bool, from families, application *string) {
	for name, f := range from {
		one := into[name]
		if one == nil {
			one = &dto.MetricFamily{Name: proto.String(name), Help: f.Help, Type: f.Type}
			into[name] = one
		}
		if one.GetType() != f.GetType() {
			continue
		}
		for _, metric := range f.GetMetric() {
			if application != nil {
				metric.Label = append(slices.DeleteFunc(metric.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == applicationLabel }),
					&dto.LabelPair{Name: proto.String(applicationLabel), Value: application})
			}
			slices.SortFunc(metric.GetLabel(), func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
			key := strconv.AppendQuote(nil, name)
			for _, l := range metric.GetLabel() {
				key = strconv.AppendQuote(strconv.AppendQuote(key, l.GetName()), l.GetValue())
			}
			if !seen[string(key)] {
				seen[string(key)] = true
				one.Metric = append(one.Metric, metric)
			}
		}
	}
}
