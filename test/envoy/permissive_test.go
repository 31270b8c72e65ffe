package envoy

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/agent"
	"meridian/internal/meshca"
	"meridian/internal/meshca/meshcatest"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/test/traffic"
)

func TestPermissiveAcceptsBoth(t *testing.T) {
	for _, protocol := range []string{"http", "tcp"} {
		t.Run(protocol, func(t *testing.T) {
			c, ca := joined(t, protocol, permissiveTLS)
			z := c.zone
			z.apply(z.put(resource.KindMeshTrafficPermission, "m", "p", strings.Replace(everyone, `"kind":"Mesh"},"default"`, `"kind":"Service","name":"web"},"default"`, 1)))
			require.Empty(t, z.settle("backend-1"))
			web, other := member(t, ca, "web-1", resource.Tags{resource.ServiceTag: "web"}), member(t, ca, "other-1", resource.Tags{resource.ServiceTag: "other"})
			served := func(a answer, err error) bool { return err == nil && a.body == "backend-1" }
			web.until(t, c.at, served)
			require.False(t, served(other.get(c.at)))
			plain := presenting(t, nil)
			for range 3 {
				a, err := plain.get(c.at)
				require.NoError(t, err)
				require.Equal(t, "backend-1", a.body)
			}
			// The agent counts these, and none of the callers with TLS.
			counter := agent.NewPlaintextCounter(c.envoy.admin)
			taken, _, err := counter.Count(t.Context())
			require.NoError(t, err)
			require.Equal(t, uint64(3), taken)
			open, err := net.Dial("tcp", c.at)
			require.NoError(t, err)
			_, err = io.WriteString(open, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			require.NoError(t, err)
			_, err = io.ReadFull(open, make([]byte, 1))
			require.NoError(t, err)
			taken, now, err := counter.Count(t.Context())
			require.NoError(t, err)
			require.Equal(t, uint64(1), taken)
			require.Positive(t, now)
			require.NoError(t, open.Close())
			z.apply(z.put(resource.KindMesh, "", "m", mutualTLS))
			require.Empty(t, z.settle("backend-1"))
			plain.until(t, c.at, func(_ answer, err error) bool { return err != nil })
			web.until(t, c.at, served)
			_, err = plain.get(c.at)
			require.Error(t, err)
		})
	}
}

func (e *envoy) plaintext() (n int) {
	e.t.Helper()
	return e.count("%5E%28http%7Ctcp%29.in_.*_plaintext.downstream_cx_total")
}

func (c *callee) onlyTLS(t *testing.T, l *traffic.Load) {
	t.Helper()
	for c.envoy.count("%5Ehttp.in_.*_plaintext.downstream_cx_active") > 0 {
		require.NoError(t, t.Context().Err())
		l.Pass(1)
	}
	for before := -1; before != c.envoy.plaintext(); l.Pass(50) {
		require.NoError(t, t.Context().Err())
		before = c.envoy.plaintext()
	}
}

func TestAMixedFleet(t *testing.T) {
	for _, protocol := range []string{"http", "tcp"} {
		t.Run(protocol, func(t *testing.T) {
			z, ca := newZone(t), meshcatest.Authority(t, "m")
			identified := func(name, service string, f *files) {
				f.put(meshcatest.Issue(t, ca, "m", name, resource.Tags{resource.ServiceTag: service}), ca.Roots())
			}
			own, none, other := newFiles(t), newFiles(t), newFiles(t)
			identified("backend-1", "backend", own)
			identified("web-1", "web", other)
			none.put(nil, nil)
			// Who has no certificate is called without one, whatever permissions say.
			with := z.member(protocol, own, z.put(resource.KindMesh, "", "m", permissiveTLS), z.put(resource.KindMeshTrafficPermission, "m", "all", everyone))
			without := z.memberAs("backend-2", protocol, none)
			c, _ := z.caller(other)
			l := traffic.New(t)
			l.Worker(traffic.Post(c.url, false, true))
			l.Worker(traffic.Post(c.url, false, false))
			certified := func(name string) {
				t.Helper()
				z.feed.Certified(policy.DataplaneKey("m", name), true)
				for _, name := range []string{"backend-1", "backend-2", "web-1"} {
					require.Empty(t, z.settle(name))
				}
			}
			certified("web-1")
			certified("backend-1")
			with.onlyTLS(t, l)
			a, b, plain := with.requests.Load(), without.requests.Load(), without.envoy.plaintext()
			before := with.envoy.plaintext()
			for with.requests.Load() == a || without.requests.Load() == b {
				l.Pass(10)
			}
			require.Equal(t, before, with.envoy.plaintext())
			require.Positive(t, plain)
			identified("backend-2", "backend", none)
			presentsItself(t, ca, without.at)
			certified("backend-2")
			without.onlyTLS(t, l)
			with.onlyTLS(t, l)
			b = without.requests.Load()
			for without.requests.Load() == b {
				l.Pass(10)
			}
		})
	}
}

func presentsItself(t *testing.T, ca *meshca.Authority, at string) {
	t.Helper()
	member(t, ca, "web-1", resource.Tags{resource.ServiceTag: "web"}).until(t, at, func(_ answer, err error) bool { return err == nil })
}

func TestPermissiveMembersUseTLS(t *testing.T) {
	for _, protocol := range []string{"http", "http2", "tcp"} {
		t.Run(protocol, func(t *testing.T) {
			z, ca, own, other := newZone(t), meshcatest.Authority(t, "m"), newFiles(t), newFiles(t)
			own.put(meshcatest.Issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), ca.Roots())
			other.put(meshcatest.Issue(t, ca, "m", "web-1", resource.Tags{resource.ServiceTag: "web"}), ca.Roots())
			called := z.member(protocol, own, z.put(resource.KindMeshTrafficPermission, "m", "all", everyone))
			c, _ := z.caller(other)
			backend, web := policy.DataplaneKey("m", "backend-1"), policy.DataplaneKey("m", "web-1")
			l := traffic.New(t)
			l.Worker(traffic.Post(c.url, false, true))
			l.Worker(traffic.Post(c.url, false, false))
			l.Worker(traffic.Post(c.url, true, false))
			settle := func() {
				t.Helper()
				require.Empty(t, z.settle("backend-1"))
				require.Empty(t, z.settle("web-1"))
				l.Pass(20)
			}
			mode := func(spec string) {
				t.Helper()
				z.apply(z.put(resource.KindMesh, "", "m", spec))
				settle()
			}
			onlyTLS := func() { t.Helper(); called.onlyTLS(t, l) }
			l.Pass(20)
			mode(permissiveTLS)
			require.Positive(t, called.envoy.plaintext(), "nothing is known of certificates")
			for _, order := range [][]resource.Key{{backend, web}, {web, backend}} {
				z.feed.Certified(order[0], true)
				settle()
				z.feed.Certified(order[1], true)
				settle()
				onlyTLS()
				before := called.envoy.plaintext()
				a, err := presenting(t, nil).get(called.at)
				require.NoError(t, err)
				require.Equal(t, "backend-1", a.body)
				l.Pass(50)
				require.Equal(t, before+1, called.envoy.plaintext(), "callers that are no members")
				mode(mutualTLS)
				_, err = presenting(t, nil).get(called.at)
				require.Error(t, err)
				mode(permissiveTLS)
				onlyTLS()
				mode("{}")
				mode(permissiveTLS)
				mode("{}")
				z.feed.Certified(order[0], false)
				settle()
				z.feed.Certified(order[1], false)
				settle()
				mode(permissiveTLS)
			}
		})
	}
}
