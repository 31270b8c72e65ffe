package world

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

func dataplane(name string) resource.Meta {
	return resource.Meta{Key: resource.Key{Kind: resource.KindDataplane, Mesh: "m", Name: name}}
}

// describe prints endpoints as lines of priority, zone and address.
func describe(e *Endpoints) (lines []string) {
	for _, l := range e.Localities {
		for _, at := range l.Endpoints {
			lines = append(lines, fmt.Sprintf("%d %s %s", l.Priority, l.Zone, net.JoinHostPort(at.Address, strconv.Itoa(int(at.Port)))))
		}
	}
	return lines
}

func TestEndpointsOfASelector(t *testing.T) {
	world := policytest.NewWorld()
	put := func(name, zone, inbound string) {
		world.Put(t, dataplane(name), `{"networking":{"address":"10.0.0.`+name[len(name)-1:]+`","inbound":[`+strings.ReplaceAll(inbound, "ZONE", `"kuma.io/zone":"`+zone+`"`)+`]}}`)
	}
	put("a-1", "east", `{"port":80,"tags":{"kuma.io/service":"a","version":"v1",ZONE}}`)
	put("a-2", "east", `{"port":80,"address":"10.9.0.2","tags":{"kuma.io/service":"a","version":"v2",ZONE}},{"port":81,"tags":{"kuma.io/service":"admin",ZONE}}`)
	put("a-3", "west", `{"port":80,"tags":{"kuma.io/service":"a","version":"v2",ZONE}}`)
	put("a-4", "east", `{"port":80,"health":{"ready":false},"tags":{"kuma.io/service":"a","version":"v1",ZONE}}`)
	draining := dataplane("a-6")
	draining.Labels = map[string]string{resource.DrainingLabel: resource.Draining}
	world.Put(t, draining, `{"networking":{"address":"10.0.0.6","inbound":[{"port":80,"tags":{"kuma.io/service":"a","version":"v2","kuma.io/zone":"east"}}]}}`)
	put("b-1", "east", `{"port":80,"tags":{"kuma.io/service":"a","version":"v1",ZONE}}`) // the address of a-1
	put("c-5", "east", `{"port":80,"address":"fd00::1","tags":{"kuma.io/service":"c",ZONE}}`)

	for name, c := range map[string]struct {
		mesh     string
		selector resource.TagSelector
		want     []string
	}{
		"by service, one that is not ready and one that drains left out, an address once": {
			selector: resource.TagSelector{"kuma.io/service": "a"},
			want:     []string{"0 east 10.0.0.1:80", "0 east 10.9.0.2:80", "0 west 10.0.0.3:80"},
		},
		"by more tags":           {selector: resource.TagSelector{"kuma.io/service": "a", "version": "v2"}, want: []string{"0 east 10.9.0.2:80", "0 west 10.0.0.3:80"}},
		"by a tag's presence":    {selector: resource.TagSelector{"kuma.io/service": "admin", "version": "*"}},
		"the own zone first":     {mesh: `{"routing":{"localityAwareLoadBalancing":true}}`, selector: resource.TagSelector{"kuma.io/service": "a", "version": "v2"}, want: []string{"0 east 10.9.0.2:80", "1 west 10.0.0.3:80"}},
		"an address of 16 bytes": {selector: resource.TagSelector{"kuma.io/service": "c"}, want: []string{"0 east [fd00::1]:80"}},
		"nothing":                {selector: resource.TagSelector{"kuma.io/service": "z"}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.mesh == "" {
				c.mesh = "{}"
			}
			world.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, c.mesh)
			w := New("east")
			w.Reset(world.View())
			require.Equal(t, c.want, describe(w.Endpoints("m", c.selector)))
		})
	}
	// Without an endpoint in the own zone, the others are not second to anything.
	w := New("north")
	world.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, `{"routing":{"localityAwareLoadBalancing":true}}`)
	w.Reset(world.View())
	require.Equal(t, []string{"0 east 10.9.0.2:80", "0 west 10.0.0.3:80"}, describe(w.Endpoints("m", resource.TagSelector{"kuma.io/service": "a", "version": "v2"})))
}

