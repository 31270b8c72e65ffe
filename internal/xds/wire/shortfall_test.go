package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/xds"
	"meridian/internal/xds/support"
	"meridian/internal/xds/wire"
)

// What is so of all fields in a part is said of the part, and never of a field that is
// enforced.
func TestShortfalls(t *testing.T) {
	type short struct {
		path   resource.Path
		status support.Status
		fields int
	}
	for name, c := range map[string]struct {
		kind resource.Kind
		spec string
		want []short
	}{
		"all of a part": {
			resource.KindTimeout, `{"sources": [{"match": {"kuma.io/service": "*"}}], "destinations": [{"match": {"kuma.io/service": "*"}}], "conf": {"connectTimeout": "1s", "http": {"idleTimeout": "1s"}, "tcp": {"idleTimeout": "2s"}}}`,
			[]short{{"conf", support.Unsupported, 3}},
		},
		"nothing": {
			resource.KindMeshCircuitBreaker, `{"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "Mesh"}, "default": {"connectionLimits": {"maxRequests": 1}}}]}`, nil,
		},
		"some": {
			resource.KindMeshCircuitBreaker, `{"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "Mesh"}, "default": {"connectionLimits": {"maxRequests": 1, "maxConnections": 2}}}], "from": [{"targetRef": {"kind": "Mesh"}, "default": {"connectionLimits": {"maxRequests": 1}}}]}`,
			[]short{{"from[0].default.connectionLimits.maxRequests", support.Unsupported, 1}, {"to[0].default.connectionLimits.maxConnections", support.Unsupported, 1}},
		},
		"no kind of proxies": {resource.KindZone, `{}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			mesh := resource.MeshName("m")
			if c.kind == resource.KindZone {
				mesh = ""
			}
			got, err := wire.Shortfalls(xds.GRPC, resourcetest.Build(t, c.kind, mesh, "p", c.spec))
			require.NoError(t, err)
			var have []short
			for _, s := range got {
				require.NotEmpty(t, s.Note)
				have = append(have, short{s.Path, s.Status, s.Fields})
			}
			require.Equal(t, c.want, have)
		})
	}
}
