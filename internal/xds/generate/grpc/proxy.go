package grpc

import (
	"errors"
	"fmt"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/world"
)

// Proxy makes everything that one dataplane's clients and servers may be sent. The
// error wraps xds.ErrNoDataplane.
func Proxy(m *policy.Matcher, w *world.World, key resource.Key, asOf resource.Revision) (*xds.Set, error) {
	spec, rules, err := Read(m, w, key)
	if err != nil {
		return nil, err
	}
	if reason := Withheld(key.Mesh, w.Mesh(key.Mesh)); reason != "" {
		return xds.WithheldSet(asOf, reason), nil
	}
	outbounds, err := MakeOutbounds(key.Mesh, Outbound(spec), rules, func(service string) []*resource.Resource {
		return w.Routes(key.Mesh, service)
	})
	if err != nil {
		return nil, fmt.Errorf("dataplane %s: %w", key.Name, err)
	}
	own, err := Inbounds(spec)
	if err != nil {
		return nil, fmt.Errorf("dataplane %s: %w", key.Name, err)
	}
	return Assemble(asOf, own, outbounds, func(s resource.TagSelector) *world.Endpoints { return w.Endpoints(key.Mesh, s) })
}

// Read returns a dataplane and the rules on it.
func Read(m *policy.Matcher, w *world.World, key resource.Key) (*resource.Dataplane, []policy.Rule, error) {
	r, ok := w.Dataplane(key)
	if !ok || key.Kind != resource.KindDataplane {
		return nil, nil, fmt.Errorf("%w: %s in mesh %s", xds.ErrNoDataplane, key.Name, key.Mesh)
	}
	rules, err := m.Effective(key)
	if errors.Is(err, policy.ErrNoDataplane) {
		return nil, nil, fmt.Errorf("%w: %s in mesh %s", xds.ErrNoDataplane, key.Name, key.Mesh)
	}
	return r.Spec().(*resource.Dataplane), rules, err
}

// Assemble puts together what a dataplane shares with others, its endpoints, and the
// listeners of its own servers, as Inbounds makes them.
func Assemble(asOf resource.Revision, own []*xds.Resource, outbounds *Outbounds, endpoints func(resource.TagSelector) *world.Endpoints) (*xds.Set, error) {
	all := slices.Concat(own, outbounds.Resources)
	for _, s := range outbounds.Selectors {
		r, err := Assignment(endpoints(s))
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return xds.NewSet(asOf, all...)
}
