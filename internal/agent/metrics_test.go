package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/xds"
)

// tripper answers requests as a function says.
type tripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// metricsOf are the metrics of an Envoy that says a text.
func metricsOf(text string) *Metrics {
	return NewMetrics(&http.Client{Transport: tripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text))}, nil
	})})
}

// readMetrics reads metrics as Envoy does.
func readMetrics(t *testing.T, m *Metrics, s xds.MetricsSettings) (int, string) {
	t.Helper()
	header, err := json.Marshal(s)
	require.NoError(t, err)
	request := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	request.Header.Set(xds.MetricsHeader, string(header))
	w := httptest.NewRecorder()
	m.ServeHTTP(w, request)
	return w.Code, w.Body.String()
}

// saying is an application that answers as a handler does.
func saying(t *testing.T, handler http.HandlerFunc) resource.MetricsApp {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	host, text, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	port, err := strconv.ParseUint(text, 10, 16)
	require.NoError(t, err)
	return resource.MetricsApp{Address: &host, Port: uint32(port)}
}

func texts(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

func TestProfilesChooseMetrics(t *testing.T) {
	const all = "# TYPE envoy_cluster_upstream_rq counter\nenvoy_cluster_upstream_rq{a=\"1\"} 2\n\n# TYPE envoy_x gauge\nenvoy_x{} 1\n# TYPE envoy_xy gauge\nenvoy_xy{} 1\n"
	filter := func(typ, match string) []resource.MetricsFilter {
		return []resource.MetricsFilter{{Type: typ, Match: match}}
	}
	profile := func(names ...string) []resource.MetricsProfile {
		list := []resource.MetricsProfile{}
		for _, n := range names {
			list = append(list, resource.MetricsProfile{Name: n})
		}
		return list
	}
	for name, c := range map[string]struct {
		of   *resource.MetricsProfiles
		want string
	}{
		"none are written": {nil, "rq x xy"},
		"no set":           {&resource.MetricsProfiles{}, "rq x xy"},
		"an empty list":    {&resource.MetricsProfiles{AppendProfiles: profile()}, ""},
		"None":             {&resource.MetricsProfiles{AppendProfiles: profile("None")}, ""},
		"Basic":            {&resource.MetricsProfiles{AppendProfiles: profile("Basic")}, "rq"},
		"Basic and All":    {&resource.MetricsProfiles{AppendProfiles: profile("Basic", "All")}, "rq x xy"},
		"exclude Exact":    {&resource.MetricsProfiles{Exclude: filter("Exact", "envoy_x")}, "rq xy"},
		"exclude Prefix":   {&resource.MetricsProfiles{Exclude: filter("Prefix", "envoy_x")}, "rq"},
		"exclude Contains": {&resource.MetricsProfiles{Exclude: filter("Contains", "upstream")}, "x xy"},
		"exclude Regex":    {&resource.MetricsProfiles{Exclude: filter("Regex", "_x.$")}, "rq x"},
		"include":          {&resource.MetricsProfiles{AppendProfiles: profile("Basic"), Exclude: filter("Prefix", "envoy"), Include: filter("Exact", "envoy_x")}, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := readMetrics(t, metricsOf(all), xds.MetricsSettings{Sidecar: &resource.MetricsSidecar{Profiles: c.of}})
			require.Equal(t, http.StatusOK, status)
			var got []string
			for line := range strings.Lines(body) {
				if !strings.HasPrefix(line, "#") {
					name, _, _ := strings.Cut(line, "{")
					got = append(got, name[strings.LastIndexByte(name, '_')+1:])
				}
			}
			require.Equal(t, c.want, strings.Join(got, " "))
		})
	}
}

