// Package admin serves the AdminService: the door through which resources are
// written, read and watched, the same on the global and in a zone.
//
// A write is decided as data: decoded strictly, checked, and proposed as one
// transaction whose preconditions the state machine verifies again, so that
// nothing can slip in between. A batch is applied whole or not at all
// (§1.2), and every problem in it is reported at once, by document
// and path.
//
// The package refuses to know who owns what: the server that assembles it says
// which kinds it accepts and what to do to a resource before it is stored.
package admin
