package feed

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/store"
	"meridian/internal/xds"
	"meridian/internal/xds/generate/envoy"
	"meridian/internal/xds/generate/grpc"
	"meridian/internal/xds/world"
)

// zone is a feed over a store that a test writes to.
type zone struct {
	t        require.TestingT
	store    *store.Store
	matching *livematch.Matching
	world    *world.World
	feed     *Feed
	revision resource.Revision
	touched  map[resource.Key]bool
	followed map[string]func() // what ends the following of dataplanes, by name
}

func newZone(t require.TestingT) *zone {
	z := &zone{t: t, store: store.New(store.DefaultOptions()), world: world.New("east"), touched: map[resource.Key]bool{}, followed: map[string]func(){}}
	z.matching = livematch.New(policy.NewMatcher(engines.All()...).Following(z.world).Following(engines.Trial()), z.store)
	z.feed = New(z.matching, z.world)
	z.feed.OnTouch(func(keys []resource.Key) {
		for _, k := range keys {
			z.touched[k] = true
		}
	})
	return z
}

// apply writes a batch, and returns the dataplanes that it touched.
func (z *zone) apply(ops ...store.Op) map[resource.Key]bool {
	z.revision++
	clear(z.touched)
	require.NoError(z.t, z.store.Apply(z.revision, store.Txn{Ops: ops}).Err)
	require.NoError(z.t, z.matching.Read(func(*policy.Matcher, resource.Revision) error { return nil }))
	return maps.Clone(z.touched)
}

func (z *zone) put(kind resource.Kind, mesh resource.MeshName, name, spec string) store.Op {
	return store.Put(resourcetest.Build(z.t, kind, mesh, name, spec))
}

// follow has the feed follow a dataplane, once.
func (z *zone) follow(name string) {
	if z.followed[name] == nil {
		z.followed[name] = z.feed.Follow(policy.DataplaneKey("m", name))
	}
}

// unfollow undoes follow.
func (z *zone) unfollow(name string) {
	if z.followed[name] != nil {
		z.followed[name]()
		delete(z.followed, name)
	}
}

// set returns what a dataplane, which is followed from then on, is sent.
func (z *zone) set(name string) *xds.Set {
	z.follow(name)
	s, err := z.feed.Resources(policy.DataplaneKey("m", name), xds.GRPC)
	require.NoError(z.t, err)
	return s
}

func caller(address string) string {
	return `{"networking":{"address":"` + address + `","inbound":[{"port":8080,"tags":{"kuma.io/service":"web"}}],
		"outbound":[{"port":4001,"tags":{"kuma.io/service":"backend"}},{"port":4002,"tags":{"kuma.io/service":"orders"}}]}}`
}

func server(address, service string) string {
	return `{"networking":{"address":"` + address + `","inbound":[{"port":80,"tags":{"kuma.io/service":"` + service + `"}}]}}`
}

func timeout(service, span string) string {
	return `{"sources":[{"match":{"kuma.io/service":"web"}}],"destinations":[{"match":{"kuma.io/service":"` + service + `"}}],"conf":{"http":{"requestTimeout":"` + span + `"}}}`
}

// started is a zone with two callers of one shape, and servers.
func started(t require.TestingT) *zone {
	z := newZone(t)
	z.apply(z.put(resource.KindMesh, "", "m", "{}"))
	z.apply(
		z.put(resource.KindDataplane, "m", "web-1", caller("10.0.0.1")), z.put(resource.KindDataplane, "m", "web-2", caller("10.0.0.2")),
		z.put(resource.KindDataplane, "m", "backend-1", server("10.0.1.1", "backend")), z.put(resource.KindDataplane, "m", "orders-1", server("10.0.2.1", "orders")),
		z.put(resource.KindTimeout, "m", "t", timeout("backend", "1s")),
	)
	return z
}

func keys(names ...string) map[resource.Key]bool {
	m := map[resource.Key]bool{}
	for _, n := range names {
		m[policy.DataplaneKey("m", n)] = true
	}
	return m
}

// changed lists the resources of a set that are not the same pointers in another.
func changed(before, after *xds.Set) (refs []string) {
	for r := range after.All() {
		if before.Get(r.Ref()) != r {
			refs = append(refs, r.Ref().String())
		}
	}
	return refs
}

// A dataplane that drains is withdrawn from others, and has its own resources as before.
func TestADrainingDataplane(t *testing.T) {
	z := started(t)
	before, own := z.set("web-1"), z.set("backend-1")
	require.Contains(t, string(before.Of(xds.Endpoints)[0].Body), "10.0.1.1")
	r := resourcetest.Build(t, resource.KindDataplane, "m", "backend-1", server("10.0.1.1", "backend"))
	touched := z.apply(store.Put(r.WithMeta(resource.Meta{Key: r.Key(), Labels: map[string]string{resource.DrainingLabel: resource.Draining}})))
	require.True(t, touched[policy.DataplaneKey("m", "web-1")])
	require.NotContains(t, string(z.set("web-1").Of(xds.Endpoints)[0].Body), "10.0.1.1")
	for r := range own.All() {
		require.Equal(t, r, z.set("backend-1").Get(r.Ref()))
	}
}

