// Package resourcetest makes resources for tests.
//
// It guarantees that what it returns is valid. Non-goals: resources that are refused.
package resourcetest

import (
	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// Build returns a resource with a spec in JSON.
func Build(t require.TestingT, kind resource.Kind, mesh resource.MeshName, name, spec string) *resource.Resource {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: kind, Mesh: mesh, Name: name}}, []byte(spec))
	require.NoError(t, err, "%s %s", kind, name)
	return r
}
