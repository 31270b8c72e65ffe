package resource

import (
	"cmp"
	"strings"
)

// Kind is the type of a resource as users spell it canonically, such as
// "TrafficPermission".
type Kind string

// MeshName names a Mesh. It is empty for globally scoped resources.
type MeshName string

// ZoneName names a zone.
type ZoneName string

// Revision is the one number that follows a change from the write to the
// dataplane (§7.2): the raft index of the batch that made it. It is
// monotone and not dense. Zero means "before anything".
type Revision uint64

// Key is the identity of a resource (§1.1).
type Key struct {
	Kind Kind
	Mesh MeshName // empty for globally scoped kinds
	Name string
}

// String prints the key for people: Kind/name, or Kind/mesh/name when the kind
// lives in a mesh.
func (k Key) String() string {
	if k.Mesh == "" {
		return string(k.Kind) + "/" + k.Name
	}
	return string(k.Kind) + "/" + string(k.Mesh) + "/" + k.Name
}

// Compare orders keys by kind, then mesh, then name, all bytewise
// (§2.3), so that one kind of one mesh is a contiguous range.
func (k Key) Compare(other Key) int {
	return cmp.Or(
		strings.Compare(string(k.Kind), string(other.Kind)),
		strings.Compare(string(k.Mesh), string(other.Mesh)),
		strings.Compare(k.Name, other.Name),
	)
}
