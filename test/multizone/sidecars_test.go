//go:build multizone

package multizone

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/test/traffic"
)

// application answers HTTP/1, HTTP/2 and gRPC calls, and counts them.
type application struct {
	port     int
	requests atomic.Int64
	server   *http.Server
}

func newApplication(t *testing.T) *application {
	t.Helper()
	listener, err := net.Listen("tcp", anyPort)
	require.NoError(t, err)
	a := &application{port: listener.Addr().(*net.TCPAddr).Port}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	a.server = &http.Server{Protocols: protocols, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.requests.Add(1)
		if r.Header.Get("Content-Type") == "application/grpc" { // an empty message, and that all is well
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		}
		_, _ = w.Write(make([]byte, 5)) // the caller may be gone
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = a.server.Serve(listener) // it ends by Close
	}()
	t.Cleanup(func() {
		_ = a.server.Close()
		<-served
	})
	return a
}

// spoken are the protocols of the services backend-PROTOCOL.
var spoken = []string{"http", "http2", "grpc"}

// sidecars are the Envoys of a zone, each with its agent.
type sidecars struct {
	t      *testing.T
	envoy  string
	global *process
	zone   *process
	// addresses are those of the zone that agents are given, unless empty.
	addresses []string
}

func newSidecars(t *testing.T, global, zone *process) *sidecars {
	t.Helper()
	program := os.Getenv("ENVOY_BIN")
	if program == "" {
		t.Skip("no Envoy: `make envoy` installs one, and ENVOY_BIN names it")
	}
	return &sidecars{t: t, envoy: program, global: global, zone: zone}
}

// sidecar is an Envoy with its agent.
type sidecar struct {
	agent          *proxyAgent
	name, services string
	// inbound is where it listens.
	inbound string
}

// token makes a token for a dataplane with some services.
func (s *sidecars) token(name, services string) string {
	s.t.Helper()
	args := []string{"generate", "dataplane-token", "--mesh", "default", "--name", name, "--valid-for", "1h"}
	for service := range strings.SplitSeq(services, " ") {
		args = append(args, "--tag", "kuma.io/service="+service)
	}
	return strings.TrimSpace(s.global.must(args...))
}