// Applications that say nothing, too much, something else or no end are reported, and
// others are read.
func TestApplicationsThatFail(t *testing.T) {
	forever := make(chan struct{})
	well := saying(t, texts("# TYPE m histogram\nm_bucket{le=\"+Inf\"} 1\nm_sum 1\nm_count 1\n"))
	elsewhere := saying(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+addressOf(&well)+"/metrics", http.StatusFound)
	})
	much := saying(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "a 1\n") // the reader ends it
		for range maxApplied >> 16 {
			_, _ = io.WriteString(w, "# "+strings.Repeat("y", 1<<16)+"\n")
		}
	})
	waits := saying(t, func(http.ResponseWriter, *http.Request) { <-forever })
	t.Cleanup(func() { close(forever) }) // before its server is closed
	m := metricsOf("# TYPE envoy_x gauge\nenvoy_x{} 1\n")
	for name, app := range map[string]resource.MetricsApp{
		"no metrics":   saying(t, texts("<html>")),
		"half a line":  saying(t, texts("a 1\nb")),
		"elsewhere":    elsewhere,
		"an error":     saying(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }),
		"too much":     much,
		"waits":        waits,
		"no such host": {Address: new(string), Port: 1},
	} {
		t.Run(name, func(t *testing.T) {
			if m.within = time.Minute; name == "waits" {
				m.within = time.Millisecond // it answers at no time
			}
			status, body := readMetrics(t, m, xds.MetricsSettings{Applications: []resource.MetricsApp{app}})
			require.Equal(t, http.StatusOK, status)
			require.Contains(t, body, "\nmeridian_application_up{application=\""+addressOf(&app)+"\"} 0\n")
			require.Contains(t, body, "envoy_x{} 1\n# the metrics of ")
			require.NotContains(t, body, "a 1")
			m.within = time.Minute
			status, body = readMetrics(t, m, xds.MetricsSettings{Applications: []resource.MetricsApp{well}})
			require.Equal(t, http.StatusOK, status)
			require.Contains(t, body, "\nm_bucket{le=\"+Inf\"} 1\n")
		})
	}
}

// Of metrics that several applications have, each has one description; the first of two
// that are the same stays.
func TestMetricsAreMerged(t *testing.T) {
	name := "é"
	one := saying(t, texts("# HELP m Help.\n# TYPE m counter\nm{b=\"2\",a=\"1\"} 1\n# TYPE n gauge\nn 1\n# TYPE meridian_application_up gauge\nmeridian_application_up 9\n"))
	two := saying(t, texts("# TYPE m counter\nm{a=\"1\",b=\"2\"} 2\nm{a=\"2\"} 3\n# TYPE n counter\nn 2\n# TYPE envoy_x gauge\nenvoy_x 3\n"))
	two.Name = nil
	named := two
	named.Name = &name
	status, body := readMetrics(t, metricsOf("# TYPE envoy_x gauge\n"), xds.MetricsSettings{Applications: []resource.MetricsApp{one, two, named}})
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, fmt.Sprintf(`# TYPE envoy_x gauge
# HELP m Help.
# TYPE m counter
m{a="1",b="2"} 1
m{a="2"} 3
m{a="1",application="é",b="2"} 2
m{a="2",application="é"} 3
# HELP meridian_application_up Whether an application has said its metrics.
# TYPE meridian_application_up gauge
meridian_application_up{application=%q} 1
meridian_application_up{application=%q} 1
meridian_application_up{application="é"} 1
# TYPE n gauge
n 1
`, addressOf(&one), addressOf(&two)), body)
}

func TestMetricsAreBounded(t *testing.T) {
	line := "x{a=\"" + strings.Repeat("y", 1<<16) + "\"} 1\n"
	status, body := readMetrics(t, metricsOf("# TYPE x gauge\n"+strings.Repeat(line, maxExposed/len(line)+1)), xds.MetricsSettings{})
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "leave some out with sidecar.profiles")
	status, body = readMetrics(t, metricsOf("# TYPE x gauge\n"+strings.Repeat(line, maxExposed/len(line)+1)), xds.MetricsSettings{
		Sidecar: &resource.MetricsSidecar{Profiles: &resource.MetricsProfiles{Exclude: []resource.MetricsFilter{{Type: "Exact", Match: "x"}}}},
	})
	require.Equal(t, http.StatusOK, status)
	require.Empty(t, body)

	// As many as may are under way, and one more is answered at once.
	waiting, answer := make(chan struct{}), make(chan struct{})
	m := NewMetrics(&http.Client{Transport: tripper(func(*http.Request) (*http.Response, error) {
		waiting <- struct{}{}
		<-answer
		return nil, errors.New("gone")
	})})
	ended := make(chan int)
	for range maxReadings {
		go func() {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody)
			r.Header.Set(xds.MetricsHeader, "{}")
			m.ServeHTTP(w, r)
			ended <- w.Code
		}()
		<-waiting
	}
	status, body = readMetrics(t, m, xds.MetricsSettings{})
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "try again")
	close(answer)
	for range maxReadings {
		require.Equal(t, http.StatusServiceUnavailable, <-ended)
	}
}