// Where every connection is mutual TLS, a dataplane without a certificate is no endpoint:
// one that can have none, and one that no agent has come for. LeftOut says so.
func TestADataplaneWithoutACertificateIsNoEndpoint(t *testing.T) {
	world := policytest.NewWorld()
	put := func(name, address, more string) resource.Key {
		return world.Put(t, dataplane(name), `{"networking":{"address":"`+address+`","inbound":[{"port":80,"tags":{"kuma.io/service":"a"`+more+`}}]}}`)
	}
	put("a-1", "10.0.0.1", `,"kuma.io/zone":"east"`)
	alone := put("a-2", "10.0.0.2", `,"kuma.io/zone":"east"`)
	long := put("a-3", "10.0.0.3", `,"kuma.io/zone":"east","long":"`+strings.Repeat("x", 3000)+`"`)
	put("a-4", "10.0.0.4", `,"kuma.io/zone":"west"`)
	w := New("east")
	mesh := func(spec string) {
		changed := world.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, spec)
		w.Update(world.View(), []resource.Key{changed})
	}
	mtls := func(mode string) string {
		return `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin","mode":"` + mode + `"}]}}`
	}
	w.Reset(world.View())
	mesh("{}")
	w.Follow("m", resource.TagSelector{"kuma.io/service": "a"})
	is := func(want ...string) {
		t.Helper()
		var got []string
		for _, line := range describe(w.Endpoints("m", resource.TagSelector{"kuma.io/service": "a"})) {
			got = append(got, strings.TrimSuffix(line[strings.LastIndex(line, ".")+1:], ":80"))
		}
		require.Equal(t, want, got)
	}
	is("1", "2", "3", "4")
	require.True(t, w.SetUnattended(alone))
	require.False(t, w.SetUnattended(alone), "nothing new")
	for _, spec := range []string{"{}", mtls("PERMISSIVE")} {
		mesh(spec)
		is("1", "2", "3", "4")
		require.Empty(t, w.LeftOut(alone))
		require.Empty(t, w.LeftOut(long))
	}
	mesh(mtls("STRICT"))
	is("1", "4")
	require.Contains(t, w.LeftOut(alone), "no agent has come for its certificate")
	require.Contains(t, w.LeftOut(long), "give it fewer or shorter tags")
	require.Empty(t, w.LeftOut(dataplane("a-1").Key))
	require.Empty(t, w.LeftOut(dataplane("a-4").Key), "another zone gives it one")
	require.True(t, w.SetCertified(alone, true))
	is("1", "2", "4")
	require.Empty(t, w.LeftOut(alone))
}

func TestNamesOfEndpoints(t *testing.T) {
	name := func(mesh resource.MeshName, selector resource.TagSelector) string {
		return KeyOf(mesh, selector).Name()
	}
	require.Equal(t, name("m", resource.TagSelector{"kuma.io/service": "a", "v": "1"}), name("m", resource.TagSelector{"v": "1", "kuma.io/service": "a"}))
	distinct := []string{
		name("m", resource.TagSelector{"kuma.io/service": "a"}),
		name("n", resource.TagSelector{"kuma.io/service": "a"}),
		name("m", resource.TagSelector{"kuma.io/service": "a", "v": "1"}),
		name("m", resource.TagSelector{"kuma.io/service": "a", "v": "12"}),
		name("m", resource.TagSelector{"kuma.io/service": "a.b"}),
		name("m", resource.TagSelector{"kuma.io/service": "a:b"}),
	}
	seen := map[string]bool{}
	for _, n := range distinct {
		require.NotContains(t, n, ":")
		require.NotContains(t, n, ".")
		seen[n] = true
	}
	require.Len(t, seen, len(distinct))
	require.Less(t, len(name("m", resource.TagSelector{"kuma.io/service": strings.Repeat("s", 1000)})), 100)
}

// draw is one random state of a small world.
type draw struct{ policytest.World }

