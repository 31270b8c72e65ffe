package envoy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/meshca"
	"meridian/internal/meshca/meshcatest"
	"meridian/internal/policy"
	policyanswer "meridian/internal/policy/answer"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/store"
	meridianxds "meridian/internal/xds"
	"meridian/test/traffic"
)

const (
	mutualTLS = `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`
	// permissiveTLS is mutualTLS where plaintext is accepted, too.
	permissiveTLS = `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin","mode":"PERMISSIVE"}]}}`
	everyone      = `{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"Mesh"},"default":{"action":"ALLOW"}}]}`
)

// files are an identity where an Envoy reads it.
type files struct {
	t     *testing.T
	dir   string
	count int
}

func newFiles(t *testing.T) *files {
	t.Helper()
	f := &files{t: t, dir: directory(t)}
	require.NoError(t, os.Mkdir(filepath.Join(f.dir, meridianxds.EnvoyIdentity), 0o700))
	return f
}

// put puts an identity in the place of the last one, all at once, as an agent does. Without
// a holder there is none yet.
func (f *files) put(h *meshcatest.Holder, roots []byte) {
	f.t.Helper()
	secret := func(name, kind string, content map[string]any) []byte {
		resources := []any{}
		if h != nil {
			resources = append(resources, map[string]any{"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "name": name, kind: content})
		}
		data, err := json.Marshal(map[string]any{"resources": resources})
		require.NoError(f.t, err)
		return data
	}
	text := func(data []byte) map[string]any { return map[string]any{"inline_string": string(data)} }
	certificate := map[string]any{}
	if h != nil {
		certificate = map[string]any{"certificate_chain": text(h.Certificate), "private_key": text(h.KeyPEM(f.t))}
	}
	f.count++
	dir, next := filepath.Join(f.dir, meridianxds.EnvoyIdentity), strconv.Itoa(f.count)
	require.NoError(f.t, os.Mkdir(filepath.Join(dir, next), 0o700))
	for name, data := range map[string][]byte{
		filepath.Base(meridianxds.EnvoyCertificate): secret(meridianxds.CertificateSecret, "tls_certificate", certificate),
		filepath.Base(meridianxds.EnvoyRoots):       secret(meridianxds.RootsSecret, "validation_context", map[string]any{"trusted_ca": text(roots)}),
	} {
		require.NoError(f.t, os.WriteFile(filepath.Join(dir, next, name), data, 0o600))
	}
	require.NoError(f.t, os.Symlink(next, filepath.Join(dir, "new")))
	require.NoError(f.t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "current")))
}

// callee is a dataplane of backend with an Envoy before its application.
type callee struct {
	*server
	zone  *zone
	envoy *envoy
	// at is where its Envoy listens.
	at string
}

// member starts the dataplane backend-1 that speaks a protocol, with the Envoy and the
// certificate of a member of the mesh.
func (z *zone) member(protocol string, f *files, extra ...store.Op) *callee {
	z.t.Helper()
	return z.memberAs("backend-1", protocol, f, extra...)
}

// memberAs is member for a dataplane of backend with another name.
func (z *zone) memberAs(name, protocol string, f *files, extra ...store.Op) *callee {
	z.t.Helper()
	c := &callee{server: start(z.t, name), zone: z}
	port := free(z.t)
	c.at = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	z.apply(append(extra, z.put(resource.KindDataplane, "m", name, fmt.Sprintf(
		`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"servicePort":%d,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east","kuma.io/protocol":%q}}]}}`, port, c.port, protocol)))...)
	c.envoy = z.launchIn(f.dir, name)
	require.Empty(z.t, z.settle(name))
	return c
}

// caller calls a member over a connection of its own for each request.
type caller struct {
	*http.Client

	scheme string
}

// presenting is a client that presents a certificate and trusts every server; nil for one
// without TLS.
func presenting(t *testing.T, certificate *tls.Certificate) caller {
	transport, scheme := &http.Transport{DisableKeepAlives: true}, "http://"
	if certificate != nil {
		scheme = "https://"
		transport.TLSClientConfig = &tls.Config{
			InsecureSkipVerify: true, // who answers is not what is tested
			// The server's hint is ignored, as an attacker would.
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil },
		}
	}
	t.Cleanup(transport.CloseIdleConnections)
	return caller{&http.Client{Transport: transport}, scheme}
}

func (c caller) get(at string) (answer, error) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, c.scheme+at, http.NoBody)
	if err != nil {
		return answer{}, err
	}
	response, err := c.Do(request)
	if err != nil {
		return answer{}, err
	}
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, string(body), response.Header}, errors.Join(err, response.Body.Close())
}

