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
	if reason := generate.Withheld(key, spec, w); reason != "" {
		return xds.WithheldSet(asOf, reason), nil
	}
	settings := w.MeshOf(key)
	endpoints := func(s resource.TagSelector) *world.Endpoints { return w.Endpoints(key.Mesh, s) }
	shared, err := Shared(key.Mesh, settings, spec, rules,
		func(service string) []*resource.Resource { return w.Routes(key.Mesh, service) },
		func(s resource.TagSelector) bool { return endpoints(s).AllTLS() }, generate.CalleesOf(m, w, key.Mesh, endpoints))
	if err != nil {
		return nil, fmt.Errorf("dataplane %s: %w", key.Name, err)
	}
	own, err := Inbounds(key.Mesh, settings, spec)
	if err != nil {
		return nil, fmt.Errorf("dataplane %s: %w", key.Name, err)
	}
	return generate.Assemble(asOf, own, shared, xds.GRPC, endpoints)
}
