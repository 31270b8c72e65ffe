package grpc

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/world"
)

// MakeOutbounds makes the resources of outbounds, as generate.Outbound lists them, from all rules
// of the dataplane and the settings of its mesh. routes returns the routes whose parent a
// service is, and tls whether all endpoints behind a selector accept mutual TLS. callees,
// which may be nil, has the faults that a caller with tag sets is to meet.
func MakeOutbounds(
	mesh resource.MeshName, settings world.Mesh, outbounds []policy.Attachment, rules []policy.Rule,
	routes func(service string) []*resource.Resource, tls func(resource.TagSelector) bool,
	callees generate.Callees, caller []resource.Tags,
) (*generate.Outbounds, error) {
	b := newBuilder(mesh, settings)
	b.callees, b.caller = callees, caller
	if settings.Offers {
		known := map[string]bool{}
		b.tls = func(s resource.TagSelector) bool {
			all := tls(s)
			if name := world.KeyOf(mesh, s).Name(); !known[name] {
				known[name] = true
				b.Secured = append(b.Secured, generate.SelectorTLS{Selector: s, TLS: all})
			}
			return all
		}
		// A client keeps the connections of a cluster that begins to use TLS, and continues
		// with plaintext for as long as they last: it is another cluster.
		b.Variant = func(s resource.TagSelector) []string {
			if b.tls(s) {
				return []string{"tls"}
			}
			return nil
		}
	}
	for i := range outbounds {
		a := &outbounds[i]
		if err := b.outbound(a, generate.RulesOf(rules, a), routes(a.Service)); err != nil {
			return nil, fmt.Errorf("%s: %w", a, err)
		}
	}
	for i := range outbounds {
		if err := b.listener(outbounds[i].Service, generate.RoutesName(&outbounds[i])); err != nil {
			return nil, fmt.Errorf("%s: %w", &outbounds[i], err)
		}
	}
	return &b.Outbounds, nil
}

// builder gathers the resources of a dataplane.
type builder struct {
	generate.Builder
	secure bool // see world.Mesh
	// tls is whether all endpoints behind a selector accept TLS, where plaintext is
	// accepted, too: a client has one way to call all of them. nil elsewhere.
	tls       func(resource.TagSelector) bool
	revoked   *world.Revoked
	listeners map[string]bool // names that are made
	callees   generate.Callees
	caller    []resource.Tags
}

func newBuilder(mesh resource.MeshName, settings world.Mesh) *builder {
	b := &builder{secure: settings.Secure(), revoked: settings.Revoked, listeners: map[string]bool{}}
	b.Mesh, b.PerRoute = mesh, []resource.Kind{resource.KindMeshCircuitBreaker, resource.KindMeshTrafficRoute}
	b.Configure = func(c *clusterv3.Cluster, _ *policy.Attachment, rules generate.Rules, route string, selector resource.TagSelector) ([]xds.Origin, error) {
		origins := setLoadBalancer(c, rules.On(route, resource.KindTrafficRoute, resource.KindMeshTrafficRoute))
		origins = append(origins, setBreaker(c, rules.On(route, resource.KindCircuitBreaker, resource.KindMeshCircuitBreaker))...)
		if !b.secure && (b.tls == nil || !b.tls(selector)) {
			return origins, nil
		}
		secured, err := secure(c, mesh, selector)
		return append(origins, secured...), err
	}
	return b
}

// outbound adds the listener, routes and clusters of one outbound.
func (b *builder) outbound(a *policy.Attachment, rules generate.Rules, routes []*resource.Resource) error {
	name := generate.RoutesName(a)
	if err := b.listener(a.Service+":"+strconv.FormatUint(uint64(a.Port), 10), name); err != nil {
		return err
	}
	since := b.Mark()
	entries, err := generate.Calls.Entries(a, rules, routes)
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
	config, from, err := b.faults(a, rules, "")
	if err != nil {
		return err
	}
	host.TypedPerFilterConfig = config
	origins = generate.AppendAt(origins, "/virtualHosts/0/typedPerFilterConfig", from)
	with := func(host *routev3.VirtualHost) *routev3.RouteConfiguration {
		return &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{host}}
	}
	return b.AddRoutes(a, since, with(host), with(&routev3.VirtualHost{Name: name, Domains: []string{"*"}}), origins...)
}

