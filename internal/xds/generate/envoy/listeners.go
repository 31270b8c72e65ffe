package envoy

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/world"
)

// builder gathers the resources of a dataplane.
type builder struct {
	generate.Builder
	// settings are those of the mesh.
	settings world.Mesh
	protocol func(resource.TagSelector) world.Protocol
	// own is the protocol of the outbound that is being made.
	own world.Protocol
	// caller is the service of the dataplane, and part what is made of it.
	caller, part string
	// receiving are the clusters of receivers of logs and traces that are made.
	receiving map[string]bool
}

// callerOf is the service as which a dataplane calls in logs: its first.
func callerOf(spec *resource.Dataplane) string {
	for _, in := range spec.Inbounds() {
		return in.Service()
	}
	return ""
}

// MakeOutbounds makes the resources of a dataplane's outbounds, from all its rules and the
// settings of its mesh. routes returns the routes whose parent a service is, and protocol what the endpoints
// behind a selector speak.
func MakeOutbounds(
	mesh resource.MeshName, settings world.Mesh, spec *resource.Dataplane, rules []policy.Rule,
	routes func(service string) []*resource.Resource, protocol func(resource.TagSelector) world.Protocol,
) (*generate.Outbounds, error) {
	b := &builder{settings: settings, caller: callerOf(spec), part: "outbounds"}
	b.Mesh = mesh
	b.PerRoute = []resource.Kind{
		resource.KindMeshCircuitBreaker, resource.KindMeshTrafficRoute, resource.KindMeshUpstreamTimeout, resource.KindMeshHealthCheck,
	}
	b.Configure = b.configure
	known := map[string]bool{}
	b.protocol = func(s resource.TagSelector) world.Protocol {
		p := protocol(s)
		if name := world.KeyOf(mesh, s).Name(); !known[name] {
			known[name] = true
			b.Protocols = append(b.Protocols, generate.SelectorProtocol{Selector: s, Protocol: p})
		}
		return p
	}
	all := listenersOf(spec)
	for i := range all.outbounds {
		out := &all.outbounds[i]
		if err := b.outbound(out, generate.RulesOf(rules, &out.Attachment), routes(out.Service)); err != nil {
			return nil, fmt.Errorf("%s: %w", &out.Attachment, err)
		}
	}
	return &b.Outbounds, nil
}

// Spelling spells a dataplane's outbounds so that those of two dataplanes come to the
// same, by the same rules, if they have the same spelling.
func Spelling(spec *resource.Dataplane) string {
	spelled := strconv.AppendQuote(nil, callerOf(spec))
	all := listenersOf(spec)
	for i := range all.outbounds {
		out := &all.outbounds[i]
		spelled = strconv.AppendQuote(spelled, out.address)
		spelled = append(spelled, generate.Spelling([]policy.Attachment{out.Attachment})...)
	}
	return string(spelled)
}

// outbound adds the listener, routes and clusters of one outbound.
func (b *builder) outbound(out *outbound, rules generate.Rules, routes []*resource.Resource) error {
	a := &out.Attachment
	name := generate.RoutesName(a)
	if out.address != localhost {
		name += "_" + world.Hash(out.address)
	}
	b.own = b.protocol(resource.TagSelector(a.Tags))
	if b.own == world.TCP {
		return b.tcpOutbound(out, rules, name)
	}
	entries, err := generate.Requests.Entries(a, rules, routes)
	if err != nil {
		return err
	}
	host := &routev3.VirtualHost{Name: name, Domains: []string{"*"}}
	var origins []xds.Origin
	for i := range entries {
		made, from, err := b.routes(a, rules, &entries[i], len(host.Routes))
		if err != nil {
			return err
		}
		host.Routes = append(host.Routes, made...)
		origins = append(origins, from...)
	}
	if err := b.Add(&routev3.RouteConfiguration{
		Name: name, VirtualHosts: []*routev3.VirtualHost{host}, ValidateClusters: wrapperspb.Bool(false),
	}, origins...); err != nil {
		return err
	}
	m, err := manager(name)
	if err != nil {
		return err
	}
	timeouts := rules.On("", resource.KindTimeout, resource.KindMeshUpstreamTimeout)
	var from []xds.Origin
	if d, ok := timeouts.Duration("/http/requestHeadersTimeout"); ok {
		m.RequestHeadersTimeout = durationpb.New(d)
		from = timeouts.Origin(inFilter+"/requestHeadersTimeout", "/http/requestHeadersTimeout")
	}
	logs, err := b.outboundLogs(b.listened(a), rules)
	if err != nil {
		return err
	}
	m.AccessLog, from = logs.list, append(from, logs.origins...)
	return b.listener(name, out.place, m, from...)
}

