package resource

import (
	"slices"
	"strings"
	"sync"
)

// Scope says whether resources of a kind live in a mesh.
type Scope int

const (
	// MeshScoped kinds have a mesh in their identity.
	MeshScoped Scope = iota
	// GlobalScoped kinds have none.
	GlobalScoped
)

// Owner says which control plane accepts writes of a kind (§1.3). A
// standalone zone owns everything.
type Owner int

const (
	// OwnedByGlobal kinds are written on the global only.
	OwnedByGlobal Owner = iota
	// OwnedByZone kinds are written in a zone only.
	OwnedByZone
	// OwnedByEach kinds exist separately on the global and in every zone.
	OwnedByEach
)

// Class groups kinds by the rules that hold for them.
type Class int

const (
	// Infrastructure kinds are not policies.
	Infrastructure Class = iota
	// SourceDestination policies follow §3.
	SourceDestination
	// TargetRef policies follow §4.
	TargetRef
	// Inherited policies follow §5.
	Inherited
	// AccessControl kinds follow §6.
	AccessControl
)

// Direction is where on a dataplane a policy takes effect.
type Direction int

const (
	// OnInbound policies configure inbounds, per caller.
	OnInbound Direction = 1 << iota
	// OnOutbound policies configure outbounds.
	OnOutbound
	// OnDataplane policies configure the whole dataplane.
	OnDataplane
	// OnRoute policies configure a gateway's paths.
	OnRoute
)

// Descriptor is one row of the table of kinds: everything the rest of the
// system needs to know to store, sync, match and describe a kind. A new kind is
// one row here and one Spec.
type Descriptor struct {
	Kind Kind
	// Plural is the kebab-case plural used on the command line.
	Plural string
	// Spellings are other names accepted for the kind in documents.
	Spellings []Kind
	Scope     Scope
	Owner     Owner
	// Synced kinds are streamed from the global to every zone.
	Synced bool
	// Sensitive kinds hold secret material: reading one takes write access
	// (§6.1).
	Sensitive bool
	Class     Class
	Direction Direction
	// Summary is one sentence for `meridian explain`.
	Summary string
	// New returns a pointer to an empty spec to decode into.
	New func() Spec
}

// The names of the kinds. Code refers to a kind by its constant, never by its
// spelling; the table below has a row for each.
const (
	// Infrastructure.
	KindMesh            Kind = "Mesh"
	KindZone            Kind = "Zone"
	KindDataplane       Kind = "Dataplane"
	KindGlobalSecret    Kind = "GlobalSecret"
	KindSecret          Kind = "Secret"
	KindSigningKey      Kind = "SigningKey"
	KindTokenRevocation Kind = "TokenRevocation"
	KindIssuedToken     Kind = "IssuedToken"
	KindNamespace       Kind = "Namespace"
	KindRollout         Kind = "Rollout"
	KindMeshTest        Kind = "MeshTest"

	// Source/destination policies (§3).
	KindTrafficPermission Kind = "TrafficPermission"
	KindFaultInjection    Kind = "FaultInjection"
	KindRateLimit         Kind = "RateLimit"
	KindTrafficRoute      Kind = "TrafficRoute"
	KindTrafficLog        Kind = "TrafficLog"
	KindHealthCheck       Kind = "HealthCheck"
	KindCircuitBreaker    Kind = "CircuitBreaker"
	KindRetry             Kind = "Retry"
	KindTimeout           Kind = "Timeout"
	KindTrafficTrace      Kind = "TrafficTrace"
	KindProxyTemplate     Kind = "ProxyTemplate"
	KindVirtualOutbound   Kind = "VirtualOutbound"

	// targetRef policies (§4).
	KindMeshTrafficPermission Kind = "MeshTrafficPermission"
	KindMeshTrafficRoute      Kind = "MeshTrafficRoute"
	KindMeshCircuitBreaker    Kind = "MeshCircuitBreaker"
	KindMeshHealthCheck       Kind = "MeshHealthCheck"
	KindMeshHTTPFault         Kind = "MeshHTTPFault"
	KindMeshRequestRetry      Kind = "MeshRequestRetry"
	KindMeshUpstreamTimeout   Kind = "MeshUpstreamTimeout"
	KindMeshRateLimit         Kind = "MeshRateLimit"
	KindMeshTracing           Kind = "MeshTracing"
	KindMeshLogging           Kind = "MeshLogging"
	KindMeshMetrics           Kind = "MeshMetrics"
	KindMeshEnvoyTemplate     Kind = "MeshEnvoyTemplate"
	KindMeshVirtualOutbound   Kind = "MeshVirtualOutbound"

	// Gateways, routes and the policies they inherit (§5).
	KindGateway          Kind = "Gateway"
	KindHTTPRoute        Kind = "HTTPRoute"
	KindGRPCRoute        Kind = "GRPCRoute"
	KindAuthPolicy       Kind = "AuthPolicy"
	KindRateLimitPolicy  Kind = "RateLimitPolicy"
	KindMeshGateway      Kind = "MeshGateway"
	KindMeshGatewayRoute Kind = "MeshGatewayRoute"

	// Access control (§6).
	KindAccessRole        Kind = "AccessRole"
	KindAccessRoleBinding Kind = "AccessRoleBinding"
)

// table assembles every kind there is. A group of kinds is one line here and
// one function beside its specs.
func table() []Descriptor {
	return slices.Concat(
		infrastructureKinds(),
		sourceDestinationKinds(),
		targetRefKinds(),
		gatewayKinds(),
		accessControlKinds(),
	)
}

