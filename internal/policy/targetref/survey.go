package targetref

import (
	"maps"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

const dataplaneKind resource.Kind = "Dataplane"

// survey answers what an author should know, from one view. What it finds out
// about a mesh is kept for the rest of a batch.
type survey struct {
	engine   *Engine
	view     policy.View
	meshes   map[resource.MeshName]*census
	peers    map[peerGroup][]*resource.Resource // with one target, in order of name
	compiled map[resource.Key]*policy.Policy
}

// Survey implements policy.Surveyor.
func (e *Engine) Survey(view policy.View) policy.Adviser {
	return &survey{
		engine: e, view: view,
		meshes:   map[resource.MeshName]*census{},
		peers:    map[peerGroup][]*resource.Resource{},
		compiled: map[resource.Key]*policy.Policy{},
	}
}

// census is what the dataplanes of a mesh are like, as far as they are known
// here: all of them in a zone, none on the global.
type census struct {
	names     []string
	members   map[string]resource.Tags   // distinct tag sets of inbounds and gateways
	values    map[string]map[string]bool // of their tags
	consumed  map[string]bool            // services of outbounds
	gateways  []*policy.Dataplane        // by which routes of gateways are found
	resources int
}

func (s *survey) census(mesh resource.MeshName) *census {
	if known := s.meshes[mesh]; known != nil {
		return known
	}
	c := &census{members: map[string]resource.Tags{}, values: map[string]map[string]bool{}, consumed: map[string]bool{}}
	s.meshes[mesh] = c
	for r := range s.view.List(dataplaneKind, mesh) {
		spec := r.Spec().(*resource.Dataplane)
		c.resources++
		c.names = append(c.names, r.Key().Name)
		for _, tags := range spec.TagSets() {
			c.count(tags)
		}
		for _, out := range spec.Outbounds() {
			c.consumed[out.Tags[resource.ServiceTag]] = true
		}
		if tags := spec.GatewayTags(); tags != nil {
			shape := &policy.Shape{Gateway: true, Members: []resource.Tags{tags}}
			c.gateways = append(c.gateways, &policy.Dataplane{Name: r.Key().Name, Shape: shape})
		}
	}
	return c
}

func (c *census) count(tags resource.Tags) {
	key := resource.Target{Tags: resource.TagSelector(tags)}.String()
	if _, known := c.members[key]; known {
		return
	}
	c.members[key] = tags
	for tag, value := range tags {
		if c.values[tag] == nil {
			c.values[tag] = map[string]bool{}
		}
		c.values[tag][value] = true
	}
}

// lacks says what of a selector no inbound has, and what was probably meant;
// nothing when one matches.
func (c *census) lacks(member resource.TagSelector) (message string, near bool) {
	for _, tags := range c.members {
		if member.Matches(tags) {
			return "", false
		}
	}
	for _, tag := range slices.Sorted(maps.Keys(member)) {
		value := member[tag]
		switch {
		case len(c.values[tag]) == 0:
			guess, near := didYouMean(tag, c.values)
			return "no inbound has the tag " + tag + guess, near
		case value != resource.AnyValue && !c.values[tag][value]:
			guess, near := didYouMean(value, c.values[tag])
			return "no inbound has " + tag + "=" + value + guess, near
		}
	}
	var pairs []string
	for _, tag := range slices.Sorted(maps.Keys(member)) {
		pairs = append(pairs, tag+"="+member[tag])
	}
	return "no inbound has all of " + strings.Join(pairs, ", "), false
}

// didYouMean is the end of a message about an unknown name.
func didYouMean[V any](word string, known map[string]V) (string, bool) {
	if near, ok := resource.Nearest(word, slices.Sorted(maps.Keys(known))); ok {
		return "; did you mean " + near + "?", true
	}
	return "", false
}

// named returns the names of the resources of a kind.
func (s *survey) named(kind resource.Kind, mesh resource.MeshName) map[string]bool {
	names := map[string]bool{}
	for r := range s.view.List(kind, mesh) {
		names[r.Key().Name] = true
	}
	return names
}

// peerGroup is policies that tie on kind: of one kind, with one target.
type peerGroup struct {
	kind   resource.Kind
	mesh   resource.MeshName
	target string
}

// peersOf returns the policies with the target of a policy, itself among them,
// in order of name.
func (s *survey) peersOf(c *compiled) []*resource.Resource {
	group := peerGroup{c.key.Kind, c.key.Mesh, c.target.String()}
	marker := peerGroup{kind: c.key.Kind, mesh: c.key.Mesh}
	if _, done := s.peers[marker]; !done {
		s.peers[marker] = nil
		for r := range s.view.List(c.key.Kind, c.key.Mesh) {
			g := group
			g.target = r.Spec().(resource.TargetRefSpec).TopTarget().String()
			s.peers[g] = append(s.peers[g], r)
		}
	}
	return s.peers[group]
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
