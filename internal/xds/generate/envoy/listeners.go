package envoy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	matchingv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/identity"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/world"
)

// builder gathers the resources of a dataplane.
type builder struct {
	generate.Builder
	settings world.Mesh
	protocol func(resource.TagSelector) world.Protocol
	// own is the protocol of the outbound that is being made.
	own world.Protocol
	// caller is the service of the dataplane, and part what is made of it.
	caller, part string
	// traced is where the spans of requests go.
	traced *traced
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

// MakeOutbounds makes the resources of a dataplane's outbounds, from all its rules and
// the settings of its mesh. routes returns the routes whose parent a service is, and
// protocol what the endpoints behind a selector speak.
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
	var err error
	if b.traced, err = b.tracing(rules); err != nil {
		return nil, err
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

// Shared makes what dataplanes share whose Spelling and rules are equal: MakeOutbounds and
// InboundRoutes.
func Shared(
	mesh resource.MeshName, settings world.Mesh, spec *resource.Dataplane, rules []policy.Rule, tried *generate.Tried,
	routes func(service string) []*resource.Resource, protocol func(resource.TagSelector) world.Protocol,
) (*generate.Outbounds, error) {
	outbounds, err := MakeOutbounds(mesh, settings, spec, rules, routes, protocol)
	if err != nil {
		return nil, err
	}
	served, err := InboundRoutes(mesh, settings, spec, rules, tried)
	outbounds.Resources = append(outbounds.Resources, served...)
	return outbounds, err
}

// Spelling spells what is shared of dataplanes so that that of two comes to the same, by
// the same rules, if they have the same spelling.
func Spelling(spec *resource.Dataplane) string {
	spelled := strconv.AppendQuote(nil, callerOf(spec))
	all := listenersOf(spec)
	for i := range all.inbounds {
		in := &all.inbounds[i]
		spelled = strconv.AppendQuote(strconv.AppendQuote(append(spelled, '<'), in.name), in.cluster)
		for _, a := range attachmentsAt(spec, in.place) {
			spelled = append(spelled, generate.Spelling([]policy.Attachment{a})...)
		}
	}
	for i := range all.outbounds {
		out := &all.outbounds[i]
		spelled = strconv.AppendQuote(append(spelled, '>'), out.address)
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
	since := b.Mark()
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
	config, from, err := b.onRoute(rules, "")
	if err != nil {
		return err
	}
	host.TypedPerFilterConfig = config
	origins = generate.AppendAt(origins, hostFilters, from)
	with := func(host *routev3.VirtualHost) *routev3.RouteConfiguration {
		return &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{host}, ValidateClusters: wrapperspb.Bool(false)}
	}
	refused := &routev3.Route{Match: generate.Everything()[0]}
	fail(refused, "the routes of this outbound are too large")
	refuse := &routev3.VirtualHost{Name: name, Domains: []string{"*"}, Routes: []*routev3.Route{refused}}
	if err := b.AddRoutes(a, since, with(host), with(refuse), origins...); err != nil {
		return err
	}
	m, err := manager(name, name)
	if err != nil {
		return err
	}
	timeouts := rules.On("", resource.KindTimeout, resource.KindMeshUpstreamTimeout)
	from = nil
	if d, ok := timeouts.Duration("/http/requestHeadersTimeout"); ok {
		m.RequestHeadersTimeout = durationpb.New(d)
		from = timeouts.Origin(inFilter+"/requestHeadersTimeout", "/http/requestHeadersTimeout")
	}
	logs, err := b.outboundLogs(b.listened(a), rules)
	if err != nil {
		return err
	}
	m.AccessLog, from = logs.list, append(from, logs.origins...)
	traces, err := b.traces(m, b.listened(a))
	if err != nil {
		return err
	}
	from = append(from, traces...)
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

// manager is the HTTP connection manager of a listener. Timeouts are a matter of routes; a
// stream without a route has none.
func manager(statistics, routes string) (*httpv3.HttpConnectionManager, error) {
	router, err := xds.Pack(&routerv3.Router{})
	if err != nil {
		return nil, err
	}
	filters, err := slots()
	if err != nil {
		return nil, err
	}
	return &httpv3.HttpConnectionManager{
		StatPrefix: statistics,
		RouteSpecifier: &httpv3.HttpConnectionManager_Rds{Rds: &httpv3.Rds{
			ConfigSource: generate.ADS(), RouteConfigName: routes,
		}},
		HttpFilters:                append(filters, &httpv3.HttpFilter{Name: "router", ConfigType: &httpv3.HttpFilter_TypedConfig{TypedConfig: router}}),
		ServerHeaderTransformation: httpv3.HttpConnectionManager_PASS_THROUGH,
		UpgradeConfigs:             []*httpv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
	}, nil
}

// listener adds the listener of an outbound.
func (b *builder) listener(name string, at place, filter proto.Message, origins ...xds.Origin) error {
	packed, err := filterOf(filter)
	if err != nil {
		return err
	}
	return b.Add(&listenerv3.Listener{
		Name: name, Address: generate.Socket(at.address, at.port), TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{packed}}},
	}, origins...)
}

func filterOf(m proto.Message) (*listenerv3.Filter, error) {
	packed, err := xds.Pack(m)
	if err != nil {
		return nil, err
	}
	return &listenerv3.Filter{
		Name: string(m.ProtoReflect().Descriptor().FullName()), ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed},
	}, nil
}

