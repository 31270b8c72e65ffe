package resource

// Scope says whether resources of a kind live in a mesh.
type Scope int

const (
	// MeshScoped kinds have a mesh in their identity.
	MeshScoped Scope = iota
	// GlobalScoped kinds have none.
	GlobalScoped
)

// Owner says which control plane accepts writes of a kind (SEMANTICS §1.3). A
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

// Class groups kinds by the rules that apply to them.
type Class int

const (
	// Infrastructure kinds are not policies.
	Infrastructure Class = iota
	// SourceDestination policies follow SEMANTICS §3.
	SourceDestination
	// TargetRef policies follow SEMANTICS §4.
	TargetRef
	// Inherited policies follow SEMANTICS §5.
	Inherited
	// AccessControl kinds follow SEMANTICS §6.
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
	Synced    bool
	Class     Class
	Direction Direction
	// Summary is one sentence for `meridian explain`.
	Summary string
	// New returns a pointer to an empty spec to decode into.
	New func() Spec
}