// routes makes the routes of one entry, of which the first is the n-th of the list.
func (b *builder) routes(a *policy.Attachment, rules generate.Rules, e *generate.Entry, n int) ([]*routev3.Route, []xds.Origin, error) {
	timeouts := rules.On(e.Route, resource.KindTimeout, resource.KindMeshUpstreamTimeout)
	timeout, field := timeoutOf(timeouts)
	timeoutFrom := timeouts.Origin("", field)
	if timeout == 0 {
		timeoutFrom = nil
	}
	if e.Timeouts != nil && e.Timeouts.Request != nil {
		timeout, timeoutFrom = e.Timeouts.Request.Value(), e.At("", "/timeouts/request")
	}
	retry, retryFrom := retryOf(rules.On(e.Route, resource.KindRetry, resource.KindMeshRequestRetry))
	shares, err := b.Shares(a, rules, e)
	if err != nil {
		return nil, nil, err
	}
	var config map[string]*anypb.Any
	var faulty []xds.Origin
	if e.Route != "" {
		if config, faulty, err = b.faults(a, rules, e.Route); err != nil {
			return nil, nil, err
		}
	}
	struck, struckFrom, err := b.calleeFaults(a, rules, e, shares)
	if err != nil {
		return nil, nil, err
	}
	if len(shares) == 1 && len(struck) == 1 {
		config, faulty, struck = struck[0], struckFrom[0], nil
	}
	var made []*routev3.Route
	var origins []xds.Origin
	for i, m := range e.Matches {
		r := &routev3.Route{Match: m, TypedPerFilterConfig: config}
		setAction(r, shares, timeout, retry)
		for j, c := range r.GetRoute().GetWeightedClusters().GetClusters() {
			if struck != nil {
				c.TypedPerFilterConfig = struck[j]
			}
		}
		made = append(made, r)
		at := "/virtualHosts/0/routes/" + strconv.Itoa(n+i)
		origins = generate.AppendAt(origins, at, e.Origins)
		origins = generate.AppendAt(origins, at+"/typedPerFilterConfig", faulty)
		for j := range struck {
			origins = generate.AppendAt(origins, at+"/route/weightedClusters/clusters/"+strconv.Itoa(j)+"/typedPerFilterConfig", struckFrom[j])
		}
		if len(shares) > 0 {
			origins = generate.AppendAt(origins, at+"/route/maxStreamDuration/maxStreamDuration", timeoutFrom)
			origins = generate.AppendAt(origins, at+"/route/retryPolicy", retryFrom)
		}
	}
	return made, origins, nil
}

// manager is the HTTP connection manager of a listener. What gRPC knows of it is the
// routes and the last filter.
func manager(name, routes string) (*httpv3.HttpConnectionManager, error) {
	router, err := xds.Pack(&routerv3.Router{})
	if err != nil {
		return nil, err
	}
	return &httpv3.HttpConnectionManager{
		StatPrefix: name,
		RouteSpecifier: &httpv3.HttpConnectionManager_Rds{Rds: &httpv3.Rds{
			ConfigSource: generate.ADS(), RouteConfigName: routes,
		}},
		HttpFilters: []*httpv3.HttpFilter{{Name: "router", ConfigType: &httpv3.HttpFilter_TypedConfig{TypedConfig: router}}},
	}, nil
}

// listener adds the listener of a client's target, unless there is one: that of the
// service alone belongs to its outbound with the lowest port. A service may also be
// called as another with its port, or as the listener of a server.
func (b *builder) listener(target, routes string) error {
	if b.listeners[target] || strings.HasPrefix(target, serverPrefix) {
		return nil
	}
	b.listeners[target] = true
	m, err := manager(routes, routes)
	if err != nil {
		return err
	}
	filters, err := faultFilters()
	if err != nil {
		return err
	}
	m.HttpFilters = append(filters, m.GetHttpFilters()...)
	packed, err := xds.Pack(m)
	if err != nil {
		return err
	}
	return b.Add(&listenerv3.Listener{Name: target, ApiListener: &listenerv3.ApiListener{ApiListener: packed}})
}

// Inbounds makes the listeners that a dataplane's own servers ask for. A server that
// listens on all addresses asks by the address [::] or 0.0.0.0, so that these are names of
// the same listener.
func Inbounds(mesh resource.MeshName, settings world.Mesh, spec *resource.Dataplane) ([]*xds.Resource, error) {
	b := newBuilder(mesh, settings)
	addresses := addressesOf(spec)
	for _, port := range slices.Sorted(maps.Keys(addresses)) {
		for _, address := range slices.Sorted(maps.Keys(addresses[port])) {
			if err := b.serverListener(address, port); err != nil {
				return nil, err
			}
		}
	}
	return b.Resources, nil
}

