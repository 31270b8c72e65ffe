package generate

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
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
	// Protocols are what the endpoints speak of the selectors for which that matters.
	Protocols []SelectorProtocol
	// Secured are whether all endpoints accept TLS of the selectors for which that matters.
	Secured []SelectorTLS
	// Callees are the rules of others' inbounds that the clients were made by.
	Callees []SelectorCalled
	// Omitted are the outbounds whose requests fail because of their size.
	Omitted []xds.Omission
	// Unmade are the faults on outbounds that the clients do not make.
	Unmade []xds.Omission
}

// SelectorProtocol is the protocol that the endpoints behind a selector have in common.
type SelectorProtocol struct {
	Selector resource.TagSelector
	Protocol world.Protocol
}

// SelectorTLS is whether all endpoints behind a selector accept TLS.
type SelectorTLS struct {
	Selector resource.TagSelector
	TLS      bool
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

// Spelling spells outbounds so that equal ones, and only they, have equal spellings.
func Spelling(outbounds []policy.Attachment) string {
	var spelled []byte
	for i := range outbounds {
		spelled = strconv.AppendUint(append(spelled, '|'), uint64(outbounds[i].Port), 10)
		for _, tag := range slices.Sorted(maps.Keys(outbounds[i].Tags)) {
			spelled = strconv.AppendQuote(strconv.AppendQuote(spelled, tag), outbounds[i].Tags[tag])
		}
	}
	return string(spelled)
}

// RoutesName is the name of an outbound's routes.
func RoutesName(a *policy.Attachment) string {
	name := "out_" + world.Label(a.Service) + "_" + strconv.FormatUint(uint64(a.Port), 10)
	if world.Label(a.Service) != a.Service {
		name += "_" + world.Hash(a.Service) // another service may have the same label
	}
	return name
}

// Builder gathers the resources of outbounds.
type Builder struct {
	Outbounds
	// Mesh is that of the outbounds.
	Mesh resource.MeshName
	// PerRoute are the kinds whose policies on a route give it clusters of its own.
	PerRoute []resource.Kind
	// Variant is what tells clusters of one destination apart that are not to be one, if it
	// is set; nil for nothing.
	Variant func(selector resource.TagSelector) []string
	// Configure sets what policies say about a cluster of a destination.
	Configure func(c *clusterv3.Cluster, a *policy.Attachment, rules Rules, route string, selector resource.TagSelector) ([]xds.Origin, error)

	clusters, selectors map[string]bool
	nowhere             bool
}

// Add adds a resource.
func (b *Builder) Add(m proto.Message, origins ...xds.Origin) error {
	r, err := xds.New(m, origins...)
	if err == nil {
		b.Resources = append(b.Resources, r)
	}
	return err
}

// AppendAt appends origins whose paths begin at a place.
func AppendAt(origins []xds.Origin, at string, more []xds.Origin) []xds.Origin {
	for _, o := range more {
		o.Path = at + o.Path
		origins = append(origins, o)
	}
	return origins
}

// Shares makes the clusters of an entry and returns their weights. Destinations
// without weight are left out, equal ones are one.
func (b *Builder) Shares(a *policy.Attachment, rules Rules, e *Entry) ([]Share, error) {
	var shares []Share
	possible := false
	for _, d := range e.Destinations {
		if d.Weight == 0 {
			continue
		}
		name, err := b.Cluster(a, rules, e, d.Selector)
		if err != nil {
			return nil, err
		}
		possible = possible || d.Selector != nil
		if i := slices.IndexFunc(shares, func(s Share) bool { return s.Cluster == name && len(s.Filters)+len(d.Filters) == 0 }); i >= 0 {
			shares[i].Weight += d.Weight
			continue
		}
		shares = append(shares, Share{name, d.Weight, d.Filters})
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

// Cluster makes the cluster of a destination of an outbound, once. Its name does not
// depend on policies, so that it stays when they change.
func (b *Builder) Cluster(a *policy.Attachment, rules Rules, e *Entry, selector resource.TagSelector) (string, error) {
	route := e.Route
	if selector == nil {
		if b.nowhere {
			return nowhereCluster, nil
		}
		b.nowhere = true
		err := b.Add(EDSCluster(nowhereCluster, nowhereEndpoints))
		if err == nil {
			err = b.Add(&endpointv3.ClusterLoadAssignment{ClusterName: nowhereEndpoints})
		}
		return nowhereCluster, err
	}
	if !rules.Named(route, b.PerRoute...) {
		route = ""
	}
	key := world.KeyOf(b.Mesh, selector)
	parts := []string{string(b.Mesh), key.Name(), RoutesName(a), route}
	if b.Variant != nil {
		parts = append(parts, b.Variant(selector)...)
	}
	name := "cl_" + world.Label(key.Service) + "_" + world.Hash(parts...)
	if b.clusters[name] {
		return name, nil
	}
	if b.clusters == nil {
		b.clusters, b.selectors = map[string]bool{}, map[string]bool{}
	}
	b.clusters[name] = true
	c := EDSCluster(name, key.Name())
	if !b.selectors[key.Name()] {
		b.selectors[key.Name()] = true
		b.Selectors = append(b.Selectors, selector)
	}
	origins := AppendAt(nil, "", e.Origins) // that there is a cluster at all
	configured, err := b.Configure(c, a, rules, route, selector)
	if err != nil {
		return "", err
	}
	return name, b.Add(c, append(origins, configured...)...)
}

// EDSCluster is a cluster whose endpoints are a resource.
func EDSCluster(name, endpoints string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ADS(), ServiceName: endpoints},
	}
}

// ADS is where resources refer to others.
func ADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
}

