package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"meridian/internal/atomicfile"
	"meridian/internal/resource"
	"meridian/internal/xds"
)

const (
	// firstRestart and maxRestart are the pauses before an Envoy that ended is started
	// again; one that ran for longer than steady is started after the first.
	firstRestart, maxRestart, steady = 200 * time.Millisecond, 10 * time.Second, time.Minute
	// asking is how often an Envoy is asked whether it is ready, or idle.
	asking = 100 * time.Millisecond
	// askingRefused is how often one that refuses an inbound is.
	askingRefused = time.Second
	// settling is for how long an Envoy has to be idle before it is stopped: callers that
	// have not heard yet that it drains may send more.
	settling = time.Second
	// stopping is how long Envoy may take to end after a SIGTERM.
	stopping = 5 * time.Second
	// answering bounds an answer of Envoy's administration interface, and of --version.
	answering = 5 * time.Second
	// flushLogs is after what time Envoy writes log entries to files.
	flushLogs = time.Second
	// socketFile is the agent's socket in Envoy's directory, unless it has another place.
	socketFile = "xds.sock"
	// maxStats bounds what is read of an answer, in bytes.
	maxStats = 1 << 20
)

// The oldest Envoy that is run: earlier ones resume TLS sessions without a look at the
// certificate authorities that are trusted now.
const oldestMajor, oldestMinor = 1, 40

// envoyVersion finds the version in what an Envoy says of itself, between two slashes.
var envoyVersion = regexp.MustCompile(`version: [0-9a-f]+/([0-9]+)\.([0-9]+)\.([0-9]+)`)

// checkEnvoy returns an error unless a program is an Envoy that can be run.
func checkEnvoy(ctx context.Context, program string) error {
	ctx, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.Env = childEnvironment()
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("--envoy %s: ask for its version: %w", program, err)
	}
	found := envoyVersion.FindSubmatch(out)
	if found == nil {
		return fmt.Errorf("--envoy %s: it does not say the version of an Envoy", program)
	}
	major, _ := strconv.Atoi(string(found[1]))
	minor, _ := strconv.Atoi(string(found[2]))
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return fmt.Errorf("--envoy %s: it is Envoy %s.%s.%s; use %d.%d or later", program, found[1], found[2], found[3], oldestMajor, oldestMinor)
	}
	return nil
}

// childEnvironment is that of this process without what is for meridian alone, such as a
// token.
func childEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MERIDIAN_") })
}

// supervisor keeps an Envoy running.
type supervisor struct {
	agent *agent
	// dir is for this user only and has the configuration and the socket admin of the
	// administration interface.
	dir   string
	admin *http.Client
	// certificates are what it reads in the directory.
	certificates *certificates
	// program is the absolute path of the Envoy.
	program string
	// lock is held for as long as the directory is in use.
	lock *os.File
	// metrics answers who reads metrics; served is closed once it has ended.
	metrics *http.Server
	served  chan struct{}
	// sent are the metrics that it answers with, or sends.
	sent *Metrics
}

// newSupervisor returns the supervisor of the configuration's Envoy, which has to be new
// enough.
func newSupervisor(ctx context.Context, a *agent) (*supervisor, error) {
	if err := checkEnvoy(ctx, a.cfg.Envoy); err != nil {
		return nil, err
	}
	program, err := filepath.Abs(a.cfg.Envoy) // it runs in another directory
	if err != nil {
		return nil, fmt.Errorf("--envoy: %w", err)
	}
	if err := removeAbandoned(os.TempDir()); err != nil {
		a.cfg.Log.Warn("what an agent that was killed has left is not removed", "error", err)
	}
	dir, err := os.MkdirTemp("", envoyDir)
	if err != nil {
		return nil, fmt.Errorf("--envoy: %w", err)
	}
	s := &supervisor{agent: a, dir: dir, program: program}
	if s.lock, err = lockDir(dir); err != nil {
		s.remove()
		return nil, fmt.Errorf("--envoy: %w", err)
	}
	if a.cfg.Socket == "" {
		a.cfg.Socket = s.path(socketFile)
	}
	s.admin = s.adminClient()
	content, err := s.configuration()
	if err == nil {
		err = atomicfile.Write(s.path("envoy.json"), content, 0o600)
	}
	if err == nil {
		s.certificates, err = openSecrets(dir)
	}
	if err == nil {
		err = s.serveMetrics()
	}
	if err != nil {
		s.remove()
		return nil, fmt.Errorf("--envoy: %w", err)
	}
	return s, nil
}