func (d draw) change(t *rapid.T) []resource.Key {
	meshes := []resource.MeshName{"m", "n"}
	mesh := rapid.SampledFrom(meshes).Draw(t, "mesh")
	pick := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(t, label) }
	remove := func(key resource.Key) []resource.Key {
		delete(d.Resources, key)
		return []resource.Key{key}
	}
	switch pick("what", "dataplane", "dataplane", "dataplane", "route", "mesh") {
	case "mesh":
		key := resource.Key{Kind: resource.KindMesh, Name: string(mesh)}
		if pick("remove", "no", "yes") == "yes" {
			return remove(key)
		}
		return []resource.Key{d.Put(t, resource.Meta{Key: key}, pick("mesh spec", `{}`, `{"routing":{"localityAwareLoadBalancing":true}}`, `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`))}
	case "route":
		key := resource.Key{Kind: resource.Kind(pick("route kind", string(resource.KindHTTPRoute), string(resource.KindGRPCRoute))), Mesh: mesh, Name: pick("route", "r", "s")}
		if pick("remove", "no", "yes") == "yes" {
			return remove(key)
		}
		meta := resource.Meta{Key: key, CreationTime: time.Unix(int64(rapid.IntRange(0, 3).Draw(t, "age")), 0)}
		return []resource.Key{d.Put(t, meta, `{"parentRefs":[{"kind":"Service","name":"`+pick("parent", "a", "b")+`"},{"kind":"`+pick("second", "Service", "Gateway")+`","name":"a"}]}`)}
	default:
		key := resource.Key{Kind: resource.KindDataplane, Mesh: mesh, Name: pick("dataplane", "1", "2", "3", "4")}
		if pick("remove", "no", "no", "yes") == "yes" {
			return remove(key)
		}
		var inbounds []string
		for range rapid.IntRange(1, 3).Draw(t, "inbounds") {
			inbounds = append(inbounds, fmt.Sprintf(`{"port":%s,"health":{"ready":%s},"tags":{"kuma.io/service":%q,"kuma.io/zone":%q,"v":%q}}`,
				pick("port", "80", "81"), pick("ready", "true", "true", "false"), pick("service", "a", "b"), pick("zone", "east", "west"), pick("v", "1", "2")))
		}
		return []resource.Key{d.Put(t, resource.Meta{Key: key}, `{"networking":{"address":"`+pick("address", "10.0.0.1", "10.0.0.2", "10.0.0.3")+`","inbound":[`+strings.Join(inbounds, ",")+`]}}`), key}
	}
}

// Whatever happens, a world shows what one that is built from scratch shows, and
// names as changed what differs and nothing else.
func TestAWorldThatFollowsIsOneFromScratch(t *testing.T) {
	selectors := []resource.TagSelector{
		{"kuma.io/service": "a"},
		{"kuma.io/service": "b"},
		{"kuma.io/service": "a", "v": "1"},
		{"kuma.io/service": "a", "v": "*"},
		{"kuma.io/service": "b", "v": "2"},
		{"kuma.io/service": "b", "v": "2", "kuma.io/zone": "east"},
		{"kuma.io/service": "b", "x": "1"},
	}
	rapid.Check(t, func(t *rapid.T) {
		d := draw{policytest.NewWorld()}
		w := New("east")
		w.Reset(d.View())
		known := map[Key]*Endpoints{}
		routes := map[Service][]*resource.Resource{}
		meshes := map[resource.MeshName]Mesh{}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			var changed []resource.Key
			before := maps.Clone(d.Resources)
			for range rapid.IntRange(1, 3).Draw(t, "changes") {
				changed = append(changed, d.change(t)...)
			}
			w.Update(d.View(), changed)
			got := w.Drain()
			scratch := New("east")
			scratch.Reset(d.View())

			want := Changes{}
			for _, mesh := range []resource.MeshName{"m", "n"} {
				now := scratch.Mesh(mesh)
				require.Equal(t, now, w.Mesh(mesh))
				if now != meshes[mesh] {
					meshes[mesh] = now
					want.Meshes = append(want.Meshes, mesh)
				}
				for _, name := range []string{"a", "b"} {
					id := Service{mesh, name}
					now := scratch.Routes(mesh, name)
					require.Equal(t, now, w.Routes(mesh, name))
					if !slices.Equal(now, routes[id]) {
						routes[id] = now
						require.Contains(t, got.Routed, id)
					}
				}
				for _, selector := range selectors {
					key := KeyOf(mesh, selector)
					now := w.Endpoints(mesh, selector)
					require.Equal(t, describe(scratch.Endpoints(mesh, selector)), describe(now))
					last, followed := known[key]
					if !followed {
						continue
					}
					if describeSame := slices.Equal(describe(last), describe(now)) && last.equal(now); !describeSame {
						want.Endpoints = append(want.Endpoints, key)
						known[key] = now
					} else {
						require.Same(t, last, now)
					}
				}
			}
			slices.SortFunc(want.Endpoints, Key.compare)
			require.Equal(t, want.Meshes, got.Meshes)
			require.Equal(t, want.Endpoints, got.Endpoints)
			for _, key := range changed {
				if key.Kind == resource.KindDataplane && before[key] != d.Resources[key] {
					require.Contains(t, got.Dataplanes, key)
				}
			}
			// Follow and forget something.
			mesh := rapid.SampledFrom([]resource.MeshName{"m", "n"}).Draw(t, "in")
			selector := rapid.SampledFrom(selectors).Draw(t, "selector")
			if key := KeyOf(mesh, selector); known[key] == nil {
				known[key] = w.Follow(mesh, selector)
			} else {
				w.Forget(key)
				delete(known, key)
			}
		}
		// Nothing is kept of what is gone.
		var all []resource.Key
		for key := range d.Resources {
			all = append(all, key)
		}
		clear(d.Resources)
		w.Update(d.View(), all)
		for key := range known {
			w.Forget(key)
		}
		require.Empty(t, w.meshes)
	})
}

