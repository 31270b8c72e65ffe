package envoy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"meridian/internal/agent"
	"meridian/internal/resource"
	meridianxds "meridian/internal/xds"
)

// exports serves a method that takes entries in the way of OpenTelemetry.
func exports[T any](t *testing.T, listener net.Listener, method string, take func(*T)) {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: service, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: name, Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			entries := new(T)
			if err := decode(entries); err != nil {
				return nil, err
			}
			take(entries)
			return new(T), nil
		}}},
	}, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // it ends by Stop
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
}

// local listens at a port of this host.
func local(t *testing.T) net.Listener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return listener
}

// lines waits for the lines of a log, of which the last one has to satisfy holds.
func lines(t *testing.T, path string, holds func(string) bool) []string {
	t.Helper()
	for {
		text, err := os.ReadFile(path)
		if err == nil && strings.HasSuffix(string(text), "\n") {
			all := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
			if holds(all[len(all)-1]) {
				return all
			}
		}
		require.NoError(t, t.Context().Err())
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
}

func (z *zone) mesh(spec string) { z.apply(z.put(resource.KindMesh, "", "m", spec)) }

func TestRequestsAreLoggedToAFile(t *testing.T) {
	z, c := outbound(t, "http", start(t, "one"))
	path := filepath.Join(t.TempDir(), "log")
	z.mesh(fmt.Sprintf(`{"logging":{"defaultBackend":"f","backends":[{"name":"f","type":"file","conf":{"path":%q},
		"format":"%%REQ(:METHOD)%% %%REQ(:PATH)%% %%RESPONSE_CODE%% %%KUMA_MESH%% %%KUMA_SOURCE_SERVICE%% %%KUMA_DESTINATION_SERVICE%% %%KUMA_TRAFFIC_DIRECTION%% 100%% %%NO_SUCH%% %%REQ(%%"}]}}`, path))
	z.set(resource.KindTrafficLog, `{}`)
	c.until("/a", func(answer) bool { _, err := os.Stat(path); return err == nil })
	c.get("/last")
	all := lines(t, path, func(last string) bool { return strings.Contains(last, "/last") })
	require.Equal(t, "GET /last 200 m web backend OUTBOUND 100% %NO_SUCH% %REQ(%", all[len(all)-1])
	other := filepath.Join(t.TempDir(), "log")
	z.set(resource.KindMeshLogging, fmt.Sprintf(`{"backends":[{"type":"File","file":{"path":%q,"format":{"type":"Plain","plain":"%%REQ(:PATH)%% %%NO_SUCH%% %%ENVIRONMENT(HOME)%%"}}}]}`, other))
	c.until("/a", func(answer) bool { _, err := os.Stat(other); return err == nil })
	c.get("/last")
	all = lines(t, other, func(last string) bool { return strings.Contains(last, "/last") })
	require.Equal(t, "/last %NO_SUCH% %ENVIRONMENT(HOME)%", all[len(all)-1])
}

// A policy that turns logs off has no entry; one with a format as an object has objects.
func TestRequestsAreLoggedAsObjects(t *testing.T) {
	one := start(t, "one")
	z, c := outbound(t, "http", one)
	path := filepath.Join(t.TempDir(), "log")
	z.set(resource.KindMeshLogging, fmt.Sprintf(`{"backends":[{"type":"File","file":{"path":%q,"format":{"type":"Json","omitEmptyValues":true,"json":[
		{"key":"path","value":"%%REQ(:PATH)%%"},{"key":"code","value":"%%RESPONSE_CODE%%"},{"key":"none","value":"%%REQ(x-none)%%"},{"key":"cluster","value":"to %%UPSTREAM_HOST%%"},{"key":"odd","value":"%%NO_SUCH%%"}]}}}]}`, path))
	c.until("/a", func(answer) bool { _, err := os.Stat(path); return err == nil })
	c.get(`/last"`)
	all := lines(t, path, func(last string) bool { return strings.Contains(last, "/last") })
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(all[len(all)-1]), &got), all[len(all)-1])
	require.Equal(t, map[string]any{"path": "/last%22", "code": float64(http.StatusOK), "cluster": "to 127.0.0.1:" + strconv.Itoa(one.port), "odd": "%NO_SUCH%"}, got)
}

