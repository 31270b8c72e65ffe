package targetref

import (
	"time"

	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/resource"
)

// form is how a policy writes configuration (§4.10).
type form int

const (
	bare form = iota
	defaults
	overrides
)

// String names the form as the fields of a policy do.
func (f form) String() string { return [...]string{"conf", "defaults", "overrides"}[f] }

// compiled is a policy ready to be put in order.
type compiled struct {
	key     resource.Key
	created time.Time
	target  resource.Target
	// level is the target kind's priority (§4.2).
	level int
	// acts is where the kind takes effect.
	acts resource.Direction
	// member is what the target wants of one inbound; nil when it does not ask.
	member resource.TagSelector
	// route is set when the policy holds for one route only.
	route *route
	// under is the bare configuration or the defaults, over the overrides.
	under, over *block
	unset       []policy.Pointer
	// namesRoutes is set when the policy may give a route an entry of its own.
	namesRoutes bool
}

// block is one form of a policy.
type block struct {
	form     form
	atomic   bool
	when     *condition.Condition
	invalid  string // why when cannot be used
	onError  resource.OnError
	to, from []item
	own      []item // the one configuration of a kind without items
}

// item is an element of `to` or `from`, or a whole configuration.
type item struct {
	target resource.Target
	// callers are whom a from item is about; nil for all callers.
	callers resource.TagSelector
	// route is set on a to item that names one.
	route *route
	conf  policy.Tree
	path  resource.Path
	// same is equal for items with the same target.
	same string
	// never is set on a target that contradicts itself.
	never bool
}

// blocks lists the forms the policy has.
func (c *compiled) blocks() []*block {
	var list []*block
	for _, b := range []*block{c.under, c.over} {
		if b != nil {
			list = append(list, b)
		}
	}
	return list
}

// items are those for a type of attachment.
func (b *block) items(on policy.AttachmentType) []item {
	switch on {
	case policy.OnInbound:
		return b.from
	case policy.OnOutbound:
		return b.to
	default:
		return b.own
	}
}

// directionOf is the bit of the kinds' directions for a type of attachment.
func directionOf(on policy.AttachmentType) resource.Direction {
	switch on {
	case policy.OnInbound:
		return resource.OnInbound
	case policy.OnOutbound:
		return resource.OnOutbound
	default:
		return resource.OnDataplane
	}
}

// has reports whether the policy says anything about a type of attachment.
// Without any items, an unset is about everything.
func (c *compiled) has(on policy.AttachmentType) bool {
	if c.acts&directionOf(on) == 0 {
		return false
	}
	for _, b := range c.blocks() {
		if len(b.items(on)) > 0 {
			return true
		}
	}
	return c.unsetsAlone()
}

// unsetsAlone reports whether all that the policy does is to unset.
func (c *compiled) unsetsAlone() bool {
	return len(c.unset) > 0 && c.under == nil && c.over == nil
}

// Compile implements policy.Engine.
func (e *Engine) Compile(view policy.View, r *resource.Resource) *policy.Policy {
	spec := r.Spec().(resource.TargetRefSpec)
	v := &resolver{view: view, mesh: r.Key().Mesh, from: r.Meta()}
	c := &compiled{key: r.Key(), created: r.Meta().CreationTime, target: spec.TopTarget()}
	meta := r.Meta()
	switch c.target.Kind {
	case resource.TargetProxy, resource.TargetHTTPRoute, resource.TargetMeshGatewayRoute:
		c.target.Name = meta.Refer(c.target.Name, nil)
	}
	c.level = c.target.Kind.Priority()
	if d, ok := resource.Describe(c.key.Kind); ok {
		c.acts = d.Direction
	}
	if c.target.Kind == resource.TargetHTTPRoute || c.target.Kind == resource.TargetMeshGatewayRoute {
		c.route = v.route(routeID{c.target.Kind, c.target.Name})
		c.namesRoutes = true
	}
	for _, p := range spec.UnsetPointers() {
		c.unset = append(c.unset, policy.Pointer(p))
	}
	own := spec.OwnConf()
	if to, from := spec.ToItems(), spec.FromItems(); to != nil || from != nil || own != nil {
		c.under = v.block(bare, &resource.TargetBlock{Strategy: resource.Merge, To: to, From: from, Own: own, Path: "conf"})
	}
	if b := spec.Defaults(); b != nil {
		c.under = e.conditional(v.block(defaults, b), b.When)
	}
	if b := spec.Overrides(); b != nil {
		c.over = e.conditional(v.block(overrides, b), b.When)
	}
	for _, b := range c.blocks() {
		for i := range b.to {
			c.namesRoutes = c.namesRoutes || b.to[i].route != nil
		}
	}
	return &policy.Policy{Resource: r, Data: c, Reach: c.reach(), Depends: v.depends}
}

