package feed

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/internal/xds"
)

// The faults of inbounds touch the gRPC clients that call them, and no others; those that
// hold for their tags change their routes, and all other changes of permissions do not.
func TestFaultsOfInboundsTouchTheirClients(t *testing.T) {
	z := started(t)
	fault := func(caller string, status int) store.Op {
		return z.put(resource.KindMeshHTTPFault, "m", "f", fmt.Sprintf(`{"targetRef":{"kind":"Service","name":"backend"},"from":[{"targetRef":{"kind":"Service","name":%q},"default":{"http":[{"abort":{"percentage":100,"httpStatus":%d}}]}}]}`, caller, status))
	}
	z.apply(z.put(resource.KindDataplane, "m", "api-1", strings.ReplaceAll(caller("10.0.0.3"), `"web"`, `"api"`)))
	web, api, _, orders := z.set("web-1"), z.set("api-1"), z.set("web-2"), z.set("orders-1")
	check := func(touches bool, inWeb, inAPI []string, ops ...store.Op) {
		t.Helper()
		touched := z.apply(ops...)
		require.Equal(t, touches, touched[policy.DataplaneKey("m", "web-1")])
		require.Equal(t, touches, touched[policy.DataplaneKey("m", "web-2")])
		require.False(t, touched[policy.DataplaneKey("m", "orders-1")])
		made := z.feed.Made()
		nowWeb, nowAPI := z.set("web-1"), z.set("api-1")
		require.Equal(t, inWeb, changed(web, nowWeb))
		require.Equal(t, inAPI, changed(api, nowAPI))
		require.Equal(t, nowWeb.Get(xds.Ref{Type: xds.Route, Name: "out_backend_4001"}), z.set("web-2").Get(xds.Ref{Type: xds.Route, Name: "out_backend_4001"}), "they share it")
		require.LessOrEqual(t, z.feed.Made()-made, uint64(2))
		require.Empty(t, changed(orders, z.set("orders-1")))
		web, api = nowWeb, nowAPI
	}
	routes := []string{"RDS out_backend_4001"}
	check(true, routes, nil, fault("web", 503))
	check(true, routes, nil, fault("web", 504))
	check(true, routes, routes, fault("api", 504))
	check(true, nil, routes, fault("api", 503))
	check(false, nil, nil, z.put(resource.KindMeshTrafficPermission, "m", "p", `{"targetRef":{"kind":"Service","name":"backend"},"from":[{"targetRef":{"kind":"Mesh"},"default":{"action":"ALLOW"}}]}`))
	// Another instance without them, and one behind an Envoy, has the client make none.
	endpoints := web.Of(xds.Endpoints)[0].Ref().String()
	both := []string{endpoints, routes[0]}
	check(true, []string{endpoints}, both, z.put(resource.KindDataplane, "m", "backend-2", strings.ReplaceAll(server("10.0.1.2", "backend"), `"kuma.io/service"`, `"v":"2","kuma.io/service"`)),
		z.put(resource.KindMeshHTTPFault, "m", "f", `{"targetRef":{"kind":"ServiceSubset","name":"backend","tags":{"v":"2"}},"from":[{"targetRef":{"kind":"Mesh"},"default":{"http":[{"abort":{"percentage":100,"httpStatus":503}}]}}]}`))
	check(true, both, both, store.Delete(policy.DataplaneKey("m", "backend-1")))
	z.feed.Listening(policy.DataplaneKey("m", "backend-2"), true, false)
	check(false, both, both)
	check(true, nil, nil, store.Delete(resource.Key{Kind: resource.KindMeshHTTPFault, Mesh: "m", Name: "f"}))
}
