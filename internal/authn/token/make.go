package token

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"meridian/internal/commit"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// Ensure makes what is missing: a signing key for each use, the admin token, and
// its record. It is for the leader, at its start.
func (r *Ring) Ensure(ctx context.Context, log commit.Log, uses ...Use) error {
	for _, use := range uses {
		if r.latest(use) > 0 {
			continue // one that was rotated away is not made again
		}
		_, batch, err := r.Rotation(use)
		if err != nil {
			return err
		}
		if err := commit.CreateMissing(ctx, log, r.cfg.Now(), batch...); err != nil {
			return err
		}
	}
	return r.ensureAdminToken(ctx, log)
}

// Has reports whether there is a key that signs the tokens of a use.
func (r *Ring) Has(use Use) bool { return r.latest(use) > 0 }

// latest returns the highest serial number of a use; 0 when there is no key.
func (r *Ring) latest(use Use) uint64 {
	var serial uint64
	for s := range r.cfg.Local().List(resource.KindGlobalSecret, "") {
		if id, err := ParseKeyID(s.Key().Name); err == nil && id.Use == use {
			serial = max(serial, id.Serial)
		}
	}
	return serial
}

// next returns the serial number of the next key of a use: one that no key here
// has, and no recorded token names. A token of a deleted key is not taken for one of
// its successor.
func (r *Ring) next(use Use) uint64 {
	view, serial := r.cfg.Local(), r.latest(use)
	for s := range view.List(resource.KindSigningKey, "") {
		if id, err := ParseKeyID(s.Key().Name); err == nil && id.Use == use {
			serial = max(serial, id.Serial)
		}
	}
	for record := range view.List(resource.KindIssuedToken, "") {
		if spec := record.Spec().(*resource.IssuedToken); Use(spec.Use) == use {
			serial = max(serial, spec.Serial)
		}
	}
	return serial + 1
}

// Rotation makes the next key of a use and returns the resources that hold it,
// which must not be there yet: its private half and, on a global, its public
// one. Once they are stored, new tokens are signed with it; the keys before it
// verify what they have signed until they are deleted.
func (r *Ring) Rotation(use Use) (KeyID, []*resource.Resource, error) {
	id := KeyID{Use: use, Serial: r.next(use), Issuer: r.issuerName()}
	key, err := GenerateSigningKey(id)
	if err != nil {
		return id, nil, err
	}
	private, err := key.PEM()
	if err != nil {
		return id, nil, err
	}
	secret, err := build(resource.KindGlobalSecret, id.String(), resource.Secret{Data: base64.StdEncoding.EncodeToString(private)})
	if err != nil || r.cfg.Zone != "" {
		return id, []*resource.Resource{secret}, err
	}
	der, err := key.Public().PKIX()
	if err != nil {
		return id, nil, err
	}
	public, err := build(resource.KindSigningKey, id.String(), resource.SigningKey{
		Use: string(use), Serial: id.Serial, PublicKey: base64.StdEncoding.EncodeToString(der),
	})
	return id, []*resource.Resource{secret, public}, err
}

func (r *Ring) ensureAdminToken(ctx context.Context, log commit.Log) error {
	if raw := r.AdminToken(); raw != "" {
		return r.recordAdminToken(ctx, log, raw)
	}
	raw, token, err := r.Issuer().User(AdminUser, []string{rbac.AdminGroup}, adminTokenValidity)
	if err != nil {
		return fmt.Errorf("issue the admin token: %w", err)
	}
	secret, err := build(resource.KindGlobalSecret, AdminTokenName, resource.Secret{Data: base64.StdEncoding.EncodeToString([]byte(raw))})
	if err != nil {
		return err
	}
	record, err := Record(token, "")
	if err != nil {
		return err
	}
	return commit.CreateMissing(ctx, log, r.cfg.Now(), secret, record)
}

// AdminReissue makes a new bootstrap admin token and returns the resources that
// hold it, its record, and the revocation of the one before. The caller writes
// them as one, on the condition that AdminTokenKey is as it was.
func (r *Ring) AdminReissue(by string) ([]*resource.Resource, error) {
	raw, token, err := r.Issuer().User(AdminUser, []string{rbac.AdminGroup}, adminTokenValidity)
	if err != nil {
		return nil, fmt.Errorf("issue the admin token: %w", err)
	}
	secret, err := build(resource.KindGlobalSecret, AdminTokenName, resource.Secret{Data: base64.StdEncoding.EncodeToString([]byte(raw))})
	if err != nil {
		return nil, err
	}
	record, err := Record(token, by)
	if err != nil {
		return nil, err
	}
	made := []*resource.Resource{secret, record}
	before, err := r.Verifier().User(r.AdminToken())
	if err != nil {
		return made, nil // there is none, or none that is good for anything
	}
	old, err := Record(before, "")
	if err != nil {
		return nil, err
	}
	ended := old.Spec().(*resource.IssuedToken)
	if _, known, ok := r.Find(before.ID); ok {
		ended = known
	}
	revocation, err := r.Revocation(ended, "the admin token was reissued")
	return append(made, revocation), err
}

// ReissueAdmin writes a new bootstrap admin token in place of the one before, for
// an operator of the server itself, who needs no token.
func (r *Ring) ReissueAdmin(ctx context.Context, log commit.Log) error {
	_, err := commit.WriteNewest(ctx, log, func() (commit.Batch, error) {
		made, err := r.AdminReissue("")
		txn := store.Txn{Time: r.cfg.Now()}
		view := r.cfg.Local()
		for _, res := range made {
			condition := store.Precondition{Key: res.Key()}
			if stored, ok := view.Get(res.Key()); ok {
				condition.Version, condition.Revision = stored.Meta().Version, stored.Meta().Revision
			}
			txn.Ops, txn.Preconditions = append(txn.Ops, store.Put(res)), append(txn.Preconditions, condition)
		}
		return commit.Batch{Txn: txn}, err
	})
	return err
}

// recordAdminToken records an admin token of a release that kept no records. One
// that is no longer good for anything needs none.
func (r *Ring) recordAdminToken(ctx context.Context, log commit.Log, raw string) error {
	token, err := r.Verifier().User(raw)
	if err != nil {
		return nil
	}
	record, err := Record(token, "")
	if err != nil {
		return err
	}
	if _, ok := r.cfg.Local().Get(record.Key()); ok {
		return nil
	}
	return commit.CreateMissing(ctx, log, r.cfg.Now(), record)
}

func build(kind resource.Kind, name string, spec any) (*resource.Resource, error) {
	return labelled(kind, name, nil, spec)
}

// labelled is build of a resource with labels.
func labelled(kind resource.Kind, name string, labels map[string]string, spec any) (*resource.Resource, error) {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(spec); err != nil {
		return nil, fmt.Errorf("encode %s/%s: %w", kind, name, err)
	}
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: kind, Name: name}, Labels: labels}, b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("build %s/%s: %w", kind, name, err)
	}
	return r, nil
}
