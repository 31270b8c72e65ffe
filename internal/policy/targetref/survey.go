package targetref

import (
	"slices"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// survey answers what an author should know, from one view. What it finds out
// about a mesh is kept for the rest of a batch.
type survey struct {
	engine   *Engine
	view     policy.View
	dps      *policy.Census
	peers    map[peerGroup][]*resource.Resource // with one target, in order of name
	grouped  map[peerGroup]bool                 // kinds of which peers is complete
	compiled map[resource.Key]*policy.Policy
	names    map[resource.Key]map[string]bool // by kind and mesh, under a key without a name
	// kinds has all policies of a kind in a mesh, under a key without a name; looks
	// counts how many were looked at for guards.
	kinds map[resource.Key][]*compiled
	looks int
}

// Survey implements policy.Surveyor.
func (e *Engine) Survey(view policy.View) policy.Adviser {
	return &survey{
		engine: e, view: view,
		dps:      policy.NewCensus(view),
		peers:    map[peerGroup][]*resource.Resource{},
		grouped:  map[peerGroup]bool{},
		compiled: map[resource.Key]*policy.Policy{},
		names:    map[resource.Key]map[string]bool{},
		kinds:    map[resource.Key][]*compiled{},
	}
}

// reaches reports whether some dataplane may have the place of a route.
func (s *survey) reaches(mesh resource.MeshName) func(place) bool {
	dps := s.dps.Of(mesh)
	return func(p place) bool {
		if !p.gateway {
			return dps.Consumed()[p.outbound[resource.ServiceTag]]
		}
		return slices.ContainsFunc(dps.Specs, func(spec *resource.Dataplane) bool {
			tags := spec.GatewayTags()
			return tags != nil && p.member.Matches(tags)
		})
	}
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

// peerGroup is policies that tie on kind: of one kind, with one target, and all in effect
// or all only tried.
type peerGroup struct {
	kind   resource.Kind
	mesh   resource.MeshName
	target resource.TargetKind
	name   string
	tags   string
	tried  bool
}

func groupOf(r *resource.Resource) peerGroup {
	t := r.Spec().(resource.TargetRefSpec).TopTarget()
	g := peerGroup{kind: r.Key().Kind, mesh: r.Key().Mesh, target: t.Kind, name: t.Name, tried: r.Shadowed()}
	if len(t.Tags) > 0 {
		g.tags = t.String()
	}
	return g
}

// peersOf returns the policies with the target of a policy, itself among them,
// in order of name.
func (s *survey) peersOf(policy *resource.Resource) []*resource.Resource {
	key := policy.Key()
	all := peerGroup{kind: key.Kind, mesh: key.Mesh}
	if !s.grouped[all] {
		s.grouped[all] = true
		for r := range s.view.List(key.Kind, key.Mesh) {
			g := groupOf(r)
			s.peers[g] = append(s.peers[g], r)
		}
	}
	return s.peers[groupOf(policy)]
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