// serveMetrics answers Envoy's requests for metrics until remove.
func (s *supervisor) serveMetrics() error {
	listener, err := net.Listen("unix", s.path(xds.EnvoyMetrics))
	if err != nil {
		return err
	}
	s.sent = NewMetrics(s.admin)
	s.sent.Of(s.agent.cfg.Mesh, s.agent.cfg.Name, cmp.Or(serviceOf(s.agent.cfg.Spec), s.agent.cfg.Name), s.agent.cfg.Log)
	s.metrics = &http.Server{Handler: s.sent, ReadHeaderTimeout: answering, WriteTimeout: writing, ErrorLog: slog.NewLogLogger(s.agent.cfg.Log.Handler(), slog.LevelDebug)}
	s.served = make(chan struct{})
	go func() {
		defer close(s.served)
		_ = s.metrics.Serve(listener) // it ends by Close
	}()
	return nil
}

// adminClient is a client of Envoy's administration interface.
func (s *supervisor) adminClient() *http.Client {
	return &http.Client{Timeout: answering, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", s.path("admin"))
		},
	}}
}

// remove removes its directory.
func (s *supervisor) remove() {
	if s.metrics != nil {
		_ = s.metrics.Close()
		<-s.served
		s.sent.Close()
	}
	_ = os.RemoveAll(s.dir)
	if s.lock != nil {
		_ = s.lock.Close()
	}
}

func (s *supervisor) path(name string) string { return filepath.Join(s.dir, name) }

// object is a part of a configuration.
type object = map[string]any

// configuration is what Envoy starts with: everything else comes over xDS through the
// agent's socket. Until it came, Envoy is not ready.
func (s *supervisor) configuration() ([]byte, error) {
	cfg := &s.agent.cfg
	ads := object{"ads": object{}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
	// Large expressions of policies are not refused.
	const programSize = 1 << 20
	return json.MarshalIndent(object{
		"node": object{
			"id": cfg.Mesh + "/" + cfg.Name, "cluster": cmp.Or(serviceOf(cfg.Spec), cfg.Mesh),
			"metadata": object{xds.InstanceField: cfg.Instance},
		},
		"admin": object{"address": object{"pipe": object{"path": s.path("admin"), "mode": 0o600}}},
		"dynamic_resources": object{
			"ads_config": object{
				"api_type": "DELTA_GRPC", "transport_api_version": "V3",
				"grpc_services": []object{{"envoy_grpc": object{
					"cluster_name": "meridian_zone",
					// Without this, the pauses of an Envoy whose zone was away are up to 30 s.
					"retry_policy": object{"retry_back_off": object{"base_interval": seconds(firstPause), "max_interval": seconds(maxPause)}},
				}}},
			},
			"cds_config": ads, "lds_config": ads,
		},
		"static_resources": object{"clusters": []object{s.itself("meridian_zone"), s.itself(xds.AgentCluster)}},
		"layered_runtime": object{"layers": []object{{"name": "static", "static_layer": object{
			"re2.max_program_size.error_level": programSize, "re2.max_program_size.warn_level": programSize,
		}}}},
	}, "", "  ")
}

// seconds is a duration as configurations have it.
func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s" }

// serviceOf is the first service of a dataplane, by which it is known in traces; empty
// for none.
func serviceOf(spec []byte) string {
	var d struct {
		Networking struct {
			Inbound []struct{ Tags map[string]string }
		}
	}
	if json.Unmarshal(spec, &d) != nil || len(d.Networking.Inbound) == 0 {
		return ""
	}
	return d.Networking.Inbound[0].Tags[resource.ServiceTag]
}

// itself is a cluster of the agent's socket.
func (s *supervisor) itself(name string) object {
	return object{
		"name": name, "type": "STATIC", "connect_timeout": "5s",
		"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
			"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
			"explicit_http_config": object{"http2_protocol_options": object{"connection_keepalive": object{"interval": "30s", "timeout": "10s"}}},
		}},
		"load_assignment": object{"cluster_name": name, "endpoints": []object{{"lb_endpoints": []object{{
			"endpoint": object{"address": object{"pipe": object{"path": s.agent.cfg.Socket}}},
		}}}}},
	}
}

