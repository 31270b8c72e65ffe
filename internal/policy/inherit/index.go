package inherit

import (
	"slices"
	"sync"

	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/resource"
)

// Index knows the effective policies of every path and follows changes. It
// computes a path when it is asked about, and keeps the result until a change
// touches the path. It is safe for concurrent use.
type Index struct {
	compiler *condition.Compiler

	mu     sync.Mutex // guards everything below
	meshes map[resource.MeshName]*mesh
	// namespaces has the labels of every Namespace that there is, by its name.
	namespaces namespaces
	computed   uint64
	stats      *Stats // nil: not counted since the last change
}

var (
	_ policy.Inheritance = (*Index)(nil)
	_ policy.Follower    = (*Index)(nil)
)

// New returns an index without resources; Reset gives it some. The compiler may
// be shared.
func New(compiler *condition.Compiler) *Index {
	return &Index{compiler: compiler, meshes: map[resource.MeshName]*mesh{}, namespaces: namespaces{}}
}

// mesh is what is indexed of one mesh.
type mesh struct {
	name     resource.MeshName
	mayUnset bool
	// namespaces are those of all meshes.
	namespaces namespaces
	gateways   map[string]*gateway
	routes     map[resource.Key]*route
	// asking has the routes that ask for a gateway, present or not, by its name.
	asking   map[string]map[resource.Key]*route
	policies map[resource.Key]*compiled
	// written counts the policies of each kind.
	written [len(schemas)]int
	// folded has what chains came to, for other ways with the same chain. It is
	// emptied by every change: what stays valid is kept with the legs.
	folded map[chainKey]*outcome
	// targeting has the policies that are not invalid by what they target, the
	// most specific first. The target need not exist.
	targeting map[target][]*compiled
}

// Computed counts how often the chain of a path has been folded: a measure of
// work, for tests and metrics.
func (x *Index) Computed() uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.computed
}

// Reset implements policy.Follower.
func (x *Index) Reset(view policy.View) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.meshes, x.stats = map[resource.MeshName]*mesh{}, nil
	clear(x.namespaces) // which the meshes share
	for r := range view.List(resource.KindNamespace, "") {
		x.namespaces[r.Key().Name] = resource.NamespaceLabels(r)
	}
	for r := range view.List(resource.KindGateway, "") {
		m := x.meshLocked(view, r.Key().Mesh)
		m.gateways[r.Key().Name] = newGateway(r)
	}
	for _, kind := range routeKinds {
		for r := range view.List(kind, "") {
			x.meshLocked(view, r.Key().Mesh).addRoute(newRoute(r))
		}
	}
	for i := range schemas {
		for r := range view.List(schemas[i].kind, "") {
			x.meshLocked(view, r.Key().Mesh).addPolicy(compile(x.compiler, r, i))
		}
	}
}

// Update implements policy.Follower. It drops what was computed for the paths
// that the changes touch, and nothing else.
func (x *Index) Update(view policy.View, changed []resource.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, key := range changed {
		if !concerns(key.Kind) {
			continue
		}
		x.stats = nil
		after, exists := view.Get(key)
		switch key.Kind {
		case resource.KindMesh:
			x.updateMeshLocked(view, resource.MeshName(key.Name))
			continue
		case resource.KindNamespace:
			if delete(x.namespaces, key.Name); exists {
				x.namespaces[key.Name] = resource.NamespaceLabels(after)
			}
			x.attachFromLocked(key.Name)
			continue
		}
		m := x.meshLocked(view, key.Mesh)
		clear(m.folded)
		switch schema := schemaOf(key.Kind); {
		case schema >= 0:
			if m.policies[key] != nil {
				m.removePolicy(key)
			}
			if exists {
				m.addPolicy(compile(x.compiler, after, schema))
			}
		case key.Kind == resource.KindGateway:
			delete(m.gateways, key.Name)
			if exists {
				m.gateways[key.Name] = newGateway(after)
			}
			for _, r := range m.asking[key.Name] {
				m.attach(r)
			}
		default:
			m.removeRoute(key)
			if exists {
				m.addRoute(newRoute(after))
			}
		}
		if m.empty() {
			delete(x.meshes, key.Mesh)
		}
	}
}

// concerns reports whether a change of a resource of a kind can change any path.
func concerns(kind resource.Kind) bool {
	return kind == resource.KindMesh || kind == resource.KindNamespace || Follows(kind)
}

