package world

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"meridian/internal/identity"
	"meridian/internal/policy"
	"meridian/internal/resource"
)

// maxRevoked bounds the credentials that are denied: those that were revoked last. Every
// server of every mesh with mutual TLS is sent all of them.
const maxRevoked = 2000

// dataplaneToken is what resources call the tokens of dataplanes.
const dataplaneToken = "dataplane-token"

// Revoked are the credentials, in the sense of package identity, of tokens of dataplanes
// that were revoked: a caller with a certificate that was issued on one is denied until the
// certificate ends. Immutable; for as long as nothing changes, the same pointer.
type Revoked struct {
	// Credentials are in order; there is at least one.
	Credentials []string
	// Left is how many more were revoked than are denied.
	Left int
}

// Stamp is a short text, which two different lists never share.
func (r *Revoked) Stamp() string { return Hash(r.Credentials...) }

// revokedIn lists the credentials that are revoked in a view, nil for none: by a
// TokenRevocation, or by the record of the token.
func revokedIn(view policy.View) *Revoked {
	type revocation struct {
		at         time.Time
		credential string
	}
	var all []revocation
	for r := range view.List(resource.KindTokenRevocation, "") {
		if spec := r.Spec().(*resource.TokenRevocation); spec.Use == dataplaneToken {
			all = append(all, revocation{r.Meta().CreationTime, identity.Credential(spec.ID)})
		}
	}
	for r := range view.List(resource.KindIssuedToken, "") {
		if id := revokedRecord(r); id != "" {
			all = append(all, revocation{r.Meta().ModificationTime, identity.Credential(id)})
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b revocation) int {
		return cmp.Or(strings.Compare(a.credential, b.credential), b.at.Compare(a.at))
	})
	all = slices.CompactFunc(all, func(a, b revocation) bool { return a.credential == b.credential })
	slices.SortStableFunc(all, func(a, b revocation) int { return b.at.Compare(a.at) })
	revoked := &Revoked{Left: max(0, len(all)-maxRevoked)}
	for _, r := range all[:len(all)-revoked.Left] {
		revoked.Credentials = append(revoked.Credentials, r.credential)
	}
	slices.Sort(revoked.Credentials)
	return revoked
}

// revokedRecord is the ID of a dataplane's token whose record says that it was revoked.
func revokedRecord(r *resource.Resource) string {
	if spec := r.Spec().(*resource.IssuedToken); spec.Use == dataplaneToken && spec.Revoked {
		return spec.ID
	}
	return ""
}

// revokes reports whether a change of a key may change what is revoked.
func revokes(key resource.Key, before, after policy.View) bool {
	switch key.Kind {
	case resource.KindTokenRevocation:
		return true
	case resource.KindIssuedToken:
		was, now := "", ""
		if r, ok := before.Get(key); ok {
			was = revokedRecord(r)
		}
		if r, ok := after.Get(key); ok {
			now = revokedRecord(r)
		}
		return was != now
	}
	return false
}

// updateRevoked looks again at what is revoked: every mesh with mutual TLS has other
// settings then.
func (w *World) updateRevoked() {
	now := revokedIn(w.view)
	switch {
	case now == nil && w.revoked == nil:
		return
	case now != nil && w.revoked != nil && slices.Equal(now.Credentials, w.revoked.Credentials) && now.Left == w.revoked.Left:
		return
	}
	w.revoked = now
	for r := range w.view.List(resource.KindMesh, "") {
		name := resource.MeshName(r.Key().Name)
		settings := w.settingsOf(name)
		if !settings.MTLS {
			continue
		}
		w.dirty.Meshes = append(w.dirty.Meshes, name)
		if m := w.meshes[name]; m != nil {
			m.settings = settings
		}
	}
}

// settingsOf are the settings of a mesh, with what is revoked.
func (w *World) settingsOf(name resource.MeshName) Mesh {
	settings := settingsOf(w.view, name)
	if settings.MTLS {
		settings.Revoked = w.revoked
	}
	return settings
}

// Revoked is what is revoked; nil for nothing.
func (w *World) Revoked() *Revoked {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.revoked
}
