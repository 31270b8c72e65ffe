// Package admin serves the AdminService, which writes, reads and watches
// resources, the same on the global and in a zone.
//
// A write is decided as data: decoded strictly, checked, and proposed as one
// transaction whose preconditions the state machine verifies again, so that
// no other write takes effect in between. A batch is applied as a whole or not at
// all (§1.2), and every problem in it is reported at once, by document and path.
//
// Non-goals: which control plane owns a kind. The server that assembles the
// service configures which kinds it accepts and how a resource is prepared
// before it is stored.
package admin
