package expectation

import (
	"context"
	"fmt"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/permission"
	"meridian/internal/resource"
)

// maxConnections bounds the pairs that an invariant over connections looks at.
const maxConnections = 1_000_000

// Offline answers from a matcher. Access answers what is asked of access rules.
type Offline struct {
	Matcher *policy.Matcher
	// Zone is that of dataplanes that name none.
	Zone resource.ZoneName
	// Elsewhere are dataplanes that call those of Matcher, and that it does not have.
	Elsewhere []Dataplane
	// Access is Source's CanI.
	Access func(ctx context.Context, test string, mesh resource.MeshName, c *AccessCase) (bool, []string, error)
}

// Connection implements Source.
func (o *Offline) Connection(_ context.Context, mesh resource.MeshName, c *ConnectionCase) (*answer.ConnectionAnswer, error) {
	return answer.Connection(o.Matcher, answer.ConnectionQuestion{Mesh: mesh, From: c.From, FromTags: c.FromTags, To: c.To, Port: c.Port}, 0)
}

// Dataplane implements Source.
func (o *Offline) Dataplane(_ context.Context, mesh resource.MeshName, name string) (*answer.DataplaneAnswer, error) {
	return answer.Dataplane(o.Matcher, mesh, name, o.Zone, 0)
}

// Dataplanes implements Source.
func (o *Offline) Dataplanes(_ context.Context, mesh resource.MeshName) (all []Dataplane, err error) {
	err = o.Matcher.Read(func(r *policy.Reading) error {
		all = o.dataplanes(r, mesh)
		return nil
	})
	return all, err
}

func (o *Offline) dataplanes(r *policy.Reading, mesh resource.MeshName) (all []Dataplane) {
	for key, shape := range r.Dataplanes(mesh) {
		all = append(all, Dataplane{Mesh: mesh, Name: key.Name, Zone: o.zoneOf(shape), Tags: shape.Members})
	}
	return all
}

func (o *Offline) zoneOf(shape *policy.Shape) resource.ZoneName {
	for _, tags := range shape.Members {
		if zone := tags[resource.ZoneTag]; zone != "" {
			return resource.ZoneName(zone)
		}
	}
	return o.Zone
}

// Connections implements Source. The matcher is read before the first call of each.
func (o *Offline) Connections(ctx context.Context, mesh resource.MeshName, each func(*Connection) bool) error {
	type called struct {
		to   int
		in   *policy.Attachment
		list permission.List
	}
	var all []Dataplane // those that are called first
	var inbounds []called
	err := o.Matcher.Read(func(r *policy.Reading) error {
		all = o.dataplanes(r, mesh)
		here := len(all)
		for i := range o.Elsewhere {
			if o.Elsewhere[i].Mesh == mesh {
				all = append(all, o.Elsewhere[i])
			}
		}
		settings := r.Mesh(mesh)
		for to := range here {
			key := policy.DataplaneKey(mesh, all[to].Name)
			shape, err := r.Dataplane(key)
			if err != nil {
				return err
			}
			rules, err := r.Effective(key)
			if err != nil {
				return fmt.Errorf("match %s: %w", key, err)
			}
			for i := range shape.Attachments {
				in := &shape.Attachments[i]
				if in.Type != policy.OnInbound {
					continue
				}
				inbounds = append(inbounds, called{to, in, permitted(settings, rules, in)})
				if len(inbounds)*(len(all)-1) > maxConnections {
					return fmt.Errorf("the mesh has more than %d connections; write the invariant over dataplanes, or expect single connections", maxConnections)
				}
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range inbounds {
		if c := &inbounds[i]; !callers(all, c.to, c.in, c.list, each) {
			return nil
		}
	}
	return nil
}

// permitted is the list of who may call an inbound.
func permitted(mesh *policy.Mesh, rules []policy.Rule, in *policy.Attachment) permission.List {
	var here []*policy.Rule
	for i := range rules {
		if rules[i].Attachment.Compare(in) == 0 {
			here = append(here, &rules[i])
		}
	}
	return permission.Of(mesh.MTLS, here)
}

// callers calls each with the connection of every other dataplane to an inbound.
func callers(all []Dataplane, to int, in *policy.Attachment, list permission.List, each func(*Connection) bool) bool {
	for from := range all {
		if from == to {
			continue
		}
		allowed, by := list.Decide(all[from].Tags)
		names := make([]string, len(by))
		for i, key := range by {
			names[i] = key.Name
		}
		slices.Sort(names)
		if !each(&Connection{From: &all[from], To: &all[to], Port: in.Port, Allowed: allowed, By: names}) {
			return false
		}
	}
	return true
}

// Routes implements Source.
func (o *Offline) Routes(_ context.Context, mesh resource.MeshName) ([]*answer.RouteAnswer, error) {
	var names []string
	err := o.Matcher.Read(func(r *policy.Reading) error {
		for _, kind := range []resource.Kind{resource.KindHTTPRoute, resource.KindGRPCRoute} {
			for route := range r.View().List(kind, mesh) {
				names = append(names, route.Key().Name)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var all []*answer.RouteAnswer
	for _, name := range slices.Compact(names) {
		a, err := answer.Route(o.Matcher, mesh, name, 0)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// CanI implements Source.
func (o *Offline) CanI(ctx context.Context, test string, mesh resource.MeshName, c *AccessCase) (bool, []string, error) {
	return o.Access(ctx, test, mesh, c)
}