// A policy names a backend of the Mesh.
func TestRequestsAreLoggedToANamedBackend(t *testing.T) {
	z, c := outbound(t, "http", start(t, "one"))
	dir := t.TempDir()
	named, preferred := filepath.Join(dir, "named"), filepath.Join(dir, "preferred")
	z.mesh(fmt.Sprintf(`{"logging":{"defaultBackend":"p","backends":[{"name":"p","type":"file","conf":{"path":%q}},{"name":"n","type":"file","format":"%%REQ(:PATH)%%","conf":{"path":%q}}]}}`, preferred, named))
	z.set(resource.KindMeshLogging, `{"backends":[{"name":"none"},{"name":"n"}]}`)
	c.until("/a", func(answer) bool { _, err := os.Stat(named); return err == nil })
	c.get("/last")
	lines(t, named, func(last string) bool { return last == "/last" })
	require.NoFileExists(t, preferred)
}

// The log of a connection is written when it ends.
func TestConnectionsAreLogged(t *testing.T) {
	z, c := outbound(t, "tcp", start(t, "one"))
	path := filepath.Join(t.TempDir(), "log")
	z.set(resource.KindMeshLogging, fmt.Sprintf(`{"backends":[{"type":"File","file":{"path":%q}}]}`, path))
	for {
		c.get("/")
		c.http.CloseIdleConnections()
		if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
			require.Contains(t, string(text), " m OUTBOUND backend 127.0.0.1:")
			return
		}
		require.NoError(t, t.Context().Err())
	}
}

// Entries for a receiver over TCP go through the agent.
func TestRequestsAreLoggedOverTCP(t *testing.T) {
	z, c := outbound(t, "http", start(t, "one"))
	logs := agent.NewLogs(slog.New(slog.DiscardHandler))
	t.Cleanup(logs.Close)
	exports(t, z.agent, agent.ExportLogs, logs.Take)
	receiver := local(t)
	t.Cleanup(func() { _ = receiver.Close() })
	got := make(chan string, 1)
	go func() {
		defer close(got)
		conn, err := receiver.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		for scanner := bufio.NewScanner(conn); scanner.Scan(); {
			select {
			case got <- scanner.Text():
			default:
			}
		}
	}()
	z.mesh(fmt.Sprintf(`{"logging":{"backends":[{"name":"t","type":"tcp","conf":{"address":%q},"format":"%%REQ(:METHOD)%% of %%KUMA_SOURCE_SERVICE%%"}]}}`, receiver.Addr()))
	z.set(resource.KindTrafficLog, `{"backend":"t"}`)
	c.until("/", func(answer) bool { return len(got) > 0 })
	require.Equal(t, "GET of web", <-got)
	z.set(resource.KindMeshLogging, fmt.Sprintf(`{"backends":[{"type":"Tcp","tcp":{"address":%q,"format":{"type":"Json","omitEmptyValues":true,"json":[{"key":"m","value":"%%REQ(:METHOD)%%"},{"key":"n","value":"%%REQ(x-n)%%"},{"key":"odd","value":"%%NO_SUCH%%"}]}}}]}`, receiver.Addr()))
	arrives := func(want string) {
		c.until("/", func(answer) bool {
			select {
			case text := <-got:
				return text == want
			default:
				return false
			}
		})
	}
	arrives(`{"m":"GET","odd":"%NO_SUCH%"}`)
	z.set(resource.KindMeshLogging, fmt.Sprintf(`{"backends":[{"type":"Tcp","tcp":{"address":%q,"format":{"type":"Plain","plain":"%%REQ(:METHOD)%% %%NO_SUCH%%"}}}]}`, receiver.Addr()))
	arrives("GET %NO_SUCH%")
}