// run keeps Envoy running until ctx ends, and then drains and stops it. Others are told
// to send requests for as long as it is ready.
func (s *supervisor) run(ctx context.Context) {
	// The kernel ends the child with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cfg := &s.agent.cfg
	var p pauses
	for ctx.Err() == nil {
		began := time.Now()
		err := s.once(ctx)
		s.agent.available.set(false)
		if ctx.Err() != nil {
			return
		}
		pause := p.next(time.Since(began))
		cfg.Log.Error("Envoy has ended: starting it again", "error", err, "after", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// pauses are those before an Envoy is started again.
type pauses struct{ last time.Duration }

// next returns the pause after an Envoy that ran for some time.
func (p *pauses) next(ran time.Duration) time.Duration {
	if p.last == 0 || ran > steady {
		p.last = firstRestart
	} else {
		p.last = min(p.last*2, maxRestart)
	}
	return p.last
}

// once runs Envoy until it ends, or until ctx ends and it has drained.
func (s *supervisor) once(ctx context.Context) error {
	cfg := &s.agent.cfg
	cmd := exec.Command(s.program, "-c", s.path("envoy.json"), "--disable-hot-restart", "--log-level", "warning", "--file-flush-interval-msec", strconv.Itoa(int(flushLogs/time.Millisecond)),
		"--drain-time-s", strconv.Itoa(int(max(cfg.Drain, time.Second)/time.Second)), "--drain-strategy", "immediate")
	cmd.Stdout, cmd.Stderr, cmd.Env, cmd.Dir = cfg.Output, cfg.Output, childEnvironment(), s.dir
	cmd.SysProcAttr = childAttributes()
	if err := cmd.Start(); err != nil {
		return err
	}
	cfg.Log.Info("Envoy started", "pid", cmd.Process.Pid)
	ended := make(chan error, 1)
	watching, cancel := context.WithCancel(context.Background())
	var watched sync.WaitGroup
	watched.Go(func() { s.watch(watching) })
	watched.Go(func() { s.count(watching) })
	defer func() {
		cancel()
		watched.Wait()
	}()
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return errors.Join(err, errors.New("it was not asked to"))
	case <-ctx.Done():
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.drain(watching)
	}()
	select {
	case err := <-ended:
		return err
	case <-drained:
	case <-s.agent.drainTimeOver():
		cfg.Log.Warn("the drain time is over: what is still open is cut", "after", cfg.Drain)
	case <-cfg.Abort:
		cfg.Log.Warn("a second signal ends the drain time: what is still open is cut")
	}
	_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	limit, abort := time.NewTimer(stopping), cfg.Abort
	defer limit.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-abort:
			abort = nil
			limit.Reset(hurrying)
		case <-limit.C:
			_ = cmd.Process.Kill()
			return <-ended
		}
	}
}

