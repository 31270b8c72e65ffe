// Package rbac decides who may write what (§6.1–§6.4).
//
// Roles and bindings are compiled once into a Set; a Set answers any number of
// questions. It guarantees that nothing is granted that no rule grants, that an
// answer depends on the roles, the bindings and the question only, and that a
// denial names the rule that came nearest and where it failed. An access that a
// rule grants by name or kind is found without allocating and without looking
// at rules about other names and kinds.
//
// It also knows when one rule is contained in another, so that nobody can hand
// out more than they hold.
//
// The package refuses to know where roles are stored, who the caller is and
// what becomes of a decision: it imports neither store nor transport.
package rbac