// tcpOutbound adds the listener and clusters of an outbound whose service speaks no HTTP.
func (b *builder) tcpOutbound(out *outbound, rules generate.Rules, name string) error {
	a := &out.Attachment
	e, err := generate.Connections(a, rules)
	if err != nil {
		return err
	}
	shares, err := b.Shares(a, rules, e)
	if err != nil {
		return err
	}
	t := &tcpv3.TcpProxy{StatPrefix: name}
	const at = inFilter
	origins := generate.AppendAt(nil, at, e.Origins)
	switch len(shares) {
	case 0: // nothing is there that could be connected to
		cluster, err := b.Cluster(a, rules, e, nil)
		if err != nil {
			return err
		}
		t.ClusterSpecifier = &tcpv3.TcpProxy_Cluster{Cluster: cluster}
	case 1:
		t.ClusterSpecifier = &tcpv3.TcpProxy_Cluster{Cluster: shares[0].Cluster}
	default:
		weighted := &tcpv3.TcpProxy_WeightedCluster{}
		for _, s := range shares {
			weighted.Clusters = append(weighted.Clusters, &tcpv3.TcpProxy_WeightedCluster_ClusterWeight{Name: s.Cluster, Weight: uint32(s.Weight)})
		}
		t.ClusterSpecifier = &tcpv3.TcpProxy_WeightedClusters{WeightedClusters: weighted}
	}
	timeouts := rules.On("", resource.KindTimeout, resource.KindMeshUpstreamTimeout)
	for _, field := range []policy.Pointer{"/tcp/idleTimeout", "/idleTimeout"} {
		if d, ok := timeouts.Duration(field); ok {
			t.IdleTimeout = durationpb.New(d)
			origins = append(origins, timeouts.Origin(at+"/idleTimeout", field)...)
		}
	}
	retry := rules.On("", resource.KindRetry, resource.KindMeshRequestRetry)
	for _, field := range []policy.Pointer{"/tcp/maxConnectAttempts", "/tcp/maxConnectAttempt"} {
		if n, ok := retry.Number(field); ok {
			t.MaxConnectAttempts = wrapperspb.UInt32(uint32(n))
			origins = append(origins, retry.Origin(at+"/maxConnectAttempts", field)...)
		}
	}
	logs, err := b.outboundLogs(b.listened(a), rules)
	if err != nil {
		return err
	}
	t.AccessLog, origins = logs.list, append(origins, logs.origins...)
	return b.listener(name, out.place, t, origins...)
}

// manager is the HTTP connection manager of a listener, whose routes have its name.
// Timeouts are a matter of routes; a stream without a route has none.
func manager(name string) (*httpv3.HttpConnectionManager, error) {
	router, err := xds.Pack(&routerv3.Router{})
	if err != nil {
		return nil, err
	}
	return &httpv3.HttpConnectionManager{
		StatPrefix: name,
		RouteSpecifier: &httpv3.HttpConnectionManager_Rds{Rds: &httpv3.Rds{
			ConfigSource: generate.ADS(), RouteConfigName: name,
		}},
		HttpFilters:                []*httpv3.HttpFilter{{Name: "router", ConfigType: &httpv3.HttpFilter_TypedConfig{TypedConfig: router}}},
		ServerHeaderTransformation: httpv3.HttpConnectionManager_PASS_THROUGH,
		UpgradeConfigs:             []*httpv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
	}, nil
}