// relay has the agent take log entries and spans: what it is sent as it is, as a message
// keeps what it does not know.
func (z *zone) relay() {
	logs := agent.NewLogs(slog.New(slog.DiscardHandler))
	z.t.Cleanup(logs.Close)
	server := grpc.NewServer()
	for method, export := range map[string]func(context.Context, []byte) ([]byte, error){
		agent.ExportLogs:   func(ctx context.Context, data []byte) ([]byte, error) { return logs.Export(ctx, data) },
		agent.ExportTraces: logs.ExportTraces,
	} {
		service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
		server.RegisterService(&grpc.ServiceDesc{
			ServiceName: service, HandlerType: (*any)(nil),
			Methods: []grpc.MethodDesc{{MethodName: name, Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				var sent, answer emptypb.Empty
				if err := decode(&sent); err != nil {
					return nil, err
				}
				data, err := export(ctx, sent.ProtoReflect().GetUnknown())
				answer.ProtoReflect().SetUnknown(data)
				return &answer, err
			}}},
		}, nil)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(z.agent) // it ends by Stop
	}()
	z.t.Cleanup(func() {
		server.Stop()
		<-done
	})
}

// What one caller sends that is no UTF-8 loses no entry at a collector that demands it.
func TestACollectorTakesEntriesWithTextsThatAreNoUTF8(t *testing.T) {
	z, c := outbound(t, "http", start(t, "one"))
	z.relay()
	listener := local(t)
	const requests = 20
	got, logged := make(chan string, requests), make(chan struct{}, 1)
	exports(t, listener, agent.ExportLogs, func(data *logsv1.LogsData) {
		for _, r := range data.GetResourceLogs() {
			for _, s := range r.GetScopeLogs() {
				for _, record := range s.GetLogRecords() {
					if text := record.GetBody().GetStringValue(); !strings.HasPrefix(text, "-") {
						got <- text
						continue
					}
					select {
					case logged <- struct{}{}:
					default:
					}
				}
			}
		}
	})
	z.set(resource.KindMeshLogging, fmt.Sprintf(`{"backends":[{"type":"OpenTelemetry","openTelemetry":{"endpoint":%q,"body":"%%REQ(x-n)%% of %%REQ(user-agent)%%"}}]}`, listener.Addr()))
	c.until("/", func(answer) bool { return len(logged) > 0 })
	for i := range requests {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url+"/", nil)
		require.NoError(t, err)
		request.Header.Set("x-n", strconv.Itoa(i))
		request.Header.Set("User-Agent", map[bool]string{false: "well", true: "evil \xff\xfe"}[i%2 == 1])
		response, err := c.http.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
	}
	for left := requests; left > 0; {
		select {
		case text := <-got:
			number, who, _ := strings.Cut(text, " of ")
			n, err := strconv.Atoi(number)
			require.NoError(t, err)
			require.Equal(t, map[bool]string{false: "well", true: "evil \ufffd"}[n%2 == 1], who)
			left--
		case <-t.Context().Done():
			t.Fatalf("%d entries are missing", left)
		}
	}
}

func TestRequestsAreLoggedToACollector(t *testing.T) {
	z, c := outbound(t, "http", start(t, "one"))
	z.relay()
	listener := local(t)
	got := make(chan *logsv1.LogRecord, 1)
	exports(t, listener, agent.ExportLogs, func(data *logsv1.LogsData) {
		for _, r := range data.GetResourceLogs() {
			for _, s := range r.GetScopeLogs() {
				for _, record := range s.GetLogRecords() {
					select {
					case got <- record:
					default:
					}
				}
			}
		}
	})
	z.set(resource.KindMeshLogging, fmt.Sprintf(`{"backends":[{"type":"OpenTelemetry","openTelemetry":{"endpoint":%q,
		"attributes":[{"key":"code","value":"%%RESPONSE_CODE%%"},{"key":"odd","value":"%%NO_SUCH%%"}],"body":{"path":"%%REQ(:PATH)%%","odd":"%%NO_SUCH%%","n":1,"list":["%%REQ(:METHOD)%%",true]}}}]}`, listener.Addr()))
	c.until("/p", func(answer) bool { return len(got) > 0 })
	record := <-got
	require.Equal(t, "code", record.GetAttributes()[0].GetKey())
	require.Equal(t, "200", record.GetAttributes()[0].GetValue().GetStringValue())
	require.Equal(t, "%NO_SUCH%", record.GetAttributes()[1].GetValue().GetStringValue())
	body := map[string]string{}
	for _, m := range record.GetBody().GetKvlistValue().GetValues() {
		body[m.GetKey()] = m.GetValue().GetStringValue()
		for _, item := range m.GetValue().GetArrayValue().GetValues() {
			body[m.GetKey()] += item.GetStringValue() + " "
		}
	}
	require.Equal(t, map[string]string{"path": "/p", "odd": "%NO_SUCH%", "n": "1", "list": "GET true "}, body)
}

