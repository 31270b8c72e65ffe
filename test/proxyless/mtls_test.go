package proxyless

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/xds"

	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/internal/xds/xdstest"
)

// In a mesh that turns mTLS on, calls end; once it is off, they succeed again, over the
// same connection.
func TestMutualTLSEndsCallsUntilItIsOff(t *testing.T) {
	z := newZone(t)
	one := start(t, "one")
	z.apply(z.dataplane(one, "v1"))
	// As in the bootstrap file of an agent, deletions are obeyed.
	bootstrap := bytes.Replace(xdstest.Bootstrap(z.serve(), "m/web-1"), []byte(`"ignore_resource_deletion"`), nil, 1)
	builder, err := xds.NewXDSResolverWithConfigForTesting(bootstrap)
	require.NoError(t, err)
	conn, err := grpc.NewClient("xds:///backend", grpc.WithResolvers(builder), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	until := func(succeed bool) {
		for {
			_, err := call(t.Context(), conn, "/a.S/M")
			if succeeded := err == nil; succeeded == succeed {
				return
			}
			require.NoError(t, t.Context().Err())
		}
	}
	mesh := func(spec string) []store.Op { return []store.Op{z.put(resource.KindMesh, "", "m", spec)} }
	until(true)
	for range 3 {
		z.apply(mesh(`{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`)...)
		until(false)
		z.apply(mesh(`{}`)...)
		until(true)
	}
}
