package authz

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"meridian/internal/authn"
	"meridian/internal/commit"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// DefaultBinding names the binding that is created on first start.
const DefaultBinding = "default"

// Defaults says what a control plane starts with.
type Defaults struct {
	// Kubernetes adds the groups that Kubernetes knows users by.
	Kubernetes bool
	// Restricted gives the role admin to administrators only, as federated zones
	// do; otherwise every caller has it.
	Restricted bool
}

// Ensure writes what §6.5 starts a control plane with: the role admin
// whenever it is missing, and, in a store that has never had any access rules,
// the binding default. Losing a race for either is fine: another server of the
// same control plane wrote it.
func (d Defaults) Ensure(ctx context.Context, view func() *store.View, log commit.Log, now func() time.Time) error {
	_, err := commit.Write(ctx, log, func() (commit.Batch, error) {
		v := view()
		txn, err := d.missing(v)
		revision := v.AccessRevision()
		txn.Time, txn.AccessRevision = now(), &revision
		return commit.Batch{Txn: txn}, err
	})
	if err != nil {
		return fmt.Errorf("create the default access rules: %w", err)
	}
	return nil
}

func (d Defaults) missing(v *store.View) (store.Txn, error) {
	var txn store.Txn
	if _, ok := v.Get(resource.Key{Kind: resource.KindAccessRole, Name: rbac.AdminRole}); !ok {
		role, err := build(resource.KindAccessRole, rbac.AdminRole, resource.AccessRole{Rules: []resource.AccessRule{{Access: rbac.Accesses()}}})
		if err != nil {
			return txn, err
		}
		txn.Ops = append(txn.Ops, store.Put(role))
	}
	if v.AccessRevision() == 0 {
		binding, err := build(resource.KindAccessRoleBinding, DefaultBinding, resource.AccessRoleBinding{
			Subjects: d.subjects(), Roles: []string{rbac.AdminRole},
		})
		if err != nil {
			return txn, err
		}
		txn.Ops = append(txn.Ops, store.Put(binding))
	}
	return txn, nil
}

func (d Defaults) subjects() []resource.Subject {
	var groups []string
	switch {
	case d.Restricted && d.Kubernetes:
		groups = []string{authn.AdminGroup, "system:masters", "system:serviceaccounts:kube-system"}
	case d.Restricted:
		groups = []string{authn.AdminGroup}
	case d.Kubernetes:
		groups = []string{authn.AuthenticatedGroup, authn.UnauthenticatedGroup, "system:authenticated", "system:unauthenticated"}
	default:
		groups = []string{authn.AuthenticatedGroup, authn.UnauthenticatedGroup}
	}
	subjects := make([]resource.Subject, len(groups))
	for i, group := range groups {
		subjects[i] = resource.Subject{Type: resource.SubjectGroup, Name: group}
	}
	return subjects
}

func build(kind resource.Kind, name string, spec any) (*resource.Resource, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode %s/%s: %w", kind, name, err)
	}
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: kind, Name: name}}, text)
	return r, err
}