// inbound starts the Envoy of the server one, and returns a client of its inbound.
func (z *zone) inbound(s *server, protocol string) *client {
	port := free(z.t)
	z.apply(z.put(resource.KindDataplane, "m", "in-1", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"servicePort":%d,
		"tags":{"kuma.io/service":"in","kuma.io/protocol":%q}}]}}`, port, s.port, protocol)))
	z.launch("in-1")
	require.Empty(z.t, z.settle("in-1"))
	return newClient(z.t, port)
}

// Inbounds have the log of from; where it is not known who calls, its entries for all
// callers.
func TestInboundsAreLogged(t *testing.T) {
	for _, protocol := range []string{"http", "tcp"} {
		t.Run(protocol, func(t *testing.T) {
			z := newZone(t)
			c := z.inbound(start(t, "one"), protocol)
			dir := t.TempDir()
			z.apply(z.put(resource.KindMeshLogging, "m", "p", fmt.Sprintf(`{"targetRef":{"kind":"Service","name":"in"},"from":[
				{"targetRef":{"kind":"Service","name":"web"},"default":{"backends":[{"type":"File","file":{"path":"%[1]s/web"}}]}},
				{"targetRef":{"kind":"Mesh"},"default":{"backends":[{"type":"File","file":{"path":"%[1]s/all"}}]}}]}`, dir)))
			require.Empty(t, z.settle("in-1"))
			for {
				c.get("/")
				c.http.CloseIdleConnections()
				if text, err := os.ReadFile(filepath.Join(dir, "all")); err == nil && len(text) > 0 {
					require.Contains(t, string(text), " m INBOUND in ")
					break
				}
				require.NoError(t, t.Context().Err())
			}
			_, err := os.Stat(filepath.Join(dir, "web"))
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}

// A route that has an entry of its own has that one's receivers, and others do not.
func TestARouteHasItsOwnLog(t *testing.T) {
	z, c := outbound(t, "http", start(t, "one"))
	dir := t.TempDir()
	receiver := func(name string) string {
		return fmt.Sprintf(`{"backends":[{"type":"File","file":{"path":"%s/%s","format":{"type":"Plain","plain":"%%REQ(:PATH)%%"}}}]}`, dir, name)
	}
	z.apply(z.put(resource.KindHTTPRoute, "m", "r", `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[{"matches":[{"path":{"value":"/r"}}],"backendRefs":[{"name":"backend"}]},{"matches":[{"path":{"value":"/o"}}],"backendRefs":[{"name":"backend"}]}]}`),
		z.put(resource.KindHTTPRoute, "m", "s", `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[{"matches":[{"path":{"value":"/s"}}],"backendRefs":[{"name":"backend"}]}]}`),
		z.put(resource.KindMeshLogging, "m", "p", `{"targetRef":{"kind":"Service","name":"web"},"to":[{"targetRef":{"kind":"HTTPRoute","name":"s"},"default":`+receiver("s")+`},{"targetRef":{"kind":"Service","name":"backend"},"default":`+receiver("all")+`}]}`))
	require.Empty(t, z.settle("web-1"))
	c.until("/s", func(answer) bool { info, err := os.Stat(filepath.Join(dir, "s")); return err == nil && info.Size() > 0 })
	for _, path := range []string{"/r", "/s", "/none", "/s/last", "/r/last"} {
		c.get(path)
	}
	c.get("/s/last")
	for _, line := range lines(t, filepath.Join(dir, "s"), func(last string) bool { return last == "/s/last" }) {
		require.True(t, strings.HasPrefix(line, "/s"), line)
	}
	all := lines(t, filepath.Join(dir, "all"), func(last string) bool { return last == "/r/last" })
	require.Contains(t, all, "/r")
	require.Contains(t, all, "/none", "no route has it")
	require.NotContains(t, all, "/s")
}

// Every placeholder that is passed on to Envoy is one that it has.
func TestEnvoyKnowsThePlaceholders(t *testing.T) {
	z, _ := outbound(t, "http", start(t, "one"))
	z.set(resource.KindMeshLogging, fmt.Sprintf(`{"backends":[{"type":"File","file":{"path":"/dev/null","format":{"type":"Plain","plain":%q}}}]}`, everyPlaceholder))
	z.set(resource.KindMeshLogging, `{"backends":[{"type":"File","file":{"path":"/dev/null","format":{"type":"Plain","plain":"% %% %a% %REQ()% %REQ(a)x% %REQ(a?b?c)% %REQ(a b)% %PROTOCOL(x)% %PROTOCOL:3% %ENVIRONMENT(PATH)% %START_TIME:3% %REQ(a):3% %START_TIME(%f %E3S)% %QUERY_PARAM(a)% %GRPC_STATUS(NUMBER)% %FILE_CONTENT(/etc/passwd)%"}}}]}`)
}

const everyPlaceholder = "%START_TIME% %START_TIME_LOCAL% %EMIT_TIME% %REQUEST_HEADERS_BYTES% %RESPONSE_HEADERS_BYTES% %RESPONSE_TRAILERS_BYTES% %BYTES_RECEIVED% %BYTES_SENT% %DOWNSTREAM_WIRE_BYTES_RECEIVED% %DOWNSTREAM_WIRE_BYTES_SENT% %UPSTREAM_WIRE_BYTES_RECEIVED% %UPSTREAM_WIRE_BYTES_SENT% " +
	"%PROTOCOL% %UPSTREAM_PROTOCOL% %RESPONSE_CODE% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% %RESPONSE_FLAGS% %RESPONSE_FLAGS_LONG% %DURATION% %REQUEST_DURATION% %REQUEST_TX_DURATION% %RESPONSE_DURATION% %RESPONSE_TX_DURATION% %ROUNDTRIP_DURATION% %DOWNSTREAM_HANDSHAKE_DURATION% %UPSTREAM_CONNECTION_POOL_READY_DURATION% " +
	"%UPSTREAM_HOST% %UPSTREAM_HOST_NAME% %UPSTREAM_HOST_NAME_WITHOUT_PORT% %UPSTREAM_CLUSTER% %UPSTREAM_CLUSTER_RAW% %UPSTREAM_CONNECTION_ID% %UPSTREAM_REQUEST_ATTEMPT_COUNT% %UPSTREAM_TRANSPORT_FAILURE_REASON% %UPSTREAM_LOCAL_ADDRESS% %UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT% %UPSTREAM_LOCAL_PORT% %UPSTREAM_REMOTE_ADDRESS% %UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %UPSTREAM_REMOTE_PORT% " +
	"%UPSTREAM_TLS_VERSION% %UPSTREAM_TLS_CIPHER% %UPSTREAM_PEER_URI_SAN% %UPSTREAM_PEER_SUBJECT% %UPSTREAM_PEER_ISSUER% %DOWNSTREAM_REMOTE_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_REMOTE_PORT% %DOWNSTREAM_DIRECT_REMOTE_ADDRESS% %DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_DIRECT_REMOTE_PORT% %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_LOCAL_PORT% " +
	"%DOWNSTREAM_PEER_URI_SAN% %DOWNSTREAM_PEER_DNS_SAN% %DOWNSTREAM_PEER_SUBJECT% %DOWNSTREAM_PEER_ISSUER% %DOWNSTREAM_PEER_SERIAL% %DOWNSTREAM_PEER_FINGERPRINT_256% %DOWNSTREAM_LOCAL_URI_SAN% %DOWNSTREAM_LOCAL_SUBJECT% %DOWNSTREAM_TLS_VERSION% %DOWNSTREAM_TLS_CIPHER% %DOWNSTREAM_TRANSPORT_FAILURE_REASON% " +
	"%REQUESTED_SERVER_NAME% %ROUTE_NAME% %VIRTUAL_CLUSTER_NAME% %FILTER_CHAIN_NAME% %LISTENER_NAME% %CONNECTION_ID% %STREAM_ID% %TRACE_ID% %SPAN_ID% %UNIQUE_ID% %HOSTNAME% %GRPC_STATUS% %GRPC_STATUS_NUMBER% %LOCAL_REPLY_BODY% %ACCESS_LOG_TYPE%"

// An Envoy logs whom it denies, by what and at which end; and each caller in the log of
// the first entry that is about it.
func TestDenialsAndCallersAreLogged(t *testing.T) {
	for _, protocol := range []string{"http", "tcp"} {
		t.Run(protocol, func(t *testing.T) {
			dir := t.TempDir()
			receiver := func(name string) string {
				return fmt.Sprintf(`"default":{"backends":[{"type":"File","file":{"path":"%s/%s","format":{"type":"Plain","plain":"%%KUMA_SOURCE_SERVICE%%"}}}]}`, dir, name)
			}
			c, ca := joined(t, protocol, mutualTLS)
			c.zone.apply(c.zone.put(resource.KindMeshTrafficPermission, "m", "no-old", `{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"Service","name":"old"},"default":{"action":"DENY"}},{"targetRef":{"kind":"Mesh"},"default":{"action":"ALLOW"}}]}`),
				c.zone.put(resource.KindMeshLogging, "m", "p", `{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"Service","name":"web"},`+receiver("web")+`},{"targetRef":{"kind":"Mesh"},`+receiver("all")+`}]}`))
			require.Empty(t, c.zone.settle("backend-1"))
			web, other := member(t, ca, "web-1", resource.Tags{resource.ServiceTag: "web"}), member(t, ca, "other-1", resource.Tags{resource.ServiceTag: "other"})
			old := member(t, ca, "old-1", resource.Tags{resource.ServiceTag: "old"})
			for name, from := range map[string]caller{"web": web, "all": other} {
				from.until(t, c.at, func(answer, error) bool {
					info, err := os.Stat(filepath.Join(dir, name))
					return err == nil && info.Size() > 0
				})
			}
			old.until(t, c.at, func(_ answer, err error) bool {
				text, _ := os.ReadFile(c.envoy.stdout)
				return strings.Contains(string(text), "\n")
			})
			text, err := os.ReadFile(c.envoy.stdout)
			require.NoError(t, err)
			first, _, _ := strings.Cut(string(text), "\n")
			var line map[string]any
			require.NoError(t, json.Unmarshal([]byte(first), &line), first)
			require.Contains(t, line["caller"], ".m/dp/old-1/_/")
			require.Equal(t, "backend-1", line["dataplane"])
			require.Equal(t, "m", line["mesh"])
			require.NotZero(t, line["port"])
			require.Equal(t, meridianxds.DeniedDetails+"MeshTrafficPermission_no-old]", fmt.Sprint(line[map[string]string{"http": "details", "tcp": "termination"}[protocol]]), first)
			for _, entry := range lines(t, filepath.Join(dir, "web"), func(string) bool { return true }) {
				require.Contains(t, entry, "/dp/web-1/")
			}
			for _, entry := range lines(t, filepath.Join(dir, "all"), func(string) bool { return true }) {
				require.NotContains(t, entry, "/dp/web-1/")
			}
		})
	}
}
