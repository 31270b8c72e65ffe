package generate

import (
	"errors"
	"fmt"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/world"
)

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
// listeners of its own inbounds. Where one of these is larger than clients receive, the
// proxy is sent nothing: it would be disconnected again and again.
func Assemble(asOf resource.Revision, own []*xds.Resource, outbounds *Outbounds, dialect xds.Dialect, endpoints func(resource.TagSelector) *world.Endpoints) (*xds.Set, error) {
	all := slices.Concat(own, outbounds.Resources)
	for _, s := range outbounds.Selectors {
		r, err := Assignment(endpoints(s), dialect)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	if reason := tooLarge(all); reason != "" {
		return xds.WithheldSet(asOf, reason), nil
	}
	set, err := xds.NewSet(asOf, all...)
	if err != nil {
		return nil, err
	}
	set.Omitted, set.Unmade = outbounds.Omitted, outbounds.Unmade
	return set, nil
}