// listener adds a listener with one filter.
func (b *builder) listener(name string, at place, filter proto.Message, origins ...xds.Origin) error {
	packed, err := xds.Pack(filter)
	if err != nil {
		return err
	}
	return b.Add(&listenerv3.Listener{
		Name: name, Address: generate.Socket(at.address, at.port),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: string(filter.ProtoReflect().Descriptor().FullName()), ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed},
		}}}},
	}, origins...)
}

// connecting bounds the time to connect to an application on the same host.
const connecting = 10 * time.Second

// Inbounds makes the listeners of a dataplane's inbounds, with their routes, and the
// clusters of the application behind them.
func Inbounds(key resource.Key, settings world.Mesh, spec *resource.Dataplane, rules []policy.Rule) ([]*xds.Resource, error) {
	b := &builder{settings: settings, part: "inbounds"}
	b.Mesh = key.Mesh
	all := listenersOf(spec)
	clusters := map[string]bool{}
	for i := range all.inbounds {
		in := &all.inbounds[i]
		name := "in_" + strconv.FormatUint(uint64(in.port), 10)
		if in.address != spec.Networking.Address {
			name += "_" + world.Hash(in.address)
		}
		a := policy.Attachment{Type: policy.OnInbound, Port: in.Port, Service: in.Service(), Tags: in.Tags}
		cluster, err := b.application(in, generate.RulesOf(rules, &a), clusters)
		if err != nil {
			return nil, err
		}
		logs, err := b.inboundLogs(b.listened(&a), generate.RulesOf(rules, &a), key.Name, in.port)
		if err != nil {
			return nil, err
		}
		if world.ProtocolOf(in.Tags) == world.TCP {
			t := &tcpv3.TcpProxy{StatPrefix: name, ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: cluster}, AccessLog: logs.list}
			if err := b.listener(name, in.place, t, logs.origins...); err != nil {
				return nil, err
			}
			continue
		}
		m, err := manager(name)
		if err != nil {
			return nil, err
		}
		m.AccessLog = logs.list
		if err := b.listener(name, in.place, m, logs.origins...); err != nil {
			return nil, err
		}
		// The caller's proxy has the timeouts of requests.
		if err := b.Add(&routev3.RouteConfiguration{Name: name, ValidateClusters: wrapperspb.Bool(false), VirtualHosts: []*routev3.VirtualHost{{
			Name: name, Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Match: generate.Everything()[0],
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
					Timeout:          durationpb.New(0), IdleTimeout: durationpb.New(0),
				}},
			}},
		}}}); err != nil {
			return nil, err
		}
	}
	return b.Resources, nil
}

// application adds the cluster of the application behind an inbound.
func (b *builder) application(in *inbound, rules generate.Rules, made map[string]bool) (string, error) {
	at := application(in.Inbound)
	protocol := world.ProtocolOf(in.Tags)
	name := "local_" + strconv.FormatUint(uint64(in.port), 10)
	if made[name] {
		name += "_" + world.Hash(in.address)
	}
	made[name] = true
	c := &clusterv3.Cluster{
		Name: name, ConnectTimeout: durationpb.New(connecting),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: generate.Socket(at.address, at.port),
			}}}},
		}}},
	}
	if _, err := netip.ParseAddr(at.address); err != nil {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
	}
	if err := setProtocol(c, protocol, nil); err != nil {
		return "", err
	}
	var origins []xds.Origin
	for i := range rules {
		if r := &rules[i]; r.Kind == resource.KindMeshCircuitBreaker && !r.PerCaller && len(r.Steps) > 0 {
			origins = append(origins, setBreaker(c, generate.NewConf(r))...)
		}
	}
	return name, b.Add(c, origins...)
}
