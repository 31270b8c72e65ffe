package policy

import (
	"slices"
	"strings"
	"sync/atomic"
	"unique"

	"meridian/internal/resource"
)

// pair is a tag and one exact value of it. The zero pair stands for "no exact
// value wanted".
type pair struct {
	tag, value string
}

// nameTag is the tag under which the index files policies that name a
// dataplane. No document can hold it: tag names have no NUL.
const nameTag = "\x00name"

// anchorOf picks the one exact value by which a selector is filed: the service
// if it names one, else the exact value whose tag sorts first. Everything the
// selector matches carries that value.
func anchorOf(s resource.TagSelector) pair {
	if v, ok := s[resource.ServiceTag]; ok && v != resource.AnyValue {
		return pair{resource.ServiceTag, v}
	}
	best := pair{}
	for tag, value := range s {
		if value != resource.AnyValue && (best.tag == "" || tag < best.tag) {
			best = pair{tag, value}
		}
	}
	return best
}

// drawer is one way to file policies: by type of attachment and by the tags of
// their two anchors. Few are in use at any time, which keeps a look-up to a
// handful of map accesses however many policies there are.
type drawer struct {
	on                   AttachmentType
	memberTag, attachTag string
}

// slot is where a policy is filed: a drawer and the two anchors' values. Drawers are few
// and slots many, so that they share them.
type slot struct {
	drawer unique.Handle[drawer]
	values
}

// slotOf returns the slot of a reach, by its attachment alone unless members count.
func slotOf(r *Reach, members bool) slot {
	member, attach := anchorOf(r.Member), anchorOf(r.Attachment)
	if r.Name != "" {
		member = pair{nameTag, r.Name}
	}
	if !members {
		member = pair{}
	}
	return slot{unique.Make(drawer{r.On, member.tag, attach.tag}), values{member.value, attach.value}}
}

// maxSlots bounds how many places one policy is filed in. A policy with more
// combinations of selectors is filed by attachment alone.
const maxSlots = 256

// slotsOf lists the distinct places a policy is filed in.
func slotsOf(p *Policy) []slot {
	if len(p.Reach) == 1 {
		return []slot{slotOf(&p.Reach[0], true)}
	}
	slots := make([]slot, 0, len(p.Reach))
	seen := make(map[slot]bool, len(p.Reach))
	for i := range p.Reach {
		s := slotOf(&p.Reach[i], len(p.Reach) <= maxSlots)
		if !seen[s] {
			seen[s] = true
			slots = append(slots, s)
		}
	}
	return slots
}

// values is the two anchors' values of a slot.
type values struct {
	member, attach string
}

// filing holds the policies of one drawer.
type filing struct {
	drawer
	policies map[values][]*filed
}

// filed is a policy and where it is filed: one with a single slot cannot turn up twice in
// a look-up. It may be in several indexes. What it was compiled to is kept where more than
// the resource was needed for it, and once it has been asked for: most of a million
// policies concern no dataplane here, and take as little memory as that.
type filed struct {
	resource *resource.Resource
	engine   Engine
	slots    []slot
	policy   atomic.Pointer[Policy]
}

// newFiled files a policy, which is kept where it is about to be asked for.
func newFiled(p *Policy, engine Engine, keep bool) *filed {
	f := &filed{resource: p.Resource, engine: engine, slots: slotsOf(p)}
	if keep || len(p.Depends) > 0 {
		f.policy.Store(p)
	}
	return f
}

// compiled returns the policy, the same one every time.
func (f *filed) compiled() *Policy {
	if p := f.policy.Load(); p != nil {
		return p
	}
	if p := f.engine.Compile(nil, f.resource); f.policy.CompareAndSwap(nil, p) {
		return p
	}
	return f.policy.Load()
}

// maySelect reports whether the policy may select a dataplane, by its anchors: false only
// where it does not.
func (f *filed) maySelect(dp *Dataplane) bool {
	return slices.ContainsFunc(f.slots, func(s slot) bool {
		switch tag := s.drawer.Value().memberTag; tag {
		case "":
			return true
		case nameTag:
			return dp.Name == s.member
		default:
			return slices.Contains(dp.values[tag], s.member)
		}
	})
}

// kindIndex finds the policies of one kind in one mesh that can reach an
// attachment.
type kindIndex struct {
	byName  map[string]*filed
	drawers []*filing
}

func newKindIndex() *kindIndex { return &kindIndex{byName: map[string]*filed{}} }

func (x *kindIndex) drawer(d drawer) *filing {
	for _, f := range x.drawers {
		if f.drawer == d {
			return f
		}
	}
	f := &filing{drawer: d, policies: map[values][]*filed{}}
	x.drawers = append(x.drawers, f)
	return f
}

// holds reports whether it has a policy, as of this resource.
func (x *kindIndex) holds(r *resource.Resource) bool {
	f := x.byName[r.KeyRef().Name]
	return f != nil && f.resource == r
}

