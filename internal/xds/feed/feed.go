// Package feed makes the resources of a zone's proxies and keeps them until a change
// touches them: it is the xds.Source of a zone.
//
// Guarantees. A proxy's set is what package generate makes of the current state,
// whatever changes led there. A change makes work for the proxies that it touches and
// for no other. Dataplanes with equal outbounds and equal rules share one copy of what
// these come to, and all proxies share one copy of each list of endpoints; what did not
// change is the same pointer as before. Only for dataplanes that are followed
// is anything kept: others cost a change nothing.
//
// Non-goals: sending, which package serve does.
package feed

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/generate/grpc"
	"meridian/internal/xds/world"
)

// Feed is an xds.Source. It is safe for concurrent use.
type Feed struct {
	matching *livematch.Matching
	world    *world.World

	mu      sync.Mutex // taken with the matching read or updated; guards everything below
	touch   func([]resource.Key)
	follows map[resource.Key]int                // how often Follow was called and not undone
	proxies map[resource.Key]*proxy             // of dataplanes that are followed
	users   map[world.Key]map[resource.Key]bool // endpoints → proxies that have them
	shapes  map[shapeKey]*shape
	// made counts the shapes that were generated.
	made uint64
}

// proxy is what was made for one dataplane.
type proxy struct {
	// stale is set when a change may have touched it.
	stale bool
	set   *xds.Set
	shape *shape
	// dataplane is what own was made of.
	dataplane *resource.Dataplane
	own       []*xds.Resource
	endpoints map[world.Key]bool
}

// shapeKey tells what dataplanes have to share to share resources, together with the
// routes of their services.
type shapeKey struct {
	mesh resource.MeshName
	// outbounds are spelled so that equal ones, and only they, have equal spellings.
	outbounds string
	// rules is the first of the rules, which matching shares between dataplanes; nil
	// when there is none.
	rules *policy.Rule
}

type shape struct {
	key       shapeKey
	routes    []*resource.Resource
	outbounds *generate.Outbounds
	users     int
}

// New returns the source of a zone. The world follows the matcher of the matching.
func New(matching *livematch.Matching, w *world.World) *Feed {
	f := &Feed{
		matching: matching, world: w,
		follows: map[resource.Key]int{}, proxies: map[resource.Key]*proxy{}, users: map[world.Key]map[resource.Key]bool{}, shapes: map[shapeKey]*shape{},
	}
	matching.OnUpdate(f.update)
	return f
}

// OnTouch implements xds.Source.
func (f *Feed) OnTouch(touch func([]resource.Key)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.touch = touch
}

// Follow implements xds.Source.
func (f *Feed) Follow(dataplane resource.Key) (unfollow func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.follows[dataplane]++
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.follows[dataplane]--; f.follows[dataplane] == 0 {
			delete(f.follows, dataplane)
			f.drop(dataplane)
		}
	})
}

// Made counts how often the outbounds of dataplanes were worked out: a measure of
// work.
func (f *Feed) Made() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made
}

// update learns what a change touched. It is called with the matching locked.
func (f *Feed) update(touched []policy.Touch) {
	changes := f.world.Drain()
	f.mu.Lock()
	defer f.mu.Unlock()
	dirty := map[resource.Key]bool{}
	for _, t := range touched {
		dirty[t.Dataplane] = true
	}
	for _, key := range changes.Dataplanes {
		dirty[key] = true
		if _, exists := f.world.Dataplane(key); !exists {
			f.drop(key)
		}
	}
	for _, e := range changes.Endpoints {
		for key := range f.users[e] {
			dirty[key] = true
		}
	}
	if len(changes.Meshes)+len(changes.Routed) > 0 {
		for key, p := range f.proxies {
			if slices.Contains(changes.Meshes, key.Mesh) || p.routed(key.Mesh, changes.Routed) {
				dirty[key] = true
			}
		}
	}
	for key := range dirty {
		if p := f.proxies[key]; p != nil {
			p.stale = true
		}
	}
	if f.touch != nil && len(dirty) > 0 {
		f.touch(slices.SortedFunc(maps.Keys(dirty), resource.Key.Compare))
	}
}

// routed reports whether a proxy sends to a service whose routes changed.
func (p *proxy) routed(mesh resource.MeshName, changed []world.Service) bool {
	if p.dataplane == nil {
		return false
	}
	return slices.ContainsFunc(changed, func(s world.Service) bool {
		return s.Mesh == mesh && slices.ContainsFunc(p.dataplane.Outbounds(), func(o resource.Outbound) bool { return o.Service() == s.Name })
	})
}

// Resources implements xds.Source.
func (f *Feed) Resources(dataplane resource.Key, dialect xds.Dialect) (*xds.Set, error) {
	if dialect != xds.GRPC {
		return nil, fmt.Errorf("%w: %s", xds.ErrDialect, dialect)
	}
	var set *xds.Set
	err := f.matching.Read(func(m *policy.Matcher, asOf resource.Revision) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		var err error
		set, err = f.resources(m, dataplane, asOf)
		return err
	})
	return set, err
}

