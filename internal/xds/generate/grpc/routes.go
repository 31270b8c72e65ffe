package grpc

import (
	"net/http"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/xds/generate"
)

// setAction sends calls to clusters by weight. Without any, the calls fail: a client has
// no other way to say so than an action that it does not support.
func setAction(r *routev3.Route, shares []generate.Share, timeout time.Duration, retry *routev3.RetryPolicy) {
	if len(shares) == 0 {
		r.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
			Status: http.StatusInternalServerError,
			Body:   &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "no valid destination"}},
		}}
		return
	}
	action := &routev3.RouteAction{RetryPolicy: retry}
	if timeout > 0 {
		action.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: durationpb.New(timeout)}
	}
	if len(shares) == 1 {
		action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: shares[0].Cluster}
	} else {
		clusters := make([]*routev3.WeightedCluster_ClusterWeight, len(shares))
		for i, s := range shares {
			clusters[i] = &routev3.WeightedCluster_ClusterWeight{Name: s.Cluster, Weight: wrapperspb.UInt32(uint32(s.Weight))}
		}
		action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{Clusters: clusters}}
	}
	r.Action = &routev3.Route_Route{Route: action}
}
