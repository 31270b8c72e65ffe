package policy

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"meridian/internal/parallel"
	"meridian/internal/resource"
)

// ErrNoDataplane means that no dataplane of that name exists in that mesh.
var ErrNoDataplane = errors.New("no such dataplane")

// ErrNoPolicy means that no policy of that kind and name exists in that mesh.
var ErrNoPolicy = errors.New("no such policy")

// maxMemos bounds how many shapes keep their computed rules. Beyond it they are
// computed again when asked for, which takes microseconds.
const maxMemos = 4096

// compiledAtOnce bounds how many compiled policies a Reset holds before they are filed: a
// compiled one takes several times as much memory.
const compiledAtOnce = 4096

// Matcher knows which policies take effect on which dataplanes, and follows
// changes.
//
// It keeps indexes, not results: policies by the service or tag that they name,
// dataplanes by shape. A result is computed when it is asked for, and kept
// until a change touches it. Safe for concurrent use; an Update waits for
// readers and readers for an Update.
type Matcher struct {
	engines []Engine
	byKind  map[resource.Kind]Engine
	kinds   []resource.Kind // in bytewise order
	// successors are kinds by the sibling that they supersede, and siblings the
	// other way round (§4.11).
	successors, siblings map[resource.Kind]resource.Kind
	followers            []Follower

	computed atomic.Uint64
	memos    atomic.Int64
	prepared atomic.Pointer[preparation] // nil unless a Reset is expected

	mu         sync.RWMutex // guards everything below
	view       View
	meshes     map[resource.MeshName]*meshState
	dataplanes map[resource.Key]*group
	dependents map[resource.Key]map[resource.Key]struct{} // resource → policies compiled from it
}

// Follower is state that is kept up to date together with a matcher, from the
// same views and in the same order: the paths of the inherited policies
// (§5), which do not attach to dataplanes. Its methods are called
// with the matcher locked and must not call it.
type Follower interface {
	// Reset starts again from a view.
	Reset(view View)
	// Update takes a later view in which only the given keys differ.
	Update(view View, changed []resource.Key)
}

// meshState is what is indexed of one mesh.
type meshState struct {
	mesh   *Mesh
	kinds  map[resource.Kind]*kindIndex
	shapes *shapeIndex
	// named counts the policies that name a dataplane, by its name.
	named map[string]int
}

// group is the dataplanes of one shape, and their shared rules once computed.
type group struct {
	*Shape
	members map[string]struct{} // names
	memo    atomic.Pointer[[]Rule]
}

// NewMatcher returns a matcher without resources: call Reset before anything
// else. It panics when two engines answer for one kind, which no input can
// cause.
func NewMatcher(engines ...Engine) *Matcher {
	m := &Matcher{
		engines: engines, byKind: map[resource.Kind]Engine{},
		successors: map[resource.Kind]resource.Kind{}, siblings: map[resource.Kind]resource.Kind{},
	}
	for _, e := range engines {
		if s, ok := e.(Superseder); ok {
			for sibling, successor := range s.Successors() {
				m.successors[sibling], m.siblings[successor] = successor, sibling
			}
		}
		for _, k := range e.Kinds() {
			if m.byKind[k] != nil {
				panic("policy: two engines for kind " + string(k))
			}
			m.byKind[k] = e
			m.kinds = append(m.kinds, k)
		}
	}
	slices.Sort(m.kinds)
	m.Reset(NewSnapshot())
	return m
}

// Following adds state to keep up to date. Call it before Reset.
func (m *Matcher) Following(f Follower) *Matcher {
	m.followers = append(m.followers, f)
	return m
}

// FollowerOf returns the matcher's follower of a type, or false.
func FollowerOf[T Follower](m *Matcher) (T, bool) {
	for _, f := range m.followers {
		if t, ok := f.(T); ok {
			return t, true
		}
	}
	var none T
	return none, false
}

// Reset indexes a view from scratch.
func (m *Matcher) Reset(view View) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.view = view
	m.meshes = map[resource.MeshName]*meshState{}
	m.dataplanes = map[resource.Key]*group{}
	m.dependents = map[resource.Key]map[resource.Key]struct{}{}
	m.memos.Store(0)
	prepared := m.prepared.Swap(nil).take()
	for _, kind := range m.kinds {
		m.addPoliciesLocked(kind, m.adoptLocked(prepared[kind], kind, slices.Collect(view.List(kind, ""))))
	}
	for r := range view.List(resource.KindDataplane, "") {
		m.addDataplaneLocked(r)
	}
	for _, f := range m.followers {
		f.Reset(view)
	}
}

// Computed counts how often the rules of one kind on one attachment have been
// worked out: a measure of work, for tests and metrics.
func (m *Matcher) Computed() uint64 { return m.computed.Load() }