// infrastructureKinds are the kinds that policies refer to.
func infrastructureKinds() []Descriptor {
	return []Descriptor{
		{
			Kind: KindMesh, Plural: "meshes", Scope: GlobalScoped, Owner: OwnedByGlobal, Synced: true,
			Summary: "A mesh of services: its mutual TLS, its observability backends and the rules by which its policies are matched.",
			New:     func() Spec { return new(Mesh) },
		},
		{
			Kind: KindZone, Plural: "zones", Scope: GlobalScoped, Owner: OwnedByGlobal,
			Summary: "A zone that may connect to the global control plane.",
			New:     func() Spec { return new(Zone) },
		},
		{
			Kind: KindDataplane, Plural: "dataplanes", Scope: MeshScoped, Owner: OwnedByZone,
			Summary: "A proxy in a zone: its address, the services it offers and those it consumes.",
			New:     func() Spec { return new(Dataplane) },
		},
		{
			Kind: KindGlobalSecret, Plural: "global-secrets", Scope: GlobalScoped, Owner: OwnedByEach, Sensitive: true,
			Summary: "Secret material of a control plane, such as the bootstrap admin token.",
			New:     func() Spec { return new(Secret) },
		},
		{
			Kind: KindSecret, Plural: "secrets", Scope: MeshScoped, Owner: OwnedByZone, Sensitive: true,
			Summary: "Secret material that a zone keeps for one of its meshes.",
			New:     func() Spec { return new(Secret) },
		},
		{
			Kind: KindSigningKey, Plural: "signing-keys", Scope: GlobalScoped, Owner: OwnedByGlobal, Synced: true,
			Summary: "The public half of a key by which zones verify the tokens that the global has issued.",
			New:     func() Spec { return new(SigningKey) },
		},
		{
			Kind: KindTokenRevocation, Plural: "token-revocations", Scope: GlobalScoped, Owner: OwnedByGlobal, Synced: true,
			Summary: "A token that is no longer valid although it has not expired.",
			New:     func() Spec { return new(TokenRevocation) },
		},
		{
			Kind: KindIssuedToken, Plural: "issued-tokens", Scope: GlobalScoped, Owner: OwnedByEach,
			Summary: "The record of a token that this control plane has issued; not the token itself.",
			New:     func() Spec { return new(IssuedToken) },
		},
		{
			Kind: KindNamespace, Plural: "namespaces", Scope: GlobalScoped, Owner: OwnedByGlobal, Synced: true,
			Summary: "A Kubernetes namespace with its labels, by which listeners of gateways select the routes that may attach.",
			New:     func() Spec { return new(Namespace) },
		},
		{
			Kind: KindRollout, Plural: "rollouts", Scope: GlobalScoped, Owner: OwnedByGlobal, Synced: true,
			Summary: "A change of several resources that some zones have before others; made by `meridian apply --rollout`.",
			New:     func() Spec { return new(Rollout) },
		},
		{
			Kind: KindMeshTest, Plural: "mesh-tests", Scope: MeshScoped, Owner: OwnedByGlobal,
			Summary: "The tests that a mesh carries: a write after which one of them fails is refused.",
			New:     func() Spec { return new(MeshTest) },
		},
	}
}

// registry is the table with its indexes. It is computed once and never
// changes.
type registry struct {
	all       []*Descriptor        // in bytewise order of kind
	exact     map[Kind]*Descriptor // by kind and accepted spelling
	loose     map[string]*Descriptor
	spellings []string
}

var kinds = sync.OnceValue(func() *registry {
	r := &registry{exact: map[Kind]*Descriptor{}, loose: map[string]*Descriptor{}}
	rows := table()
	for i := range rows {
		d := &rows[i]
		r.all = append(r.all, d)
		r.loose[fold(d.Plural)] = d
		for _, spelling := range append([]Kind{d.Kind}, d.Spellings...) {
			r.exact[spelling] = d
			r.loose[fold(string(spelling))] = d
			r.loose[fold(string(spelling))+"s"] = d
			r.spellings = append(r.spellings, string(spelling))
		}
	}
	slices.SortFunc(r.all, func(a, b *Descriptor) int { return strings.Compare(string(a.Kind), string(b.Kind)) })
	return r
})

// fold makes TrafficPermission, traffic-permission and traffic_permission one.
func fold(name string) string { return separators.Replace(strings.ToLower(name)) }

var separators = strings.NewReplacer("-", "", "_", "")

// Kinds returns every kind in bytewise order. The slice and its elements must
// not be modified.
func Kinds() []*Descriptor { return kinds().all }

// Describe returns the row of a kind in its canonical spelling.
func Describe(kind Kind) (*Descriptor, bool) {
	d, ok := kinds().exact[kind]
	return d, ok && d.Kind == kind
}

// Lookup finds a kind by what a person types: in any letter case, singular or
// plural, kebab or camel, or by another accepted spelling.
func Lookup(name string) (*Descriptor, bool) {
	if d, ok := kinds().exact[Kind(name)]; ok {
		return d, true
	}
	d, ok := kinds().loose[fold(name)]
	return d, ok
}

// NearestKind returns the kind that name is most probably a misspelling of.
func NearestKind(name string) (Kind, bool) {
	if d, ok := Lookup(name); ok {
		return d.Kind, true
	}
	near, ok := Nearest(name, kinds().spellings)
	if !ok {
		return "", false
	}
	return kinds().exact[Kind(near)].Kind, true
}
