package rbac

import (
	"iter"
	"maps"
	"slices"

	"meridian/internal/resource"
)

// View is what a Set is compiled from: all resources of a kind, in key order.
// An empty mesh means every mesh.
type View interface {
	List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource]
}

// Subject is who asks: a user's name and groups, as they were authenticated
// (§6.6).
type Subject struct {
	Name   string
	Groups []string
}

// Object is a resource as access control sees it. Of one with a Key alone only the
// identity is known, and no condition on its content holds.
type Object struct {
	Key resource.Key
	of  *resource.Resource
}

// ObjectOf returns what access control sees of a resource. Its spec is decoded when a
// condition asks for it.
func ObjectOf(r *resource.Resource) Object { return Object{Key: r.Key(), of: r} }

// spec returns the content, nil where only the identity is known.
func (o Object) spec() resource.Spec {
	if o.of == nil {
		return nil
	}
	return o.of.Spec()
}

// absent reports whether there is no object at all.
func (o Object) absent() bool { return o.Key.Kind == "" }

// Token is the dataplane token that a GENERATE_DATAPLANE_TOKEN asks for: its
// mesh, the name of the dataplane that it is for, empty for any, and every value it
// would carry for each tag.
type Token struct {
	Mesh resource.MeshName
	Name string
	Tags map[string][]string
}

// Request is one question: may the subject have the access?
type Request struct {
	Subject Subject
	Access  resource.Access
	// Old is the stored resource of an UPDATE or DELETE, New the one that a
	// CREATE or UPDATE would store (§6.3, §6.4).
	Old, New Object
	// Token is what GENERATE_DATAPLANE_TOKEN is about.
	Token Token
}

// Accesses lists everything that a role can grant, in the order of
// §6.1.
func Accesses() []resource.Access {
	return []resource.Access{
		resource.AccessCreate, resource.AccessUpdate, resource.AccessDelete, resource.AccessRead,
		resource.AccessGenerateDataplaneToken, resource.AccessGenerateUserToken,
		resource.AccessGenerateZoneCPToken, resource.AccessGenerateZoneToken,
	}
}

// OnResources reports whether an access is about a resource, and not about
// generating a token.
func OnResources(a resource.Access) bool {
	return accessBit(a)&onResources != 0
}

// accessSet is a set of accesses, one bit each in the order of Accesses.
type accessSet uint8

func accessBit(a resource.Access) accessSet {
	switch a {
	case resource.AccessCreate:
		return 1 << 0
	case resource.AccessUpdate:
		return 1 << 1
	case resource.AccessDelete:
		return 1 << 2
	case resource.AccessGenerateDataplaneToken:
		return 1 << 3
	case resource.AccessGenerateUserToken:
		return 1 << 4
	case resource.AccessGenerateZoneCPToken:
		return 1 << 5
	case resource.AccessGenerateZoneToken:
		return 1 << 6
	case resource.AccessRead:
		return 1 << 7
	default:
		return 0
	}
}

const (
	onWrites      accessSet = 1<<0 | 1<<1 | 1<<2
	onReads       accessSet = 1 << 7
	onResources             = onWrites | onReads
	onTokens      accessSet = 1<<3 | 1<<4 | 1<<5 | 1<<6
	onMeshTokens  accessSet = 1 << 3
	everyAccess             = onResources | onTokens
	outsideMeshes           = onTokens &^ onMeshTokens
)

// granting returns the accesses of which one is enough to have an access on a kind:
// reading takes READ or any other access to the resource, and reading secret
// material takes write access to it (§6.1).
func granting(a resource.Access, kind resource.Kind) accessSet {
	if a != resource.AccessRead {
		return accessBit(a)
	}
	if d, ok := resource.Describe(kind); ok && d.Sensitive {
		return accessBit(resource.AccessUpdate)
	}
	return onResources
}

// implied adds what the accesses of a rule bring with them: a rule that grants a
// write on a resource grants reading it.
func (s accessSet) implied() accessSet {
	if s&onWrites != 0 {
		return s | onReads
	}
	return s
}

// list spells a set out.
func (s accessSet) list() []resource.Access {
	return slices.DeleteFunc(Accesses(), func(a resource.Access) bool { return s&accessBit(a) == 0 })
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
