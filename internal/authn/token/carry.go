package token

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// Carried counts what a restored state has from the state before it instead of
// the backup.
type Carried struct {
	// Revocations are those made since the backup, and uses of server tokens.
	Revocations int
	// Keys are those made since.
	Keys int
	// Tokens are the records of tokens issued since, the admin token among them.
	Tokens int
	// DeletedKeys are keys of the backup that were replaced and deleted since.
	DeletedKeys int
}

// Carry returns the state of a backup with the trust of the state that runs, for
// a restore into the cluster that the backup is of: what was revoked after the
// backup stays revoked, and the tokens issued after it stay valid and recorded.
//
// Revocations, keys and records of the running state win, and so do the authorities of
// meshes: the certificates that proxies have are of these. A key of the backup that
// is not there any more stays away if a newer one of its use is there: it was
// deleted to end its tokens. Without a newer one, it is needed, and comes back.
func Carry(running *store.View, saved []*resource.Resource) ([]*resource.Resource, Carried) {
	var carried Carried
	merged := map[resource.Key]*resource.Resource{}
	newest := map[Use]uint64{}
	for r := range running.List(resource.KindGlobalSecret, "") {
		if id, err := ParseKeyID(r.Key().Name); err == nil {
			newest[id.Use] = max(newest[id.Use], id.Serial)
		}
	}
	for _, r := range saved {
		key := r.Key()
		if id, ok := keyOf(key); ok {
			if _, there := running.Get(key); !there && id.Serial < newest[id.Use] {
				if key.Kind == resource.KindGlobalSecret {
					carried.DeletedKeys++
				}
				continue
			}
		}
		merged[key] = r
	}
	for _, kind := range []resource.Kind{resource.KindTokenRevocation, resource.KindIssuedToken, resource.KindSigningKey, resource.KindGlobalSecret} {
		for r := range running.List(kind, "") {
			key := r.Key()
			if _, ok := keyOf(key); kind == resource.KindGlobalSecret && !ok && key != AdminTokenKey && !holdsMeshAuthority(key) {
				continue // a secret that is not a key is content
			}
			before := merged[key]
			if before != nil && bytes.Equal(before.Canonical(), r.Canonical()) {
				continue
			}
			merged[key] = r
			carried.count(before, r)
		}
	}
	all := make([]*resource.Resource, 0, len(merged))
	for _, r := range merged {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *resource.Resource) int {
		x, y := a.Key(), b.Key()
		return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Mesh, y.Mesh), cmp.Compare(x.Name, y.Name))
	})
	return all, carried
}

// CarryOwn returns the resources of a backup with those that the running state holds
// about the servers of the global (OfServers), and without the backup's. They say what
// the servers have in their own files, and those are not restored: no server would
// follow a rotation of the backup, and a server that was removed since would be
// accepted again.
func CarryOwn(running *store.View, saved []*resource.Resource) []*resource.Resource {
	all := slices.DeleteFunc(slices.Clone(saved), func(r *resource.Resource) bool { return OfServers(r.Key()) })
	for _, key := range []resource.Key{AuthorityKey, ServersKey} {
		if r, ok := running.Get(key); ok {
			all = append(all, r)
		}
	}
	return all
}

func (c *Carried) count(before, r *resource.Resource) {
	switch key := r.Key(); {
	case key.Kind == resource.KindTokenRevocation, key.Kind == resource.KindIssuedToken && before != nil:
		c.Revocations++
	case key.Kind == resource.KindIssuedToken:
		c.Tokens++
	case IsSigningKey(key):
		c.Keys++
	}
}

// holdsMeshAuthority reports whether a resource holds the certificate authority of a mesh.
func holdsMeshAuthority(key resource.Key) bool {
	return key.Kind == resource.KindGlobalSecret && strings.HasPrefix(key.Name, meshAuthorityPrefix)
}

// keyOf returns the id of the signing key that a resource holds a half of.
func keyOf(key resource.Key) (KeyID, bool) {
	if key.Kind != resource.KindGlobalSecret && key.Kind != resource.KindSigningKey {
		return KeyID{}, false
	}
	id, err := ParseKeyID(key.Name)
	return id, err == nil
}
