// Package authz enforces the access rules (§6) on a control plane: it decides what
// the principal of a request may do by the roles and bindings in the control
// plane's own store.
//
// Guarantees. A decision and its write are one: the write carries the revision of
// the access rules and the versions of the resources that it was decided on, and
// the state machine refuses it when either has changed (§6.4). No change grants
// rights that its author does not have, and none removes the last binding to the
// role admin; only a member of mesh-system:admin can override these two checks.
//
// Non-goals. It does not evaluate rules, which package rbac does, and it does not
// authenticate: the principal comes with the context.
package authz
