// Package rbac decides who may write what (§6.1–§6.4).
//
// Roles and bindings are compiled once into a Set; a Set answers any number of
// questions. Guarantees: nothing is granted that no rule grants; an answer depends
// on the roles, the bindings and the question only; a denial names the nearest rule
// and the test that it failed. An access that a
// rule grants by name or kind is found without allocating and without looking
// at rules about other names and kinds.
//
// It also decides when one rule is contained in another, for the
// privilege-escalation check.
//
// Non-goals: storing roles, authenticating callers, enforcing decisions. It imports
// neither store nor transport.
package rbac
