package authz

import (
	"context"
	"fmt"

	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// Change is a write that the API server of Kubernetes asks about and carries out
// itself (§6.9).
type Change struct {
	// Access is CREATE, UPDATE or DELETE.
	Access resource.Access
	// Old is the object that an UPDATE or DELETE finds stored in Kubernetes.
	Old rbac.Object
	// New is the object that a CREATE or UPDATE would store; nil for an UPDATE that
	// does not change content which cannot be decoded.
	New *resource.Resource
}

// Admission is a permitted change.
type Admission struct {
	// GrantedBy describes the rules that grant it.
	GrantedBy []string
	// Warnings are for the author.
	Warnings []string
}

// Admit decides whether the caller may make a change in Kubernetes, by the current
// access rules. Privilege escalation and the loss of the last admin are checked as
// if the change were made here, and cannot be overridden.
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
		return admission, nil // content that cannot be decoded grants nothing
	}
	ops := []store.Op{op}
	if rbac.Guarded(request.New.Key) || rbac.Guarded(request.Old.Key) {
		if err := guard(who, rules, view, ops, false); err != nil {
			return Admission{}, err
		}
	}
	admission.Warnings = append(danglingRoles(view, ops), notInForce(view, op)...)
	return admission, nil
}

// notInForce warns about a role or a binding that so far is written in Kubernetes
// only: its author may take it for a restriction that is in force.
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
		return []string{fmt.Sprintf("%s: the control plane still has it, and it stays in force: delete it there, too", key)}
	case op.Resource != nil && (!ok || here.Hash() != op.Resource.Hash()):
		return []string{fmt.Sprintf("%s: it is not in force until it is applied to the control plane, too", key)}
	}
	return nil
}