// An Envoy whose permissions allow everyone of the mesh accepts certificates of the mesh's
// authority, and nothing else, whatever it is in front of.
func TestForgedCertificatesAreRejected(t *testing.T) {
	for _, protocol := range []string{"http", "tcp"} {
		t.Run(protocol, func(t *testing.T) {
			z := newZone(t)
			ca := meshcatest.Authority(t, "m")
			f := newFiles(t)
			f.put(meshcatest.Issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), ca.Roots())
			c := z.member(protocol, f, z.put(resource.KindMesh, "", "m", mutualTLS), z.put(resource.KindMeshTrafficPermission, "m", "all", everyone))
			mine := meshcatest.Issue(t, ca, "m", "web-1", resource.Tags{resource.ServiceTag: "web"})
			pair := mine.Pair(t)
			a, err := presenting(t, &pair).get(c.at)
			require.NoError(t, err)
			require.Equal(t, "backend-1", a.body, "%v", a)
			served := c.requests.Load()
			for name, certificate := range meshcatest.Forgeries(t, ca, "m", mine) {
				_, err := presenting(t, &certificate).get(c.at)
				require.Error(t, err, name)
			}
			_, err = presenting(t, nil).get(c.at)
			require.Error(t, err, "plaintext")
			require.Equal(t, served, c.requests.Load())
		})
	}
}

// joined is a mesh with mutual TLS whose member backend-1 speaks a protocol.
func joined(t *testing.T, protocol, mesh string, policies ...store.Op) (*callee, *meshca.Authority) {
	t.Helper()
	z, ca, f := newZone(t), meshcatest.Authority(t, "m"), newFiles(t)
	f.put(meshcatest.Issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), ca.Roots())
	return z.member(protocol, f, append(policies, z.put(resource.KindMesh, "", "m", mesh))...), ca
}

// member is a client with the certificate of a dataplane with tags.
func member(t *testing.T, ca *meshca.Authority, name string, tags resource.Tags) caller {
	t.Helper()
	pair := meshcatest.Issue(t, ca, "m", name, tags).Pair(t)
	return presenting(t, &pair)
}

// until calls until the answer is as it should be: an Envoy accepts what it is sent a moment
// before its requests obey it.
func (c caller) until(t *testing.T, at string, holds func(answer, error) bool) {
	t.Helper()
	for !holds(c.get(at)) {
		require.NoError(t, t.Context().Err())
	}
}

// An Envoy decides about real callers, with certificates of the mesh's authority, as the
// answer about the connection says, and tells on whose word it denies. Where plaintext is
// accepted, too, it decides the same about those with a certificate, and accepts everyone
// without, also one who says that he is another.
func TestAnEnvoyDecidesAsTheAnswerSays(t *testing.T) {
	t.Run("STRICT", func(t *testing.T) { decides(t, mutualTLS, 40, false, false) })
	t.Run("STRICT, two inbounds of one port", func(t *testing.T) { decides(t, mutualTLS, 20, true, false) })
	t.Run("PERMISSIVE", func(t *testing.T) { decides(t, permissiveTLS, 20, false, true) })
}