// insert adds a policy that may be in other indexes, too.
func (x *kindIndex) insert(f *filed) {
	x.byName[f.resource.KeyRef().Name] = f
	for _, s := range f.slots {
		d := x.drawer(s.drawer.Value())
		d.policies[s.values] = append(d.policies[s.values], f)
	}
}

func (x *kindIndex) remove(name string) {
	f, ok := x.byName[name]
	if !ok {
		return
	}
	delete(x.byName, name)
	for _, s := range f.slots {
		d := x.drawer(s.drawer.Value())
		rest := slices.DeleteFunc(d.policies[s.values], func(g *filed) bool { return g == f })
		if len(rest) > 0 {
			d.policies[s.values] = rest
		} else {
			delete(d.policies, s.values)
		}
	}
	x.drawers = slices.DeleteFunc(x.drawers, func(d *filing) bool { return len(d.policies) == 0 })
}

// candidates appends the policies that may reach an attachment, each once.
func (x *kindIndex) candidates(found []*Policy, dp *Dataplane, a *Attachment) []*Policy {
	start := len(found)
	for _, d := range x.drawers {
		if d.on != a.Type {
			continue
		}
		attach, ok := a.Tags[d.attachTag]
		if d.attachTag != "" && !ok {
			continue
		}
		switch d.memberTag {
		case "":
			found = appendFiled(found, start, d.policies[values{"", attach}])
		case nameTag:
			if dp.Name != "" {
				found = appendFiled(found, start, d.policies[values{dp.Name, attach}])
			}
		default:
			for _, v := range dp.values[d.memberTag] {
				found = appendFiled(found, start, d.policies[values{v, attach}])
			}
		}
	}
	return found
}

func appendFiled(found []*Policy, start int, more []*filed) []*Policy {
	for _, f := range more {
		if p := f.compiled(); len(f.slots) == 1 || !slices.Contains(found[start:], p) {
			found = append(found, p)
		}
	}
	return found
}

// selecting lists the policies that select a dataplane, by name: everything an
// explanation has to mention.
func (x *kindIndex) selecting(dp *Dataplane) []*Policy {
	var found []*Policy
	for _, f := range x.byName {
		if f.maySelect(dp) && f.compiled().Selects(dp) {
			found = append(found, f.compiled())
		}
	}
	slices.SortFunc(found, func(a, b *Policy) int { return strings.Compare(a.Key().Name, b.Key().Name) })
	return found
}

// shapeIndex finds the shapes of one mesh that a policy can reach.
type shapeIndex struct {
	shapes map[string]*group            // by Shape.key
	member map[pair]map[*group]struct{} // by a tag value of a member
	sends  map[pair]map[*group]struct{} // by a tag value of an outbound
}

func newShapeIndex() *shapeIndex {
	return &shapeIndex{
		shapes: map[string]*group{},
		member: map[pair]map[*group]struct{}{},
		sends:  map[pair]map[*group]struct{}{},
	}
}

func (x *shapeIndex) add(g *group) {
	x.shapes[g.key] = g
	g.eachPair(func(in map[pair]map[*group]struct{}, p pair) {
		if in[p] == nil {
			in[p] = map[*group]struct{}{}
		}
		in[p][g] = struct{}{}
	}, x)
}

func (x *shapeIndex) remove(g *group) {
	delete(x.shapes, g.key)
	g.eachPair(func(in map[pair]map[*group]struct{}, p pair) {
		delete(in[p], g)
		if len(in[p]) == 0 {
			delete(in, p)
		}
	}, x)
}

// eachPair visits the places of the index where a group stands.
func (g *group) eachPair(do func(in map[pair]map[*group]struct{}, p pair), x *shapeIndex) {
	for _, tags := range g.Members {
		for tag, value := range tags {
			do(x.member, pair{tag, value})
		}
	}
	for i := range g.Attachments {
		if a := &g.Attachments[i]; a.Type == OnOutbound {
			for tag, value := range a.Tags {
				do(x.sends, pair{tag, value})
			}
		}
	}
}

// reached calls do with every group that a reach can touch: it takes the
// shortest list of groups that carry a value the reach wants.
func (x *shapeIndex) reached(r *Reach, do func(*group)) {
	var shortest map[*group]struct{}
	narrowed := false
	narrow := func(in map[pair]map[*group]struct{}, s resource.TagSelector) {
		for tag, value := range s {
			if value == resource.AnyValue {
				continue
			}
			if groups := in[pair{tag, value}]; !narrowed || len(groups) < len(shortest) {
				shortest, narrowed = groups, true
			}
		}
	}
	narrow(x.member, r.Member)
	narrow(x.sends, r.Sends)
	switch r.On {
	case OnInbound:
		narrow(x.member, r.Attachment)
	case OnOutbound:
		narrow(x.sends, r.Attachment)
	}
	if narrowed {
		for g := range shortest {
			do(g)
		}
		return
	}
	for _, g := range x.shapes {
		do(g)
	}
}
