// Package global assembles and runs a server of the global control plane, to which
// operators write meshes and policies, and from which zones replicate them.
//
// Guarantees: the order of start and stop. Listeners are bound before anything is
// written, so that a failed start has no effect; nothing is served before every
// committed write has been applied; a stop lets running calls finish, then ends the
// streams, then closes the log.
//
// Non-goals: matching for dataplanes. Queries about a dataplane are forwarded to its
// zone.
package global