// watch says that others may send requests once Envoy is ready, and takes them: one that
// refuses a listener of an inbound calls itself ready, and has none there.
func (s *supervisor) watch(ctx context.Context) {
	pause, was := asking, ""
	for {
		if body, err := s.ask(ctx, http.MethodGet, "/ready"); err == nil && strings.TrimSpace(string(body)) == "LIVE" {
			refused, err := s.refused(ctx)
			if err == nil && refused == "" {
				s.agent.cfg.Log.Info("Envoy is ready")
				s.agent.available.set(true)
				return
			}
			pause = askingRefused
			if err == nil && refused != was {
				s.agent.cfg.Log.Error("Envoy refuses an inbound: others send this dataplane no requests until it takes it; where the cause was on this host, restart the agent once it is gone", "refused", refused)
				was = refused
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// refused returns which inbounds Envoy has no listener for as it refuses them, with its
// reasons; empty for none. A change that it refuses leaves the listener as it was.
func (s *supervisor) refused(ctx context.Context) (string, error) {
	listeners, err := s.dump(ctx, listenersQuery)
	var all []string
	for _, l := range listeners {
		if strings.HasPrefix(l.Name, xds.EnvoyInbound) && l.ActiveState.VersionInfo == "" && l.ErrorState.Details != "" {
			all = append(all, l.Name+": "+clean(strings.TrimSpace(l.ErrorState.Details)))
		}
	}
	return strings.Join(all, "; "), err
}

// ask asks Envoy's administration interface.
func (s *supervisor) ask(ctx context.Context, method, path string) ([]byte, error) {
	return ask(ctx, s.admin, method, path)
}

func ask(ctx context.Context, admin *http.Client, method, path string) ([]byte, error) {
	return askFor(ctx, admin, method, path, maxStats)
}

// askFor is ask for an answer of which so many bytes are read.
func askFor(ctx context.Context, admin *http.Client, method, path string, limit int64) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://admin"+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := admin.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, limit))
	switch {
	case err != nil:
	case response.StatusCode == http.StatusNotFound:
		err = notFound{path}
	case response.StatusCode != http.StatusOK:
		err = fmt.Errorf("%s: %s", path, response.Status)
	}
	return body, err
}

// notFound says that the administration interface has nothing of what it was asked for.
type notFound struct{ path string }

func (e notFound) Error() string { return e.path + ": 404 Not Found" }

// drain has Envoy ask callers to go elsewhere, and returns when nothing has been under
// way for some time.
func (s *supervisor) drain(ctx context.Context) {
	if _, err := s.ask(ctx, http.MethodPost, "/drain_listeners?graceful&inboundonly&skip_exit"); err != nil {
		s.agent.cfg.Log.Warn("Envoy cannot be drained", "error", err)
	}
	for idle := time.Now(); time.Since(idle) < settling; {
		if s.active(ctx) > 0 {
			idle = time.Now()
		}
		select {
		case <-time.After(asking):
		case <-ctx.Done():
			return
		}
	}
}

// underWay are the statistics of what is under way: Envoy has none of the open connections
// of its proxy of connections, but of those of each listener.
const underWay = "/stats?usedonly&filter=%5E%28http%5C.%28in%7Cout%29_.*%5C.downstream_rq_active" +
	"%7Ctcp%5C.%28in%7Cout%29_.*%5C.downstream_cx_total%7Clistener%5C..*%5C.downstream_cx_active%29%24"

// active is how many requests, and connections without requests, are under way; -1 when
// Envoy does not say.
func (s *supervisor) active(ctx context.Context) int {
	body, err := s.ask(ctx, http.MethodGet, underWay)
	if err != nil {
		return -1
	}
	return countUnderWay(body)
}

// portOf is the port in the name of an inbound, an outbound or a listener: its last part,
// or the one before that, where it ends with what tells it apart.
func portOf(name string) string {
	parts := strings.Split(name, "_")
	for _, part := range slices.Backward(parts[max(0, len(parts)-2):]) {
		if _, err := strconv.ParseUint(part, 10, 16); err == nil {
			return part
		}
	}
	return ""
}

// countUnderWay adds the requests, and the connections of the listeners that have no
// requests: those by whose port there are statistics of connections.
func countUnderWay(body []byte) (sum int) {
	open, without := map[string]int{}, map[string]bool{}
	for line := range bytes.Lines(body) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), ": ")
		n, err := strconv.Atoi(value)
		if err != nil {
			continue
		}
		switch prefix, rest, _ := strings.Cut(name, "."); prefix {
		case "http":
			sum += n
		case "tcp":
			without[portOf(strings.TrimSuffix(rest, ".downstream_cx_total"))] = true
		case "listener":
			if port := portOf(strings.TrimSuffix(rest, ".downstream_cx_active")); port != "" && !strings.Contains(rest, ".worker_") {
				open[port] += n
			}
		}
	}
	for port := range without {
		sum += open[port]
	}
	return sum
}

// start starts Envoy as soon as the dataplane has a certificate, or needs none. It is
// drained when ctx ends, or stopped is called. stopped waits until it has ended.
func (s *supervisor) start(ctx context.Context) (stopped func()) {
	running, cancel := context.WithCancel(ctx)
	identified, done := make(chan struct{}), make(chan struct{})
	s.agent.identified = sync.OnceFunc(func() { close(identified) })
	go func() {
		defer close(done)
		select {
		case <-identified:
			s.run(running)
		case <-running.Done():
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