// connecting bounds the time to connect to an application on the same host.
const connecting = 10 * time.Second

// Inbounds makes the listeners of a dataplane's inbounds, the clusters of the application
// behind them, and the listeners at which its metrics are read.
func Inbounds(key resource.Key, settings world.Mesh, spec *resource.Dataplane, rules []policy.Rule, tried *generate.Tried) ([]*xds.Resource, error) {
	b := &builder{settings: settings, caller: callerOf(spec), part: "inbounds"}
	b.Mesh = key.Mesh
	var err error
	if b.traced, err = b.tracing(rules); err != nil {
		return nil, err
	}
	all := listenersOf(spec)
	for i := range all.inbounds {
		in := &all.inbounds[i]
		a := attachmentOf(in.Inbound)
		if err := b.application(in, generate.RulesOf(rules, &a)); err != nil {
			return nil, err
		}
		if err := b.inbound(in, key.Name, spec, rules, tried); err != nil {
			return nil, fmt.Errorf("inbound port %d: %w", in.port, err)
		}
	}
	err = b.metrics(spec, rules)
	return b.Resources, err
}

// inbound adds the listener of an inbound. What decides about requests is in its routes;
// what decides about connections is in it.
func (b *builder) inbound(in *inbound, dataplane string, spec *resource.Dataplane, rules []policy.Rule, tried *generate.Tried) error {
	protocol, a := world.ProtocolOf(in.Tags), attachmentOf(in.Inbound)
	logs, err := b.inboundLogs(b.listened(&a), generate.RulesOf(rules, &a), dataplane, in.port)
	if err != nil {
		return err
	}
	limited, from, err := limitOf(in.name, generate.RulesOf(rules, &a))
	if err != nil {
		return err
	}
	lists := generate.Permissions(true, rules, attachmentsAt(spec, in.place))
	everyone, err := identity.Pattern(b.Mesh, nil)
	if err != nil && b.settings.Certified() {
		return err
	}
	names := []string{everyone}
	var traces []xds.Origin
	filters := func(statistics string, certified bool) ([]*listenerv3.Filter, error) {
		m, err := manager(statistics, in.name)
		if err == nil && certified {
			err = guards(m, len(lists))
		}
		if err != nil {
			return nil, err
		}
		if m.AccessLog = logs.list; certified {
			counts, err := counted(httpTrials, in.port, len(lists), "%METADATA(ROUTE:"+trialMetadata+":"+trialStamp+")%")
			if err != nil {
				return nil, err
			}
			m.AccessLog = append(slices.Clip(m.GetAccessLog()), counts)
		}
		if traces, err = b.traces(m, b.listened(&a)); err != nil {
			return nil, err
		}
		made, err := filterOf(m)
		return append(slices.Clone(limited), made), err
	}
	origins := append(from, behind(logs.origins, len(limited))...)
	if protocol == world.TCP {
		var decide []*matchingv3.Matcher
		var listed []string
		var trial *trial
		if b.settings.Certified() {
			c, err := newCompiler(b.Mesh, b.settings.Revoked)
			if err != nil {
				return err
			}
			if decide, listed, err = c.withNames(lists); err != nil {
				return err
			}
			if trial, err = c.trial(lists, decide, listed, tried, attachmentsAt(spec, in.place)); err != nil {
				return err
			}
		}
		filters = func(statistics string, certified bool) ([]*listenerv3.Filter, error) {
			t := &tcpv3.TcpProxy{StatPrefix: statistics, ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: in.cluster}, AccessLog: logs.list}
			if !certified {
				made, err := filterOf(t)
				return append(slices.Clone(limited), made), err
			}
			guarding, err := connections(decide, listed, statistics, t)
			if err != nil {
				return nil, err
			}
			if trial != nil {
				trying, err := trial.connections(statistics)
				if err != nil {
					return nil, err
				}
				counts, err := counted(tcpTrials, in.port, len(lists), literal(trial.stamp))
				if err != nil {
					return nil, err
				}
				t.AccessLog = append(slices.Clip(t.GetAccessLog()), counts)
				guarding = append(trying, guarding...)
			}
			made, err := filterOf(t)
			return slices.Concat(limited, guarding, []*listenerv3.Filter{made}), err
		}
		if listed != nil {
			names = listed
		}
		if b.settings.Certified() {
			before := len(lists)
			if trial != nil {
				before += len(trial.matchers)
			}
			origins = append(from, behind(logs.origins, len(limited)+before)...) // they are about the last filter
			origins = append(origins, sources(lists, "/filterChains/0/filters")...)
		}
	}
	l := &listenerv3.Listener{
		Name: in.name, Address: generate.Socket(in.address, in.port), TrafficDirection: corev3.TrafficDirection_INBOUND,
	}
	more, err := b.chains(l, in.name, protocol, names, filters)
	if err != nil {
		return err
	}
	return b.Add(l, slices.Concat(origins, traces, more)...)
}