// decides compares what an Envoy of a mesh does in some rounds with the answer: policies of
// one generation, of the other, and of both, and thousands of connections of callers with
// certificates of their own. Where its port is shared, a second service has it, and both
// have to allow a caller.
func decides(t *testing.T, mesh string, rounds int, shared, plaintext bool) {
	r := rand.New(rand.NewPCG(7, 8))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	values := []string{"v1", "v2", "_", ".+", "é", "*"}
	selector := func() string {
		s := fmt.Sprintf(`"kuma.io/service":%q`, pick("web", "a/_/b", "*"))
		if r.IntN(2) == 0 {
			s += fmt.Sprintf(`,"version":%q`, pick(values...))
		}
		return "{" + s + "}"
	}
	target := func() string {
		switch r.IntN(3) {
		case 0:
			return `{"kind":"Mesh"}`
		case 1:
			return fmt.Sprintf(`{"kind":"MeshSubset","tags":{"version":%q}}`, pick(values...))
		default:
			return fmt.Sprintf(`{"kind":"Service","name":%q}`, pick("web", "a/_/b"))
		}
	}
	c, ca := joined(t, "http", mesh)
	z := c.zone
	services := []string{"backend"}
	if shared {
		services = append(services, "payments")
		var inbounds []string
		for _, service := range services {
			inbounds = append(inbounds, fmt.Sprintf(`{"port":%s,"servicePort":%d,"tags":{"kuma.io/service":%q,"kuma.io/zone":"east","kuma.io/protocol":"http"}}`, c.at[strings.LastIndex(c.at, ":")+1:], c.port, service))
		}
		z.apply(z.put(resource.KindDataplane, "m", "backend-1", `{"networking":{"address":"127.0.0.1","inbound":[`+strings.Join(inbounds, ",")+`]}}`))
	}
	called := func() string { return pick(append(services, "*")...) }
	type known struct {
		caller
		tags resource.Tags
	}
	var callers []known
	for i := range 64 {
		tags := resource.Tags{resource.ServiceTag: pick("web", "a/_/b", "other")}
		if r.IntN(3) > 0 {
			tags["version"] = pick("v1", "v2", "_", ".+", "é", "a b")
		}
		callers = append(callers, known{member(t, ca, fmt.Sprintf("caller-%d", i), tags), tags}) // with the zone's tag
	}
	served, refused := 0, 0
	var before []store.Op
	for n := range rounds {
		ops := before
		before = nil
		kinds := map[string]resource.Kind{} // by the policy's name
		put := func(kind resource.Kind, name, spec string) {
			kinds[name] = kind
			op := z.put(kind, "m", name, spec)
			ops, before = append(ops, op), append(before, store.Delete(op.Key))
		}
		for i := range r.IntN(4) {
			older := n%3 == 0 || n%3 == 1 && r.IntN(2) == 0 // than the Mesh kinds
			if older {
				put(resource.KindTrafficPermission, fmt.Sprintf("p%d-%d", n, i), fmt.Sprintf(`{"sources":[{"match":%s},{"match":%s}],"destinations":[{"match":{"kuma.io/service":%q}}]}`, selector(), selector(), called()))
				continue
			}
			var from []string
			for range 1 + r.IntN(4) {
				from = append(from, fmt.Sprintf(`{"targetRef":%s,"default":{"action":%q}}`, target(), pick("ALLOW", "DENY")))
			}
			on := `{"kind":"Mesh"}`
			if service := called(); service != "*" {
				on = fmt.Sprintf(`{"kind":"Service","name":%q}`, service)
			}
			put(resource.KindMeshTrafficPermission, fmt.Sprintf("p%d-%d", n, i), `{"targetRef":`+on+`,"from":[`+strings.Join(from, ",")+`]}`)
		}
		z.apply(ops...)
		require.Empty(t, z.settle("backend-1"))
		m := policy.NewMatcher(engines.All()...)
		m.Reset(z.store.View())
		for range 3 { // what is accepted is in effect for requests that are answered after another one
			_, err := callers[0].get(c.at)
			require.NoError(t, err)
		}
		for _, from := range callers {
			a, err := policyanswer.Connection(m, policyanswer.ConnectionQuestion{Mesh: "m", FromTags: from.tags, To: "backend-1"}, 1)
			require.NoError(t, err)
			deniedBy := a.DeniedBy
			for _, in := range a.Inbounds {
				if !in.Allowed { // the first of them decides
					deniedBy = in.DeniedBy
					break
				}
			}
			by := "rbac_access_denied_matched_policy["
			if len(deniedBy) > 0 {
				by += string(kinds[deniedBy[0]]) + "_" + deniedBy[0] + "]"
			}
			as := func(got answer, err error) bool {
				require.NoError(t, err)
				if a.Allowed {
					return got.status == http.StatusOK
				}
				return got.status == http.StatusForbidden && strings.Contains(got.body, by)
			}
			got, err := from.get(c.at)
			require.True(t, as(got, err), "round %d, %v: allowed %t by %s, got %d %s", n, from.tags, a.Allowed, by, got.status, got.body)
			if a.Allowed {
				served++
			} else {
				refused++
			}
		}
		if plaintext {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+c.at, http.NoBody)
			require.NoError(t, err)
			request.Header.Set("X-Forwarded-Client-Cert", "URI=spiffe://east.m/dp/caller-0/_/kuma.io_2Fservice/other")
			response, err := presenting(t, nil).Do(request)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, http.StatusOK, response.StatusCode)
		}
	}
	require.Greater(t, served, rounds)
	require.Greater(t, refused, rounds)
}

