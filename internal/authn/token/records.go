package token

import (
	"slices"
	"strings"
	"time"

	"meridian/internal/identity"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// maxPruned is how many records one issue of a token removes at most.
const maxPruned = 32

// recordKey names the record of a token. Ids of tokens issued by older releases
// are in upper case, which names of resources are not.
func recordKey(id string) resource.Key {
	return resource.Key{Kind: resource.KindIssuedToken, Name: strings.ToLower(id)}
}

// Record returns the record of a token that by, a user, had issued; empty when
// the server issued it by itself.
func Record(t Token, by string) (*resource.Resource, error) {
	return build(resource.KindIssuedToken, recordKey(t.ID).Name, resource.IssuedToken{
		Use: string(t.Key.Use), ID: t.ID, Subject: t.Subject(), Groups: t.Groups, Tags: t.Tags, Scope: t.Scope,
		Serial: t.Key.Serial, Issued: t.IssuedAt.Format(time.RFC3339), Expires: t.Expires.Format(time.RFC3339), Issuer: by,
	})
}

// RecordedIn reports whether a view has the record of a token.
func RecordedIn(view *store.View, use Use, id string) bool {
	record, ok := view.Get(recordKey(id))
	if !ok {
		return false
	}
	spec := record.Spec().(*resource.IssuedToken)
	return spec.ID == id && Use(spec.Use) == use
}

// Issued is a record as it stands, and whether the token was revoked.
type Issued struct {
	Resource *resource.Resource
	*resource.IssuedToken
	// RevokedNow is true when the record or a TokenRevocation says so.
	RevokedNow bool
	// KeyDeleted is true when neither half of the key that signed the token is stored
	// here any more, so that no control plane accepts it.
	KeyDeleted bool
}

// Issued returns the records of a use, or of all when it is empty, the newest
// first.
func (r *Ring) Issued(use Use) []Issued {
	revoked := r.Verifier().Revoked
	view := r.cfg.Local()
	stored := map[KeyID]bool{}
	var all []Issued
	for res := range view.List(resource.KindIssuedToken, "") {
		spec := res.Spec().(*resource.IssuedToken)
		if use != "" && Use(spec.Use) != use {
			continue
		}
		id := KeyID{Use: Use(spec.Use), Serial: spec.Serial, Issuer: r.issuerName()}
		if _, known := stored[id]; !known {
			stored[id] = isStored(view, id)
		}
		all = append(all, Issued{
			Resource: res, IssuedToken: spec, RevokedNow: revoked(Use(spec.Use), spec.ID), KeyDeleted: !stored[id],
		})
	}
	slices.SortStableFunc(all, func(a, b Issued) int {
		return b.Resource.Meta().CreationTime.Compare(a.Resource.Meta().CreationTime)
	})
	return all
}

// isStored reports whether a view has a half of a key: the private one signs and
// verifies here, the public one verifies in zones.
func isStored(view *store.View, id KeyID) bool {
	for _, kind := range []resource.Kind{resource.KindGlobalSecret, resource.KindSigningKey} {
		if _, ok := view.Get(resource.Key{Kind: kind, Name: id.String()}); ok {
			return true
		}
	}
	return false
}

// Find returns the record of a token by its id, in any letter case.
func (r *Ring) Find(id string) (*resource.Resource, *resource.IssuedToken, bool) {
	res, ok := r.cfg.Local().Get(recordKey(id))
	if !ok {
		return nil, nil, false
	}
	return res, res.Spec().(*resource.IssuedToken), true
}

// Revocation returns the resource that revokes a recorded token once it is
// stored. A zone of a global, which does not own TokenRevocations, marks the
// record.
func (r *Ring) Revocation(record *resource.IssuedToken, reason string) (*resource.Resource, error) {
	name := recordKey(record.ID).Name
	if r.cfg.Global != nil {
		marked := *record
		marked.Revoked, marked.Reason = true, reason
		return build(resource.KindIssuedToken, name, marked)
	}
	var labels map[string]string
	if mesh := identity.MeshOf(record); mesh != "" {
		labels = map[string]string{resource.TokenMeshLabel: string(mesh)}
	}
	return labelled(resource.KindTokenRevocation, name, labels, resource.TokenRevocation{
		Use: record.Use, ID: record.ID, Expires: record.Expires, Reason: reason,
	})
}

// Revocations returns the tokens of dataplanes that were revoked, as known here.
func (r *Ring) Revocations() identity.Revocations {
	views := []*store.View{r.cfg.Local()}
	if r.cfg.Global != nil {
		if global := r.cfg.Global(); global != nil {
			views = append(views, global)
		}
	}
	return revocationsIn(views...)
}

func revocationsIn(views ...*store.View) identity.Revocations {
	return identity.RevocationsIn(func(yield func(*resource.Resource) bool) {
		for _, view := range views {
			for _, kind := range []resource.Kind{resource.KindTokenRevocation, resource.KindIssuedToken} {
				for res := range view.List(kind, "") {
					if !yield(res) {
						return
					}
				}
			}
		}
	})
}

// Expired returns some records and revocations that are of no use any more:
// those of tokens that have expired longer than identity.KeptFor ago. Removing them whenever
// a token is issued keeps their number in proportion to that of living tokens. Revocations
// of which proxies hold the credentials stay until another one takes their place, because
// proxies close connections when these change.
func (r *Ring) Expired() []resource.Key {
	before := r.cfg.Now().Add(-identity.KeptFor)
	past := func(expires string) bool {
		t, err := time.Parse(time.RFC3339, expires)
		return err == nil && t.Before(before)
	}
	var keys []resource.Key
	view := r.cfg.Local()
	revocations := revocationsIn(view)
	held := func(res *resource.Resource) bool {
		revocation, is := identity.RevocationOf(res)
		return is && !revocations.Over(revocation)
	}
	for res := range view.List(resource.KindIssuedToken, "") {
		if len(keys) < maxPruned && past(res.Spec().(*resource.IssuedToken).Expires) && !held(res) {
			keys = append(keys, res.Key())
		}
	}
	if r.cfg.Global != nil {
		return keys
	}
	for res := range view.List(resource.KindTokenRevocation, "") {
		if len(keys) < maxPruned && past(res.Spec().(*resource.TokenRevocation).Expires) && !held(res) {
			keys = append(keys, res.Key())
		}
	}
	return keys
}
