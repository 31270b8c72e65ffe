package grpc

import (
	"fmt"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/world"
)

// Proxy makes everything that one dataplane's clients and servers may be sent. The
// error wraps xds.ErrNoDataplane.
func Proxy(m *policy.Matcher, w *world.World, key resource.Key, asOf resource.Revision) (*xds.Set, error) {
	spec, rules, err := generate.Read(m, w, key)
	if err != nil {
		return nil, err
	}
	if reason := Withheld(key.Mesh, w.Mesh(key.Mesh)); reason != "" {
		return xds.WithheldSet(asOf, reason), nil
	}
	outbounds, err := MakeOutbounds(key.Mesh, generate.Outbound(spec), rules, func(service string) []*resource.Resource {
		return w.Routes(key.Mesh, service)
	})
	if err != nil {
		return nil, fmt.Errorf("dataplane %s: %w", key.Name, err)
	}
	own, err := Inbounds(spec)
	if err != nil {
		return nil, fmt.Errorf("dataplane %s: %w", key.Name, err)
	}
	return generate.Assemble(asOf, own, outbounds, xds.GRPC, func(s resource.TagSelector) *world.Endpoints { return w.Endpoints(key.Mesh, s) })
}