// start starts an agent with its Envoy for a dataplane with what its networking has beside
// an address, of which one inbound is at a port.
func (s *sidecars) start(name, services string, port int, networking string) *sidecar {
	s.t.Helper()
	agent := startAgentWith(s.t, s.zone, fmt.Sprintf("{type: Dataplane, mesh: default, name: %s, networking: {address: 127.0.0.1, %s}}", name, networking), s.token(name, services),
		func(string) []string {
			flags := []string{"--envoy", s.envoy, "--drain-time", "30s"}
			if len(s.addresses) > 0 {
				flags = append(flags, "--zone-address", strings.Join(s.addresses, ","))
			}
			return flags
		})
	return &sidecar{agent, name, services, net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
}

// presents returns the certificate that a sidecar presents; nil for none.
func (c *sidecar) presents() *x509.Certificate {
	conn, err := tls.Dial("tcp", c.inbound, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close() }() // it is refused without a certificate
	return conn.ConnectionState().PeerCertificates[0]
}

// renew gives sidecars other tokens, on which they get other certificates.
func (s *sidecars) renew(all ...*sidecar) {
	s.t.Helper()
	var before []*x509.Certificate
	for _, c := range all {
		before = append(before, c.presents())
		require.NotNil(s.t, before[len(before)-1])
		file := filepath.Join(filepath.Dir(c.agent.bootstrap), "token")
		require.NoError(s.t, os.WriteFile(file+".new", []byte(s.token(c.name, c.services)), 0o600))
		require.NoError(s.t, os.Rename(file+".new", file))
	}
	for i, c := range all {
		s.zone.await("another certificate of "+c.name, func() bool {
			now := c.presents()
			return now != nil && !now.Equal(before[i])
		})
	}
}

// replica is a dataplane of every backend-PROTOCOL, with its application.
type replica struct {
	*application
	*sidecar
}

func (s *sidecars) replica(name string) *replica {
	s.t.Helper()
	r := &replica{application: newApplication(s.t)}
	var inbounds, services []string
	port := 0
	for _, protocol := range spoken {
		port = listenerPort(s.t)
		inbounds = append(inbounds, fmt.Sprintf("{port: %d, servicePort: %d, tags: {kuma.io/service: backend-%s, kuma.io/protocol: %s}}", port, r.port, protocol, protocol))
		services = append(services, "backend-"+protocol)
	}
	r.sidecar = s.start(name, strings.Join(services, " "), port, "inbound: ["+strings.Join(inbounds, ", ")+"]")
	return r
}

// caller starts web-1 and returns where it reaches each backend-PROTOCOL.
func (s *sidecars) caller() (web *sidecar, urls map[string]string) {
	s.t.Helper()
	urls = map[string]string{}
	outbounds, inbound := "", listenerPort(s.t)
	for _, protocol := range spoken {
		port := listenerPort(s.t)
		urls[protocol] = "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		outbounds += fmt.Sprintf("{port: %d, tags: {kuma.io/service: backend-%s}},", port, protocol)
	}
	return s.start("web-1", "web", inbound, fmt.Sprintf("inbound: [{port: %d, servicePort: %d, tags: {kuma.io/service: web}}], outbound: [%s]", inbound, listenerPort(s.t), outbounds)), urls
}

// takes waits until a replica is sent requests, under a load.
func (r *replica) takes(l *traffic.Load) {
	for before := r.requests.Load(); r.requests.Load() < before+20; {
		l.Pass(1)
	}
}

// leaves has a replica end in order, under a load that others take over, and its
// application after it.
func (r *replica) leaves(l *traffic.Load) {
	r.agent.t.Helper()
	require.NoError(r.agent.t, r.agent.process.Process.Signal(syscall.SIGTERM))
	require.Zero(r.agent.t, r.agent.exit())
	l.Pass(20)
	at := r.requests.Load()
	require.NoError(r.agent.t, r.server.Close())
	l.Pass(20)
	require.Equal(r.agent.t, at, r.requests.Load())
}

// No request between sidecars with mutual TLS fails, over HTTP/1, HTTP/2 and gRPC, while
// certificates and the mesh's authority are replaced, while the zone is killed and comes
// back, while a sidecar is stopped and another instance takes over, while it is started
// again, and while instances are added and taken away.
func TestNoRequestBetweenSidecarsFails(t *testing.T) {
	global := newGlobal(t).start().ready()
	east := newZone(t, global, "east").start().ready()
	east.pin()
	s := newSidecars(t, global, east)
	mtls := func(backend string) {
		t.Helper()
		global.mustWith(fmt.Sprintf(`{type: Mesh, name: default, mtls: {enabledBackend: %s, backends: [{name: %s, type: builtin}]}}`, backend, backend), "apply", "-f", "-")
	}
	mtls("ca-1")
	global.mustWith(`{type: MeshTrafficPermission, mesh: default, name: everyone, spec: {targetRef: {kind: Mesh}, from: [{targetRef: {kind: Mesh}, default: {action: ALLOW}}]}}`, "apply", "-f", "-")
	one, two := s.replica("backend-1"), s.replica("backend-2")
	web, urls := s.caller()
	requests := []func() error{
		traffic.Post(urls["http"], false, false), traffic.Post(urls["http"], false, true), traffic.Post(urls["http"], true, false),
		traffic.Post(urls["http2"], true, false), traffic.Post(urls["grpc"], true, false), traffic.Call(t, urls["grpc"]),
	}
	l := traffic.New(t)
	for _, request := range requests {
		east.await("the sidecars to be there", func() bool { return request() == nil })
		l.Worker(request)
	}
	one.takes(l)
	two.takes(l)
	phase := func(name string, change func()) {
		t.Helper()
		before, begun := l.Sent(), time.Now()
		change()
		l.Pass(20)
		t.Logf("%s: %d requests, %s", name, l.Sent()-before, time.Since(begun).Round(100*time.Millisecond))
		require.Greater(t, l.Sent(), before)
	}
	online := func(names ...string) {
		t.Helper()
		for _, name := range names {
			east.await(name+" to be back", func() bool {
				r := east.command("proxy", "status", name)
				return r.code == 0 && strings.Contains(r.stdout, "SYNCED") && strings.Contains(east.command("inspect", "dataplane", name).stdout, "proxy online")
			})
		}
	}
	all := []*sidecar{one.sidecar, two.sidecar, web}
	phase("certificates are replaced", func() { s.renew(all...) })
	// While the zone knows of everyone what he trusts: it does not wait for certificates to
	// expire.
	phase("the authority is replaced", func() {
		issuer := web.presents().AuthorityKeyId
		mtls("ca-2")
		east.await("the new authority to sign", func() bool { return strings.Contains(east.log.String(), "signing=ca-2") })
		s.renew(all...)
		for _, c := range all {
			require.NotEqual(t, issuer, c.presents().AuthorityKeyId)
		}
	})
	phase("the zone is killed", func() {
		east.kill()
		l.Pass(50)
		east.start().ready()
		online("web-1", "backend-1", "backend-2")
	})
	phase("a sidecar is stopped and starts again", func() {
		one.leaves(l)
		one = s.replica("backend-1")
		one.takes(l)
	})
	phase("instances are added and taken away", func() {
		three := s.replica("backend-3")
		three.takes(l)
		two.leaves(l)
		one.leaves(l)
		one = three
	})
}

// A zone whose disk is full continues to serve its proxies with what they have, says why it
// takes nothing new, and continues by itself when there is space.
func TestFullDiskOfAZoneWithSidecars(t *testing.T) {
	global := newGlobal(t).start().ready()
	east := newZone(t, global, "east")
	disk := east.small("24m")
	east.start().ready()
	global.awaitState("east", "in-sync")
	s := newSidecars(t, global, east)
	one, two := s.replica("backend-1"), s.replica("backend-2")
	_, urls := s.caller()
	l := traffic.New(t)
	for _, request := range []func() error{
		traffic.Post(urls["http"], false, false), traffic.Post(urls["http2"], true, false), traffic.Call(t, urls["grpc"]),
	} {
		east.await("the sidecars to be there", func() bool { return request() == nil })
		l.Worker(request)
	}
	one.takes(l)
	two.takes(l)

	free := fill(t, disk, 0)
	var more strings.Builder
	for i := range 200 {
		more.WriteString(mesh(fmt.Sprint("m", i)) + "---\n")
	}
	global.mustWith(more.String(), "apply", "-f", "-")
	east.await("it to say why nothing arrives", func() bool {
		said := east.readyz(t)
		return strings.Contains(said, "[!] disk: ") && strings.Contains(said, "[!] replica: what is here is served, and no changes arrive") && strings.Contains(said, "no space left")
	})
	r := east.commandWith(strings.Replace(webDataplane, "web-1", "web-9", 1), "apply", "-f", "-", "--timeout", "1s")
	require.Equal(t, 5, r.code, r.stderr)
	require.Contains(t, r.stderr, "free some space there")
	for _, name := range []string{"web-1", "backend-1", "backend-2"} {
		require.Contains(t, east.must("proxy", "status", name), "SYNCED")
	}
	one.takes(l)
	two.takes(l)
	free()
	east.catchesUp(global)
	east.mustWith(strings.Replace(webDataplane, "web-1", "web-9", 1), "apply", "-f", "-")
	one.takes(l)
	two.takes(l)
}