// meshLocked returns the state of a mesh, which need not exist as a resource.
func (m *Matcher) meshLocked(name resource.MeshName) *meshState {
	ms := m.meshes[name]
	if ms == nil {
		ms = &meshState{
			mesh:   MeshOf(m.view, name),
			kinds:  map[resource.Kind]*kindIndex{},
			shapes: newShapeIndex(),
			named:  map[string]int{},
		}
		m.meshes[name] = ms
	}
	return ms
}

// addPoliciesLocked adds policies of one kind, which are compiled on all processors.
func (m *Matcher) addPoliciesLocked(kind resource.Kind, resources []*resource.Resource) {
	type compiled struct {
		policy *Policy
		filed  *filed
	}
	engine := m.byKind[kind]
	for some := range slices.Chunk(resources, compiledAtOnce) {
		all := make([]compiled, len(some))
		parallel.For(len(some), func(from, to int) {
			for i := from; i < to; i++ {
				p := engine.Compile(m.view, some[i])
				all[i] = compiled{p, newFiled(p, engine, false)}
			}
		})
		for _, c := range all {
			m.insertLocked(c.filed)
			m.relateLocked(c.policy)
		}
	}
}

// addPolicyLocked adds a policy, and keeps it as compiled where it is about to be asked for.
func (m *Matcher) addPolicyLocked(p *Policy, keep bool) {
	m.insertLocked(newFiled(p, m.byKind[p.Key().Kind], keep))
	m.relateLocked(p)
}

// insertLocked files a policy.
func (m *Matcher) insertLocked(f *filed) {
	key := f.resource.KeyRef()
	ms := m.meshLocked(key.Mesh)
	x := ms.kinds[key.Kind]
	if x == nil {
		x = newKindIndex()
		ms.kinds[key.Kind] = x
	}
	x.insert(f)
}

// relateLocked notes what a policy that is filed names and depends on.
func (m *Matcher) relateLocked(p *Policy) {
	key := p.Key()
	ms := m.meshLocked(key.Mesh)
	for _, name := range namesIn(p) {
		ms.named[name]++
	}
	for _, d := range p.Depends {
		if m.dependents[d] == nil {
			m.dependents[d] = map[resource.Key]struct{}{}
		}
		m.dependents[d][key] = struct{}{}
	}
}

func (m *Matcher) removePolicyLocked(p *Policy) {
	key := p.Key()
	ms := m.meshLocked(key.Mesh)
	ms.kinds[key.Kind].remove(key.Name)
	if len(ms.kinds[key.Kind].byName) == 0 {
		delete(ms.kinds, key.Kind)
	}
	for _, name := range namesIn(p) {
		if ms.named[name]--; ms.named[name] == 0 {
			delete(ms.named, name)
		}
	}
	for _, d := range p.Depends {
		delete(m.dependents[d], key)
		if len(m.dependents[d]) == 0 {
			delete(m.dependents, d)
		}
	}
	m.dropMeshLocked(key.Mesh)
}

// policyLocked returns a policy as compiled, or nil.
func (m *Matcher) policyLocked(key resource.Key) *Policy {
	if ms := m.meshes[key.Mesh]; ms != nil && ms.kinds[key.Kind] != nil {
		if f := ms.kinds[key.Kind].byName[key.Name]; f != nil {
			return f.compiled()
		}
	}
	return nil
}