// Follows reports whether an Index knows the conditions of resources of a kind:
// inherited policies, and the objects they can target.
func Follows(kind resource.Kind) bool {
	return kind == resource.KindGateway || slices.Contains(routeKinds, kind) || schemaOf(kind) >= 0
}

// Fork returns an index without resources that judges conditions as this one does, for a
// view that is tried.
func (x *Index) Fork() *Index { return New(x.compiler) }

// Touched returns the meshes in which a change of the keys could change a path; of a
// namespace, all that a view has.
func Touched(view policy.View, changed []resource.Key) map[resource.MeshName]bool {
	touched := map[resource.MeshName]bool{}
	for _, key := range changed {
		switch {
		case key.Kind == resource.KindMesh:
			touched[resource.MeshName(key.Name)] = true
		case key.Kind == resource.KindNamespace:
			for r := range view.List(resource.KindMesh, "") {
				touched[resource.MeshName(r.Key().Name)] = true
			}
		case Follows(key.Kind):
			touched[key.Mesh] = true
		}
	}
	return touched
}

// meshLocked returns what is indexed of a mesh, which need not exist as a
// resource.
func (x *Index) meshLocked(view policy.View, name resource.MeshName) *mesh {
	m := x.meshes[name]
	if m == nil {
		m = &mesh{
			name:       name,
			mayUnset:   mayUnset(view, name),
			namespaces: x.namespaces,
			gateways:   map[string]*gateway{},
			routes:     map[resource.Key]*route{},
			asking:     map[string]map[resource.Key]*route{},
			policies:   map[resource.Key]*compiled{},
			targeting:  map[target][]*compiled{},
			folded:     map[chainKey]*outcome{},
		}
		x.meshes[name] = m
	}
	return m
}

// mayUnset reads the switch of §1.4.
func mayUnset(view policy.View, name resource.MeshName) bool {
	return policy.MeshOf(view, name).Matching.Unset != resource.UnsetForbidden
}

// updateMeshLocked forgets what was computed in a mesh that now treats `unset`
// in another way.
func (x *Index) updateMeshLocked(view policy.View, name resource.MeshName) {
	m := x.meshes[name]
	if m == nil || m.mayUnset == mayUnset(view, name) {
		return
	}
	m.mayUnset = !m.mayUnset
	clear(m.folded)
	for _, r := range m.routes {
		m.attach(r)
	}
}

// attachFromLocked attaches the routes of a namespace whose labels have changed.
func (x *Index) attachFromLocked(namespace string) {
	for _, m := range x.meshes {
		for _, r := range m.routes {
			if r.namespace() == namespace {
				m.attach(r)
			}
		}
	}
}

func (m *mesh) empty() bool { return len(m.gateways)+len(m.routes)+len(m.policies) == 0 }

// addRoute adds a route and the ways that lead to it from the gateways there
// are.
func (m *mesh) addRoute(r *route) {
	m.routes[r.key] = r
	for _, name := range r.parentGateways() {
		if m.asking[name] == nil {
			m.asking[name] = map[resource.Key]*route{}
		}
		m.asking[name][r.key] = r
	}
	m.attach(r)
}

func (m *mesh) removeRoute(key resource.Key) {
	r := m.routes[key]
	if r == nil {
		return
	}
	delete(m.routes, key)
	for _, name := range r.parentGateways() {
		delete(m.asking[name], key)
		if len(m.asking[name]) == 0 {
			delete(m.asking, name)
		}
	}
}

func (m *mesh) addPolicy(c *compiled) {
	m.policies[c.key] = c
	m.written[schemaOf(c.key.Kind)]++
	if c.invalid != "" {
		return
	}
	peers := m.targeting[c.target]
	at, _ := slices.BinarySearchFunc(peers, c, compareSpecific)
	// A new slice: chains that were folded share the old one.
	m.targeting[c.target] = slices.Insert(slices.Clone(peers), at, c)
	m.forget(c.target)
}

func (m *mesh) removePolicy(key resource.Key) {
	c := m.policies[key]
	delete(m.policies, key)
	m.written[schemaOf(key.Kind)]--
	if c.invalid != "" {
		return
	}
	rest := slices.DeleteFunc(slices.Clone(m.targeting[c.target]), func(other *compiled) bool { return other == c })
	if len(rest) == 0 {
		delete(m.targeting, c.target)
	} else {
		m.targeting[c.target] = rest
	}
	m.forget(c.target)
}

