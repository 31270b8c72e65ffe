// Package feed makes the resources of a zone's proxies and keeps them until a change
// touches them: it is the xds.Source of a zone.
//
// Guarantees. A proxy's set is what package generate makes of the current state,
// whatever changes led there, but for the protocol of a service that has no dataplane,
// which is what it last spoke. A change makes work for the proxies that it touches and
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
	"sync"

	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/shadow"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/generate/envoy"
	"meridian/internal/xds/generate/grpc"
	"meridian/internal/xds/world"
)

// Feed is an xds.Source. It is safe for concurrent use.
type Feed struct {
	matching *livematch.Matching
	world    *world.World

	// tried are dataplanes for which something else is tried, as of the change that is
	// being taken in. Guarded by the matching's lock.
	tried []resource.Key

	mu      sync.Mutex // taken with the matching read or updated; guards everything below
	touch   func([]resource.Key)
	follows map[resource.Key]int            // how often Follow was called and not undone
	proxies map[proxyKey]*proxy             // of dataplanes that are followed
	users   map[world.Key]map[proxyKey]bool // endpoints → proxies that have them
	shapes  map[shapeKey]*shape
	// callees are the faults of inbounds that were found since a change touched any.
	callees map[world.Key]calledNow
	// made counts the shapes that were generated.
	made uint64
}

// proxyKey is one dataplane and the kind of its proxy: a dataplane may have an Envoy and
// gRPC clients.
type proxyKey struct {
	resource.Key
	dialect xds.Dialect
}

// dialect makes the resources of one kind of proxy.
type dialect struct {
	// inbounds makes what is the dataplane's own. ruled is whether it depends on rules.
	ruled    bool
	inbounds func(resource.Key, world.Mesh, *resource.Dataplane, []policy.Rule, *generate.Tried) ([]*xds.Resource, error)
	// shared makes what dataplanes share whose spelling is equal, with their rules, the
	// settings of their mesh, the routes of their services and the protocols, or the use of TLS,
	// that it lists.
	shared   func(resource.MeshName, world.Mesh, *resource.Dataplane, []policy.Rule, *generate.Tried, func(string) []*resource.Resource, func(resource.TagSelector) world.Protocol, func(resource.TagSelector) bool, generate.Callees) (*generate.Outbounds, error)
	spelling func(*resource.Dataplane) string
}

var dialects = map[xds.Dialect]dialect{
	xds.GRPC: {
		inbounds: func(key resource.Key, settings world.Mesh, spec *resource.Dataplane, _ []policy.Rule, _ *generate.Tried) ([]*xds.Resource, error) {
			return grpc.Inbounds(key.Mesh, settings, spec)
		},
		shared: func(mesh resource.MeshName, settings world.Mesh, spec *resource.Dataplane, rules []policy.Rule, _ *generate.Tried, routes func(string) []*resource.Resource, _ func(resource.TagSelector) world.Protocol, tls func(resource.TagSelector) bool, callees generate.Callees) (*generate.Outbounds, error) {
			return grpc.Shared(mesh, settings, spec, rules, routes, tls, callees)
		},
		spelling: grpc.Spelling,
	},
	xds.Envoy: {
		ruled:    true,
		inbounds: envoy.Inbounds,
		shared: func(mesh resource.MeshName, settings world.Mesh, spec *resource.Dataplane, rules []policy.Rule, tried *generate.Tried, routes func(string) []*resource.Resource, protocol func(resource.TagSelector) world.Protocol, _ func(resource.TagSelector) bool, _ generate.Callees) (*generate.Outbounds, error) {
			return envoy.Shared(mesh, settings, spec, rules, tried, routes, protocol)
		},
		spelling: envoy.Spelling,
	},
}

// proxy is what was made for one dataplane.
type proxy struct {
	// stale is set when a change may have touched it.
	stale bool
	set   *xds.Set
	shape *shape
	// dataplane, rules, what is tried and settings, those of its mesh, are what own was made of.
	dataplane *resource.Dataplane
	rules     *policy.Rule
	tried     triedKey
	settings  world.Mesh
	own       []*xds.Resource
	endpoints map[world.Key]bool
}