func TestAChangeTouchesWhatItChanges(t *testing.T) {
	z := started(t)
	one, two := z.set("web-1"), z.set("web-2")
	idle := z.set("orders-1")
	require.EqualValues(t, 2, z.feed.Made(), "web's and orders': what two share is made once")
	for _, kind := range []xds.Type{xds.Cluster, xds.Endpoints} {
		require.Equal(t, one.Of(kind), two.Of(kind))
		for i := range one.Of(kind) {
			require.Same(t, one.Of(kind)[i], two.Of(kind)[i])
		}
	}

	// A policy: the routes of that outbound, once for all callers.
	require.Equal(t, keys("web-1", "web-2"), z.apply(z.put(resource.KindTimeout, "m", "t", timeout("backend", "2s"))))
	next, other := z.set("web-1"), z.set("web-2")
	require.Equal(t, []string{"RDS out_backend_4001"}, changed(one, next))
	require.Equal(t, []string{"LDS in/0.0.0.0:8080", "LDS in/10.0.0.2:8080", "LDS in/[::]:8080"}, changed(next, other), "what belongs to the own server is not shared")
	require.EqualValues(t, 3, z.feed.Made())
	require.Empty(t, changed(idle, z.set("orders-1")))
	one = next

	// An endpoint more: nothing is made but the list.
	require.Equal(t, keys("web-1", "web-2", "backend-2"), z.apply(z.put(resource.KindDataplane, "m", "backend-2", server("10.0.1.2", "backend"))))
	next = z.set("web-1")
	require.Len(t, changed(one, next), 1)
	require.Contains(t, changed(one, next)[0], "EDS ep_backend_")
	require.EqualValues(t, 3, z.feed.Made())
	one = next

	// A dataplane's address: its own listeners.
	require.Equal(t, keys("web-1"), z.apply(z.put(resource.KindDataplane, "m", "web-1", caller("10.0.0.9"))))
	require.Equal(t, []string{"LDS in/10.0.0.9:8080"}, changed(one, z.set("web-1")))

	// A route of a service: its callers.
	require.Equal(t, keys("web-1", "web-2"), z.apply(z.put(resource.KindGRPCRoute, "m", "r", `{"parentRefs":[{"kind":"Service","name":"orders"}],"rules":[{"backendRefs":[{"name":"backend"}]}]}`)))
	one = next
	require.Contains(t, changed(one, z.set("web-1")), "RDS out_orders_4002")

	// What no proxy here sends to, and what is not about proxies.
	require.Empty(t, z.apply(z.put(resource.KindGRPCRoute, "m", "s", `{"parentRefs":[{"kind":"Service","name":"none"}],"rules":[{}]}`)))
	require.Equal(t, keys("x-1"), z.apply(z.put(resource.KindDataplane, "m", "x-1", server("10.0.3.1", "x"))))

	// The mesh turns on mutual TLS: everything is withheld.
	touched := z.apply(z.put(resource.KindMesh, "", "m", `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`))
	for key := range keys("web-1", "web-2", "orders-1") {
		require.True(t, touched[key], "%s", key)
	}
	require.Zero(t, z.set("web-1").Len())
	require.Contains(t, z.set("web-1").Withheld, "mutual TLS")
}

// What proxies chose is kept for as long as they have a stream: after that, neither the
// feed nor the world works for them.
func TestADataplaneWithoutAStreamIsNotFollowed(t *testing.T) {
	z := started(t)
	key := policy.DataplaneKey("m", "web-1")
	before, err := z.feed.Resources(key, xds.GRPC)
	require.NoError(t, err)
	nothingIsKept := func() {
		t.Helper()
		require.Empty(t, z.feed.proxies)
		require.Empty(t, z.feed.users)
		require.Empty(t, z.feed.shapes)
		require.Empty(t, z.feed.follows)
		// The world names as changed only what is followed.
		name := fmt.Sprintf("backend-%d", z.revision)
		require.Equal(t, keys(name), z.apply(z.put(resource.KindDataplane, "m", name, server("10.0.1.9", "backend"))))
	}
	nothingIsKept()

	first, second := z.feed.Follow(key), z.feed.Follow(key)
	set := z.set("web-1") // a third time
	require.NotEmpty(t, changed(before, set))
	first()
	first() // once is all that it counts
	second()
	same := z.set("web-1")
	require.Empty(t, changed(set, same))
	require.Len(t, z.apply(z.put(resource.KindDataplane, "m", "backend-1", server("10.0.1.2", "backend"))), 2, "backend-1, and web-1 which sends to it")
	require.Len(t, changed(same, z.set("web-1")), 1)
	z.unfollow("web-1")
	nothingIsKept()
}

func TestWhatCannotBeServed(t *testing.T) {
	z := started(t)
	_, err := z.feed.Resources(policy.DataplaneKey("m", "none"), xds.GRPC)
	require.ErrorIs(t, err, xds.ErrNoDataplane)
	_, err = z.feed.Resources(policy.DataplaneKey("m", "web-1"), "other")
	require.ErrorIs(t, err, xds.ErrDialect)
}

