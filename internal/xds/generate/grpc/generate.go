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
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/world"
)

// Outbounds is everything that a dataplane's outbounds come to, without the endpoints
// themselves. It depends on the mesh's name, the outbounds, their rules and the routes
// of their services, so that dataplanes which share these share it. Immutable.
type Outbounds struct {
	Resources []*xds.Resource
	// Selectors are those whose endpoints the clusters refer to.
	Selectors []resource.TagSelector
}

// Outbound lists the outbounds of a dataplane that a client can name: of several for
// one service and port the first in order.
func Outbound(spec *resource.Dataplane) []policy.Attachment {
	var list []policy.Attachment
	for _, out := range spec.Outbounds() {
		list = append(list, policy.Attachment{Type: policy.OnOutbound, Port: out.Port, Service: out.Service(), Tags: out.Tags})
	}
	slices.SortFunc(list, func(a, b policy.Attachment) int { return a.Compare(&b) })
	return slices.CompactFunc(list, func(a, b policy.Attachment) bool { return a.Port == b.Port && a.Service == b.Service })
}

// MakeOutbounds makes the resources of outbounds, as Outbound lists them, from all rules
// of the dataplane. routes returns the routes whose parent a service is.
func MakeOutbounds(mesh resource.MeshName, outbounds []policy.Attachment, rules []policy.Rule, routes func(service string) []*resource.Resource) (*Outbounds, error) {
	b := &builder{mesh: mesh, listeners: map[string]bool{}, clusters: map[string]bool{}, selectors: map[string]bool{}}
	for i := range outbounds {
		a := &outbounds[i]
		if err := b.outbound(a, rulesOf(rules, a), routes(a.Service)); err != nil {
			return nil, fmt.Errorf("%s: %w", a, err)
		}
	}
	for i := range outbounds {
		if err := b.listener(outbounds[i].Service, RoutesName(&outbounds[i])); err != nil {
			return nil, fmt.Errorf("%s: %w", &outbounds[i], err)
		}
	}
	return &b.Outbounds, nil
}

// rulesOf returns the rules of an outbound and its routes.
func rulesOf(rules []policy.Rule, a *policy.Attachment) outboundRules {
	var mine outboundRules
	for _, r := range rules {
		bare := r.Attachment
		bare.Route = ""
		if bare.Compare(a) == 0 {
			mine = append(mine, r)
		}
	}
	return mine
}

// builder gathers the resources of outbounds.
type builder struct {
	Outbounds
	mesh resource.MeshName
	// Names that are made.
	listeners, clusters, selectors map[string]bool
	nowhere                        bool
}

func (b *builder) add(m proto.Message, origins ...xds.Origin) error {
	r, err := xds.New(m, origins...)
	if err == nil {
		b.Resources = append(b.Resources, r)
	}
	return err
}

// outbound adds the listener, routes and clusters of one outbound.
func (b *builder) outbound(a *policy.Attachment, rules outboundRules, routes []*resource.Resource) error {
	name := RoutesName(a)
	if err := b.listener(a.Service+":"+strconv.FormatUint(uint64(a.Port), 10), name); err != nil {
		return err
	}
	entries, err := entriesOf(a, rules, routes)
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
	return b.add(&routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{host}}, origins...)
}

// RoutesName is the name of an outbound's routes.
func RoutesName(a *policy.Attachment) string {
	name := "out_" + world.Label(a.Service) + "_" + strconv.FormatUint(uint64(a.Port), 10)
	if world.Label(a.Service) != a.Service {
		name += "_" + world.Hash(a.Service) // another service may have the same label
	}
	return name
}

