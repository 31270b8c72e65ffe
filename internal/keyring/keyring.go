// Package keyring keeps a control plane's signing keys and its bootstrap admin
// token as resources of its own store: private halves are GlobalSecrets, which
// never leave the server's cluster; public halves are SigningKeys, which the
// global syncs to its zones (SEMANTICS §6.8).
//
// It guarantees that a key or token is made once, however often and on however
// many servers a start is interrupted, and that a change of the stored keys
// takes effect on the next token that is issued or verified.
package keyring

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"meridian/internal/auth"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// The kinds that keys are kept as.
const (
	kindSecret     resource.Kind = "GlobalSecret"
	kindSigningKey resource.Kind = "SigningKey"
)

// AdminTokenName names the GlobalSecret that holds the bootstrap admin token
// (SEMANTICS §6.6).
const AdminTokenName = "admin-user-token"

// adminTokenValidity is how long the bootstrap admin token lasts.
const adminTokenValidity = 10 * 365 * 24 * time.Hour

// Proposer commits transactions. *consensus.Node implements it.
type Proposer interface {
	Propose(ctx context.Context, txn store.Txn) (store.Result, error)
}

// Ring issues and verifies tokens with the keys that a store holds now. It is
// safe for concurrent use.
type Ring struct {
	view func() *store.View
	now  func() time.Time

	mu       sync.Mutex
	digest   store.Digest // of the secrets that the rest was made from; guarded by mu
	made     bool
	issuer   *auth.Issuer
	verifier *auth.Verifier
}

// New returns the ring of the store that view reads.
func New(view func() *store.View, now func() time.Time) *Ring {
	return &Ring{view: view, now: now}
}

// Issuer returns an issuer with the current keys.
func (r *Ring) Issuer() (*auth.Issuer, error) {
	issuer, _, err := r.current()
	return issuer, err
}

// Verifier returns a verifier with the current keys.
func (r *Ring) Verifier() (*auth.Verifier, error) {
	_, verifier, err := r.current()
	return verifier, err
}

func (r *Ring) current() (*auth.Issuer, *auth.Verifier, error) {
	view := r.view()
	digest := view.Digest(kindSecret)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made && r.digest == digest {
		return r.issuer, r.verifier, nil
	}
	var private []auth.SigningKey
	var public []auth.PublicKey
	for s := range view.List(kindSecret, "") {
		id, err := auth.ParseKeyID(s.Key().Name)
		if err != nil {
			continue // a secret that is not a key
		}
		key, err := auth.ParseSigningKey(id, s.Spec().(*resource.Secret).Bytes())
		if err != nil {
			return nil, nil, fmt.Errorf("GlobalSecret %q does not hold a signing key: %w", s.Key().Name, err)
		}
		private = append(private, key)
		public = append(public, key.Public())
	}
	r.issuer, r.verifier = auth.NewIssuer(r.now, private...), auth.NewVerifier(r.now, public...)
	r.digest, r.made = digest, true
	return r.issuer, r.verifier, nil
}

// AdminToken returns the bootstrap admin token, or "" when it was deleted.
func (r *Ring) AdminToken() string {
	s, ok := r.view().Get(resource.Key{Kind: kindSecret, Name: AdminTokenName})
	if !ok {
		return ""
	}
	return string(s.Spec().(*resource.Secret).Bytes())
}

// Ensure makes what is missing: a signing key for each use, published as a
// SigningKey when publish is set, and the admin token. It is for the leader, at
// its start.
func (r *Ring) Ensure(ctx context.Context, p Proposer, publish bool, uses ...auth.Use) error {
	for _, use := range uses {
		if err := r.ensureKey(ctx, p, publish, auth.KeyID{Use: use, Serial: 1}); err != nil {
			return err
		}
	}
	return r.ensureAdminToken(ctx, p)
}

// ensureKey makes the first key of a use, unless there is any key of that use:
// one that was rotated away is not made again.
func (r *Ring) ensureKey(ctx context.Context, p Proposer, publish bool, id auth.KeyID) error {
	for s := range r.view().List(kindSecret, "") {
		if have, err := auth.ParseKeyID(s.Key().Name); err == nil && have.Use == id.Use {
			return nil
		}
	}
	return r.addKey(ctx, p, publish, id)
}

// addKey makes a key and stores both halves, or only the private one.
func (r *Ring) addKey(ctx context.Context, p Proposer, publish bool, id auth.KeyID) error {
	key, err := auth.GenerateSigningKey(id)
	if err != nil {
		return err
	}
	private, err := key.PEM()
	if err != nil {
		return err
	}
	batch := []*resource.Resource{}
	secret, err := build(kindSecret, id.String(), map[string]any{"data": base64.StdEncoding.EncodeToString(private)})
	if err != nil {
		return err
	}
	batch = append(batch, secret)
	if publish {
		der, err := key.Public().PKIX()
		if err != nil {
			return err
		}
		public, err := build(kindSigningKey, id.String(), map[string]any{
			"use": string(id.Use), "serial": id.Serial, "publicKey": base64.StdEncoding.EncodeToString(der),
		})
		if err != nil {
			return err
		}
		batch = append(batch, public)
	}
	return r.create(ctx, p, batch...)
}

func (r *Ring) ensureAdminToken(ctx context.Context, p Proposer) error {
	if r.AdminToken() != "" {
		return nil
	}
	issuer, err := r.Issuer()
	if err != nil {
		return err
	}
	token, _, err := issuer.User(auth.AdminUser, []string{auth.AdminGroup}, adminTokenValidity)
	if err != nil {
		return fmt.Errorf("issue the admin token: %w", err)
	}
	secret, err := build(kindSecret, AdminTokenName, map[string]any{"data": base64.StdEncoding.EncodeToString([]byte(token))})
	if err != nil {
		return err
	}
	return r.create(ctx, p, secret)
}

// create writes resources that must not be there yet. Losing that race is fine:
// somebody else made them.
func (r *Ring) create(ctx context.Context, p Proposer, batch ...*resource.Resource) error {
	txn := store.Txn{Time: r.now()}
	for _, res := range batch {
		txn.Ops = append(txn.Ops, store.Op{Key: res.Key(), Resource: res})
		txn.Preconditions = append(txn.Preconditions, store.Precondition{Key: res.Key()})
	}
	_, err := p.Propose(ctx, txn)
	var conflict *store.ConflictError
	if err != nil && !errors.As(err, &conflict) {
		return fmt.Errorf("store %s: %w", batch[0].Key(), err)
	}
	return nil
}

func build(kind resource.Kind, name string, spec map[string]any) (*resource.Resource, error) {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(spec); err != nil {
		return nil, fmt.Errorf("encode %s/%s: %w", kind, name, err)
	}
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: kind, Name: name}}, b.Bytes())
	return r, err
}
