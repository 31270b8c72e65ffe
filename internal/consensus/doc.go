// Package consensus makes a store durable and, with several servers, replicated:
// one raft node, its log, its snapshots and the adapter that applies committed
// entries to a store.Store. It is the only package that imports raft.
//
// Guarantees. A write that Propose acknowledged is on the disks of a majority
// and survives any crash (§7.1); a batch is applied whole or not at
// all; the revision of a write is its raft index (§7.2). Read is a
// linearizable read point: a view taken after it returns holds every write that
// was acknowledged before it was called. Every log entry and every vote carries
// a checksum that is checked on each read, so a damaged file stops the server
// instead of changing what it believes.
//
// Any server takes writes and reads: a follower sends the decided batch to the
// leader, or asks it for a read point, and waits until its own store has come as
// far. A change of leader is a delay; so is the stop of a leader, which hands
// over first.
//
// It refuses to look inside a command (package store encodes and applies them),
// to decide who may write (package rbac), to run in a data directory that
// another process uses or that belongs to another cluster, node or role, and to
// listen without TLS.
//
// Mechanism. hashicorp/raft over raft-boltdb, opened without a synced free list.
// Several properties of that stack are not optional and stand where they are
// enforced:
//
//   - heartbeats are never handled outside the main loop, and a message reaches
//     the server that is meant or none (transport.go);
//   - a leader proves its lead by answers to what it sent after the question,
//     where raft takes any answer (witness.go);
//   - a server whose disk was lost neither votes nor confirms entries before its
//     vote was taken away (witness.go, membership_rules.go);
//   - answers that nobody reads do not block a leader (pipeline.go);
//   - committed entries are never restored before the loop runs, and a new leader
//     writes an empty batch before it serves (leadership.go);
//   - log entries are kept back to the oldest snapshot that could be fallen back
//     to (logstore.go);
//   - a leader that refuses all writes because of a transfer of leadership that
//     never ends, gives up (transfer.go).
//
// Raft counts and times what it does through go-metrics' global sink, which
// nothing here sets. A command that wants those figures installs a sink and is
// built with the tag hashicorpmetrics, without which raft reports to the sink of
// an older module.
//
// A cluster starts as one server, which needs no network: without an address the
// transport is in memory, as in a zone. With one the TLS listener is bound from
// the start, so that other servers can join without a restart of the first
// (Config.Join); servers find each other again when their addresses change
// (join.go, whereabouts.go).
package consensus
