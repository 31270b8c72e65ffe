package world

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"

	"meridian/internal/identity"
	"meridian/internal/policy"
	"meridian/internal/resource"
)

// World is the state. It is a policy.Follower: the matcher keeps it up to date, and
// every goroutine that may read the matcher may read it.
type World struct {
	zone resource.ZoneName

	mu     sync.RWMutex // guards everything below
	view   policy.View
	meshes map[resource.MeshName]*mesh
	dirty  Changes
	// revocations are what is revoked in view, and revoked what of it concerns each mesh
	// with mutual TLS: nil for nothing.
	revocations identity.Revocations
	revoked     map[resource.MeshName]*Revoked
	// proxies are how far proxies are that have something of mutual TLS.
	proxies map[resource.Key]proxyTLS
	work    work
}

// work is what Update has done so far.
type work struct {
	// matches counts how often a selector was compared with an instance, lists how
	// often the endpoints of one were worked out, from as many instances as it matches.
	matches, lists uint64
}

// mesh is what is indexed of one mesh, which need not exist as a resource.
type mesh struct {
	settings Mesh
	services map[string]*service
}

// service is everything known of one kuma.io/service.
type service struct {
	// instances are by the name of their dataplane.
	instances map[string][]*instance
	// byTag are the instances with a tag, in order: with one value, and with any. nil
	// until it is asked for.
	byTag map[tagValue][]*instance
	// followed are the selectors that were given to Follow.
	followed map[Key]*followed
	// routes are the routes whose parent the service is, by key.
	routes map[resource.Key]*resource.Resource
	// sorted are the routes in order; nil until it is asked for.
	sorted []*resource.Resource
}

type followed struct {
	selector resource.TagSelector
	// matching are the instances that the selector matches, in order.
	matching  []*instance
	endpoints *Endpoints
}

// change is what an update did to the instances of a service.
type change struct {
	gone, came []*instance
	// all: every list of endpoints may differ, because the mesh has other settings.
	all bool
}

// changes are those of one update.
type changes map[Service]*change

func (c changes) of(id Service) *change {
	if c[id] == nil {
		c[id] = &change{}
	}
	return c[id]
}

// Mesh is what proxies need to know of a mesh. Comparable.
type Mesh struct {
	Exists bool
	// MTLS is whether mutual TLS is enabled.
	MTLS bool
	// Backend is the backend that it is enabled with, and BackendType its type; empty
	// without mutual TLS.
	Backend, BackendType string
	// Permissive is whether plaintext is accepted beside TLS.
	Permissive bool
	// Nameless is whether dataplanes can have no certificates, because names in them cannot
	// be made of the mesh's, where plaintext is accepted: only that is used.
	Nameless bool
	// Revoked is who is denied because a token was revoked; nil for no caller, and without
	// mutual TLS.
	Revoked *Revoked
	// Offers is whether outbounds use TLS to endpoints that accept it, where plaintext is
	// accepted, too: of one dataplane (see MeshOf).
	Offers bool
	// PreferOwnZone is whether endpoints of the own zone are used before others.
	PreferOwnZone bool
	// Logging, Tracing and Metrics are those of the Mesh as JSON; empty without any.
	Logging, Tracing, Metrics string
}

// BuiltinCA is the type of the backends whose certificates zones issue themselves.
const BuiltinCA = resource.BuiltinCA

// Secure is whether only TLS is accepted, so that it is known who calls.
func (m Mesh) Secure() bool { return m.MTLS && !m.Permissive }

// Certified is whether the zone issues certificates to the mesh's dataplanes.
func (m Mesh) Certified() bool { return m.MTLS && resource.ZonesIssue(m.BackendType) && !m.Nameless }

// Changes is what updates changed since the last Drain. Every list is in order, and
// names nothing twice.
type Changes struct {
	// Dataplanes appeared, changed or are gone.
	Dataplanes []resource.Key
	// Meshes have other settings.
	Meshes []resource.MeshName
	// Endpoints are the followed ones that are not what they were.
	Endpoints []Key
	// Routed are the services whose routes changed.
	Routed []Service
}

// Service names a service of a mesh.
type Service struct {
	Mesh resource.MeshName
	Name string
}

// Empty reports whether nothing changed.
func (c *Changes) Empty() bool {
	return len(c.Dataplanes)+len(c.Meshes)+len(c.Endpoints)+len(c.Routed) == 0
}

