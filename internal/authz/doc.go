// Package authz enforces §6 on a control plane: it decides what the
// caller of a request may do by the roles and bindings that the control plane's
// own store holds at that moment, and answers questions about it.
//
// It guarantees that a decision and the write it was made for are one: the write
// carries the revision of the access rules and the versions of the resources it
// was decided on, and the state machine refuses it when either has changed
// (§6.4). Nobody can hand out rights that they do not hold, and the last binding
// to the role admin cannot be lost by accident; only a member of
// mesh-system:admin can insist on either.
//
// The rules themselves are evaluated by package rbac. Who the caller is has been
// found out before: the principal comes with the request's context.
package authz
