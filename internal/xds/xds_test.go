package xds_test

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"meridian/internal/xds"
)

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	wrapped, err := xds.Pack(m)
	require.NoError(t, err)
	return wrapped
}

func made(t *testing.T, m proto.Message, origins ...xds.Origin) *xds.Resource {
	t.Helper()
	r, err := xds.New(m, origins...)
	require.NoError(t, err)
	return r
}

// routes sends to clusters in every way in which a route can.
func routes(name string) *routev3.RouteConfiguration {
	to := func(cluster string) *routev3.Route {
		return &routev3.Route{Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}}}
	}
	split := &routev3.Route{Action: &routev3.Route_Route{Route: &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{
			Clusters: []*routev3.WeightedCluster_ClusterWeight{{Name: "b"}, {Name: "c"}},
		}},
		RequestMirrorPolicies: []*routev3.RouteAction_RequestMirrorPolicy{{Cluster: "mirror"}},
	}}}
	return &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{{Name: "v", Routes: []*routev3.Route{to("a"), split, to("a")}}}}
}

func TestAResourceNamesWhatItRefersTo(t *testing.T) {
	eds := func(name, service string) *clusterv3.Cluster {
		return &clusterv3.Cluster{
			Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: service},
		}
	}
	clusters := []xds.Ref{{Type: xds.Cluster, Name: "a"}, {Type: xds.Cluster, Name: "b"}, {Type: xds.Cluster, Name: "c"}, {Type: xds.Cluster, Name: "mirror"}}
	manager := func(t *testing.T, m *httpv3.HttpConnectionManager) *anypb.Any { return pack(t, m) }
	rds := &httpv3.HttpConnectionManager{RouteSpecifier: &httpv3.HttpConnectionManager_Rds{Rds: &httpv3.Rds{RouteConfigName: "r"}}}
	inline := &httpv3.HttpConnectionManager{RouteSpecifier: &httpv3.HttpConnectionManager_RouteConfig{RouteConfig: routes("")}}
	chain := func(config *anypb.Any) *listenerv3.FilterChain {
		return &listenerv3.FilterChain{Filters: []*listenerv3.Filter{{Name: "f", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config}}}}
	}
	for name, c := range map[string]struct {
		message proto.Message
		uses    []xds.Ref
	}{
		"endpoints of another name": {eds("a", "svc"), []xds.Ref{{Type: xds.Endpoints, Name: "svc"}}},
		"endpoints of its own name": {eds("a", ""), []xds.Ref{{Type: xds.Endpoints, Name: "a"}}},
		"a cluster by DNS":          {&clusterv3.Cluster{Name: "a", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}}, nil},
		"endpoints":                 {&endpointv3.ClusterLoadAssignment{ClusterName: "a"}, nil},
		"routes":                    {routes("r"), clusters},
		"a client's listener":       {&listenerv3.Listener{Name: "l", ApiListener: &listenerv3.ApiListener{ApiListener: manager(t, rds)}}, []xds.Ref{{Type: xds.Route, Name: "r"}}},
		"routes inside":             {&listenerv3.Listener{Name: "l", ApiListener: &listenerv3.ApiListener{ApiListener: manager(t, inline)}}, clusters},
		"a server's listener":       {&listenerv3.Listener{Name: "l", FilterChains: []*listenerv3.FilterChain{chain(manager(t, rds))}}, []xds.Ref{{Type: xds.Route, Name: "r"}}},
		"the default chain": {&listenerv3.Listener{Name: "l", DefaultFilterChain: chain(pack(t, &tcpv3.TcpProxy{
			ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: "a"},
		}))}, clusters[:1]},
		"a split of connections": {&listenerv3.Listener{Name: "l", FilterChains: []*listenerv3.FilterChain{chain(pack(t, &tcpv3.TcpProxy{
			ClusterSpecifier: &tcpv3.TcpProxy_WeightedClusters{WeightedClusters: &tcpv3.TcpProxy_WeightedCluster{
				Clusters: []*tcpv3.TcpProxy_WeightedCluster_ClusterWeight{{Name: "b"}, {Name: "a"}},
			}},
		}))}}, clusters[:2]},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.uses, made(t, c.message).Uses) })
	}
}

// A map inside a message is marshalled in random order, unless told otherwise: the
// version would change from one generation to the next.
func TestTheVersionIsThatOfTheContent(t *testing.T) {
	build := func() *xds.Resource {
		fields := map[string]*structpb.Value{}
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			fields[name] = structpb.NewStringValue(name)
		}
		return made(t, &clusterv3.Cluster{Name: "c", Metadata: &corev3.Metadata{
			FilterMetadata:      map[string]*structpb.Struct{"meridian": {Fields: fields}},
			TypedFilterMetadata: map[string]*anypb.Any{"x": pack(t, &structpb.Struct{Fields: fields})},
		}})
	}
	first := build()
	for range 20 {
		again := build()
		require.Equal(t, first.Version, again.Version)
		require.Equal(t, first.Body, again.Body)
	}
	require.NotEqual(t, first.Version, made(t, &clusterv3.Cluster{Name: "c"}).Version)
	m, err := first.Message()
	require.NoError(t, err)
	require.Equal(t, "c", m.(*clusterv3.Cluster).GetName())
}

func TestWhatIsNotAResource(t *testing.T) {
	_, err := xds.New(&structpb.Struct{})
	require.ErrorContains(t, err, "not a resource that is served")
	_, err = xds.New(&clusterv3.Cluster{})
	require.ErrorContains(t, err, "without a name")
	broken := &anypb.Any{TypeUrl: pack(t, &httpv3.HttpConnectionManager{}).GetTypeUrl(), Value: []byte{0xff}}
	_, err = xds.New(&listenerv3.Listener{Name: "l", ApiListener: &listenerv3.ApiListener{ApiListener: broken}})
	require.ErrorContains(t, err, "LDS l: ")
}

func TestASetIsComplete(t *testing.T) {
	a, b := made(t, &clusterv3.Cluster{Name: "a"}), made(t, &clusterv3.Cluster{Name: "b"})
	c, mirror := made(t, &clusterv3.Cluster{Name: "c"}), made(t, &clusterv3.Cluster{Name: "mirror"})
	r := made(t, routes("r"))
	s, err := xds.NewSet(7, r, mirror, c, b, a)
	require.NoError(t, err)
	require.Equal(t, []*xds.Resource{a, b, c, mirror}, s.Of(xds.Cluster))
	require.Equal(t, []*xds.Resource{r}, s.Of(xds.Route))
	require.Empty(t, s.Of(xds.Listener))
	require.Same(t, b, s.Get(b.Ref()))
	require.Nil(t, s.Get(xds.Ref{Type: xds.Listener, Name: "b"}))
	require.Equal(t, 5, s.Len())

	_, err = xds.NewSet(7, r, a, b, c)
	require.EqualError(t, err, "RDS r refers to CDS mirror, which is not in the set")
	_, err = xds.NewSet(7, a, a)
	require.EqualError(t, err, "CDS a is in the set twice")
}

func TestTypesHaveTheirURLs(t *testing.T) {
	for _, want := range xds.Types {
		got, ok := xds.TypeOf(want.URL())
		require.True(t, ok)
		require.Equal(t, want, got)
	}
	_, ok := xds.TypeOf("type.googleapis.com/envoy.config.core.v3.Node")
	require.False(t, ok)
	wrapped := pack(t, &clusterv3.Cluster{})
	require.Equal(t, xds.Cluster.URL(), wrapped.GetTypeUrl())
}
