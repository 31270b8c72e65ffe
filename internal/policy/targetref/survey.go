package targetref

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// survey answers what an author should know, from one view. What it finds out
// about a mesh is kept for the rest of a batch.
type survey struct {
	engine   *Engine
	view     policy.View
	meshes   map[resource.MeshName]*census
	peers    map[peerGroup][]*resource.Resource // with one target, in order of name
	grouped  map[peerGroup]bool                 // kinds of which peers is complete
	compiled map[resource.Key]*policy.Policy
	names    map[resource.Key]map[string]bool // by kind and mesh, under a key without a name
	guesses  int
	// kinds has all policies of a kind in a mesh, under a key without a name; looks
	// counts how many were looked at for guards.
	kinds map[resource.Key][]*compiled
	looks int
}

// maxGuesses bounds for how many names of a batch a misspelling is looked for:
// each is compared with every name there is.
const maxGuesses = 100

// Survey implements policy.Surveyor.
func (e *Engine) Survey(view policy.View) policy.Adviser {
	return &survey{
		engine: e, view: view,
		meshes:   map[resource.MeshName]*census{},
		peers:    map[peerGroup][]*resource.Resource{},
		grouped:  map[peerGroup]bool{},
		compiled: map[resource.Key]*policy.Policy{},
		names:    map[resource.Key]map[string]bool{},
		kinds:    map[resource.Key][]*compiled{},
	}
}

// census is what the dataplanes of a mesh are like, as far as they are known
// here: all of them in a zone, none on the global. Every part is found out when
// it is first asked for.
type census struct {
	specs []*resource.Dataplane
	// members are the tag sets of inbounds and gateways, by service.
	members func() map[string][]resource.Tags
	// values are the values of every tag of theirs.
	values func() map[string]map[string]bool
	// consumed are the services of outbounds.
	consumed func() map[string]bool
}

func (s *survey) census(mesh resource.MeshName) *census {
	if known := s.meshes[mesh]; known != nil {
		return known
	}
	c := &census{}
	for r := range s.view.List(resource.KindDataplane, mesh) {
		c.specs = append(c.specs, r.Spec().(*resource.Dataplane))
	}
	c.members, c.values, c.consumed = sync.OnceValue(c.countMembers), sync.OnceValue(c.countValues), sync.OnceValue(c.countConsumed)
	s.meshes[mesh] = c
	return c
}

func (c *census) countMembers() map[string][]resource.Tags {
	members := map[string][]resource.Tags{}
	add := func(tags resource.Tags) {
		service := tags[resource.ServiceTag]
		members[service] = append(members[service], tags)
	}
	for _, spec := range c.specs {
		if tags := spec.GatewayTags(); tags != nil {
			add(tags)
		}
		for _, in := range spec.Inbounds() {
			add(in.Tags)
		}
	}
	return members
}

func (c *census) countValues() map[string]map[string]bool {
	values := map[string]map[string]bool{}
	for _, sets := range c.members() {
		for _, tags := range sets {
			for tag, value := range tags {
				if values[tag] == nil {
					values[tag] = map[string]bool{}
				}
				values[tag][value] = true
			}
		}
	}
	return values
}

func (c *census) countConsumed() map[string]bool {
	consumed := map[string]bool{}
	for _, spec := range c.specs {
		for _, out := range spec.Outbounds() {
			consumed[out.Tags[resource.ServiceTag]] = true
		}
	}
	return consumed
}

// has reports whether an inbound or gateway matches a selector.
func (c *census) has(member resource.TagSelector) bool {
	if service, ok := member[resource.ServiceTag]; ok && service != resource.AnyValue {
		return slices.ContainsFunc(c.members()[service], member.Matches)
	}
	for _, sets := range c.members() {
		if slices.ContainsFunc(sets, member.Matches) {
			return true
		}
	}
	return false
}

// reaches reports whether some dataplane may have the place of a route.
func (c *census) reaches(p place) bool {
	if !p.gateway {
		return c.consumed()[p.outbound[resource.ServiceTag]]
	}
	return slices.ContainsFunc(c.specs, func(spec *resource.Dataplane) bool {
		tags := spec.GatewayTags()
		return tags != nil && p.member.Matches(tags)
	})
}

// lacks says what of a selector no inbound has, and what was probably meant;
// nothing when one matches.
func (s *survey) lacks(c *census, member resource.TagSelector) (message string, near bool) {
	if c.has(member) {
		return "", false
	}
	values := c.values()
	var pairs []string
	for _, tag := range slices.Sorted(maps.Keys(member)) {
		value := member[tag]
		switch {
		case len(values[tag]) == 0:
			guess, near := didYouMean(s, tag, values)
			return "no inbound has the tag " + tag + guess, near
		case value != resource.AnyValue && !values[tag][value]:
			guess, near := didYouMean(s, value, values[tag])
			return "no inbound has " + tag + "=" + value + guess, near
		}
		pairs = append(pairs, tag+"="+value)
	}
	return "no inbound has all of " + strings.Join(pairs, ", "), false
}

// didYouMean is the end of a message about an unknown name; nothing when a batch
// has had enough of them.
func didYouMean[V any](s *survey, word string, known map[string]V) (string, bool) {
	if s.guesses++; s.guesses > maxGuesses {
		return "", false
	}
	if near, ok := resource.Nearest(word, slices.Sorted(maps.Keys(known))); ok {
		return "; did you mean " + near + "?", true
	}
	return "", false
}

// named returns the names of the resources of a kind.
func (s *survey) named(kind resource.Kind, mesh resource.MeshName) map[string]bool {
	key := resource.Key{Kind: kind, Mesh: mesh}
	names, known := s.names[key]
	if !known {
		names = map[string]bool{}
		for r := range s.view.List(kind, mesh) {
			names[r.Key().Name] = true
		}
		s.names[key] = names
	}
	return names
}

// peerGroup is policies that tie on kind: of one kind, with one target.
type peerGroup struct {
	kind   resource.Kind
	mesh   resource.MeshName
	target resource.TargetKind
	name   string
	tags   string
}

func (c *compiled) group(t resource.Target) peerGroup {
	g := peerGroup{kind: c.key.Kind, mesh: c.key.Mesh, target: t.Kind, name: t.Name}
	if len(t.Tags) > 0 {
		g.tags = t.String()
	}
	return g
}

// peersOf returns the policies with the target of a policy, itself among them,
// in order of name.
func (s *survey) peersOf(c *compiled) []*resource.Resource {
	all := peerGroup{kind: c.key.Kind, mesh: c.key.Mesh}
	if !s.grouped[all] {
		s.grouped[all] = true
		for r := range s.view.List(c.key.Kind, c.key.Mesh) {
			g := c.group(r.Spec().(resource.TargetRefSpec).TopTarget())
			s.peers[g] = append(s.peers[g], r)
		}
	}
	return s.peers[c.group(c.target)]
}

// policy returns a policy ready to be looked at.
func (s *survey) policy(r *resource.Resource) *policy.Policy {
	key := r.Key()
	if known := s.compiled[key]; known != nil && known.Resource == r {
		return known
	}
	p := s.engine.Compile(s.view, r)
	s.compiled[key] = p
	return p
}