func (f *Feed) resources(m *policy.Matcher, key resource.Key, asOf resource.Revision) (*xds.Set, error) {
	p := f.proxies[key]
	if p != nil && !p.stale {
		same := *p.set
		same.AsOf = asOf
		return &same, nil
	}
	spec, rules, err := generate.Read(m, f.world, key)
	if errors.Is(err, xds.ErrNoDataplane) {
		f.drop(key)
	}
	if err != nil {
		return nil, err
	}
	next := &proxy{dataplane: spec, endpoints: map[world.Key]bool{}}
	if reason := grpc.Withheld(key.Mesh, f.world.Mesh(key.Mesh)); reason != "" {
		next.set = xds.WithheldSet(asOf, reason)
	} else if err := f.make(next, p, key, rules, asOf); err != nil {
		f.release(key, next, p)
		return nil, fmt.Errorf("dataplane %s: %w", key.Name, err)
	}
	if f.follows[key] == 0 {
		f.release(key, next, nil)
		return next.set, nil
	}
	f.proxies[key] = next
	if p != nil {
		f.release(key, p, next)
	}
	return next.set, nil
}

// make fills in what a proxy is sent; before is what it was sent last, or nil.
func (f *Feed) make(next, before *proxy, key resource.Key, rules []policy.Rule, asOf resource.Revision) (err error) {
	if before != nil && before.dataplane == next.dataplane && before.own != nil {
		next.own = before.own
	} else if next.own, err = grpc.Inbounds(next.dataplane); err != nil {
		return err
	}
	if next.shape, err = f.shapeOf(key.Mesh, next.dataplane, rules, before); err != nil {
		return err
	}
	next.shape.users++
	next.set, err = generate.Assemble(asOf, next.own, next.shape.outbounds, xds.GRPC, func(s resource.TagSelector) *world.Endpoints {
		e := f.world.Follow(key.Mesh, s)
		next.endpoints[e.Key] = true
		if f.users[e.Key] == nil {
			f.users[e.Key] = map[resource.Key]bool{}
		}
		f.users[e.Key][key] = true
		return e
	})
	return err
}

// shapeOf returns what the outbounds of a dataplane come to, made if need be.
func (f *Feed) shapeOf(mesh resource.MeshName, spec *resource.Dataplane, rules []policy.Rule, before *proxy) (*shape, error) {
	outbounds := generate.Outbound(spec)
	key := shapeKey{mesh: mesh}
	if len(rules) > 0 {
		key.rules = &rules[0]
	}
	var spelled []byte
	var routes []*resource.Resource
	for i := range outbounds {
		spelled = strconv.AppendUint(append(spelled, '|'), uint64(outbounds[i].Port), 10)
		for _, tag := range slices.Sorted(maps.Keys(outbounds[i].Tags)) {
			spelled = strconv.AppendQuote(strconv.AppendQuote(spelled, tag), outbounds[i].Tags[tag])
		}
		routes = append(routes, f.world.Routes(mesh, outbounds[i].Service)...)
	}
	key.outbounds = string(spelled)
	known := f.shapes[key]
	if known != nil && slices.Equal(known.routes, routes) {
		return known, nil
	}
	made, err := grpc.MakeOutbounds(mesh, outbounds, rules, func(service string) []*resource.Resource { return f.world.Routes(mesh, service) })
	if err != nil {
		return nil, err
	}
	f.made++
	if known == nil && before != nil {
		known = before.shape
	}
	keep(made, known)
	s := &shape{key: key, routes: routes, outbounds: made}
	f.shapes[key] = s
	return s, nil
}

// keep puts what was made before in the place of what is equal.
func keep(made *generate.Outbounds, before *shape) {
	if before == nil {
		return
	}
	known := make(map[xds.Ref]*xds.Resource, len(before.outbounds.Resources))
	for _, r := range before.outbounds.Resources {
		known[r.Ref()] = r
	}
	for i, r := range made.Resources {
		if old := known[r.Ref()]; old != nil && old.Version == r.Version && slices.Equal(old.Origins, r.Origins) {
			made.Resources[i] = old
		}
	}
}

// drop forgets a proxy.
func (f *Feed) drop(key resource.Key) {
	if p := f.proxies[key]; p != nil {
		delete(f.proxies, key)
		f.release(key, p, nil)
	}
}

// release gives up what one state of a proxy uses and the other, which may be nil, does
// not.
func (f *Feed) release(key resource.Key, p, other *proxy) {
	if s := p.shape; s != nil {
		if s.users--; s.users == 0 && f.shapes[s.key] == s {
			delete(f.shapes, s.key)
		}
	}
	for e := range p.endpoints {
		if other != nil && other.endpoints[e] {
			continue
		}
		delete(f.users[e], key)
		if len(f.users[e]) == 0 {
			delete(f.users, e)
			f.world.Forget(e)
		}
	}
}

var _ xds.Source = (*Feed)(nil)
