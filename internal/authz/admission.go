package authz

import (
	"context"
	"fmt"

	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// Change is a write that somebody else carries out, and asks about first: the
// API server of Kubernetes, which keeps the objects itself (§6.9).
type Change struct {
	// Access is CREATE, UPDATE or DELETE.
	Access resource.Access
	// Old is what an UPDATE or DELETE finds stored, there and not here.
	Old rbac.Object
	// New is what a CREATE or UPDATE would store; nil for an UPDATE that leaves
	// content as it is which cannot be read.
	New *resource.Resource
}

// Admission is a change that is allowed.
type Admission struct {
	// GrantedBy describes the rules that grant it.
	GrantedBy []string
	// Warnings are things that the author should know.
	Warnings []string
}

// Admit decides whether the caller may make a change elsewhere, by the access
// rules of the moment. Rights are kept from growing and from being lost as if
// the change were made here; nobody can insist.
//
// The error is an *rpcerr.Error of code Denied that says what is missing.
func (a *Authorizer) Admit(ctx context.Context, c Change) (Admission, error) {
	view := a.view()
	rules := a.Rules(view)
	who, subject := caller(ctx)
	request := rbac.Request{Subject: subject, Access: c.Access, Old: c.Old}
	op := store.Op{Key: c.Old.Key}
	switch {
	case c.New != nil:
		request.New, op = rbac.ObjectOf(c.New), store.Put(c.New)
	case c.Access == resource.AccessUpdate:
		request.New = c.Old
	}
	d := rules.Check(request)
	if !d.Allowed {
		return Admission{}, denied(who, d.Denial)
	}
	admission := Admission{GrantedBy: []string{d.By.String()}}
	if d.ByOld != nil && d.ByOld.Rule != d.By.Rule {
		admission.GrantedBy = append(admission.GrantedBy, d.ByOld.String())
	}
	if c.Access == resource.AccessUpdate && c.New == nil {
		return admission, nil // what cannot be read is not in force here
	}
	ops := []store.Op{op}
	if rbac.Guarded(request.New.Key) || rbac.Guarded(request.Old.Key) {
		if err := guard(who, rules, view, ops, false); err != nil {
			return Admission{}, err
		}
	}
	admission.Warnings = append(missingRoles(view, ops), notInForce(view, op)...)
	return admission, nil
}

// notInForce warns of a role or a binding that is written elsewhere, and so far only
// there: somebody may take it for a restriction, or for one that is gone.
func notInForce(view *store.View, op store.Op) []string {
	key := op.Key
	if op.Resource != nil {
		key = op.Resource.Key()
	}
	if key.Kind != resource.KindAccessRole && key.Kind != resource.KindAccessRoleBinding {
		return nil
	}
	here, ok := view.Get(key)
	switch {
	case op.Resource == nil && ok:
		return []string{fmt.Sprintf("%s: the control plane has one, which goes on deciding: delete it there, too", key)}
	case op.Resource != nil && (!ok || here.Hash() != op.Resource.Hash()):
		return []string{fmt.Sprintf("%s: it decides nothing until it is applied to the control plane, too", key)}
	}
	return nil
}