// New returns an empty world, as a zone of that name sees it.
func New(zone resource.ZoneName) *World {
	w := &World{zone: zone, proxies: map[resource.Key]proxyTLS{}}
	w.Reset(policy.NewSnapshot())
	return w
}

// Reset implements policy.Follower. Everything that was followed is forgotten.
func (w *World) Reset(view policy.View) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.view, w.meshes, w.dirty = view, map[resource.MeshName]*mesh{}, Changes{}
	w.revocations, w.revoked = revokedIn(view), map[resource.MeshName]*Revoked{}
	for r := range view.List(resource.KindMesh, "") {
		w.updateMeshRevoked(resource.MeshName(r.Key().Name))
	}
	for r := range view.List(resource.KindDataplane, "") {
		w.putInstances(r, changes{})
	}
	for _, kind := range routeKinds {
		for r := range view.List(kind, "") {
			w.putRoute(r.Key(), r)
		}
	}
}

var routeKinds = []resource.Kind{resource.KindHTTPRoute, resource.KindGRPCRoute}

// Update implements policy.Follower.
func (w *World) Update(view policy.View, changed []resource.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.view
	w.view = view
	touched := changes{}
	routed := map[Service]bool{}
	seen := map[resource.Key]bool{}
	revoked := false
	for _, key := range changed {
		if seen[key] {
			continue
		}
		seen[key] = true
		revoked = revoked || revokes(key, before, view)
		old, existed := before.Get(key)
		now, exists := view.Get(key)
		if existed && exists && old == now || !existed && !exists {
			continue
		}
		switch key.Kind {
		case resource.KindDataplane:
			w.dirty.Dataplanes = append(w.dirty.Dataplanes, key)
			if existed {
				w.dropInstances(old, touched)
			}
			if exists {
				w.putInstances(now, touched)
			} else {
				delete(w.proxies, key)
			}
		case resource.KindHTTPRoute, resource.KindGRPCRoute:
			if existed {
				w.dropRoute(key, old, routed)
			}
			if exists {
				w.putRoute(key, now)
				for _, name := range parentsOf(now) {
					routed[Service{key.Mesh, name}] = true
				}
			}
		case resource.KindMesh:
			w.updateMesh(before, resource.MeshName(key.Name), touched)
		}
	}
	if revoked {
		w.updateRevoked()
	}
	w.refresh(touched)
	for id := range routed {
		w.dirty.Routed = append(w.dirty.Routed, id)
		w.dropService(id)
	}
}

// updateMesh takes new settings of a mesh.
func (w *World) updateMesh(before policy.View, name resource.MeshName, touched changes) {
	if settingsOf(w.view, name) == settingsOf(before, name) {
		return
	}
	w.updateMeshRevoked(name)
	settings := w.settingsOf(name)
	w.dirty.Meshes = append(w.dirty.Meshes, name)
	if m := w.meshes[name]; m != nil {
		m.settings = settings
		for s := range m.services {
			touched.of(Service{name, s}).all = true
		}
	}
}

func settingsOf(view policy.View, name resource.MeshName) Mesh {
	r, exists := view.Get(resource.Key{Kind: resource.KindMesh, Name: string(name)})
	if !exists {
		return Mesh{}
	}
	spec := r.Spec().(*resource.Mesh)
	settings := Mesh{Exists: true, MTLS: spec.MTLSEnabled()}
	if settings.MTLS {
		settings.Backend = spec.MTLS.EnabledBackend
		for _, b := range spec.MTLS.Backends {
			if b.Name == settings.Backend {
				settings.BackendType, settings.Permissive = b.Type, b.Mode == "PERMISSIVE"
			}
		}
		if settings.Permissive {
			_, err := identity.Pattern(name, nil)
			settings.Nameless = err != nil
		}
	}
	if spec.Routing != nil && spec.Routing.LocalityAwareLoadBalancing != nil {
		settings.PreferOwnZone = *spec.Routing.LocalityAwareLoadBalancing
	}
	settings.Logging, settings.Tracing, settings.Metrics = textOf(spec.Logging), textOf(spec.Tracing), textOf(spec.Metrics)
	return settings
}

// textOf is a part of a mesh as JSON, so that it can be compared; empty for none.
func textOf[T any](part *T) string {
	if part == nil {
		return ""
	}
	text, err := json.Marshal(part)
	if err != nil {
		return "" // it was decoded before
	}
	return string(text)
}

