package token

import (
	"cmp"
	"slices"
	"time"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// KeyState says what a signing key is used for.
type KeyState string

// The states of signing keys.
const (
	// KeyActive signs the tokens of its use that are issued from now on.
	KeyActive KeyState = "active"
	// KeyRetired verifies the tokens that it has signed.
	KeyRetired KeyState = "retired"
	// KeyUnusable is a secret that has the name of a key and holds none.
	KeyUnusable KeyState = "unusable"
)

// ListedKey is a signing key as it may be shown: without the key itself.
type ListedKey struct {
	ID      KeyID
	State   KeyState
	Created time.Time
	// Tokens counts the recorded tokens that it signed and that are valid now.
	Tokens int
}

// List returns the keys of a use, or of all when it is empty, that sign or verify
// tokens here, by use, issuer and serial number. In a zone those of its global's
// dataplane tokens are among them.
func (r *Ring) List(use Use) []ListedKey {
	local := r.cfg.Local()
	keys := map[KeyID]ListedKey{}
	add := func(view *store.View, kind resource.Kind, state func(KeyID, *resource.Resource) KeyState) {
		for res := range view.List(kind, "") {
			id, err := ParseKeyID(res.Key().Name)
			if _, there := keys[id]; err != nil || there || use != "" && id.Use != use {
				continue
			}
			if s := state(id, res); s != "" {
				keys[id] = ListedKey{ID: id, State: s, Created: res.Meta().CreationTime}
			}
		}
	}
	// A key with its private half signs, if no later one does.
	add(local, resource.KindGlobalSecret, func(id KeyID, res *resource.Resource) KeyState {
		if _, err := ParseSigningKey(id, res.Spec().(*resource.Secret).Bytes()); err != nil {
			return KeyUnusable
		}
		return KeyActive
	})
	verifies := func(KeyID, *resource.Resource) KeyState { return KeyRetired }
	add(local, resource.KindSigningKey, verifies)
	if r.cfg.Global != nil {
		global := r.cfg.Global()
		published := map[KeyID]bool{}
		for _, key := range publishedKeys(global) {
			published[key.ID()] = true
		}
		add(global, resource.KindSigningKey, func(id KeyID, _ *resource.Resource) KeyState {
			if published[id] {
				return KeyActive // it signs at the global, if no later one does
			}
			return "" // it verifies nothing here
		})
	}
	all := make([]ListedKey, 0, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	slices.SortFunc(all, func(a, b ListedKey) int {
		return cmp.Or(cmp.Compare(a.ID.Use, b.ID.Use), cmp.Compare(a.ID.Issuer, b.ID.Issuer), cmp.Compare(a.ID.Serial, b.ID.Serial))
	})
	now, signed := r.cfg.Now(), r.valid()
	for i := range all {
		all[i].Tokens = signed(all[i].ID, now)
		for _, later := range all[i+1:] {
			if later.ID.Use == all[i].ID.Use && later.ID.Issuer == all[i].ID.Issuer && later.State == KeyActive && all[i].State == KeyActive {
				all[i].State = KeyRetired
			}
		}
	}
	return all
}

// valid returns a count of the recorded tokens of a key that are valid at a time.
func (r *Ring) valid() func(KeyID, time.Time) int {
	signed := map[KeyID][]Issued{}
	for _, i := range r.Issued("") {
		id := KeyID{Use: Use(i.Use), Serial: i.Serial, Issuer: r.issuerName()}
		signed[id] = append(signed[id], i)
	}
	return func(id KeyID, now time.Time) (n int) {
		for _, i := range signed[id] {
			expires, err := time.Parse(time.RFC3339, i.Expires)
			if err == nil && now.Before(expires) && !i.RevokedNow && i.UsedBy == "" {
				n++
			}
		}
		return n
	}
}
