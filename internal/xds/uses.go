package xds

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	otelv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// usesOfCluster returns the endpoints of a cluster that takes them from EDS.
func usesOfCluster(c *clusterv3.Cluster) []Ref {
	if c.GetType() != clusterv3.Cluster_EDS {
		return nil
	}
	name := c.GetEdsClusterConfig().GetServiceName()
	if name == "" {
		name = c.GetName()
	}
	return []Ref{{Endpoints, name}}
}

// usesOfListener returns the route configurations and clusters that a listener's
// HTTP connection managers and TCP proxies name.
func usesOfListener(l *listenerv3.Listener) ([]Ref, error) {
	filters := []*anypb.Any{l.GetApiListener().GetApiListener()}
	chains := l.GetFilterChains()
	if l.GetDefaultFilterChain() != nil {
		chains = append(chains[:len(chains):len(chains)], l.GetDefaultFilterChain())
	}
	for _, chain := range chains {
		for _, f := range chain.GetFilters() {
			filters = append(filters, f.GetTypedConfig())
		}
	}
	var uses []Ref
	var err error
	for _, config := range filters {
		switch {
		case config.MessageIs((*httpv3.HttpConnectionManager)(nil)):
			var manager httpv3.HttpConnectionManager
			if err := config.UnmarshalTo(&manager); err != nil {
				return nil, err
			}
			if name := manager.GetRds().GetRouteConfigName(); name != "" {
				uses = append(uses, Ref{Route, name})
			}
			uses = append(uses, usesOfRoutes(manager.GetRouteConfig())...)
			if uses, err = usesOfLogs(uses, manager.GetAccessLog()); err != nil {
				return nil, err
			}
			if uses, err = usesOfTraces(uses, manager.GetTracing().GetProvider().GetTypedConfig()); err != nil {
				return nil, err
			}
		case config.MessageIs((*tcpv3.TcpProxy)(nil)):
			var tcp tcpv3.TcpProxy
			if err := config.UnmarshalTo(&tcp); err != nil {
				return nil, err
			}
			uses = appendCluster(uses, tcp.GetCluster())
			for _, c := range tcp.GetWeightedClusters().GetClusters() {
				uses = appendCluster(uses, c.GetName())
			}
			if uses, err = usesOfLogs(uses, tcp.GetAccessLog()); err != nil {
				return nil, err
			}
		}
	}
	return uses, nil
}

// usesOfLogs adds the clusters that access logs are sent to.
func usesOfLogs(uses []Ref, logs []*accesslogv3.AccessLog) ([]Ref, error) {
	for _, l := range logs {
		if !l.GetTypedConfig().MessageIs((*otelv3.OpenTelemetryAccessLogConfig)(nil)) {
			continue
		}
		var c otelv3.OpenTelemetryAccessLogConfig
		if err := l.GetTypedConfig().UnmarshalTo(&c); err != nil {
			return nil, err
		}
		uses = appendService(uses, c.GetGrpcService())
	}
	return uses, nil
}

// appendService adds the cluster of a gRPC service. That of the agent is no resource.
func appendService(uses []Ref, s *corev3.GrpcService) []Ref {
	if name := s.GetEnvoyGrpc().GetClusterName(); name != AgentCluster {
		uses = appendCluster(uses, name)
	}
	return uses
}

// usesOfTraces adds the cluster that spans are sent to.
func usesOfTraces(uses []Ref, provider *anypb.Any) ([]Ref, error) {
	if provider == nil {
		return uses, nil
	}
	m, err := provider.UnmarshalNew()
	if err != nil {
		return nil, err
	}
	switch m := m.(type) {
	case *tracev3.ZipkinConfig:
		uses = appendCluster(uses, m.GetCollectorCluster())
	case *tracev3.DatadogConfig:
		uses = appendCluster(uses, m.GetCollectorCluster())
	case *tracev3.OpenTelemetryConfig:
		uses = appendService(uses, m.GetGrpcService())
	}
	return uses, nil
}

// usesOfRoutes returns the clusters that a route configuration sends requests to.
func usesOfRoutes(c *routev3.RouteConfiguration) []Ref {
	var uses []Ref
	mirrors := func(policies []*routev3.RouteAction_RequestMirrorPolicy) {
		for _, p := range policies {
			uses = appendCluster(uses, p.GetCluster())
		}
	}
	mirrors(c.GetRequestMirrorPolicies())
	for _, host := range c.GetVirtualHosts() {
		mirrors(host.GetRequestMirrorPolicies())
		for _, r := range host.GetRoutes() {
			action := r.GetRoute()
			uses = appendCluster(uses, action.GetCluster())
			for _, w := range action.GetWeightedClusters().GetClusters() {
				uses = appendCluster(uses, w.GetName())
			}
			mirrors(action.GetRequestMirrorPolicies())
		}
	}
	return uses
}

func appendCluster(uses []Ref, name string) []Ref {
	if name == "" {
		return uses
	}
	return append(uses, Ref{Cluster, name})
}
