package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
)

// admin is a supervisor whose Envoy has its administration interface in a directory.
func admin(t *testing.T) *supervisor {
	t.Helper()
	dir, err := os.MkdirTemp("", "me") // t.TempDir is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	s := &supervisor{agent: &agent{}, dir: dir}
	s.admin = s.adminClient()
	return s
}

// answers has a handler be the administration interface of a supervisor's Envoy.
func answers(t *testing.T, s *supervisor, h http.Handler) {
	t.Helper()
	listener, err := net.Listen("unix", s.path("admin"))
	require.NoError(t, err)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: h}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		<-served
	})
}

// What a real Envoy says that it runs is read, by version and, of endpoints, by address.
func TestWhatAnEnvoyRuns(t *testing.T) {
	program := os.Getenv("ENVOY_BIN")
	if program == "" {
		t.Skip("no Envoy: `make envoy` installs one, and ENVOY_BIN names it")
	}
	s := admin(t)
	write := func(name, content string) string {
		path := filepath.Join(s.dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	from := func(path string) string {
		return fmt.Sprintf(`{"path_config_source":{"path":%q},"resource_api_version":"V3"}`, path)
	}
	const typ = "type.googleapis.com/envoy."
	eds := write("eds", `{"version_info":"e1","resources":[{"@type":"`+typ+`config.endpoint.v3.ClusterLoadAssignment","cluster_name":"e","endpoints":[{"lb_endpoints":[
		{"endpoint":{"address":{"socket_address":{"address":"127.0.0.2","port_value":81}}}},{"endpoint":{"address":{"socket_address":{"address":"::1","port_value":80}}}}]}]}]}`)
	rds := write("rds", `{"version_info":"r1","resources":[{"@type":"`+typ+`config.route.v3.RouteConfiguration","name":"r"}]}`)
	cds := write("cds", `{"version_info":"c1","resources":[{"@type":"`+typ+`config.cluster.v3.Cluster","name":"c","type":"EDS","eds_cluster_config":{"service_name":"e","eds_config":`+from(eds)+`}},
		{"@type":"`+typ+`config.cluster.v3.Cluster","name":"in","type":"STATIC","load_assignment":{"cluster_name":"in","endpoints":[{"lb_endpoints":[
		{"endpoint":{"address":{"socket_address":{"address":"127.0.0.3","port_value":82}}}}]}]}}]}`)
	lds := write("lds", `{"version_info":"l1","resources":[{"@type":"`+typ+`config.listener.v3.Listener","name":"l","address":{"socket_address":{"address":"127.0.0.1","port_value":0}},"filter_chains":[{"filters":[
		{"name":"http","typed_config":{"@type":"`+typ+`extensions.filters.network.http_connection_manager.v3.HttpConnectionManager","stat_prefix":"x","rds":{"route_config_name":"r","config_source":`+from(rds)+`},
		"http_filters":[{"name":"router","typed_config":{"@type":"`+typ+`extensions.filters.http.router.v3.Router"}}]}}]}]}]}`)
	config := write("envoy.json", `{"node":{"id":"a","cluster":"b"},"admin":{"address":{"pipe":{"path":"`+s.path("admin")+`"}}},"dynamic_resources":{"cds_config":`+from(cds)+`,"lds_config":`+from(lds)+`}}`)
	cmd := exec.Command(program, "-c", config, "--use-dynamic-base-id", "--disable-hot-restart", "--log-level", "error")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	want := []*meridianv1.LiveResource{
		{Type: "CDS", Name: "c", Version: "c1"},
		{Type: "CDS", Name: "in", Version: "c1"},
		{Type: "EDS", Name: "e", Endpoints: []string{"127.0.0.2:81", "[::1]:80"}, EndpointCount: 2},
		{Type: "EDS", Name: "in", Endpoints: []string{"127.0.0.3:82"}, EndpointCount: 1}, // though they are in the cluster
		{Type: "LDS", Name: "l", Version: "l1"},
		{Type: "RDS", Name: "r", Version: "r1"},
	}
	var got *meridianv1.DataplaneLive
	require.Eventually(t, func() bool {
		got = s.live(t.Context())
		slices.SortFunc(got.GetResources(), func(a, b *meridianv1.LiveResource) int {
			return strings.Compare(a.GetType()+a.GetName(), b.GetType()+b.GetName())
		})
		return slices.EqualFunc(want, got.GetResources(), func(a, b *meridianv1.LiveResource) bool { return proto.Equal(a, b) })
	}, time.Minute, 10*time.Millisecond, "%v", &got)
}

// What the zone is sent is bounded, as is what is read of an Envoy; one that does not
// answer is said.
func TestWhatAnEnvoyRunsIsBounded(t *testing.T) {
	s := admin(t)
	require.Contains(t, s.live(t.Context()).GetError(), "Envoy does not say what it runs: ")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, "Envoy does not say what it runs: it does not answer in time", s.live(over).GetError())
	entry := fmt.Sprintf(`{"version_info":"v","cluster":{"name":%q}}`, strings.Repeat("x", 2*maxLiveText))
	clusters := `{"configs":[` + strings.Repeat(entry+",", 600) + entry + `]}`
	answers(t, s, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("resource") {
		case "dynamic_active_clusters":
			_, _ = w.Write([]byte(clusters))
		default:
			_, _ = w.Write([]byte(`{}`))
		}
	}))
	got := s.live(t.Context())
	require.Empty(t, got.GetError())
	require.Less(t, proto.Size(got), maxLive+(64<<10))
	require.EqualValues(t, 601, len(got.GetResources())+int(got.GetLeft()))
	require.Positive(t, got.GetLeft())
	require.Len(t, got.GetResources()[0].GetName(), maxLiveText)
	parts := split(got)
	require.Greater(t, len(parts), 1)
	sent := 0
	for i, part := range parts {
		require.Less(t, proto.Size(part), 64<<10)
		require.Equal(t, i < len(parts)-1, part.GetMore())
		sent += len(part.GetResources())
	}
	require.Len(t, got.GetResources(), sent)
	require.Equal(t, got.GetLeft(), parts[len(parts)-1].GetLeft())
}

// An Envoy does not find the part of its configuration that it has nothing of, such as routes
// where no listener speaks HTTP. What else it refuses is said.
func TestAnEnvoyWithoutRoutes(t *testing.T) {
	s := admin(t)
	routes := http.StatusNotFound
	answers(t, s, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("resource") {
		case "dynamic_route_configs":
			http.Error(w, "it does not say", routes)
		case "dynamic_active_clusters":
			_, _ = w.Write([]byte(`{"configs":[{"version_info":"v","cluster":{"name":"c"}}]}`))
		default:
			_, _ = w.Write([]byte(`{}`))
		}
	}))
	got := s.live(t.Context())
	require.Empty(t, got.GetError())
	require.Len(t, got.GetResources(), 1)
	routes = http.StatusServiceUnavailable
	require.Contains(t, s.live(t.Context()).GetError(), "503 Service Unavailable")
}