// A caller that is denied sees nothing of an application that is the first to send
// something, and one that is allowed does as soon as all that decides are names.
func TestGreetingsAreNotForTheDenied(t *testing.T) {
	greeter, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var connected atomic.Int32
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := greeter.Accept()
			if err != nil {
				return
			}
			connected.Add(1)
			_, _ = io.WriteString(conn, "hello") // it may be gone
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		require.NoError(t, greeter.Close())
		serving.Wait()
	})
	c, ca := joined(t, "tcp", mutualTLS)
	z := c.zone
	dataplane := fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%s,"servicePort":%d,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east"}}]}}`,
		c.at[strings.LastIndex(c.at, ":")+1:], greeter.Addr().(*net.TCPAddr).Port)
	read := func(name, send string) string {
		pair := meshcatest.Issue(t, ca, "m", name, resource.Tags{resource.ServiceTag: name}).Pair(t)
		conn, err := tls.Dial("tcp", c.at, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}})
		if err != nil {
			return ""
		}
		_, _ = io.WriteString(conn, send)
		data, _ := io.ReadAll(conn)
		_ = conn.Close()
		return string(data)
	}
	rule := func(name, action string) string {
		return fmt.Sprintf(`{"targetRef":{"kind":"Service","name":%q},"default":{"action":%q}}`, name, action)
	}
	for spec, first := range map[string]string{
		rule("web", "ALLOW"): "", // the application speaks first
		rule("other", "DENY") + "," + rule("web", "ALLOW"): "x",
	} {
		z.apply(z.put(resource.KindDataplane, "m", "backend-1", dataplane), z.put(resource.KindMeshTrafficPermission, "m", "p", `{"targetRef":{"kind":"Mesh"},"from":[`+spec+`]}`))
		require.Empty(t, z.settle("backend-1"))
		for read("web", first) != "hello" {
			require.NoError(t, t.Context().Err())
		}
		before := connected.Load()
		for range 20 {
			require.Empty(t, read("other", "x"))
		}
		require.Equal(t, before, connected.Load(), "the application was connected to for a caller that is denied")
	}
}

// count sums statistics whose names match.
func (e *envoy) count(names string) (n int) {
	e.t.Helper()
	for line := range strings.Lines(e.ask("/stats?filter=" + names)) {
		_, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		count, err := strconv.Atoi(value)
		require.NoError(e.t, err)
		n += count
	}
	return n
}

// An Envoy that gets its listeners before its certificate serves as soon as that is there.
func TestACertificateThatComesLater(t *testing.T) {
	for _, protocol := range []string{"http", "tcp"} {
		z, ca, f := newZone(t), meshcatest.Authority(t, "m"), newFiles(t)
		f.put(nil, nil)
		c := z.member(protocol, f, z.put(resource.KindMesh, "", "m", mutualTLS), z.put(resource.KindMeshTrafficPermission, "m", "all", everyone))
		web := member(t, ca, "web-1", resource.Tags{resource.ServiceTag: "web"})
		_, err := web.get(c.at)
		require.Error(t, err)
		_, err = presenting(t, nil).get(c.at)
		require.Error(t, err)
		f.put(meshcatest.Issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), ca.Roots())
		web.until(t, c.at, func(a answer, err error) bool { return err == nil && a.body == "backend-1" })
	}
}

// An outbound calls servers with a certificate of its service, and no others.
func TestAnOutboundKnowsItsServers(t *testing.T) {
	for _, protocol := range []string{"http", "tcp"} {
		for name, impostor := range map[string]bool{"backend": false, "web": true} {
			t.Run(protocol+" "+name, func(t *testing.T) {
				z, ca, own, other := newZone(t), meshcatest.Authority(t, "m"), newFiles(t), newFiles(t)
				own.put(meshcatest.Issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: name}), ca.Roots())
				other.put(meshcatest.Issue(t, ca, "m", "web-1", resource.Tags{resource.ServiceTag: "web"}), ca.Roots())
				called := z.member(protocol, own, z.put(resource.KindMesh, "", "m", mutualTLS), z.put(resource.KindMeshTrafficPermission, "m", "all", everyone))
				c, _ := z.caller(other)
				for range 5 {
					a, err := c.try(http.MethodGet, "/")
					require.Equal(t, impostor, err != nil || a.status == http.StatusServiceUnavailable, "%v %v", a, err)
					require.Equal(t, impostor, a.body != "backend-1")
				}
				require.Equal(t, impostor, called.requests.Load() == 0)
			})
		}
	}
}

// No request fails while the certificates of both sides, and then the authority of the
// mesh, are replaced, whatever applications speak: neither over connections that last nor
// over new ones.
func TestIdentitiesAreReplacedUnderLoad(t *testing.T) {
	for _, protocol := range []string{"http", "http2", "grpc", "tcp"} {
		t.Run(protocol, func(t *testing.T) { replacesIdentities(t, protocol) })
	}
}

