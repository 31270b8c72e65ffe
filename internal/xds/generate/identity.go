package generate

import (
	"fmt"
	"slices"
	"strings"

	"meridian/internal/identity"
	"meridian/internal/policy"
	"meridian/internal/policy/permission"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/world"
)

// What a denial names that no single policy is the reason of.
const (
	// NoPolicy: no policy decides about the caller, and the mesh has mutual TLS enabled
	// (§3.6).
	NoPolicy = "mtls-default"
	// RevokedToken: the token is revoked that the caller's certificate was issued on.
	RevokedToken = "revoked-token"
	// TooMany: the permissions are more than a proxy takes. Every caller is denied.
	TooMany = "too-many-permissions"
)

// Closed says what happens on an inbound with more permissions than a proxy takes.
const Closed = "every caller of this inbound is denied, with the name " + TooMany + ": its permissions are more than a proxy takes; write fewer or shorter entries"

// Withheld says why a dataplane's proxy is sent nothing; empty when it is sent something.
func Withheld(key resource.Key, spec *resource.Dataplane, w *world.World) string {
	mesh := w.Mesh(key.Mesh)
	switch {
	case !mesh.Exists:
		return fmt.Sprintf("mesh %s does not exist", key.Mesh)
	case !mesh.Secure():
		return ""
	case !resource.ZonesIssue(mesh.BackendType):
		return fmt.Sprintf("mesh %s has mutual TLS enabled with backend %s of type %s, and zones issue certificates of types %s and %s only: nothing is sent, so that nothing is sent unprotected",
			key.Mesh, mesh.Backend, mesh.BackendType, resource.BuiltinCA, resource.ProvidedCA)
	}
	if _, err := identity.Of(w.Zone(), key.Mesh, key.Name, spec.TagSets()); err != nil {
		return fmt.Sprintf("the dataplane can have no certificate, and mesh %s has mutual TLS enabled: %v", key.Mesh, err)
	}
	return ""
}

// MeshOrigin says that a value is so because of the mesh's mutual TLS.
func MeshOrigin(mesh resource.MeshName, path string) xds.Origin {
	return xds.Origin{Path: path, Source: resource.Key{Kind: resource.KindMesh, Name: string(mesh)}, Field: "/mtls"}
}

// Permissions are the lists of the attachments of one address, each attachment once and
// in order. A caller has to be allowed by all of them.
func Permissions(mtls bool, rules []policy.Rule, at []policy.Attachment) []permission.List {
	slices.SortFunc(at, func(a, b policy.Attachment) int { return a.Compare(&b) })
	at = slices.CompactFunc(at, func(a, b policy.Attachment) bool { return a.Compare(&b) == 0 })
	lists := make([]permission.List, len(at))
	for i := range at {
		var mine []*policy.Rule
		for j := range rules {
			if rules[j].Attachment.Compare(&at[i]) == 0 {
				mine = append(mine, &rules[j])
			}
		}
		lists[i] = permission.Of(mtls, mine)
	}
	return lists
}

// Title is how a denial names a policy.
func Title(p resource.Key) string { return string(p.Kind) + " " + p.Name }

// Ending is how a denial at the end of a list names who denies.
func Ending(l *permission.List) string {
	const most = 3
	var names []string
	for i, p := range l.Policies {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(l.Policies)-most))
			break
		}
		names = append(names, p.Name)
	}
	if len(names) == 0 {
		return NoPolicy
	}
	return string(l.Policies[0].Kind) + " " + strings.Join(names, ", ")
}