// InboundRoutes makes the routes of the listeners of Inbounds that speak HTTP, with the
// permissions of who has a certificate. They do not depend on addresses, so that
// dataplanes with equal inbounds and rules share them, and a change of a permission leaves
// connections alone.
func InboundRoutes(mesh resource.MeshName, settings world.Mesh, spec *resource.Dataplane, rules []policy.Rule, tried *generate.Tried) ([]*xds.Resource, error) {
	b := &builder{settings: settings}
	b.Mesh = mesh
	all := listenersOf(spec)
	for i := range all.inbounds {
		in := &all.inbounds[i]
		if world.ProtocolOf(in.Tags) == world.TCP {
			continue
		}
		host := &routev3.VirtualHost{
			Name: in.name, Domains: []string{"*"},
			// The caller's proxy has the timeouts of requests.
			Routes: []*routev3.Route{{
				Match: generate.Everything()[0],
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: in.cluster},
					Timeout:          durationpb.New(0), IdleTimeout: durationpb.New(0),
				}},
			}},
		}
		var origins []xds.Origin
		if settings.Certified() {
			lists := generate.Permissions(true, rules, attachmentsAt(spec, in.place))
			opened, trial, err := overrides(mesh, settings.Revoked, lists, tried, attachmentsAt(spec, in.place))
			if err != nil {
				return nil, fmt.Errorf("inbound port %d: %w", in.port, err)
			}
			host.TypedPerFilterConfig = opened
			const at = "/virtualHosts/0/typedPerFilterConfig"
			origins = append([]xds.Origin{generate.MeshOrigin(mesh, at)}, sources(lists, at)...)
			if trial != nil {
				host.Routes[0].Metadata = trial.metadata()
				origins = append(origins, sources(trial.lists, at)...)
			}
		}
		a := attachmentOf(in.Inbound)
		config, from, err := b.forCallers(generate.RulesOf(rules, &a))
		if err != nil {
			return nil, fmt.Errorf("inbound port %d: %w", in.port, err)
		}
		if host.TypedPerFilterConfig == nil {
			host.TypedPerFilterConfig = map[string]*anypb.Any{}
		}
		maps.Copy(host.TypedPerFilterConfig, config)
		origins = append(origins, from...)
		if err := b.Add(&routev3.RouteConfiguration{
			Name: in.name, ValidateClusters: wrapperspb.Bool(false), VirtualHosts: []*routev3.VirtualHost{host},
		}, origins...); err != nil {
			return nil, err
		}
	}
	return b.Resources, nil
}

// application adds the cluster of the application behind an inbound.
func (b *builder) application(in *inbound, rules generate.Rules) error {
	at := application(in.Inbound)
	protocol, name := world.ProtocolOf(in.Tags), in.cluster
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
		return err
	}
	var origins []xds.Origin
	if rule := inEffect(rules, resource.KindMeshCircuitBreaker, resource.KindMeshCircuitBreaker); rule != nil {
		// A cluster is of all callers together, and has one endpoint: none is ejected.
		origins = slices.DeleteFunc(setBreaker(c, forEveryone(rule)), func(o xds.Origin) bool { return !strings.HasPrefix(o.Path, "/circuitBreakers/") })
		c.OutlierDetection, c.CommonLbConfig = nil, nil
	}
	return b.Add(c, origins...)
}