// refresh brings the followed endpoints of services up to date. What it costs is in
// proportion to what changed: a selector that matches nothing of it costs as many
// comparisons as instances changed.
func (w *World) refresh(touched changes) {
	for id, c := range touched {
		m := w.meshes[id.Mesh]
		if m == nil || m.services[id.Name] == nil {
			continue
		}
		s := m.services[id.Name]
		if len(c.gone)+len(c.came) > 0 {
			s.byTag = nil
		}
		for key, f := range s.followed {
			w.work.matches += uint64(len(c.gone) + len(c.came))
			gone, came := matching(f.selector, c.gone), matching(f.selector, c.came)
			if len(gone)+len(came) == 0 && !c.all {
				continue
			}
			f.matching = replace(f.matching, gone, came)
			w.work.lists++
			now := w.assign(key, f.matching, m.settings)
			if len(f.matching) == 0 { // a service that is away for a while speaks what it spoke
				now.Protocol = f.endpoints.Protocol
			}
			if !now.equal(f.endpoints) {
				f.endpoints = now
				w.dirty.Endpoints = append(w.dirty.Endpoints, key)
			}
		}
		w.dropService(id)
	}
}

// find lists the instances that a selector, which names the service, matches, in order.
func (s *service) find(selector resource.TagSelector) []*instance {
	return matching(selector, s.candidates(selector))
}

// candidates are the instances that have the rarest of the tags that a selector wants:
// those that it matches are among them.
func (s *service) candidates(selector resource.TagSelector) []*instance {
	if s.byTag == nil {
		s.byTag = indexByTag(s.instances)
	}
	candidates := s.byTag[tagValue{resource.ServiceTag, selector[resource.ServiceTag]}]
	for tag, value := range selector {
		if with := s.byTag[tagValue{tag, value}]; len(with) < len(candidates) {
			candidates = with
		}
	}
	return candidates
}

// serviceOf returns the state of a service, made if need be.
func (w *World) serviceOf(id Service) *service {
	m := w.meshes[id.Mesh]
	if m == nil {
		m = &mesh{settings: w.settingsOf(id.Mesh), services: map[string]*service{}}
		w.meshes[id.Mesh] = m
	}
	s := m.services[id.Name]
	if s == nil {
		s = &service{
			instances: map[string][]*instance{}, followed: map[Key]*followed{},
			routes: map[resource.Key]*resource.Resource{},
		}
		m.services[id.Name] = s
	}
	return s
}

// dropService forgets a service of which nothing is left, and a mesh of which no
// service is left.
func (w *World) dropService(id Service) {
	m := w.meshes[id.Mesh]
	if m == nil {
		return
	}
	if s := m.services[id.Name]; s != nil && len(s.instances)+len(s.followed)+len(s.routes) == 0 {
		delete(m.services, id.Name)
	}
	if len(m.services) == 0 {
		delete(w.meshes, id.Mesh)
	}
}

func (w *World) putInstances(r *resource.Resource, touched changes) {
	key := r.Key()
	for _, in := range w.instancesOf(r) {
		id := Service{key.Mesh, in.tags[resource.ServiceTag]}
		s := w.serviceOf(id)
		s.instances[key.Name] = append(s.instances[key.Name], in)
		touched.of(id).came = append(touched.of(id).came, in)
	}
}

func (w *World) dropInstances(old *resource.Resource, touched changes) {
	key := old.Key()
	for _, in := range w.instancesOf(old) {
		id := Service{key.Mesh, in.tags[resource.ServiceTag]}
		s := w.serviceOf(id)
		touched.of(id).gone = append(touched.of(id).gone, s.instances[key.Name]...)
		delete(s.instances, key.Name)
	}
}

// parentsOf lists the services that a route is attached to, each once.
func parentsOf(r *resource.Resource) []string {
	var names []string
	parents := r.Spec().(resource.RouteSpec).Parents()
	for i := range parents {
		if p := &parents[i]; p.ParentKind() == "Service" && !slices.Contains(names, p.Name) {
			names = append(names, p.Name)
		}
	}
	return names
}

func (w *World) putRoute(key resource.Key, r *resource.Resource) {
	for _, name := range parentsOf(r) {
		s := w.serviceOf(Service{key.Mesh, name})
		s.routes[key] = r
		s.sorted = nil
	}
}