// namesIn lists the dataplanes a policy names, each once.
func namesIn(p *Policy) []string {
	var names []string
	for i := range p.Reach {
		if n := p.Reach[i].Name; n != "" && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

func (m *Matcher) addDataplaneLocked(r *resource.Resource) {
	key := r.Key()
	shape := shapeOf(r)
	shapes := m.meshLocked(key.Mesh).shapes
	g := shapes.shapes[shape.key]
	if g == nil {
		g = &group{Shape: shape, members: map[string]struct{}{}}
		shapes.add(g)
	}
	g.members[key.Name] = struct{}{}
	m.dataplanes[key] = g
}

func (m *Matcher) removeDataplaneLocked(key resource.Key) {
	g := m.dataplanes[key]
	if g == nil {
		return
	}
	delete(m.dataplanes, key)
	delete(g.members, key.Name)
	if len(g.members) == 0 {
		m.forget(g)
		m.meshes[key.Mesh].shapes.remove(g)
		m.dropMeshLocked(key.Mesh)
	}
}

// dropMeshLocked forgets a mesh in which nothing is left.
func (m *Matcher) dropMeshLocked(name resource.MeshName) {
	if ms := m.meshes[name]; len(ms.kinds) == 0 && len(ms.shapes.shapes) == 0 {
		delete(m.meshes, name)
	}
}

// subject returns what an engine sees of a dataplane of a group: with its name
// when some policy names it, and otherwise without.
func (ms *meshState) subject(g *group, name string) *Dataplane {
	if ms.named[name] == 0 {
		name = ""
	}
	return &Dataplane{Name: name, Shape: g.Shape}
}

// Effective returns everything that takes effect on a dataplane, in order, as
// what is to be enforced: without the reasons. The rules are shared and must
// not be modified. It fails with ErrNoDataplane.
func (m *Matcher) Effective(key resource.Key) ([]Rule, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.effectiveLocked(key)
}

func (m *Matcher) effectiveLocked(key resource.Key) ([]Rule, error) {
	g := m.dataplanes[key]
	if g == nil {
		return nil, ErrNoDataplane
	}
	ms := m.meshes[key.Mesh]
	dp := ms.subject(g, key.Name)
	if dp.Name != "" {
		return m.rulesLocked(ms, dp, m.kinds, false), nil
	}
	if memo := g.memo.Load(); memo != nil {
		return *memo, nil
	}
	rules := m.rulesLocked(ms, dp, m.kinds, false)
	if m.memos.Add(1) > maxMemos || !g.memo.CompareAndSwap(nil, &rules) {
		m.memos.Add(-1)
	}
	return rules, nil
}

// forget drops the rules a group has kept.
func (m *Matcher) forget(g *group) {
	if g.memo.Swap(nil) != nil {
		m.memos.Add(-1)
	}
}

// rulesLocked works out the rules of some kinds on all attachments.
func (m *Matcher) rulesLocked(ms *meshState, dp *Dataplane, kinds []resource.Kind, explain bool) []Rule {
	if !ms.mesh.Exists {
		return nil
	}
	var rules []Rule
	var scratch, other []*Policy
	routes := false
	for _, kind := range kinds {
		x := ms.kinds[kind]
		if x == nil {
			continue
		}
		q := Query{Mesh: ms.mesh, Dataplane: dp, Kind: kind, Explain: explain}
		if explain {
			q.Candidates = x.selecting(dp)
		}
		for i := range dp.Attachments {
			q.Attachment = &dp.Attachments[i]
			switch {
			case !explain:
				scratch = x.candidates(scratch[:0], dp, q.Attachment)
				q.Candidates = scratch
			case !actOn(q.Candidates, q.Attachment.Type):
				continue
			}
			found := m.ask(&q)
			if len(found) > 0 {
				found = superseded(found, m.successorAtLocked(ms, dp, i, kind, &other), explain)
			}
			if rules == nil && len(found) > 0 {
				rules = make([]Rule, 0, len(dp.Attachments))
			}
			rules = append(rules, found...)
		}
	}
	for i := range rules {
		routes = routes || rules[i].Attachment.Route != ""
	}
	if routes || len(kinds) > 1 {
		slices.SortStableFunc(rules, func(a, b Rule) int { return a.Target.Compare(&b.Target) })
	}
	return rules
}

// actOn reports whether any of the policies can take effect on a type of
// attachment at all.
func actOn(policies []*Policy, t AttachmentType) bool {
	for _, p := range policies {
		if slices.ContainsFunc(p.Reach, func(r Reach) bool { return r.On == t }) {
			return true
		}
	}
	return false
}

// ask puts one question to the engine of its kind.
func (m *Matcher) ask(q *Query) []Rule {
	if len(q.Candidates) == 0 {
		return nil
	}
	m.computed.Add(1)
	return m.byKind[q.Kind].Rules(q)
}

// rulesAtLocked works out one kind on one attachment: nothing where its successor
// supersedes it. scratch is reused from call to call.
func (m *Matcher) rulesAtLocked(ms *meshState, dp *Dataplane, i int, kind resource.Kind, scratch *[]*Policy) []Rule {
	rules := m.matchedAtLocked(ms, dp, i, kind, scratch)
	if len(rules) > 0 && m.successorAtLocked(ms, dp, i, kind, scratch) != nil {
		return nil
	}
	return rules
}

// matchedAtLocked works out one kind on one attachment, superseded or not.
func (m *Matcher) matchedAtLocked(ms *meshState, dp *Dataplane, i int, kind resource.Kind, scratch *[]*Policy) []Rule {
	x := ms.kinds[kind]
	if x == nil || !ms.mesh.Exists {
		return nil
	}
	q := Query{Mesh: ms.mesh, Dataplane: dp, Kind: kind, Attachment: &dp.Attachments[i]}
	*scratch = x.candidates((*scratch)[:0], dp, q.Attachment)
	q.Candidates = *scratch
	return m.ask(&q)
}