func replacesIdentities(t *testing.T, protocol string) {
	z, old, own, other := newZone(t), meshcatest.Authority(t, "m"), newFiles(t), newFiles(t)
	signs := old
	var direct atomic.Pointer[tls.Certificate]
	var called *callee
	var calling *envoy
	// It trusts roots, of which the first shows, and waits until both Envoys have it.
	replace := func(roots ...*meshca.Authority) {
		var trusted []byte
		for _, ca := range roots {
			trusted = append(trusted, ca.Roots()...)
		}
		server := meshcatest.Issue(t, signs, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"})
		client := meshcatest.Issue(t, signs, "m", "web-1", resource.Tags{resource.ServiceTag: "web"})
		own.put(server, trusted)
		other.put(client, trusted)
		pair := client.Pair(t)
		for called != nil && (!called.envoy.knows(server, roots[0]) || !calling.knows(client, roots[0])) {
			require.NoError(t, t.Context().Err())
		}
		direct.Store(&pair)
	}
	replace(old)
	called = z.member(protocol, own, z.put(resource.KindMesh, "", "m", mutualTLS), z.put(resource.KindMeshTrafficPermission, "m", "all", everyone))
	var c *client
	c, calling = z.caller(other)
	require.Equal(t, "backend-1", c.get("/").body)
	l := traffic.New(t)
	switch protocol {
	case "grpc":
		l.Worker(traffic.Call(t, c.url))
		l.Worker(traffic.Post(c.url, true, true))
	case "tcp": // a connection that lasts stays where it is
		l.Worker(traffic.Post(c.url, false, true))
		l.Worker(traffic.Post(c.url, true, true))
	default:
		l.Worker(traffic.Post(c.url, false, false))
		l.Worker(traffic.Post(c.url, true, false))
		l.Worker(traffic.Post(c.url, false, true))
	}
	l.Worker(func() error { // a connection with TLS of its own for each request
		a, err := presenting(t, direct.Load()).get(called.at)
		if err == nil && a.body != "backend-1" {
			err = fmt.Errorf("%d: %s", a.status, a.body)
		}
		return err
	})
	l.Pass(10)
	renew := func(roots ...*meshca.Authority) {
		t.Helper()
		replace(roots...)
		l.Pass(5)
	}
	for range 5 {
		renew(old)
	}
	next := meshcatest.Authority(t, "m")
	renew(next, old) // everyone trusts the next one
	signs = next     // it signs
	renew(next, old)
	renew(next) // and the last one is retired
	for range 5 {
		renew(next)
	}
	l.Stop()
	l.Pass(0)
	_, err := presenting(t, func() *tls.Certificate {
		pair := meshcatest.Issue(t, old, "m", "web-2", resource.Tags{resource.ServiceTag: "web"}).Pair(t)
		return &pair
	}()).get(called.at)
	require.Error(t, err, "what the last authority signed is not accepted any more")
}

// knows reports whether an Envoy has a certificate together with roots of which the first
// is that of an authority.
func (e *envoy) knows(h *meshcatest.Holder, ca *meshca.Authority) bool {
	e.t.Helper()
	type certificates []struct {
		Serial string `json:"serial_number"`
	}
	var loaded struct {
		Certificates []struct {
			Roots certificates `json:"ca_cert"`
			Chain certificates `json:"cert_chain"`
		} `json:"certificates"`
	}
	require.NoError(e.t, json.Unmarshal([]byte(e.ask("/certs")), &loaded))
	is := func(list certificates, serial *big.Int) bool {
		return len(list) > 0 && strings.TrimLeft(list[0].Serial, "0") == serial.Text(16)
	}
	for _, c := range loaded.Certificates {
		if is(c.Chain, h.Parsed(e.t).SerialNumber) && is(c.Roots, ca.Status()[0].Certificate.SerialNumber) {
			return true
		}
	}
	return false
}

// caller starts the Envoy of web-1, a member of the mesh with an outbound to backend, and
// returns a client of it.
func (z *zone) caller(f *files) (*client, *envoy) {
	z.t.Helper()
	outbound := free(z.t)
	z.apply(z.put(resource.KindDataplane, "m", "web-1", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"servicePort":%d,"tags":{"kuma.io/service":"web","kuma.io/zone":"east"}}],
		"outbound":[{"port":%d,"tags":{"kuma.io/service":"backend"}}]}}`, free(z.t), free(z.t), outbound)))
	e := z.launchIn(f.dir, "web-1")
	require.Empty(z.t, z.settle("web-1"))
	return newClient(z.t, outbound), e
}