// Whatever happens, a proxy's set is what is made from scratch, every proxy that is
// followed and whose set is not what was returned last has been named since, and nothing is kept of what is gone.
func TestAFeedIsWhatIsMadeFromScratch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		z := started(t)
		dialect := rapid.SampledFrom([]xds.Dialect{xds.GRPC, xds.Envoy}).Draw(t, "dialect")
		if dialect == xds.Envoy {
			// A service without any inbound speaks what it spoke last, which is not made from
			// scratch: each keeps one, of the protocol that leaves the choice to the others.
			for _, service := range []string{"backend", "orders"} {
				z.apply(z.put(resource.KindDataplane, "m", service+"-0", strings.Replace(server("10.0.9.1", service), `"tags":{`, `"tags":{"kuma.io/protocol":"grpc",`, 1)))
			}
		}
		scratchOf := map[xds.Dialect]func(*policy.Matcher, *world.World, resource.Key, resource.Revision) (*xds.Set, error){
			xds.GRPC: grpc.Proxy, xds.Envoy: envoy.Proxy,
		}[dialect]
		names := []string{"web-1", "web-2", "backend-1", "orders-1", "web-3"}
		versions, named := map[string]string{}, map[string]bool{}
		asked := map[string]bool{} // since it is followed
		check := func(touched map[resource.Key]bool) {
			for _, name := range names {
				key := policy.DataplaneKey("m", name)
				now := ""
				require.NoError(t, z.matching.Read(func(m *policy.Matcher, asOf resource.Revision) error {
					scratch := world.New("east")
					scratch.Reset(z.store.View())
					want, err := scratchOf(m, scratch, key, asOf)
					if errors.Is(err, xds.ErrNoDataplane) {
						return nil
					}
					require.NoError(t, err)
					for r := range want.All() {
						now += r.Ref().String() + r.Version
					}
					now += want.Withheld
					return nil
				}))
				named[name] = named[name] || touched[key]
				if now != versions[name] && asked[name] {
					require.True(t, named[name], "%s is not named", name)
				}
				if rapid.Bool().Draw(t, "ask "+name) {
					versions[name], named[name], asked[name] = now, false, z.followed[name] != nil
					set, err := z.feed.Resources(key, dialect)
					if now == "" {
						require.ErrorIs(t, err, xds.ErrNoDataplane)
						continue
					}
					require.NoError(t, err)
					require.Equal(t, z.revision, set.AsOf)
					got := set.Withheld
					for r := range set.All() {
						got = r.Ref().String() + r.Version + got
					}
					require.Len(t, got, len(now))
					for r := range set.All() {
						require.Contains(t, now, r.Ref().String()+r.Version)
					}
				}
			}
		}
		for _, name := range names[:3] {
			z.follow(name)
		}
		check(nil)
		pick := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(t, label) }
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			if name := pick("toggle", append(names, "none")...); z.followed[name] != nil {
				z.unfollow(name)
				delete(asked, name)
			} else {
				z.follow(name)
			}
			var op store.Op
			remove := pick("remove", "no", "no", "yes") == "yes"
			switch pick("what", "dataplane", "policy", "route", "mesh") {
			case "dataplane":
				name := pick("dataplane", names...)
				spec := caller(fmt.Sprintf("10.0.0.%s", pick("address", "1", "2")))
				if pick("role", "caller", "server") == "server" {
					spec = server("10.0.1."+pick("server address", "1", "2"), pick("service", "backend", "orders"))
					spec = strings.Replace(spec, `"tags":{`, `"tags":{"kuma.io/protocol":"`+pick("protocol", "tcp", "http", "grpc")+`",`, 1)
				}
				op = z.put(resource.KindDataplane, "m", name, spec)
			case "policy":
				op = z.put(resource.KindTimeout, "m", pick("policy", "t", "u"), timeout(pick("to", "backend", "orders", "*"), pick("span", "1s", "2s")))
			case "route":
				op = z.put(resource.KindGRPCRoute, "m", "r", `{"parentRefs":[{"kind":"Service","name":"`+pick("parent", "backend", "orders")+`"}],"rules":[{"backendRefs":[{"name":"`+pick("to", "backend", "orders")+`"}]}]}`)
			default:
				remove = false
				op = z.put(resource.KindMesh, "", "m", pick("mesh", `{}`, `{"routing":{"localityAwareLoadBalancing":true}}`, `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`))
			}
			if remove {
				if _, exists := z.store.View().Get(op.Key); !exists {
					continue
				}
				op = store.Delete(op.Key)
			}
			check(z.apply(op))
		}
		for _, name := range slices.Clone(names) {
			key := policy.DataplaneKey("m", name)
			if _, exists := z.store.View().Get(key); exists {
				z.apply(store.Delete(key))
			}
		}
		require.Empty(t, z.feed.proxies)
		require.Empty(t, z.feed.users)
		require.Empty(t, z.feed.shapes)
	})
}
