package world

import (
	"maps"
	"slices"

	"meridian/internal/identity"
	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Revoked are the credentials, in the sense of package identity, of tokens that dataplanes
// of a mesh could register with and that were revoked: a caller with a certificate that was
// issued on one is denied until the certificate ends. Immutable; for as long as nothing
// changes, the same pointer.
type Revoked struct {
	// Credentials are in order; there is at least one.
	Credentials []string
	// Left is how many more were revoked than are denied.
	Left int
}

// Stamp is a short text, which two different lists never share.
func (r *Revoked) Stamp() string { return Hash(r.Credentials...) }

// revokedIn lists what is revoked in a view: by a TokenRevocation, or by the record of the
// token.
func revokedIn(view policy.View) identity.Revocations {
	return identity.RevocationsIn(func(yield func(*resource.Resource) bool) {
		for _, kind := range []resource.Kind{resource.KindTokenRevocation, resource.KindIssuedToken} {
			for r := range view.List(kind, "") {
				if !yield(r) {
					return
				}
			}
		}
	})
}

// revokes reports whether a change of a key may change what is revoked.
func revokes(key resource.Key, before, after policy.View) bool {
	if key.Kind != resource.KindTokenRevocation && key.Kind != resource.KindIssuedToken {
		return false
	}
	return revocationOf(before, key) != revocationOf(after, key)
}

// revocationOf is the revocation under a key, which is empty if there is none.
func revocationOf(view policy.View, key resource.Key) identity.Revocation {
	r, ok := view.Get(key)
	if !ok {
		return identity.Revocation{}
	}
	found, _ := identity.RevocationOf(r)
	return found
}

// updateRevoked looks again at what is revoked: meshes with mutual TLS that it concerns
// have other settings then.
func (w *World) updateRevoked() {
	w.revocations = revokedIn(w.view)
	for name, before := range w.revoked {
		if w.revokedOf(name) == before {
			continue
		}
		w.dirty.Meshes = append(w.dirty.Meshes, name)
		if m := w.meshes[name]; m != nil {
			m.settings = w.settingsOf(name)
		}
	}
}

// updateMeshRevoked brings what is revoked for a mesh up to date with its settings.
func (w *World) updateMeshRevoked(name resource.MeshName) {
	if settingsOf(w.view, name).MTLS {
		w.revokedOf(name)
	} else {
		delete(w.revoked, name)
	}
}

// revokedOf lists what is revoked for a mesh with mutual TLS, nil for nothing, and keeps
// the list: another one only if it differs.
func (w *World) revokedOf(name resource.MeshName) *Revoked {
	credentials, left := w.revocations.Denied(name)
	now := &Revoked{credentials, left}
	if before := w.revoked[name]; before != nil && before.Left == left && slices.Equal(before.Credentials, credentials) {
		now = before
	}
	if len(credentials) == 0 {
		now = nil
	}
	w.revoked[name] = now
	return now
}

// settingsOf are the settings of a mesh, with what is revoked.
func (w *World) settingsOf(name resource.MeshName) Mesh {
	settings := settingsOf(w.view, name)
	if settings.MTLS {
		settings.Revoked = w.revoked[name]
	}
	return settings
}

// Revoked is what is revoked, by mesh with mutual TLS; nil for nothing.
func (w *World) Revoked() map[resource.MeshName]*Revoked {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return maps.Clone(w.revoked)
}
