package proxyless

import (
	"bytes"
	"fmt"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/xds"

	"meridian/internal/meshca/meshcatest"
	"meridian/internal/policy"
	"meridian/internal/resource"
	meridianxds "meridian/internal/xds"
	"meridian/internal/xds/xdstest"
)

// Where nothing can be sent protected, nothing is sent: what a program had is removed, and
// its calls end. Once its mesh has no mTLS any more, they succeed again, over the same
// connection. Mutual TLS that a zone does serve is the subject of the tests of clusters.
func TestCallsEndWhileConfigurationIsWithheld(t *testing.T) {
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
	mesh := func(spec string) { z.apply(z.put(resource.KindMesh, "", "m", spec)) }
	until(true)
	for range 3 {
		for backend, reason := range map[string]string{
			"vault": "zones issue certificates of types builtin and provided only",
			// The dataplanes of this test have no zone tag, which names in certificates have.
			"builtin": "the dataplane can have no certificate",
		} {
			mesh(`{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"` + backend + `"}]}}`)
			set, err := z.feed.Resources(policy.DataplaneKey("m", "web-1"), meridianxds.GRPC)
			require.NoError(t, err)
			require.Contains(t, set.Withheld, reason)
			until(false)
			mesh(`{}`)
			until(true)
		}
	}
}

// In a mesh that is STRICT no call goes to a dataplane that has no certificate, as no agent
// comes for one.
func TestADataplaneThatNoAgentComesForIsNotCalled(t *testing.T) {
	z := newZone(t)
	z.apply(z.put(resource.KindMesh, "", "m", mutualTLS), z.put(resource.KindMeshTrafficPermission, "m", "all", everyone))
	ca := meshcatest.Authority(t, "m")
	f, client := newFiles(t), newFiles(t)
	f.put(meshcatest.Issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), ca.Roots())
	client.put(meshcatest.Issue(t, ca, "m", "web-1", resource.Tags{resource.ServiceTag: "web"}), ca.Roots())
	z.serveMember("backend-1", `{"kuma.io/service":"backend","kuma.io/zone":"east"}`, f)
	z.joins()
	alone := start(t, "alone") // without TLS
	z.apply(z.put(resource.KindDataplane, "m", "alone", fmt.Sprintf(`{"networking":{"address":"127.0.0.1","inbound":[{"port":%d,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east"}}]}}`, alone.port)))
	endpoints := func() int {
		set, err := z.feed.Resources(policy.DataplaneKey("m", "web-1"), meridianxds.GRPC)
		require.NoError(t, err)
		n := 0
		for _, r := range set.Of(meridianxds.Endpoints) {
			m, err := r.Message()
			require.NoError(t, err)
			for _, l := range m.(*endpointv3.ClusterLoadAssignment).GetEndpoints() {
				n += len(l.GetLbEndpoints())
			}
		}
		return n
	}
	require.Equal(t, 2, endpoints(), "its agent has time to come")
	z.feed.Unattended(policy.DataplaneKey("m", "alone"))
	require.Equal(t, 1, endpoints())
	z.apply()
	require.Equal(t, map[string]int{"backend-1": 50}, answered(t, z.dialMember(client), 50, "/a.S/M"))
	z.feed.Certified(policy.DataplaneKey("m", "alone"), true)
	require.Equal(t, 2, endpoints())
}