// tlsEndpoint is the name of an endpoint that accepts mutual TLS.
const tlsEndpoint = "tls"

// AcceptsTLS is the metadata of an endpoint that accepts mutual TLS, which Envoy compares
// with that of a cluster's transport sockets.
func AcceptsTLS() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"meridian.io/tls": structpb.NewBoolValue(true)}}
}

// Socket is the address of a TCP socket.
func Socket(address string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// Assignment makes the resource of endpoints, the same one for all proxies of a dialect.
// Zones share the requests by the number of their endpoints. Envoy takes IP addresses
// only: endpoints with host names are left out for it.
func Assignment(e *world.Endpoints, dialect xds.Dialect) (*xds.Resource, error) {
	type result struct {
		all, numeric *xds.Resource
		err          error
	}
	made := e.Made(func() any {
		var r result
		if r.all, r.err = assignment(e, e.Localities); r.err != nil {
			return r
		}
		r.numeric = r.all
		if named := numeric(e.Localities); named != nil {
			r.numeric, r.err = assignment(e, named)
		}
		return r
	}).(result)
	if dialect == xds.Envoy {
		return made.numeric, made.err
	}
	return made.all, made.err
}

// numeric are localities without endpoints that have a host name; nil when none has.
func numeric(all []world.Locality) []world.Locality {
	named := func(e world.Endpoint) bool {
		_, err := netip.ParseAddr(e.Address)
		return err != nil
	}
	if !slices.ContainsFunc(all, func(l world.Locality) bool { return slices.ContainsFunc(l.Endpoints, named) }) {
		return nil
	}
	kept := []world.Locality{}
	for _, l := range all {
		if l.Endpoints = slices.DeleteFunc(slices.Clone(l.Endpoints), named); len(l.Endpoints) > 0 {
			kept = append(kept, l)
		}
	}
	// Priorities have no gaps.
	if len(kept) > 0 && kept[0].Priority > 0 {
		for i := range kept {
			kept[i].Priority = 0
		}
	}
	return kept
}

func assignment(e *world.Endpoints, localities []world.Locality) (*xds.Resource, error) {
	m := &endpointv3.ClusterLoadAssignment{ClusterName: e.Name()}
	var origins []xds.Origin
	for i, l := range localities {
		locality := &endpointv3.LocalityLbEndpoints{
			Locality: &corev3.Locality{Zone: string(l.Zone)}, Priority: l.Priority,
			LoadBalancingWeight: wrapperspb.UInt32(uint32(len(l.Endpoints))),
		}
		for j, at := range l.Endpoints {
			origins = append(origins, xds.Origin{
				Path:   fmt.Sprintf("/endpoints/%d/lbEndpoints/%d", i, j),
				Source: policy.DataplaneKey(e.Mesh, at.Dataplane),
			})
			address := &endpointv3.Endpoint{Address: Socket(at.Address, at.Port)}
			endpoint := &endpointv3.LbEndpoint{
				HealthStatus:   corev3.HealthStatus_HEALTHY,
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: address},
			}
			if at.TLS {
				// Of an endpoint whose metadata alone changes Envoy keeps the connections:
				// requests would go with plaintext for as long as these last. One with
				// another name is another one. Nothing else uses the name.
				address.Hostname = tlsEndpoint
				endpoint.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.transport_socket_match": AcceptsTLS()}}
			}
			locality.LbEndpoints = append(locality.LbEndpoints, endpoint)
		}
		m.Endpoints = append(m.Endpoints, locality)
	}
	return xds.New(m, origins...)
}
