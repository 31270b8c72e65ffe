package proxyless

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meridian/internal/meshca/meshcatest"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/service/discovery"
	"meridian/internal/store"
)

// No call fails under load when what calls depend on changes to and fro, each time as soon
// as the client obeys.
func TestFlipsLoseNoCall(t *testing.T) {
	flips := 150
	if testing.Short() {
		flips = 30
	}
	for _, test := range []struct {
		name   string
		change func(z *zone, servers [2]*backend, to int) []store.Op
	}{
		{"routes", func(z *zone, _ [2]*backend, to int) []store.Op {
			return []store.Op{z.policy(resource.KindTrafficRoute, `{`+v([]string{"v1", "v2"}[to])+`}`)}
		}},
		{"weights", func(z *zone, _ [2]*backend, to int) []store.Op {
			return []store.Op{z.policy(resource.KindTrafficRoute, []string{split(100, 0), split(0, 100)}[to])}
		}},
		{"a route comes and goes", func(z *zone, _ [2]*backend, to int) []store.Op {
			key := resource.Key{Kind: resource.KindTrafficRoute, Mesh: "m", Name: "narrow"}
			if to == 0 {
				return []store.Op{store.Delete(key)}
			}
			return []store.Op{z.put(resource.KindTrafficRoute, "m", "narrow", `{"sources":[{"match":{"kuma.io/service":"web"}}],"destinations":[{"match":{"kuma.io/service":"backend"}}],"conf":{`+v("v2")+`}}`)}
		}},
		{"tags come and go with their routes", func(z *zone, servers [2]*backend, to int) []store.Op {
			version := fmt.Sprintf("v%d", 3+to)
			return []store.Op{z.dataplane(servers[to], version), z.dataplane(servers[1-to], "gone"), z.policy(resource.KindTrafficRoute, `{`+v(version)+`}`)}
		}},
		{"instances come and go", func(z *zone, servers [2]*backend, to int) []store.Op {
			return []store.Op{z.policy(resource.KindTrafficRoute, `{"destination":{"kuma.io/service":"backend"}}`), z.dataplane(servers[to], "v1"), store.Delete(policy.DataplaneKey("m", servers[1-to].name))}
		}},
		{"routes with policies", func(z *zone, _ [2]*backend, to int) []store.Op {
			return []store.Op{
				z.policy(resource.KindTrafficRoute, `{`+v([]string{"v1", "v2"}[to])+`}`),
				z.policy(resource.KindTimeout, fmt.Sprintf(`{"http":{"requestTimeout":"%dh"}}`, 1+to)),
				z.policy(resource.KindRetry, fmt.Sprintf(`{"grpc":{"numRetries":%d,"retryOn":["unavailable"]}}`, 1+to)),
				z.policy(resource.KindCircuitBreaker, fmt.Sprintf(`{"thresholds":{"maxRequests":%d}}`, 1000+to)),
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			z := newZone(t)
			servers := [2]*backend{start(t, "one"), start(t, "two")}
			z.apply(z.dataplane(servers[0], "v1"), z.dataplane(servers[1], "v2"), z.policy(resource.KindTrafficRoute, `{`+v("v1")+`}`))
			z.apply(test.change(z, servers, 0)...)
			z.xds.Address = z.serve()
			conn := z.dial("xds:///backend")
			answered(t, conn, 1, "/a.S/M")
			stop := load(t, conn)
			for i := range flips {
				to := (i + 1) % 2
				z.apply(test.change(z, servers, to)...)
				for first(answered(t, conn, 1, "/a.S/M")) != servers[to].name {
				}
			}
			require.Empty(t, stop())
		})
	}
}

// Nor when routes come back to clusters that the client is just giving up, since calls left
// them a while ago.
func TestRoutesComeBackToClustersThatAreGivenUp(t *testing.T) {
	z := newZone(t)
	servers := [2]*backend{start(t, "one"), start(t, "two")}
	route := func(to int) store.Op {
		return z.policy(resource.KindTrafficRoute, `{`+v([]string{"v1", "v2"}[to])+`}`)
	}
	z.apply(z.dataplane(servers[0], "v1"), z.dataplane(servers[1], "v2"), route(0))
	begin := time.Now()
	var passed atomic.Int64
	z.xds.Address = z.serveBy(func() time.Time { return begin.Add(time.Duration(passed.Load())) })
	conn := z.dial("xds:///backend")
	answered(t, conn, 1, "/a.S/M")
	stop := load(t, conn)
	for i := range 100 {
		to := (i + 1) % 2
		z.apply(route(to))
		for first(answered(t, conn, 1, "/a.S/M")) != servers[to].name {
		}
		passed.Add(int64(discovery.Drain))
		z.apply(z.policy(resource.KindTimeout, fmt.Sprintf(`{"http":{"requestTimeout":"%dh"}}`, i+1)))
	}
	require.Empty(t, stop())
}

// Permissions that change to and fro, each time as soon as they are obeyed, decide about
// every call: those that they allow succeed, and those that they deny are denied.
func TestPermissionsThatFlipDecideEveryCall(t *testing.T) {
	z := newZone(t)
	allow := func(action string) store.Op {
		return z.put(resource.KindMeshTrafficPermission, "m", "all", `{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"Mesh"},"default":{"action":"`+action+`"}}]}`)
	}
	z.apply(z.put(resource.KindMesh, "", "m", mutualTLS), allow("ALLOW"))
	ca := meshcatest.Authority(t, "m")
	f, client := newFiles(t), newFiles(t)
	f.put(meshcatest.Issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), ca.Roots())
	client.put(meshcatest.Issue(t, ca, "m", "web-1", resource.Tags{resource.ServiceTag: "web"}), ca.Roots())
	server := z.serveMember("backend-1", `{"kuma.io/service":"backend","kuma.io/zone":"east"}`, f)
	z.joins()
	conn := z.dialMember(client)
	answered(t, conn, 1, "/a.S/M")
	ended := make(chan struct{})
	var running sync.WaitGroup
	var failed atomic.Pointer[string]
	for range 4 {
		running.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				if _, err := call(t.Context(), conn, "/a.S/M"); err != nil && status.Code(err) != codes.PermissionDenied {
					text := err.Error()
					failed.CompareAndSwap(nil, &text)
					return
				}
			}
		})
	}
	for i := range 60 {
		action, want := "DENY", codes.PermissionDenied
		if i%2 == 1 {
			action, want = "ALLOW", codes.OK
		}
		z.apply(allow(action))
		z.follow(server)
		for obeyed := 0; obeyed < 5; { // from the first one on, all of them
			_, err := call(t.Context(), conn, "/a.S/M")
			if status.Code(err) == want {
				obeyed++
				continue
			}
			require.Zero(t, obeyed, "%s: %v", action, err)
			require.Contains(t, []codes.Code{codes.OK, codes.PermissionDenied}, status.Code(err), "%v", err)
		}
	}
	close(ended)
	running.Wait()
	if text := failed.Load(); text != nil {
		t.Fatalf("a call failed otherwise: %s", *text)
	}
}

// No call fails when routes lead to clusters that are new to a client, of which the zone
// knows nothing but what the client brings along, as it has just started.
func TestNoCallIsLostToNewRoutesOfAZoneThatStarts(t *testing.T) {
	z := newZone(t)
	one, two := start(t, "one"), start(t, "two")
	z.apply(z.dataplane(one, "v1"), z.dataplane(two, "v2"), z.policy(resource.KindTrafficRoute, `{`+v("v1")+`}`))
	l := newLine()
	zone := z.serveAt(l, "127.0.0.1:0")
	conn := z.connect(zone.address)
	answered(t, conn, 1, "/a.S/M")
	zone.settled(t, 0)
	stop := load(t, conn)
	zone.stop()
	z.apply(z.policy(resource.KindTrafficRoute, `{"http":[{"match":{"path":{"exact":"/a.S/Old"}},`+v("v1")+`}],`+v("v2")+`}`))
	zone = z.serveAt(l, zone.address)
	until(t, conn, func(n map[string]int) bool { return n["two"] == 20 })
	zone.settled(t, 0)
	require.Empty(t, stop())
}