// shapeKey tells what dataplanes have to share to share resources, together with the
// routes of their services.
type shapeKey struct {
	mesh     resource.MeshName
	settings world.Mesh
	dialect  xds.Dialect
	// ports are what is shared of the dataplane, spelled so that equal ones, and only
	// they, have equal spellings.
	ports string
	// rules is the first of the rules, which matching shares between dataplanes; nil
	// when there is none.
	rules *policy.Rule
	tried triedKey
}

// triedKey tells what is tried on dataplanes apart, for proxies that try something: whether
// something is, and the first of its rules.
type triedKey struct {
	some  bool
	rules *policy.Rule
}

func keyOfTried(t *generate.Tried) triedKey {
	key := triedKey{some: t != nil}
	if t != nil && len(t.Rules) > 0 {
		key.rules = &t.Rules[0]
	}
	return key
}

// calledNow are the faults of the inbounds behind endpoints.
type calledNow struct {
	of     *world.Endpoints
	called generate.Called
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
		follows: map[resource.Key]int{}, proxies: map[proxyKey]*proxy{}, users: map[world.Key]map[proxyKey]bool{}, shapes: map[shapeKey]*shape{},
		callees: map[world.Key]calledNow{},
	}
	_ = matching.Read(func(m *policy.Matcher, _ resource.Revision) error { // it does not fail
		if trial, ok := policy.FollowerOf[*shadow.Trial](m); ok {
			trial.OnTouch(func(dataplanes []resource.Key) { f.tried = append(f.tried, dataplanes...) })
		}
		return nil
	})
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
	f.struck(touched, dirty)
	for _, key := range f.tried {
		dirty[key] = true
	}
	f.tried = nil
	for _, key := range changes.Dataplanes {
		dirty[key] = true
		if _, exists := f.world.Dataplane(key); !exists {
			f.drop(key)
		}
	}
	for _, e := range changes.Endpoints {
		for key := range f.users[e] {
			dirty[key.Key] = true
		}
	}
	if len(changes.Meshes)+len(changes.Routed) > 0 {
		for key, p := range f.proxies {
			if slices.Contains(changes.Meshes, key.Mesh) || p.routed(key.Mesh, changes.Routed) {
				dirty[key.Key] = true
			}
		}
	}
	for key := range dirty {
		for d := range dialects {
			if p := f.proxies[proxyKey{key, d}]; p != nil {
				p.stale = true
			}
		}
	}
	if f.touch != nil && len(dirty) > 0 {
		f.touch(slices.SortedFunc(maps.Keys(dirty), resource.Key.Compare))
	}
}

// Certified has a dataplane's proxies use its certificate, or no longer: its agent
// acknowledged that it has one, or none.
func (f *Feed) Certified(dataplane resource.Key, has bool) {
	f.inform(func() bool { return f.world.SetCertified(dataplane, has) })
}

// Unattended has a dataplane be sent no requests that have to be mutual TLS: no agent has
// come for it.
func (f *Feed) Unattended(dataplane resource.Key) {
	f.inform(func() bool { return f.world.SetUnattended(dataplane) })
}

// Listening implements xds.Source. A dataplane with an inbound that its Envoy does not
// serve accepts plaintext there.
func (f *Feed) Listening(dataplane resource.Key, isEnvoy, secure bool) {
	f.inform(func() bool {
		if r, exists := f.world.Dataplane(dataplane); secure && exists {
			secure = !slices.ContainsFunc(envoy.NotServed(r.Spec().(*resource.Dataplane)), func(u envoy.Unserved) bool {
				return u.Attachment.Type == policy.OnInbound
			})
		}
		return f.world.SetListening(dataplane, isEnvoy, secure)
	})
}