// forget drops what was computed for the paths through a target.
func (m *mesh) forget(t target) {
	for l := range m.legsThrough(t) {
		if rule := l.ruleOf(t); rule >= 0 {
			if own := l.own[rule]; own != nil {
				own[t.schema] = nil
			}
			continue
		}
		l.virtual[t.schema] = nil
		for _, own := range l.own {
			own[t.schema] = nil
		}
	}
}

// ruleOf returns the place of the rule that a target is, or -1 when it is
// something larger.
func (l *leg) ruleOf(t target) int {
	if t.kind == resource.KindGateway || t.section == "" {
		return -1
	}
	return slices.Index(l.route.rules, t.section)
}

// legsThrough yields the ways to routes that lead through a target, in no
// particular order.
func (m *mesh) legsThrough(t target) func(yield func(*leg) bool) {
	return func(yield func(*leg) bool) {
		if t.kind != resource.KindGateway {
			r := m.routes[resource.Key{Kind: t.kind, Mesh: m.name, Name: t.name}]
			if r == nil || (t.section != "" && !slices.Contains(r.rules, t.section)) {
				return
			}
			for _, l := range r.legs {
				if !yield(l) {
					return
				}
			}
			return
		}
		for _, r := range m.asking[t.name] {
			for _, l := range r.legs {
				through := l.gateway.key.Name == t.name &&
					(t.section == "" || l.gateway.listeners[l.listener].Name == t.section)
				if through && !yield(l) {
					return
				}
			}
		}
	}
}

// at returns the effective policy of a kind on the way to a rule, and nil where
// no accepted policy of the kind targets any part of the path (§5.1).
func (x *Index) atLocked(m *mesh, l *leg, rule, schema int) *outcome {
	own := m.targeting[target{schema, l.route.key.Kind, l.route.key.Name, l.route.rules[rule]}]
	slot := &l.virtual[schema]
	if len(own) > 0 {
		if l.own == nil {
			l.own = map[int]*[len(schemas)]*outcome{}
		}
		if l.own[rule] == nil {
			l.own[rule] = new([len(schemas)]*outcome)
		}
		slot = &l.own[rule][schema]
	}
	if *slot == nil {
		*slot = x.computeLocked(m, l, own, schema)
	}
	if *slot == nowhere {
		return nil
	}
	return *slot
}

// nowhere stands for the outcome of a chain without policies.
var nowhere = new(outcome)

// chainKey is what the outcome of a chain depends on, besides the mesh: the
// policies of each level, as the list of them that is replaced when one changes,
// and the objects that they target. Ways with the same chain share its outcome:
// those to all routes without policies of their own, through all listeners
// without any.
type chainKey struct {
	schema                         int
	rule, route, listener, gateway **compiled
	throughRoute, throughGateway   *object
}

// listed identifies a list of policies; nil for none.
func listed(policies []*compiled) **compiled {
	if len(policies) == 0 {
		return nil
	}
	return &policies[0]
}

func (x *Index) computeLocked(m *mesh, l *leg, own []*compiled, schema int) *outcome {
	r, g := &l.route.object, &l.gateway.object
	onRoute := m.targeting[target{schema, r.key.Kind, r.key.Name, ""}]
	var onListener []*compiled
	if listener := l.gateway.listeners[l.listener].Name; listener != "" {
		onListener = m.targeting[target{schema, resource.KindGateway, g.key.Name, listener}]
	}
	onGateway := m.targeting[target{schema, resource.KindGateway, g.key.Name, ""}]
	key := chainKey{
		schema: schema, rule: listed(own), route: listed(onRoute), listener: listed(onListener), gateway: listed(onGateway),
	}
	var chain []link
	add := func(policies []*compiled, o *object, level int, through **object) {
		for _, c := range policies {
			chain = append(chain, link{compiled: c, object: o, level: level})
			*through = o
		}
	}
	add(own, r, levelRule, &key.throughRoute)
	add(onRoute, r, levelRoute, &key.throughRoute)
	add(onListener, g, levelListener, &key.throughGateway)
	add(onGateway, g, levelGateway, &key.throughGateway)
	if len(chain) == 0 {
		return nowhere
	}
	known := m.folded[key]
	if known == nil {
		x.computed++
		known = fold(&schemas[schema], chain, m.mayUnset)
		m.folded[key] = known
	}
	return known
}