func (w *World) dropRoute(key resource.Key, old *resource.Resource, routed map[Service]bool) {
	for _, name := range parentsOf(old) {
		id := Service{key.Mesh, name}
		s := w.serviceOf(id)
		delete(s.routes, key)
		s.sorted = nil
		routed[id] = true
	}
}

// Drain returns what changed since the last call, and forgets it.
func (w *World) Drain() Changes {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.dirty
	w.dirty = Changes{}
	slices.SortFunc(c.Dataplanes, resource.Key.Compare)
	c.Dataplanes = slices.Compact(c.Dataplanes)
	slices.Sort(c.Meshes)
	c.Meshes = slices.Compact(c.Meshes)
	slices.SortFunc(c.Endpoints, Key.compare)
	c.Endpoints = slices.Compact(c.Endpoints)
	slices.SortFunc(c.Routed, func(a, b Service) int {
		return cmp.Or(strings.Compare(string(a.Mesh), string(b.Mesh)), strings.Compare(a.Name, b.Name))
	})
	c.Routed = slices.Compact(c.Routed)
	return c
}

func (k Key) compare(other Key) int {
	return cmp.Or(
		strings.Compare(string(k.Mesh), string(other.Mesh)), strings.Compare(k.Service, other.Service),
		strings.Compare(k.selector, other.selector),
	)
}

// Zone returns the zone whose view this is.
func (w *World) Zone() resource.ZoneName { return w.zone }

// Mesh returns the settings of a mesh.
func (w *World) Mesh(name resource.MeshName) Mesh {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if m := w.meshes[name]; m != nil {
		return m.settings
	}
	return w.settingsOf(name)
}

// Dataplane returns a dataplane, or false.
func (w *World) Dataplane(key resource.Key) (*resource.Resource, bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.view.Get(key)
}

// Any reports whether there is a resource of a kind in a mesh.
func (w *World) Any(kind resource.Kind, name resource.MeshName) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for range w.view.List(kind, name) {
		return true
	}
	return false
}

// Endpoints returns the endpoints behind a selector, which names one service exactly.
func (w *World) Endpoints(name resource.MeshName, selector resource.TagSelector) *Endpoints {
	key := KeyOf(name, selector)
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.meshes[name]
	if m == nil || m.services[key.Service] == nil {
		return &Endpoints{Key: key, Protocol: TCP}
	}
	s := m.services[key.Service]
	if f := s.followed[key]; f != nil {
		return f.endpoints
	}
	return w.assign(key, s.find(selector), m.settings)
}

// Follow is Endpoints for who wants to hear of changes: from now on, until Forget,
// Drain names the endpoints when they change.
func (w *World) Follow(name resource.MeshName, selector resource.TagSelector) *Endpoints {
	key := KeyOf(name, selector)
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.serviceOf(Service{name, key.Service})
	f := s.followed[key]
	if f == nil {
		m := w.meshes[name]
		f = &followed{selector: maps.Clone(selector), matching: s.find(selector)}
		f.endpoints = w.assign(key, f.matching, m.settings)
		s.followed[key] = f
	}
	return f.endpoints
}

// Forget ends Follow.
func (w *World) Forget(key Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := Service{key.Mesh, key.Service}
	if m := w.meshes[key.Mesh]; m != nil && m.services[key.Service] != nil {
		delete(m.services[key.Service].followed, key)
		w.dropService(id)
	}
}

// Routes returns the HTTPRoutes and GRPCRoutes whose parent a service is: the oldest
// first, then by key. The slice is shared, and the same one until a route changes.
func (w *World) Routes(name resource.MeshName, serviceName string) []*resource.Resource {
	w.mu.RLock()
	var s *service
	if m := w.meshes[name]; m != nil {
		s = m.services[serviceName]
	}
	if s == nil || len(s.routes) == 0 || s.sorted != nil {
		defer w.mu.RUnlock()
		if s == nil {
			return nil
		}
		return s.sorted
	}
	w.mu.RUnlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	s.sorted = slices.SortedFunc(maps.Values(s.routes), func(a, b *resource.Resource) int {
		x, y := a.Meta(), b.Meta()
		return cmp.Or(x.CreationTime.Compare(y.CreationTime), a.Key().Compare(b.Key()))
	})
	return s.sorted
}

var _ policy.Follower = (*World)(nil)
