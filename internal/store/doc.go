// Package store is the state of a control plane in memory: every resource, at
// every recent revision.
//
// Guarantees. A View is immutable and cheap: it never changes under its reader
// and costs nothing to keep for a while. A batch is applied whole or not at all
// (SEMANTICS §1.2, §7.3). Revisions only rise. The change feed delivers every
// change after a revision, in order, exactly once, in whole batches, or says
// ErrCompacted; it never drops an event and never makes the writer wait for a
// reader. Waiting for a revision does not poll. Apply is a function of its
// input and the state before it: no clock, no randomness, no map order.
//
// It refuses to decide who may write (package rbac) and to survive a restart
// (package consensus on the global, the replica in package sync in a zone).
//
// The same package serves twice (one store, two uses): in the global the raft
// FSM calls Apply; in a zone the sync stream calls the same Apply on the
// replica of what the global owns.
package store
