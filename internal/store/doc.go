// Package store is the state of a control plane in memory: every resource, at
// every recent revision.
//
// Guarantees. A View is immutable and cheap: it never changes under its reader
// and costs nothing to keep for a while. A batch is applied completely or not at
// all (§1.2, §7.3). Revisions only rise. The change feed delivers every
// change after a revision, in order, exactly once, in whole batches, or says
// ErrCompacted; it never drops an event and never makes the writer wait for a
// reader. Waiting for a revision does not poll. Apply is a function of its
// input and the state before it: no clock, no randomness, no map order.
//
// Non-goals: authorization (package rbac) and persistence (package consensus on the
// global, the replica in package sync in a zone).
//
// The same package serves twice (one store, two uses): in the global the raft
// FSM calls Apply, which checks, numbers and times each batch; in a zone the
// sync stream calls Replicate on the replica of what the global owns, which
// keeps what the source assigned.
//
// How it works. Resources are in a copy-on-write B-tree, so that a view is a
// pointer and a batch copies one node per level. Each batch leaves a record: its
// changes and the view it made. The newest view, the retained records and a
// channel are published together behind one atomic pointer; readers load it and,
// if they have seen it all, wait for the channel, which the writer closes when it
// publishes the next. Readers take no lock, so none can delay the writer.
//
// Revisions are raft indices and thus not dense: a batch that changes nothing or
// is refused, and an entry that is not a batch, raise Store.Revision (Wait returns
// for it) but leave no record. View.Changed is the last record's revision, and
// the chain of Batch.Prev runs through records only.
package store