// inform takes what is no change of a store.
func (f *Feed) inform(changed func() bool) {
	_ = f.matching.Read(func(*policy.Matcher, resource.Revision) error {
		if changed() {
			f.update(nil)
		}
		return nil
	})
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
	if _, served := dialects[dialect]; !served {
		return nil, fmt.Errorf("%w: %s", xds.ErrDialect, dialect)
	}
	var set *xds.Set
	err := f.matching.Read(func(m *policy.Matcher, asOf resource.Revision) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		var err error
		set, err = f.resources(m, proxyKey{dataplane, dialect}, asOf)
		return err
	})
	return set, err
}

func (f *Feed) resources(m *policy.Matcher, key proxyKey, asOf resource.Revision) (*xds.Set, error) {
	p := f.proxies[key]
	if p != nil && !p.stale {
		same := *p.set
		same.AsOf = asOf
		return &same, nil
	}
	spec, rules, err := generate.Read(m, f.world, key.Key)
	if errors.Is(err, xds.ErrNoDataplane) {
		f.drop(key.Key)
	}
	if err != nil {
		return nil, err
	}
	tried, err := generate.TriedOn(m, key.Key)
	if err != nil {
		return nil, err
	}
	next := &proxy{dataplane: spec, settings: f.world.MeshOf(key.Key), endpoints: map[world.Key]bool{}}
	if reason := generate.Withheld(key.Key, spec, f.world); reason != "" {
		next.set = xds.WithheldSet(asOf, reason)
	} else if err := f.make(m, next, p, key, rules, tried, asOf); err != nil {
		f.release(key, next, p)
		return nil, fmt.Errorf("dataplane %s: %w", key.Name, err)
	}
	if f.follows[key.Key] == 0 {
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
func (f *Feed) make(m *policy.Matcher, next, before *proxy, key proxyKey, rules []policy.Rule, tried *generate.Tried, asOf resource.Revision) (err error) {
	if len(rules) > 0 {
		next.rules = &rules[0]
	}
	d := dialects[key.dialect]
	if d.ruled {
		next.tried = keyOfTried(tried)
	}
	if before != nil && before.dataplane == next.dataplane && (before.rules == next.rules && before.tried == next.tried || !d.ruled) && before.settings == next.settings && before.own != nil {
		next.own = before.own
	} else if next.own, err = d.inbounds(key.Key, next.settings, next.dataplane, rules, tried); err != nil {
		return err
	} else if before != nil {
		keep(next.own, before.own)
	}
	if next.shape, err = f.shapeOf(m, key, next, rules, tried, before); err != nil {
		return err
	}
	next.shape.users++
	follow := func(s resource.TagSelector) *world.Endpoints {
		e := f.world.Follow(key.Mesh, s)
		next.endpoints[e.Key] = true
		if f.users[e.Key] == nil {
			f.users[e.Key] = map[proxyKey]bool{}
		}
		f.users[e.Key][key] = true
		return e
	}
	for _, p := range next.shape.outbounds.Protocols {
		follow(p.Selector)
	}
	next.set, err = generate.Assemble(asOf, next.own, next.shape.outbounds, key.dialect, follow)
	return err
}

// shapeOf returns what a dataplane shares with others of its shape, made if need be.
func (f *Feed) shapeOf(m *policy.Matcher, of proxyKey, next *proxy, rules []policy.Rule, tried *generate.Tried, before *proxy) (*shape, error) {
	mesh, d, spec := of.Mesh, dialects[of.dialect], next.dataplane
	key := shapeKey{mesh: mesh, settings: next.settings, dialect: of.dialect, ports: d.spelling(spec), tried: next.tried}
	if len(rules) > 0 {
		key.rules = &rules[0]
	}
	outbounds := generate.Outbound(spec)
	var routes []*resource.Resource
	for i := range outbounds {
		routes = append(routes, f.world.Routes(mesh, outbounds[i].Service)...)
	}
	protocol := func(s resource.TagSelector) world.Protocol { return f.world.Endpoints(mesh, s).Protocol }
	tls := func(s resource.TagSelector) bool { return f.world.Endpoints(mesh, s).AllTLS() }
	callees := f.calleesOf(m, mesh)
	known := f.shapes[key]
	if known != nil && slices.Equal(known.routes, routes) && sameCallees(known.outbounds, callees) && !slices.ContainsFunc(known.outbounds.Protocols, func(p generate.SelectorProtocol) bool {
		return protocol(p.Selector) != p.Protocol
	}) && !slices.ContainsFunc(known.outbounds.Secured, func(p generate.SelectorTLS) bool { return tls(p.Selector) != p.TLS }) {
		return known, nil
	}
	made, err := d.shared(mesh, next.settings, spec, rules, tried, func(service string) []*resource.Resource { return f.world.Routes(mesh, service) }, protocol, tls, callees)
	if err != nil {
		return nil, err
	}
	f.made++
	if known == nil && before != nil {
		known = before.shape
	}
	if known != nil {
		keep(made.Resources, known.outbounds.Resources)
	}
	s := &shape{key: key, routes: routes, outbounds: made}
	f.shapes[key] = s
	return s, nil
}

// calleesOf returns the faults of a mesh's inbounds, from what was found before where that
// still holds.
func (f *Feed) calleesOf(m *policy.Matcher, mesh resource.MeshName) generate.Callees {
	endpoints := func(s resource.TagSelector) *world.Endpoints { return f.world.Endpoints(mesh, s) }
	find := generate.CalleesOf(m, f.world, mesh, endpoints)
	return func(s resource.TagSelector) (generate.Called, error) {
		key, now := world.KeyOf(mesh, s), endpoints(s)
		if known, ok := f.callees[key]; ok && known.of == now {
			return known.called, nil
		}
		called, err := find(s)
		if err == nil && len(f.users[key]) > 0 {
			f.callees[key] = calledNow{now, called}
		}
		return called, err
	}
}

// sameCallees reports whether what was made is by the faults of now.
func sameCallees(made *generate.Outbounds, callees generate.Callees) bool {
	for _, before := range made.Callees {
		now, err := callees(before.Selector)
		if err != nil || !now.Same(before.Called) {
			return false
		}
	}
	return true
}

// struck adds the clients of inbounds on which a change touched faults.
func (f *Feed) struck(touched []policy.Touch, dirty map[resource.Key]bool) {
	services := map[world.Service]bool{}
	for _, t := range touched {
		faulty := t.Gone || slices.ContainsFunc(t.Targets, func(target policy.Target) bool {
			return target.Attachment.Type == policy.OnInbound && slices.Contains(generate.FaultKinds, target.Kind)
		})
		if !faulty {
			continue
		}
		clear(f.callees)
		r, ok := f.world.Dataplane(t.Dataplane)
		if !ok {
			continue // its endpoints changed
		}
		for _, tags := range r.Spec().(*resource.Dataplane).TagSets() {
			services[world.Service{Mesh: t.Dataplane.Mesh, Name: tags[resource.ServiceTag]}] = true
		}
	}
	if len(services) == 0 {
		return
	}
	for e, users := range f.users {
		if !services[world.Service{Mesh: e.Mesh, Name: e.Service}] {
			continue
		}
		for key := range users {
			if key.dialect == xds.GRPC {
				dirty[key.Key] = true
			}
		}
	}
}

// keep puts what was made before in the place of what is equal.
func keep(made, before []*xds.Resource) {
	known := make(map[xds.Ref]*xds.Resource, len(before))
	for _, r := range before {
		known[r.Ref()] = r
	}
	for i, r := range made {
		if old := known[r.Ref()]; old != nil && old.Version == r.Version && slices.Equal(old.Origins, r.Origins) {
			made[i] = old
		}
	}
}

// drop forgets the proxies of a dataplane.
func (f *Feed) drop(dataplane resource.Key) {
	for d := range dialects {
		key := proxyKey{dataplane, d}
		if p := f.proxies[key]; p != nil {
			delete(f.proxies, key)
			f.release(key, p, nil)
		}
	}
}

// release gives up what one state of a proxy uses and the other, which may be nil, does
// not.
func (f *Feed) release(key proxyKey, p, other *proxy) {
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
			delete(f.callees, e)
			f.world.Forget(e)
		}
	}
}

var _ xds.Source = (*Feed)(nil)