// manyInstances is a service with many instances. The version of one of them becomes what is
// given to change, when its result is called.
func manyInstances(t testing.TB, instances int) (w *World, change func(version string) func()) {
	state := policytest.NewWorld()
	put := func(i int, version string) resource.Key {
		return state.Put(t, dataplane(fmt.Sprintf("d-%05d", i)), fmt.Sprintf(
			`{"networking":{"address":"10.%d.%d.%d","inbound":[{"port":80,"tags":{"kuma.io/service":"big","kuma.io/zone":"east","v":%q}}]}}`, i>>16, i>>8&255, i&255, version))
	}
	for i := range instances {
		put(i, "1")
	}
	w = New("east")
	w.Reset(state.View())
	return w, func(version string) func() {
		changed := []resource.Key{put(instances/2, version)}
		view := state.View()
		return func() { w.Update(view, changed) }
	}
}

// Proxies choose selectors: one that a change does not concern costs a comparison with
// what changed, not with the whole service.
func TestAChangeCostsWhatItConcerns(t *testing.T) {
	const instances, unconcerned = 100, 50
	w, change := manyInstances(t, instances)
	all := w.Follow("m", resource.TagSelector{"kuma.io/service": "big"})
	first := w.Follow("m", resource.TagSelector{"kuma.io/service": "big", "v": "1"})
	second := w.Follow("m", resource.TagSelector{"kuma.io/service": "big", "v": "2"})
	for i := range unconcerned {
		w.Follow("m", resource.TagSelector{"kuma.io/service": "big", "x": fmt.Sprint(i)})
	}
	require.Zero(t, w.work)
	change("2")()
	require.Equal(t, work{matches: 2 * (unconcerned + 3), lists: 3}, w.work, "the instance as it was and as it is, and the lists that had or have it")
	require.Equal(t, []Key{first.Key, second.Key}, w.Drain().Endpoints)
	require.Same(t, all, w.Follow("m", resource.TagSelector{"kuma.io/service": "big"}))
	require.Len(t, w.Follow("m", resource.TagSelector{"kuma.io/service": "big", "v": "1"}).Localities[0].Endpoints, instances-1)
	candidates := w.meshes["m"].services["big"].candidates
	require.Empty(t, candidates(resource.TagSelector{"kuma.io/service": "big", "v": "1", "x": "1"}), "nor does one that is followed from now on")
	require.Len(t, candidates(resource.TagSelector{"kuma.io/service": "big", "kuma.io/zone": "east", "v": "2"}), 1)
	change("3")()
	require.Equal(t, work{matches: 4 * (unconcerned + 3), lists: 5}, w.work)
}

// BenchmarkChange changes one of 10,000 instances of a service.
func BenchmarkChange(b *testing.B) {
	for name, selectors := range map[string]func(i int) resource.TagSelector{
		"1000 selectors that match nothing": func(i int) resource.TagSelector {
			return resource.TagSelector{"kuma.io/service": "big", "x": fmt.Sprint(i)}
		},
		"6 selectors that match everything": func(i int) resource.TagSelector {
			return []resource.TagSelector{
				{"kuma.io/service": "big"},
				{"kuma.io/service": "big", "v": "*"},
				{"kuma.io/service": "big", "kuma.io/zone": "*"},
				{"kuma.io/service": "big", "kuma.io/zone": "east"},
				{"kuma.io/service": "big", "kuma.io/zone": "east", "v": "*"},
				{"kuma.io/service": "big", "kuma.io/zone": "*", "v": "*"},
			}[i%6]
		},
	} {
		b.Run(name, func(b *testing.B) {
			w, change := manyInstances(b, 10_000)
			for i := range 1000 {
				w.Follow("m", selectors(i))
			}
			changes := []func(){change("2"), change("1")}
			for i := 0; b.Loop(); i++ {
				changes[i%2]()
			}
		})
	}
}

// BenchmarkFollow begins to follow a selector in a service with 10,000 instances.
func BenchmarkFollow(b *testing.B) {
	for name, selector := range map[string]resource.TagSelector{
		"nothing":    {"kuma.io/service": "big", "x": "1"},
		"everything": {"kuma.io/service": "big", "v": "*"},
	} {
		b.Run(name, func(b *testing.B) {
			w, _ := manyInstances(b, 10_000)
			for b.Loop() {
				w.Forget(w.Follow("m", selector).Key)
			}
		})
	}
}
