package policy

import (
	"fmt"
	"maps"

	"meridian/internal/resource"
)

// DataplaneKey returns the key of a dataplane.
func DataplaneKey(mesh resource.MeshName, name string) resource.Key {
	return resource.Key{Kind: resource.KindDataplane, Mesh: mesh, Name: name}
}

// Mesh is what matching needs to know of a mesh: comparable, so that a change
// that matters is told from one that does not.
type Mesh struct {
	Name resource.MeshName
	// Exists is false when there is no such Mesh: its dataplanes are unmatched
	// then (§1.3).
	Exists bool
	// MTLS is whether mutual TLS is enabled, without which no caller is denied
	// for lack of a permission (§3.6).
	MTLS bool
	// Matching are the rules to match by, with defaults filled in.
	Matching resource.MeshMatching
}

// MeshOf reads the settings of a mesh from a view. A mesh that does not exist
// has those of an empty one.
func MeshOf(view View, name resource.MeshName) *Mesh {
	spec := new(resource.Mesh)
	r, exists := view.Get(resource.Key{Kind: resource.KindMesh, Name: string(name)})
	if exists {
		spec = r.Spec().(*resource.Mesh)
	}
	return &Mesh{Name: name, Exists: exists, MTLS: spec.MTLSEnabled(), Matching: spec.EffectiveMatching()}
}

// shapeOf reads the shape of a dataplane from its spec.
func shapeOf(r *resource.Resource) *Shape {
	spec := r.Spec().(*resource.Dataplane)
	inbounds := make([]port, len(spec.Inbounds()))
	for i, in := range spec.Inbounds() {
		inbounds[i] = port{in.Port, in.Tags}
	}
	outbounds := make([]port, len(spec.Outbounds()))
	for i, out := range spec.Outbounds() {
		outbounds[i] = port{out.Port, out.Tags}
	}
	return newShape(r.Key().Mesh, inbounds, outbounds, spec.GatewayTags())
}

// Offline returns the view of resources that come from documents, as a zone
// would hold them: dataplanes that name no zone get the given one, and meshes
// that are not defined are empty ones. With strict, a dataplane of another zone
// is an error; else it keeps the zone it has.
func Offline(resources []*resource.Resource, zone resource.ZoneName, strict bool) (*Snapshot, error) {
	meshes := map[resource.MeshName]bool{}
	complete := make([]*resource.Resource, 0, len(resources))
	for _, r := range resources {
		key := r.Key()
		switch {
		case key.Kind == resource.KindMesh:
			meshes[resource.MeshName(key.Name)] = true
		case key.Mesh != "" && !meshes[key.Mesh]:
			meshes[key.Mesh] = false
		}
		if key.Kind == resource.KindDataplane {
			inZone, err := resource.WithZone(r, zone)
			switch {
			case err == nil:
				r = inZone
			case strict:
				return nil, fmt.Errorf("put dataplanes in zone %q: %w", zone, err)
			}
		}
		complete = append(complete, r)
	}
	maps.DeleteFunc(meshes, func(_ resource.MeshName, defined bool) bool { return defined })
	for name := range meshes {
		key := resource.Key{Kind: resource.KindMesh, Name: string(name)}
		complete = append(complete, resource.New(resource.Meta{Key: key}, new(resource.Mesh), []byte("{}")))
	}
	return NewSnapshot(complete...), nil
}
