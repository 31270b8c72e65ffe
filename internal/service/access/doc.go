// Package access serves the AccessService: who the caller is, what the caller or
// another user may do, and who may do something, each by the rules that decide
// writes.
//
// Guarantees. An answer is based on every write that was acknowledged before the
// question, and it agrees with what a write would get.
//
// Non-goals. It decides no writes; package authz does.
package access
