package token

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// AdminUser is the user whom the bootstrap admin token is for (§6.6).
const AdminUser = "admin"

// AdminTokenName names the GlobalSecret that holds the bootstrap admin token
// (§6.6).
const AdminTokenName = "admin-user-token"

// AdminTokenKey is the key of that resource.
var AdminTokenKey = resource.Key{Kind: resource.KindGlobalSecret, Name: AdminTokenName}

// adminTokenValidity is how long the bootstrap admin token lasts.
const adminTokenValidity = 10 * 365 * 24 * time.Hour

// RingConfig says whose keys a ring holds.
type RingConfig struct {
	// Local reads the store that this control plane writes. Required.
	Local func() *store.View
	// Global reads the replica of what a zone's global owns; nil on the global
	// and in a standalone zone. The public halves of the global's dataplane keys
	// verify here, and its revocations count here.
	Global func() *store.View
	// Zone names the zone whose keys these are; empty on the global.
	Zone string
	// Now is the clock. Required.
	Now func() time.Time
}

// Ring issues and verifies tokens with the current keys of its stores. It is safe for concurrent use.
type Ring struct {
	cfg RingConfig

	mu       sync.Mutex
	madeOf   material // guarded by mu, as is all below
	made     bool
	issuer   *Issuer
	verifier *Verifier
	// unusable is the error of stored keys that has not been logged yet.
	unusable error
}

// material identifies what issuer and verifier are made from.
type material struct{ secrets, published, revoked, revokedByGlobal store.Digest }

// NewRing returns a ring.
func NewRing(cfg RingConfig) *Ring { return &Ring{cfg: cfg} }

// issuerName is the part of a key's id that says whose it is. It stands in the
// names of resources, which have a bounded length.
func (r *Ring) issuerName() string {
	const longest = 200
	if len(r.cfg.Zone) <= longest {
		return r.cfg.Zone
	}
	return strings.TrimRight(r.cfg.Zone[:longest], ".-")
}

// Issuer returns an issuer with the current keys.
func (r *Ring) Issuer() *Issuer {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refreshLocked()
	return r.issuer
}

// Verifier returns a verifier with the current keys and revocations.
func (r *Ring) Verifier() *Verifier {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refreshLocked()
	return r.verifier
}

// CurrentVerifier is Verifier; it also logs, once, which stored keys cannot be
// used.
func (r *Ring) CurrentVerifier(log *slog.Logger) *Verifier {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refreshLocked()
	if r.unusable != nil {
		log.Error("a signing key cannot be used: tokens that name it are refused, and none is signed with it", "error", r.unusable)
		r.unusable = nil
	}
	return r.verifier
}

func (r *Ring) refreshLocked() {
	local := r.cfg.Local()
	of := material{secrets: local.Digest(resource.KindGlobalSecret), revoked: local.Digest(resource.KindTokenRevocation)}
	var global *store.View
	if r.cfg.Global != nil {
		global = r.cfg.Global()
		of.published, of.revokedByGlobal = global.Digest(resource.KindSigningKey), global.Digest(resource.KindTokenRevocation)
	}
	if r.made && r.madeOf == of {
		return
	}
	private, unusable := privateKeys(local)
	var public []PublicKey
	if global != nil {
		public = publishedKeys(global)
	}
	for _, key := range private {
		public = append(public, key.Public()) // last: its own keys go before others of their name
	}
	r.issuer = NewIssuer(r.cfg.Now, private...)
	r.verifier = NewVerifier(r.cfg.Now, public...).Revoking(r.revoked(local, global))
	r.madeOf, r.made, r.unusable = of, true, unusable
}

// privateKeys returns the keys that a store holds. A secret that has the name of
// a key and holds none is left out and reported: it must not make the tokens of
// other keys invalid, among them those of the operators who can correct it.
func privateKeys(view *store.View) (keys []SigningKey, unusable error) {
	for s := range view.List(resource.KindGlobalSecret, "") {
		id, err := ParseKeyID(s.Key().Name)
		if err != nil {
			continue // a secret that is not a key
		}
		key, err := ParseSigningKey(id, s.Spec().(*resource.Secret).Bytes())
		if err != nil {
			unusable = errors.Join(unusable, fmt.Errorf("GlobalSecret %q does not hold a signing key: %w", s.Key().Name, err))
			continue
		}
		keys = append(keys, key)
	}
	return keys, unusable
}

// publishedKeys returns the global's keys by which a zone verifies: those of
// dataplanes. The global's users are not the zone's (§6.10). One that
// cannot be used is left out, so that it refuses its own tokens only.
func publishedKeys(view *store.View) []PublicKey {
	var keys []PublicKey
	for k := range view.List(resource.KindSigningKey, "") {
		spec := k.Spec().(*resource.SigningKey)
		id, err := ParseKeyID(k.Key().Name)
		if err != nil || id.Use != ForDataplane || string(id.Use) != spec.Use || id.Serial != spec.Serial {
			continue
		}
		der, err := base64.StdEncoding.DecodeString(spec.PublicKey)
		if err != nil {
			continue
		}
		if key, err := ParsePublicKey(id, der); err == nil {
			keys = append(keys, key)
		}
	}
	return keys
}

// revoked returns the question whether a token was revoked: by a TokenRevocation
// in one of the views, or by its own record as that stands when asked.
func (r *Ring) revoked(views ...*store.View) func(Use, string) bool {
	type token struct {
		use Use
		id  string
	}
	all := map[token]bool{}
	for _, view := range views {
		if view == nil {
			continue
		}
		for res := range view.List(resource.KindTokenRevocation, "") {
			spec := res.Spec().(*resource.TokenRevocation)
			all[token{Use(spec.Use), spec.ID}] = true
		}
	}
	return func(use Use, id string) bool {
		if all[token{use, id}] {
			return true
		}
		record, ok := r.cfg.Local().Get(recordKey(id))
		if !ok {
			return false
		}
		spec := record.Spec().(*resource.IssuedToken)
		return spec.Revoked && spec.ID == id && Use(spec.Use) == use
	}
}

// Follow calls changed whenever keys or revocations have changed, until ctx
// ends. stores are those that the ring reads.
func (r *Ring) Follow(ctx context.Context, changed func(), stores ...*store.Store) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range stores {
		group.Go(func() error {
			for last := s.View(); ; {
				now, err := s.AwaitKinds(ctx, last, verifyingKinds...)
				if err != nil {
					return nil // ctx has ended
				}
				changed()
				last = now
			}
		})
	}
	return group.Wait()
}

// verifyingKinds are the kinds by which tokens are verified.
var verifyingKinds = []resource.Kind{resource.KindGlobalSecret, resource.KindSigningKey, resource.KindTokenRevocation, resource.KindIssuedToken}

// AdminToken returns the bootstrap admin token, or "" when it was deleted.
func (r *Ring) AdminToken() string {
	s, ok := r.cfg.Local().Get(AdminTokenKey)
	if !ok {
		return ""
	}
	return string(s.Spec().(*resource.Secret).Bytes())
}