// routes makes the routes of one entry, of which the first is the n-th of the list.
func (b *builder) routes(a *policy.Attachment, rules outboundRules, e *entry, n int) ([]*routev3.Route, []xds.Origin, error) {
	timeouts := rules.on(e.route, resource.KindTimeout, resource.KindMeshUpstreamTimeout)
	timeout, field := timeoutOf(timeouts)
	timeoutFrom := timeouts.origin("", field)
	if timeout == 0 {
		timeoutFrom = nil
	}
	if e.request != nil {
		timeout, timeoutFrom = *e.request, e.timeout
	}
	retry, retryFrom := retryOf(rules.on(e.route, resource.KindRetry, resource.KindMeshRequestRetry))
	shares, err := b.shares(a, rules, e)
	if err != nil {
		return nil, nil, err
	}
	var made []*routev3.Route
	var origins []xds.Origin
	for i, m := range e.matches {
		r := &routev3.Route{Match: m}
		setAction(r, shares, timeout, retry)
		made = append(made, r)
		at := "/virtualHosts/0/routes/" + strconv.Itoa(n+i)
		origins = appendAt(origins, at, e.origins)
		if len(shares) > 0 {
			origins = appendAt(origins, at+"/route/maxStreamDuration/maxStreamDuration", timeoutFrom)
			origins = appendAt(origins, at+"/route/retryPolicy", retryFrom)
		}
	}
	return made, origins, nil
}

// appendAt appends origins whose paths begin at a place.
func appendAt(origins []xds.Origin, at string, more []xds.Origin) []xds.Origin {
	for _, o := range more {
		o.Path = at + o.Path
		origins = append(origins, o)
	}
	return origins
}

// shares makes the clusters of an entry and returns their weights. Destinations
// without weight are left out, equal ones are one.
func (b *builder) shares(a *policy.Attachment, rules outboundRules, e *entry) ([]share, error) {
	var shares []share
	possible := false
	for _, d := range e.destinations {
		if d.weight == 0 {
			continue
		}
		name, err := b.cluster(a, rules, e, d.selector)
		if err != nil {
			return nil, err
		}
		possible = possible || d.selector != nil
		if i := slices.IndexFunc(shares, func(s share) bool { return s.cluster == name }); i >= 0 {
			shares[i].weight += d.weight
			continue
		}
		shares = append(shares, share{name, d.weight})
	}
	if !possible {
		return nil, nil
	}
	fit(shares)
	return shares, nil
}

// The cluster, and its endpoints, of destinations that cannot be: calls to it fail.
const (
	nowhereCluster   = "cl_nowhere"
	nowhereEndpoints = "ep_nowhere"
)

// cluster makes the cluster of a destination of an outbound, once. Its name does not
// depend on policies, so that it stays when they change.
func (b *builder) cluster(a *policy.Attachment, rules outboundRules, e *entry, selector resource.TagSelector) (string, error) {
	route := e.route
	if selector == nil {
		if b.nowhere {
			return nowhereCluster, nil
		}
		b.nowhere = true
		err := b.add(edsCluster(nowhereCluster, nowhereEndpoints))
		if err == nil {
			err = b.add(&endpointv3.ClusterLoadAssignment{ClusterName: nowhereEndpoints})
		}
		return nowhereCluster, err
	}
	if !rules.named(route, resource.KindMeshCircuitBreaker, resource.KindMeshTrafficRoute) {
		route = ""
	}
	key := world.KeyOf(b.mesh, selector)
	name := "cl_" + world.Label(key.Service) + "_" + world.Hash(string(b.mesh), key.Name(), RoutesName(a), route)
	if b.clusters[name] {
		return name, nil
	}
	b.clusters[name] = true
	c := edsCluster(name, key.Name())
	if !b.selectors[key.Name()] {
		b.selectors[key.Name()] = true
		b.Selectors = append(b.Selectors, selector)
	}
	origins := appendAt(nil, "", e.origins) // that there is a cluster at all
	origins = append(origins, setLoadBalancer(c, rules.on(route, resource.KindTrafficRoute, resource.KindMeshTrafficRoute))...)
	origins = append(origins, setBreaker(c, rules.on(route, resource.KindCircuitBreaker, resource.KindMeshCircuitBreaker))...)
	return name, b.add(c, origins...)
}

func edsCluster(name, endpoints string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads(), ServiceName: endpoints},
	}
}

func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
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
			ConfigSource: ads(), RouteConfigName: routes,
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
	packed, err := xds.Pack(m)
	if err != nil {
		return err
	}
	return b.add(&listenerv3.Listener{Name: target, ApiListener: &listenerv3.ApiListener{ApiListener: packed}})
}