func (v *resolver) block(f form, written *resource.TargetBlock) *block {
	b := &block{form: f, atomic: written.Strategy == resource.Atomic, onError: written.OnError}
	for _, w := range written.To {
		it := newItem(w)
		if w.Kind == resource.TargetHTTPRoute {
			it.route = v.route(routeID{w.Kind, v.from.Refer(w.Name, nil)})
		}
		b.to = append(b.to, it)
	}
	for _, w := range written.From {
		it := newItem(w)
		it.callers, it.never = memberOf(w.Target)
		b.from = append(b.from, it)
	}
	if written.Own != nil {
		b.own = []item{{conf: written.Own, path: written.Path}}
	}
	return b
}

func newItem(w resource.TargetItem) item {
	return item{target: w.Target, conf: w.Conf, path: w.Path, same: w.Target.String()}
}

// memberOf is what a target requires of the tags of one inbound or caller; true
// when no inbound or caller can have them.
func memberOf(t resource.Target) (resource.TagSelector, bool) {
	switch t.Kind {
	case resource.TargetMeshSubset:
		return t.Tags, false
	case resource.TargetService:
		return service(t.Name), false
	case resource.TargetServiceSubset:
		tags, ok := both(service(t.Name), t.Tags)
		return tags, !ok
	default:
		return nil, false
	}
}

// reach lists where the policy can take effect. The dataplane part of every area
// is that of the top-level target, save for the routes of gateways, so an area
// without attachments keeps it exact where no other does.
func (c *compiled) reach() []policy.Reach {
	var reach []policy.Reach
	for _, area := range c.areas() {
		exact := false
		add := func(r policy.Reach, same bool) {
			reach, exact = append(reach, r), exact || same
		}
		if c.has(policy.OnDataplane) {
			r := area
			r.On, r.Attachment = policy.OnDataplane, nil
			add(r, true)
		}
		if c.has(policy.OnInbound) && c.route == nil {
			r := area
			r.On = policy.OnInbound
			add(r, true)
		}
		c.outbounds(area, add)
		if !exact {
			r := area
			r.On, r.Attachment = policy.OnOutbound, nowhere
			reach = append(reach, r)
		}
	}
	return reach
}

// areas are the dataplanes that the top-level target selects (§4.2).
func (c *compiled) areas() []policy.Reach {
	switch c.target.Kind {
	case resource.TargetProxy:
		return []policy.Reach{{Name: c.target.Name}}
	case resource.TargetHTTPRoute, resource.TargetMeshGatewayRoute:
		areas := make([]policy.Reach, len(c.route.places))
		for i := range c.route.places {
			areas[i] = c.route.places[i].reach()
		}
		return areas
	default:
		member, never := memberOf(c.target)
		if never {
			return nil
		}
		c.member = member
		return []policy.Reach{{Member: member}}
	}
}

// outbounds adds the outbounds of an area that the policy's to items select: by
// service where they name one, so that a policy about one service costs nothing
// elsewhere.
func (c *compiled) outbounds(area policy.Reach, add func(policy.Reach, bool)) {
	if !c.has(policy.OnOutbound) {
		return
	}
	area.On = policy.OnOutbound
	wide := c.unsetsAlone()
	var services []string
	seen := map[string]bool{}
	for _, b := range c.blocks() {
		for i := range b.to {
			switch it := &b.to[i]; {
			case it.target.Kind == resource.TargetMesh, it.route != nil && c.route != nil:
				wide = true
			case it.target.Kind == resource.TargetService && !seen[it.target.Name]:
				seen[it.target.Name] = true
				services = append(services, it.target.Name)
			case it.route != nil:
				for j := range it.route.places {
					addPlace(area, &it.route.places[j], add)
				}
			}
		}
	}
	if wide {
		add(area, true)
		return
	}
	for _, name := range services {
		if attachment, ok := both(area.Attachment, service(name)); ok {
			r := area
			r.Attachment = attachment
			add(r, true)
		}
	}
}

// addPlace adds the part of an area where a route is.
func addPlace(area policy.Reach, p *place, add func(policy.Reach, bool)) {
	at := p.reach()
	if !p.gateway {
		area.Attachment = at.Attachment
		add(area, true)
		return
	}
	// A gateway has one set of tags, so both selectors are about the same one.
	member, ok := both(area.Member, at.Member)
	if !ok {
		return
	}
	area.Member, area.GatewayOnly, area.Attachment = member, true, at.Attachment
	add(area, false)
}
