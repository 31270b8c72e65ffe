package targetref

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/resource"
)

// Engine implements policy.Engine for the thirteen targetRef kinds. It keeps
// nothing but compiled conditions, by their text.
type Engine struct {
	// compiler builds the environment of conditions when the first one is seen:
	// most meshes have none.
	compiler func() (*condition.Compiler, error)
}

var (
	_ policy.Engine     = (*Engine)(nil)
	_ policy.Surveyor   = (*Engine)(nil)
	_ policy.Superseder = (*Engine)(nil)
)

// New returns an engine. It is safe for concurrent use.
func New() *Engine {
	return &Engine{compiler: sync.OnceValues(func() (*condition.Compiler, error) {
		return condition.NewCompiler(condition.DefaultOptions())
	})}
}

// Kinds implements policy.Engine: the table of kinds says which these are.
func (*Engine) Kinds() []resource.Kind {
	var kinds []resource.Kind
	for _, d := range resource.Kinds() {
		if d.Class == resource.TargetRef {
			kinds = append(kinds, d.Kind)
		}
	}
	return kinds
}

// order is how the policies of a mesh are sorted.
type order struct {
	// lastWins reverses the tie by name and the order inside one policy
	// (§4.5).
	lastWins bool
}

// compare puts the policy with priority first (§4.3): the more
// specific kind of target; at the same kind the name that sorts later, or first
// with LastWins.
func (o order) compare(a, b *compiled) int {
	if c := cmp.Compare(b.level, a.level); c != 0 {
		return c
	}
	if o.lastWins {
		return strings.Compare(a.key.Name, b.key.Name)
	}
	return strings.Compare(b.key.Name, a.key.Name)
}

// compareOverrides puts the override that stands lower first (§4.10):
// at one kind of target the older policy stands higher, of two of one age the
// one whose name sorts first.
func compareOverrides(a, b *compiled) int {
	return cmp.Or(b.created.Compare(a.created), strings.Compare(b.key.Name, a.key.Name))
}

// Rules implements policy.Engine: one entry for the attachment, and one for
// every route of it that some policy names (§4.6).
func (e *Engine) Rules(q *policy.Query) []policy.Rule {
	o := order{lastWins: q.Mesh.Matching.TargetRef == resource.LastWins}
	line := make([]*compiled, 0, len(q.Candidates))
	var routes []*route
	for _, candidate := range q.Candidates {
		c := candidate.Data.(*compiled)
		if !candidate.Selects(q.Dataplane) {
			continue
		}
		line = append(line, c)
		if c.namesRoutes {
			routes = c.routesOn(routes, q)
		}
	}
	slices.SortFunc(line, o.compare)
	slices.SortFunc(routes, func(a, b *route) int {
		return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(string(a.kind), string(b.kind)))
	})
	var rules []policy.Rule
	for _, r := range append([]*route{nil}, routes...) {
		w := walk{Query: q, order: o, route: r}
		if rule, ok := w.rule(line); ok {
			rules = append(rules, rule)
		}
	}
	return rules
}

// routesOn appends the routes that the policy gives an entry of their own on the
// attachment, each once.
func (c *compiled) routesOn(routes []*route, q *policy.Query) []*route {
	add := func(r *route) {
		if !slices.ContainsFunc(routes, func(other *route) bool { return other.routeID == r.routeID }) {
			routes = append(routes, r)
		}
	}
	switch {
	case q.Attachment.Type == policy.OnInbound:
	case c.route != nil:
		if c.onRoute(q) && (c.unsetsAlone() || c.selectsAny(c.route, q)) {
			add(c.route)
		}
	case q.Attachment.Type == policy.OnOutbound:
		for _, b := range c.blocks() {
			for i := range b.to {
				if r := b.to[i].route; r != nil && r.on(q.Dataplane, q.Attachment) {
					add(r)
				}
			}
		}
	}
	return routes
}

// onRoute reports whether the route of a policy for one route is on the
// attachment.
func (c *compiled) onRoute(q *policy.Query) bool {
	if q.Attachment.Type == policy.OnDataplane {
		return c.route.selects(q.Dataplane)
	}
	return c.route.on(q.Dataplane, q.Attachment)
}

func (c *compiled) selectsAny(r *route, q *policy.Query) bool {
	for _, b := range c.blocks() {
		items := b.items(q.Attachment.Type)
		if slices.ContainsFunc(items, func(it item) bool { return it.selects(q, r) }) {
			return true
		}
	}
	return false
}

// selects reports whether an item is about the attachment, or the route of it
// that is not nil (§4.6, §4.7).
func (it *item) selects(q *policy.Query, r *route) bool {
	switch {
	case it.never:
		return false
	case it.route != nil:
		return r != nil && it.route.routeID == r.routeID && r.on(q.Dataplane, q.Attachment)
	case q.Attachment.Type == policy.OnOutbound && it.target.Kind == resource.TargetService:
		return q.Attachment.Service == it.target.Name
	default:
		return true
	}
}