// addressesOf are the addresses that a dataplane's servers may ask for, by port.
func addressesOf(spec *resource.Dataplane) map[uint32]map[string]bool {
	addresses := map[uint32]map[string]bool{}
	for _, in := range spec.Inbounds() {
		if addresses[in.Port] == nil {
			addresses[in.Port] = map[string]bool{"::": true, "0.0.0.0": true}
		}
		if ip, err := netip.ParseAddr(cmp.Or(in.Address, spec.Networking.Address)); err == nil {
			addresses[in.Port][ip.String()] = true
		}
	}
	return addresses
}

// InboundRoutes makes the routes of the listeners of Inbounds, from all rules of the
// dataplane: every call is served, or, in a mesh with mutual TLS, those that permissions
// allow. They do not depend on addresses, so that dataplanes with equal inbounds and rules
// share them, and a change of a permission leaves connections alone.
func InboundRoutes(mesh resource.MeshName, settings world.Mesh, spec *resource.Dataplane, rules []policy.Rule) ([]*xds.Resource, error) {
	b := newBuilder(mesh, settings)
	for _, port := range slices.Sorted(maps.Keys(addressesOf(spec))) {
		name := serverRoutes(port)
		host := &routev3.VirtualHost{
			Name: name, Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Match:  generate.Everything()[0],
				Action: &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}},
			}},
		}
		var origins []xds.Origin
		if settings.Secure() {
			filters, sources, err := permissions(mesh, settings.Revoked, listsOn(spec, rules, port, settings.MTLS), logsAll(spec, rules, port))
			if err != nil {
				return nil, fmt.Errorf("inbound port %d: %w", port, err)
			}
			host.TypedPerFilterConfig = filters
			const at = "/virtualHosts/0/typedPerFilterConfig"
			origins = append(origins, generate.MeshOrigin(mesh, at))
			for _, source := range sources {
				origins = append(origins, xds.Origin{Path: at, Source: source})
			}
		}
		if err := b.Add(&routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{host}}, origins...); err != nil {
			return nil, err
		}
	}
	return b.Resources, nil
}

// serverRoutes is the name of the routes of a port.
func serverRoutes(port uint32) string { return "in_" + strconv.FormatUint(uint64(port), 10) }

// serverPrefix begins the names of the listeners of servers.
const serverPrefix = "in/"

func (b *builder) serverListener(address string, port uint32) error {
	routes := serverRoutes(port)
	m, err := manager(routes, routes)
	if err != nil {
		return err
	}
	chain := &listenerv3.FilterChain{Name: routes}
	var origins []xds.Origin
	if b.secure {
		filters, err := guards()
		if err != nil {
			return err
		}
		m.HttpFilters = append(filters, m.GetHttpFilters()...)
		if chain.TransportSocket, err = serverSocket(); err != nil {
			return err
		}
		if b.revoked != nil {
			// Another listener: the server asks its clients to connect again, so that those
			// that have another certificate since are not denied for that of the connection.
			chain.Name += "_" + b.revoked.Stamp()
		}
		origins = append(origins, generate.MeshOrigin(b.Mesh, "/defaultFilterChain"))
	}
	packed, err := xds.Pack(m)
	if err != nil {
		return err
	}
	chain.Filters = []*listenerv3.Filter{{Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed}}}
	return b.Add(&listenerv3.Listener{
		Name:    serverPrefix + net.JoinHostPort(address, strconv.FormatUint(uint64(port), 10)),
		Address: generate.Socket(address, port), DefaultFilterChain: chain,
	}, origins...)
}

// Shared makes what dataplanes share whose Spelling and rules are equal: MakeOutbounds and
// InboundRoutes.
func Shared(
	mesh resource.MeshName, settings world.Mesh, spec *resource.Dataplane, rules []policy.Rule,
	routes func(service string) []*resource.Resource, tls func(resource.TagSelector) bool, callees generate.Callees,
) (*generate.Outbounds, error) {
	outbounds, err := MakeOutbounds(mesh, settings, generate.Outbound(spec), rules, routes, tls, callees, spec.TagSets())
	if err != nil {
		return nil, err
	}
	served, err := InboundRoutes(mesh, settings, spec, rules)
	outbounds.Resources = append(outbounds.Resources, served...)
	return outbounds, err
}

// Spelling spells what is shared of dataplanes so that equal ones, and only they, have
// equal spellings.
func Spelling(spec *resource.Dataplane) string {
	var inbounds []policy.Attachment
	for _, in := range spec.Inbounds() {
		inbounds = append(inbounds, policy.Attachment{Port: in.Port, Tags: in.Tags})
	}
	var callers []policy.Attachment // they are known by all their tags, also a gateway's
	for _, tags := range spec.TagSets() {
		callers = append(callers, policy.Attachment{Tags: tags})
	}
	return generate.Spelling(inbounds) + "<" + generate.Spelling(callers) + "<" + generate.Spelling(generate.Outbound(spec))
}