// Inbounds makes the listeners that a dataplane's own servers ask for, and their
// routes: every call is served. A server that listens on all addresses asks by the
// address [::] or 0.0.0.0, so that these are names of the same listener.
func Inbounds(spec *resource.Dataplane) ([]*xds.Resource, error) {
	addresses := map[uint32]map[string]bool{}
	for _, in := range spec.Inbounds() {
		if addresses[in.Port] == nil {
			addresses[in.Port] = map[string]bool{"::": true, "0.0.0.0": true}
		}
		if ip, err := netip.ParseAddr(cmp.Or(in.Address, spec.Networking.Address)); err == nil {
			addresses[in.Port][ip.String()] = true
		}
	}
	b := &builder{}
	for _, port := range slices.Sorted(maps.Keys(addresses)) {
		routes := "in_" + strconv.FormatUint(uint64(port), 10)
		for _, address := range slices.Sorted(maps.Keys(addresses[port])) {
			if err := b.serverListener(address, port, routes); err != nil {
				return nil, err
			}
		}
		if err := b.add(&routev3.RouteConfiguration{Name: routes, VirtualHosts: []*routev3.VirtualHost{{
			Name: routes, Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Match:  everything()[0],
				Action: &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}},
			}},
		}}}); err != nil {
			return nil, err
		}
	}
	return b.Resources, nil
}

// serverPrefix begins the names of the listeners of servers.
const serverPrefix = "in/"

func (b *builder) serverListener(address string, port uint32, routes string) error {
	m, err := manager(routes, routes)
	if err != nil {
		return err
	}
	packed, err := xds.Pack(m)
	if err != nil {
		return err
	}
	return b.add(&listenerv3.Listener{
		Name:    serverPrefix + net.JoinHostPort(address, strconv.FormatUint(uint64(port), 10)),
		Address: socket(address, port),
		DefaultFilterChain: &listenerv3.FilterChain{Name: routes, Filters: []*listenerv3.Filter{{
			Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed},
		}}},
	})
}

func socket(address string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// Assignment makes the resource of endpoints, the same one for all proxies. Zones
// share the calls by the number of their endpoints.
func Assignment(e *world.Endpoints) (*xds.Resource, error) {
	type result struct {
		r   *xds.Resource
		err error
	}
	made := e.Made(func() any {
		var r result
		r.r, r.err = assignment(e)
		return r
	}).(result)
	return made.r, made.err
}

func assignment(e *world.Endpoints) (*xds.Resource, error) {
	m := &endpointv3.ClusterLoadAssignment{ClusterName: e.Name()}
	var origins []xds.Origin
	for i, l := range e.Localities {
		locality := &endpointv3.LocalityLbEndpoints{
			Locality: &corev3.Locality{Zone: string(l.Zone)}, Priority: l.Priority,
			LoadBalancingWeight: wrapperspb.UInt32(uint32(len(l.Endpoints))),
		}
		for j, at := range l.Endpoints {
			origins = append(origins, xds.Origin{
				Path:   fmt.Sprintf("/endpoints/%d/lbEndpoints/%d", i, j),
				Source: policy.DataplaneKey(e.Mesh, at.Dataplane),
			})
			locality.LbEndpoints = append(locality.LbEndpoints, &endpointv3.LbEndpoint{
				HealthStatus:   corev3.HealthStatus_HEALTHY,
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: socket(at.Address, at.Port)}},
			})
		}
		m.Endpoints = append(m.Endpoints, locality)
	}
	return xds.New(m, origins...)
}

// Withheld says why a mesh's proxies are sent nothing; empty when they are.
func Withheld(name resource.MeshName, mesh world.Mesh) string {
	switch {
	case !mesh.Exists:
		return fmt.Sprintf("mesh %s does not exist", name)
	case mesh.MTLS:
		return fmt.Sprintf("mesh %s has mutual TLS enabled, which this release does not configure on proxies: nothing is sent, so that nothing is sent unprotected", name)
	}
	return ""
}
