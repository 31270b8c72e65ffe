package xds

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meridian/internal/resource"
)

// Type is the type of a resource: the position in the order in which additions and
// changes are sent, from what is referred to, to what refers to it.
type Type uint8

// The types of resources.
const (
	Cluster Type = iota
	Endpoints
	Listener
	Route
	typeCount
)

// Types are all types, in the order in which additions and changes are sent.
var Types = [typeCount]Type{Cluster, Endpoints, Listener, Route}

// typeInfo is a type's type URL and its short name, as xDS calls its API.
var typeInfo = [typeCount]struct{ url, name string }{
	Cluster:   {"type.googleapis.com/envoy.config.cluster.v3.Cluster", "CDS"},
	Endpoints: {"type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", "EDS"},
	Listener:  {"type.googleapis.com/envoy.config.listener.v3.Listener", "LDS"},
	Route:     {"type.googleapis.com/envoy.config.route.v3.RouteConfiguration", "RDS"},
}

// URL returns the type URL.
func (t Type) URL() string { return typeInfo[t].url }

// String returns the name of the API that serves the type: CDS, EDS, LDS or RDS.
func (t Type) String() string { return typeInfo[t].name }

// Implied reports whether a subscription without names means every resource of the
// type, and an answer that lacks a resource means that it is removed: so it is for
// clusters and listeners.
func (t Type) Implied() bool { return t == Cluster || t == Listener }

// TypeOf returns the type with a type URL.
func TypeOf(url string) (Type, bool) {
	for _, t := range Types {
		if typeInfo[t].url == url {
			return t, true
		}
	}
	return 0, false
}

// FaultFilters is how many filters for faults are on the listener of each gRPC client, so
// that no change of a policy changes a listener.
const FaultFilters = 4

// FaultFilter is the name of one of them, from 0.
func FaultFilter(i int) string { return "faults-" + strconv.Itoa(i+1) }

// Ref names a resource.
type Ref struct {
	Type Type
	Name string
}

// String prints the reference for people, such as "CDS cl_orders".
func (r Ref) String() string { return r.Type.String() + " " + r.Name }

// Compare orders references by type, then name.
func (r Ref) Compare(other Ref) int {
	return cmp.Or(cmp.Compare(r.Type, other.Type), strings.Compare(r.Name, other.Name))
}

// Origin says where one value of a resource comes from.
type Origin struct {
	// Path is the place in the resource as a JSON pointer into its JSON form, such
	// as "/connectTimeout"; empty for the resource itself.
	Path string
	// Source is the policy, or other resource, that the value is from.
	Source resource.Key
	// Field is the place in the spec of Source, as a JSON pointer; empty for the
	// resource itself.
	Field string
}

// Resource is one resource as it is sent.
type Resource struct {
	Type Type
	Name string
	// Version is a hash of Body.
	Version string
	// Body is the resource as a marshalled google.protobuf.Any.
	Body []byte
	// Secure is whether this is a listener that accepts TLS, alone or beside plaintext.
	Secure bool
	// Uses are the resources that this one refers to, in order, each once.
	Uses []Ref
	// Origins say where its values come from, in the order of the generator.
	Origins []Origin
}

// Ref returns the resource's own reference.
func (r *Resource) Ref() Ref { return Ref{r.Type, r.Name} }

// Message decodes the resource.
func (r *Resource) Message() (proto.Message, error) {
	var wrapped anypb.Any
	if err := proto.Unmarshal(r.Body, &wrapped); err != nil {
		return nil, fmt.Errorf("%s: %w", r.Ref(), err)
	}
	m, err := wrapped.UnmarshalNew()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Ref(), err)
	}
	return m, nil
}

// versionBytes is how much of the hash a version keeps: enough that two contents
// never share one, in as few bytes as a reconnecting client has to repeat.
const versionBytes = 16

// New returns the resource that a message is: a *clusterv3.Cluster,
// *endpointv3.ClusterLoadAssignment, *listenerv3.Listener or
// *routev3.RouteConfiguration. Every message in it has to be marshalled
// deterministically (see Pack). The error is that of a message that is none of
// these, has no name, or contains an Any that cannot be decoded.
func New(m proto.Message, origins ...Origin) (*Resource, error) {
	r := &Resource{Origins: origins}
	var err error
	switch m := m.(type) {
	case *clusterv3.Cluster:
		r.Type, r.Name, r.Uses = Cluster, m.GetName(), usesOfCluster(m)
	case *endpointv3.ClusterLoadAssignment:
		r.Type, r.Name = Endpoints, m.GetClusterName()
	case *listenerv3.Listener:
		r.Type, r.Name = Listener, m.GetName()
		r.Secure = slices.ContainsFunc(m.GetFilterChains(), func(c *listenerv3.FilterChain) bool { return c.GetTransportSocket() != nil })
		r.Uses, err = usesOfListener(m)
	case *routev3.RouteConfiguration:
		r.Type, r.Name, r.Uses = Route, m.GetName(), usesOfRoutes(m)
	default:
		return nil, fmt.Errorf("%T is not a resource that is served", m)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Ref(), err)
	}
	if r.Name == "" {
		return nil, fmt.Errorf("%s: a resource without a name", r.Type)
	}
	slices.SortFunc(r.Uses, Ref.Compare)
	r.Uses = slices.Compact(r.Uses)
	wrapped, err := Pack(m)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Ref(), err)
	}
	if r.Body, err = (proto.MarshalOptions{Deterministic: true}).Marshal(wrapped); err != nil {
		return nil, fmt.Errorf("%s: %w", r.Ref(), err)
	}
	sum := sha256.Sum256(r.Body)
	r.Version = base64.RawURLEncoding.EncodeToString(sum[:versionBytes])
	return r, nil
}

// Pack puts a message into an Any, deterministically, unlike anypb.New: a listener
// whose bytes differ is drained although nothing changed.
func Pack(m proto.Message) (*anypb.Any, error) {
	wrapped := &anypb.Any{}
	if err := anypb.MarshalFrom(wrapped, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, err
	}
	return wrapped, nil
}
